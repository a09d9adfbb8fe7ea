#include "probes/record_wants.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A tensor that can be recorded, and the flag that says so. */
typedef struct point {
    char name[48];
    bool *wanted;
} point;

static size_t list_points(const depth_program *program, size_t layers, recording_wants *wants,
                          point *points) {
    size_t n = 0;
    for (size_t i = 0; i < program->plan.sites; i++)
        if (program->site_read[i]) {
            snprintf(points[n].name, sizeof points[n].name, "in/%s", program->site_name[i]);
            points[n++].wanted = &wants->in[i];
        }
    for (size_t i = 0; i < program->sublayers; i++) {
        size_t index = program->sublayer[i].index;
        snprintf(points[n].name, sizeof points[n].name, "out/%s", program->site_name[index]);
        points[n++].wanted = &wants->out[index];
    }
    for (size_t i = 0; i < program->sublayers; i++)
        if (program->sublayer[i].state != NO_VALUE) {
            size_t index = program->sublayer[i].index;
            snprintf(points[n].name, sizeof points[n].name, "state/%s", program->site_name[index]);
            points[n++].wanted = &wants->state[index];
        }
    for (size_t i = 0; i < layers; i++) {
        snprintf(points[n].name, sizeof points[n].name, "attention/pattern/L%zu", i);
        points[n++].wanted = &wants->pattern[i];
    }
    return n;
}

static int no_match(const char *item, const point *points, size_t count, status *st) {
    char list[1600];
    size_t used = 0, i = 0;
    for (; i < count && used + sizeof points[i].name + 8 < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, " %s", points[i].name);
    return status_fail(st,
                       "--record %s: matches nothing; there is: weights no-weights pairs attention "
                       "and%s%s",
                       item, list, i < count ? " …" : "");
}

static int take_item(const char *item, const point *points, size_t count, bool routed,
                     recording_wants *wants, weights_choice *choice, status *st) {
    bool weights = strcmp(item, "weights") == 0, pairs = strcmp(item, "pairs") == 0;
    if ((weights || pairs) && !routed)
        return status_fail(st, "--record %s: this model does not route over depth", item);
    if (weights) {
        *choice = WEIGHTS_YES;
    } else if (strcmp(item, "no-weights") == 0) {
        *choice = WEIGHTS_NO;
    } else if (pairs) {
        wants->pairs = true;
    } else if (strcmp(item, "attention") == 0) {
        wants->attention = true;
    } else {
        bool matched = false;
        for (size_t i = 0; i < count; i++)
            if (fnmatch(item, points[i].name, FNM_PATHNAME) == 0)
                matched = *points[i].wanted = true;
        if (!matched)
            return no_match(item, points, count, st);
    }
    return DONE;
}

int record_wants_parse(const option_list *items, const depth_program *program, size_t layers,
                       recording_wants *wants, weights_choice *choice, status *st) {
    size_t sites = program->plan.sites;
    *wants = (recording_wants){0};
    *choice = WEIGHTS_IF_SMALL;
    wants->in = mem_array(sites, sizeof *wants->in, "points", st);
    wants->out = mem_array(2 * layers, sizeof *wants->out, "points", st);
    wants->state = mem_array(2 * layers, sizeof *wants->state, "points", st);
    wants->pattern = mem_array(layers, sizeof *wants->pattern, "points", st);
    point *points = mem_array(sites + 5 * layers, sizeof *points, "points", st);
    int result = FAILED;
    if (!wants->in || !wants->out || !wants->state || !wants->pattern || !points)
        goto end;
    size_t count = list_points(program, layers, wants, points);
    result = DONE;
    for (size_t i = 0; i < items->count && result == DONE; i++)
        result = take_item(items->item[i], points, count, program->labels > 0, wants, choice, st);
end:
    free(points);
    return result;
}

void record_wants_clear(recording_wants *wants) {
    free(wants->in);
    free(wants->out);
    free(wants->state);
    free(wants->pattern);
    *wants = (recording_wants){0};
}
