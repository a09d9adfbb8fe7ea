/* backend.c - the CPU device: threads, scratch memory, and the table of its operations. */
#include "kernels/cpu/cpu.h"

#include <limits.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_THREADS = 64 }; /* OpenBLAS is built for a fixed number of callers */

static void cpu_close(backend *device) {
    if (!device)
        return;
    free(device->tile);
    free(device->scratch);
    free(device);
}

static int cpu_open(const backend_options *options, backend **device, status *st) {
    *device = NULL;
    if (options->device && strcmp(options->device, "cpu") != 0)
        return status_fail(st, "device '%s': the cpu backend has one device, 'cpu'",
                           options->device);
    if (options->dtype && strcmp(options->dtype, "fp32") != 0)
        return status_fail(st, "dtype '%s': the cpu computes in fp32 only", options->dtype);
    if (options->threads > MOST_THREADS)
        return status_fail(st, "%zu threads: expected at most %d", options->threads, MOST_THREADS);

    backend *made = mem_array(1, sizeof *made, "cpu backend", st);
    if (!made)
        return FAILED;
    const int cores = omp_get_num_procs();
    made->threads = options->threads ? options->threads : cores < 1 ? 1 : (size_t)cores;
    if (made->threads > MOST_THREADS)
        made->threads = MOST_THREADS;
    openblas_set_num_threads(1);

    /* "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ...": name and version are wanted, and the core. */
    char library[64];
    const char *config = openblas_get_config(), *space = strchr(config, ' ');
    const char *end = space ? strchr(space + 1, ' ') : NULL;
    snprintf(library, sizeof library, "%.*s", end ? (int)(end - config) : 60, config);
    snprintf(made->text, sizeof made->text, "cpu, %zu thread%s, %s %s", made->threads,
             made->threads == 1 ? "" : "s", library, openblas_get_corename());
    *device = made;
    return DONE;
}

static const char *cpu_describe(const backend *device) {
    return device->text;
}

int cpu_tiles(backend *device, const batch_layout *layout, size_t rows, size_t *count, status *st) {
    size_t needed = 0;
    for (size_t b = 0; b < layout->sequences; b++) {
        if (layout->start[b + 1] < layout->start[b])
            return status_fail(st, "batch layout: sequence %zu ends before it starts", b);
        needed += (layout->start[b + 1] - layout->start[b] + rows - 1) / rows;
    }
    if (layout->sequences &&
        (layout->start[0] != 0 || layout->start[layout->sequences] != layout->rows))
        return status_fail(st, "batch layout: rows %zu to %zu, expected 0 to %zu", layout->start[0],
                           layout->start[layout->sequences], layout->rows);
    if (needed > device->tile_capacity) {
        row_tile *larger = mem_array(needed, sizeof *larger, "row tiles", st);
        if (!larger)
            return FAILED;
        free(device->tile);
        device->tile = larger;
        device->tile_capacity = needed;
    }
    row_tile *tile = device->tile;
    for (size_t b = 0; b < layout->sequences; b++) {
        const size_t start = layout->start[b], end = layout->start[b + 1];
        for (size_t first = start; first < end; first += rows)
            *tile++ = (row_tile){.sequence = b,
                                 .first = first,
                                 .rows = end - first < rows ? end - first : rows,
                                 .position = first - start};
    }
    *count = needed;
    return DONE;
}

int cpu_scratch_parts(backend *device, size_t parts, size_t floats, float **out, size_t *stride,
                      status *st) {
    const size_t line = 16; /* parts share no cache line */
    if (parts > 0 && floats > SIZE_MAX / sizeof(float) / parts - line)
        return status_fail(st, "scratch memory: %zu floats for each of %zu parts is too large",
                           floats, parts);
    *stride = (floats + line - 1) / line * line;
    const size_t needed = *stride * parts;
    if (needed > device->scratch_floats) {
        void *larger;
        if (posix_memalign(&larger, 64, needed * sizeof(float)))
            return status_fail(st, "scratch memory: %zu bytes: out of memory",
                               needed * sizeof(float));
        free(device->scratch);
        device->scratch = larger;
        device->scratch_floats = needed;
    }
    *out = device->scratch;
    return DONE;
}

int cpu_scratch(backend *device, size_t floats, float **out, size_t *stride, status *st) {
    return cpu_scratch_parts(device, device->threads, floats, out, stride, st);
}

int cpu_holds(const buffer *memory, size_t rows, size_t columns, const char *what, status *st) {
    size_t elements, bytes;
    if (__builtin_mul_overflow(rows, columns, &elements) ||
        __builtin_mul_overflow(elements, sizeof(float), &bytes) || !memory || memory->bytes < bytes)
        return status_fail(st, "%s: buffer of %zu bytes, expected [%zu, %zu] elements of 4", what,
                           memory ? memory->bytes : 0, rows, columns);
    return DONE;
}

int cpu_dimension(size_t value, const char *what, status *st) {
    if (value > INT_MAX)
        return status_fail(st, "%s: %zu is more than a matrix product can have (%d)", what, value,
                           INT_MAX);
    return DONE;
}

static size_t cpu_real_size(const backend *device) {
    (void)device;
    return sizeof(float);
}

static size_t cpu_memory_left(backend *device) {
    (void)device;
    return (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE) / 2;
}

static int cpu_buffer_create(backend *device, buffer_kind kind, size_t elements, buffer **out,
                             status *st) {
    (void)device;
    (void)kind;
    *out = NULL;
    size_t bytes;
    if (__builtin_mul_overflow(elements, sizeof(float), &bytes))
        return status_fail(st, "buffer: %zu elements are too many", elements);
    buffer *made = mem_array(1, sizeof *made, "buffer", st);
    if (!made)
        return FAILED;
    if (posix_memalign(&made->data, 64, bytes ? bytes : 1)) {
        free(made);
        return status_fail(st, "buffer: %zu bytes: out of memory", bytes);
    }
    made->bytes = bytes;
    *out = made;
    return DONE;
}

static void cpu_buffer_free(backend *device, buffer *memory) {
    (void)device;
    if (memory && !memory->borrows)
        free(memory->data);
    free(memory);
}

static int range_check(const buffer *memory, size_t offset, size_t count, status *st) {
    const size_t elements = memory->bytes / sizeof(float);
    if (offset > elements || count > elements - offset)
        return status_fail(st, "copy of %zu elements at %zu: the buffer has %zu", count, offset,
                           elements);
    return DONE;
}

static int cpu_buffer_part(backend *device, buffer *whole, size_t offset, size_t elements,
                           buffer **out, status *st) {
    (void)device;
    *out = NULL;
    if (range_check(whole, offset, elements, st))
        return FAILED;
    buffer *made = mem_array(1, sizeof *made, "buffer", st);
    if (!made)
        return FAILED;
    *made = (buffer){(float *)whole->data + offset, elements * sizeof(float), true};
    *out = made;
    return DONE;
}

static int cpu_upload(backend *device, buffer *to, size_t offset, const void *from, size_t count,
                      status *st) {
    (void)device;
    if (range_check(to, offset, count, st))
        return FAILED;
    if (count)
        memcpy((float *)to->data + offset, from, count * sizeof(float));
    return DONE;
}

static int cpu_download(backend *device, const buffer *from, size_t offset, void *to, size_t count,
                        status *st) {
    (void)device;
    if (range_check(from, offset, count, st))
        return FAILED;
    if (count)
        memcpy(to, (const float *)from->data + offset, count * sizeof(float));
    return DONE;
}

static int cpu_wait(backend *device, status *st) {
    (void)device;
    (void)st;
    return DONE;
}

static int cpu_host_create(backend *device, size_t bytes, void **out, status *st) {
    (void)device;
    *out = mem_array(bytes, 1, "host memory", st);
    return *out ? DONE : FAILED;
}

static void cpu_host_free(backend *device, void *memory) {
    (void)device;
    free(memory);
}

static const void *cpu_host(backend *device, const buffer *memory) {
    (void)device;
    return memory->data;
}

const kernels kernels_cpu = {
    .abi = KERNELS_ABI,
    .size = sizeof(kernels),
    .name = "cpu",
    .rows = 2048,
    .open = cpu_open,
    .close = cpu_close,
    .describe = cpu_describe,
    .real_size = cpu_real_size,
    .memory_left = cpu_memory_left,
    .buffer_create = cpu_buffer_create,
    .buffer_part = cpu_buffer_part,
    .buffer_free = cpu_buffer_free,
    .upload = cpu_upload,
    .download = cpu_download,
    .host = cpu_host,
    .wait = cpu_wait,
    .host_create = cpu_host_create,
    .host_free = cpu_host_free,
    .embed = cpu_embed,
    .norm = cpu_norm,
    .linear = cpu_linear,
    .rotary = cpu_rotary,
    .attention = cpu_attention,
    .swiglu = cpu_swiglu,
    .head = cpu_head,
    .magnitude = cpu_magnitude,
    .depth_create = cpu_depth_create,
    .depth_free = cpu_depth_free,
    .depth_begin = cpu_depth_begin,
    .depth_storage = cpu_depth_storage,
    .depth_lend = cpu_depth_lend,
    .depth_made = cpu_depth_made,
    .depth_read = cpu_depth_read,
    .depth_sums = cpu_depth_sums,
    .depth_alternative = cpu_depth_alternative,
    .depth_give = cpu_depth_give,
    .depth_pull = cpu_depth_pull,
    .depth_site_grads = cpu_depth_site_grads,
    .embed_back = cpu_embed_back,
    .norm_back = cpu_norm_back,
    .linear_back = cpu_linear_back,
    .rotary_back = cpu_rotary_back,
    .attention_back = cpu_attention_back,
    .swiglu_back = cpu_swiglu_back,
    .head_back = cpu_head_back,
};
