/* depth_ring.cuh - copies to shared memory that run ahead of the arithmetic (cp.async): what the
 * kernels that stream rows share. A thread's copies end in the order of its stages. */
#ifndef FATHOM_KERNELS_CUDA_DEPTH_RING_CUH
#define FATHOM_KERNELS_CUDA_DEPTH_RING_CUH

static __device__ __forceinline__ void copy_ahead16(void *to, const void *from) {
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(to)),
        "l"(from)
        : "memory");
}
static __device__ __forceinline__ void copy_ahead4(void *to, const void *from) {
    asm volatile(
        "cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((unsigned)__cvta_generic_to_shared(to)),
        "l"(from)
        : "memory");
}
static __device__ __forceinline__ void stage_ends() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int LEFT> static __device__ __forceinline__ void wait_but() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

#endif
