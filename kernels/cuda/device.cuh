/* device.cuh - device code of the row-wise operations: conversion, 16-byte packs, sums of a warp
 * and of a block, all in a fixed order. */
#ifndef FATHOM_KERNELS_CUDA_DEVICE_CUH
#define FATHOM_KERNELS_CUDA_DEVICE_CUH

#include "kernels/cuda/cuda.h"

static __device__ __forceinline__ float as_float(float x) {
    return x;
}

static __device__ __forceinline__ float as_float(__nv_bfloat16 x) {
    return __bfloat162float(x);
}

template <typename real> static __device__ __forceinline__ real as_real(float x);
template <> __device__ __forceinline__ float as_real<float>(float x) {
    return x;
}
template <> __device__ __forceinline__ __nv_bfloat16 as_real<__nv_bfloat16>(float x) {
    return __float2bfloat16(x);
}

/* N neighbouring elements, read and written by one instruction. */
template <typename real, int N> struct alignas(N * sizeof(real)) pack { real at[N]; };

template <typename real, int N>
static __device__ __forceinline__ void load(const real *from, float (&out)[N]) {
    const pack<real, N> p = *reinterpret_cast<const pack<real, N> *>(from);
#pragma unroll
    for (int i = 0; i < N; i++)
        out[i] = as_float(p.at[i]);
}

template <typename real, int N>
static __device__ __forceinline__ void store(const float (&x)[N], real *to) {
    pack<real, N> p;
#pragma unroll
    for (int i = 0; i < N; i++)
        p.at[i] = as_real<real>(x[i]);
    *reinterpret_cast<pack<real, N> *>(to) = p;
}

template <typename number> static __device__ __forceinline__ number warp_sum(number x) {
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, apart);
    return x;
}

/* The sum over a block of whole warps, to every thread; `shared` [32] may be used again after the
 * next barrier. */
template <typename number>
static __device__ __forceinline__ number block_sum(number x, number *shared) {
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    x = warp_sum(x);
    if (lane == 0)
        shared[warp] = x;
    __syncthreads();
    return warp_sum(lane < blockDim.x / 32 ? shared[lane] : (number)0);
}

/* Whether rows of `width` start and end on 16 bytes, and the elements a thread then takes. */
static inline bool cuda_wide(const backend *device, size_t width) {
    return width % (device->bf16 ? 8 : 4) == 0;
}
static inline size_t cuda_pack(const backend *device, bool wide) {
    return wide ? (device->bf16 ? 8 : 4) : 1;
}

static inline unsigned cuda_tiles(size_t count, size_t tile) {
    return (unsigned)((count + tile - 1) / tile);
}

/* A buffer as the pointer that the kernel at hand wants. */
struct cuda_pointer {
    void *data;
    template <typename number> operator number *() const {
        return static_cast<number *>(data);
    }
};
static inline cuda_pointer cuda_at(const buffer *memory) {
    cuda_pointer pointer = {memory ? memory->data : NULL};
    return pointer;
}

/* Launches KERNEL<real, N>, N = elements of 16 bytes where `wide` holds, else 1. */
#define CUDA_PACKED(device, wide, KERNEL, grid, block, shared, ...)                                \
    do {                                                                                           \
        if ((device)->bf16 && (wide))                                                              \
            KERNEL<__nv_bfloat16, 8>                                                               \
                <<<(grid), (block), (shared), (device)->stream>>>(__VA_ARGS__);                    \
        else if ((device)->bf16)                                                                   \
            KERNEL<__nv_bfloat16, 1>                                                               \
                <<<(grid), (block), (shared), (device)->stream>>>(__VA_ARGS__);                    \
        else if (wide)                                                                             \
            KERNEL<float, 4><<<(grid), (block), (shared), (device)->stream>>>(__VA_ARGS__);        \
        else                                                                                       \
            KERNEL<float, 1><<<(grid), (block), (shared), (device)->stream>>>(__VA_ARGS__);        \
    } while (0)

/* sum[column] += the rows of `from` [rows, width], in fp64 and a fixed order. norm.cu. */
int cuda_add_columns(backend *device, const void *from, bool real, size_t rows, size_t width,
                     float *sum, status *st);

#endif
