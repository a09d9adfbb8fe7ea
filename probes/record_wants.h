/* record_wants.h - `--record`: words and globs to what a recording holds. */
#ifndef FATHOM_RECORD_WANTS_H
#define FATHOM_RECORD_WANTS_H

#include "probes/recording_layout.h"
#include "runtime/base/options.h"
#include "runtime/depth_program.h"

/* What `--record` says about the weights. */
typedef enum weights_choice { WEIGHTS_IF_SMALL, WEIGHTS_YES, WEIGHTS_NO } weights_choice;

#define RECORD_HELP                                                                                \
    "also record: weights or no-weights (else they are recorded where they take at most 1 GiB), "  \
    "pairs, attention, and tensors by glob: in/SITE, out/SUBLAYER, state/SUBLAYER, "               \
    "attention/pattern/LAYER, such as 'in/L*.attn', 'state/*', attention/pattern/L3"

/* Items: weights, no-weights, pairs, attention, or a glob (`*` does not cross a slash) over
 * in/SITE, out/SUBLAYER, state/SUBLAYER and attention/pattern/Ln. A glob that matches nothing is an
 * error that lists what there is. `wants->weights` is left to the caller, who reads *choice.
 * `wants` is cleared with record_wants_clear, after a failure too. */
int record_wants_parse(const option_list *items, const depth_program *program, size_t layers,
                       recording_wants *wants, weights_choice *choice, status *st) MUST_USE;
void record_wants_clear(recording_wants *wants);

#endif
