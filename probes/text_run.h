/* text_run.h - a model, tokens and a session, opened together and run batch by batch.
 *
 *     run_options options = RUN_OPTIONS_DEFAULT;
 *     const option_spec table[] = {RUN_OPTIONS(&options), …, {0}};
 *     text_run run;
 *     if (text_run_open(&options, &run, st)) goto end;
 *     while (!(rc = text_run_next(&run, &b, st)) && b.layout.sequences)
 *         rc = session_forward(run.session, &b, &observer, st);
 *     end: text_run_clear(&run);
 */
#ifndef FATHOM_TEXT_RUN_H
#define FATHOM_TEXT_RUN_H

#include "datasets/token_source.h"
#include "runtime/session.h"

typedef struct run_options {
    const char *dir; /* checkpoint folder */
    token_options tokens;
    size_t threads, routing_heads;
    const char *device, *dtype;
    bool backward, keep; /* the session's limits */
} run_options;

#define RUN_OPTIONS_DEFAULT                                                                        \
    { .tokens = TOKEN_OPTIONS_DEFAULT, .device = "auto", .dtype = "fp32" }

/* The option table entries of every command that runs a model over tokens. */
#define RUN_OPTIONS(o)                                                                             \
    TOKEN_OPTIONS(&(o)->tokens),                                                                   \
        {.name = "routing-heads",                                                                  \
         .kind = OPTION_SIZE,                                                                      \
         .value = &(o)->routing_heads,                                                             \
         .max = 1 << 12,                                                                           \
         .metavar = "N",                                                                           \
         .help = "routing heads, where config.json lacks attnres_num_heads; 0 = as it says"},      \
        {.name = "device",                                                                         \
         .kind = OPTION_TEXT,                                                                      \
         .value = &(o)->device,                                                                    \
         .metavar = "NAME",                                                                        \
         .help =                                                                                   \
             "where to compute: auto, cpu, cuda or cuda:N; auto = the GPU where one can be used"}, \
        {.name = "dtype",                                                                          \
         .kind = OPTION_TEXT,                                                                      \
         .value = &(o)->dtype,                                                                     \
         .metavar = "NAME",                                                                        \
         .help = "numbers to compute in: fp32, or bf16 on the GPU"},                               \
        OPTION_THREADS(&(o)->threads)

/* Batches of `asked` sequences of up to `longest` tokens, or, where that is 0, of as many as keep
 * the model's device busy; no more than there are. */
session_limits run_limits(const model *m, size_t asked, size_t longest, size_t sequences);
/* Whether `bytes` of memory for a batch were more than the device has left, so that the limits were
 * made smaller; never where the user `asked` for a size. */
bool run_limits_shrink(const model *m, session_limits *limits, size_t asked, size_t bytes);

typedef struct text_run {
    model *model;
    depth_program *program;
    token_source *source;
    session *session;
    session_limits limits;
    size_t sequences;    /* in all */
    size_t next;         /* first sequence of the next batch */
    struct text_batch {  /* of the current batch and the one before, in turn: results may come late
                          */
        int32_t *id;     /* [limits.rows] */
        size_t *start;   /* [limits.sequences + 1] */
        int64_t *offset; /* [limits.sequences] of each sequence in its stream */
    } memory[2];
    size_t turn;
} text_run;

/* Opens everything `options` name and says on stderr what computes. A batch is
 * options->tokens.batch sequences, or, where that is 0, as many tokens as keep the device busy,
 * fewer where the session would take more than the memory it has left. A context over the model's
 * maximum is warned about. `run` can be cleared after a failure too. */
int text_run_open(const run_options *options, text_run *run, status *st) MUST_USE;
void text_run_clear(text_run *run);

/* The next sequences, in order, valid until the call after the next; b->layout.sequences is 0 after
 * the last. INTERRUPTED when a signal came. */
int text_run_next(text_run *run, batch *b, status *st) MUST_USE;

#endif
