#include "plots/tests/made_table.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

const char *made_source(const shape *m, size_t i, char *name) {
    const char *tail = m->long_names ? "_of_a_model_with_long_names" : "";
    if (i == 0)
        sprintf(name, "%s%s", m->null_source ? "null" : "emb", tail);
    else if (m->block)
        sprintf(name, "B%zu%s", i, tail);
    else
        sprintf(name, "L%zu.%s%s", (i - 1) / 2, i % 2 ? "attn" : "mlp", tail);
    return name;
}

size_t made_sources(const shape *m, size_t t, bool *partial) {
    *partial = false;
    if (!m->block)
        return t + 1;
    bool opens = t % (2 * m->block) == 0 && t < 2 * m->layers;
    *partial = !opens;
    return (t + 2 * m->block - 1) / (2 * m->block) + 1;
}

/* Between 0 and 1, from any three numbers (splitmix64's mixer). */
static double noise(size_t a, size_t b, size_t c) {
    uint64_t z = (a * 1000003 + b) * 1000003 + c + 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
}

static double rough_logit(size_t t, size_t head, size_t i, size_t count) {
    double own = noise(head, i, 7) + noise(t, head, i);
    return own + (i + 1 == count ? 1.5 : 0) + (i == 0 ? 1 : 0);
}

double made_weight(const shape *m, size_t t, size_t head, size_t i, size_t count) {
    if (m->odd != 0 && t == 3 && i == 0)
        return m->odd;
    double total = (double)(count * (count + 1)) / 2;
    if (!m->rough)
        return (double)((i + head) % count + 1) / total;
    total = 0;
    for (size_t k = 0; k < count; k++)
        total += exp(rough_logit(t, head, k, count));
    return exp(rough_logit(t, head, i, count)) / total;
}

static const char *site_name(const shape *m, size_t t, char *name) {
    if (t == 2 * m->layers)
        return strcpy(name, "final");
    sprintf(name, "L%zu.%s", t / 2, t % 2 ? "mlp" : "attn");
    return name;
}

static size_t read_by(const shape *m, size_t t) {
    bool partial;
    return m->removed && t == 3 ? 0 : made_sources(m, t, &partial);
}

/* The last three cells: a value, and the interval of one that is `shift` less. */
static void put_shifted(FILE *out, const shape *m, double value, double shift) {
    table_real(out, m->undefined ? NAN : value);
    table_real(out, m->intervals ? value - shift - 0.02 : NAN);
    table_real(out, m->intervals ? value - shift + 0.07 : NAN);
    table_end(out);
}

static void put_interval(FILE *out, const shape *m, double value) {
    put_shifted(out, m, value, 0);
}

static void put_head(FILE *out, const shape *m, size_t head) {
    if (head < m->heads)
        table_size(out, head);
    else
        table_text(out, "mean");
}

static void put_sites(FILE *out, const shape *m) {
    char name[48];
    table_section(out, "SIT", "sites",
                  "site, layer, kind, sources, newest, newest_kind, opens_block", "1");
    for (size_t t = 0; t <= 2 * m->layers; t++) {
        bool partial, final = t == 2 * m->layers;
        size_t count = made_sources(m, t, &partial);
        if (final)
            fprintf(out, "SIT\tfinal\tnan\tfinal");
        else
            fprintf(out, "SIT\tL%zu.%s\t%zu\t%s", t / 2, t % 2 ? "mlp" : "attn", t / 2,
                    t % 2 ? "mlp" : "attn");
        fprintf(out, "\t%zu\t%s\t%s\t%d\n", count, made_source(m, count - 1, name),
                partial ? "partial" : "other", m->block && !partial);
    }
}

/* MEA, CON and SCN: by site, head and source. */
static void put_sources(FILE *out, const shape *m, const char *code, double scale, double shift) {
    char name[48];
    table_section(out, code, "by source", "site, head, source, value, low, high", "1");
    for (size_t t = 0; t <= 2 * m->layers; t++) {
        size_t count = read_by(m, t);
        for (size_t head = 0; head <= m->heads; head++)
            for (size_t i = 0; i < count; i++) {
                double value = made_weight(m, t, head % m->heads, i, count) * scale - shift;
                if (m->undefined && shift != 0)
                    value = NAN;
                table_row(out, code);
                table_text(out, site_name(m, t, name));
                put_head(out, m, head);
                table_text(out, made_source(m, i, name));
                for (int k = 0; k < 3; k++)
                    table_real(out, value);
                table_end(out);
            }
    }
}

static void put_statistic(FILE *out, const shape *m, const char *code, bool heads, double value) {
    char name[48];
    table_section(out, code, "a statistic",
                  heads ? "site, head, value, low, high" : "site, value, low, high", "nats");
    for (size_t t = 0; t <= 2 * m->layers; t++) {
        table_row(out, code);
        table_text(out, site_name(m, t, name));
        if (heads)
            table_text(out, "mean");
        double step = (m->flat ? 1e-12 : 0.01) * (double)(t % 5);
        put_shifted(out, m, value + step, step);
    }
}

static void put_pairs(FILE *out, const shape *m) {
    char name[48];
    table_section(out, "HJS", "head_js", "site, head, head_other, value, low, high", "nats");
    for (size_t t = 0; t <= 2 * m->layers; t++)
        for (size_t a = 0; a < m->heads; a++)
            for (size_t b = a + 1; b < m->heads; b++) {
                table_row(out, "HJS");
                table_text(out, site_name(m, t, name));
                table_size(out, a);
                table_size(out, b);
                put_interval(out, m, 0.01 * (double)(b - a) + (m->rough ? noise(t, a, b) / 9 : 0));
            }
}

/* Of `final` alone in full modes: every site would have the same numbers. */
static void put_cosines(FILE *out, const shape *m) {
    char name[48];
    bool partial;
    table_section(out, "COS", "source_cos", "site, source, source_other, value, low, high", "1");
    for (size_t t = m->block ? 0 : 2 * m->layers; t <= 2 * m->layers; t++)
        for (size_t a = 0; a < made_sources(m, t, &partial); a++)
            for (size_t b = a + 1; b < made_sources(m, t, &partial); b++) {
                table_row(out, "COS");
                table_text(out, site_name(m, t, name));
                table_text(out, made_source(m, a, name));
                table_text(out, made_source(m, b, name));
                put_interval(out, m,
                             0.8 / (double)(b - a) - 0.2 + (m->rough ? noise(t, a, b) / 5 : 0));
            }
}

static void put_rank(FILE *out, const shape *m) {
    char name[48];
    bool partial;
    table_section(out, "RNK", "source_effective_rank",
                  "site, rank, low, high, utilisation, low_utilisation, high_utilisation", "1");
    for (size_t t = 0; t <= 2 * m->layers; t++) {
        double count = (double)made_sources(m, t, &partial);
        fprintf(out, "RNK\t%s\t%g\t%g\t%g\t0.9\t0.9\t0.9\n", site_name(m, t, name), 0.9 * count,
                0.8 * count, count);
    }
}

static void put_kinds(FILE *out, const shape *m) {
    static const char *const full[] = {"emb", "attn", "mlp"};
    static const char *const block[] = {"emb", "complete", "partial"};
    char name[48];
    table_section(out, "KND", "kind_mass",
                  "site, head, kind, sources, kind_mass, low, high, lift, low_lift, high_lift",
                  "1");
    for (size_t t = 0; t <= 2 * m->layers; t++)
        for (size_t head = 0; head <= m->heads; head++)
            for (size_t kind = 0; kind < 3; kind++) {
                double mass = m->undefined ? NAN : 0.25 + 0.25 * (kind == t % 3);
                table_row(out, "KND");
                table_text(out, site_name(m, t, name));
                put_head(out, m, head);
                table_text(out, (m->block ? block : full)[kind]);
                table_size(out, 1);
                for (int k = 0; k < 6; k++)
                    table_real(out, k < 3 ? mass : 3 * mass);
                table_end(out);
            }
}

static void put_reach(FILE *out, const shape *m) {
    char name[48];
    table_section(out, "RCH", "reach", "source, value, low, high", "1");
    for (size_t i = 0; i <= 2 * m->layers; i++) {
        table_row(out, "RCH");
        table_text(out, made_source(m, i, name));
        put_interval(out, m, 1 / (double)(i + 1));
    }
}

static void put_depth_matrix(FILE *out, const shape *m) {
    char name[48];
    table_section(out, "DMX", "depth_matrix", "site, sublayer, value, low, high", "1");
    for (size_t t = 0; t <= 2 * m->layers; t++) {
        size_t count = read_by(m, t);
        for (size_t u = 0; count && u <= t; u++) {
            size_t source = u == 0 ? 0 : m->block ? (u - 1) / (2 * m->block) + 1 : u, members = 0;
            for (size_t v = 1; v <= t; v++)
                members += u && m->block && (v - 1) / (2 * m->block) + 1 == source;
            table_row(out, "DMX");
            table_text(out, site_name(m, t, name));
            table_text(out, u ? site_name(m, u - 1, name) : made_source(m, 0, name));
            double weight = made_weight(m, t, 0, source, count);
            put_interval(out, m, weight / (double)(members ? members : 1));
        }
    }
}

/* A null of 0.2 (0.1 to 0.3) at every site with a choice; of equal norm it is 5, drawn nowhere. */
static void put_nulls(FILE *out, const shape *m) {
    static const struct {
        const char *name;
        bool heads;
    } of[] = {{"entropy", true},
              {"token_information", true},
              {"head_divergence", false},
              {"head_divergence_of_mean", false},
              {"head_js", false}};
    char name[48];
    table_section(out, "NBD", "nulls",
                  "statistic, null, site, head, value, null_mean, null_low, null_high, verdict",
                  "nats");
    for (size_t k = 0; k < 10; k++)
        for (size_t t = 1; t <= 2 * m->layers; t++)
            for (size_t head = 0; head < (of[k % 5].heads ? 2 : 1); head++) {
                bool drawn = k < 5 && head == 0;
                table_row(out, "NBD");
                table_text(out, of[k % 5].name);
                table_text(out, k < 5 ? "var" : "norm");
                table_text(out, site_name(m, t, name));
                table_text(out, !of[k % 5].heads ? "-" : head == 0 ? "mean" : "0");
                table_real(out, 0.1);
                table_real(out, drawn ? 0.2 : 5);
                table_real(out, drawn ? 0.1 : 5);
                table_real(out, drawn ? 0.3 : 5);
                table_text(out, "below");
                table_end(out);
            }
}

void made_table_write(FILE *out, const shape *m) {
    table_head(out, "fathom routing run.h5", "", "");
    table_section(out, "RUN", "run", "key, value", "1");
    table_row(out, "RUN");
    table_text(out, "model_path");
    table_text(out, m->model ? m->model : "models/tiny");
    table_end(out);
    fputs("RUN\tsequences\t40\nRUN\tnull_draws\t8\nRUN\tnull_sequences\t16\n", out);
    put_sites(out, m);
    put_sources(out, m, "MEA", 1, 0);
    put_sources(out, m, "CON", 1.1, 0.02);
    put_sources(out, m, "SCN", 1.3, 0.05);
    put_statistic(out, m, "ENT", true, 0.6);
    put_statistic(out, m, "ENN", true, 0.8);
    put_statistic(out, m, "EFF", true, 1.5);
    put_statistic(out, m, "HDV", false, m->heads > 1 && !m->flat ? 0.03 : 0);
    put_statistic(out, m, "HDM", false, m->heads > 1 && !m->flat ? 0.01 : 0);
    put_statistic(out, m, "TIN", true, 0.005);
    put_statistic(out, m, "LBK", true, 0.9);
    put_statistic(out, m, "LBN", true, 1.1);
    put_statistic(out, m, "TOP", true, 0.5);
    if (m->heads > 1)
        put_pairs(out, m);
    put_cosines(out, m);
    put_rank(out, m);
    put_kinds(out, m);
    if (!m->block)
        put_reach(out, m);
    put_depth_matrix(out, m);
    if (m->nulls)
        put_nulls(out, m);
}
