/* cmd_diff.c - `fathom diff`: two recordings, dataset by dataset, against bounds. */
#include "probes/dataset_diff.h"
#include "runtime/base/command.h"
#include "runtime/base/log.h"
#include "runtime/base/options.h"

#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Between kinds of device in fp32: a few times what the tests allow each against float64. */
static const double DEVICES_ABSOLUTE = 1e-4, DEVICES_RELATIVE = 1e-3;

typedef struct bound {
    char name[96]; /* a glob */
    double absolute, relative;
    bool used;
} bound;

typedef struct settings {
    const char *path[2];
    option_list bounds;
    double absolute, relative;
    bool common, other_tokens;
} settings;

typedef struct diff {
    const settings *settings;
    recording *rec[2];
    bound *bound; /* [bounds] */
    size_t bounds;
    double absolute, relative; /* where no bound matches */
    uint64_t over;             /* datasets */
    size_t seen;
} diff;

/* ---- bounds ---- */

static int read_real(const char *text, const char *item, double *value, status *st) {
    char *end;
    errno = 0;
    *value = strtod(text, &end);
    if (end == text || *end || errno == ERANGE || !(*value >= 0) || isinf(*value))
        return status_fail(st, "--bound %s: '%s' is no number of at least 0", item, text);
    return DONE;
}

/* The option's commas have cut NAME=ABS,REL in two: an item without '=' is the REL of the one
 * before it. */
static int read_bounds(diff *d, status *st) {
    const option_list *list = &d->settings->bounds;
    bool open = false; /* the last bound has no REL yet */
    d->bound = mem_array(list->count, sizeof *d->bound, "bounds", st);
    if (!d->bound)
        return FAILED;
    for (size_t i = 0; i < list->count; i++) {
        const char *item = list->item[i], *equals = strchr(item, '=');
        if (!equals && !open)
            return status_fail(st, "--bound %s: expected NAME=ABS,REL", item);
        if (!equals) {
            if (read_real(item, item, &d->bound[d->bounds - 1].relative, st))
                return FAILED;
            open = false;
            continue;
        }
        bound *b = &d->bound[d->bounds++];
        size_t length = (size_t)(equals - item);
        if (length == 0 || length >= sizeof b->name)
            return status_fail(st, "--bound %s: expected NAME=ABS,REL, NAME of 1 to %zu bytes",
                               item, sizeof b->name - 1);
        memcpy(b->name, item, length);
        if (read_real(equals + 1, item, &b->absolute, st))
            return FAILED;
        open = true;
    }
    return DONE;
}

/* The last bound whose name matches, or the general one. */
static bound bound_of(diff *d, const char *name) {
    bound found = {.absolute = d->absolute, .relative = d->relative};
    for (size_t i = 0; i < d->bounds; i++)
        if (fnmatch(d->bound[i].name, name, 0) == 0) {
            d->bound[i].used = true;
            found = d->bound[i];
        }
    return found;
}

/* ---- attributes ---- */

static int check_tokens(const diff *d, status *st) {
    const recording_about *a = recording_about_of(d->rec[0]), *b = recording_about_of(d->rec[1]);
    bool known = *a->tokens_sha256 && *b->tokens_sha256;
    if (!known || strcmp(a->tokens_sha256, b->tokens_sha256) == 0 || d->settings->other_tokens)
        return DONE;
    return status_fail(st,
                       "%s: tokens_sha256 %.12s…, expected %.12s… as in %s: other tokens; "
                       "--allow-different-tokens compares them all the same",
                       b->path, b->tokens_sha256, a->tokens_sha256, a->path);
}

static void see_text(const char *name, const char *a, const char *b) {
    if (strcmp(a, b) != 0)
        printf("note  attribute %s: %.80s | %.80s\n", name, a, b);
}

/* Not counted: what a recording says of its making does not make its numbers differ. */
static void show_attributes(const diff *d) {
    const recording_about *a = recording_about_of(d->rec[0]), *b = recording_about_of(d->rec[1]);
    see_text("model_sha256", a->model_sha256, b->model_sha256);
    see_text("residual_mode", a->residual_mode, b->residual_mode);
    see_text("tokens_sha256", a->tokens_sha256, b->tokens_sha256);
    see_text("tokenizer", a->tokenizer, b->tokenizer);
    see_text("device", a->device, b->device);
    see_text("compute_dtype", a->compute_dtype, b->compute_dtype);
    see_text("weights_dtype", a->weights_dtype, b->weights_dtype);
    if (a->bos != b->bos)
        printf("note  attribute bos: %" PRId64 " | %" PRId64 "\n", a->bos, b->bos);
    if (a->seed != b->seed)
        printf("note  attribute seed: %" PRIu64 " | %" PRIu64 "\n", a->seed, b->seed);
    if (a->skip_first != b->skip_first)
        printf("note  attribute skip_first: %zu | %zu\n", a->skip_first, b->skip_first);
    if (a->complete != b->complete)
        printf("note  attribute complete: %d | %d\n", a->complete, b->complete);
}

/* The kind of device: "cuda" of "cuda:0, NVIDIA H200, …". */
static size_t kind_length(const recording_about *about) {
    return strcspn(about->device, ":, ");
}

/* Without bounds of the user's, two kinds of device need not agree to the last bit. */
static void choose_bounds(diff *d) {
    const recording_about *a = recording_about_of(d->rec[0]), *b = recording_about_of(d->rec[1]);
    const settings *chosen = d->settings;
    bool given = chosen->absolute > 0 || chosen->relative > 0 || d->bounds > 0;
    bool same =
        kind_length(a) == kind_length(b) && strncmp(a->device, b->device, kind_length(a)) == 0;
    bool fp32 = strcmp(a->compute_dtype, "fp32") == 0 && strcmp(b->compute_dtype, "fp32") == 0;
    d->absolute = chosen->absolute;
    d->relative = chosen->relative;
    if (given || same || !fp32)
        return;
    d->absolute = DEVICES_ABSOLUTE;
    d->relative = DEVICES_RELATIVE;
    printf("note  two kinds of device in fp32: allowed %g + %g of the larger\n", d->absolute,
           d->relative);
}

/* ---- datasets ---- */

static void put_place(const diff *d, const char *name, const dataset_diff *x, const size_t *at) {
    char place[256];
    if (x->rank == 0)
        return;
    dataset_place(d->rec[0], name, x->rank, at, place, sizeof place);
    printf(" at %s", place);
}

static void put_line(const diff *d, const char *name, const dataset_diff *x, const bound *b) {
    printf("%-4s  %s", x->over ? "OVER" : "ok", name);
    if (x->absolute > 0) {
        printf(": largest absolute difference %.3g", x->absolute);
        put_place(d, name, x, x->at_absolute);
        printf("; relative %.3g", x->relative);
        put_place(d, name, x, x->at_relative);
    } else if (x->over == 0) {
        printf(": equal");
    } else if (x->text) {
        printf(": texts differ");
    }
    if (x->nan) {
        printf("; %" PRIu64 " NaN in one file only, first", x->nan);
        put_place(d, name, x, x->at_nan);
    }
    if (x->over) {
        printf("; %" PRIu64 " of %" PRIu64 " over, first", x->over, x->compared);
        put_place(d, name, x, x->at_over);
    }
    if (!x->text && (b->absolute > 0 || b->relative > 0))
        printf(" (allowed %.3g + %.3g of the larger)", b->absolute, b->relative);
    putchar('\n');
}

static int see_both(diff *d, const char *name, status *st) {
    dataset_diff x;
    bound b = bound_of(d, name);
    if (dataset_diff_run(d->rec[0], d->rec[1], name, b.absolute, b.relative, &x, st))
        return FAILED;
    d->over += x.shapes || x.over;
    if (x.shapes)
        printf("OVER  %s: %s | %s\n", name, x.shape[0], x.shape[1]);
    else
        put_line(d, name, &x, &b);
    return DONE;
}

static void see_one(diff *d, int side, const char *name) {
    d->over += !d->settings->common;
    printf("%-4s  %s: only in %s\n", d->settings->common ? "--" : "OVER", name,
           d->settings->path[side]);
}

static int see_datasets(diff *d, status *st) {
    int rc = DONE;
    for (int side = 0; !rc && side < 2; side++) {
        char **name;
        size_t names;
        rc = dataset_names(d->rec[side], &name, &names, st);
        for (size_t i = 0; !rc && i < names; i++) {
            bool both = h5_has(recording_file(d->rec[!side]), name[i]);
            if (!both)
                see_one(d, side, name[i]);
            else if (side == 0)
                rc = see_both(d, name[i], st);
            d->seen += !both || side == 0;
        }
        free(name);
    }
    for (size_t i = 0; !rc && i < d->bounds; i++)
        if (!d->bound[i].used)
            rc = status_fail(st, "--bound %s: matches no dataset that both recordings have",
                             d->bound[i].name);
    return rc;
}

static int run(const settings *chosen, bool *over, status *st) {
    diff d = {.settings = chosen};
    int rc = read_bounds(&d, st);
    for (int i = 0; !rc && i < 2; i++) {
        rc = recording_open(chosen->path[i], &d.rec[i], st);
        if (!rc && !recording_about_of(d.rec[i])->complete)
            log_warn("%s: incomplete: it holds finished sequences only", chosen->path[i]);
    }
    if (!rc)
        rc = check_tokens(&d, st);
    if (!rc) {
        show_attributes(&d);
        choose_bounds(&d);
        rc = see_datasets(&d, st);
    }
    if (!rc)
        printf("%" PRIu64 " of %zu datasets over the bounds\n", d.over, d.seen);
    *over = d.over > 0;
    recording_close(d.rec[0]);
    recording_close(d.rec[1]);
    free(d.bound);
    return rc;
}

int cmd_diff(int argc, char **argv) {
    settings chosen = {0};
    const option_spec options[] = {
        {.name = "abs",
         .kind = OPTION_REAL,
         .value = &chosen.absolute,
         .max = 1e300,
         .metavar = "X",
         .help = "absolute difference allowed everywhere"},
        {.name = "rel",
         .kind = OPTION_REAL,
         .value = &chosen.relative,
         .max = 1e300,
         .metavar = "X",
         .help = "relative difference allowed everywhere, added to the absolute one"},
        {.name = "bound",
         .kind = OPTION_LIST,
         .value = &chosen.bounds,
         .metavar = "NAME=ABS,REL",
         .help = "both for the datasets that NAME matches, such as 'hidden/*=1e-5,1e-4'; the last "
                 "that matches counts"},
        {.name = "common",
         .kind = OPTION_FLAG,
         .value = &chosen.common,
         .help = "a dataset that only one of them has is listed, but is not over"},
        {.name = "allow-different-tokens",
         .kind = OPTION_FLAG,
         .value = &chosen.other_tokens,
         .help = "compare recordings of different tokens"},
        OPTION_QUIET,
        OPTION_VERBOSE,
        {0}};
    const positional_spec arguments[] = {
        {.name = "A", .value = &chosen.path[0], .help = "a recording"},
        {.name = "B", .value = &chosen.path[1], .help = "a recording of the same tokens"},
        {0}};
    const command_spec spec = {
        .name = "diff",
        .summary = "largest difference of two recordings by dataset, against bounds",
        .options = options,
        .positionals = arguments,
        .notes =
            "A number is within bounds where |a - b| <= ABS + REL * max(|a|, |b|); with both 0 "
            "it must be equal. Without any bound, recordings of two kinds of device (cpu, cuda) in "
            "fp32 are allowed 1e-4 + 1e-3. NaN agrees with NaN alone. Attributes that differ are "
            "notes and "
            "do not count; history, title, paths and the version are not looked at. Exit "
            "status 0: all within; 1: something is over; 2: a file cannot be read."};
    const int parsed = options_parse(&spec, argc, argv);
    if (parsed != OPTIONS_RUN)
        return parsed;
    status st;
    bool over = false;
    int rc = run(&chosen, &over, &st);
    option_list_clear(&chosen.bounds);
    return rc ? command_fail(&st) : over ? EXIT_NO : EXIT_DONE;
}
