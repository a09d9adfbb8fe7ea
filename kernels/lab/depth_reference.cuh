/* depth_reference.cuh - random plans of the depth axis, what they give in float64, and their
 * tensors on the device. */
#ifndef FATHOM_KERNELS_LAB_DEPTH_REFERENCE_CUH
#define FATHOM_KERNELS_LAB_DEPTH_REFERENCE_CUH

#include "kernels/lab/check.cuh"

#include "kernels/routing_sums.h"

#include <functional>
#include <memory>

struct site_data {
    floats query, gain, null_source, gate, gate_bias, d_in;
    std::vector<int> source;
    floats given; /* of EDIT_GIVEN: [rows, heads, sources] */
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
    /* Of the terms that these add up. */
    std::vector<doubles> value_size, query_size, null_size, gate_size, bias_size;
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

static bool edited(const depth_edit *edit, size_t head) {
    return edit && (!edit->head || edit->head[head]);
}

static bool named(const depth_edit *edit, size_t source) {
    for (size_t i = 0; i < edit->sources; i++)
        if ((size_t)edit->source[i] == source)
            return true;
    return false;
}

/* The weights of a token after the site's edit. */
static void edit_token(const plan_data &p, size_t s, size_t row, token &t) {
    const depth_edit *edit = p.site[s].edit;
    const size_t n = (size_t)p.site[s].sources;
    const doubles before = t.a;
    for (size_t h = 0; h < p.heads; h++) {
        double *a = &t.a[h * n], left = 0;
        if (!edited(edit, h))
            continue;
        for (size_t i = 0; i < n; i++)
            left += named(edit, i) ? 0 : a[i];
        for (size_t i = 0; i < n; i++)
            switch (edit->kind) {
            case EDIT_MASK:
                a[i] = left > 0 ? (named(edit, i) ? 0 : a[i] / left) : a[i];
                break;
            case EDIT_MASK_RAW:
                a[i] = named(edit, i) ? 0 : a[i];
                break;
            case EDIT_UNIFORM:
                a[i] = 1 / (double)n;
                break;
            case EDIT_HEAD_MEAN:
                a[i] = 0;
                for (size_t k = 0; k < p.heads; k++)
                    a[i] += before[k * n + i] / (double)p.heads;
                break;
            case EDIT_TOKEN_MEAN:
                a[i] = edit->weights[h * n + i];
                break;
            case EDIT_GIVEN:
                a[i] = p.data[s].given[(row * p.heads + h) * n + i];
                break;
            case EDIT_SWAP:
                a[i] = before[h * n + (size_t)(i == (size_t)edit->source[0]   ? edit->source[1]
                                               : i == (size_t)edit->source[1] ? edit->source[0]
                                                                              : (int)i)];
                break;
            default:
                break;
            }
    }
}

/* Channel c of a source as it is mixed: EDIT_MEAN_VALUE puts a mean in its place. */
static double mixed_value(const plan_data &p, size_t s, size_t i, size_t c, double v) {
    const depth_edit *edit = p.site[s].edit;
    if (edit && edit->kind == EDIT_MEAN_VALUE && edited(edit, c / (p.width / p.heads)))
        for (size_t k = 0; k < edit->sources; k++)
            if ((size_t)edit->source[k] == i)
                return edit->mean[k * p.width + c];
    return v;
}

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
        for (size_t i = 0; i < sources && edited(p.site[s].edit, h); i++)
            if (p.site[s].edit->kind == EDIT_QUERY_SCALE)
                t.logit[h * sources + i] *= p.site[s].edit->scale;
        for (size_t i = 0; i < sources; i++)
            most = std::max(most, t.logit[h * sources + i]);
        for (size_t i = 0; i < sources; i++)
            sum += t.a[h * sources + i] = exp(t.logit[h * sources + i] - most);
        for (size_t i = 0; i < sources; i++)
            t.a[h * sources + i] /= sum;
    }
    if (p.site[s].edit)
        edit_token(p, s, row, t);
    for (size_t i = 0; i < sources; i++) {
        const double *v = &ref.value[(size_t)p.data[s].source[i]][row * width];
        for (size_t c = 0; c < width; c++)
            t.mix[c] += t.a[c / slice * sources + i] * mixed_value(p, s, i, c, v[c]);
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
                ref.bias_size[s][c] += fabs(g);
                for (size_t k = 0; k < width; k++) {
                    ref.gate[s][c * width + k] += g * base[k];
                    ref.gate_size[s][c * width + k] += fabs(g * base[k]);
                    d_base[k] += g * (double)p.data[s].gate[c * width + k];
                }
            }
        } else if (gated(site)) {
            double sum = 0;
            for (size_t c = 0; c < width; c++) {
                sum += d_gate[c];
                ref.gate_size[s][0] += fabs(d_gate[c]);
            }
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
    ref.null_size = ref.bias_size = ref.query_size;
    ref.gate.resize(p.site.size());
    for (size_t s = 0; s < p.site.size(); s++)
        ref.gate[s].assign(std::max<size_t>(1, p.data[s].gate.size()), 0);
    ref.gate_size = ref.gate;
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
                ref.null_size[(size_t)value.a][i % p.width] += ref.value_size[v][i];
            }
    }
    return ref;
}

/* ---- on the device ---- */

static buffer *exact(lab &l, const floats &values) {
    if (values.empty())
        return NULL;
    buffer *out = guarded(l, false, values.size());
    put(l, out, values.data());
    return out;
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

#endif
