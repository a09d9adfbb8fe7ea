#include "plots/tests/drawn.h"

#include "plots/gnuplot.h"
#include "runtime/base/output.h"
#include "runtime/tests/scratch.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

FILE *table_begin(const char *name, const char *command) {
    char *path = scratch_path(name);
    FILE *out = fopen(path, "w");
    free(path);
    assert_non_null(out);
    table_head(out, command, "", "");
    return out;
}

table *table_finish(FILE *out, const char *name) {
    char *path = scratch_path(name);
    table *made = NULL;
    status st;
    assert_int_equal(fclose(out), 0);
    if (table_read(path, &made, &st))
        fail_msg("%s", st.text);
    free(path);
    return made;
}

static char *read_text(const char *folder, const char *name, const char *extension) {
    enum { ROOM = 16 << 20 };
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.%s", folder, name, extension);
    FILE *in = fopen(path, "rb");
    if (!in)
        fail_msg("%s: %s", path, strerror(errno));
    char *text = calloc(1, ROOM);
    assert_non_null(text);
    size_t got = fread(text, 1, ROOM - 1, in);
    fclose(in);
    return realloc(text, got + 1);
}

static char *figures_folder(void) {
    status st;
    char *folder = scratch_path("fig ures'\xc3\xa9");
    if (folder_make(folder, &st))
        fail_msg("%s", st.text);
    return folder;
}

drawn draw_tables(const char *name, const table *const *from, size_t tables) {
    drawn d = {0};
    char *folder = figures_folder();
    const figure *f = figure_find(name);
    assert_non_null(f);
    d.result = figure_write_all(f, from, tables, folder, "svg", &d.pages, &d.st);
    if (d.result == DONE) {
        d.script = read_text(folder, name, "gp");
        d.data = read_text(folder, name, "dat");
    }
    free(folder);
    return d;
}

drawn draw_one(const char *name, const table *from) {
    return draw_tables(name, &from, 1);
}

void drawn_free(drawn *d) {
    free(d->script);
    free(d->data);
}

size_t count_of(const char *text, const char *part) {
    size_t count = 0;
    for (; (text = strstr(text, part)); text += strlen(part))
        count++;
    return count;
}

void assert_has(const char *text, const char *part) {
    if (!text || !strstr(text, part))
        fail_msg("expected '%s' in:\n%.3000s", part, text ? text : "(nothing)");
}

void assert_lacks(const char *text, const char *part) {
    if (strstr(text, part))
        fail_msg("unexpected '%s' in:\n%.3000s", part, text);
}

void assert_notes(const char *script, const char *part) {
    static const char start[] = "set label '", end[] = "' at screen X(6), Y(";
    char *notes = NULL;
    size_t bytes;
    FILE *out = open_memstream(&notes, &bytes);
    assert_non_null(out);
    for (const char *line = script; line && *line; line = strchr(line, '\n')) {
        line += *line == '\n';
        const char *at = line + strlen(start), *close = strstr(line, end);
        if (strncmp(line, start, strlen(start)) == 0 && close && close < strchr(line, '\n'))
            fprintf(out, "%.*s ", (int)(close - at), at);
    }
    fclose(out);
    assert_has(notes, part);
    free(notes);
}

/* Whether gnuplot draws the figure in each format without a word; false where there is none. */
static bool run_formats(const char *folder, const char *name) {
    static const char *const formats[] = {"svg", "png", "pdf"};
    char said[1024];
    status st;
    for (size_t i = 0; i < 3; i++) {
        int result = gnuplot_run(folder, name, formats[i], said, sizeof said, &st);
        if (result == GNUPLOT_MISSING)
            return false;
        if (result)
            fail_msg("%s", st.text);
        if (*said)
            fail_msg("%s, %s: gnuplot says: %s", name, formats[i], said);
    }
    return true;
}

size_t assert_silent(const table *const *from, size_t tables) {
    size_t count = 0, pages;
    char *folder = figures_folder();
    for (size_t i = 0; i < figure_count; i++) {
        bool holds = true;
        status st;
        for (size_t k = 0; k < tables; k++)
            holds = holds && !figure_lacks(&figures[i], from[k]);
        int result = holds ? figure_write_all(&figures[i], from, tables, folder, "svg", &pages, &st)
                           : NOT_DRAWN;
        if (result == FAILED)
            fail_msg("%s: %s", figures[i].name, st.text);
        if (result == DONE)
            count += run_formats(folder, figures[i].name);
    }
    free(folder);
    return count;
}
