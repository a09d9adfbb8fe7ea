/* lab/depth.cu - the depth axis, checked and timed, alone.
 *
 *     depth [check|small|time|pull|chain] [SEED [S T D H]]
 *
 * check: plans of every kind of value, base, gate and source against float64 on the host, forward,
 * sums and backward, ten runs to the bit; fresh random input for each SEED. small: the same at
 * sizes for compute-sanitizer. time: reading a site, weights written. pull: one source's gradient.
 * chain: a model's whole depth axis, forward and backward, sublayers that copy; with and without a
 * graph.
 */
#include "kernels/lab/check.cuh"

#include "kernels/routing_sums.h"

#include <memory>

struct site_data {
    floats query, gain, null_source, gate, gate_bias, d_in;
    std::vector<int> source;
};

struct plan_data {
    size_t width = 0, heads = 1, rows = 0;
    std::vector<size_t> start;
    std::vector<depth_value> value;
    std::vector<depth_site> site;
    std::vector<site_data> data;
    std::vector<floats> given; /* [values] */
    depth_wants wants = {};
    depth_plan plan = {};
    char name[160];
};

static size_t pick(lab &l, size_t low, size_t high) {
    return low + (size_t)(l.random() % (high - low + 1));
}

static void add_value(plan_data &p, value_kind kind, int a, int b) {
    const bool none = kind == VALUE_NULL || kind == VALUE_ZERO;
    p.value.push_back({kind, a, b, none ? -1 : (int)p.value.size()});
}

static void add_site(plan_data &p, int base, bool interpolates, gate_kind gate,
                     const std::vector<int> &source, bool null_source) {
    depth_site site = {};
    site.base = base;
    site.interpolates = interpolates;
    site.gate = gate;
    site.sources = (int)source.size();
    site.null_source = null_source;
    p.site.push_back(site);
    p.data.emplace_back();
    p.data.back().source = source;
}

/* Random tensors, and the plan itself. */
static void fill(lab &l, plan_data &p, const std::vector<size_t> &lengths) {
    p.start = {0};
    for (size_t n : lengths)
        p.start.push_back(p.start.back() + n);
    p.rows = p.start.back();
    p.given.resize(p.value.size());
    for (size_t v = 0; v < p.value.size(); v++)
        if (p.value[v].kind == VALUE_EMB || p.value[v].kind == VALUE_OUT)
            p.given[v] = normal(l, p.rows * p.width, 0.5f + (float)(v % 4));
    for (size_t s = 0; s < p.site.size(); s++) {
        site_data &d = p.data[s];
        const bool bf16 = l.bf16;
        l.bf16 = false; /* exact tensors */
        d.query = normal(l, p.width, 2.0f / sqrtf((float)(p.width / p.heads)));
        d.gain = normal(l, p.width, 0.5f);
        for (float &x : d.gain)
            x += 1.0f;
        if (p.site[s].gate == GATE_SIGMOID_VECTOR)
            d.gate_bias = pick(l, 0, 1) ? normal(l, p.width, 1.0f) : floats();
        else
            d.gate = normal(l, 1, 1.0f);
        l.bf16 = bf16;
        d.null_source = normal(l, p.width, 1.0f);
        if (p.site[s].gate == GATE_SIGMOID_VECTOR)
            d.gate = normal(l, p.width * p.width, 1.0f / sqrtf((float)p.width));
        d.d_in = normal(l, p.rows * p.width, 1.0f);
        p.site[s].source = p.data[s].source.data();
    }
    p.plan.width = p.width;
    p.plan.heads = p.heads;
    p.plan.eps = 1e-6f;
    p.plan.values = p.plan.slots = p.value.size();
    p.plan.value = p.value.data();
    p.plan.sites = p.site.size();
    p.plan.site = p.site.data();
}

/* One embedding, sources - 1 outputs; sites read the first 1, half, and all of them. */
static std::unique_ptr<plan_data> prefixes(lab &l, size_t width, size_t heads, size_t sources,
                                           const std::vector<size_t> &lengths) {
    std::unique_ptr<plan_data> p(new plan_data());
    p->width = width;
    p->heads = heads;
    std::vector<int> all;
    for (size_t v = 0; v < sources; v++) {
        add_value(*p, v ? VALUE_OUT : VALUE_EMB, NO_VALUE, NO_VALUE);
        all.push_back((int)v);
    }
    for (size_t n : {(size_t)1, (sources + 1) / 2, sources})
        add_site(*p, NO_VALUE, false, GATE_NONE,
                 std::vector<int>(all.begin(), all.begin() + (long)n), false);
    fill(l, *p, lengths);
    snprintf(p->name, sizeof p->name, "d %zu H %zu S %zu T %zu", width, heads, sources, p->rows);
    return p;
}

/* Values of every kind, sites with every kind of base, gate and source, drawn anew. */
static std::unique_ptr<plan_data> mixed(lab &l, size_t width, size_t heads,
                                        const std::vector<size_t> &lengths) {
    std::unique_ptr<plan_data> p(new plan_data());
    p->width = width;
    p->heads = heads;
    const int sites = 5, values = 12;
    add_value(*p, VALUE_EMB, NO_VALUE, NO_VALUE);
    add_value(*p, VALUE_NULL, (int)pick(l, 2, sites - 1), NO_VALUE);
    add_value(*p, VALUE_ZERO, NO_VALUE, NO_VALUE);
    for (int v = 3; v < values; v++) {
        const size_t kind = v == 3 ? 0 : pick(l, 0, 2);
        add_value(*p,
                  kind == 0   ? VALUE_OUT
                  : kind == 1 ? VALUE_ADD
                              : VALUE_SUB,
                  kind ? (int)pick(l, 0, (size_t)v - 1) : NO_VALUE,
                  kind ? (int)pick(l, 0, (size_t)v - 1) : NO_VALUE);
    }
    for (int s = 0; s < sites; s++) {
        const size_t wanted = s == 0 ? 0 : s == 1 ? 1 : pick(l, 2, 10);
        const bool null_source = s >= 2 && pick(l, 0, 1);
        std::vector<int> source;
        if (null_source)
            source.push_back(1);
        for (int v = 0; v < values && source.size() < wanted; v++)
            if (v != 1 && (wanted - source.size() >= (size_t)(values - v) || pick(l, 0, 1)))
                source.push_back(v);
        int base = s == 0 || pick(l, 0, 3) ? (int)pick(l, 0, values - 1) : NO_VALUE;
        gate_kind gate = (gate_kind)pick(l, GATE_NONE, GATE_SIGMOID_VECTOR);
        if (s == 4 && pick(l, 0, 1)) {
            base = (int)pick(l, 1, 2);
            gate = GATE_SIGMOID_VECTOR;
        }
        add_site(*p, base, pick(l, 0, 1), gate, source, null_source);
    }
    fill(l, *p, lengths);
    snprintf(p->name, sizeof p->name, "mixed d %zu H %zu T %zu", width, heads, p->rows);
    return p;
}

/* ---- float64 ---- */

struct reference {
    std::vector<doubles> value, in, weights, sums; /* sums [sequences, total] */
    std::vector<doubles> d_value, query, gain, null_source, gate, gate_bias;
    std::vector<doubles> value_size, query_size; /* of the terms that d_value, query add up */
};

static bool gated(const depth_site &s) {
    return s.base != NO_VALUE && s.sources > 0 && s.gate != GATE_NONE;
}

static double gate_at(const plan_data &p, size_t s, const double *base, size_t i) {
    const site_data &d = p.data[s];
    if (p.site[s].gate == GATE_NONE)
        return 1;
    if (p.site[s].gate == GATE_ALPHA)
        return d.gate[0];
    if (p.site[s].gate == GATE_SIGMOID_SCALAR)
        return 1 / (1 + exp(-(double)d.gate[0]));
    double sum = d.gate_bias.empty() ? 0 : d.gate_bias[i];
    for (size_t c = 0; c < p.width; c++)
        sum += (double)d.gate[i * p.width + c] * base[c];
    return 1 / (1 + exp(-sum));
}

struct token {
    doubles r, logit, a, mix, gate, d_mix;
};

static void token_forward(const plan_data &p, const reference &ref, size_t s, size_t row,
                          token &t) {
    const size_t width = p.width, heads = p.heads, slice = width / heads;
    const size_t sources = (size_t)p.site[s].sources;
    t.r.assign(sources, 0);
    t.logit.assign(heads * sources, 0);
    t.a.assign(heads * sources, 0);
    t.mix.assign(width, 0);
    for (size_t i = 0; i < sources; i++) {
        const double *v = &ref.value[(size_t)p.data[s].source[i]][row * width];
        double square = 0;
        for (size_t c = 0; c < width; c++)
            square += v[c] * v[c];
        t.r[i] = 1 / sqrt(square / (double)width + (double)p.plan.eps);
        for (size_t c = 0; c < width; c++)
            t.logit[c / slice * sources + i] +=
                (double)p.data[s].query[c] * (double)p.data[s].gain[c] * v[c] * t.r[i];
    }
    for (size_t h = 0; h < heads && sources; h++) {
        double most = -INFINITY, sum = 0;
        for (size_t i = 0; i < sources; i++)
            most = std::max(most, t.logit[h * sources + i]);
        for (size_t i = 0; i < sources; i++)
            sum += t.a[h * sources + i] = exp(t.logit[h * sources + i] - most);
        for (size_t i = 0; i < sources; i++)
            t.a[h * sources + i] /= sum;
    }
    for (size_t i = 0; i < sources; i++) {
        const double *v = &ref.value[(size_t)p.data[s].source[i]][row * width];
        for (size_t c = 0; c < width; c++)
            t.mix[c] += t.a[c / slice * sources + i] * v[c];
    }
    const int base = p.site[s].base;
    t.gate.assign(width, 1);
    if (gated(p.site[s]))
        for (size_t c = 0; c < width; c++)
            t.gate[c] = gate_at(p, s, &ref.value[(size_t)base][row * width], c);
}

static void site_forward(const plan_data &p, reference &ref, size_t s) {
    const size_t width = p.width, cells = p.heads * (size_t)p.site[s].sources;
    ref.in[s].resize(p.rows * width);
    ref.weights[s].resize(p.rows * cells);
    const int base = p.site[s].base;
#pragma omp parallel for schedule(static)
    for (long row = 0; row < (long)p.rows; row++) {
        token t;
        token_forward(p, ref, s, (size_t)row, t);
        std::copy(t.a.begin(), t.a.end(), ref.weights[s].begin() + row * (long)cells);
        for (size_t c = 0; c < width; c++) {
            const double b =
                base == NO_VALUE ? 0 : ref.value[(size_t)base][(size_t)row * width + c];
            ref.in[s][(size_t)row * width + c] = base == NO_VALUE         ? t.mix[c]
                                                 : p.site[s].sources == 0 ? b
                                                 : p.site[s].interpolates
                                                     ? b + t.gate[c] * (t.mix[c] - b)
                                                     : b + t.gate[c] * t.mix[c];
        }
    }
}

static double plogp(double a) {
    return a > 0 ? a * log(a) : 0;
}

/* The sums of one token, without cosines and head_js where not in the layout. */
static void token_sums(const plan_data &p, const reference &ref, size_t s, size_t row,
                       const token &t, const routing_layout &y, double *out) {
    const size_t heads = p.heads, n = y.sources, width = p.width, slice = width / heads;
    const size_t first = y.null_source ? 1 : 0;
    doubles norm(n * heads), dot(n * heads), square(heads), rms(n), mean(n), lengths(n);
    for (size_t c = 0; c < width; c++)
        square[c / slice] += t.mix[c] * t.mix[c];
    for (size_t i = 0; i < n; i++) {
        const double *v = &ref.value[(size_t)p.data[s].source[i]][row * width];
        for (size_t c = 0; c < width; c++) {
            norm[i * heads + c / slice] += v[c] * v[c];
            dot[i * heads + c / slice] += v[c] * t.mix[c];
            rms[i] += v[c] * v[c];
        }
        rms[i] = sqrt(rms[i] / (double)width);
        for (size_t h = 0; h < heads; h++) {
            double &x = norm[i * heads + h];
            x = sqrt(x);
            lengths[i] += pow(t.a[h * n + i] * x, 2);
            mean[i] += t.a[h * n + i] / (double)heads;
        }
        lengths[i] = sqrt(lengths[i]);
    }
    double entropies = 0, whole = 0, of_mean = 0;
    for (size_t h = 0; h < heads; h++) {
        const double *a = &t.a[h * n];
        double entropy = 0, rest = 0, back = 0, most = 0, total = 0;
        for (size_t i = 0; i < n; i++) {
            entropy -= plogp(a[i]);
            most = std::max(most, a[i]);
            total += a[i] * norm[i * heads + h];
            if (i >= first) {
                rest += a[i];
                back += a[i] * (double)(n - 1 - i);
            }
        }
        entropies += entropy;
        out[y.entropy + h] += entropy;
        out[y.effective_sources + h] += exp(entropy);
        out[y.top1 + h] += most;
        const double scale = first == n ? NAN : 1 / rest;
        out[y.lookback + h] += back * scale;
        out[y.oldest_mass + h] += first == n ? NAN : a[first] * scale;
        out[y.newest_mass + h] += a[n - 1] * scale;
        for (size_t i = 0; i < n; i++) {
            out[y.mean + h * n + i] += a[i];
            out[y.second_moment + h * n + i] += a[i] * a[i];
            out[y.contribution + h * n + i] += a[i] * norm[i * heads + h] / total;
            out[y.signed_contribution + h * n + i] += a[i] * dot[i * heads + h] / square[h];
        }
        for (size_t k = 0; k < heads && y.head_js != NO_FIELD; k++) {
            double js = 0;
            for (size_t i = 0; i < n; i++)
                js +=
                    (plogp(a[i]) + plogp(t.a[k * n + i])) / 2 - plogp((a[i] + t.a[k * n + i]) / 2);
            out[y.head_js + h * heads + k] += std::max(js, 0.0);
        }
    }
    for (size_t i = 0; i < n; i++) {
        of_mean -= plogp(mean[i]);
        whole += lengths[i];
    }
    out[y.tokens] += 1;
    out[y.head_divergence] += of_mean - entropies / (double)heads;
    for (size_t i = 0; i < n; i++) {
        out[y.site_contribution + i] += lengths[i] / whole;
        out[y.source_rms + i] += rms[i];
        for (size_t k = 0; k < n && y.source_cos != NO_FIELD; k++) {
            const double *a = &ref.value[(size_t)p.data[s].source[i]][row * width];
            const double *b = &ref.value[(size_t)p.data[s].source[k]][row * width];
            double sum = 0;
            for (size_t c = 0; c < width; c++)
                sum += a[c] * b[c];
            out[y.source_cos + i * n + k] += sum / (rms[i] * rms[k] * (double)width);
        }
    }
}

static routing_layout layout_of(const plan_data &p, size_t s) {
    return routing_layout_of(p.heads, (size_t)p.site[s].sources, p.site[s].null_source,
                             p.wants.pairs);
}

static void site_sums(const plan_data &p, reference &ref, size_t s) {
    const routing_layout y = layout_of(p, s);
    const long sequences = (long)p.start.size() - 1;
    ref.sums[s].assign((size_t)sequences * y.total, 0);
#pragma omp parallel for schedule(dynamic)
    for (long b = 0; b < sequences; b++) {
        double *out = &ref.sums[s][(size_t)b * y.total];
        for (size_t row = p.start[(size_t)b] + p.wants.skip_first; row < p.start[(size_t)b + 1];
             row++) {
            token t;
            token_forward(p, ref, s, row, t);
            if (y.sources)
                token_sums(p, ref, s, row, t, y, out);
            else
                out[y.tokens] += 1;
        }
        if (!y.sources)
            for (size_t i = 0; i < y.total; i++)
                out[i] = i == y.tokens ? out[i] : NAN;
    }
}

/* Gradients of one site; token by token in order (the sums are float64). */
static void site_back(const plan_data &p, reference &ref, size_t s) {
    const size_t width = p.width, heads = p.heads, slice = width / heads;
    const size_t n = (size_t)p.site[s].sources;
    const depth_site &site = p.site[s];
    const bool vector = gated(site) && site.gate == GATE_SIGMOID_VECTOR;
    for (size_t row = 0; row < p.rows; row++) {
        token t;
        token_forward(p, ref, s, row, t);
        const float *x = &p.data[s].d_in[row * width];
        const double *base =
            site.base == NO_VALUE ? NULL : &ref.value[(size_t)site.base][row * width];
        double *d_base =
            site.base == NO_VALUE ? NULL : &ref.d_value[(size_t)site.base][row * width];
        const bool through = base && n;
        doubles d(width), d_gate(width);
        for (size_t c = 0; c < width; c++) {
            d[c] = n ? t.gate[c] * x[c] : 0;
            if (d_base) {
                d_base[c] += x[c] * (through && site.interpolates ? 1 - t.gate[c] : 1);
                ref.value_size[(size_t)site.base][row * width + c] += fabs((double)x[c]);
            }
            if (gated(site))
                d_gate[c] = x[c] * (site.interpolates ? t.mix[c] - base[c] : t.mix[c]);
        }
        if (vector) {
            for (size_t c = 0; c < width; c++) {
                const double g = d_gate[c] * t.gate[c] * (1 - t.gate[c]);
                ref.gate_bias[s][c] += g;
                for (size_t k = 0; k < width; k++) {
                    ref.gate[s][c * width + k] += g * base[k];
                    d_base[k] += g * (double)p.data[s].gate[c * width + k];
                }
            }
        } else if (gated(site)) {
            double sum = 0;
            for (size_t c = 0; c < width; c++)
                sum += d_gate[c];
            ref.gate[s][0] +=
                sum * (site.gate == GATE_SIGMOID_SCALAR ? t.gate[0] * (1 - t.gate[0]) : 1);
        }
        doubles product(heads);
        for (size_t c = 0; c < width; c++)
            product[c / slice] += d[c] * t.mix[c];
        for (size_t i = 0; i < n; i++) {
            const size_t value = (size_t)p.data[s].source[i];
            const double *v = &ref.value[value][row * width];
            double *dv = &ref.d_value[value][row * width], back = 0;
            double *size = &ref.value_size[value][row * width];
            doubles dl(heads), large(heads);
            for (size_t c = 0; c < width; c++) {
                dl[c / slice] += v[c] * d[c];
                large[c / slice] += pow(v[c] * d[c], 2) + pow(t.mix[c] * d[c], 2);
            }
            for (size_t h = 0; h < heads; h++) {
                dl[h] = t.a[h * n + i] * (dl[h] - product[h]);
                large[h] = t.a[h * n + i] * sqrt(large[h]);
                back += dl[h] * t.logit[h * n + i];
            }
            for (size_t c = 0; c < width; c++) {
                const double q = p.data[s].query[c], g = p.data[s].gain[c],
                             e = dl[c / slice] * t.r[i];
                dv[c] += t.a[c / slice * n + i] * d[c] + e * q * g -
                         back * t.r[i] * t.r[i] * v[c] / (double)width;
                const double f = large[c / slice] * t.r[i];
                size[c] += fabs(t.a[c / slice * n + i] * d[c]) + f * fabs(q * g);
                ref.query_size[s][c] += f * fabs(v[c]);
                ref.query[s][c] += e * v[c] * g;
                ref.gain[s][c] += e * v[c] * q;
            }
        }
    }
}

/* Sums and differences are rounded as the backend holds them: what follows reads those. */
static reference reference_of(const lab &l, const plan_data &p, bool sums, bool backward) {
    reference ref;
    const size_t size = p.rows * p.width;
    ref.value.resize(p.value.size());
    ref.in.resize(p.site.size());
    ref.weights.resize(p.site.size());
    ref.sums.resize(p.site.size());
    for (size_t v = 0; v < p.value.size(); v++) {
        doubles &x = ref.value[v];
        x.assign(size, 0);
        const depth_value &value = p.value[v];
        for (size_t i = 0; i < size; i++)
            if (!p.given[v].empty())
                x[i] = p.given[v][i];
            else if (value.kind == VALUE_NULL)
                x[i] = p.data[(size_t)value.a].null_source[i % p.width];
            else if (value.kind != VALUE_ZERO) {
                const double sign = value.kind == VALUE_ADD ? 1 : -1;
                x[i] = ref.value[(size_t)value.a][i] + sign * ref.value[(size_t)value.b][i];
                x[i] = l.bf16 ? (double)rounded(l, (float)x[i]) : x[i];
            }
    }
    for (size_t s = 0; s < p.site.size(); s++) {
        site_forward(p, ref, s);
        if (sums)
            site_sums(p, ref, s);
    }
    if (!backward)
        return ref;
    ref.d_value.assign(p.value.size(), doubles(size));
    ref.value_size = ref.d_value;
    ref.query_size.assign(p.site.size(), doubles(p.width));
    for (std::vector<doubles> *all : {&ref.query, &ref.gain, &ref.null_source, &ref.gate_bias})
        all->assign(p.site.size(), doubles(p.width));
    ref.gate.resize(p.site.size());
    for (size_t s = 0; s < p.site.size(); s++)
        ref.gate[s].assign(std::max<size_t>(1, p.data[s].gate.size()), 0);
#pragma omp parallel for schedule(dynamic)
    for (long run = 0; run < 1; run++)
        for (size_t s = 0; s < p.site.size(); s++)
            site_back(p, ref, s);
    for (size_t v = p.value.size(); v-- > 0;) {
        const depth_value &value = p.value[v];
        for (size_t i = 0; i < size; i++)
            if (value.kind == VALUE_ADD || value.kind == VALUE_SUB) {
                ref.d_value[(size_t)value.a][i] += ref.d_value[v][i];
                ref.d_value[(size_t)value.b][i] +=
                    (value.kind == VALUE_ADD ? 1 : -1) * ref.d_value[v][i];
                ref.value_size[(size_t)value.a][i] += ref.value_size[v][i];
                ref.value_size[(size_t)value.b][i] += ref.value_size[v][i];
            } else if (value.kind == VALUE_NULL) {
                ref.null_source[(size_t)value.a][i % p.width] += ref.d_value[v][i];
            }
    }
    return ref;
}

/* ---- running ---- */

static buffer *exact(lab &l, const floats &values) {
    if (values.empty())
        return NULL;
    buffer *out = guarded(l, false, values.size());
    put(l, out, values.data());
    return out;
}

struct results {
    std::vector<buffer *> in, weights, query, gain, null_source, gate, gate_bias;
    std::vector<doubles> sums;
    std::vector<floats> d_value;
};

static size_t last_value(const plan_data &p, size_t s) {
    int last = p.site[s].base == NO_VALUE ? 0 : p.site[s].base;
    for (int v : p.data[s].source)
        last = std::max(last, v);
    return (size_t)last;
}

/* Device copies of a plan's tensors. */
struct tensors {
    std::vector<site_weights> weights;
    std::vector<buffer *> d_in;
};

static tensors tensors_of(lab &l, const plan_data &p) {
    tensors t;
    for (size_t s = 0; s < p.site.size(); s++) {
        const site_data &d = p.data[s];
        site_weights w = {};
        w.query = exact(l, d.query);
        w.gain = exact(l, d.gain);
        w.null_source = exact(l, d.null_source);
        w.gate = p.site[s].gate == GATE_SIGMOID_VECTOR ? with(l, d.gate) : exact(l, d.gate);
        w.gate_bias = exact(l, d.gate_bias);
        t.weights.push_back(w);
        t.d_in.push_back(with(l, d.d_in));
    }
    return t;
}

static void run_back(lab &l, const plan_data &p, depth *axis, const tensors &t, results &r) {
    status st = {};
    const kernels &k = kernels_cuda;
    for (size_t s = p.site.size(); s-- > 0;)
        must(k.depth_give(axis, s, t.d_in[s], &st), &st, "give");
    r.d_value.assign(p.value.size(), floats());
    for (size_t v = p.value.size(); v-- > 0;) {
        if (p.value[v].slot < 0)
            continue;
        const buffer *d_value;
        must(k.depth_pull(axis, v, &d_value, &st), &st, "pull");
        buffer view = *d_value;
        view.elements = p.rows * p.width;
        r.d_value[v] = get(l, &view);
    }
    const floats zero(p.width);
    for (size_t s = 0; s < p.site.size(); s++) {
        const bool vector = gated(p.site[s]) && p.site[s].gate == GATE_SIGMOID_VECTOR;
        r.query.push_back(exact(l, zero));
        r.gain.push_back(exact(l, zero));
        r.null_source.push_back(exact(l, zero));
        r.gate.push_back(exact(l, floats(vector ? p.width * p.width : 1)));
        r.gate_bias.push_back(exact(l, zero));
        site_grads grads = {};
        grads.query = r.query[s];
        grads.gain = r.gain[s];
        grads.null_source = r.null_source[s];
        grads.gate = r.gate[s];
        grads.gate_bias = r.gate_bias[s];
        must(k.depth_site_grads(axis, s, &grads, &st), &st, "site_grads");
    }
}

static results run(lab &l, const plan_data &p, const tensors &t, bool backward) {
    status st = {};
    const kernels &k = kernels_cuda;
    results r;
    depth *axis;
    depth_options options = {};
    options.plan = &p.plan;
    options.weights = t.weights.data();
    options.max_rows = p.rows + 3;
    options.max_sequences = p.start.size();
    options.backward = backward;
    must(k.depth_create(l.device, &options, &axis, &st), &st, "create");
    const batch_layout layout = {p.start.size() - 1, p.rows, p.start.data()};
    must(k.depth_begin(axis, &layout, &p.wants, &st), &st, "begin");
    std::vector<bool> done(p.site.size());
    r.in.resize(p.site.size());
    r.weights.resize(p.site.size());
    r.sums.resize(p.site.size());
    for (size_t v = 0; v < p.value.size(); v++) {
        if (!p.given[v].empty()) {
            must(k.upload(l.device, k.depth_storage(axis, v), 0, p.given[v].data(),
                          p.given[v].size(), &st) ||
                     k.depth_made(axis, v, &st),
                 &st, "made");
        }
        for (size_t s = 0; s < p.site.size(); s++) {
            if (done[s] || last_value(p, s) > v)
                continue;
            done[s] = true;
            const size_t cells = p.rows * p.heads * (size_t)p.site[s].sources;
            r.in[s] = guarded(l, true, p.rows * p.width);
            r.weights[s] = cells ? guarded(l, false, cells) : NULL;
            depth_read_args args = {};
            args.site = s;
            args.in = r.in[s];
            args.weights = r.weights[s];
            must(k.depth_read(axis, &args, &st), &st, "read");
        }
    }
    for (size_t s = 0; s < p.site.size() && p.wants.sums; s++) {
        r.sums[s].resize((p.start.size() - 1) * layout_of(p, s).total);
        must(k.depth_sums(axis, s, r.sums[s].data(), &st), &st, "sums");
    }
    if (backward)
        run_back(l, p, axis, t, r);
    k.depth_free(axis);
    return r;
}

static void drop_results(lab &l, results &r) {
    for (std::vector<buffer *> *all :
         {&r.in, &r.weights, &r.query, &r.gain, &r.null_source, &r.gate, &r.gate_bias})
        for (buffer *b : *all)
            if (b)
                drop(l, b);
}

/* ---- checking ---- */

static double worst[2][8];
static void note(lab &l, int what, double error) {
    if (!(error <= worst[l.bf16][what]))
        worst[l.bf16][what] = error;
}

static void compare_sums(lab &l, const plan_data &p, const doubles &got, const doubles &want,
                         size_t s) {
    const double bound = l.bf16 ? 1e-2 : 2e-5;
    double most = 0;
    size_t at = 0;
    for (size_t i = 0; i < want.size(); i++) {
        const double error = std::isnan(want[i]) && std::isnan(got[i])
                                 ? 0
                                 : fabs(got[i] - want[i]) / std::max((double)p.rows, fabs(want[i]));
        if (!(error <= most)) {
            most = error;
            at = i;
        }
    }
    note(l, 2, most);
    if (most <= bound)
        return;
    const routing_layout y = layout_of(p, s);
    printf("FAILED %s %s: site %zu sums: %g, expected %g at %zu of %zu (contribution %zu)\n",
           l.dtype, p.name, s, got[at], want[at], at % y.total, y.total, y.contribution);
    l.failures++;
}

static double length(const doubles &x) {
    double sum = 0;
    for (double one : x)
        sum += one * one;
    return sqrt(sum);
}

/* Relative to the length of `want`, or of `size` where that is given: what cancels in a sum leaves
 * its rounding behind. */
static void compare_floats(lab &l, const plan_data &p, const char *what, size_t index, int column,
                           const floats &got, const doubles &want, const doubles *size,
                           double bound) {
    doubles difference(want.size());
    for (size_t i = 0; i < want.size(); i++)
        difference[i] = (double)got[i] - want[i];
    const double whole = length(size ? *size : want);
    const double error = length(difference) / (whole > 0 ? whole : 1);
    note(l, column, error);
    if (error <= bound)
        return;
    printf("FAILED %s %s: %s %zu: relative L2 %.2e, bound %.1e\n", l.dtype, p.name, what, index,
           error, bound);
    l.failures++;
}

static bool same_bits(lab &l, const std::vector<buffer *> &a, const std::vector<buffer *> &b) {
    for (size_t i = 0; i < a.size(); i++)
        if (a[i] && bytes_of(l, a[i]) != bytes_of(l, b[i]))
            return false;
    return true;
}

static void check_plan(lab &l, plan_data &p, bool backward, int runs) {
    const reference ref = reference_of(l, p, p.wants.sums, backward);
    const tensors t = tensors_of(l, p);
    results r = run(l, p, t, backward);
    const double in = l.bf16 ? 6e-3 : 2e-6, weights = 2e-6, back = l.bf16 ? 8e-3 : 2e-6;
    const double learned = l.bf16 ? 2e-2 : 1e-5;
    for (size_t s = 0; s < p.site.size(); s++) {
        fact(l, guards_whole(l, r.in[s]), p.name, "in");
        compare_floats(l, p, "in", s, 0, get(l, r.in[s]), ref.in[s], NULL, in);
        if (r.weights[s]) {
            fact(l, guards_whole(l, r.weights[s]), p.name, "weights");
            compare_floats(l, p, "weights", s, 1, get(l, r.weights[s]), ref.weights[s], NULL,
                           weights);
        }
        if (p.wants.sums)
            compare_sums(l, p, r.sums[s], ref.sums[s], s);
        if (!backward)
            continue;
        if (p.site[s].sources > 1) { /* of one source the true gradient is 0 */
            const doubles *size = &ref.query_size[s];
            compare_floats(l, p, "query", s, 4, get(l, r.query[s]), ref.query[s], size, learned);
            compare_floats(l, p, "gain", s, 4, get(l, r.gain[s]), ref.gain[s], size, learned);
        }
        compare_floats(l, p, "null", s, 5, get(l, r.null_source[s]), ref.null_source[s], NULL,
                       learned);
        if (gated(p.site[s]))
            compare_floats(l, p, "gate", s, 6, get(l, r.gate[s]), ref.gate[s], NULL, 3 * learned);
        if (gated(p.site[s]) && p.site[s].gate == GATE_SIGMOID_VECTOR)
            compare_floats(l, p, "gate_bias", s, 6, get(l, r.gate_bias[s]), ref.gate_bias[s], NULL,
                           learned);
        for (buffer *b : {r.query[s], r.gain[s], r.null_source[s], r.gate[s], r.gate_bias[s]})
            fact(l, guards_whole(l, b), p.name, "gradients");
    }
    for (size_t v = 0; v < p.value.size() && backward; v++)
        if (!r.d_value[v].empty())
            compare_floats(l, p, "d_value", v, 3, r.d_value[v], ref.d_value[v], &ref.value_size[v],
                           back);
    for (int again = 1; again < runs; again++) {
        results other = run(l, p, t, backward);
        fact(l,
             same_bits(l, r.in, other.in) && same_bits(l, r.weights, other.weights) &&
                 same_bits(l, r.query, other.query) && same_bits(l, r.gate, other.gate),
             p.name, "other bits in another run");
        for (size_t v = 0; v < p.value.size() && backward; v++)
            fact(l, r.d_value[v] == other.d_value[v], p.name, "other bits of d_value");
        for (size_t s = 0; s < p.site.size() && p.wants.sums; s++)
            fact(l,
                 memcmp(r.sums[s].data(), other.sums[s].data(),
                        r.sums[s].size() * sizeof(double)) == 0,
                 p.name, "other bits of sums");
        drop_results(l, other);
    }
    drop_results(l, r);
    for (size_t s = 0; s < p.site.size(); s++) {
        for (const buffer *b : {t.weights[s].query, t.weights[s].gain, t.weights[s].null_source,
                                t.weights[s].gate, t.weights[s].gate_bias})
            if (b)
                drop(l, (buffer *)b);
        drop(l, t.d_in[s]);
    }
}

static void check(lab &l, bool small) {
    const std::vector<size_t> one = {1}, few = {5, 1, 11}, many = {300, 1, 17, 64, 618};
    const size_t shape[][2] = {{48, 4},  {48, 24},  {128, 8},  {768, 12}, {1280, 8}, {1280, 64},
                               {512, 4}, {4096, 8}, {7168, 1}, {7168, 8}, {2048, 1}};
    for (const auto &s : shape)
        for (size_t sources : {1, 2, 33, 73, 130}) {
            for (const std::vector<size_t> *lengths : {&one, &few, &many}) {
                const bool large = lengths == &many;
                if ((large && (s[0] > 600 || sources > 73)) ||
                    (small && (s[0] > 1280 || large || sources > 33)))
                    continue;
                std::unique_ptr<plan_data> p = prefixes(l, s[0], s[1], sources, *lengths);
                p->wants.sums = sources < 100;
                p->wants.pairs = sources < 40;
                p->wants.skip_first = pick(l, 0, 2);
                check_plan(l, *p, true, small ? 1 : sources == 33 && !large ? 10 : 2);
            }
        }
    for (const auto &s : shape)
        for (int draw = 0; draw < (small ? 1 : 4) && s[0] <= 1280; draw++) {
            std::unique_ptr<plan_data> p =
                mixed(l, s[0], s[1], s[0] < 200 && draw == 0 && !small ? many : few);
            p->wants.sums = true;
            p->wants.pairs = draw % 2;
            p->wants.skip_first = pick(l, 0, 2);
            check_plan(l, *p, true, draw == 0 && !small ? 10 : 2);
        }
    printf("%s: largest errors: in %.1e, weights %.1e, sums %.1e, d_value %.1e, query and gain "
           "%.1e, null %.1e, gates %.1e; %d failures\n",
           l.dtype, worst[l.bf16][0], worst[l.bf16][1], worst[l.bf16][2], worst[l.bf16][3],
           worst[l.bf16][4], worst[l.bf16][5], worst[l.bf16][6], l.failures);
}

/* ---- timing ---- */

/* Bytes a second of a device-to-device copy, read and written bytes counted. */
static double copy_rate(lab &l) {
    const size_t bytes = (size_t)2 << 30;
    void *a, *b;
    status st = {};
    must(cuda_take(l.device, bytes, &a, &st) || cuda_take(l.device, bytes, &b, &st), &st, "memory");
    cudaMemsetAsync(a, 1, bytes, l.device->stream);
    const double ms = median_ms(l, 30, [&](int) {
        cudaMemcpyAsync(b, a, bytes, cudaMemcpyDeviceToDevice, l.device->stream);
    });
    cuda_give_back(l.device, a);
    cuda_give_back(l.device, b);
    return 2.0 * (double)bytes / ms * 1e3;
}

/* Reads more than the L2 holds, so that it holds nothing else, and nothing unwritten. */
static __global__ void read_all(const uint4 *from, size_t count, unsigned *out) {
    unsigned sum = 0;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (size_t)gridDim.x * blockDim.x)
        sum += from[i].x;
    if (sum == 12345)
        *out = sum;
}

/* A plan whose sources are all there, filled with random rows on the device. */
static __global__ void randomise(__nv_bfloat16 *to, size_t count, unsigned seed) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (size_t)gridDim.x * blockDim.x) {
        unsigned x = (unsigned)i * 2654435761u ^ seed;
        x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu, x ^= x >> 16;
        to[i] = __float2bfloat16((float)(int)x * 4.6566e-10f);
    }
}

static void fill_random(lab &l, buffer *to, unsigned seed) {
    randomise<<<1024, 256, 0, l.device->stream>>>((__nv_bfloat16 *)to->data, to->elements, seed);
}

typedef std::vector<std::vector<size_t>> shapes;

static void time_reads(lab &l, const shapes &chosen) {
    const shapes usual = {{9, 8192, 7168, 1},  {33, 8192, 2048, 1}, {25, 8192, 512, 4},
                          {49, 8192, 1024, 8}, {73, 8192, 1280, 8}, {9, 8192, 4096, 8},
                          {73, 1024, 1280, 8}, {37, 1024, 1280, 8}, {9, 1024, 1280, 8}};
    const double rate = copy_rate(l);
    const shapes &shape = chosen.empty() ? usual : chosen;
    printf("copy %.3f TB/s\n%28s %10s %8s %9s\n", rate / 1e12, "(S, T, d, H) site forward", "us",
           "GB/s", "of copy");
    for (const auto &s : shape) {
        std::unique_ptr<plan_data> p = prefixes(l, s[2], s[3], s[0], {1});
        p->start = {0, s[1]};
        p->rows = s[1];
        const tensors t = tensors_of(l, *p);
        status st = {};
        depth *axis;
        depth_options options = {};
        options.plan = &p->plan;
        options.weights = t.weights.data();
        options.max_rows = s[1];
        options.max_sequences = 1;
        must(kernels_cuda.depth_create(l.device, &options, &axis, &st), &st, "create");
        const batch_layout layout = {1, s[1], p->start.data()};
        must(kernels_cuda.depth_begin(axis, &layout, &p->wants, &st), &st, "begin");
        for (size_t v = 0; v < s[0]; v++) {
            fill_random(l, kernels_cuda.depth_storage(axis, v), (unsigned)v);
            must(kernels_cuda.depth_made(axis, v, &st), &st, "made");
        }
        buffer *in = guarded(l, true, s[1] * s[2]);
        buffer *weights = guarded(l, false, s[1] * s[3] * s[0]);
        /* The flush keeps a small case from living in the L2. */
        const double bytes = 2.0 * (double)(s[1] * s[2]) * (double)(s[0] + 1);
        buffer *flush = guarded(l, true, (size_t)128 << 20);
        fill_random(l, flush, 5);
        std::vector<float> ms;
        cudaEvent_t from, to;
        cudaEventCreate(&from);
        cudaEventCreate(&to);
        for (int i = 0; i < 60; i++) {
            if (bytes < 1e9)
                read_all<<<528, 256, 0, l.device->stream>>>(
                    (const uint4 *)flush->data, flush->elements / 8, (unsigned *)flush->data);
            cudaEventRecord(from, l.device->stream);
            depth_read_args args = {};
            args.site = 2;
            args.in = in;
            args.weights = weights;
            must(kernels_cuda.depth_read(axis, &args, &st), &st, "read");
            cudaEventRecord(to, l.device->stream);
            float one;
            cudaEventSynchronize(to);
            cudaEventElapsedTime(&one, from, to);
            if (i >= 10)
                ms.push_back(one);
        }
        std::sort(ms.begin(), ms.end());
        const double us = 1e3 * (double)ms[ms.size() / 2];
        char text[64];
        snprintf(text, sizeof text, "(%zu, %zu, %zu, %zu)", s[0], s[1], s[2], s[3]);
        printf("%28s %10.1f %8.0f %9.3f\n", text, us, bytes / us * 1e-3, bytes / us * 1e6 / rate);
        kernels_cuda.depth_free(axis);
        drop(l, in);
        drop(l, weights);
        drop(l, flush);
    }
}

/* A model's axis: `sites` sites that read all earlier values, sublayers that copy. */
struct chain {
    std::unique_ptr<plan_data> p;
    tensors t;
    depth *axis;
    buffer *in; /* what every site gives; with backward each has its own */
    std::vector<buffer *> ins, d_in;
};

static chain make_chain(lab &l, size_t sites, size_t rows, size_t width, size_t heads,
                        bool backward) {
    chain c;
    c.p.reset(new plan_data());
    plan_data &p = *c.p;
    p.width = width;
    p.heads = heads;
    std::vector<int> all;
    for (size_t v = 0; v < sites; v++) {
        add_value(p, v ? VALUE_OUT : VALUE_EMB, NO_VALUE, NO_VALUE);
        all.push_back((int)v);
        add_site(p, NO_VALUE, false, GATE_NONE, all, false);
    }
    fill(l, p, {1});
    p.start = {0, rows};
    p.rows = rows;
    c.t = tensors_of(l, p);
    status st = {};
    depth_options options = {};
    options.plan = &p.plan;
    options.weights = c.t.weights.data();
    options.max_rows = rows;
    options.max_sequences = 1;
    options.backward = backward;
    must(kernels_cuda.depth_create(l.device, &options, &c.axis, &st), &st, "create");
    for (size_t s = 0; s < sites; s++) {
        c.ins.push_back(guarded(l, true, rows * width));
        c.d_in.push_back(guarded(l, true, rows * width));
        fill_random(l, c.d_in.back(), (unsigned)(1000 + s));
    }
    fill_random(l, kernels_cuda.depth_storage(c.axis, 0), 1);
    return c;
}

/* The sublayers' copies are left out: every value is random already, what a site gives is not read.
 */
static void chain_forward(chain &c) {
    status st = {};
    const batch_layout layout = {1, c.p->rows, c.p->start.data()};
    must(kernels_cuda.depth_begin(c.axis, &layout, &c.p->wants, &st), &st, "begin");
    for (size_t v = 0; v < c.p->site.size(); v++) {
        must(kernels_cuda.depth_made(c.axis, v, &st), &st, "made");
        depth_read_args args = {};
        args.site = v;
        args.in = c.ins[v];
        must(kernels_cuda.depth_read(c.axis, &args, &st), &st, "read");
    }
}

static void chain_backward(chain &c) {
    status st = {};
    const buffer *d_value;
    for (size_t s = c.p->site.size(); s-- > 0;)
        must(kernels_cuda.depth_give(c.axis, s, c.d_in[s], &st) ||
                 kernels_cuda.depth_pull(c.axis, s, &d_value, &st),
             &st, "back");
}

static void time_chains(lab &l, const shapes &chosen) {
    const shapes usual = {
        {25, 4096, 512, 4}, {49, 1024, 1024, 8}, {73, 1024, 1280, 8}, {73, 8192, 1280, 8}};
    const double rate = copy_rate(l);
    const shapes &shape = chosen.empty() ? usual : chosen;
    printf("copy %.3f TB/s\n%28s %9s %9s %9s %9s %9s\n", rate / 1e12, "chain (sites, T, d, H)",
           "fwd ms", "fwd+back", "graph", "floor", "of floor");
    for (const auto &s : shape) {
        chain c = make_chain(l, s[0], s[1], s[2], s[3], true);
        for (size_t v = 0; v < s[0]; v++)
            fill_random(l, kernels_cuda.depth_storage(c.axis, v), (unsigned)v);
        const double forward = median_ms(l, 20, [&](int) { chain_forward(c); });
        const double both = median_ms(l, 20, [&](int) {
            chain_forward(c);
            chain_backward(c);
        });
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        double graphed = NAN;
        cudaStreamBeginCapture(l.device->stream, cudaStreamCaptureModeRelaxed);
        chain_forward(c);
        chain_backward(c);
        if (cudaStreamEndCapture(l.device->stream, &graph) == cudaSuccess &&
            cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess)
            graphed = median_ms(l, 20, [&](int) { cudaGraphLaunch(exec, l.device->stream); });
        double rows = 0;
        for (size_t v = 0; v < s[0]; v++)
            rows += (double)(v + 2) + (double)(s[0] - v + 2);
        const double floor = 2.0 * (double)(s[1] * s[2]) * rows / rate * 1e3;
        char text[64];
        snprintf(text, sizeof text, "(%zu, %zu, %zu, %zu)", s[0], s[1], s[2], s[3]);
        printf("%28s %9.3f %9.3f %9.3f %9.3f %9.3f\n", text, forward, both, graphed, floor,
               floor / std::min(both, graphed));
        kernels_cuda.depth_free(c.axis);
        for (buffer *b : c.ins)
            drop(l, b);
        for (buffer *b : c.d_in)
            drop(l, b);
    }
}

/* The first value's pull: every site reads it. */
static void time_pulls(lab &l, const shapes &chosen) {
    const shapes usual = {{9, 8192, 7168, 1},  {33, 8192, 2048, 1}, {25, 8192, 512, 4},
                          {49, 8192, 1024, 8}, {73, 8192, 1280, 8}, {9, 8192, 4096, 8}};
    const double rate = copy_rate(l);
    const shapes &shape = chosen.empty() ? usual : chosen;
    printf("copy %.3f TB/s\n%28s %10s %8s %9s\n", rate / 1e12, "(C, T, d, H) pull", "us", "GB/s",
           "of copy");
    for (const auto &s : shape) {
        chain c = make_chain(l, s[0] + 1, s[1], s[2], s[3], true);
        for (size_t v = 0; v < s[0]; v++)
            fill_random(l, kernels_cuda.depth_storage(c.axis, v), (unsigned)v);
        std::vector<float> ms;
        status st = {};
        cudaEvent_t from, to;
        cudaEventCreate(&from);
        cudaEventCreate(&to);
        const buffer *d_value;
        for (int i = 0; i < 20; i++) {
            chain_forward(c);
            for (size_t v = c.p->site.size(); v-- > 0;) {
                must(kernels_cuda.depth_give(c.axis, v, c.d_in[v], &st), &st, "give");
                if (v > 0)
                    must(kernels_cuda.depth_pull(c.axis, v, &d_value, &st), &st, "pull");
            }
            cudaEventRecord(from, l.device->stream);
            must(kernels_cuda.depth_pull(c.axis, 0, &d_value, &st), &st, "pull");
            cudaEventRecord(to, l.device->stream);
            cudaEventSynchronize(to);
            float one;
            cudaEventElapsedTime(&one, from, to);
            if (i >= 5)
                ms.push_back(one);
        }
        std::sort(ms.begin(), ms.end());
        /* The first site reads one value: its gradient is a term. */
        const double us = 1e3 * (double)ms[ms.size() / 2];
        const double bytes = 2.0 * (double)(s[1] * s[2]) * (double)(s[0] + 1 + 2);
        char text[64];
        snprintf(text, sizeof text, "(%zu, %zu, %zu, %zu)", s[0], s[1], s[2], s[3]);
        printf("%28s %10.1f %8.0f %9.3f\n", text, us, bytes / us * 1e-3, bytes / us * 1e6 / rate);
        kernels_cuda.depth_free(c.axis);
        for (buffer *b : c.ins)
            drop(l, b);
        for (buffer *b : c.d_in)
            drop(l, b);
    }
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "check";
    const unsigned long seed = argc > 2 ? strtoul(argv[2], NULL, 10) : std::random_device()();
    printf("seed %lu\n", seed);
    int failures = 0;
    shapes chosen;
    if (argc > 6)
        chosen = {{strtoul(argv[3], NULL, 10), strtoul(argv[4], NULL, 10),
                   strtoul(argv[5], NULL, 10), strtoul(argv[6], NULL, 10)}};
    if (strcmp(what, "check") == 0 || strcmp(what, "small") == 0)
        for (const char *dtype : {"fp32", "bf16"}) {
            lab l = lab_open(dtype, seed);
            check(l, what[0] == 's');
            failures += l.failures;
        }
    lab l = lab_open("bf16", seed);
    if (strcmp(what, "time") == 0)
        time_reads(l, chosen);
    if (strcmp(what, "pull") == 0)
        time_pulls(l, chosen);
    if (strcmp(what, "chain") == 0)
        time_chains(l, chosen);
    return failures ? 1 : 0;
}
