/* cmd_eval.c - `fathom eval`: the loss of a checkpoint over text or tokens.
 *
 * Windows may overlap; a token counts once, in the first window that reaches it, and only where the
 * window has a token before it. */
#include "probes/text_run.h"
#include "runtime/base/command.h"
#include "runtime/base/interrupt.h"
#include "runtime/base/log.h"
#include "runtime/base/output.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Loss and scored tokens of one sequence. */
typedef struct scored {
    double loss; /* sum, nats */
    uint64_t tokens;
} scored;

typedef struct evaluation {
    text_run run;
    scored *sequence; /* [run.sequences] */
    int64_t reached;  /* stream offset of the first token not in any window so far */
    uint64_t nonfinite;
} evaluation;

static int on_head(void *self, const batch *b, const head_view *view, status *st) {
    evaluation *e = self;
    int64_t bos = token_source_bos(e->run.source) >= 0;
    for (size_t i = 0; i < b->layout.sequences; i++) {
        size_t first = b->layout.start[i], end = b->layout.start[i + 1];
        scored *s = &e->sequence[b->first + i];
        for (size_t row = first; row + 1 < end; row++) {
            int64_t predicted = b->offset[i] + (int64_t)(row + 1 - first) - bos;
            if (predicted < e->reached)
                continue;
            s->loss += view->loss[row];
            s->tokens++;
            e->nonfinite += isfinite(view->loss[row]) ? 0 : 1;
        }
        e->reached = b->offset[i] + (int64_t)(end - first) - bos;
    }
    if (!interrupt_pending())
        return DONE;
    status_fail(st, "interrupted");
    return INTERRUPTED;
}

static int evaluate(evaluation *e, status *st) {
    e->sequence = mem_array(e->run.sequences, sizeof *e->sequence, "losses", st);
    if (!e->sequence)
        return FAILED;
    const observer watch = {.self = e, .on_head = on_head};
    batch b;
    uint64_t tokens = 0;
    int rc;
    progress_begin("eval", token_source_tokens(e->run.source), "tokens");
    while (!(rc = text_run_next(&e->run, &b, st)) && b.layout.sequences) {
        if ((rc = session_forward(e->run.session, &b, &watch, st)))
            break;
        progress_update(tokens += b.layout.rows, 0);
    }
    progress_end();
    return rc ? rc : session_finish(e->run.session, st);
}

/* Standard error of the token-weighted mean over sequences, the ratio estimator:
 * sqrt(n/(n-1) * sum_i (loss_i - mean * tokens_i)^2) / sum_i tokens_i. */
static double standard_error(const evaluation *e, double mean, double tokens, size_t *n) {
    double squares = 0;
    *n = 0;
    for (size_t i = 0; i < e->run.sequences; i++) {
        double residual = e->sequence[i].loss - mean * (double)e->sequence[i].tokens;
        squares += residual * residual;
        *n += e->sequence[i].tokens > 0;
    }
    return *n < 2 ? NAN : sqrt((double)*n / (double)(*n - 1) * squares) / tokens;
}

static void print_result(const evaluation *e, const run_options *options, FILE *out) {
    double loss = 0, tokens = 0;
    for (size_t i = 0; i < e->run.sequences; i++) {
        loss += e->sequence[i].loss;
        tokens += (double)e->sequence[i].tokens;
    }
    double mean = loss / tokens;
    size_t n;
    double error = standard_error(e, mean, tokens, &n);
    const token_options *o = &options->tokens;
    const char *tokenizer = token_source_tokenizer(e->run.source);
    int64_t bos = token_source_bos(e->run.source);
    fprintf(out, "model              %s\n", model_path(e->run.model));
    fprintf(out, "tokens_from        %s\n", o->text ? o->text : o->tokens);
    fprintf(out, "tokenizer          %s\n", tokenizer);
    fprintf(out, "context            %zu\n", token_source_context(e->run.source));
    if (o->stride)
        fprintf(out, "stride             %zu\n", o->stride);
    else
        fprintf(out, "stride             %s\n",
                o->sequences ? "even, no overlap" : "the context, no overlap");
    if (bos >= 0)
        fprintf(out, "bos                %" PRId64 "\n", bos);
    else
        fprintf(out, "bos                none\n");
    fprintf(out, "scored             %s\n",
            bos >= 0
                ? "every token once, in the first window that reaches it"
                : "every token once, in the first window that reaches it; not a window's first");
    fprintf(out, "sequences          %zu\n", e->run.sequences);
    fprintf(out, "tokens_scored      %.0f\n", tokens);
    fprintf(out, "loss               %.6f nats/token\n", mean);
    fprintf(out, "loss_error         %.6f nats/token, standard error over %zu sequences\n", error,
            n);
    if (strcmp(tokenizer, "bytes") == 0) {
        fprintf(out, "loss_per_byte      %.6f nats/byte\n", mean);
        fprintf(out, "bits_per_byte      %.6f\n", mean / log(2));
    }
    fprintf(out, "perplexity         %.6f per token\n", exp(mean));
}

int cmd_eval(int argc, char **argv) {
    run_options run = RUN_OPTIONS_DEFAULT;
    const char *path = NULL;
    const option_spec options[] = {
        OPTION_OUTPUT(&path), RUN_OPTIONS(&run), OPTION_QUIET, OPTION_VERBOSE, {0}};
    const positional_spec arguments[] = {RUN_FOLDER(&run), {0}};
    const command_spec spec = {
        .name = "eval",
        .summary = "mean loss and perplexity of a checkpoint over text or tokens",
        .options = options,
        .positionals = arguments,
        .notes = "With a stride below the context windows overlap; each token then counts once, in "
                 "the first window that reaches it, and so has at least context - stride tokens "
                 "before it. The standard error treats sequences as independent, which overlapping "
                 "or neighbouring ones are not quite."};
    const int parsed = options_parse(&spec, argc, argv);
    if (parsed != OPTIONS_RUN)
        return parsed;
    interrupt_install();
    status st;
    evaluation e = {.reached = INT64_MIN};
    output *out = NULL;
    int rc = text_run_open(&run, &e.run, &st);
    if (rc == DONE)
        rc = evaluate(&e, &st);
    if (rc == DONE && e.nonfinite)
        log_warn("%" PRIu64 " losses are NaN or Inf", e.nonfinite);
    if (rc == DONE)
        rc = output_open(path, &out, &st);
    if (rc == DONE) {
        print_result(&e, &run, output_stream(out));
        rc = output_commit(out, &st);
    }
    free(e.sequence);
    text_run_clear(&e.run);
    if (rc == INTERRUPTED)
        log_error("interrupted");
    return rc == DONE ? EXIT_DONE : rc == INTERRUPTED ? EXIT_INTERRUPTED : command_fail(&st);
}
