/* set_losses.c - see set_losses.h. The results file is text, one result a line:
 *
 *     # fathom 0.1.0 results of prune
 *     # identity SHA-256 of the configuration, the weight files' sizes and times, the tokens
 *     TEXT <tab> SET <tab> SEQUENCE <tab> LOSS
 *
 * TEXT 0 or 1, SET as units_text writes it, LOSS in hexadecimal, which is exact. A last line that
 * was cut off is dropped. */
#include "analyze/set_losses.h"

#include "analyze/prune_units.h"
#include "runtime/base/interrupt.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/version.h"

#include "probes/text_run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WORK_BYTES_MAX = 1 << 30 };

typedef struct entry {
    size_t text;
    bool *set;              /* [sublayers] */
    double *loss;           /* [sequences] */
    bool *known;            /* [sequences] */
    bool counted;           /* in set_losses_counted */
    size_t common;          /* with the base of the call at hand, in sublayers */
    depth_program *program; /* while the call runs */
} entry;

struct set_losses {
    set_losses_options o;
    const model_config *config;
    size_t sublayers; /* of any program, 2 * layers */
    depth_program *whole;
    session_limits limits;
    session *base, *variant;
    size_t *start; /* [limits.sequences + 1] of the batch at hand */
    entry **entry; /* [entries] */
    size_t entries, room;
    set_losses_count count;
    FILE *work;
    size_t results; /* lines in it */
    bool *no_set;   /* [sublayers] all false */
};

/* ---- entries ---- */

static entry *find_entry(const set_losses *l, size_t text, const bool *set) {
    for (size_t i = 0; i < l->entries; i++)
        if (l->entry[i]->text == text &&
            memcmp(l->entry[i]->set, set, l->sublayers * sizeof *set) == 0)
            return l->entry[i];
    return NULL;
}

static void entry_free(entry *e) {
    if (!e)
        return;
    free(e->set);
    free(e->loss);
    free(e->known);
    depth_program_free(e->program);
    free(e);
}

static entry *want_entry(set_losses *l, size_t text, const bool *set, status *st) {
    entry *e = find_entry(l, text, set);
    if (e)
        return e;
    if (l->entries == l->room) {
        size_t room = l->room ? 2 * l->room : 64;
        entry **wider = mem_array(room, sizeof *wider, "losses", st);
        if (!wider)
            return NULL;
        if (l->entries)
            memcpy(wider, l->entry, l->entries * sizeof *wider);
        free(l->entry);
        l->entry = wider;
        l->room = room;
    }
    const size_t n = l->o.text[text].sequences;
    e = mem_array(1, sizeof *e, "losses", st);
    if (!e)
        return NULL;
    e->text = text;
    e->set = mem_array(l->sublayers, sizeof *e->set, "losses", st);
    e->loss = mem_array(n, sizeof *e->loss, "losses", st);
    e->known = mem_array(n, sizeof *e->known, "losses", st);
    if (!e->set || !e->loss || !e->known) {
        entry_free(e);
        return NULL;
    }
    memcpy(e->set, set, l->sublayers * sizeof *set);
    return l->entry[l->entries++] = e;
}

/* Whether sequences [first, first + count) of an entry are known. */
static bool knows(const entry *e, size_t first, size_t count) {
    for (size_t i = first; i < first + count; i++)
        if (!e->known[i])
            return false;
    return true;
}

/* ---- the results file ---- */

static int identity(const set_losses *l, char hex[65], status *st) {
    const checkpoint *ck = model_checkpoint(l->o.m);
    const char *config = model_config_text(l->o.m);
    sha256 hash;
    sha256_init(&hash);
    sha256_add(&hash, config, strlen(config) + 1);
    for (size_t f = 0; f < checkpoint_files(ck); f++) {
        struct stat info;
        const char *path = checkpoint_file(ck, f);
        if (stat(path, &info))
            return status_fail(st, "%s: cannot be read: %s", path, strerror(errno));
        const int64_t about[] = {(int64_t)info.st_size, (int64_t)info.st_mtim.tv_sec,
                                 (int64_t)info.st_mtim.tv_nsec};
        sha256_add(&hash, about, sizeof about);
    }
    const size_t numbers[] = {(size_t)l->o.removal, l->config->routing_heads};
    sha256_add(&hash, numbers, sizeof numbers);
    for (size_t t = 0; t < TEXTS; t++) {
        char tokens[65];
        text_windows_hash(&l->o.text[t], tokens);
        sha256_add(&hash, tokens, 64);
    }
    sha256_finish(&hash, hex);
    return DONE;
}

static int set_of_text(const set_losses *l, char *text, bool *set, status *st) {
    memset(set, 0, l->sublayers * sizeof *set);
    char *state = NULL;
    for (char *name = strtok_r(text, "+", &state); name; name = strtok_r(NULL, "+", &state)) {
        const char *one = name;
        const option_list item = {1, &one};
        if (strcmp(name, "-") != 0 && units_parse(&item, "unit", l->config, set, st))
            return FAILED;
    }
    return DONE;
}

/* One line of results, which it may change. */
static int take_line(set_losses *l, char *line, bool *set, status *st) {
    char *field[4], *state = NULL, *end;
    for (size_t i = 0; i < 4; i++)
        if (!(field[i] = strtok_r(i ? NULL : line, "\t", &state)))
            return status_fail(st, "expected four fields");
    size_t text = strtoul(field[0], NULL, 10), sequence = strtoul(field[2], NULL, 10);
    if (text >= TEXTS || sequence >= l->o.text[text].sequences)
        return status_fail(st, "text %zu, sequence %zu: there is none", text, sequence);
    if (set_of_text(l, field[1], set, st))
        return FAILED;
    entry *e = want_entry(l, text, set, st);
    if (!e)
        return FAILED;
    e->loss[sequence] = strtod(field[3], &end);
    if (end == field[3] || *end)
        return status_fail(st, "\"%.40s\": a number expected", field[3]);
    e->known[sequence] = true;
    return DONE;
}

static int take_lines(set_losses *l, char *text, const char *hex, status *st) {
    const char *path = l->o.work_path;
    size_t number = 0;
    char *state = NULL;
    bool ours = false, *set = mem_array(l->sublayers, sizeof *set, "a set", st);
    int rc = set ? DONE : FAILED;
    for (char *line = strtok_r(text, "\n", &state); line && !rc;
         line = strtok_r(NULL, "\n", &state)) {
        number++;
        if (strncmp(line, "# identity ", 11) == 0)
            ours = strcmp(line + 11, hex) == 0;
        if (*line == '#')
            continue;
        if (!ours)
            break;
        if (take_line(l, line, set, st))
            rc = status_prefix(st, "%s: line %zu", path, number);
        l->results++;
    }
    free(set);
    if (!rc && !ours)
        return status_fail(st,
                           "%s: belongs to another model, text or removal; run with the same ones, "
                           "or remove it and begin anew without --resume",
                           path);
    if (!rc)
        log_note("%s: %zu results are there already", path, l->results);
    return rc;
}

static int resume_file(set_losses *l, const char *hex, status *st) {
    const char *path = l->o.work_path;
    char *text = NULL;
    size_t bytes;
    if (text_read(path, WORK_BYTES_MAX, &text, &bytes, st))
        return status_prefix(st, "--resume");
    while (bytes && text[bytes - 1] != '\n')
        bytes--;
    int rc = bytes ? DONE : status_fail(st, "%s: empty; begin anew without --resume", path);
    if (!rc) {
        text[bytes - 1] = '\0';
        rc = take_lines(l, text, hex, st);
    }
    free(text);
    if (rc)
        return rc;
    l->work = fopen(path, "r+e");
    if (!l->work || ftruncate(fileno(l->work), (off_t)bytes) || fseek(l->work, 0, SEEK_END))
        return status_fail(st, "%s: cannot be continued: %s", path, strerror(errno));
    return DONE;
}

static int flush_work(set_losses *l, status *st) {
    errno = 0;
    if (fflush(l->work) || ferror(l->work))
        return status_fail(st,
                           "%s: cannot be written: %s; the results in it are kept, --resume goes "
                           "on from them",
                           l->o.work_path, errno ? strerror(errno) : "an earlier write failed");
    return DONE;
}

static int open_work(set_losses *l, status *st) {
    char hex[65];
    if (!l->o.work_path)
        return DONE;
    if (identity(l, hex, st))
        return FAILED;
    if (l->o.resume)
        return resume_file(l, hex, st);
    l->work = fopen(l->o.work_path, "wxe");
    if (!l->work && errno == EEXIST)
        return status_fail(st,
                           "%s: results of an interrupted run: --resume goes on from them; remove "
                           "the file to begin anew",
                           l->o.work_path);
    if (!l->work)
        return status_fail(st, "%s: cannot be written: %s", l->o.work_path, strerror(errno));
    fprintf(l->work, "# fathom %s results of prune\n# identity %s\n", FATHOM_VERSION, hex);
    return flush_work(l, st);
}

static int keep_results(set_losses *l, const entry *e, size_t first, size_t count, status *st) {
    if (!l->work)
        return DONE;
    char *name = units_text(l->config, e->set, st);
    if (!name)
        return FAILED;
    for (size_t i = first; i < first + count; i++)
        fprintf(l->work, "%zu\t%s\t%zu\t%a\n", e->text, name, i, e->loss[i]);
    l->results += count;
    free(name);
    return flush_work(l, st);
}

/* ---- making ---- */

static int make(set_losses *l, status *st) {
    const set_losses_options *o = &l->o;
    size_t longest = 0, sequences = 0;
    for (size_t t = 0; t < TEXTS; t++) {
        const text_windows *w = &o->text[t];
        longest = w->sequences && w->longest > longest ? w->longest : longest;
        sequences = w->sequences > sequences ? w->sequences : sequences;
    }
    l->config = model_configuration(o->m);
    l->sublayers = 2 * l->config->layers;
    if (depth_program_build(l->config, NULL, &l->whole, st))
        return FAILED;
    l->limits = run_limits(o->m, o->batch, longest, sequences);
    session_limits keep;
    size_t bytes;
    do {
        keep = l->limits;
        keep.keep = true;
        bytes = session_bytes(o->m, l->whole, &keep) + session_bytes(o->m, l->whole, &l->limits);
    } while (run_limits_shrink(o->m, &l->limits, o->batch, bytes));
    log_note("computing on %s; memory of a batch of %zu sequences: about %s",
             model_kernels(o->m)->describe(model_backend(o->m)), l->limits.sequences,
             bytes_text(bytes).text);
    l->start = mem_array(l->limits.sequences + 1, sizeof *l->start, "sequences", st);
    l->no_set = mem_array(l->sublayers, sizeof *l->no_set, "a set", st);
    if (!l->start || !l->no_set || session_create(o->m, l->whole, &keep, &l->base, st) ||
        session_create(o->m, l->whole, &l->limits, &l->variant, st))
        return FAILED;
    return open_work(l, st);
}

int set_losses_create(const set_losses_options *options, set_losses **out, status *st) {
    *out = NULL;
    set_losses *l = mem_array(1, sizeof *l, "losses", st);
    if (!l)
        return FAILED;
    l->o = *options;
    if (make(l, st)) {
        set_losses_free(l);
        return FAILED;
    }
    *out = l;
    return DONE;
}

void set_losses_free(set_losses *l) {
    if (!l)
        return;
    if (l->work)
        fclose(l->work);
    if (l->work && !l->results)
        unlink(l->o.work_path);
    for (size_t i = 0; i < l->entries; i++)
        entry_free(l->entry[i]);
    free(l->entry);
    free(l->start);
    free(l->no_set);
    session_free(l->variant);
    session_free(l->base);
    depth_program_free(l->whole);
    free(l);
}

void set_losses_remove_file(set_losses *l) {
    if (l->work)
        unlink(l->o.work_path);
}

/* ---- computing ---- */

/* Where the head's losses go. */
typedef struct receiver {
    entry *e;
    size_t first; /* sequence of the text */
} receiver;

static int on_head(void *self, const batch *b, const head_view *view, status *st) {
    (void)st;
    const receiver *r = self;
    for (size_t i = 0; i < b->layout.sequences; i++) {
        double sum = 0;
        for (size_t row = b->layout.start[i]; row + 1 < b->layout.start[i + 1]; row++)
            sum += (double)view->loss[row];
        r->e->loss[r->first + i] = sum;
        r->e->known[r->first + i] = true;
    }
    return DONE;
}

/* One batch of one set, by itself or resumed from the base. */
static int run_set(set_losses *l, entry *e, bool resumed, const batch *b, status *st) {
    receiver r = {e, b->first};
    const observer watch = {.self = &r, .on_head = on_head};
    if (interrupt_pending()) {
        status_fail(st, "interrupted%s",
                    l->results ? "; results are kept, --resume goes on from them" : "");
        return INTERRUPTED;
    }
    session *s = resumed ? l->variant : l->base;
    int rc = resumed ? session_use(s, e->program, st) : DONE;
    if (!rc)
        rc = resumed ? session_resume(s, l->base, e->common, b, &watch, st)
                     : session_forward(s, b, &watch, st);
    if (!rc)
        rc = session_finish(s, st);
    return rc ? rc : keep_results(l, e, b->first, b->layout.sequences, st);
}

static batch batch_at(set_losses *l, const text_windows *w, size_t first) {
    size_t count =
        w->sequences - first < l->limits.sequences ? w->sequences - first : l->limits.sequences;
    for (size_t i = 0; i <= count; i++)
        l->start[i] = w->start[first + i] - w->start[first];
    return (batch){.layout = {.sequences = count, .rows = l->start[count], .start = l->start},
                   .id = w->id + w->start[first],
                   .first = first,
                   .offset = w->offset + first};
}

/* All that is missing of entries `asked` [count], the first of which is the base. */
static int run_all(set_losses *l, entry *const *asked, size_t count, status *st) {
    const text_windows *w = &l->o.text[asked[0]->text];
    int rc = session_use(l->base, asked[0]->program, st);
    progress_begin("losses", (uint64_t)w->sequences * count, "sequences");
    for (size_t first = 0; first < w->sequences && !rc; first += l->limits.sequences) {
        batch b = batch_at(l, w, first);
        bool missing = false;
        for (size_t i = 0; i < count; i++)
            missing = missing || !knows(asked[i], first, b.layout.sequences);
        if (missing)
            rc = run_set(l, asked[0], false, &b, st);
        for (size_t i = 1; i < count && !rc; i++) {
            if (!knows(asked[i], first, b.layout.sequences))
                rc = run_set(l, asked[i], true, &b, st);
            progress_update((uint64_t)(first * count + i * b.layout.sequences), 0);
        }
    }
    progress_end();
    return rc;
}

static void add_counts(set_losses *l, entry *const *asked, size_t count) {
    const double n = (double)l->o.text[asked[0]->text].sequences;
    bool any = false;
    for (size_t i = 0; i < count; i++) {
        entry *e = asked[i];
        if (e->counted)
            continue;
        any = e->counted = true;
        l->count.sets++;
        l->count.naive += n * (double)e->program->sublayers;
        if (i)
            l->count.shared += n * (double)(e->program->sublayers - e->common);
    }
    if (any)
        l->count.shared += n * (double)asked[0]->program->sublayers;
}

static int build(set_losses *l, entry *e, const entry *base, status *st) {
    const removed_set removed = {e->set, l->o.removal};
    if (depth_program_build(l->config, &removed, &e->program, st))
        return FAILED;
    e->common = depth_program_common(e->program, base->program);
    return DONE;
}

/* The base and the sets that are not wholly known and counted, each once. */
static int list_entries(set_losses *l, size_t text, const bool *base, const bool *const *set,
                        size_t count, entry **asked, size_t *listed, status *st) {
    if (!(asked[0] = want_entry(l, text, base ? base : l->no_set, st)))
        return FAILED;
    *listed = 1;
    for (size_t i = 0; i < count; i++) {
        entry *e = want_entry(l, text, set[i], st);
        if (!e)
            return FAILED;
        bool there = e->counted && knows(e, 0, l->o.text[text].sequences);
        for (size_t k = 0; k < *listed && !there; k++)
            there = asked[k] == e;
        if (!there)
            asked[(*listed)++] = e;
    }
    return DONE;
}

int set_losses_find(set_losses *l, size_t text, const bool *base, const bool *const *set,
                    size_t count, status *st) {
    size_t listed = 0;
    entry **asked = mem_array(count + 1, sizeof *asked, "losses", st);
    int rc = asked ? list_entries(l, text, base, set, count, asked, &listed, st) : FAILED;
    bool complete = !rc && asked[0]->counted && listed == 1;
    for (size_t i = 0; i < listed && !rc && !complete; i++)
        rc = build(l, asked[i], i ? asked[0] : asked[i], st);
    if (!rc && !complete) {
        rc = run_all(l, asked, listed, st);
        if (!rc)
            add_counts(l, asked, listed);
        /* They must not keep programs that are freed below. */
        status ignored;
        if ((session_use(l->base, l->whole, &ignored) ||
             session_use(l->variant, l->whole, &ignored)) &&
            !rc) {
            *st = ignored;
            rc = FAILED;
        }
    }
    for (size_t i = 0; i < listed; i++) {
        depth_program_free(asked[i]->program);
        asked[i]->program = NULL;
    }
    free(asked);
    return rc;
}

const double *set_losses_of(const set_losses *l, size_t text, const bool *set) {
    const entry *e = find_entry(l, text, set);
    return e && e->counted ? e->loss : NULL;
}

set_losses_count set_losses_counted(const set_losses *l) {
    return l->count;
}

session_limits set_losses_limits(const set_losses *l) {
    return l->limits;
}
