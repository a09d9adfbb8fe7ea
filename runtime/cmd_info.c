/* cmd_info.c - `fathom info DIR`: what a checkpoint holds and how it routes over depth. Only
 * headers are read; --router reads the routers' tensors, --hash the whole files. */
#include "runtime/base/command.h"
#include "runtime/base/log.h"
#include "runtime/base/options.h"
#include "runtime/depth_program.h"
#include "runtime/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SOURCES_SHOWN = 8 };

/* ---- the model in words ---- */

static void print_rope(const model_config *c) {
    static const char *const kind[] = {"default", "linear", "llama3"};
    printf("context          %zu tokens; rotary %s, theta %g", c->positions, kind[c->rope.kind],
           c->rope.theta);
    if (c->rope.kind != ROPE_DEFAULT)
        printf(", factor %g", c->rope.factor);
    if (c->rope.kind == ROPE_LLAMA3)
        printf(" from %zu tokens, low %g, high %g", c->rope.original_positions,
               c->rope.low_freq_factor, c->rope.high_freq_factor);
    putchar('\n');
}

static void print_blocks(const model_config *c) {
    if (c->blocks_asked == 0)
        return;
    printf("blocks           %zu asked%s, %zu formed, of %zu layer%s: ", c->blocks_asked,
           c->blocks_defaulted ? " (absent in config.json)" : "", c->blocks_formed,
           c->layers_per_block, c->layers_per_block > 1 ? "s" : "");
    for (size_t b = 0; b < c->blocks_formed; b++) {
        size_t end = (b + 1) * c->layers_per_block;
        printf("%s[%zu,%zu)", b ? " " : "", b * c->layers_per_block,
               end < c->layers ? end : c->layers);
    }
    putchar('\n');
}

static void print_routing(const model_config *c) {
    static const char *const gate[] = {"none", "learnable_alpha", "sigmoid_scalar",
                                       "sigmoid_vector"};
    if (c->mode == MODE_NONE)
        return;
    printf("routing heads    %zu of %zu channels\n", c->routing_heads, c->width / c->routing_heads);
    print_blocks(c);
    printf("gate             %s\n", gate[c->gate]);
    printf("null source      %s\n", c->null_source ? "yes" : "no");
    printf("final router     %s\n", c->final_site ? "yes"
                                    : mode_is_block(c->mode)
                                        ? "no (absent: the final norm reads the last partial sum)"
                                        : "no");
}

static void print_pruned(const model_config *c) {
    size_t kept = 0;
    if (!c->pruned)
        return;
    for (size_t i = 0; i < 2 * c->layers; i++)
        kept += !c->removed[i];
    printf("pruned           %zu of %zu sublayers, removal %s; removed:", kept, 2 * c->layers,
           removal_name(c->removal));
    for (size_t i = 0; i < 2 * c->layers; i++)
        if (c->removed[i])
            printf(" L%zu.%s", i / 2, i % 2 ? "mlp" : "attn");
    putchar('\n');
}

static void print_parameters(const model *m) {
    static const char *const kinds[] = {"embedding", "attention", "mlp", "norm", "router", "head"};
    const checkpoint *ck = model_checkpoint(m);
    uint64_t bytes = 0;
    for (size_t i = 0; i < checkpoint_tensors(ck); i++)
        bytes += checkpoint_tensor(ck, i)->bytes;
    size_t files = checkpoint_files(ck);
    printf("weights          %s, %s in %zu file%s, %s in memory as fp32\n", model_weights_dtype(m),
           bytes_text(bytes).text, files, files > 1 ? "s" : "",
           bytes_text(4 * (uint64_t)model_parameters(m)).text);
    printf("parameters       %zu\n", model_parameters(m));
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        size_t count = 0;
        for (size_t i = 0; i < model_params(m); i++) {
            const model_param *p = model_param_at(m, i);
            if (strcmp(p->kind, kinds[k]) == 0)
                count += p->rows * p->columns;
        }
        if (count)
            printf("  %-14s %zu (%.2f %%)\n", kinds[k], count,
                   100.0 * (double)count / (double)model_parameters(m));
    }
}

static void print_model(const model *m) {
    static const char *const family[] = {"llama", "qwen2", "qwen3"};
    const model_config *c = model_configuration(m);
    printf("model            %s\n", model_path(m));
    printf("family           %s (model_type %s)\n", family[c->family], c->model_type);
    printf("mode             %s\n", mode_name(c->mode));
    printf("layers           %zu\n", c->layers);
    printf("width            %zu\n", c->width);
    printf("attention        %zu query heads, %zu key and value heads, of %zu channels\n",
           c->query_heads, c->kv_heads, c->head_dim);
    printf("mlp width        %zu\n", c->mlp_width);
    print_rope(c);
    printf("vocabulary       %zu\n", c->vocabulary);
    printf("head             %s\n", model_head_text(m));
    print_routing(c);
    print_pruned(c);
    print_parameters(m);
}

/* ---- sites and their sources ---- */

static void print_sources(const depth_program *p, size_t site) {
    size_t count = p->offset[site + 1] - p->offset[site];
    const int *label = p->label + p->offset[site];
    bool cut = !option_verbose && count > SOURCES_SHOWN;
    printf("  %-14s %3zu ", p->site_name[site], count);
    for (size_t s = 0; s < count; s++) {
        if (cut && s == SOURCES_SHOWN / 2)
            printf(" …");
        if (!cut || s < SOURCES_SHOWN / 2 || s >= count - SOURCES_SHOWN / 2)
            printf(" %s", p->source_name[label[s]]);
    }
    puts(count ? "" : " -");
}

static void print_sites(const depth_program *p) {
    printf("\nsites            %zu", p->plan.sites);
    if (p->labels == 0) {
        puts(", none of which reads sources");
        return;
    }
    printf(": what each reads, oldest first%s\n",
           option_verbose ? "" : " (-v: long lists in full)");
    for (size_t t = 0; t < p->plan.sites; t++)
        print_sources(p, t);
}

/* ---- the routers ---- */

typedef struct routers {
    const model *m;
    size_t sites, width, heads;
    float *folded;  /* [sites, width] u = gain * query */
    bool *has;      /* [sites] */
    float *scratch; /* [width] */
} routers;

/* A tensor of a site by the end of its name, or NULL. */
static const tensor_info *site_tensor(const routers *r, size_t site, const char *end) {
    char name[96];
    if (site + 1 < r->sites)
        snprintf(name, sizeof name, "model.layers.%zu.%s_%s", site / 2, site % 2 ? "mlp" : "attn",
                 end);
    else
        snprintf(name, sizeof name, "model.final_%s", end);
    return checkpoint_find(model_checkpoint(r->m), name);
}

static int read_folded(routers *r, status *st) {
    const checkpoint *ck = model_checkpoint(r->m);
    for (size_t t = 0; t < r->sites; t++) {
        const tensor_info *query = site_tensor(r, t, "res_proj.weight");
        const tensor_info *gain = site_tensor(r, t, "res_norm.weight");
        float *u = r->folded + t * r->width;
        r->has[t] = query && gain;
        if (!r->has[t])
            continue;
        if (checkpoint_read(ck, query, u, st) || checkpoint_read(ck, gain, r->scratch, st))
            return FAILED;
        for (size_t i = 0; i < r->width; i++)
            u[i] *= r->scratch[i];
    }
    return DONE;
}

static double dot(const float *a, const float *b, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* Cosines of head h of site t with the same head of the other sites of its kind (attention or MLP),
 * queries of zero left out: mean of |cos|, and the cosine that is largest in size. NaN: none. */
static void head_cosines(const routers *r, size_t t, size_t h, double *mean, double *largest) {
    size_t slice = r->width / r->heads, count = 0;
    const float *u = r->folded + t * r->width + h * slice;
    double sum = 0, own = dot(u, u, slice);
    *mean = *largest = NAN;
    for (size_t o = t % 2; o + 1 < r->sites && t + 1 < r->sites && own > 0; o += 2) {
        const float *v = r->folded + o * r->width + h * slice;
        double other = dot(v, v, slice);
        if (o == t || !r->has[o] || other == 0)
            continue;
        double cosine = dot(u, v, slice) / sqrt(own * other);
        sum += fabs(cosine);
        if (count++ == 0 || fabs(cosine) > fabs(*largest))
            *largest = cosine;
    }
    if (count)
        *mean = sum / (double)count;
}

/* "0.5", or "-" where the site has none; of a vector its norm where `norm`. */
static int site_number(const routers *r, size_t t, const char *end, bool norm, char text[16],
                       status *st) {
    const tensor_info *tensor = site_tensor(r, t, end);
    snprintf(text, 16, "-");
    if (!tensor)
        return DONE;
    if (checkpoint_read(model_checkpoint(r->m), tensor, r->scratch, st))
        return FAILED;
    double value = r->scratch[0];
    if (norm)
        value = sqrt(dot(r->scratch, r->scratch, r->width));
    if (strcmp(end, "res_gate_logit") == 0)
        value = 1 / (1 + exp(-value));
    snprintf(text, 16, "%.5g", value);
    return DONE;
}

static int site_gate(const routers *r, size_t t, char text[16], status *st) {
    switch (model_configuration(r->m)->gate) {
    case GATE_ALPHA:
        return site_number(r, t, "res_alpha", false, text, st);
    case GATE_SIGMOID_SCALAR:
        return site_number(r, t, "res_gate_logit", false, text, st);
    case GATE_SIGMOID_VECTOR:
        snprintf(text, 16, "%s", site_tensor(r, t, "res_gate_proj.weight") ? "per token" : "-");
        return DONE;
    case GATE_NONE:
        snprintf(text, 16, "-");
        return DONE;
    }
    return DONE;
}

static int print_router_rows(const routers *r, const depth_program *p, status *st) {
    size_t slice = r->width / r->heads;
    printf(
        "\nrouters          by site and head\n"
        "  |u|            norm of the folded query u = gain * query\n"
        "  cos mean, max  of u with the same head's at the other sites of its kind (attn or mlp):\n"
        "                 mean size and the largest; nan where there is none\n"
        "  |null|, gate   norm of the null source, value of the gate\n"
        "  %-14s %4s %10s %9s %9s %10s %10s\n",
        "site", "head", "|u|", "cos mean", "cos max", "|null|", "gate");
    for (size_t t = 0; t < r->sites; t++) {
        char null_norm[16], gate[16];
        if (!r->has[t])
            continue;
        if (site_number(r, t, "null_source", true, null_norm, st) || site_gate(r, t, gate, st))
            return FAILED;
        for (size_t h = 0; h < r->heads; h++) {
            const float *u = r->folded + t * r->width + h * slice;
            double mean, largest;
            head_cosines(r, t, h, &mean, &largest);
            printf("  %-14s %4zu %10.5g %9.4f %9.4f %10s %10s\n", p->site_name[t], h,
                   sqrt(dot(u, u, slice)), mean, largest, null_norm, gate);
        }
    }
    return DONE;
}

static int print_routers(const model *m, const depth_program *p, status *st) {
    const model_config *c = model_configuration(m);
    routers r = {.m = m, .sites = p->plan.sites, .width = c->width, .heads = c->routing_heads};
    if (c->mode == MODE_NONE) {
        printf("\nrouters          none\n");
        return DONE;
    }
    r.folded = mem_array(r.sites * r.width, sizeof *r.folded, "folded queries", st);
    r.has = mem_array(r.sites, sizeof *r.has, "folded queries", st);
    r.scratch = mem_array(r.width, sizeof *r.scratch, "a router tensor", st);
    int rc = r.folded && r.has && r.scratch ? DONE : FAILED;
    if (!rc)
        rc = read_folded(&r, st);
    if (!rc)
        rc = print_router_rows(&r, p, st);
    free(r.folded);
    free(r.has);
    free(r.scratch);
    return rc;
}

int cmd_info(int argc, char **argv) {
    const char *dir = NULL;
    bool router = false, hash = false;
    size_t routing_heads = 0;
    const option_spec options[] = {
        {.name = "router",
         .kind = OPTION_FLAG,
         .value = &router,
         .help = "norms, cosines, null sources and gates of every router"},
        {.name = "hash",
         .kind = OPTION_FLAG,
         .value = &hash,
         .help = "SHA-256 of the weight files, as recordings name it"},
        {.name = "routing-heads",
         .kind = OPTION_SIZE,
         .value = &routing_heads,
         .min = 0,
         .max = 1 << 20,
         .metavar = "N",
         .help = "routing heads, where config.json lacks attnres_num_heads; 0: as it says"},
        OPTION_QUIET,
        OPTION_VERBOSE,
        {0}};
    const positional_spec arguments[] = {
        {.name = "DIR", .value = &dir, .help = "checkpoint folder: config.json and weights"}, {0}};
    const command_spec spec = {.name = "info",
                               .summary = "describe a checkpoint",
                               .options = options,
                               .positionals = arguments};
    const int parsed = options_parse(&spec, argc, argv);
    if (parsed != OPTIONS_RUN)
        return parsed;
    status st;
    model *m = NULL;
    depth_program *program = NULL;
    char hex[65];
    model_options open = {.routing_heads = routing_heads, .describe = true};
    int rc = model_open(dir, &open, &m, &st);
    if (!rc)
        rc = depth_program_build(model_configuration(m), NULL, &program, &st);
    if (!rc) {
        print_model(m);
        print_sites(program);
    }
    if (!rc && router)
        rc = print_routers(m, program, &st);
    if (!rc && hash) {
        fflush(stdout);
        rc = checkpoint_hash(model_checkpoint(m), hex, &st);
        if (!rc)
            printf("\nsha256           %s\n", hex);
    }
    depth_program_free(program);
    model_close(m);
    return rc ? command_fail(&st) : EXIT_DONE;
}
