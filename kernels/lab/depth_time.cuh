/* depth_time.cuh - times of reading a site, of one source's gradient, of a model's whole axis. */
#ifndef FATHOM_KERNELS_LAB_DEPTH_TIME_CUH
#define FATHOM_KERNELS_LAB_DEPTH_TIME_CUH

#include "kernels/lab/depth_reference.cuh"

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

/* Random rows, made on the device. */
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

/* An axis whose sources are all there, and where a read of its last site puts its results. */
struct ready {
    std::unique_ptr<plan_data> p;
    depth *axis;
    buffer *in, *weights;
};

static ready make_ready(lab &l, size_t sources, size_t rows, size_t width, size_t heads,
                        bool sums) {
    ready r;
    r.p = prefixes(l, width, heads, sources, {1});
    r.p->start = {0, rows};
    r.p->rows = rows;
    r.p->wants.sums = sums;
    const tensors t = tensors_of(l, *r.p);
    status st = {};
    depth_options options = {};
    options.plan = &r.p->plan;
    options.weights = t.weights.data();
    options.max_rows = rows;
    options.max_sequences = 1;
    must(kernels_cuda.depth_create(l.device, &options, &r.axis, &st), &st, "create");
    const batch_layout layout = {1, rows, r.p->start.data()};
    must(kernels_cuda.depth_begin(r.axis, &layout, &r.p->wants, &st), &st, "begin");
    for (size_t v = 0; v < sources; v++) {
        fill_random(l, kernels_cuda.depth_storage(r.axis, v), (unsigned)v);
        must(kernels_cuda.depth_made(r.axis, v, &st), &st, "made");
    }
    r.in = guarded(l, true, rows * width);
    r.weights = guarded(l, false, rows * heads * sources);
    return r;
}

/* Reads in turn from as many axes as are together several times the L2. */
static void time_reads(lab &l, const shapes &chosen) {
    const shapes usual = {{9, 8192, 7168, 1},  {33, 8192, 2048, 1}, {25, 8192, 512, 4},
                          {49, 8192, 1024, 8}, {73, 8192, 1280, 8}, {9, 8192, 4096, 8},
                          {73, 1024, 1280, 8}, {37, 1024, 1280, 8}, {9, 1024, 1280, 8}};
    const double rate = copy_rate(l);
    const shapes &shape = chosen.empty() ? usual : chosen;
    printf("copy %.3f TB/s\n%28s %10s %8s %9s %10s\n", rate / 1e12, "(S, T, d, H) site forward",
           "us", "GB/s", "of copy", "+ sums, us");
    for (const auto &s : shape) {
        const double bytes = 2.0 * (double)(s[1] * s[2]) * (double)(s[0] + 1);
        double us[2];
        for (int sums = 0; sums < 2; sums++) {
            std::vector<ready> all;
            do
                all.push_back(make_ready(l, s[0], s[1], s[2], s[3], sums));
            while ((double)all.size() * bytes < 6e8);
            us[sums] = 1e3 * median_ms(l, 60, [&](int i) {
                           const ready &r = all[(size_t)i % all.size()];
                           status st = {};
                           depth_read_args args = {};
                           args.site = 2;
                           args.in = r.in;
                           args.weights = r.weights;
                           must(kernels_cuda.depth_read(r.axis, &args, &st), &st, "read");
                       });
            for (ready &r : all) {
                kernels_cuda.depth_free(r.axis);
                drop(l, r.in);
                drop(l, r.weights);
            }
        }
        char text[64];
        snprintf(text, sizeof text, "(%zu, %zu, %zu, %zu)", s[0], s[1], s[2], s[3]);
        printf("%28s %10.1f %8.0f %9.3f %10.1f\n", text, us[0], bytes / us[0] * 1e-3,
               bytes / us[0] * 1e6 / rate, us[1] - us[0]);
    }
}

/* A model's axis: `sites` sites that read all earlier values, sublayers that copy. */
struct chain {
    std::unique_ptr<plan_data> p;
    tensors t;
    depth *axis;
    std::vector<buffer *> ins, d_in, query, gain; /* of each site; query and gain: gradients */
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
        c.query.push_back(exact(l, floats(width)));
        c.gain.push_back(exact(l, floats(width)));
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
    for (size_t s = 0; s < c.p->site.size(); s++) {
        site_grads grads = {};
        grads.query = c.query[s];
        grads.gain = c.gain[s];
        must(kernels_cuda.depth_site_grads(c.axis, s, &grads, &st), &st, "gradients");
    }
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
        for (const std::vector<buffer *> *some : {&c.ins, &c.d_in, &c.query, &c.gain})
            for (buffer *b : *some)
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
        for (const std::vector<buffer *> *some : {&c.ins, &c.d_in, &c.query, &c.gain})
            for (buffer *b : *some)
                drop(l, b);
    }
}

#endif
