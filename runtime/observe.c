/* observe.c - how results reach the observer: at once where the host reads the backend's memory,
 * else in one journey per batch, shown while the device runs the next.
 *
 * A flight is what one batch will show. Results have their place in host memory from the start:
 * small ones are written into parts of device blocks, which leave the device together at the end
 * of a pass, each to a host block of its own size; whole tensors are fetched when they are there.
 * So a view can be filled in at once and shown when its flight has landed.
 */
#include "runtime/session_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_ELEMENTS = 1 << 20, PART_ALIGNMENT = 64 };
/* Host memory of a flight: beyond, what is there is shown before the batch is over. */
static const size_t FLIGHT_BYTES = (size_t)1 << 30;

/* ---- memory of a flight ---- */

static size_t rounded(size_t elements) {
    return (elements + PART_ALIGNMENT - 1) / PART_ALIGNMENT * PART_ALIGNMENT;
}

static int grow(void **array, size_t *capacity, size_t count, size_t size, status *st) {
    if (count < *capacity)
        return DONE;
    size_t more = *capacity ? 2 * *capacity : 64;
    void *larger = mem_array(more, size, "observed results", st);
    if (!larger)
        return FAILED;
    if (count)
        memcpy(larger, *array, count * size);
    free(*array);
    *array = larger;
    *capacity = more;
    return DONE;
}

/* A block with room for `elements` of 4 bytes, with device memory beside or not. */
static flight_block *block_for(session *s, flight *f, bool device, size_t elements, status *st) {
    for (size_t i = 0; i < f->blocks; i++)
        if ((f->block[i].device != NULL) == device &&
            f->block[i].elements - f->block[i].used >= elements)
            return &f->block[i];
    if (grow((void **)&f->block, &f->block_capacity, f->blocks, sizeof *f->block, st))
        return NULL;
    flight_block made = {.elements = elements > BLOCK_ELEMENTS ? elements : BLOCK_ELEMENTS};
    if (s->k->host_create(s->device, made.elements * sizeof(float), (void **)&made.host, st) ||
        (device && s->k->buffer_create(s->device, BUFFER_EXACT, made.elements, &made.device, st))) {
        s->k->host_free(s->device, made.host);
        return NULL;
    }
    f->block[f->blocks] = made;
    return &f->block[f->blocks++];
}

static void *host_place(session *s, size_t elements, status *st) {
    flight *f = &s->flight[s->at];
    flight_block *block = block_for(s, f, false, rounded(elements), st);
    if (!block)
        return NULL;
    float *place = block->host + block->used;
    block->used += rounded(elements);
    f->bytes += rounded(elements) * sizeof(float);
    return place;
}

/* What was shown, or will not be, is forgotten; the blocks stay. */
static void clear(session *s, flight *f) {
    for (size_t i = 0; i < f->parts; i++)
        s->k->buffer_free(s->device, f->part[i]);
    for (size_t i = 0; i < f->blocks; i++)
        f->block[i].used = f->block[i].sent = 0;
    f->parts = f->views = f->bytes = 0;
}

void session_observe_free(session *s) {
    for (size_t i = 0; i < 2; i++) {
        flight *f = &s->flight[i];
        clear(s, f);
        for (size_t b = 0; b < f->blocks; b++) {
            s->k->buffer_free(s->device, f->block[b].device);
            s->k->host_free(s->device, f->block[b].host);
        }
        free(f->block);
        free(f->part);
        free(f->view);
        free(s->doubles[i].at);
    }
    for (size_t i = 0; i < SEEN_COUNT; i++)
        s->k->buffer_free(s->device, s->seen[i].device);
}

/* ---- places for results ---- */

/* The session's own buffer of a kind, at least `elements` long. */
buffer *session_whole(session *s, observed what, size_t elements, status *st) {
    seen *slot = &s->seen[what];
    if (slot->elements < elements) {
        s->k->buffer_free(s->device, slot->device);
        *slot = (seen){0};
        if (s->k->buffer_create(s->device, BUFFER_EXACT, elements, &slot->device, st))
            return NULL;
        slot->elements = elements;
    }
    return slot->device;
}

int session_place(session *s, observed what, size_t elements, buffer **device, const void **host,
                  status *st) {
    if (s->direct) {
        *device = session_whole(s, what, elements, st);
        *host = *device ? s->k->host(s->device, *device) : NULL;
        return *device ? DONE : FAILED;
    }
    flight *f = &s->flight[s->at];
    flight_block *block = block_for(s, f, true, rounded(elements), st);
    if (!block || grow((void **)&f->part, &f->part_capacity, f->parts, sizeof(buffer *), st) ||
        s->k->buffer_part(s->device, block->device, block->used, elements, device, st))
        return FAILED;
    f->part[f->parts++] = *device;
    *host = block->host + block->used;
    block->used += rounded(elements);
    return DONE;
}

int session_fetch(session *s, const buffer *from, size_t elements, const float **out, status *st) {
    if (s->direct) {
        *out = s->k->host(s->device, from);
        return DONE;
    }
    void *place = host_place(s, elements, st);
    *out = place;
    return place ? s->k->fetch(s->device, from, 0, place, elements, st) : FAILED;
}

double *session_doubles(session *s, size_t which, size_t count, status *st) {
    if (!s->direct)
        return host_place(s, 2 * count, st);
    doubles *memory = &s->doubles[which];
    if (!memory->at || memory->count < count) {
        free(memory->at);
        memory->count = 0;
        if (!(memory->at = mem_array(count, sizeof *memory->at, "routing sums", st)))
            return NULL;
        memory->count = count;
    }
    return memory->at;
}

int session_measure(session *s, size_t rows, const buffer *from, const observed what[4],
                    const void *out[4], status *st) {
    buffer *device[4] = {NULL};
    for (size_t i = 0; i < 4; i++)
        if (what[i] != SEEN_COUNT && session_place(s, what[i], rows, &device[i], &out[i], st))
            return FAILED;
    magnitude_args args = {.rows = rows,
                           .width = s->program->plan.width,
                           .in = from,
                           .rms = device[0],
                           .absmax = device[1],
                           .absmax_channel = device[2],
                           .median_abs = device[3]};
    return s->k->magnitude(s->device, &args, st);
}

/* ---- showing ---- */

/* The view's l2 is still the rms of each row. */
static int show_gradient(session *s, const batch *b, const observer *watch, gradient_view view,
                         status *st) {
    const double root = sqrt((double)s->program->plan.width);
    for (size_t i = 0; i < b->layout.rows; i++)
        s->l2[i] = (float)((double)view.l2[i] * root);
    view.l2 = s->l2;
    return watch->on_gradient(watch->self, b, &view, st);
}

static int show(session *s, const batch *b, const observer *watch, const any_view *view,
                status *st) {
    switch (view->kind) {
    case VIEW_SITE:
        return watch->on_site ? watch->on_site(watch->self, b, &view->site, st) : DONE;
    case VIEW_SUBLAYER:
        return watch->on_sublayer ? watch->on_sublayer(watch->self, b, &view->sublayer, st) : DONE;
    case VIEW_HEAD:
        return watch->on_head ? watch->on_head(watch->self, b, &view->head, st) : DONE;
    case VIEW_GRADIENT:
        return watch->on_gradient ? show_gradient(s, b, watch, view->gradient, st) : DONE;
    case VIEW_DONE:
        return watch->on_done ? watch->on_done(watch->self, b, st) : DONE;
    }
    return DONE;
}

/* Shows a flight that has landed; an observer that was interrupted still sees the rest of it. */
static int show_flight(session *s, flight *f, status *st) {
    int rc = DONE;
    for (size_t i = 0; i < f->views && rc != FAILED; i++) {
        int shown = show(s, &f->batch, &f->watch, &f->view[i], st);
        rc = shown ? shown : rc;
    }
    clear(s, f);
    return rc;
}

int session_depart(session *s, status *st) {
    flight *f = &s->flight[s->at];
    for (size_t i = 0; i < f->blocks; i++) {
        flight_block *block = &f->block[i];
        if (block->device && block->used > block->sent &&
            s->k->fetch(s->device, block->device, block->sent, block->host + block->sent,
                        block->used - block->sent, st))
            return FAILED;
        block->sent = block->used;
    }
    return DONE;
}

/* All that has been observed so far, in order, once it has arrived. */
static int show_all(session *s, status *st) {
    if (session_depart(s, st) || s->k->wait(s->device, st))
        return FAILED;
    int rc = show_flight(s, &s->flight[s->at ^ 1], st);
    if (rc == FAILED)
        return FAILED;
    int last = show_flight(s, &s->flight[s->at], st);
    return last ? last : rc;
}

int session_show(session *s, const batch *b, const observer *watch, const any_view *view,
                 status *st) {
    if (s->direct)
        return show(s, b, watch, view, st);
    flight *f = &s->flight[s->at];
    if (grow((void **)&f->view, &f->view_capacity, f->views, sizeof *f->view, st))
        return FAILED;
    f->batch = *b;
    f->watch = *watch;
    f->view[f->views++] = *view;
    return f->bytes > FLIGHT_BYTES ? show_all(s, st) : DONE;
}

int session_board(session *s, status *st) {
    if (s->direct)
        return DONE;
    if (s->flight[s->at].views && s->k->wait(s->device, st))
        return FAILED;
    s->at ^= 1;
    clear(s, &s->flight[s->at]);
    return DONE;
}

int session_land(session *s, int rc, status *st) {
    status other;
    flight *before = &s->flight[s->at ^ 1];
    if (rc) /* of a pass that failed nothing is shown; what was before it is whole */
        clear(s, &s->flight[s->at]);
    const int shown = show_flight(s, before, rc ? &other : st);
    return rc ? rc : shown;
}

int session_finish(session *s, status *st) {
    return s->direct ? s->k->wait(s->device, st) : show_all(s, st);
}
