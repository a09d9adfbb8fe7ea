/* cmd_check.c - `fathom check`: every invariant of recordings, one line each. */
#include "probes/check.h"
#include "runtime/base/command.h"
#include "runtime/base/json.h"
#include "runtime/base/options.h"

#include <hdf5_hl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void line(const char *verdict, const char *format, va_list arguments) {
    printf("%-4s  ", verdict);
    vprintf(format, arguments);
    putchar('\n');
}

void check_ok(check *c, const char *format, ...) {
    (void)c;
    va_list arguments;
    va_start(arguments, format);
    line("ok", format, arguments);
    va_end(arguments);
}

void check_fail(check *c, const char *format, ...) {
    c->failed++;
    va_list arguments;
    va_start(arguments, format);
    line("FAIL", format, arguments);
    va_end(arguments);
}

void check_absent(check *c, const char *format, ...) {
    (void)c;
    va_list arguments;
    va_start(arguments, format);
    line("--", format, arguments);
    va_end(arguments);
}

void worst_see(worst *w, double error, size_t sequence, size_t pos, size_t site) {
    w->seen++;
    if (error > w->largest || isnan(error))
        w->largest = error;
    if (error <= w->allowed)
        return;
    if (w->bad++ == 0) {
        w->sequence = sequence;
        w->pos = pos;
        w->site = site;
    }
}

void worst_report(check *c, const worst *w) {
    if (w->seen == 0) {
        check_absent(c, "%s: nothing to check", w->what);
    } else if (w->bad == 0 && w->allowed > 0) {
        check_ok(c, "%s (largest error %.1e, allowed %.0e)", w->what, w->largest, w->allowed);
    } else if (w->bad == 0) {
        check_ok(c, "%s", w->what);
    } else {
        char where[160];
        int used = 0;
        where[0] = '\0';
        if (w->sequence != SIZE_MAX)
            used += snprintf(where, sizeof where, " sequence %zu", w->sequence);
        if (w->pos != SIZE_MAX)
            used += snprintf(where + used, sizeof where - (size_t)used, " position %zu", w->pos);
        if (w->site != SIZE_MAX && w->site < c->about->sites)
            snprintf(where + used, sizeof where - (size_t)used, " %s",
                     c->about->site_name[w->site]);
        check_fail(c, "%s: %llu of %llu do not; first at%s; largest error %.1e", w->what,
                   (unsigned long long)w->bad, (unsigned long long)w->seen, where, w->largest);
    }
}

/* ---- structure ---- */

static void check_state(check *c) {
    check_ok(c, "schema %s", c->about->schema);
    if (c->about->complete)
        check_ok(c, "complete: %zu sequences of at most %zu tokens", c->about->sequences,
                 c->about->positions);
    else
        check_fail(c, "incomplete: the recording was interrupted; it holds %zu whole sequences",
                   c->about->sequences);
}

typedef struct axes_seen {
    size_t datasets, bare, wrong, unlabelled;
    char first_bare[96], first_wrong[96], first_unlabelled[96];
} axes_seen;

/* Counts into *where and remembers the first name. */
static void remember(size_t *count, char first[96], const char *name) {
    if ((*count)++ == 0)
        snprintf(first, 96, "%s", name);
}

static herr_t see_scale(hid_t dataset, unsigned axis, hid_t scale, void *length) {
    (void)dataset;
    (void)axis;
    size_t rank;
    return h5_shape(scale, 1, &rank, length) || rank != 1 ? -1 : 0;
}

static herr_t see_object(hid_t file, const char *name, const H5O_info_t *info, void *context) {
    axes_seen *seen = context;
    if (info->type != H5O_TYPE_DATASET)
        return 0;
    size_t rank = 0, extent[H5S_MAX_RANK];
    hid_t dataset = H5Dopen2(file, name, H5P_DEFAULT);
    seen->datasets++;
    if (H5Aexists(dataset, "units") <= 0 || H5Aexists(dataset, "long_name") <= 0)
        remember(&seen->unlabelled, seen->first_unlabelled, name);
    if (H5DSis_scale(dataset) <= 0 && h5_shape(dataset, H5S_MAX_RANK, &rank, extent) == DONE)
        for (unsigned i = 0; i < rank; i++) {
            size_t length = 0;
            if (H5DSget_num_scales(dataset, i) != 1)
                remember(&seen->bare, seen->first_bare, name);
            else if (H5DSiterate_scales(dataset, i, NULL, see_scale, &length) < 0 ||
                     length != extent[i])
                remember(&seen->wrong, seen->first_wrong, name);
        }
    h5_close(&dataset);
    return 0;
}

static int check_axes(check *c, status *st) {
    axes_seen seen = {0};
    if (H5Ovisit(recording_file(c->rec), H5_INDEX_NAME, H5_ITER_NATIVE, see_object, &seen) < 0)
        return h5_fail(st, c->about->path, "list of datasets");
    bool ours = strncmp(c->about->source, "fathom", 6) == 0;
    if (seen.wrong)
        check_fail(c, "axes: %zu differ in length from their scale, first in %s", seen.wrong,
                   seen.first_wrong);
    else if (seen.bare && ours)
        check_fail(c, "axes: %zu without a scale, first in %s", seen.bare, seen.first_bare);
    else if (seen.bare)
        check_absent(c, "axes: %zu without a scale, first in %s", seen.bare, seen.first_bare);
    else
        check_ok(c, "axes: every axis of %zu datasets has a scale of its length", seen.datasets);
    if (seen.unlabelled && ours)
        check_fail(c, "units and long_name: missing on %zu datasets, first %s", seen.unlabelled,
                   seen.first_unlabelled);
    else if (seen.unlabelled)
        check_absent(c, "units and long_name: missing on %zu datasets", seen.unlabelled);
    else
        check_ok(c, "every dataset has units and long_name");
    return DONE;
}

/* L0.attn, L0.mlp, L1.attn, …, final. */
static void check_labels(check *c) {
    const recording_about *about = c->about;
    for (size_t i = 0; i < about->sites; i++) {
        char expected[32];
        snprintf(expected, sizeof expected, "L%zu.%s", i / 2, i % 2 ? "mlp" : "attn");
        if (i == about->sites - 1 && i % 2 == 0)
            snprintf(expected, sizeof expected, "final");
        if (strcmp(about->site_name[i], expected)) {
            check_fail(c, "site labels: entry %zu is %s, expected %s", i, about->site_name[i],
                       expected);
            return;
        }
    }
    for (size_t i = 0; i < about->sites; i++) {
        int32_t last = -1;
        for (size_t s = 0; s < about->sources; s++)
            if (about->available[i * about->sources + s])
                last = (int32_t)s;
        if (about->newest[i] != last) {
            check_fail(c, "routing/newest: %d at %s, expected %d, the last available source",
                       about->newest[i], about->site_name[i], last);
            return;
        }
    }
    check_ok(c, "%zu sites in order, %zu sources", about->sites, about->sources);
}

static void check_hash(check *c, const char *name, const char *text) {
    if (*text == '\0')
        check_absent(c, "%s: not recorded", name);
    else if (strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64)
        check_ok(c, "%s %.12s…", name, text);
    else
        check_fail(c, "%s: `%s` is no SHA-256", name, text);
}

/* What model_config says, where there is one. */
static void read_config(check *c) {
    status ignored;
    cJSON *json = NULL;
    const char *text = c->about->model_config;
    if (*text == '\0' || json_parse(text, strlen(text), "model_config", &json, &ignored))
        return;
    const cJSON *parent = cJSON_GetObjectItemCaseSensitive(json, "parent_config");
    const cJSON *kept = cJSON_GetObjectItemCaseSensitive(json, "kept");
    const cJSON *whole = parent ? parent : json;
    if (json_size(whole, "model_config", "vocab_size", 1, INT32_MAX, &c->vocabulary, &ignored) ||
        json_size(whole, "model_config", "hidden_size", 1, INT32_MAX, &c->width, &ignored))
        c->vocabulary = c->width = 0;
    for (size_t i = 0; kept && i < c->about->sublayers && i < 2 * CONFIG_LAYERS_MAX; i++)
        c->removed[i] = true;
    for (const cJSON *e = kept ? kept->child : NULL; e; e = e->next)
        for (size_t i = 0; i < c->about->sublayers && i < 2 * CONFIG_LAYERS_MAX; i++)
            if (cJSON_IsString(e) && strcmp(e->valuestring, c->about->site_name[i]) == 0)
                c->removed[i] = false;
    cJSON_Delete(json);
}

/* *failed: lines that say FAIL. */
static int check_recording(const char *path, size_t *failed, status *st) {
    check c = {0};
    if (recording_open(path, &c.rec, st))
        return FAILED;
    c.about = recording_about_of(c.rec);
    read_config(&c);
    printf("%s\n", path);
    check_state(&c);
    int result = check_axes(&c, st);
    check_labels(&c);
    check_hash(&c, "model_sha256", c.about->model_sha256);
    check_hash(&c, "tokens_sha256", c.about->tokens_sha256);
    if (result == DONE)
        result = check_tokens(&c, st);
    if (result == DONE)
        result = check_hidden(&c, st);
    if (result == DONE)
        result = check_routing(&c, st);
    if (result == DONE)
        result = check_gradients(&c, st);
    if (result == DONE)
        result = check_nulls(&c, st);
    recording_close(c.rec);
    *failed += c.failed;
    return result;
}

int cmd_check(int argc, char **argv) {
    option_list files = {0};
    const option_spec options[] = {OPTION_QUIET, OPTION_VERBOSE, {0}};
    const positional_spec arguments[] = {
        {.name = "FILE", .value = &files, .help = "recordings", .many = true}, {0}};
    const command_spec spec = {
        .name = "check",
        .summary = "check every invariant of recordings, one line each",
        .options = options,
        .positionals = arguments,
        .notes = "A line begins with ok, FAIL, or -- for what is not recorded. Exit status 0: "
                 "nothing failed; 1: something did, or a recording is incomplete; 2: a file cannot "
                 "be read."};
    const int parsed = options_parse(&spec, argc, argv);
    if (parsed != OPTIONS_RUN)
        return parsed;
    status st;
    size_t failed = 0;
    int result = EXIT_DONE;
    for (size_t i = 0; i < files.count; i++)
        if (check_recording(files.item[i], &failed, &st))
            result = command_fail(&st);
    option_list_clear(&files);
    return result != EXIT_DONE ? result : failed ? EXIT_NO : EXIT_DONE;
}
