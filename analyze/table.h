/* table.h - the text tables between analysis and figures: coded, self-describing sections.
 *
 *     # fathom 0.1.0
 *     # command fathom routing run.h5
 *     # model SHA256 …
 *     # tokens SHA256 …
 *     # ENT  entropy by site and head; columns: site, head, value, low, high; units: nats
 *     ENT     L0.mlp  0       0.412   0.40    0.43
 *
 * Tab-separated, numbers as %.9g, `nan` where undefined. `grep ^ENT | cut -f2-` extracts a section.
 * A section's columns never change without a schema bump. Lines starting with "# " that are no
 * section are comments: they state the assumptions.
 */
#ifndef FATHOM_TABLE_H
#define FATHOM_TABLE_H

#include "runtime/base/status.h"

#include <stdio.h>

/* Writing. Errors of the stream are found at output_commit. */
void table_head(FILE *out, const char *command, const char *model_sha256,
                const char *tokens_sha256);
void table_comment(FILE *out, const char *format, ...) PRINTF_LIKE(2, 3);
/* Starts a section: "# CODE  TITLE; columns: COLUMNS; units: UNITS". `columns`: "site, head,
 * value".*/
void table_section(FILE *out, const char *code, const char *title, const char *columns,
                   const char *units);
/* One row: the code, then each cell. */
void table_row(FILE *out, const char *code);
void table_text(FILE *out, const char *cell); /* tabs and newlines become spaces */
void table_size(FILE *out, size_t cell);
void table_real(FILE *out, double cell);                               /* %.9g, nan */
void table_interval(FILE *out, double value, double low, double high); /* three cells */
void table_end(FILE *out);
/* A whole row of a section with the columns key, value. A NULL text is empty. */
void table_key_text(FILE *out, const char *code, const char *key, const char *value);
void table_key_size(FILE *out, const char *code, const char *key, size_t value);
void table_key_real(FILE *out, const char *code, const char *key, double value);

/* Reading: a whole table in memory. */
typedef struct table table;

typedef struct table_section_view {
    char code[8];
    const char *title, *units;
    size_t columns, rows;
    const char *const *column; /* [columns] names */
    const char *const *cell;   /* [rows, columns] texts */
} table_section_view;

/* `path` "-" reads standard input. Errors name the line: a row before its section, a wrong number
 * of cells, a file that is no table. */
int table_read(const char *path, table **out, status *st) MUST_USE;
void table_free(table *t); /* NULL allowed */
const char *table_path(const table *t);
const char *table_command(const table *t); /* what the head says, or "" */
size_t table_sections(const table *t);
const table_section_view *table_section_at(const table *t, size_t index);
const table_section_view *table_find(const table *t, const char *code); /* NULL: absent */
/* Index of a column, or -1. */
int table_column(const table_section_view *section, const char *name);
const char *table_cell(const table_section_view *section, size_t row, int column);
/* The cell as a number; NaN for "nan" and for text that is no number. */
double table_number(const table_section_view *section, size_t row, int column);

#endif
