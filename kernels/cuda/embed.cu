/* embed.cu - rows of the embedding table, by token, and their gradients.
 *
 * Backward, one block for each row of the batch and tile of columns: the block of a token's first
 * occurrence adds all its rows in their order; the others find an earlier one and leave. No sorting
 * and no atomics; the search reads ids only, rows^2 / 2 of them from the cache.
 */
#include "kernels/cuda/device.cuh"

enum { THREADS = 256 };

template <typename real, int N>
static __global__ void gather(const real *table, const int *id, int width, real *out) {
    const int column = (int)(blockIdx.y * blockDim.x + threadIdx.x) * N;
    if (column >= width)
        return;
    const size_t row = blockIdx.x;
    *reinterpret_cast<pack<real, N> *>(out + row * width + column) =
        *reinterpret_cast<const pack<real, N> *>(table + (size_t)id[row] * width + column);
}

int cuda_embed(backend *device, const embed_args *args, status *st) {
    const size_t width = args->width;
    if (cuda_holds(args->table, true, args->vocabulary, width, "embed: table", st) ||
        cuda_holds(args->id, false, args->rows, 1, "embed: id", st) ||
        cuda_holds(args->out, true, args->rows, width, "embed: out", st))
        return FAILED;
    if (args->rows == 0)
        return DONE;
    const bool is_wide = cuda_wide(device, width);
    const dim3 grid((unsigned)args->rows, cuda_tiles(width, THREADS * cuda_pack(device, is_wide)));
    CUDA_PACKED(device, is_wide, gather, grid, THREADS, 0, cuda_at(args->table), cuda_at(args->id),
                (int)width, cuda_at(args->out));
    return cuda_launched("embed", st);
}

template <typename real>
static __global__ void add_tokens(const real *d_out, const int *id, int rows, int width,
                                  float *grad) {
    __shared__ int found[THREADS];
    __shared__ int before[THREADS / 32 + 1];
    const int first = (int)blockIdx.x, token = id[first], thread = (int)threadIdx.x;
    const int lane = thread % 32, warp = thread / 32;
    bool earlier = false;
    for (int r = thread; r < first; r += THREADS)
        earlier = earlier || id[r] == token;
    if (__syncthreads_or(earlier))
        return;
    const int column = (int)blockIdx.y * THREADS + thread;
    float *const to = grad + (size_t)token * width + column;
    float sum = column < width ? *to : 0.0f;
    for (int from = first; from < rows; from += THREADS) {
        /* The rows of this token among the next, in their order. */
        const int r = from + thread;
        const bool mine = r < rows && id[r] == token;
        const unsigned votes = __ballot_sync(0xffffffffu, mine);
        if (lane == 0)
            before[warp + 1] = __popc(votes);
        __syncthreads();
        if (thread == 0) {
            before[0] = 0;
            for (int w = 1; w <= THREADS / 32; w++)
                before[w] += before[w - 1];
        }
        __syncthreads();
        if (mine)
            found[before[warp] + __popc(votes & ((1u << lane) - 1u))] = r;
        const int count = before[THREADS / 32];
        __syncthreads();
        if (column < width)
#pragma unroll 8
            for (int i = 0; i < count; i++)
                sum += as_float(d_out[(size_t)found[i] * width + column]);
        __syncthreads();
    }
    if (column < width)
        *to = sum;
}

int cuda_embed_back(backend *device, const embed_back_args *args, status *st) {
    const size_t rows = args->layout->rows, width = args->width;
    if (!args->grad_table)
        return DONE;
    if (cuda_holds(args->id, false, rows, 1, "embed_back: id", st) ||
        cuda_holds(args->d_out, true, rows, width, "embed_back: d_out", st) ||
        cuda_holds(args->grad_table, false, args->vocabulary, width, "embed_back: grad_table", st))
        return FAILED;
    if (rows == 0)
        return DONE;
    const dim3 grid((unsigned)rows, cuda_tiles(width, THREADS));
    CUDA_REAL(device, add_tokens, grid, THREADS, 0, cuda_at(args->d_out), cuda_at(args->id),
              (int)rows, (int)width, cuda_at(args->grad_table));
    return cuda_launched("embed_back", st);
}
