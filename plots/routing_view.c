#include "plots/routing_view.h"

#include "plots/cells.h"
#include "plots/sheet.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Larger grids than this are no table of a model. */
enum { HEADS_MAX = 4096 };
static const size_t cells_max = (size_t)1 << 27;

/* Index of a name in a list, trying the entry at and after `hint` first, since rows come in order;
 * `count` where it is not there. */
static size_t find_name(const char *const *names, size_t count, const char *name, size_t hint) {
    for (size_t near = hint; near < count && near < hint + 2; near++)
        if (strcmp(names[near], name) == 0)
            return near;
    size_t i = 0;
    while (i < count && strcmp(names[i], name) != 0)
        i++;
    return i;
}

static size_t find_site(const routing_view *view, const char *name, size_t hint) {
    for (size_t near = hint; near < view->sites && near < hint + 2; near++)
        if (strcmp(view->site[near].name, name) == 0)
            return near;
    size_t i = 0;
    while (i < view->sites && strcmp(view->site[i].name, name) != 0)
        i++;
    return i;
}

/* ---- RUN ---- */

static const char *run_value(const table *from, const char *const *keys) {
    const table_section_view *run = table_find(from, "RUN");
    int key = run ? table_column(run, "key") : -1, value = run ? table_column(run, "value") : -1;
    if (key < 0 || value < 0)
        return "";
    for (size_t k = 0; keys[k]; k++)
        for (size_t row = 0; row < run->rows; row++)
            if (strcmp(table_cell(run, row, key), keys[k]) == 0 && *table_cell(run, row, value))
                return table_cell(run, row, value);
    return "";
}

/* The model's name: the last part of its path, or of the table's where the table does not say. */
static void read_names(routing_view *view) {
    static const char *const names[] = {"model_name", "model_path", "model", NULL};
    static const char *const modes[] = {"residual_mode", "mode", NULL};
    const char *path = run_value(view->from, names);
    size_t length = strlen(path);
    while (length && path[length - 1] == '/')
        length--;
    if (!length || (length == 1 && path[0] == '.')) {
        path = table_path(view->from);
        length = strlen(path);
    }
    size_t start = length;
    while (start && path[start - 1] != '/')
        start--;
    clean_text(view->name, sizeof view->name, path + start, length - start);
    const char *mode = run_value(view->from, modes);
    clean_text(view->mode, sizeof view->mode, mode, strlen(mode));
}

/* ---- SIT ---- */

/* All but the partial block's source: read_partials, once MEA has named the sources. */
static int read_site(routing_view *view, const table_section_view *section, size_t row,
                     const int *column, status *st) {
    routing_site *site = &view->site[row];
    site->name = table_cell(section, row, column[0]);
    const char *kind = table_cell(section, row, column[2]);
    if (strcmp(kind, "attn") == 0)
        site->kind = SITE_ATTN;
    else if (strcmp(kind, "mlp") == 0)
        site->kind = SITE_MLP;
    else if (strcmp(kind, "final") == 0)
        site->kind = SITE_FINAL;
    else
        return cells_fail(view->from, section, row, column[2], "attn, mlp or final", st);
    /* Every layer has a site of its own here. */
    if (site->kind != SITE_FINAL &&
        cells_size(view->from, section, row, column[1], section->rows - 1, &site->layer, st))
        return FAILED;
    if (cells_size(view->from, section, row, column[3], cells_max, &site->sources, st))
        return FAILED;
    if (site->kind != SITE_FINAL && site->layer >= view->layers)
        view->layers = site->layer + 1;
    site->opens_block = strcmp(table_cell(section, row, column[6]), "1") == 0;
    site->newest = -1;
    return DONE;
}

static int read_sites(routing_view *view, const table_section_view *section, status *st) {
    static const char *const names[] = {"site",   "layer",       "kind",        "sources",
                                        "newest", "newest_kind", "opens_block", NULL};
    int column[7];
    if (cells_find(view->from, section, names, column, st))
        return FAILED;
    view->sites = section->rows;
    view->site = mem_array(section->rows, sizeof *view->site, "sites", st);
    if (!view->site)
        return FAILED;
    for (size_t row = 0; row < section->rows; row++)
        if (read_site(view, section, row, column, st))
            return FAILED;
    for (size_t i = 0; i < view->sites; i++) {
        routing_site *site = &view->site[i];
        if (site->kind == SITE_FINAL)
            site->layer = view->layers;
        site->depth = (double)site->layer + (site->kind == SITE_MLP ? 0.5 : 0);
    }
    return DONE;
}

static void read_partials(routing_view *view, const table_section_view *section) {
    int newest = table_column(section, "newest"), kind = table_column(section, "newest_kind");
    for (size_t i = 0; i < view->sites; i++) {
        if (strcmp(table_cell(section, i, kind), "partial") != 0)
            continue;
        size_t source = find_name(view->source, view->sources, table_cell(section, i, newest), 0);
        if (source < view->sources)
            view->site[i].newest = (int)source;
    }
}

/* ---- MEA ---- */

/* Head of a row: its number, or `heads_mean` for "mean". */
static int read_head(const table *from, const table_section_view *section, size_t row, int column,
                     size_t heads_mean, size_t *head, status *st) {
    *head = heads_mean;
    if (strcmp(table_cell(section, row, column), "mean") == 0)
        return DONE;
    return cells_size(from, section, row, column, HEADS_MAX - 1, head, st);
}

/* Counts heads and lists sources. */
static int measure(routing_view *view, const table_section_view *section, const int *column,
                   status *st) {
    size_t room = 0, hint = 0;
    for (size_t row = 0; row < section->rows; row++) {
        size_t head;
        if (read_head(view->from, section, row, column[1], HEADS_MAX, &head, st))
            return FAILED;
        if (head < HEADS_MAX && head >= view->heads)
            view->heads = head + 1;
        const char *name = table_cell(section, row, column[2]);
        hint = find_name(view->source, view->sources, name, hint);
        if (hint < view->sources)
            continue;
        if (view->sources == room) {
            room = 2 * room + 64;
            const char **grown = realloc(view->source, room * sizeof *grown);
            if (!grown)
                return status_fail(st, "no memory for the names of %zu sources", room);
            view->source = grown;
        }
        view->source[view->sources++] = name;
    }
    return DONE;
}

static size_t cell_of(const routing_view *view, size_t head, size_t site, size_t source) {
    return (head * view->sites + site) * view->sources + source;
}

/* The head mean where the table has no row of head `mean`. */
static void fill_means(routing_view *view) {
    size_t grid = view->sites * view->sources;
    double *mean = view->weight + view->heads * grid;
    for (size_t cell = 0; cell < grid; cell++) {
        if (!view->exists[cell] || !isnan(mean[cell]))
            continue;
        double sum = 0;
        for (size_t head = 0; head < view->heads; head++)
            sum += view->weight[head * grid + cell];
        mean[cell] = sum / (double)view->heads;
    }
}

static int read_weights(routing_view *view, const table_section_view *section, status *st) {
    static const char *const names[] = {"site", "head", "source", "value", NULL};
    int column[4];
    if (cells_find(view->from, section, names, column, st) || measure(view, section, column, st))
        return FAILED;
    /* Each factor is at most a count of rows or 4097: products of two fit, then divide. */
    size_t grid = view->sites * view->sources;
    if (grid > cells_max / (view->heads + 1))
        return status_fail(st, "%s: %zu sites, %zu sources and %zu heads are too many to draw",
                           table_path(view->from), view->sites, view->sources, view->heads);
    view->weight = mem_array(grid * (view->heads + 1), sizeof *view->weight, "weights", st);
    view->exists = mem_array(grid, sizeof *view->exists, "cells", st);
    if (!view->weight || !view->exists)
        return FAILED;
    for (size_t i = 0; i < grid * (view->heads + 1); i++)
        view->weight[i] = NAN;
    size_t site = 0, source = 0;
    for (size_t row = 0; row < section->rows; row++) {
        size_t head;
        double value;
        if (read_head(view->from, section, row, column[1], view->heads, &head, st) ||
            cells_real(view->from, section, row, column[3], &value, st))
            return FAILED;
        site = find_site(view, table_cell(section, row, column[0]), site);
        if (site == view->sites)
            return cells_fail(view->from, section, row, column[0], "a site of section SIT", st);
        source =
            find_name(view->source, view->sources, table_cell(section, row, column[2]), source);
        view->weight[cell_of(view, head, site, source)] = value;
        view->exists[cell_of(view, 0, site, source)] = true;
    }
    fill_means(view);
    return DONE;
}

int routing_view_init(routing_view *view, const table *from, status *st) {
    *view = (routing_view){.from = from};
    const table_section_view *sites = table_find(from, "SIT"), *means = table_find(from, "MEA");
    if (!sites || !means)
        return status_fail(st, "%s: no section %s; `fathom routing RECORDING` makes it",
                           table_path(from), sites ? "MEA" : "SIT");
    read_names(view);
    if (read_sites(view, sites, st) || read_weights(view, means, st)) {
        routing_view_clear(view);
        return FAILED;
    }
    read_partials(view, sites);
    return DONE;
}

void routing_view_clear(routing_view *view) {
    free(view->site);
    free(view->source);
    free(view->weight);
    free(view->exists);
    *view = (routing_view){0};
}

const char *routing_run_text(const routing_view *view, const char *key) {
    return run_value(view->from, (const char *const[]){key, NULL});
}

void routing_title(const routing_view *view, char *text, size_t size) {
    bool mode = *view->mode;
    snprintf(text, size, "%s%s%s%s", view->name, mode ? " (" : "", view->mode, mode ? ")" : "");
}

double routing_weight(const routing_view *view, size_t head, size_t site, size_t source) {
    return view->weight[cell_of(view, head, site, source)];
}

bool routing_exists(const routing_view *view, size_t site, size_t source) {
    return view->exists[cell_of(view, 0, site, source)];
}

size_t routing_source(const routing_view *view, const char *name, size_t hint) {
    return find_name(view->source, view->sources, name, hint);
}

/* ---- One value a site and source ---- */

int routing_site_sources(const routing_view *view, const char *code, double *out, status *st) {
    static const char *const names[] = {"site", "head", "source", "value", NULL};
    size_t grid = view->sites * view->sources, site = 0, source = 0;
    const table_section_view *section = table_find(view->from, code);
    int column[4];
    if (!section)
        return status_fail(st, "%s: no section %s", table_path(view->from), code);
    if (cells_find(view->from, section, names, column, st))
        return FAILED;
    size_t *heads = mem_array(grid, sizeof *heads, "weights", st);
    int result = heads ? DONE : FAILED;
    for (size_t i = 0; i < grid; i++)
        out[i] = NAN;
    for (size_t row = 0; !result && row < section->rows; row++) {
        size_t head;
        double value;
        result = read_head(view->from, section, row, column[1], HEADS_MAX, &head, st);
        if (!result)
            result = cells_real(view->from, section, row, column[3], &value, st);
        if (result)
            break;
        site = find_site(view, table_cell(section, row, column[0]), site);
        source = routing_source(view, table_cell(section, row, column[2]), source);
        if (site == view->sites)
            result = cells_fail(view->from, section, row, column[0], "a site of section SIT", st);
        else if (source == view->sources)
            result = cells_fail(view->from, section, row, column[2], "a source of section MEA", st);
        if (result)
            break;
        size_t cell = site * view->sources + source;
        if (head == HEADS_MAX) {
            out[cell] = value;
            heads[cell] = HEADS_MAX; /* no mean needed */
        } else if (heads[cell] < HEADS_MAX) {
            double sum = heads[cell] ? out[cell] * (double)heads[cell] : 0;
            out[cell] = (sum + value) / (double)(heads[cell] + 1);
            heads[cell]++;
        }
    }
    free(heads);
    return result;
}

int routing_view_rows(const routing_view *view, const char *code,
                      const routing_view_columns *columns, routing_view_row_use *use, void *context,
                      status *st) {
    static const char *const usual[] = {"value", "low", "high"};
    const char *const *values = columns->value[0] ? columns->value : usual;
    const char *const names[] = {values[0], values[1], values[2], NULL};
    const table_section_view *section = table_find(view->from, code);
    int column[3], label[2] = {-1, -1};
    if (!section)
        return status_fail(st, "%s: no section %s", table_path(view->from), code);
    int site_column = table_column(section, "site");
    if (cells_find(view->from, section, names, column, st))
        return FAILED;
    for (size_t i = 0; i < 2; i++)
        if (columns->label[i] &&
            cells_find(view->from, section, (const char *const[]){columns->label[i], NULL},
                       &label[i], st))
            return FAILED;
    for (size_t at = 0, site = 0; at < section->rows; at++) {
        routing_view_row row = {.site = view->sites, .label = {"", ""}};
        if (site_column >= 0) {
            site = find_site(view, table_cell(section, at, site_column), site);
            if (site == view->sites)
                return cells_fail(view->from, section, at, site_column, "a site of section SIT",
                                  st);
            row.site = site;
        }
        for (size_t i = 0; i < 2; i++)
            if (label[i] >= 0)
                row.label[i] = table_cell(section, at, label[i]);
        if (cells_real(view->from, section, at, column[0], &row.value, st) ||
            cells_real(view->from, section, at, column[1], &row.low, st) ||
            cells_real(view->from, section, at, column[2], &row.high, st))
            return FAILED;
        if (use(context, &row, st))
            return status_prefix(st, "%s: section %s, row %zu", table_path(view->from), code,
                                 at + 1);
    }
    return DONE;
}

/* ---- One value a site ---- */

int routing_site_values(const routing_view *view, const char *code, site_value *out, bool *found,
                        status *st) {
    for (size_t i = 0; i < view->sites; i++)
        out[i] = (site_value){NAN, NAN, NAN};
    const table_section_view *section = table_find(view->from, code);
    *found = section != NULL;
    if (!section)
        return DONE;
    const char *value_name = table_column(section, "rank") >= 0 ? "rank" : "value";
    const char *const names[] = {"site", value_name, "low", "high", NULL};
    int column[4], head_column = table_column(section, "head");
    if (cells_find(view->from, section, names, column, st))
        return FAILED;
    /* Sums over heads, for sites without a row of head `mean`. */
    double *sum = mem_array(view->sites, sizeof *sum, "sums", st);
    size_t *heads = mem_array(view->sites, sizeof *heads, "sums", st);
    int result = sum && heads ? DONE : FAILED;
    for (size_t row = 0, site = 0; !result && row < section->rows; row++) {
        size_t head = HEADS_MAX;
        site_value value;
        if ((head_column >= 0 &&
             read_head(view->from, section, row, head_column, HEADS_MAX, &head, st)) ||
            cells_real(view->from, section, row, column[1], &value.value, st) ||
            cells_real(view->from, section, row, column[2], &value.low, st) ||
            cells_real(view->from, section, row, column[3], &value.high, st)) {
            result = FAILED;
            break;
        }
        site = find_site(view, table_cell(section, row, column[0]), site);
        if (site == view->sites) {
            result = cells_fail(view->from, section, row, column[0], "a site of section SIT", st);
        } else if (head == HEADS_MAX) {
            out[site] = value;
            heads[site] = HEADS_MAX; /* no mean needed */
        } else if (heads[site] < HEADS_MAX) {
            sum[site] += value.value;
            heads[site]++;
            out[site].value = sum[site] / (double)heads[site];
        }
    }
    free(sum);
    free(heads);
    return result;
}

int routing_null_values(const routing_view *view, const char *statistic, const char *null,
                        site_value *out, bool *found, status *st) {
    static const char *const names[] = {"statistic", "null",     "site",      "head",
                                        "null_mean", "null_low", "null_high", NULL};
    const table_section_view *section = table_find(view->from, "NBD");
    int column[7];
    *found = false;
    for (size_t i = 0; i < view->sites; i++)
        out[i] = (site_value){NAN, NAN, NAN};
    if (!section)
        return DONE;
    if (cells_find(view->from, section, names, column, st))
        return FAILED;
    for (size_t row = 0, site = 0; row < section->rows; row++) {
        const char *head = table_cell(section, row, column[3]);
        if (strcmp(table_cell(section, row, column[0]), statistic) != 0 ||
            strcmp(table_cell(section, row, column[1]), null) != 0 ||
            (strcmp(head, "mean") != 0 && strcmp(head, "-") != 0))
            continue;
        site = find_site(view, table_cell(section, row, column[2]), site);
        if (site == view->sites)
            return cells_fail(view->from, section, row, column[2], "a site of section SIT", st);
        if (cells_real(view->from, section, row, column[4], &out[site].value, st) ||
            cells_real(view->from, section, row, column[5], &out[site].low, st) ||
            cells_real(view->from, section, row, column[6], &out[site].high, st))
            return FAILED;
        *found = true;
    }
    return DONE;
}
