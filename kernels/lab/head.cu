/* lab/head.cu - output head and cross entropy, forward and backward, checked and timed, alone.
 *
 *     head [check|time] [SEED] [fp32|bf16]
 *
 * Built with another -DHEAD_FLOATS= (logits held at once) of cuda/head.cu, it times other chunks.
 * TFLOP/s count 2 rows width vocabulary forward and three times that backward.
 */
#include "kernels/lab/check.cuh"

struct shape {
    size_t rows, width, vocabulary;
};

struct reference {
    doubles loss, logits, d_in, grad_weight;
};

/* Of float32 logits rounded nowhere; `grad` is what grad_weight held before. */
static reference naive(const shape &s, const floats &in, const floats &weight,
                       const std::vector<int> &target, const floats &grad) {
    reference ref = {doubles(s.rows), doubles(s.rows * s.vocabulary), doubles(s.rows * s.width),
                     doubles(grad.begin(), grad.end())};
    doubles d_logits(s.rows * s.vocabulary);
#pragma omp parallel for schedule(dynamic)
    for (size_t r = 0; r < s.rows; r++) {
        double *logit = &ref.logits[r * s.vocabulary], most = -INFINITY, sum = 0;
        for (size_t v = 0; v < s.vocabulary; v++) {
            for (size_t c = 0; c < s.width; c++)
                logit[v] += (double)in[r * s.width + c] * (double)weight[v * s.width + c];
            most = std::max(most, logit[v]);
        }
        for (size_t v = 0; v < s.vocabulary; v++)
            sum += exp(logit[v] - most);
        if (target[r] < 0)
            continue;
        ref.loss[r] = most + log(sum) - logit[target[r]];
        for (size_t v = 0; v < s.vocabulary; v++) {
            const double d = exp(logit[v] - most) / sum - (v == (size_t)target[r]);
            d_logits[r * s.vocabulary + v] = d;
            for (size_t c = 0; c < s.width; c++)
                ref.d_in[r * s.width + c] += d * (double)weight[v * s.width + c];
        }
    }
#pragma omp parallel for schedule(dynamic)
    for (size_t v = 0; v < s.vocabulary; v++)
        for (size_t r = 0; r < s.rows; r++)
            for (size_t c = 0; c < s.width; c++)
                ref.grad_weight[v * s.width + c] +=
                    d_logits[r * s.vocabulary + v] * (double)in[r * s.width + c];
    return ref;
}

struct work {
    size_t start[2];
    batch_layout layout;
    head_args forward;
    head_back_args back;
    buffer *in, *weight, *target, *loss, *logits, *d_in, *grad;
};

static void make_work(lab &l, const shape &s, const floats &in, const floats &weight,
                      const std::vector<int> &target, work &w) {
    w.start[0] = 0;
    w.start[1] = s.rows;
    w.layout = {1, s.rows, w.start};
    w.in = with(l, in);
    w.weight = with(l, weight);
    w.target = guarded(l, false, s.rows);
    put(l, w.target, target.data());
    w.loss = guarded(l, false, s.rows);
    w.d_in = guarded(l, true, s.rows * s.width);
    w.grad = guarded(l, false, s.vocabulary * s.width);
    w.logits = NULL;
    w.forward = {&w.layout, s.width, s.vocabulary, w.in, w.weight, w.target, w.loss, NULL};
    w.back = {&w.layout, s.width, s.vocabulary, w.in, w.weight, w.target, w.d_in, w.grad};
}

static void free_work(lab &l, work &w) {
    for (buffer *b : {w.in, w.weight, w.target, w.loss, w.logits, w.d_in, w.grad})
        if (b)
            drop(l, b);
}

static void forward(lab &l, const work &w) {
    status st = {};
    must(cuda_head(l.device, &w.forward, &st), &st, "head");
}
static void backward(lab &l, const work &w) {
    status st = {};
    must(cuda_head_back(l.device, &w.back, &st), &st, "head_back");
}

static std::vector<int> targets(lab &l, const shape &s) {
    std::vector<int> target(s.rows);
    for (size_t r = 0; r < s.rows; r++)
        target[r] = r % 7 == 3 ? -1 : (int)(l.random() % s.vocabulary);
    if (s.rows > 1) {
        target[0] = 0;
        target[1] = (int)s.vocabulary - 1;
    }
    return target;
}

/* The losses of rows without a target are NaN and set to 0, as the reference has them. */
static void check_nan(lab &l, const char *name, buffer *loss, const std::vector<int> &target) {
    floats got = get(l, loss);
    for (size_t r = 0; r < got.size(); r++)
        if (target[r] < 0) {
            fact(l, std::isnan(got[r]), name, "a loss without a target is not NaN");
            got[r] = 0;
        }
    put(l, loss, got.data());
}

static void check_shape(lab &l, const shape &s) {
    const floats in = normal(l, s.rows * s.width, 1.0f);
    const floats weight = normal(l, s.vocabulary * s.width, 3.0f / sqrtf((float)s.width));
    const std::vector<int> target = targets(l, s);
    floats before(s.vocabulary * s.width);
    for (size_t i = 0; i < before.size(); i++)
        before[i] = 0.01f * (float)(i % 5);
    const reference ref = naive(s, in, weight, target, before);
    char name[100];
    snprintf(name, sizeof name, "rows %zu width %zu vocabulary %zu", s.rows, s.width, s.vocabulary);
    work w;
    make_work(l, s, in, weight, target, w);
    w.logits = w.forward.logits = guarded(l, false, s.rows * s.vocabulary);
    put(l, w.grad, before.data());
    forward(l, w);
    backward(l, w);
    const std::vector<unsigned char> loss_once = bytes_of(l, w.loss);
    const std::vector<unsigned char> d_in_once = bytes_of(l, w.d_in);
    const std::vector<unsigned char> grad_once = bytes_of(l, w.grad);
    check_nan(l, name, w.loss, target);
    const error loss = compare(l, name, "loss", w.loss, ref.loss, 2e-6);
    const error logits = compare(l, name, "logits", w.logits, ref.logits, 2e-6);
    const error d_in = compare(l, name, "d_in", w.d_in, ref.d_in, l.bf16 ? 6e-3 : 3e-6);
    const error grad =
        compare(l, name, "grad_weight", w.grad, ref.grad_weight, l.bf16 ? 6e-3 : 3e-6);
    printf("%-5s %-38s loss %.1e %.1e  logits %.1e %.1e  d_in %.1e %.1e  grad %.1e %.1e\n", l.dtype,
           name, loss.l2, loss.most, logits.l2, logits.most, d_in.l2, d_in.most, grad.l2,
           grad.most);
    w.forward.logits = NULL;
    for (int i = 0; i < 10; i++) {
        poison(l, w.loss);
        poison(l, w.d_in);
        put(l, w.grad, before.data());
        forward(l, w);
        backward(l, w);
        fact(l, bytes_of(l, w.loss) == loss_once, name, "losses differ, with logits and without");
        fact(l, bytes_of(l, w.d_in) == d_in_once, name, "ten runs differ: d_in");
        fact(l, bytes_of(l, w.grad) == grad_once, name, "ten runs differ: grad_weight");
    }
    free_work(l, w);
}

static void time_shape(lab &l, const shape &s) {
    enum { SETS = 2 };
    work w[SETS];
    for (work &each : w)
        make_work(l, s, normal_again(l, s.rows * s.width, 1.0f),
                  normal_again(l, s.vocabulary * s.width, 0.02f), targets(l, s), each);
    for (work &each : w)
        put(l, each.grad, floats(s.vocabulary * s.width).data());
    const int times = l.bf16 ? 50 : 10;
    const double ms = median_ms(l, times, [&](int i) { forward(l, w[i % SETS]); });
    const double back = median_ms(l, times, [&](int i) { backward(l, w[i % SETS]); });
    const double flops = 2.0 * (double)s.rows * (double)s.width * (double)s.vocabulary;
    printf("%-5s rows %zu width %zu vocabulary %zu  forward %7.3f ms %6.1f TFLOP/s  backward "
           "%7.3f ms %6.1f TFLOP/s\n",
           l.dtype, s.rows, s.width, s.vocabulary, ms, flops / ms * 1e-9, back,
           3 * flops / back * 1e-9);
    for (work &each : w)
        free_work(l, each);
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
        if (strcmp(what, "time") != 0) {
            printf("errors against float64: relative L2, largest / largest\n");
            for (const shape &s : {shape{300, 48, 1031},
                                   {1, 64, 257},
                                   {17, 768, 5003},
                                   {1500, 16, 50257},
                                   {2600, 8, 50304},
                                   {100, 7, 3}})
                check_shape(l, s);
        }
        if (strcmp(what, "check") != 0) {
            time_shape(l, {8192, 1280, 50304});
            time_shape(l, {8192, 768, 50257});
        }
        failures += l.failures;
        kernels_cuda.close(l.device);
    }
    printf("%s\n", failures ? "FAILED" : "all checks passed");
    return failures != 0;
}
