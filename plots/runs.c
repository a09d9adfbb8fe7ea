#include "plots/runs.h"

#include "plots/cells.h"
#include "plots/sheet.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* The last `parts` parts of a path without the slashes at its end: its start in `path` and its
 * length. Returns whether there are more parts before it. */
static bool path_tail(const char *path, size_t parts, const char **start, size_t *length) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t at = end;
    for (size_t part = 0; part < parts && at > 0; part++) {
        at -= part > 0;
        while (at > 0 && path[at - 1] != '/')
            at--;
    }
    *start = path + at;
    *length = end - at;
    return at > 0;
}

/* Puts the last `parts` parts at the end of `name`. */
static bool add_tail(run_name *name, const char *path, size_t parts) {
    const char *start;
    size_t length, used = strlen(name->text);
    bool more = path_tail(path, parts, &start, &length);
    clean_text(name->text + used, sizeof name->text - used, start, length);
    return more;
}

/* Lengthens the names of `runs` that are equal to another's by parts of their paths, until they
 * differ or nothing is left. `prefix`: what stands before, copied. */
static void spread(const char *const *path, size_t count, const run_name *prefix, run_name *name,
                   size_t *parts) {
    bool again = true;
    bool equal[RUNS_MAX];
    while (again) {
        again = false;
        for (size_t i = 0; i < count; i++) {
            equal[i] = false;
            for (size_t k = 0; k < count; k++)
                equal[i] = equal[i] || (k != i && strcmp(name[i].text, name[k].text) == 0);
        }
        for (size_t i = 0; i < count; i++) {
            const char *start;
            size_t length;
            if (!equal[i] || (parts[i] && !path_tail(path[i], parts[i], &start, &length)))
                continue;
            name[i] = prefix[i];
            add_tail(&name[i], path[i], ++parts[i]);
            again = true;
        }
    }
}

void runs_name(const char *const *model, const char *const *file, size_t count, run_name *name) {
    run_name prefix[RUNS_MAX] = {{{0}}};
    const char *path[RUNS_MAX] = {NULL};
    size_t parts[RUNS_MAX] = {0};
    count = count < RUNS_MAX ? count : RUNS_MAX;
    for (size_t i = 0; i < count; i++) {
        bool named = *model[i] && strcmp(model[i], ".") != 0;
        path[i] = named ? model[i] : file[i];
        parts[i] = 1;
        name[i].text[0] = 0;
        add_tail(&name[i], path[i], 1);
    }
    spread(path, count, prefix, name, parts);
    /* One model twice: the file tells. */
    for (size_t i = 0; i < count; i++) {
        prefix[i] = name[i];
        size_t used = strlen(prefix[i].text);
        if (used + 3 < sizeof prefix[i].text)
            strcpy(prefix[i].text + used, ", ");
        parts[i] = 0;
    }
    spread(file, count, prefix, name, parts);
}

int runs_name_tables(const table *const *from, size_t count, run_name *name, status *st) {
    const char *model[RUNS_MAX], *file[RUNS_MAX];
    if (count > RUNS_MAX)
        return status_fail(st, "%zu tables, expected at most %d", count, RUNS_MAX);
    for (size_t i = 0; i < count; i++) {
        model[i] = cells_run(from[i], "model_path");
        file[i] = table_path(from[i]);
    }
    runs_name(model, file, count, name);
    return DONE;
}

void run_title(const table *from, char *title, size_t size) {
    const char *model = cells_run(from, "model_path"), *file = table_path(from);
    const char *text = cells_run(from, "residual_mode");
    char mode[24];
    run_name name;
    runs_name(&model, &file, 1, &name);
    clean_text(mode, sizeof mode, text, strlen(text));
    cut_middle(name.text, TITLE_CHARS - (*mode ? text_chars(mode) + 3 : 0));
    snprintf(title, size, "%s%s%s%s", name.text, *mode ? " (" : "", mode, *mode ? ")" : "");
}

static size_t width_of(unsigned char lead) {
    return (lead & 0xc0) == 0x80 ? 0 : lead >= 0xe3 ? 2 : 1;
}

size_t text_chars(const char *text) {
    size_t count = 0;
    for (; *text; text++)
        count += width_of((unsigned char)*text);
    return count;
}

void cut_middle(char *text, size_t chars) {
    size_t total = text_chars(text), bytes = strlen(text), head = 0, tail = bytes, used = 0;
    if (total <= chars || chars < 5)
        return;
    size_t side = (chars - 3) / 2;
    while (used + width_of((unsigned char)text[head]) <= chars - 3 - side) {
        used += width_of((unsigned char)text[head]);
        head++;
        while (((unsigned char)text[head] & 0xc0) == 0x80)
            head++;
    }
    for (used = 0;;) {
        size_t before = tail - 1;
        while (((unsigned char)text[before] & 0xc0) == 0x80)
            before--;
        if (used + width_of((unsigned char)text[before]) > side)
            break;
        used += width_of((unsigned char)text[before]);
        tail = before;
    }
    memcpy(text + head, "...", 3);
    memmove(text + head + 3, text + tail, bytes - tail + 1);
}
