#include "probes/text_run.h"
#include "runtime/base/interrupt.h"
#include "runtime/base/log.h"

#include <stdlib.h>

session_limits run_limits(const model *m, size_t asked, size_t longest, size_t sequences) {
    size_t chosen = asked ? asked : model_kernels(m)->rows / longest;
    if (chosen > sequences)
        chosen = sequences;
    if (chosen == 0)
        chosen = 1;
    return (session_limits){.rows = chosen * longest, .sequences = chosen, .longest = longest};
}

bool run_limits_shrink(const model *m, session_limits *limits, size_t asked, size_t bytes) {
    if (asked || limits->sequences == 1 || bytes <= model_kernels(m)->memory_left(model_backend(m)))
        return false;
    limits->sequences = (limits->sequences + 1) / 2;
    limits->rows = limits->sequences * limits->longest;
    return true;
}

/* Takes smaller batches where memory asks for it and the user did not say, and says what it is. */
static void fit_memory(const run_options *options, text_run *run) {
    const kernels *k = model_kernels(run->model);
    session_limits *limits = &run->limits;
    while (run_limits_shrink(run->model, limits, options->tokens.batch,
                             session_bytes(run->model, run->program, limits)))
        continue;
    log_note("computing on %s; memory of a batch of %zu sequences: about %s, of %s",
             k->describe(model_backend(run->model)), limits->sequences,
             bytes_text(session_bytes(run->model, run->program, limits)).text,
             bytes_text(k->memory_left(model_backend(run->model))).text);
}

int text_run_open(const run_options *options, text_run *run, status *st) {
    *run = (text_run){0};
    model_config config;
    if (config_read(options->dir, options->routing_heads, &config, NULL, st) ||
        token_source_open(&options->tokens, config.vocabulary, &run->source, st))
        return FAILED;
    run->sequences = token_source_sequences(run->source);
    size_t longest = token_source_context(run->source);
    if (longest > config.positions)
        log_warn("sequences of %zu tokens are longer than the model's %zu positions "
                 "(max_position_embeddings)",
                 longest, config.positions);
    model_options open = {.device = options->device,
                          .dtype = options->dtype,
                          .threads = options->threads,
                          .routing_heads = options->routing_heads,
                          .positions = longest};
    if (model_open(options->dir, &open, &run->model, st) ||
        depth_program_build(model_configuration(run->model), NULL, &run->program, st))
        return FAILED;
    run->limits = run_limits(run->model, options->tokens.batch, longest, run->sequences);
    run->limits.backward = options->backward;
    run->limits.keep = options->keep;
    fit_memory(options, run);
    if (session_create(run->model, run->program, &run->limits, &run->session, st))
        return FAILED;
    for (size_t i = 0; i < 2; i++) {
        struct text_batch *m = &run->memory[i];
        m->id = mem_array(run->limits.rows, sizeof *m->id, "token ids", st);
        m->start = mem_array(run->limits.sequences + 1, sizeof *m->start, "sequences", st);
        m->offset = mem_array(run->limits.sequences, sizeof *m->offset, "sequences", st);
        if (!m->id || !m->start || !m->offset)
            return FAILED;
    }
    return DONE;
}

void text_run_clear(text_run *run) {
    for (size_t i = 0; i < 2; i++) {
        free(run->memory[i].id);
        free(run->memory[i].start);
        free(run->memory[i].offset);
    }
    session_free(run->session);
    depth_program_free(run->program);
    model_close(run->model);
    token_source_close(run->source);
    *run = (text_run){0};
}

int text_run_next(text_run *run, batch *b, status *st) {
    if (interrupt_pending()) {
        status_fail(st, "interrupted");
        return INTERRUPTED;
    }
    struct text_batch *m = &run->memory[run->turn ^= 1];
    size_t count = 0, first = run->next;
    for (; count < run->limits.sequences && run->next < run->sequences; count++, run->next++) {
        size_t length;
        uint64_t offset;
        if (token_source_read(run->source, run->next, m->id + m->start[count], &length, &offset,
                              st))
            return FAILED;
        m->start[count + 1] = m->start[count] + length;
        m->offset[count] = (int64_t)offset;
    }
    *b = (batch){.layout = {.sequences = count, .rows = m->start[count], .start = m->start},
                 .id = m->id,
                 .first = first,
                 .offset = m->offset};
    return DONE;
}
