/* report.h - what `fathom report` works on: models, and the steps that lead from them to a page.
 *
 * A step is one command of fathom. Its command line is the caption of what it makes, and the key by
 * which the next run knows whether it has to be done again. In the folder OUT:
 *
 *     OUT/index.html          the page
 *     OUT/MODEL/              recording.h5, tables, figures/ of one model
 *     OUT/together/           the same of all models together
 *     OUT/.report/MODEL.STEP  what a step read, wrote and said: its stamp
 *
 * Everything here is owned by the report and freed by report_clear. */
#ifndef FATHOM_REPORT_H
#define FATHOM_REPORT_H

#include "runtime/base/options.h"
#include "runtime/base/status.h"

#include <stdio.h>

/* Texts, each owned; `item` ends with NULL, so that it can be an argv. */
typedef struct text_list {
    size_t count;
    char **item;
} text_list;

/* Adds a copy. */
int text_list_add(text_list *list, const char *text, status *st) MUST_USE;
void text_list_clear(text_list *list);
/* printf into new memory, to be freed; NULL with `st` filled. */
char *text_make(status *st, const char *format, ...) PRINTF_LIKE(2, 3) MUST_USE;

#define TOGETHER_FOLDER "together"
enum { REPORT_FILE_MAX = 1 << 28 }; /* of a file that is held in memory, in bytes */

typedef struct report_options {
    option_list dirs;
    const char *out, *text, *tokens, *bos, *device, *dtype;
    size_t context, sequences, stride, nulls, threads, routing_heads;
    uint64_t seed;
    bool no_gradients, force, keep_going;
    bool seed_given, stride_given;
} report_options;

typedef struct report_model {
    const char *dir; /* as the user wrote it */
    char *name;      /* of its folder in OUT; no two are alike */
    char *info;      /* what `fathom info` prints; NULL: it failed */
    char *why;       /* its message then */
    bool routed;
} report_model;

typedef enum step_each { EACH_MODEL, EACH_ROUTED, TOGETHER } step_each;

typedef struct step_kind {
    const char *name;
    step_each each; /* EACH_OTHER: every model but the first; ONCE: where there are several */
    const char *words[16]; /* the command line: see report_steps.c */
    const char *keeps;     /* file in the model's folder for what it prints */
    const char *part;      /* of a step that draws: heading of its figures on the page */
    const char *section;   /* done only where some figure needs this section */
} step_kind;

typedef enum step_state {
    STEP_WAITS,
    STEP_DONE,
    STEP_KEPT,     /* up to date */
    STEP_EMPTY,    /* its tables hold no figure */
    STEP_FAILED,   /* `said` has the reason */
    STEP_LEFT_OUT, /* what it reads was not made; `said` names it */
} step_state;

typedef struct report_step {
    const step_kind *kind;
    const report_model *model; /* NULL: of all */
    step_state state;
    text_list argv;
    char *command;   /* argv as a caption, without what changes no result */
    char *output;    /* file or folder that it writes; NULL: prints only */
    text_list reads; /* files */
    text_list files; /* that it wrote, below OUT */
    text_list said;  /* "error: …", "warning: …", "note: …" */
} report_step;

typedef struct report {
    report_options options;
    size_t models, steps;
    report_model *model;
    report_step *step;
} report;

/* ---- report_models.c ---- */

/* Names the models of the options, and makes the folders of everything. */
int report_prepare(report *r, status *st) MUST_USE;
/* Reads what each model is before the first long step. One that cannot be read is an error, or is
 * left out with --keep-going. */
int report_read_models(report *r, status *st) MUST_USE;

/* ---- report_steps.c ---- */

extern const step_kind step_kinds[];
extern const size_t step_kind_count;

/* The steps of the models that could be read, in running order. */
int report_plan(report *r, status *st) MUST_USE;
/* Fills argv, command, output and reads from what the steps before have made; STEP_LEFT_OUT where
 * something is missing. */
int report_expand(report *r, report_step *s, status *st) MUST_USE;
bool step_draws(const report_step *s);
/* The name of its folder in OUT. NULL: of all together. */
const char *folder_of(const report_model *model);
/* Whether what it makes is there. */
bool step_made(const report_step *s);
/* The step that writes FILE of `model`, made or not; NULL: none does. */
const report_step *report_producer(const report *r, const report_model *model, const char *file);
void report_clear(report *r);

/* ---- report_run.c ---- */

/* Runs one command line, and gives what it printed (to be freed) and said. Returns DONE with its
 * exit status in *code. */
int report_command(const report *r, text_list *argv, int *code, char **printed, text_list *said,
                   status *st) MUST_USE;
/* Does one expanded step where its stamp does not say that it is up to date. The outcome is in
 * s->state; FAILED only where the report itself cannot go on; INTERRUPTED. */
int report_run_step(const report *r, report_step *s, status *st) MUST_USE;
/* The first error of `said`, else its first warning, else "". */
const char *said_why(const text_list *said);

/* ---- report_stamp.c ---- */

/* To be freed. */
char *stamp_path(const report *r, const report_step *s, status *st) MUST_USE;
/* What a stamp must begin with now: version, command line, size and time of what is read. To be
 * freed. */
char *stamp_head(const report_step *s, status *st) MUST_USE;
/* Reads the stamp of `s` into files and said. *fresh: it begins with `head` and what was written is
 * still there. */
int stamp_read(const report *r, report_step *s, const char *head, bool *fresh, status *st) MUST_USE;
int stamp_write(const report *r, const report_step *s, const char *head, status *st) MUST_USE;
void stamp_remove(const report *r, const report_step *s);

/* ---- report_page.c, report_summary.c ---- */

/* Writes OUT/index.html. */
int report_page(const report *r, status *st) MUST_USE;
/* The table of models and numbers, as html. */
int report_summary(FILE *out, const report *r, status *st) MUST_USE;

#endif
