/* figure.h - the figures by name, and drawing one of them into a folder.
 *
 * A new figure is one `figure_draw` or `figure_overlay` function and one line in the list in
 * figure.c. */
#ifndef FATHOM_FIGURE_H
#define FATHOM_FIGURE_H

#include "analyze/table.h"
#include "plots/sheet.h"

/* Besides DONE and FAILED, of a figure whose table has nothing to draw: the status says why. */
enum { NOT_DRAWN = 1 };

/* Writes data sets to s->data and plots to s->script, and sets height and pages. */
typedef int figure_draw(const table *from, sheet *s, status *st);
/* The same of several tables, at least one, each a run of its own. */
typedef int figure_overlay(const table *const *from, size_t tables, sheet *s, status *st);

typedef struct figure {
    const char *name;            /* also of its files */
    const char *title;           /* what it shows, one line */
    const char *const *sections; /* codes of the table that it needs; ends with NULL */
    const char *made_by;         /* the command that writes such a table */
    const char *shows;       /* one plain sentence for a reader: what is seen and how to read it */
    const char *caveat;      /* one sentence: what it does not say */
    figure_draw *draw;       /* of one table; NULL where `overlay` draws that, too */
    figure_overlay *overlay; /* NULL: the figure shows one table */
} figure;

extern const figure figures[];
extern const size_t figure_count;

/* NULL where there is none. */
const figure *figure_find(const char *name);
/* First needed section that the table lacks, or NULL. */
const char *figure_lacks(const figure *f, const table *from);

/* Writes FOLDER/NAME.dat and FOLDER/NAME.gp; `format` is what the script draws by default. Returns
 * DONE with the number of images per format in *pages, NOT_DRAWN (also where a section is missing),
 * or FAILED; nothing is left under a final name unless DONE. */
int figure_write(const figure *f, const table *from, const char *folder, const char *format,
                 size_t *pages, status *st) MUST_USE;
/* The same of several tables, at least one; NOT_DRAWN where the figure shows only one. */
int figure_write_all(const figure *f, const table *const *from, size_t tables, const char *folder,
                     const char *format, size_t *pages, status *st) MUST_USE;

figure_draw draw_depth_attention, draw_depth_attention_lift, draw_depth_attention_heads;
figure_draw draw_head_deviation, draw_routing_by_depth, draw_routing_by_depth_raw, draw_kind_mass;
figure_draw draw_contribution, draw_head_js, draw_source_cos, draw_reach, draw_depth_matrix;
figure_draw draw_depth_attention, draw_depth_attention_heads, draw_routing_by_depth;
figure_draw draw_token_sources, draw_compare_summary, draw_compare_magnitude, draw_compare_routing;
figure_overlay draw_magnitude_by_depth, draw_gradient_by_depth, draw_loss_by_position;

#endif
