/* gpu_operations.c - every operation of the GPU backend against the CPU's, in fp32 and bf16, at
 * sizes that divide tiles and sizes that do not. */
#include "kernels/tests/gpu_case.h"

#include <math.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define T(its_name, its_role, its_kind, count, ...)                                                \
    {                                                                                              \
        .name = its_name, .role = GPU_##its_role, .kind = BUFFER_##its_kind, .elements = count,    \
        __VA_ARGS__                                                                                \
    }

static const size_t one[] = {0, 1}, few[] = {0, 1, 17}, many[] = {0, 1, 301, 318, 382, 1000};
static const batch_layout layouts[] = {{1, 1, one}, {2, 17, few}, {5, 1000, many}};
static const size_t widths[] = {48, 50, 768, 1280, 7168};

static size_t layout_count(void) {
    return gpu.small ? 2 : COUNT(layouts);
}

/* ---- rows ---- */

static int run_embed(const gpu_case *c, const kernels *k, backend *device, buffer **b, status *st) {
    return k->embed(device,
                    &(embed_args){c->layout->rows, c->size[0], c->size[1], b[0], b[1], b[2]}, st);
}

static int run_embed_back(const gpu_case *c, const kernels *k, backend *device, buffer **b,
                          status *st) {
    return k->embed_back(
        device, &(embed_back_args){c->layout, c->size[0], c->size[1], b[0], b[1], b[2]}, st);
}

static int run_norm(const gpu_case *c, const kernels *k, backend *device, buffer **b, status *st) {
    const norm_args args = {
        (norm_kind)c->size[1], c->layout->rows, c->size[0], 1e-6f, b[0], b[1], b[2], b[3], b[4]};
    return k->norm(device, &args, st);
}

static int run_norm_back(const gpu_case *c, const kernels *k, backend *device, buffer **b,
                         status *st) {
    return k->norm_back(
        device, &(norm_back_args){c->layout, c->size[0], 1e-6f, b[0], b[1], b[2], b[3], b[4]}, st);
}

static int run_swiglu(const gpu_case *c, const kernels *k, backend *device, buffer **b,
                      status *st) {
    return k->swiglu(device, &(swiglu_args){c->layout->rows, c->size[0], b[0], b[1]}, st);
}

static int run_swiglu_back(const gpu_case *c, const kernels *k, backend *device, buffer **b,
                           status *st) {
    return k->swiglu_back(device,
                          &(swiglu_back_args){c->layout->rows, c->size[0], b[0], b[1], b[2]}, st);
}

static int run_magnitude(const gpu_case *c, const kernels *k, backend *device, buffer **b,
                         status *st) {
    return k->magnitude(
        device, &(magnitude_args){c->layout->rows, c->size[0], b[0], b[1], b[2], b[3], b[4]}, st);
}

static void check_rows(const batch_layout *layout, size_t width) {
    const size_t rows = layout->rows, all = rows * width, vocabulary = 37;
    gpu_check(&(gpu_case){"embed",
                          layout,
                          {width, vocabulary},
                          {T("table", IN, REAL, vocabulary * width),
                           T("id", IN, EXACT, rows, .fill = GPU_IDS, .limit = vocabulary),
                           T("out", OUT, REAL, all)},
                          .fp32 = 1e-30,
                          .bf16 = 1e-30,
                          .run = run_embed});
    gpu_check(
        &(gpu_case){"embed_back",
                    layout,
                    {width, vocabulary},
                    {T("id", IN, EXACT, rows, .fill = GPU_IDS, .limit = vocabulary),
                     T("d_out", IN, REAL, all), T("grad_table", ADD, EXACT, vocabulary * width)},
                    .bf16 = 1e-5,
                    .run = run_embed_back});
    gpu_check(&(gpu_case){"norm of huge rows",
                          layout,
                          {width, NORM_RMS},
                          {T("in", IN, REAL, all, .scale = 1e30),
                           T("gain", IN, EXACT, width),
                           {.name = NULL},
                           T("out", OUT, REAL, all),
                           T("rms", OUT, EXACT, rows)},
                          .run = run_norm});
    for (size_t kind = NORM_RMS; kind <= NORM_LAYER; kind++)
        gpu_check(&(gpu_case){
            kind == NORM_RMS ? "norm rms" : "norm layer",
            layout,
            {width, kind},
            {T("in", IN, REAL, all, .scale = 3), T("gain", IN, EXACT, width, .fill = GPU_GAIN),
             T(kind == NORM_RMS ? NULL : "bias", IN, EXACT, width), T("out", OUT, REAL, all),
             T(kind == NORM_RMS ? "rms" : NULL, OUT, EXACT, rows)},
            .run = run_norm});
    gpu_check(&(gpu_case){"norm_back",
                          layout,
                          {width},
                          {T("in", IN, REAL, all, .scale = 3),
                           T("gain", IN, EXACT, width, .fill = GPU_GAIN), T("d_out", IN, REAL, all),
                           T("d_in", OUT, REAL, all), T("grad_gain", ADD, EXACT, width)},
                          .over_in = 2,
                          .over_out = 3,
                          .run = run_norm_back});
    gpu_check(&(gpu_case){"swiglu",
                          layout,
                          {width},
                          {T("gate_up", IN, REAL, 2 * all, .scale = 4), T("out", OUT, REAL, all)},
                          .run = run_swiglu});
    gpu_check(&(gpu_case){"swiglu_back",
                          layout,
                          {width},
                          {T("gate_up", IN, REAL, 2 * all, .scale = 4), T("d_out", IN, REAL, all),
                           T("d_gate_up", OUT, REAL, 2 * all)},
                          .over_in = 0,
                          .over_out = 2,
                          .run = run_swiglu_back});
    for (int odd = 0; odd < 2; odd++)
        gpu_check(&(gpu_case){odd ? "magnitude of odd numbers" : "magnitude",
                              layout,
                              {width},
                              {T("in", IN, REAL, all, .fill = odd ? GPU_ODD : GPU_NORMAL),
                               T("rms", OUT, EXACT, rows), T("absmax", OUT, EXACT, rows),
                               T("absmax_channel", OUT, EXACT, rows, .integer = true),
                               T("median_abs", OUT, EXACT, rows)},
                              .bf16 = 1e-5,
                              .run = run_magnitude});
}

/* ---- products ---- */

static int run_linear(const gpu_case *c, const kernels *k, backend *device, buffer **b,
                      status *st) {
    return k->linear(device,
                     &(linear_args){c->layout, c->size[0], c->size[1], b[0], b[1], b[2], b[3]}, st);
}

static int run_linear_back(const gpu_case *c, const kernels *k, backend *device, buffer **b,
                           status *st) {
    return k->linear_back(
        device,
        &(linear_back_args){c->layout, c->size[0], c->size[1], b[0], b[1], b[2], b[3], b[4], b[5]},
        st);
}

static int run_head(const gpu_case *c, const kernels *k, backend *device, buffer **b, status *st) {
    return k->head(
        device, &(head_args){c->layout, c->size[0], c->size[1], b[0], b[1], b[2], b[3], b[4]}, st);
}

static int run_head_back(const gpu_case *c, const kernels *k, backend *device, buffer **b,
                         status *st) {
    return k->head_back(
        device, &(head_back_args){c->layout, c->size[0], c->size[1], b[0], b[1], b[2], b[3], b[4]},
        st);
}

static void check_products(const batch_layout *layout, size_t in, size_t out) {
    const size_t rows = layout->rows;
    const double scale = 1.0 / sqrt((double)in), back = 1.0 / sqrt((double)out);
    for (int bias = 0; bias < 2; bias++)
        gpu_check(&(gpu_case){
            bias ? "linear with bias" : "linear",
            layout,
            {in, out},
            {T("in", IN, REAL, rows * in), T("weight", IN, REAL, out * in, .scale = scale),
             T(bias ? "bias" : NULL, IN, EXACT, out), T("out", OUT, REAL, rows * out)},
            .run = run_linear});
    gpu_check(
        &(gpu_case){"linear_back",
                    layout,
                    {in, out},
                    {T("in", IN, REAL, rows * in), T("weight", IN, REAL, out * in, .scale = back),
                     T("d_out", IN, REAL, rows * out), T("d_in", OUT, REAL, rows * in),
                     T("grad_weight", ADD, EXACT, out * in), T("grad_bias", ADD, EXACT, out)},
                    .run = run_linear_back});
    gpu_check(&(gpu_case){"head",
                          layout,
                          {in, out},
                          {T("in", IN, REAL, rows * in),
                           T("weight", IN, REAL, out * in, .scale = 2 * scale),
                           T("target", IN, EXACT, rows, .fill = GPU_TARGETS, .limit = out),
                           T("loss", OUT, EXACT, rows), T("logits", OUT, EXACT, rows * out)},
                          .run = run_head});
    gpu_check(&(gpu_case){"head without logits",
                          layout,
                          {in, out},
                          {T("in", IN, REAL, rows * in),
                           T("weight", IN, REAL, out * in, .scale = 2 * scale),
                           T("target", IN, EXACT, rows, .fill = GPU_TARGETS, .limit = out),
                           T("loss", OUT, EXACT, rows)},
                          .run = run_head});
    gpu_check(&(gpu_case){"head_back",
                          layout,
                          {in, out},
                          {T("in", IN, REAL, rows * in),
                           T("weight", IN, REAL, out * in, .scale = 2 * scale),
                           T("target", IN, EXACT, rows, .fill = GPU_TARGETS, .limit = out),
                           T("d_in", OUT, REAL, rows * in), T("grad_weight", ADD, EXACT, out * in)},
                          .run = run_head_back});
}

/* ---- attention ---- */

static rotary_args rotary_of(const gpu_case *c, buffer **b) {
    return (rotary_args){c->layout, c->size[0], c->size[1], c->size[2], c->size[3], b[0],
                         b[1],      b[2],       b[3],       1e-6f,      b[4],       b[5]};
}

static int run_rotary(const gpu_case *c, const kernels *k, backend *device, buffer **b,
                      status *st) {
    const rotary_args args = rotary_of(c, b);
    return k->rotary(device, &args, st);
}

static int run_rotary_back(const gpu_case *c, const kernels *k, backend *device, buffer **b,
                           status *st) {
    rotary_args forward = rotary_of(c, b);
    forward.out = NULL;
    const rotary_back_args args = {&forward, b[5], b[6], b[7], b[8]};
    return k->rotary_back(device, &args, st);
}

static int run_attention(const gpu_case *c, const kernels *k, backend *device, buffer **b,
                         status *st) {
    return k->attention(device,
                        &(attention_args){c->layout, c->size[0], c->size[1], c->size[2], b[0], b[1],
                                          b[2], b[3], b[4]},
                        st);
}

/* `out` is computed first: backward wants the forward's. */
static int run_attention_back(const gpu_case *c, const kernels *k, backend *device, buffer **b,
                              status *st) {
    const attention_args forward = {c->layout, c->size[0], c->size[1], c->size[2], b[0],
                                    b[1],      NULL,       NULL,       NULL};
    const attention_back_args args = {c->layout, c->size[0], c->size[1], c->size[2],
                                      b[0],      b[1],       b[2],       b[3]};
    return k->attention(device, &forward, st) || k->attention_back(device, &args, st);
}

static void check_attention(const batch_layout *layout, size_t queries, size_t kv, size_t dim,
                            size_t rotary) {
    const size_t rows = layout->rows, qkv = rows * (queries + 2 * kv) * dim;
    const size_t out = rows * queries * dim, angles = rows * rotary / 2;
    size_t squares = 0;
    for (size_t b = 0; b < layout->sequences; b++) {
        const size_t length = layout->start[b + 1] - layout->start[b];
        squares += length * length;
    }
    for (int normed = 0; normed < 2; normed++) {
        gpu_check(&(gpu_case){normed ? "rotary with norm" : "rotary",
                              layout,
                              {queries, kv, dim, rotary},
                              {T(rotary ? "cosine" : NULL, IN, EXACT, angles),
                               T(rotary ? "sine" : NULL, IN, EXACT, angles),
                               T(normed ? "query_gain" : NULL, IN, EXACT, dim, .fill = GPU_GAIN),
                               T(normed ? "key_gain" : NULL, IN, EXACT, dim, .fill = GPU_GAIN),
                               T("in", IN, REAL, qkv), T("out", OUT, REAL, qkv)},
                              .over_in = 4,
                              .over_out = 5,
                              .run = run_rotary});
        gpu_check(&(gpu_case){normed ? "rotary_back with norm" : "rotary_back",
                              layout,
                              {queries, kv, dim, rotary},
                              {T(rotary ? "cosine" : NULL, IN, EXACT, angles),
                               T(rotary ? "sine" : NULL, IN, EXACT, angles),
                               T(normed ? "query_gain" : NULL, IN, EXACT, dim, .fill = GPU_GAIN),
                               T(normed ? "key_gain" : NULL, IN, EXACT, dim, .fill = GPU_GAIN),
                               T("in", IN, REAL, qkv), T("d_out", IN, REAL, qkv),
                               T("d_in", OUT, REAL, qkv),
                               T(normed ? "grad_query_gain" : NULL, ADD, EXACT, dim),
                               T(normed ? "grad_key_gain" : NULL, ADD, EXACT, dim)},
                              .over_in = 5,
                              .over_out = 6,
                              .run = run_rotary_back});
    }
    gpu_check(&(gpu_case){"attention",
                          layout,
                          {queries, kv, dim},
                          {T("qkv", IN, REAL, qkv), T("out", OUT, REAL, out),
                           T("entropy", OUT, EXACT, rows * queries),
                           T("first_token_mass", OUT, EXACT, rows * queries),
                           T("pattern", OUT, EXACT, squares * queries)},
                          .run = run_attention});
    gpu_check(&(gpu_case){"attention alone",
                          layout,
                          {queries, kv, dim},
                          {T("qkv", IN, REAL, qkv), T("out", OUT, REAL, out)},
                          .run = run_attention});
    gpu_check(&(gpu_case){"attention_back",
                          layout,
                          {queries, kv, dim},
                          {T("qkv", IN, REAL, qkv), T("out", OUT, REAL, out),
                           T("d_out", IN, REAL, out), T("d_qkv", OUT, REAL, qkv)},
                          .bf16 = 1e-2,
                          .run = run_attention_back});
}

int main(int argc, char **argv) {
    static const size_t product[][2] = {{48, 96}, {50, 31}, {768, 2304}, {1280, 320}, {7168, 256}};
    static const size_t heads[][4] = {
        {4, 4, 12, 12}, {4, 2, 16, 16}, {12, 4, 64, 64}, {10, 2, 128, 64}, {3, 1, 96, 0}};
    gpu_open(argc, argv);
    for (size_t l = 0; l < layout_count(); l++) {
        for (size_t i = 0; i < COUNT(widths); i++)
            check_rows(&layouts[l], widths[i]);
        for (size_t i = 0; i < COUNT(product); i++)
            check_products(&layouts[l], product[i][0], product[i][1]);
        check_products(&layouts[l], 128, 5003);
        for (size_t i = 0; i < COUNT(heads); i++)
            check_attention(&layouts[l], heads[i][0], heads[i][1], heads[i][2], heads[i][3]);
    }
    return gpu_close();
}
