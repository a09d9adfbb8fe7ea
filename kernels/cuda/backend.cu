/* backend.cu - the CUDA device: its memory, its copies, and the table of its operations.
 *
 * All memory comes from one arena, a memory pool of the driver's that keeps what it has taken until
 * the backend closes: taking and giving back are in the order of the stream and cost no wait.
 * Copies go through pinned memory in pieces. A fetch first copies on the card, in the order of the
 * computing stream, then crosses on a stream of its own while the next kernels run: nothing ever
 * waits for it but the piece of staging memory it used, and `wait`.
 */
#include "kernels/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 8 };
static const size_t SLOT_BYTES = (size_t)4 << 20;
/* Of the card's memory: what modules, handles and a fragmented arena may still take. */
static const size_t RESERVE = (size_t)512 << 20;

/* A piece of staging memory. A slot of uploads has host memory, in bf16 also the card's. */
typedef struct slot {
    void *host, *card;
    cudaEvent_t done; /* the last copy that used it */
} slot;

struct cuda_state {
    cudaMemPool_t pool;
    slot up[SLOTS], down[SLOTS];
    size_t next_up, next_down;
    cudaEvent_t ready;  /* what a copy reads is there */
    cudaEvent_t copied; /* the copies submitted so far are over */
    /* The layout at work. */
    device_layout layout;
    size_t *start; /* [sequences + 1] host copy */
    size_t start_capacity, row_capacity;
    void *device_start, *device_sequence;
    char text[512];
};

/* ---- errors ---- */

int cuda_ok(cudaError_t error, const char *what, status *st) {
    return error == cudaSuccess ? DONE : status_fail(st, "%s: %s", what, cudaGetErrorString(error));
}

int cuda_launched(const char *what, status *st) {
    return cuda_ok(cudaGetLastError(), what, st);
}

int cuda_holds(const buffer *memory, bool real, size_t rows, size_t columns, const char *what,
               status *st) {
    size_t elements;
    if (__builtin_mul_overflow(rows, columns, &elements) || !memory || memory->real != real ||
        memory->elements < elements)
        return status_fail(st, "%s: buffer of %zu %s elements, expected [%zu, %zu] %s", what,
                           memory ? memory->elements : 0, memory && memory->real ? "real" : "exact",
                           rows, columns, real ? "real" : "exact");
    return DONE;
}

/* ---- memory ---- */

static size_t pool_number(backend *device, cudaMemPoolAttr which) {
    unsigned long long bytes = 0;
    cudaMemPoolGetAttribute(device->state->pool, which, &bytes);
    return (size_t)bytes;
}

static size_t cuda_memory_left(backend *device) {
    size_t free_bytes = 0, total = 0;
    if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess)
        return 0;
    free_bytes += pool_number(device, cudaMemPoolAttrReservedMemCurrent) -
                  pool_number(device, cudaMemPoolAttrUsedMemCurrent);
    return free_bytes > RESERVE ? free_bytes - RESERVE : 0;
}

int cuda_take(backend *device, size_t bytes, void **out, status *st) {
    *out = NULL;
    const cudaError_t error =
        cudaMallocFromPoolAsync(out, bytes ? bytes : 1, device->state->pool, device->stream);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return status_fail(st, "GPU memory: %zu bytes asked, about %zu left", bytes,
                           cuda_memory_left(device));
    }
    return cuda_ok(error, "GPU memory", st);
}

void cuda_give_back(backend *device, void *memory) {
    status unused;
    if (memory && cuda_after_copies(device, &unused) == DONE)
        (void)cudaFreeAsync(memory, device->stream);
}

int cuda_scratch(backend *device, size_t bytes, void **out, status *st) {
    if (bytes > device->scratch_bytes) {
        cuda_give_back(device, device->scratch);
        device->scratch = NULL;
        device->scratch_bytes = 0;
        if (cuda_take(device, bytes, &device->scratch, st))
            return FAILED;
        device->scratch_bytes = bytes;
    }
    *out = device->scratch;
    return DONE;
}

static size_t element_size(const backend *device, const buffer *memory) {
    return memory->real && device->bf16 ? sizeof(__nv_bfloat16) : sizeof(float);
}

static size_t cuda_real_size(const backend *device) {
    return device->bf16 ? sizeof(__nv_bfloat16) : sizeof(float);
}

int cuda_buffer_create(backend *device, buffer_kind kind, size_t elements, buffer **out,
                       status *st) {
    size_t bytes;
    *out = NULL;
    if (__builtin_mul_overflow(elements, sizeof(float), &bytes))
        return status_fail(st, "buffer: %zu elements are too many", elements);
    buffer *made = (buffer *)mem_array(1, sizeof *made, "buffer", st);
    if (!made)
        return FAILED;
    made->elements = elements;
    made->real = kind == BUFFER_REAL;
    if (cuda_take(device, elements * element_size(device, made), &made->data, st)) {
        free(made);
        return FAILED;
    }
    *out = made;
    return DONE;
}

void cuda_buffer_free(backend *device, buffer *memory) {
    if (!memory)
        return;
    if (!memory->borrows)
        cuda_give_back(device, memory->data);
    free(memory);
}

/* ---- copies ---- */

static __global__ void to_bf16(const float *from, size_t count, __nv_bfloat16 *to) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        to[i] = __float2bfloat16(from[i]);
}

static __global__ void from_bf16(const __nv_bfloat16 *from, size_t count, float *to) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        to[i] = __bfloat162float(from[i]);
}

enum { THREADS = 256 };
static unsigned blocks_of(size_t count) {
    return (unsigned)((count + THREADS - 1) / THREADS);
}

/* The next slot of a ring with its memory, once the copy that used it last is over. */
static int slot_host(slot *at, status *st) {
    if (!at->host && cuda_ok(cudaMallocHost(&at->host, SLOT_BYTES), "pinned memory", st))
        return FAILED;
    return DONE;
}

static int slot_card(backend *device, slot *at, status *st) {
    return at->card ? DONE : cuda_take(device, SLOT_BYTES, &at->card, st);
}

static slot *next_up(backend *device, status *st) {
    slot *at = &device->state->up[device->state->next_up++ % SLOTS];
    return slot_host(at, st) || cuda_ok(cudaEventSynchronize(at->done), "upload", st) ? NULL : at;
}

int cuda_copy_in(backend *device, void *to, const void *from, size_t bytes, status *st) {
    for (size_t done = 0; done < bytes;) {
        const size_t piece = bytes - done < SLOT_BYTES ? bytes - done : SLOT_BYTES;
        slot *at = next_up(device, st);
        if (!at)
            return FAILED;
        memcpy(at->host, (const char *)from + done, piece);
        if (cuda_ok(cudaMemcpyAsync((char *)to + done, at->host, piece, cudaMemcpyHostToDevice,
                                    device->stream),
                    "upload", st) ||
            cuda_ok(cudaEventRecord(at->done, device->stream), "upload", st))
            return FAILED;
        done += piece;
    }
    return DONE;
}

/* fp32 in host memory to bf16 on the card. */
static int copy_in_bf16(backend *device, __nv_bfloat16 *to, const float *from, size_t count,
                        status *st) {
    const size_t most = SLOT_BYTES / sizeof(float);
    for (size_t done = 0; done < count;) {
        const size_t piece = count - done < most ? count - done : most;
        slot *at = next_up(device, st);
        if (!at || slot_card(device, at, st))
            return FAILED;
        memcpy(at->host, from + done, piece * sizeof(float));
        if (cuda_ok(cudaMemcpyAsync(at->card, at->host, piece * sizeof(float),
                                    cudaMemcpyHostToDevice, device->stream),
                    "upload", st))
            return FAILED;
        to_bf16<<<blocks_of(piece), THREADS, 0, device->stream>>>((const float *)at->card, piece,
                                                                  to + done);
        if (cuda_launched("upload", st) ||
            cuda_ok(cudaEventRecord(at->done, device->stream), "upload", st))
            return FAILED;
        done += piece;
    }
    return DONE;
}

static int range_check(const buffer *memory, size_t offset, size_t count, status *st) {
    if (offset > memory->elements || count > memory->elements - offset)
        return status_fail(st, "copy of %zu elements at %zu: the buffer has %zu", count, offset,
                           memory->elements);
    return DONE;
}

static int cuda_upload(backend *device, buffer *to, size_t offset, const void *from, size_t count,
                       status *st) {
    if (range_check(to, offset, count, st))
        return FAILED;
    if (to->real && device->bf16)
        return copy_in_bf16(device, (__nv_bfloat16 *)to->data + offset, (const float *)from, count,
                            st);
    return cuda_copy_in(device, (float *)to->data + offset, from, count * sizeof(float), st);
}

/* Elements from `offset` on as 4-byte elements at `to`, on the card. */
static int copy_on_card(backend *device, const buffer *from, size_t offset, size_t count, void *to,
                        status *st) {
    if (from->real && device->bf16) {
        from_bf16<<<blocks_of(count), THREADS, 0, device->stream>>>(
            (const __nv_bfloat16 *)from->data + offset, count, (float *)to);
        return cuda_launched("download", st);
    }
    return cuda_ok(cudaMemcpyAsync(to, (const float *)from->data + offset, count * sizeof(float),
                                   cudaMemcpyDeviceToDevice, device->stream),
                   "download", st);
}

static int cuda_buffer_part(backend *device, buffer *whole, size_t offset, size_t elements,
                            buffer **out, status *st) {
    *out = NULL;
    if (range_check(whole, offset, elements, st))
        return FAILED;
    buffer *made = (buffer *)mem_array(1, sizeof *made, "buffer", st);
    if (!made)
        return FAILED;
    *made = *whole;
    made->data = (char *)whole->data + offset * element_size(device, whole);
    made->elements = elements;
    made->borrows = true;
    *out = made;
    return DONE;
}

int cuda_copy_out(backend *device, void *to, const void *from, size_t bytes, status *st) {
    return cuda_ok(cudaEventRecord(device->state->ready, device->stream), "copy", st) ||
                   cuda_ok(cudaStreamWaitEvent(device->copy_stream, device->state->ready, 0),
                           "copy", st) ||
                   cuda_ok(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost,
                                           device->copy_stream),
                           "copy", st)
               ? FAILED
               : DONE;
}

int cuda_after_copies(backend *device, status *st) {
    return cuda_ok(cudaEventRecord(device->state->copied, device->copy_stream), "copy", st) ||
                   cuda_ok(cudaStreamWaitEvent(device->stream, device->state->copied, 0), "copy",
                           st)
               ? FAILED
               : DONE;
}

/* `to` in pinned memory, on the copying stream; see kernels.h. */
static int cuda_fetch(backend *device, const buffer *from, size_t offset, void *to, size_t count,
                      status *st) {
    struct cuda_state *state = device->state;
    const size_t most = SLOT_BYTES / sizeof(float);
    if (range_check(from, offset, count, st))
        return FAILED;
    for (size_t done = 0; done < count;) {
        const size_t piece = count - done < most ? count - done : most;
        slot *at = &state->down[state->next_down++ % SLOTS];
        if (slot_card(device, at, st) ||
            cuda_ok(cudaStreamWaitEvent(device->stream, at->done, 0), "fetch", st) ||
            copy_on_card(device, from, offset + done, piece, at->card, st) ||
            cuda_ok(cudaEventRecord(state->ready, device->stream), "fetch", st) ||
            cuda_ok(cudaStreamWaitEvent(device->copy_stream, state->ready, 0), "fetch", st) ||
            cuda_ok(cudaMemcpyAsync((float *)to + done, at->card, piece * sizeof(float),
                                    cudaMemcpyDeviceToHost, device->copy_stream),
                    "fetch", st) ||
            cuda_ok(cudaEventRecord(at->done, device->copy_stream), "fetch", st))
            return FAILED;
        done += piece;
    }
    return DONE;
}

static int cuda_wait(backend *device, status *st) {
    if (cuda_ok(cudaStreamSynchronize(device->copy_stream), "GPU", st))
        return FAILED;
    return cuda_ok(cudaStreamSynchronize(device->stream), "GPU", st);
}

static int cuda_download(backend *device, const buffer *from, size_t offset, void *to, size_t count,
                         status *st) {
    const size_t most = SLOT_BYTES / sizeof(float);
    if (range_check(from, offset, count, st))
        return FAILED;
    if (!from->real || !device->bf16)
        return cuda_ok(cudaMemcpyAsync(to, (const float *)from->data + offset,
                                       count * sizeof(float), cudaMemcpyDeviceToHost,
                                       device->stream),
                       "download", st) ||
                       cuda_ok(cudaStreamSynchronize(device->stream), "download", st)
                   ? FAILED
                   : DONE;
    for (size_t done = 0; done < count;) {
        const size_t piece = count - done < most ? count - done : most;
        void *card;
        if (cuda_scratch(device, piece * sizeof(float), &card, st) ||
            copy_on_card(device, from, offset + done, piece, card, st) ||
            cuda_ok(cudaMemcpyAsync((float *)to + done, card, piece * sizeof(float),
                                    cudaMemcpyDeviceToHost, device->stream),
                    "download", st) ||
            cuda_ok(cudaStreamSynchronize(device->stream), "download", st))
            return FAILED;
        done += piece;
    }
    return DONE;
}

static const void *cuda_host(backend *device, const buffer *memory) {
    (void)device;
    (void)memory;
    return NULL;
}

static int cuda_host_create(backend *device, size_t bytes, void **out, status *st) {
    (void)device;
    *out = NULL;
    return cuda_ok(cudaMallocHost(out, bytes ? bytes : 1), "pinned memory", st);
}

static void cuda_host_free(backend *device, void *memory) {
    (void)device;
    if (memory)
        (void)cudaFreeHost(memory);
}

/* ---- layouts ---- */

static __global__ void rows_to_sequences(const int *start, int sequences, int rows, int *sequence) {
    const int row = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (row >= rows)
        return;
    int low = 0, high = sequences; /* start[low] <= row < start[high] */
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (start[middle] <= row)
            low = middle;
        else
            high = middle;
    }
    sequence[row] = low;
}

static int check_layout(const batch_layout *layout, size_t *longest, status *st) {
    *longest = 0;
    for (size_t b = 0; b < layout->sequences; b++) {
        if (layout->start[b + 1] < layout->start[b])
            return status_fail(st, "batch layout: sequence %zu ends before it starts", b);
        const size_t length = layout->start[b + 1] - layout->start[b];
        *longest = length > *longest ? length : *longest;
    }
    if (layout->sequences &&
        (layout->start[0] != 0 || layout->start[layout->sequences] != layout->rows))
        return status_fail(st, "batch layout: rows %zu to %zu, expected 0 to %zu", layout->start[0],
                           layout->start[layout->sequences], layout->rows);
    if (layout->rows > INT32_MAX)
        return status_fail(st, "batch layout: %zu rows: expected at most %d", layout->rows,
                           INT32_MAX);
    return DONE;
}

/* Room for a layout; both grow together. */
static int layout_room(backend *device, size_t sequences, size_t rows, status *st) {
    struct cuda_state *state = device->state;
    if (sequences + 1 > state->start_capacity) {
        free(state->start);
        state->start = (size_t *)mem_array(sequences + 1, sizeof *state->start, "batch layout", st);
        cuda_give_back(device, state->device_start);
        state->device_start = NULL;
        state->start_capacity = 0;
        if (!state->start ||
            cuda_take(device, (sequences + 1) * sizeof(int), &state->device_start, st))
            return FAILED;
        state->start_capacity = sequences + 1;
    }
    if (rows > state->row_capacity || !state->device_sequence) {
        cuda_give_back(device, state->device_sequence);
        state->device_sequence = NULL;
        state->row_capacity = 0;
        if (cuda_take(device, rows * sizeof(int), &state->device_sequence, st))
            return FAILED;
        state->row_capacity = rows;
    }
    return DONE;
}

int cuda_layout(backend *device, const batch_layout *layout, device_layout *out, status *st) {
    struct cuda_state *state = device->state;
    const size_t sequences = layout->sequences, rows = layout->rows;
    const size_t bytes = (sequences + 1) * sizeof *layout->start;
    if (state->start && state->layout.sequences == sequences && state->layout.rows == rows &&
        memcmp(state->start, layout->start, bytes) == 0) {
        *out = state->layout;
        return DONE;
    }
    size_t longest;
    state->layout.sequences = SIZE_MAX; /* until the new one is there */
    if (check_layout(layout, &longest, st) || layout_room(device, sequences, rows, st))
        return FAILED;
    int *start = (int *)mem_array(sequences + 1, sizeof *start, "batch layout", st);
    if (!start)
        return FAILED;
    for (size_t b = 0; b <= sequences; b++)
        start[b] = (int)layout->start[b];
    const int rc =
        cuda_copy_in(device, state->device_start, start, (sequences + 1) * sizeof *start, st);
    free(start);
    if (rc)
        return FAILED;
    if (rows) {
        rows_to_sequences<<<blocks_of(rows), THREADS, 0, device->stream>>>(
            (const int *)state->device_start, (int)sequences, (int)rows,
            (int *)state->device_sequence);
        if (cuda_launched("batch layout", st))
            return FAILED;
    }
    memcpy(state->start, layout->start, bytes);
    state->layout.sequences = sequences;
    state->layout.rows = rows;
    state->layout.longest = longest;
    state->layout.start = (const int *)state->device_start;
    state->layout.sequence = (const int *)state->device_sequence;
    *out = state->layout;
    return DONE;
}

/* ---- opening ---- */

static void cuda_close(backend *device) {
    if (!device)
        return;
    struct cuda_state *state = device->state;
    if (device->stream)
        (void)cudaStreamSynchronize(device->stream);
    if (device->copy_stream)
        (void)cudaStreamSynchronize(device->copy_stream);
    cuda_gemm_close(device);
    if (state) {
        for (size_t i = 0; i < SLOTS; i++) {
            slot *const both[] = {&state->up[i], &state->down[i]};
            for (slot *at : both) {
                cuda_host_free(device, at->host);
                cuda_give_back(device, at->card);
                if (at->done)
                    (void)cudaEventDestroy(at->done);
            }
        }
        cuda_give_back(device, state->device_start);
        cuda_give_back(device, state->device_sequence);
        cuda_give_back(device, device->scratch);
        if (state->ready)
            (void)cudaEventDestroy(state->ready);
        if (state->copied)
            (void)cudaEventDestroy(state->copied);
        if (device->stream)
            (void)cudaStreamSynchronize(device->stream);
        if (state->pool)
            (void)cudaMemPoolDestroy(state->pool);
        free(state->start);
    }
    if (device->stream)
        (void)cudaStreamDestroy(device->stream);
    if (device->copy_stream)
        (void)cudaStreamDestroy(device->copy_stream);
    free(state);
    free(device);
}

/* "cuda" or "cuda:N". */
static int device_number(const char *name, int *ordinal, status *st) {
    *ordinal = 0;
    if (!name || strcmp(name, "cuda") == 0)
        return DONE;
    char *end = NULL;
    const long number = strncmp(name, "cuda:", 5) == 0 ? strtol(name + 5, &end, 10) : -1;
    if (!end || end == name + 5 || *end || number < 0 || number > 1023)
        return status_fail(st, "device '%s': expected cuda or cuda:N, N from 0 on", name);
    *ordinal = (int)number;
    return DONE;
}

static int choose_card(const backend_options *options, backend *device, status *st) {
    int cards = 0;
    if (device_number(options->device, &device->ordinal, st) ||
        cuda_ok(cudaGetDeviceCount(&cards), "no usable NVIDIA GPU", st))
        return FAILED;
    if (device->ordinal >= cards)
        return status_fail(st, "device 'cuda:%d': this machine has %d NVIDIA GPU%s, from cuda:0 on",
                           device->ordinal, cards, cards == 1 ? "" : "s");
    if (cuda_ok(cudaSetDevice(device->ordinal), "no usable NVIDIA GPU", st) ||
        cuda_ok(cudaGetDeviceProperties(&device->properties, device->ordinal), "NVIDIA GPU", st))
        return FAILED;
    if (device->properties.major < 8)
        return status_fail(st, "%s: compute capability %d.%d, expected 8.0 or later",
                           device->properties.name, device->properties.major,
                           device->properties.minor);
    if (!device->properties.memoryPoolsSupported)
        return status_fail(st, "%s: its driver has no memory pools", device->properties.name);
    return DONE;
}

static int make_pool(backend *device, status *st) {
    cudaMemPoolProps wanted = {};
    wanted.allocType = cudaMemAllocationTypePinned;
    wanted.location.type = cudaMemLocationTypeDevice;
    wanted.location.id = device->ordinal;
    unsigned long long keep = UINT64_MAX;
    if (cuda_ok(cudaMemPoolCreate(&device->state->pool, &wanted), "GPU memory", st))
        return FAILED;
    return cuda_ok(
        cudaMemPoolSetAttribute(device->state->pool, cudaMemPoolAttrReleaseThreshold, &keep),
        "GPU memory", st);
}

static int make_streams(backend *device, status *st) {
    if (cuda_ok(cudaStreamCreateWithFlags(&device->stream, cudaStreamNonBlocking), "stream", st) ||
        cuda_ok(cudaStreamCreateWithFlags(&device->copy_stream, cudaStreamNonBlocking), "stream",
                st) ||
        cuda_ok(cudaEventCreateWithFlags(&device->state->ready, cudaEventDisableTiming), "event",
                st) ||
        cuda_ok(cudaEventCreateWithFlags(&device->state->copied, cudaEventDisableTiming), "event",
                st))
        return FAILED;
    for (size_t i = 0; i < SLOTS; i++)
        if (cuda_ok(cudaEventCreateWithFlags(&device->state->up[i].done, cudaEventDisableTiming),
                    "event", st) ||
            cuda_ok(cudaEventCreateWithFlags(&device->state->down[i].done, cudaEventDisableTiming),
                    "event", st))
            return FAILED;
    return DONE;
}

static int open_parts(const backend_options *options, backend *device, status *st) {
    device->state = (struct cuda_state *)mem_array(1, sizeof *device->state, "cuda backend", st);
    if (!device->state || choose_card(options, device, st) || make_pool(device, st) ||
        make_streams(device, st) || cuda_gemm_open(device, st))
        return FAILED;
    int driver = 0;
    const size_t blas = cublasLtGetVersion();
    (void)cudaDriverGetVersion(&driver);
    snprintf(device->state->text, sizeof device->state->text,
             "cuda:%d, %.200s, %.1f GiB, %s, driver for CUDA %d.%d, cuBLASLt %zu.%zu.%zu",
             device->ordinal, device->properties.name,
             (double)device->properties.totalGlobalMem / 0x1p30, device->bf16 ? "bf16" : "fp32",
             driver / 1000, driver % 1000 / 10, blas / 10000, blas / 100 % 100, blas % 100);
    return DONE;
}

static int cuda_open(const backend_options *options, backend **out, status *st) {
    const char *dtype = options->dtype ? options->dtype : "fp32";
    *out = NULL;
    if (strcmp(dtype, "fp32") != 0 && strcmp(dtype, "bf16") != 0)
        return status_fail(st, "dtype '%s': expected fp32 or bf16", dtype);
    backend *made = (backend *)mem_array(1, sizeof *made, "cuda backend", st);
    if (!made)
        return FAILED;
    made->bf16 = strcmp(dtype, "bf16") == 0;
    if (open_parts(options, made, st)) {
        cuda_close(made);
        return FAILED;
    }
    *out = made;
    return DONE;
}

static const char *cuda_describe(const backend *device) {
    return device->state->text;
}

extern "C" const kernels kernels_cuda = {
    .abi = KERNELS_ABI,
    .size = sizeof(kernels),
    .name = "cuda",
    .rows = 8192,
    .open = cuda_open,
    .close = cuda_close,
    .describe = cuda_describe,
    .real_size = cuda_real_size,
    .memory_left = cuda_memory_left,
    .buffer_create = cuda_buffer_create,
    .buffer_part = cuda_buffer_part,
    .buffer_free = cuda_buffer_free,
    .upload = cuda_upload,
    .download = cuda_download,
    .host = cuda_host,
    .fetch = cuda_fetch,
    .wait = cuda_wait,
    .host_create = cuda_host_create,
    .host_free = cuda_host_free,
    .embed = cuda_embed,
    .norm = cuda_norm,
    .linear = cuda_linear,
    .rotary = cuda_rotary,
    .attention = cuda_attention,
    .swiglu = cuda_swiglu,
    .head = cuda_head,
    .magnitude = cuda_magnitude,
    .depth_create = cuda_depth_create,
    .depth_free = cuda_depth_free,
    .depth_begin = cuda_depth_begin,
    .depth_storage = cuda_depth_storage,
    .depth_lend = cuda_depth_lend,
    .depth_made = cuda_depth_made,
    .depth_read = cuda_depth_read,
    .depth_sums = cuda_depth_sums,
    .depth_alternative = cuda_depth_alternative,
    .embed_back = cuda_embed_back,
    .norm_back = cuda_norm_back,
    .linear_back = cuda_linear_back,
    .rotary_back = cuda_rotary_back,
    .attention_back = cuda_attention_back,
    .swiglu_back = cuda_swiglu_back,
    .head_back = cuda_head_back,
    .depth_give = cuda_depth_give,
    .depth_pull = cuda_depth_pull,
    .depth_site_grads = cuda_depth_site_grads,
};
