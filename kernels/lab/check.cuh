/* check.cuh - what the stand-alone mains of this folder share: guarded and poisoned buffers, random
 * input, errors, times.
 *
 * A buffer made here lies between guards. All of its memory starts as NaN: a read outside an input,
 * or an element of an output that was not written, shows as NaN in some result, and NaN passes no
 * check; a write outside shows in the guards.
 */
#ifndef FATHOM_KERNELS_LAB_CHECK_CUH
#define FATHOM_KERNELS_LAB_CHECK_CUH

#include "kernels/cuda/cuda.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

typedef std::vector<float> floats;
typedef std::vector<double> doubles;

static const size_t GUARD = 4096; /* elements at each end */

struct lab {
    backend *device;
    const char *dtype;
    bool bf16;
    int failures;
    std::mt19937_64 random;
};

static void must(int failed, const status *st, const char *what) {
    if (failed) {
        printf("%s: %s\n", what, st->text);
        exit(2);
    }
}

static lab lab_open(const char *dtype, unsigned long seed) {
    lab l = {};
    status st = {};
    backend_options options = {};
    options.device = "cuda";
    options.dtype = dtype;
    must(kernels_cuda.open(&options, &l.device, &st), &st, "open");
    l.dtype = dtype;
    l.bf16 = l.device->bf16;
    l.random.seed(seed);
    return l;
}

/* As the backend holds it. */
static float rounded(const lab &l, float x) {
    return l.bf16 ? __bfloat162float(__float2bfloat16(x)) : x;
}

static floats normal(lab &l, size_t n, float size) {
    std::normal_distribution<float> draw(0.0f, size);
    floats out(n);
    for (float &x : out)
        x = rounded(l, draw(l.random));
    return out;
}

/* Fast, for timing: a piece of one long draw, over and over. */
static floats normal_again(lab &l, size_t n, float size) {
    const floats draw = normal(l, (size_t)1 << 20, size);
    floats out(n);
    for (size_t i = 0; i < n; i++)
        out[i] = draw[(i + (i >> 20) * 12345) & (draw.size() - 1)];
    return out;
}

static void poison(lab &l, buffer *memory) {
    const size_t size = memory->real && l.bf16 ? 2 : 4;
    status st = {};
    must(cuda_ok(cudaMemsetAsync((char *)memory->data - GUARD * size, 0xff,
                                 (memory->elements + 2 * GUARD) * size, l.device->stream),
                 "poison", &st),
         &st, "poison");
}

/* Freed with the process. */
static buffer *guarded(lab &l, bool real, size_t elements) {
    const size_t size = real && l.bf16 ? 2 : 4;
    buffer *out = new buffer();
    void *memory;
    status st = {};
    must(cuda_take(l.device, (elements + 2 * GUARD) * size, &memory, &st), &st, "memory");
    out->data = (char *)memory + GUARD * size;
    out->elements = elements;
    out->real = real;
    poison(l, out);
    return out;
}

static void drop(lab &l, buffer *memory) {
    cuda_give_back(l.device,
                   (char *)memory->data - GUARD * (memory->real && l.bf16 ? (size_t)2 : 4));
    delete memory;
}

static void put(lab &l, buffer *to, const void *from) {
    status st = {};
    must(kernels_cuda.upload(l.device, to, 0, from, to->elements, &st), &st, "upload");
}

static buffer *with(lab &l, const floats &values) {
    buffer *out = guarded(l, true, values.size());
    put(l, out, values.data());
    return out;
}

static floats get(lab &l, const buffer *from) {
    floats out(from->elements);
    status st = {};
    must(kernels_cuda.download(l.device, from, 0, out.data(), out.size(), &st), &st, "download");
    return out;
}

/* The bytes of a buffer and its guards. */
static std::vector<unsigned char> bytes_of(lab &l, const buffer *memory) {
    const size_t size = memory->real && l.bf16 ? 2 : 4;
    std::vector<unsigned char> out((memory->elements + 2 * GUARD) * size);
    status st = {};
    must(cuda_ok(cudaStreamSynchronize(l.device->stream), "wait", &st) ||
             cuda_ok(cudaMemcpy(out.data(), (char *)memory->data - GUARD * size, out.size(),
                                cudaMemcpyDeviceToHost),
                     "copy", &st),
         &st, "bytes");
    return out;
}

static bool guards_whole(lab &l, const buffer *memory) {
    const std::vector<unsigned char> all = bytes_of(l, memory);
    const size_t guard = GUARD * (memory->real && l.bf16 ? 2 : 4);
    for (size_t i = 0; i < guard; i++)
        if (all[i] != 0xff || all[all.size() - 1 - i] != 0xff)
            return false;
    return true;
}

static void fact(lab &l, bool true_of_it, const char *shape, const char *what) {
    if (true_of_it)
        return;
    printf("FAILED %s %s: %s\n", l.dtype, shape, what);
    l.failures++;
}

struct error {
    double l2, most; /* |x - ref| / |ref|; largest |x - ref| / largest |ref| */
};

static error error_of(const floats &x, const doubles &ref) {
    double difference = 0, size = 0, most = 0, largest = 0;
    for (size_t i = 0; i < ref.size(); i++) {
        const double d = fabs((double)x[i] - ref[i]);
        if (!(d <= 1e300))
            return {NAN, NAN};
        difference += d * d;
        size += ref[i] * ref[i];
        most = std::max(most, d);
        largest = std::max(largest, fabs(ref[i]));
    }
    if (size == 0)
        return {sqrt(difference), most};
    return {sqrt(difference / size), most / largest};
}

/* Prints nothing; a failure names the shape. Gives the error for the table. */
static error compare(lab &l, const char *shape, const char *what, buffer *memory,
                     const doubles &ref, double bound) {
    const error e = error_of(get(l, memory), ref);
    if (!(e.l2 <= bound && e.most <= 4 * bound)) {
        printf("FAILED %s %s: %s: relative L2 %.2e, largest %.2e, bound %.1e\n", l.dtype, shape,
               what, e.l2, e.most, bound);
        l.failures++;
    }
    fact(l, guards_whole(l, memory), shape, what);
    return e;
}

/* Median milliseconds of `run(i)`, i counting calls: ten first, then `times`. */
template <typename function> static double median_ms(lab &l, int times, function run) {
    std::vector<cudaEvent_t> mark((size_t)times + 1);
    std::vector<float> ms((size_t)times);
    for (cudaEvent_t &m : mark)
        cudaEventCreate(&m);
    for (int i = 0; i < 10; i++)
        run(i);
    cudaEventRecord(mark[0], l.device->stream);
    for (int i = 0; i < times; i++) {
        run(i);
        cudaEventRecord(mark[(size_t)i + 1], l.device->stream);
    }
    cudaStreamSynchronize(l.device->stream);
    for (size_t i = 0; i < ms.size(); i++)
        cudaEventElapsedTime(&ms[i], mark[i], mark[i + 1]);
    for (cudaEvent_t &m : mark)
        cudaEventDestroy(m);
    std::sort(ms.begin(), ms.end());
    return ms[ms.size() / 2];
}

#endif
