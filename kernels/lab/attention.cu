/* lab/attention.cu - attention and its backward, checked and timed, alone.
 *
 *     attention [check|time] [SEED] [fp32|bf16] [few]
 *
 * `few`: times fewer shapes.
 *
 * Checks against float64 on the host, fresh random input for each SEED: unequal sequences, every
 * optional output, ten runs to the bit, with and without the optional outputs to the bit, a
 * sequence alone to the bit. Times at models' shapes, over two input sets in turn; TFLOP/s count
 * 2 T^2 D per head forward (the half that causal attention sees) and 5 T^2 D backward, as is usual.
 */
#include "kernels/lab/check.cuh"

struct shape {
    size_t heads, kv_heads, dim;
    std::vector<size_t> lengths;
};

struct reference {
    doubles out, entropy, first, pattern, d_qkv;
};

static size_t sum_of(const std::vector<size_t> &lengths, bool squares) {
    size_t sum = 0;
    for (size_t n : lengths)
        sum += squares ? n * n : n;
    return sum;
}

/* One head of one sequence; d_key and d_value are added to. */
static void naive_head(const shape &s, const floats &qkv, const floats &d_out, size_t first,
                       size_t length, size_t square, size_t h, reference &ref) {
    const size_t dim = s.dim, stride = (s.heads + 2 * s.kv_heads) * dim, inner = s.heads * dim;
    const size_t kv = h / (s.heads / s.kv_heads);
    const size_t key_at = (s.heads + kv) * dim, value_at = key_at + s.kv_heads * dim;
    const double scale = 1 / sqrt((double)dim);
    doubles w(length), dw(length);
    for (size_t p = 0; p < length; p++) {
        const float *q = &qkv[(first + p) * stride + h * dim];
        const float *d = &d_out[(first + p) * inner + h * dim];
        double most = -INFINITY, sum = 0, entropy = 0, along = 0;
        for (size_t k = 0; k <= p; k++) {
            const float *key = &qkv[(first + k) * stride + key_at];
            const float *value = &qkv[(first + k) * stride + value_at];
            w[k] = dw[k] = 0;
            for (size_t c = 0; c < dim; c++) {
                w[k] += (double)q[c] * (double)key[c];
                dw[k] += (double)d[c] * (double)value[c];
            }
            w[k] *= scale;
            most = std::max(most, w[k]);
        }
        for (size_t k = 0; k <= p; k++)
            sum += w[k] = exp(w[k] - most);
        for (size_t k = 0; k <= p; k++) {
            w[k] /= sum;
            entropy -= w[k] > 0 ? w[k] * log(w[k]) : 0;
            along += w[k] * dw[k];
            ref.pattern[s.heads * square + (h * length + p) * length + k] = w[k];
        }
        ref.entropy[(first + p) * s.heads + h] = entropy;
        ref.first[(first + p) * s.heads + h] = w[0];
        double *out = &ref.out[(first + p) * inner + h * dim];
        double *d_query = &ref.d_qkv[(first + p) * stride + h * dim];
        for (size_t k = 0; k <= p; k++) {
            const double ds = scale * w[k] * (dw[k] - along);
            const float *key = &qkv[(first + k) * stride + key_at];
            const float *value = &qkv[(first + k) * stride + value_at];
            double *d_key = &ref.d_qkv[(first + k) * stride + key_at];
            double *d_value = &ref.d_qkv[(first + k) * stride + value_at];
            for (size_t c = 0; c < dim; c++) {
                out[c] += w[k] * (double)value[c];
                d_query[c] += ds * (double)key[c];
                d_key[c] += ds * (double)q[c];
                d_value[c] += w[k] * (double)d[c];
            }
        }
    }
}

static reference naive(const shape &s, const floats &qkv, const floats &d_out) {
    const size_t rows = sum_of(s.lengths, false);
    reference ref = {doubles(rows * s.heads * s.dim), doubles(rows * s.heads),
                     doubles(rows * s.heads), doubles(s.heads * sum_of(s.lengths, true)),
                     doubles(qkv.size())};
    size_t first = 0, square = 0;
    for (size_t length : s.lengths) {
#pragma omp parallel for schedule(dynamic)
        for (size_t kv = 0; kv < s.kv_heads; kv++)
            for (size_t h = kv * s.heads / s.kv_heads; h < (kv + 1) * s.heads / s.kv_heads; h++)
                naive_head(s, qkv, d_out, first, length, square, h, ref);
        first += length;
        square += length * length;
    }
    return ref;
}

/* A shape's buffers on the card and its arguments. */
struct work {
    std::vector<size_t> start;
    batch_layout layout;
    attention_args forward;
    attention_back_args back;
    buffer *qkv, *d_out, *out, *entropy, *first, *pattern, *d_qkv;
};

static void make_work(lab &l, const shape &s, const floats &qkv, const floats &d_out, bool extras,
                      work &w) {
    const size_t rows = sum_of(s.lengths, false);
    w.start.assign(1, 0);
    for (size_t n : s.lengths)
        w.start.push_back(w.start.back() + n);
    w.layout = {s.lengths.size(), rows, w.start.data()};
    w.qkv = with(l, qkv);
    w.d_out = with(l, d_out);
    w.out = guarded(l, true, d_out.size());
    w.d_qkv = guarded(l, true, qkv.size());
    w.entropy = w.first = w.pattern = NULL;
    if (extras) {
        w.entropy = guarded(l, false, rows * s.heads);
        w.first = guarded(l, false, rows * s.heads);
        w.pattern = guarded(l, false, s.heads * sum_of(s.lengths, true));
    }
    w.forward = {&w.layout, s.heads,   s.kv_heads, s.dim,    w.qkv,
                 w.out,     w.entropy, w.first,    w.pattern};
    w.back = {&w.layout, s.heads, s.kv_heads, s.dim, w.qkv, w.out, w.d_out, w.d_qkv};
}

static void free_work(lab &l, work &w) {
    for (buffer *b : {w.qkv, w.d_out, w.out, w.entropy, w.first, w.pattern, w.d_qkv})
        if (b)
            drop(l, b);
}

static void forward(lab &l, const work &w) {
    status st = {};
    must(cuda_attention(l.device, &w.forward, &st), &st, "attention");
}
static void backward(lab &l, const work &w) {
    status st = {};
    must(cuda_attention_back(l.device, &w.back, &st), &st, "attention_back");
}

static void check_repeats(lab &l, const shape &s, const char *name, work &w, const floats &qkv,
                          const floats &d_out) {
    std::vector<buffer *> outputs = {w.out, w.d_qkv, w.entropy, w.first, w.pattern};
    std::vector<std::vector<unsigned char>> once;
    for (buffer *b : outputs)
        once.push_back(bytes_of(l, b));
    for (int i = 0; i < 10; i++) {
        for (buffer *b : outputs)
            poison(l, b);
        forward(l, w);
        backward(l, w);
        for (size_t o = 0; o < outputs.size(); o++)
            fact(l, bytes_of(l, outputs[o]) == once[o], name, "ten runs differ");
    }
    w.forward.entropy = w.forward.first_token_mass = w.forward.pattern = NULL;
    poison(l, w.out);
    forward(l, w);
    fact(l, bytes_of(l, w.out) == once[0], name, "optional outputs change the output");
    /* The last sequence alone. */
    const shape alone = {s.heads, s.kv_heads, s.dim, {s.lengths.back()}};
    const size_t rows = s.lengths.back(), size = l.bf16 ? 2 : 4;
    const floats qkv_alone(qkv.end() - (long)(rows * (s.heads + 2 * s.kv_heads) * s.dim),
                           qkv.end());
    const floats d_out_alone(d_out.end() - (long)(rows * s.heads * s.dim), d_out.end());
    work single;
    make_work(l, alone, qkv_alone, d_out_alone, false, single);
    forward(l, single);
    backward(l, single);
    const auto tail = [&](const std::vector<unsigned char> &all, size_t elements) {
        return std::vector<unsigned char>(all.end() - (long)((elements + GUARD) * size), all.end());
    };
    fact(l, tail(bytes_of(l, single.out), d_out_alone.size()) == tail(once[0], d_out_alone.size()),
         name, "a sequence alone differs");
    fact(l, tail(bytes_of(l, single.d_qkv), qkv_alone.size()) == tail(once[1], qkv_alone.size()),
         name, "a sequence alone differs backward");
    free_work(l, single);
}

static void check_shape(lab &l, const shape &s) {
    const size_t rows = sum_of(s.lengths, false), stride = (s.heads + 2 * s.kv_heads) * s.dim;
    const floats qkv = normal(l, rows * stride, 1.5f);
    const floats d_out = normal(l, rows * s.heads * s.dim, 1.0f);
    const reference ref = naive(s, qkv, d_out);
    const double real = l.bf16 ? 6e-3 : 2e-6, exact = l.bf16 ? 1e-5 : 2e-6;
    char name[100];
    snprintf(name, sizeof name, "heads %zu kv %zu dim %zu", s.heads, s.kv_heads, s.dim);
    work w;
    make_work(l, s, qkv, d_out, true, w);
    forward(l, w);
    backward(l, w);
    const error out = compare(l, name, "out", w.out, ref.out, real);
    const error entropy = compare(l, name, "entropy", w.entropy, ref.entropy, exact);
    const error first = compare(l, name, "first_token_mass", w.first, ref.first, exact);
    const error pattern = compare(l, name, "pattern", w.pattern, ref.pattern, exact);
    const error d_qkv = compare(l, name, "d_qkv", w.d_qkv, ref.d_qkv, 2 * real);
    printf("%-5s %-26s out %.1e %.1e  entropy %.1e %.1e  first %.1e %.1e  pattern %.1e %.1e  "
           "d_qkv %.1e %.1e\n",
           l.dtype, name, out.l2, out.most, entropy.l2, entropy.most, first.l2, first.most,
           pattern.l2, pattern.most, d_qkv.l2, d_qkv.most);
    check_repeats(l, s, name, w, qkv, d_out);
    free_work(l, w);
}

static void check(lab &l) {
    const std::vector<size_t> mixed = {1, 17, 1000, 64, 65, 300};
    printf("errors against float64: relative L2, largest / largest\n");
    for (size_t dim : {8, 12, 16, 32, 64, 80, 96, 128, 256})
        check_shape(l, {4, 2, dim, mixed});
    check_shape(l, {8, 8, 128, mixed}); /* enough keys for the larger blocks backward */
    check_shape(l, {6, 1, 10, mixed});
    check_shape(l, {3, 3, 64, {200, 1, 1, 129}});
    check_shape(l, {8, 1, 200, {77}});
    check_shape(l, {2, 1, 128, {1}});
}

static void time_shape(lab &l, size_t sequences, size_t length, size_t kv_heads, size_t dim) {
    enum { SETS = 2 };
    const shape s = {16, kv_heads, dim, std::vector<size_t>(sequences, length)};
    const size_t rows = sequences * length;
    work w[SETS];
    for (work &each : w)
        make_work(l, s, normal_again(l, rows * (s.heads + 2 * kv_heads) * dim, 1.0f),
                  normal_again(l, rows * s.heads * dim, 1.0f), false, each);
    buffer *entropy = guarded(l, false, rows * s.heads), *first = guarded(l, false, rows * s.heads);
    const int times = l.bf16 ? 50 : 15;
    const double ms = median_ms(l, times, [&](int i) { forward(l, w[i % SETS]); });
    const double back = median_ms(l, times, [&](int i) { backward(l, w[i % SETS]); });
    for (work &each : w) {
        each.forward.entropy = entropy;
        each.forward.first_token_mass = first;
    }
    const double stats = median_ms(l, times, [&](int i) { forward(l, w[i % SETS]); });
    const double flops = (double)(rows * length * dim * s.heads) * 2;
    printf("%-5s %zu x T %-5zu heads 16 kv %-2zu dim %-3zu  forward %7.3f ms %6.1f TFLOP/s  "
           "+ statistics %7.3f ms  backward %7.3f ms %6.1f TFLOP/s\n",
           l.dtype, sequences, length, kv_heads, dim, ms, flops / ms * 1e-9, stats, back,
           2.5 * flops / back * 1e-9);
    for (work &each : w)
        free_work(l, each);
    drop(l, entropy);
    drop(l, first);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    const unsigned long seed = argc > 2 ? strtoul(argv[2], NULL, 10) : std::random_device()();
    int failures = 0;
    printf("seed %lu\n", seed);
    for (const char *dtype : {"fp32", "bf16"}) {
        if (argc > 3 && strcmp(dtype, argv[3]) != 0)
            continue;
        lab l = lab_open(dtype, seed);
        if (strcmp(what, "time") != 0)
            check(l);
        if (strcmp(what, "check") != 0)
            for (size_t dim : {64, 128})
                for (size_t kv : {16, 4}) {
                    if (argc < 5)
                        time_shape(l, 1, 2048, kv, dim);
                    time_shape(l, 4, 2048, kv, dim);
                    if (argc < 5 || kv == 16)
                        time_shape(l, 1, 8192, kv, dim);
                }
        failures += l.failures;
        kernels_cuda.close(l.device);
    }
    printf("%s\n", failures ? "FAILED" : "all checks passed");
    return failures != 0;
}
