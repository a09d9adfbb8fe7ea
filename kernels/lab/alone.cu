/* lab/alone.cu - lets a main of this folder link some operations of the CUDA backend without the
 * others: each one fails here unless its own file is linked too. */
#include "kernels/cuda/device.cuh"

#define WEAK extern "C" __attribute__((weak))
#define OPERATION(name, arguments)                                                                 \
    WEAK int cuda_##name(backend *, const arguments *, status *st) {                               \
        return status_fail(st, "%s: not linked", #name);                                           \
    }
#define OF_DEPTH(name, ...)                                                                        \
    WEAK int cuda_depth_##name(__VA_ARGS__, status *st) {                                          \
        return status_fail(st, "%s: not linked", "depth_" #name);                                  \
    }

OPERATION(embed, embed_args)
OPERATION(norm, norm_args)
OPERATION(linear, linear_args)
OPERATION(rotary, rotary_args)
OPERATION(attention, attention_args)
OPERATION(swiglu, swiglu_args)
OPERATION(head, head_args)
OPERATION(magnitude, magnitude_args)
OPERATION(embed_back, embed_back_args)
OPERATION(norm_back, norm_back_args)
OPERATION(linear_back, linear_back_args)
OPERATION(rotary_back, rotary_back_args)
OPERATION(attention_back, attention_back_args)
OPERATION(swiglu_back, swiglu_back_args)
OPERATION(head_back, head_back_args)
OF_DEPTH(create, backend *, const depth_options *, depth **)
OF_DEPTH(begin, depth *, const batch_layout *, const depth_wants *)
OF_DEPTH(lend, depth *, size_t, buffer *)
OF_DEPTH(made, depth *, size_t)
OF_DEPTH(read, depth *, const depth_read_args *)
OF_DEPTH(sums, depth *, size_t, double *)
OF_DEPTH(alternative, depth *, const depth_alternative_args *)
OF_DEPTH(give, depth *, size_t, const buffer *)
OF_DEPTH(pull, depth *, size_t, const buffer **)
OF_DEPTH(site_grads, depth *, size_t, const site_grads *)
WEAK void cuda_depth_free(depth *) {}
WEAK buffer *cuda_depth_storage(depth *, size_t) {
    return NULL;
}
/* Of norm.cu, for linear_back. */
__attribute__((weak)) int cuda_add_columns(backend *, const void *, bool, size_t, size_t, float *,
                                           status *st) {
    return status_fail(st, "%s: not linked", "cuda_add_columns");
}
