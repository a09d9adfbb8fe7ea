/* source_ticks.h - names of sources along an axis, as many as have room. */
#ifndef FATHOM_SOURCE_TICKS_H
#define FATHOM_SOURCE_TICKS_H

#include "plots/sheet.h"

/* Longest name that stands under a column; longer ones are cut. */
enum { SOURCE_CHARS = 12 };

/* `set xtics (...)` for columns 0..count-1 of a panel `width` wide: two sublayers of one layer
 * share the label "L3" between them, numbered names are thinned evenly, and labels that would touch
 * their neighbour or reach further than `spill` past the right edge are left out. */
int source_xtics(const sheet *s, const char *const *names, size_t count, double width, double spill,
                 status *st) MUST_USE;
/* The same for rows `height` high together; labels are cut to what stands in `room` pixels. */
int source_ytics(const sheet *s, const char *const *names, size_t count, double height, double room,
                 status *st) MUST_USE;

#endif
