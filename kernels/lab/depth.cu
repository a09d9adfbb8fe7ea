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
#include "kernels/lab/depth_time.cuh"

/* ---- running ---- */

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

/* `after`: what else is to be done once all sites are read. */
static results run(lab &l, const plan_data &p, const tensors &t, bool backward,
                   const std::function<void(depth *)> &after = nullptr) {
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
    if (after)
        after(axis);
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
    const double in = l.bf16 ? 1.2e-2 : 2e-6, weights = 2e-6, back = l.bf16 ? 8e-3 : 2e-6;
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
        compare_floats(l, p, "null", s, 5, get(l, r.null_source[s]), ref.null_source[s],
                       &ref.null_size[s], learned);
        if (gated(p.site[s]))
            compare_floats(l, p, "gate", s, 6, get(l, r.gate[s]), ref.gate[s], &ref.gate_size[s],
                           learned);
        if (gated(p.site[s]) && p.site[s].gate == GATE_SIGMOID_VECTOR)
            compare_floats(l, p, "gate_bias", s, 6, get(l, r.gate_bias[s]), ref.gate_bias[s],
                           &ref.bias_size[s], learned);
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

/* Every kind of edit of one site, some heads and two sources; a scale of 1 keeps every bit. */
static void check_edits(lab &l, size_t width, size_t heads, size_t sources) {
    std::unique_ptr<plan_data> p = prefixes(l, width, heads, sources, {5, 1, 11});
    const tensors t = tensors_of(l, *p);
    const results whole = run(l, *p, t, false);
    const size_t cells = heads * sources;
    std::unique_ptr<bool[]> head(new bool[heads]);
    for (size_t h = 0; h < heads; h++)
        head[h] = h % 3 != 1;
    const bool bf16 = l.bf16;
    l.bf16 = false;
    floats weights = normal(l, cells, 1.0f), mean = normal(l, 2 * width, 1.0f);
    p->data[2].given = normal(l, p->rows * cells, 1.0f);
    l.bf16 = bf16;
    buffer *given = exact(l, p->data[2].given);
    const int source[] = {(int)sources - 1, (int)sources / 3};
    for (int kind = EDIT_QUERY_SCALE; kind <= EDIT_MEAN_VALUE; kind++)
        for (const bool *some : {(const bool *)NULL, (const bool *)head.get()}) {
            unsigned long skipped = 0;
            depth_edit edit = {};
            edit.kind = (edit_kind)kind;
            edit.head = some;
            edit.sources = kind == EDIT_SWAP || sources > 2 ? 2 : 1;
            edit.source = source;
            edit.scale = some ? 0.5f : 1.0f;
            edit.weights = weights.data();
            edit.mean = mean.data();
            edit.given = given;
            edit.skipped = &skipped;
            p->site[2].edit = &edit;
            const reference ref = reference_of(l, *p, false, false);
            results r = run(l, *p, t, false);
            snprintf(p->name, sizeof p->name, "edit %d d %zu H %zu S %zu", kind, width, heads,
                     sources);
            compare_floats(l, *p, "in", 2, 0, get(l, r.in[2]), ref.in[2], NULL,
                           l.bf16 ? 6e-3 : 2e-6);
            compare_floats(l, *p, "weights", 2, 1, get(l, r.weights[2]), ref.weights[2], NULL,
                           2e-6);
            fact(l, skipped == 0, p->name, "tokens left without weight");
            if (kind == EDIT_QUERY_SCALE && !some)
                fact(l, same_bits(l, r.in, whole.in) && same_bits(l, r.weights, whole.weights),
                     p->name, "a scale of 1 changes bits");
            drop_results(l, r);
        }
    /* All sources masked: no weight is left, nothing is edited, every pair is counted. */
    std::vector<int> all;
    for (size_t i = 0; i < sources; i++)
        all.push_back((int)i);
    unsigned long skipped = 3;
    depth_edit edit = {};
    edit.kind = EDIT_MASK;
    edit.sources = sources;
    edit.source = all.data();
    edit.skipped = &skipped;
    p->site[2].edit = &edit;
    results r = run(l, *p, t, false);
    fact(l, skipped == 3 + p->rows * heads, p->name, "masked tokens are miscounted");
    drop_results(l, r);
}

/* A site's own query beside another: the first gives the site's own sums to the bit. */
static void check_alternative(lab &l, size_t width, size_t heads, size_t sources) {
    std::unique_ptr<plan_data> p = prefixes(l, width, heads, sources, {5, 1, 11});
    p->wants.sums = true;
    p->wants.skip_first = 1;
    const tensors t = tensors_of(l, *p);
    floats folded(2 * width);
    for (size_t i = 0; i < width; i++)
        folded[i] = p->data[2].gain[i] * p->data[2].query[i];
    for (size_t i = 0; i < width; i++)
        folded[width + i] = folded[width - 1 - i];
    buffer *queries = exact(l, folded);
    const size_t total = layout_of(*p, 2).total, sequences = p->start.size() - 1;
    doubles sums(2 * sequences * total), variance(2 * sequences * heads);
    const results r = run(l, *p, t, false, [&](depth *axis) {
        status st = {};
        depth_alternative_args args = {};
        args.site = 2;
        args.count = 2;
        args.folded = queries;
        args.sums = sums.data();
        args.variance = variance.data();
        must(kernels_cuda.depth_alternative(axis, &args, &st), &st, "alternative");
    });
    const routing_layout y = layout_of(*p, 2);
    for (size_t b = 0; b < sequences; b++)
        fact(l,
             memcmp(&sums[b * total], &r.sums[2][b * total], y.contribution * sizeof(double)) == 0,
             p->name, "its own query gives a site other bits");
    const reference ref = reference_of(l, *p, false, false);
    doubles want(sequences * heads);
    for (size_t b = 0; b < sequences; b++)
        for (size_t row = p->start[b] + 1; row < p->start[b + 1]; row++) {
            token one;
            token_forward(*p, ref, 2, row, one);
            for (size_t h = 0; h < heads; h++) {
                double mean = 0, square = 0;
                for (size_t i = 0; i < sources; i++)
                    mean += one.logit[h * sources + i] / (double)sources;
                for (size_t i = 0; i < sources; i++)
                    square += pow(one.logit[h * sources + i] - mean, 2) / (double)sources;
                want[b * heads + h] += square;
            }
        }
    compare_floats(l, *p, "variance", 2, 2,
                   floats(variance.begin(), variance.begin() + (long)want.size()), want, NULL,
                   1e-5);
}

static void check(lab &l, bool small) {
    const std::vector<size_t> one = {1}, few = {5, 1, 11}, many = {300, 1, 17, 64, 618};
    const size_t shape[][2] = {{48, 4},  {48, 24},  {128, 8},  {768, 12}, {1280, 8}, {1280, 64},
                               {512, 4}, {4096, 8}, {7168, 1}, {7168, 8}, {2048, 1}};
    for (const auto &s : shape)
        for (size_t sources : {1, 2, 33, 73, 130}) {
            for (const std::vector<size_t> *lengths : {&one, &few, &many}) {
                const size_t rows = lengths == &one ? 1 : lengths == &few ? 17 : 1000;
                const size_t size = s[0] * sources * rows;
                if (size > (small ? (size_t)200000 : (size_t)8000000))
                    continue;
                const bool large = lengths == &many;
                std::unique_ptr<plan_data> p = prefixes(l, s[0], s[1], sources, *lengths);
                p->wants.sums = sources < 100;
                p->wants.pairs = sources < 40 && s[0] < 2000;
                p->wants.skip_first = pick(l, 0, 2);
                check_plan(l, *p, true,
                           small                                    ? 1
                           : sources == 33 && !large && s[0] < 2000 ? 10
                                                                    : 2);
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
    for (const auto &s : shape)
        for (size_t sources : {2, 9}) {
            if (sources == 9 || s[1] > 1)
                check_edits(l, s[0], s[1], sources);
            check_alternative(l, s[0], s[1], sources);
        }
    printf("%s: largest errors: in %.1e, weights %.1e, sums %.1e, d_value %.1e, query and gain "
           "%.1e, null %.1e, gates %.1e; %d failures\n",
           l.dtype, worst[l.bf16][0], worst[l.bf16][1], worst[l.bf16][2], worst[l.bf16][3],
           worst[l.bf16][4], worst[l.bf16][5], worst[l.bf16][6], l.failures);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "check";
    const unsigned long seed = argc > 2 ? strtoul(argv[2], NULL, 10) : std::random_device()();
    setvbuf(stdout, NULL, _IOLBF, 0);
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
