/* page.h - html: text, images inside the page, and the look. */
#ifndef FATHOM_PAGE_H
#define FATHOM_PAGE_H

#include "runtime/base/status.h"

#include <stdio.h>

/* Opens the page up to <body>. `views`: how many choices there are of what is shown (page_view). */
void page_begin(FILE *out, const char *title, size_t views);
void page_end(FILE *out);

/* Text between tags or in a quoted attribute: & < > " ' are escaped, what is no UTF-8 and control
 * characters become '?'. */
void html_text(FILE *out, const char *text);
/* The same of several lines, the line ends kept. */
void html_lines(FILE *out, const char *text);
/* A command line; its words are not broken where they fit into a line. */
void html_command(FILE *out, const char *command);
/* printf, all of it escaped. */
void html_print(FILE *out, const char *format, ...) PRINTF_LIKE(2, 3);

/* An <img> that holds the svg file itself, with the size that the file names. As an image and not
 * as markup of the page, since two svg files use the same ids. */
int html_svg(FILE *out, const char *path, const char *alt, status *st) MUST_USE;

#endif
