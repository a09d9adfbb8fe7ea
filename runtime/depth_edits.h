/* depth_edits.h - a depth program whose sites carry edits: what an ablation runs.
 *
 *     const depth_edit mask = {.kind = EDIT_MASK, .sources = 1, .source = &position};
 *     edits[site] = &mask;                                   // [sites], NULL: none
 *     depth_program *edited;
 *     if (depth_program_edit(program, edits, 0, &edited, st)) return FAILED;
 *     ... session_use(s, edited, st), or session_resume after the sublayers in common ...
 *     depth_program_free(edited);
 */
#ifndef FATHOM_DEPTH_EDITS_H
#define FATHOM_DEPTH_EDITS_H

#include "kernels/depth_edit.h"
#include "runtime/depth_program.h"

/* A copy of `base` in which site i carries edit[i] (edit NULL: none does), which with all that it
 * points to must outlive the copy. Edits that change nothing are left out (depth_edit_changes), so
 * that they cost nothing. `heads`: routing heads of the copy, a divisor of the width; 0: the
 * base's. Fails on a number of heads that is no divisor, and when memory does. */
int depth_program_edit(const depth_program *base, const depth_edit *const *edit, size_t heads,
                       depth_program **out, status *st) MUST_USE;

/* Whether an edit can change anything at a site of `sources` sources and `heads` heads: not a query
 * scale of 1, a list of no sources, a mask of all of them, weights edited where there is but one
 * source or, for the head mean, one head. */
bool depth_edit_changes(const depth_edit *edit, size_t heads, size_t sources);

/* Whether it is a mask that would leave nothing to read: it is not applied. */
bool depth_edit_empties(const depth_edit *edit, size_t sources);

#endif
