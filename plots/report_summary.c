/* report_summary.c - the numbers of all models in one table; see report.h. */
#include "plots/report.h"

#include "analyze/table.h"
#include "plots/page.h"
#include "runtime/base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The tables of one model; NULL where a step was not done. */
typedef struct model_tables {
    const report_model *model;
    table *depth, *routing, *compare; /* the last is one of all models */
    const char *recording;
    char *checks; /* what `fathom check` printed */
} model_tables;

/* ---- Reading ---- */

typedef struct key {
    const char *column, *cell;
} key;

/* The next row from `row` on whose cells are those of `keys`, which end with {NULL}; or rows. */
static size_t find_row(const table_section_view *section, size_t row, const key *keys) {
    for (; row < section->rows; row++) {
        bool same = true;
        for (const key *k = keys; same && k->column; k++) {
            int column = table_column(section, k->column);
            same = column >= 0 && strcmp(table_cell(section, row, column), k->cell) == 0;
        }
        if (same)
            break;
    }
    return row;
}

typedef struct value {
    double value, low, high;
} value;

/* The numbers of the first such row; false where there is none. */
static bool find_value(const table *from, const char *code, const key *keys,
                       const char *const columns[3], value *out) {
    const table_section_view *section = from ? table_find(from, code) : NULL;
    size_t row = section ? find_row(section, 0, keys) : 0;
    if (!section || row == section->rows)
        return false;
    double number[3];
    for (int i = 0; i < 3; i++) {
        int column = table_column(section, columns[i]);
        number[i] = column < 0 ? NAN : table_number(section, row, column);
    }
    *out = (value){number[0], number[1], number[2]};
    return true;
}

static const char *const usual[3] = {"value", "low", "high"};

static const char *run_text(const table *from, const char *name) {
    const table_section_view *section = from ? table_find(from, "RUN") : NULL;
    const key keys[] = {{"key", name}, {0}};
    size_t row = section ? find_row(section, 0, keys) : 0;
    int column = section ? table_column(section, "value") : -1;
    return column >= 0 && row < section->rows ? table_cell(section, row, column) : NULL;
}

static double run_number(const table *from, const char *name) {
    const char *text = run_text(from, name);
    return text ? strtod(text, NULL) : NAN;
}

/* ---- Writing cells ---- */

static void put_value(FILE *out, value v) {
    if (isnan(v.value))
        fputs("not defined", out);
    else
        fprintf(out, "%.4g", v.value);
    if (!isnan(v.low) && !isnan(v.high))
        fprintf(out, "<small>%.4g to %.4g</small>", v.low, v.high);
}

/* Thin spaces between thousands. */
static void put_count(FILE *out, const char *digits) {
    size_t length = strspn(digits, "0123456789");
    for (size_t i = 0; i < length; i++)
        fprintf(out, "%s%c", i && (length - i) % 3 == 0 ? "&#8239;" : "", digits[i]);
}

/* Writes a cell and returns true, or writes nothing. */
typedef bool put_cell(FILE *out, const model_tables *t);

static bool put_mode(FILE *out, const model_tables *t) {
    const char *mode = run_text(t->depth, "residual_mode");
    if (mode)
        html_text(out, mode);
    return mode != NULL;
}

static bool put_parameters(FILE *out, const model_tables *t) {
    const char *line = t->model->info ? strstr(t->model->info, "\nparameters ") : NULL;
    if (line)
        put_count(out, line + 12 + strspn(line + 12, " "));
    return line != NULL;
}

static bool put_shape(FILE *out, const model_tables *t) {
    const char *layers = run_text(t->depth, "layers"), *width = run_text(t->depth, "width");
    const char *heads = run_text(t->routing, "routing_heads");
    if (!layers)
        return false;
    html_text(out, layers);
    if (width)
        html_print(out, " × %s", width);
    if (heads)
        html_print(out, ", %s %s", heads, strcmp(heads, "1") == 0 ? "head" : "heads");
    return true;
}

static bool put_tokens(FILE *out, const model_tables *t) {
    const char *sequences = run_text(t->depth, "sequences"), *tokens = run_text(t->depth, "tokens");
    if (!sequences || !tokens)
        return false;
    put_count(out, tokens);
    html_print(out, " in %s %s", sequences, strcmp(sequences, "1") == 0 ? "sequence" : "sequences");
    if (isnan(run_number(t->depth, "loss_low")) && !isnan(run_number(t->depth, "loss")))
        fputs("<small>fewer than 8 that do not overlap: no intervals</small>", out);
    return true;
}

static value loss_of(const table *depth) {
    return (value){run_number(depth, "loss"), run_number(depth, "loss_low"),
                   run_number(depth, "loss_high")};
}

static bool put_loss(FILE *out, const model_tables *t) {
    if (!t->depth)
        return false;
    put_value(out, loss_of(t->depth));
    return true;
}

static bool put_perplexity(FILE *out, const model_tables *t) {
    if (!t->depth)
        return false;
    value v = loss_of(t->depth);
    put_value(out, (value){exp(v.value), exp(v.low), exp(v.high)});
    return true;
}

static bool put_difference(FILE *out, const model_tables *t) {
    static const char *const columns[3] = {"difference", "low", "high"};
    const table_section_view *runs = t->compare ? table_find(t->compare, "RUN") : NULL;
    const key of_recording[] = {{"path", t->recording}, {0}};
    size_t row = runs ? find_row(runs, 0, of_recording) : 0;
    int run = runs ? table_column(runs, "run") : -1;
    if (run < 0 || row == runs->rows)
        return false;
    if (row == 0) {
        fputs("reference", out);
        return true;
    }
    const key keys[] = {{"run", table_cell(runs, row, run)}, {0}};
    value v;
    if (!find_value(t->compare, "LOS", keys, columns, &v))
        return false;
    put_value(out, v);
    return true;
}

static bool put_mean(FILE *out, const model_tables *t, const char *statistic) {
    const key keys[] = {{"statistic", statistic}, {"kind", "all"}, {0}};
    value v;
    if (!find_value(t->routing, "AVG", keys, usual, &v))
        return false;
    put_value(out, v);
    return true;
}

/* The mean over sites of a statistic under random queries of equal logit variance, and at how many
 * sites the trained one lies outside all draws. */
static void put_null(FILE *out, const model_tables *t, const char *statistic, const char *head) {
    const table_section_view *section = table_find(t->routing, "NBD");
    const key keys[] = {{"statistic", statistic}, {"null", "var"}, {"head", head}, {0}};
    size_t sites = 0, above = 0, below = 0;
    double sum = 0;
    if (!section) {
        fputs("<small>no null recorded</small>", out);
        return;
    }
    int mean = table_column(section, "null_mean"), verdict = table_column(section, "verdict");
    if (mean < 0 || verdict < 0)
        return;
    for (size_t row = find_row(section, 0, keys); row < section->rows;
         row = find_row(section, row + 1, keys)) {
        sites++;
        sum += table_number(section, row, mean);
        above += strcmp(table_cell(section, row, verdict), "above") == 0;
        below += strcmp(table_cell(section, row, verdict), "below") == 0;
    }
    if (sites)
        fprintf(out, "<small>null %.4g; of %zu sites above at %zu, below at %zu</small>",
                sum / (double)sites, sites, above, below);
}

static bool put_entropy(FILE *out, const model_tables *t) {
    return put_mean(out, t, "entropy_norm");
}

static bool put_divergence(FILE *out, const model_tables *t) {
    if (run_number(t->routing, "routing_heads") < 2 || !put_mean(out, t, "head_divergence"))
        return false;
    put_null(out, t, "head_divergence", "-");
    return true;
}

static bool put_information(FILE *out, const model_tables *t) {
    if (!put_mean(out, t, "token_information"))
        return false;
    put_null(out, t, "token_information", "mean");
    return true;
}

static bool put_lookback(FILE *out, const model_tables *t) {
    return put_mean(out, t, "lookback_norm");
}

static bool put_growth(FILE *out, const model_tables *t) {
    static const char *const columns[3] = {"factor", "factor_low", "factor_high"};
    static const char *const fit[3] = {"r2", "points", "points"};
    const key keys[] = {{"against", "depth"}, {0}};
    value v, quality;
    if (!find_value(t->depth, "GRW", keys, columns, &v) ||
        !find_value(t->depth, "GRW", keys, fit, &quality))
        return false;
    put_value(out, v);
    fprintf(out, "<small>r2 %.2g of %.0f points</small>", quality.value, quality.low);
    return true;
}

static bool put_inequality(FILE *out, const model_tables *t) {
    const key keys[] = {{"quantity", "out_l2"}, {"measure", "gini"}, {0}};
    value v;
    if (!find_value(t->depth, "GUN", keys, usual, &v))
        return false;
    put_value(out, v);
    return true;
}

static bool put_ratio(FILE *out, const model_tables *t) {
    const key keys[] = {{"quantity", "out_l2"}, {"measure", "max_to_min"}, {0}};
    value v;
    if (!find_value(t->depth, "GUN", keys, usual, &v))
        return false;
    put_value(out, v);
    return true;
}

/* Over sublayers, so that one token may count several times. */
static bool put_massive(FILE *out, const model_tables *t) {
    const table_section_view *section = t->depth ? table_find(t->depth, "MSS") : NULL;
    int column = section ? table_column(section, "tokens") : -1;
    double largest = 0;
    if (column < 0)
        return false;
    for (size_t row = 0; row < section->rows; row++)
        largest = fmax(largest, table_number(section, row, column));
    fprintf(out, "%.0f", largest);
    return true;
}

static bool put_checks(FILE *out, const model_tables *t) {
    size_t good = 0, bad = 0;
    if (!t->checks)
        return false;
    for (const char *line = t->checks; *line; line += *line == '\n') {
        good += strncmp(line, "ok ", 3) == 0;
        bad += strncmp(line, "FAIL", 4) == 0;
        line += strcspn(line, "\n");
    }
    if (bad)
        fprintf(out, "<strong>%zu failed</strong>, ", bad);
    fprintf(out, "%zu hold", good);
    return true;
}

static const struct {
    const char *name, *meaning;
    put_cell *put;
} rows[] = {
    {"residual mode", "none: PreNorm, no routing", put_mode},
    {"parameters", NULL, put_parameters},
    {"shape", "layers × width, routing heads", put_shape},
    {"tokens read", NULL, put_tokens},
    {"loss", "nats per token", put_loss},
    {"perplexity", "exp(loss)", put_perplexity},
    {"loss, difference", "from the first model, on the same tokens", put_difference},
    {"entropy_norm", "mean over sites; 1: every source weighs the same", put_entropy},
    {"head_divergence", "nats, mean over sites; how far the routing heads of a token differ",
     put_divergence},
    {"token_information", "nats, mean over sites; how far routing depends on the token",
     put_information},
    {"lookback_norm", "mean over sites; 1: as far back as uniform weights", put_lookback},
    {"growth", "factor a layer of the size of what accumulates", put_growth},
    {"gradient inequality", "Gini coefficient of out_l2 over layers; 0: even", put_inequality},
    {"gradient ratio", "largest to smallest out_l2 of a layer", put_ratio},
    {"massive activations", "tokens that have one, at the sublayer with the most", put_massive},
    {"checks", "invariants of the recording", put_checks},
};
enum { ROWS = sizeof rows / sizeof *rows };

/* ---- The table ---- */

static int read_table(const report *r, const report_model *model, const char *file, table **out,
                      status *st) {
    const report_step *s = report_producer(r, model, file);
    return s && step_made(s) ? table_read(s->output, out, st) : DONE;
}

static int read_tables(const report *r, const report_model *model, model_tables *t, status *st) {
    t->model = model;
    const report_step *check = report_producer(r, model, "check.txt");
    const report_step *capture = report_producer(r, model, "recording.h5");
    t->recording = capture && capture->output ? capture->output : "";
    size_t bytes;
    if (check && check->files.count &&
        text_read(check->output, REPORT_FILE_MAX, &t->checks, &bytes, st))
        return FAILED;
    return read_table(r, model, "depth.txt", &t->depth, st) ||
                   read_table(r, model, "routing.txt", &t->routing, st) ||
                   read_table(r, NULL, "compare.txt", &t->compare, st)
               ? FAILED
               : DONE;
}

/* A row without any value is left out. */
static int put_row(FILE *out, size_t row, const model_tables *t, size_t models, status *st) {
    char *text = NULL;
    size_t bytes;
    bool some = false;
    FILE *cells = open_memstream(&text, &bytes);
    if (!cells)
        return status_fail(st, "out of memory");
    for (size_t m = 0; m < models; m++) {
        fprintf(cells, "<td class=\"m m%zu\">", m + 1);
        bool put = rows[row].put(cells, &t[m]);
        fputs(put ? "</td>" : "–</td>", cells);
        some = some || put;
    }
    if (fclose(cells)) {
        free(text);
        return status_fail(st, "out of memory");
    }
    if (some) {
        fputs("<tr><th scope=\"row\">", out);
        html_text(out, rows[row].name);
        if (rows[row].meaning)
            fprintf(out, "<small>%s</small>", rows[row].meaning);
        fprintf(out, "</th>%s</tr>\n", text);
    }
    free(text);
    return DONE;
}

int report_summary(FILE *out, const report *r, status *st) {
    model_tables *t = mem_array(r->models, sizeof *t, "tables", st);
    int result = t ? DONE : FAILED;
    for (size_t m = 0; m < r->models && !result; m++)
        result = read_tables(r, &r->model[m], &t[m], st);
    if (!result) {
        fputs("<div class=\"table\" tabindex=\"0\">\n<table>\n<thead><tr><td></td>", out);
        for (size_t m = 0; m < r->models; m++) {
            fprintf(out, "<th scope=\"col\" class=\"m m%zu\">", m + 1);
            html_text(out, r->model[m].name);
            fputs("</th>", out);
        }
        fputs("</tr></thead>\n<tbody>\n", out);
        for (size_t row = 0; row < ROWS && !result; row++)
            result = put_row(out, row, t, r->models, st);
        fputs("</tbody>\n</table>\n</div>\n", out);
    }
    for (size_t m = 0; t && m < r->models; m++) {
        table_free(t[m].depth);
        table_free(t[m].routing);
        table_free(t[m].compare);
        free(t[m].checks);
    }
    free(t);
    return result;
}
