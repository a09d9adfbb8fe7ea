/* depth_weigh.cu - reading a site in three passes: weights, edits, mix. For slices of any width,
 * for any number of sources, and wherever weights are changed between softmax and mix.
 */
#include "kernels/cuda/depth.h"

#include <math.h>
#include <stdlib.h>

enum { WARPS = 8 };

/* A warp to a (row, head): logits into `weights`, then the softmax over them in place. */
template <typename real, int N>
static __global__ void __launch_bounds__(32 * WARPS)
    weigh(const __grid_constant__ site_read a, double *variance) {
    const size_t task = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const int lane = (int)threadIdx.x % 32;
    if (task >= a.rows * (size_t)a.heads)
        return;
    const size_t row = task / (size_t)a.heads;
    const int head = (int)(task % (size_t)a.heads);
    float *out = a.weights + task * (size_t)a.sources;
    const float *u = a.folded + (size_t)head * (size_t)a.slice;
    const float factor = a.scale ? a.scale[head] : 1.0f;
    float most = -INFINITY;
    for (int s = 0; s < a.sources; s++) {
        const value_view from = a.view[a.source[s]];
        const real *v = static_cast<const real *>(from.row) + row * from.stride +
                        (size_t)head * (size_t)a.slice;
        float sum = 0.0f;
        for (int i = lane * N; i < a.slice; i += 32 * N) {
            float x[N], y[N];
            load<N>(v + i, x);
            load<N>(u + i, y);
#pragma unroll
            for (int j = 0; j < N; j++)
                sum = fmaf(x[j], y[j], sum);
        }
        const float logit = sum_lanes(sum) * from.inverse_rms[row * from.step] * factor;
        most = fmaxf(most, logit);
        if (lane == s % 32) {
            out[s] = logit;
            if (a.logit)
                a.logit[((size_t)s * a.logit_rows + row) * (size_t)a.heads + (size_t)head] = logit;
        }
    }
    if (variance) {
        double mean = 0.0, square = 0.0;
        for (int s = lane; s < a.sources; s += 32)
            mean += (double)out[s];
        mean = sum_lanes(mean) / (double)a.sources;
        for (int s = lane; s < a.sources; s += 32)
            square += ((double)out[s] - mean) * ((double)out[s] - mean);
        square = sum_lanes(square) / (double)a.sources;
        if (lane == 0)
            variance[task] = square;
    }
    float total = 0.0f;
    for (int s = lane; s < a.sources; s += 32)
        total += __expf(out[s] - most);
    total = sum_lanes(total);
    if (a.lse && lane == 0)
        a.lse[task] = most + logf(total);
    const float scale = 1.0f / total;
    for (int s = lane; s < a.sources; s += 32)
        out[s] = __expf(out[s] - most) * scale;
}

/* N channels of a row to a thread. `mean`: for edited sources, [sources] pointers or NULL. */
template <typename real, int N>
static __global__ void __launch_bounds__(256)
    mix_sources(const __grid_constant__ site_read a, const float *const *mean, const int *edited) {
    const size_t pieces = (size_t)a.width / N;
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= a.rows * pieces)
        return;
    const size_t row = at / pieces, channel = at % pieces * N;
    const int head = (int)channel / a.slice;
    const float *weight = a.weights + (row * (size_t)a.heads + (size_t)head) * (size_t)a.sources;
    float mix[N];
#pragma unroll
    for (int j = 0; j < N; j++)
        mix[j] = 0.0f;
    for (int s = 0; s < a.sources; s++) {
        const value_view from = a.view[a.source[s]];
        float x[N];
        if (mean && mean[s] && edited[head])
            load<N>(mean[s] + channel, x);
        else
            load<N>(static_cast<const real *>(from.row) + row * from.stride + channel, x);
#pragma unroll
        for (int j = 0; j < N; j++)
            mix[j] = fmaf(weight[s], x[j], mix[j]);
    }
    end_site<real, N>(a.end, row, (size_t)a.width, channel, mix);
}

/* ---- edits ---- */

/* What a kernel needs of an edit; arrays in device memory. */
struct edit_view {
    edit_kind kind;
    int first, second;    /* EDIT_SWAP */
    const int *head;      /* [heads] whether a head is edited */
    const int *masked;    /* [sources] whether a source is */
    const float *weights; /* EDIT_TOKEN_MEAN [heads, sources], EDIT_GIVEN [rows, heads, sources] */
    unsigned *skipped;    /* [rows, heads] 1 where EDIT_MASK left no weight */
};

/* A warp to a row: its heads one after the other, for EDIT_HEAD_MEAN reads them all. */
static __global__ void __launch_bounds__(32 * WARPS)
    edit_weights(float *weights, size_t rows, int heads, int sources, edit_view edit) {
    const size_t row = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const int lane = (int)threadIdx.x % 32;
    if (row >= rows)
        return;
    float *mine = weights + row * (size_t)heads * (size_t)sources;
    if (edit.kind == EDIT_HEAD_MEAN) {
        for (int s = lane; s < sources; s += 32) {
            float mean = 0.0f;
            for (int h = 0; h < heads; h++)
                mean += mine[h * sources + s];
            mean /= (float)heads;
            for (int h = 0; h < heads; h++)
                if (edit.head[h])
                    mine[h * sources + s] = mean;
        }
        return;
    }
    for (int h = 0; h < heads; h++) {
        float *a = mine + h * sources;
        if (!edit.head[h])
            continue;
        if (edit.kind == EDIT_SWAP) {
            if (lane == 0) {
                const float kept = a[edit.first];
                a[edit.first] = a[edit.second];
                a[edit.second] = kept;
            }
            continue;
        }
        float left = 0.0f;
        if (edit.kind == EDIT_MASK) {
            for (int s = lane; s < sources; s += 32)
                left += edit.masked[s] ? 0.0f : a[s];
            left = sum_lanes(left);
            if (!(left > 0.0f)) {
                if (lane == 0)
                    edit.skipped[row * (size_t)heads + (size_t)h] = 1;
                continue;
            }
        }
        const size_t cell = edit.kind == EDIT_GIVEN ? (row * (size_t)heads + (size_t)h) : (size_t)h;
        for (int s = lane; s < sources; s += 32) {
            if (edit.kind == EDIT_UNIFORM)
                a[s] = 1.0f / (float)sources;
            else if (edit.kind == EDIT_TOKEN_MEAN || edit.kind == EDIT_GIVEN)
                a[s] = edit.weights[cell * (size_t)sources + (size_t)s];
            else /* EDIT_MASK, EDIT_MASK_RAW */
                a[s] = edit.masked[s] ? 0.0f : edit.kind == EDIT_MASK ? a[s] / left : a[s];
        }
    }
}

/* Device memory with a copy of `from`, given back after the work submitted meanwhile. */
static int put(backend *device, const void *from, size_t bytes, void **out, status *st) {
    return cuda_take(device, bytes, out, st) || cuda_copy_in(device, *out, from, bytes, st) ? FAILED
                                                                                            : DONE;
}

static int check_edit(const site_read *args, const depth_edit *edit, status *st) {
    for (size_t i = 0; i < edit->sources; i++)
        if (edit->source[i] < 0 || edit->source[i] >= args->sources)
            return status_fail(st, "depth edit: source %d of %d", edit->source[i], args->sources);
    if (edit->kind == EDIT_SWAP && edit->sources != 2)
        return status_fail(st, "depth edit: a swap of %zu sources, expected 2", edit->sources);
    if (edit->kind == EDIT_GIVEN)
        return cuda_holds(edit->given, false, args->rows,
                          (size_t)args->heads * (size_t)args->sources, "depth edit: weights", st);
    return DONE;
}

/* 1 for each edited head, in host memory of the caller. */
static void edited_heads(const depth_edit *edit, int heads, int *head) {
    for (int h = 0; h < heads; h++)
        head[h] = !edit->head || edit->head[h];
}

static int scale_heads(depth *axis, const site_read *args, const depth_edit *edit, status *st) {
    float *scale = (float *)mem_array((size_t)args->heads, sizeof *scale, "depth edit", st);
    if (!scale)
        return FAILED;
    for (int h = 0; h < args->heads; h++)
        scale[h] = !edit->head || edit->head[h] ? edit->scale : 1.0f;
    for (size_t s = 0; s < axis->plan->sites; s++)
        if (axis->plan->site[s].edit == edit && axis->site[s].source == args->source) {
            const int rc = cuda_copy_in(axis->device, axis->site[s].edit_scale, scale,
                                        (size_t)args->heads * sizeof *scale, st);
            free(scale);
            return rc;
        }
    free(scale);
    return status_fail(st, "depth edit: no such site");
}

/* Adds the (token, head) pairs that EDIT_MASK left alone; waits for the device. */
static int count_skipped(depth *axis, const unsigned *skipped, size_t cells, unsigned long *count,
                         status *st) {
    unsigned *host = (unsigned *)mem_array(cells, sizeof *host, "depth edit", st);
    if (!host)
        return FAILED;
    cudaStream_t stream = axis->device->stream;
    const int rc = cuda_ok(cudaMemcpyAsync(host, skipped, cells * sizeof *host,
                                           cudaMemcpyDeviceToHost, stream),
                           "depth edit", st) ||
                   cuda_ok(cudaStreamSynchronize(stream), "depth edit", st);
    for (size_t i = 0; !rc && i < cells; i++)
        *count += host[i];
    free(host);
    return rc ? FAILED : DONE;
}

int depth_edit_weights(depth *axis, const site_read *args, const depth_edit *edit, status *st) {
    backend *device = axis->device;
    const size_t heads = (size_t)args->heads, sources = (size_t)args->sources;
    if (check_edit(args, edit, st))
        return FAILED;
    if (edit->kind == EDIT_MEAN_VALUE)
        return DONE; /* depth_mix does it */
    if (edit->kind == EDIT_QUERY_SCALE)
        return scale_heads(axis, args, edit, st);
    int rc = FAILED;
    void *head = NULL, *masked = NULL, *weights = NULL, *skipped = NULL;
    int *flags = (int *)mem_array(heads + sources, sizeof *flags, "depth edit", st);
    if (!flags)
        return FAILED;
    edited_heads(edit, args->heads, flags);
    for (size_t i = 0; i < edit->sources; i++)
        flags[heads + (size_t)edit->source[i]] = 1;
    const size_t cells = args->rows * heads;
    if (put(device, flags, heads * sizeof *flags, &head, st) ||
        put(device, flags + heads, sources * sizeof *flags, &masked, st) ||
        (edit->kind == EDIT_TOKEN_MEAN &&
         put(device, edit->weights, heads * sources * sizeof(float), &weights, st)) ||
        cuda_take(device, cells * sizeof(unsigned), &skipped, st) ||
        cuda_ok(cudaMemsetAsync(skipped, 0, cells * sizeof(unsigned), device->stream), "depth edit",
                st))
        goto done;
    {
        const edit_view view = {edit->kind,
                                edit->sources > 0 ? edit->source[0] : 0,
                                edit->sources > 1 ? edit->source[1] : 0,
                                (const int *)head,
                                (const int *)masked,
                                edit->kind == EDIT_GIVEN ? (const float *)edit->given->data
                                                         : (const float *)weights,
                                (unsigned *)skipped};
        edit_weights<<<(unsigned)((args->rows + WARPS - 1) / WARPS), 32 * WARPS, 0,
                       device->stream>>>(args->weights, args->rows, args->heads, args->sources,
                                         view);
    }
    if (cuda_launched("depth edit", st))
        goto done;
    rc = edit->kind == EDIT_MASK && edit->skipped
             ? count_skipped(axis, (const unsigned *)skipped, cells, edit->skipped, st)
             : DONE;
done:
    cuda_give_back(device, head);
    cuda_give_back(device, masked);
    cuda_give_back(device, weights);
    cuda_give_back(device, skipped);
    free(flags);
    return rc;
}

/* ---- launching ---- */

int depth_weigh(depth *axis, const site_read *args, double *variance, status *st) {
    const size_t tasks = args->rows * (size_t)args->heads;
    const unsigned grid = (unsigned)((tasks + WARPS - 1) / WARPS);
    cudaStream_t stream = axis->device->stream;
    if (tasks == 0)
        return DONE;
    if (args->slice % 8 == 0) {
        if (axis->device->bf16)
            weigh<__nv_bfloat16, 8><<<grid, 32 * WARPS, 0, stream>>>(*args, variance);
        else
            weigh<float, 8><<<grid, 32 * WARPS, 0, stream>>>(*args, variance);
    } else if (axis->device->bf16) {
        weigh<__nv_bfloat16, 1><<<grid, 32 * WARPS, 0, stream>>>(*args, variance);
    } else {
        weigh<float, 1><<<grid, 32 * WARPS, 0, stream>>>(*args, variance);
    }
    return cuda_launched("depth: weights", st);
}

static int launch_mix(depth *axis, const site_read *args, const float *const *mean,
                      const int *edited, status *st) {
    const int n = args->slice % 8 == 0 ? 8 : 1;
    const size_t threads = args->rows * (size_t)(args->width / n);
    const unsigned grid = (unsigned)((threads + 255) / 256);
    cudaStream_t stream = axis->device->stream;
    if (threads == 0)
        return DONE;
    if (n == 8) {
        if (axis->device->bf16)
            mix_sources<__nv_bfloat16, 8><<<grid, 256, 0, stream>>>(*args, mean, edited);
        else
            mix_sources<float, 8><<<grid, 256, 0, stream>>>(*args, mean, edited);
    } else if (axis->device->bf16) {
        mix_sources<__nv_bfloat16, 1><<<grid, 256, 0, stream>>>(*args, mean, edited);
    } else {
        mix_sources<float, 1><<<grid, 256, 0, stream>>>(*args, mean, edited);
    }
    return cuda_launched("depth: mix", st);
}

int depth_mix(depth *axis, const site_read *args, const depth_edit *edit, status *st) {
    if (!edit || edit->kind != EDIT_MEAN_VALUE)
        return launch_mix(axis, args, NULL, NULL, st);
    backend *device = axis->device;
    const size_t width = (size_t)args->width, sources = (size_t)args->sources;
    int rc = FAILED;
    void *means = NULL, *table = NULL, *heads = NULL;
    int *head = (int *)mem_array((size_t)args->heads, sizeof *head, "depth edit", st);
    const float **mean = (const float **)mem_array(sources, sizeof *mean, "depth edit", st);
    if (head && mean &&
        !put(device, edit->mean, edit->sources * width * sizeof(float), &means, st)) {
        edited_heads(edit, args->heads, head);
        for (size_t i = 0; i < edit->sources; i++)
            mean[edit->source[i]] = (const float *)means + i * width;
        if (!put(device, mean, sources * sizeof *mean, &table, st) &&
            !put(device, head, (size_t)args->heads * sizeof *head, &heads, st))
            rc = launch_mix(axis, args, (const float *const *)table, (const int *)heads, st);
    }
    cuda_give_back(device, means);
    cuda_give_back(device, table);
    cuda_give_back(device, heads);
    free(head);
    free(mean);
    return rc;
}
