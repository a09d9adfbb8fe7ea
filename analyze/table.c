#include "analyze/table.h"

#include "runtime/base/version.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* ---- writing ---- */

/* One cell or the rest of one line: nothing in it may end the cell or the line. */
static void put_text(FILE *out, const char *text) {
    for (; *text; text++)
        fputc(strchr("\t\n\r\v\f", *text) ? ' ' : *text, out);
}

static void put_line(FILE *out, const char *key, const char *text) {
    fprintf(out, "# %s", key);
    put_text(out, text);
    fputc('\n', out);
}

void table_head(FILE *out, const char *command, const char *model_sha256,
                const char *tokens_sha256) {
    put_line(out, "fathom ", FATHOM_VERSION);
    put_line(out, "command ", command);
    put_line(out, "model ", model_sha256);
    put_line(out, "tokens ", tokens_sha256);
}

void table_comment(FILE *out, const char *format, ...) {
    char text[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    put_line(out, "", text);
}

void table_section(FILE *out, const char *code, const char *title, const char *columns,
                   const char *units) {
    fprintf(out, "# %s  %s; columns: %s; units: %s\n", code, title, columns, units);
}

void table_row(FILE *out, const char *code) {
    fputs(code, out);
}

void table_text(FILE *out, const char *cell) {
    fputc('\t', out);
    put_text(out, cell);
}

void table_size(FILE *out, size_t cell) {
    fprintf(out, "\t%zu", cell);
}

void table_real(FILE *out, double cell) {
    if (isnan(cell)) /* printf may write "-nan" */
        fputs("\tnan", out);
    else
        fprintf(out, "\t%.9g", cell);
}

void table_interval(FILE *out, double value, double low, double high) {
    table_real(out, value);
    table_real(out, low);
    table_real(out, high);
}

void table_end(FILE *out) {
    fputc('\n', out);
}

void table_key_text(FILE *out, const char *code, const char *key, const char *value) {
    table_row(out, code);
    table_text(out, key);
    table_text(out, value ? value : "");
    table_end(out);
}

void table_key_size(FILE *out, const char *code, const char *key, size_t value) {
    table_row(out, code);
    table_text(out, key);
    table_size(out, value);
    table_end(out);
}

void table_key_real(FILE *out, const char *code, const char *key, double value) {
    table_row(out, code);
    table_text(out, key);
    table_real(out, value);
    table_end(out);
}

/* ---- reading ---- */

typedef struct part {
    table_section_view view;
    char **column; /* [columns] point into the table's text, as do the cells */
    char **cell;   /* [rows, columns] */
    size_t column_room, cell_room;
} part;

struct table {
    char *path;
    char *text; /* the file; lines and cells are cut in place with zeros */
    size_t bytes;
    const char *command;
    part *section;
    size_t sections, section_room;
};

/* Room for `count` elements of `size` bytes in *array, doubling. */
static int grow(void *array, size_t size, size_t count, size_t *room, status *st) {
    if (count <= *room)
        return DONE;
    size_t wanted = *room < 8 ? 8 : *room;
    while (wanted < count) {
        if (wanted > SIZE_MAX / 2)
            return status_fail(st, "table too large for memory");
        wanted *= 2;
    }
    void *old, *fresh = NULL;
    memcpy(&old, array, sizeof old);
    if (wanted <= SIZE_MAX / size)
        fresh = realloc(old, wanted * size);
    if (!fresh)
        return status_fail(st, "no memory for %zu elements of a table", wanted);
    memcpy(array, &fresh, sizeof fresh);
    *room = wanted;
    return DONE;
}

/* The whole file into t->text, with a zero after it. */
static int read_text(table *t, status *st) {
    bool standard = strcmp(t->path, "-") == 0;
    FILE *in = standard ? stdin : fopen(t->path, "rb");
    if (!in)
        return status_fail(st, "%s: %s", t->path, strerror(errno));
    int rc = DONE;
    size_t room = 0, got = 0;
    do {
        rc = grow(&t->text, 1, t->bytes + 65537, &room, st);
        if (rc)
            break;
        got = fread(t->text + t->bytes, 1, room - t->bytes - 1, in);
        t->bytes += got;
    } while (got);
    if (!rc && ferror(in))
        rc = status_fail(st, "%s: %s", t->path, strerror(errno));
    if (!rc)
        t->text[t->bytes] = 0;
    if (!standard)
        fclose(in);
    return rc;
}

/* Length of a section's code at `text`, or 0: a capital letter, then capitals and digits. */
static size_t code_length(const char *text) {
    size_t n = 0;
    while ((text[n] >= 'A' && text[n] <= 'Z') || (n && text[n] >= '0' && text[n] <= '9'))
        n++;
    return n < sizeof((table_section_view *)0)->code ? n : 0;
}

static part *find_part(const table *t, const char *code) {
    for (size_t i = 0; i < t->sections; i++)
        if (strcmp(t->section[i].view.code, code) == 0)
            return &t->section[i];
    return NULL;
}

/* Cuts "site, head, value" into column names. */
static int cut_columns(part *s, char *names, status *st) {
    for (char *next = names; next;) {
        char *name = next;
        next = strstr(name, ", ");
        if (next) {
            *next = 0;
            next += 2;
        }
        if (!*name)
            return status_fail(st, "section %s: a column without a name", s->view.code);
        for (size_t i = 0; i < s->view.columns; i++)
            if (strcmp(s->column[i], name) == 0)
                return status_fail(st, "section %s: two columns are named %s", s->view.code, name);
        if (grow(&s->column, sizeof *s->column, s->view.columns + 1, &s->column_room, st))
            return FAILED;
        s->column[s->view.columns++] = name;
    }
    return DONE;
}

/* A line that starts with "# ": "CODE  TITLE; columns: COLUMNS; units: UNITS" opens a section, all
 * else is a comment. */
static int read_note(table *t, char *text, status *st) {
    static const char columns_mark[] = "; columns: ", units_mark[] = "; units: ";
    if (!*t->command && strncmp(text, "command ", 8) == 0) {
        t->command = text + 8;
        return DONE;
    }
    size_t code = code_length(text);
    if (!code || strncmp(text + code, "  ", 2) != 0)
        return DONE;
    char *columns = strstr(text, columns_mark);
    char *units = columns ? strstr(columns + sizeof columns_mark - 1, units_mark) : NULL;
    if (!units)
        return DONE;
    text[code] = *columns = *units = 0;
    if (find_part(t, text))
        return status_fail(st, "section %s begins a second time", text);
    if (grow(&t->section, sizeof *t->section, t->sections + 1, &t->section_room, st))
        return FAILED;
    part *s = &t->section[t->sections++];
    *s = (part){.view = {.title = text + code + 2, .units = units + sizeof units_mark - 1}};
    memcpy(s->view.code, text, code + 1);
    return cut_columns(s, columns + sizeof columns_mark - 1, st);
}

static int read_row(table *t, char *line, status *st) {
    char *cell = strchr(line, '\t');
    if (cell)
        *cell++ = 0;
    part *s = find_part(t, line);
    if (!s)
        return status_fail(st,
                           "row of a section '%.20s' that has no line '# %.20s  TITLE; columns: "
                           "…; units: …' before it",
                           line, line);
    size_t found = 0, columns = s->view.columns;
    if (s->view.rows >= SIZE_MAX / sizeof(char *) / columns - 1)
        return status_fail(st, "table too large for memory");
    if (grow(&s->cell, sizeof *s->cell, (s->view.rows + 1) * columns, &s->cell_room, st))
        return FAILED;
    for (char *next; cell; cell = next, found++) {
        next = strchr(cell, '\t');
        if (next)
            *next++ = 0;
        if (found < columns)
            s->cell[s->view.rows * columns + found] = cell;
    }
    if (found != columns)
        return status_fail(st, "section %s: a row with %zu cells, expected %zu", s->view.code,
                           found, columns);
    s->view.rows++;
    return DONE;
}

static int read_lines(table *t, status *st) {
    size_t number = 1;
    if (strncmp(t->text, "# fathom ", 9) != 0)
        return status_fail(st, "%s:1: no table: the first line is not '# fathom VERSION'", t->path);
    for (char *line = t->text, *end = t->text + t->bytes; line < end; number++) {
        char *next = memchr(line, '\n', (size_t)(end - line));
        next = next ? next : end;
        *next = 0;
        size_t length = (size_t)(next - line);
        if (strlen(line) != length)
            return status_fail(st, "%s:%zu: a zero byte: this is no text", t->path, number);
        if (length && line[length - 1] == '\r')
            line[length - 1] = 0;
        int rc = DONE;
        if (strncmp(line, "# ", 2) == 0)
            rc = read_note(t, line + 2, st);
        else if (*line && *line != '#')
            rc = read_row(t, line, st);
        if (rc)
            return status_prefix(st, "%s:%zu", t->path, number);
        line = next + 1;
    }
    return DONE;
}

int table_read(const char *path, table **out, status *st) {
    *out = NULL;
    table *t = mem_array(1, sizeof *t, "a table", st);
    if (!t)
        return FAILED;
    t->command = "";
    t->path = mem_text(path, st);
    if (!t->path || read_text(t, st) || read_lines(t, st)) {
        table_free(t);
        return FAILED;
    }
    for (size_t i = 0; i < t->sections; i++) {
        part *s = &t->section[i];
        s->view.column = (const char *const *)s->column;
        s->view.cell = (const char *const *)s->cell;
    }
    *out = t;
    return DONE;
}

void table_free(table *t) {
    if (!t)
        return;
    for (size_t i = 0; i < t->sections; i++) {
        free(t->section[i].column);
        free(t->section[i].cell);
    }
    free(t->section);
    free(t->text);
    free(t->path);
    free(t);
}

const char *table_path(const table *t) {
    return t->path;
}

const char *table_command(const table *t) {
    return t->command;
}

size_t table_sections(const table *t) {
    return t->sections;
}

const table_section_view *table_section_at(const table *t, size_t index) {
    return &t->section[index].view;
}

const table_section_view *table_find(const table *t, const char *code) {
    part *s = find_part(t, code);
    return s ? &s->view : NULL;
}

int table_column(const table_section_view *section, const char *name) {
    for (size_t i = 0; i < section->columns; i++)
        if (strcmp(section->column[i], name) == 0)
            return (int)i;
    return -1;
}

const char *table_cell(const table_section_view *section, size_t row, int column) {
    return section->cell[row * section->columns + (size_t)column];
}

double table_number(const table_section_view *section, size_t row, int column) {
    const char *text = table_cell(section, row, column);
    char *end;
    double value = strtod(text, &end);
    return *text && !*end ? value : NAN;
}
