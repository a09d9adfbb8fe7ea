/* lab/streams.cu - what reading S arrays row by row can reach: the ceiling of any site kernel.
 *
 * A warp takes a row's piece of every array in turn, S * BYTES of it, and keeps UNROLL pieces in
 * flight; nothing is computed. `strided`: neighbouring rows go to different blocks; `near`: a block
 * has a contiguous range of rows; `sweep`: near, and blocks of 8 warps.
 */
#include "kernels/lab/check.cuh"

template <int PIECES, int UNROLL>
static __global__ void __launch_bounds__(256)
    stream(const uint4 *const *array, int sources, size_t rows, bool near, uint4 *out) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const size_t warps = blockDim.x / 32, all = warps * gridDim.x;
    size_t row = warp * gridDim.x + blockIdx.x, end = rows, step = all;
    if (near) {
        row = rows * blockIdx.x / gridDim.x + (size_t)warp;
        end = rows * (blockIdx.x + 1) / gridDim.x;
        step = warps;
    }
    for (; row < end; row += step) {
        uint4 sum[PIECES] = {};
        for (int s = 0; s < sources; s += UNROLL) {
            uint4 x[UNROLL][PIECES];
#pragma unroll
            for (int j = 0; j < UNROLL; j++)
#pragma unroll
                for (int c = 0; c < PIECES; c++)
                    x[j][c] =
                        s + j < sources
                            ? __ldcs(array[s + j] + row * (PIECES * 32) + (size_t)(c * 32 + lane))
                            : make_uint4(0, 0, 0, 0);
#pragma unroll
            for (int j = 0; j < UNROLL; j++)
#pragma unroll
                for (int c = 0; c < PIECES; c++) {
                    sum[c].x ^= x[j][c].x, sum[c].y ^= x[j][c].y;
                    sum[c].z ^= x[j][c].z, sum[c].w ^= x[j][c].w;
                }
        }
#pragma unroll
        for (int c = 0; c < PIECES; c++)
            out[row * (PIECES * 32) + (size_t)(c * 32 + lane)] = sum[c];
    }
}

template <int PIECES, int UNROLL>
static double rate(lab &l, const uint4 *const *array, int sources, size_t rows, bool near,
                   int warps, int blocks, uint4 *out) {
    const double ms = median_ms(l, 30, [&](int) {
        stream<PIECES, UNROLL>
            <<<(unsigned)(132 * blocks), (unsigned)(32 * warps), 0, l.device->stream>>>(
                array, sources, rows, near, out);
    });
    return (double)rows * PIECES * 512 * (sources + 1) / ms * 1e-9;
}

int main() {
    lab l = lab_open("bf16", 1);
    status st = {};
    const size_t rows = 8192;
    const int shape[][2] = {{9, 2}, {9, 4}, {33, 4}, {49, 4}, {73, 5}, {73, 4}, {25, 2}, {73, 2}};
    printf(
        "TB/s; warps x blocks of an SM, rows strided or near\n%20s %9s %9s %9s %9s %9s %9s %9s\n",
        "(S, bytes of a row)", "8x2 str", "8x2 near", "4x4 near", "8x3 near", "4x6 near",
        "8x4 near", "8x4 str");
    for (const auto &s : shape) {
        std::vector<const uint4 *> host;
        void *memory, *table, *out;
        const size_t bytes = rows * (size_t)s[1] * 512;
        must(cuda_take(l.device, bytes * (size_t)s[0], &memory, &st) ||
                 cuda_take(l.device, 8 * (size_t)s[0], &table, &st) ||
                 cuda_take(l.device, bytes, &out, &st),
             &st, "memory");
        cudaMemsetAsync(memory, 3, bytes * (size_t)s[0], l.device->stream);
        for (int i = 0; i < s[0]; i++)
            host.push_back((const uint4 *)((const char *)memory + bytes * (size_t)i));
        must(cuda_copy_in(l.device, table, host.data(), 8 * host.size(), &st), &st, "table");
        const uint4 *const *array = (const uint4 *const *)table;
        char text[64];
        snprintf(text, sizeof text, "(%d, %d)", s[0], s[1] * 512);
        printf("%20s", text);
#define RATE(near, warps, blocks)                                                                  \
    printf(" %9.3f",                                                                               \
           s[1] == 2   ? rate<2, 4>(l, array, s[0], rows, near, warps, blocks, (uint4 *)out)       \
           : s[1] == 4 ? rate<4, 4>(l, array, s[0], rows, near, warps, blocks, (uint4 *)out)       \
                       : rate<5, 4>(l, array, s[0], rows, near, warps, blocks, (uint4 *)out))
        RATE(false, 8, 2);
        RATE(true, 8, 2);
        RATE(true, 4, 4);
        RATE(true, 8, 3);
        RATE(true, 4, 6);
        RATE(true, 8, 4);
        RATE(false, 8, 4);
        printf("\n");
        cuda_give_back(l.device, memory);
        cuda_give_back(l.device, table);
        cuda_give_back(l.device, out);
    }
    return 0;
}
