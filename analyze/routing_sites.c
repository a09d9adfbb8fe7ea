#include "analyze/routing_sites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool ends_with(const char *text, const char *end) {
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

/* "L12.attn": the digits. */
static void read_layer(recorded_site *site) {
    size_t digits = site->name[0] == 'L' ? strspn(site->name + 1, "0123456789") : 0;
    if (digits && site->name[1 + digits] == '.' && digits < sizeof site->layer)
        snprintf(site->layer, sizeof site->layer, "%.*s", (int)digits, site->name + 1);
    else
        snprintf(site->layer, sizeof site->layer, "nan");
}

static void read_site(recorded_site *site, const recording_about *about, size_t index,
                      size_t *source) {
    site->name = about->site_name[index];
    site->index = index;
    site->kind = ends_with(site->name, ".attn")  ? SITE_ATTN
                 : ends_with(site->name, ".mlp") ? SITE_MLP
                                                 : SITE_FINAL;
    read_layer(site);
    site->shape.heads = about->heads;
    site->source = source;
    for (size_t s = 0; s < about->sources; s++)
        if (about->available[index * about->sources + s])
            source[site->shape.sources++] = s;
    site->shape.null_source =
        site->shape.sources && strcmp(about->source_name[source[0]], "null") == 0;
}

static const char *kind_of_source(const char *name, bool complete) {
    if (strcmp(name, "emb") == 0 || strcmp(name, "null") == 0)
        return name;
    if (ends_with(name, ".attn"))
        return "attn";
    if (ends_with(name, ".mlp"))
        return "mlp";
    if (name[0] == 'D')
        return "delta";
    if (name[0] == 'B')
        return complete ? "complete" : "partial";
    return "other";
}

const char *recorded_source_kind(const recorded_site *site, const recording_about *about,
                                 size_t i) {
    bool newest = i + 1 == site->shape.sources;
    return kind_of_source(about->source_name[site->source[i]], site->opens_block || !newest);
}

/* In block modes the newest source is the running partial sum, except at a block's first sublayer:
 * what is newest there is complete, so at the next site a newer one has begun. */
static void find_newest(recorded_sites *list, const recording_about *about) {
    bool blocks = strncmp(about->residual_mode, "block", 5) == 0;
    recorded_site *next = NULL;
    for (size_t i = list->sites; i-- > 0;) {
        recorded_site *site = &list->site[i];
        site->newest_kind = site->newest = "none";
        if (site->shape.sources == 0)
            continue;
        size_t last = site->shape.sources - 1, newest = site->source[last];
        site->newest = about->source_name[newest];
        site->opens_block = blocks && next && next->source[next->shape.sources - 1] > newest;
        site->newest_kind = recorded_source_kind(site, about, last);
        next = site;
    }
}

int recorded_sites_init(recorded_sites *list, const recording_about *about, status *st) {
    *list = (recorded_sites){.sites = about->sites};
    list->site = mem_array(about->sites, sizeof *list->site, "sites", st);
    list->source = mem_array(about->sites, about->sources * sizeof *list->source, "sources", st);
    if (!list->site || !list->source) {
        recorded_sites_clear(list);
        return FAILED;
    }
    for (size_t i = 0; i < list->sites; i++) {
        read_site(&list->site[i], about, i, list->source + i * about->sources);
        list->null_source = list->null_source || list->site[i].shape.null_source;
    }
    find_newest(list, about);
    return DONE;
}

void recorded_sites_clear(recorded_sites *list) {
    free(list->site);
    free(list->source);
    *list = (recorded_sites){0};
}

size_t recorded_row_stride(const recording_about *about, row_axes axes) {
    return about->sites *
           routing_row_size(&(routing_row){.axes = axes}, about->heads, about->sources);
}

void recorded_site_cells(const recorded_site *site, const recording_about *about, row_axes axes,
                         size_t *cell) {
    bool by_source = axes == ROW_SOURCE || axes == ROW_HEAD_SOURCE || axes == ROW_SOURCE_SOURCE;
    size_t stride = recorded_row_stride(about, axes) / about->sites, first = site->index * stride;
    size_t count =
        routing_row_size(&(routing_row){.axes = axes}, about->heads, site->shape.sources);
    for (size_t i = 0; i < count; i++) {
        cell[i] = first + i;
        if (!by_source)
            continue;
        size_t outer = i / site->shape.sources, s = site->source[i % site->shape.sources];
        if (axes == ROW_SOURCE_SOURCE)
            outer = site->source[outer];
        cell[i] = first + outer * about->sources + s;
    }
}
