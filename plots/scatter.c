#include "plots/scatter.h"

#include "plots/figure.h"
#include "plots/runs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEFT = 46,
    RIGHT = SHEET_WIDTH - 14,
    GAP = 20,         /* room for the outer halves of two marks' labels */
    TITLE_LINES = 26, /* over each row */
    X_TICKS = 16,     /* under each row */
    X_LABEL = 16,
    LEGEND_LINE = 12,
    NAME_HEIGHT = 8, /* of FONT_SMALL, in pixels */
    MARK = 3,        /* half a mark */
    PLACES = 6,      /* of a name about its point */
};
#define NAME_CHAR 4.3

/* ---- An axis with 0 and both signs ---- */

double signed_axis_at(const signed_axis *axis, double value) {
    return asinh(value / (2 * axis->unit)) / log(10);
}

signed_axis signed_axis_of(double low, double high) {
    double most = fmax(fabs(fmin(low, 0)), fabs(fmax(high, 0)));
    signed_axis axis = {.decade = most > 0 && isfinite(most) ? pow(10, floor(log10(most))) : 1};
    axis.unit = axis.decade / 500; /* three marks a side: 500, 50 and 5 units */
    axis.low = low < 0 ? signed_axis_at(&axis, low) - 0.3 : -0.3;
    axis.high = high > 0 ? signed_axis_at(&axis, high) + 0.3 : 0.3;
    return axis;
}

void signed_axis_function(FILE *script, const signed_axis *axis) {
    fprintf(script,
            "# linear near 0, logarithmic to both sides\n"
            "S(v) = asinh(v / %.6g) / log(10)\n",
            2 * axis->unit);
}

void signed_axis_put(FILE *script, const signed_axis *axis, const char *name, bool labels) {
    fprintf(script, "set %srange [%.6g : %.6g]; set %stics (", name, axis->low, axis->high, name);
    for (int i = -3; i <= 3; i++) {
        double value = i ? copysign(axis->decade * pow(10, abs(i) - 3), i) : 0;
        double at = signed_axis_at(axis, value);
        char label[32] = "";
        if (labels)
            snprintf(label, sizeof label, "%g", value);
        if (at >= axis->low && at <= axis->high)
            fprintf(script, "'%s' %.4f, ", label, at);
    }
    fputs("'' 1e9)\n", script);
}

/* ---- Building ---- */

int scatter_add(scatter_panel *panel, scatter_point point, status *st) {
    if (isnan(point.x) || isnan(point.y))
        return DONE;
    if (panel->points == panel->room) {
        panel->room = 2 * panel->room + 64;
        scatter_point *grown = realloc(panel->point, panel->room * sizeof *grown);
        if (!grown)
            return status_fail(st, "no memory for %zu points", panel->room);
        panel->point = grown;
    }
    panel->point[panel->points++] = point;
    return DONE;
}

void scatter_clear(scatter *c) {
    for (size_t i = 0; i < c->panels; i++)
        free(c->panel[i].point);
    c->panels = 0;
}

/* ---- Names beside points ---- */

typedef struct box {
    double left, right, top, bottom;
} box;

typedef struct place {
    double left, right, top, bottom;
    nice_range x;
    const signed_axis *y;
} place;

static double pixel_x(const place *p, double x) {
    return p->left + (x - p->x.low) / (p->x.high - p->x.low) * (p->right - p->left);
}

static double pixel_y(const place *p, double y) {
    return p->bottom -
           (signed_axis_at(p->y, y) - p->y->low) / (p->y->high - p->y->low) * (p->bottom - p->top);
}

static bool apart(const box *a, const box *b) {
    return a->right <= b->left || b->right <= a->left || a->bottom <= b->top || b->bottom <= a->top;
}

static bool free_of_all(const box *name, const scatter_panel *panel, const place *p,
                        const box *taken, size_t count) {
    if (name->left < p->left + 1 || name->right > p->right - 1 || name->top < p->top + 1 ||
        name->bottom > p->bottom - 1)
        return false;
    for (size_t i = 0; i < count; i++)
        if (!apart(name, &taken[i]))
            return false;
    for (size_t i = 0; i < panel->points; i++) {
        double x = pixel_x(p, panel->point[i].x), y = pixel_y(p, panel->point[i].y);
        const box mark = {x - MARK, x + MARK, y - MARK, y + MARK};
        const box line = {x - 1, x + 1, pixel_y(p, panel->point[i].high),
                          pixel_y(p, panel->point[i].low)};
        if (!apart(name, &mark) || (!isnan(line.top) && !isnan(line.bottom) && !apart(name, &line)))
            return false;
    }
    return true;
}

static int by_loss(const void *a, const void *b) {
    double first = fabs((*(const scatter_point *const *)a)->y),
           second = fabs((*(const scatter_point *const *)b)->y);
    return (first < second) - (first > second);
}

/* Names of the points of most effect first, to the right, left, above or below; those without room
 * are left out. */
static int put_names(const sheet *s, const scatter_panel *panel, const place *p, status *st) {
    const scatter_point **order = mem_array(panel->points, sizeof(void *), "points", st);
    box *taken = mem_array(panel->points, sizeof *taken, "names", st);
    size_t count = 0;
    int rc = order && taken ? DONE : FAILED;
    for (size_t i = 0; !rc && i < panel->points; i++)
        order[i] = &panel->point[i];
    if (!rc)
        qsort(order, panel->points, sizeof *order, by_loss);
    for (size_t i = 0; !rc && i < panel->points; i++) {
        const scatter_point *point = order[i];
        double x = pixel_x(p, point->x), y = pixel_y(p, point->y);
        double width = (double)text_chars(point->name) * NAME_CHAR, half = NAME_HEIGHT / 2.0;
        const box where[PLACES] = {
            {x + MARK + 1, x + MARK + 1 + width, y - half, y + half},
            {x - MARK - 1 - width, x - MARK - 1, y - half, y + half},
            {x - width / 2, x + width / 2, y - MARK - 1 - NAME_HEIGHT, y - MARK - 1},
            {x - width / 2, x + width / 2, y + MARK + 1, y + MARK + 1 + NAME_HEIGHT},
            {x - width, x + MARK, y + MARK + 1, y + MARK + 1 + NAME_HEIGHT},
            {x - MARK, x + width, y + MARK + 1, y + MARK + 1 + NAME_HEIGHT}};
        size_t k = 0;
        if (!*point->name)
            continue;
        while (k < PLACES && !free_of_all(&where[k], panel, p, taken, count))
            k++;
        if (k == PLACES)
            continue;
        taken[count++] = where[k];
        sheet_label(s, (where[k].left + where[k].right) / 2, (where[k].top + where[k].bottom) / 2,
                    point->name, FONT_SMALL, "center tc rgb '#444444'");
    }
    free(order);
    free(taken);
    return rc;
}

/* ---- Drawing ---- */

static void put_data(scatter *c, sheet *s) {
    for (size_t i = 0; i < c->panels; i++) {
        scatter_panel *panel = &c->panel[i];
        panel->index = s->indexes;
        for (size_t mark = 0; mark < c->marks; mark++) {
            bool first = true;
            for (size_t k = 0; k < panel->points; k++) {
                const scatter_point *at = &panel->point[k];
                if (at->mark != mark)
                    continue;
                if (first)
                    sheet_data(s, "%s, %s; columns: %s, %s, low, high, colour", panel->title,
                               c->mark[mark].name, panel->title, c->y);
                first = false;
                const double number[] = {at->x, at->y, at->low, at->high, at->colour};
                for (size_t n = 0; n < 5; n++)
                    put_number(s->data, number[n], n < 4 ? ' ' : '\n');
            }
        }
    }
}

static bool has_mark(const scatter_panel *panel, size_t mark) {
    for (size_t k = 0; k < panel->points; k++)
        if (panel->point[k].mark == mark)
            return true;
    return false;
}

static double put_legend(const scatter *c, const sheet *s, double y, bool draw) {
    double x = 12, line = 0;
    for (size_t mark = 0; mark < c->marks; mark++) {
        bool used = false;
        char extra[96];
        for (size_t i = 0; i < c->panels; i++)
            used = used || has_mark(&c->panel[i], mark);
        if (!used)
            continue;
        double width = 20 + (double)strlen(c->mark[mark].name) * 5;
        if (x > 12 && x + width > SHEET_WIDTH - 4) {
            x = 12;
            line++;
        }
        snprintf(extra, sizeof extra, "point lt %d pt %d ps 0.6 offset 0.6, -0.2",
                 c->mark[mark].colour, c->mark[mark].type);
        if (draw)
            sheet_label(s, x, y + 6 + line * LEGEND_LINE, c->mark[mark].name, FONT_TICK, extra);
        x += width;
    }
    return (line + 1) * LEGEND_LINE;
}

static int put_panel(const scatter *c, const sheet *s, const scatter_panel *panel, place *p,
                     status *st) {
    double low = INFINITY, high = -INFINITY;
    for (size_t k = 0; k < panel->points; k++) {
        low = fmin(low, panel->point[k].x);
        high = fmax(high, panel->point[k].x);
    }
    double pad = high > low ? 0.06 * (high - low) : fmax(0.05 * fabs(low), 1e-9);
    p->x = nice_range_of(low - pad, high + pad);
    if (p->x.low < 0 && low >= 0)
        p->x.low = -0.06 * p->x.high;
    sheet_label(s, p->left, p->top - 18, panel->title, FONT_TEXT, "");
    sheet_label(s, p->left, p->top - 7, panel->below, FONT_SMALL, "tc rgb '#444444'");
    if (put_names(s, panel, p, st))
        return FAILED;
    sheet_panel(s, p->left, p->right, p->top, p->bottom);
    double step = p->x.step * (c->columns > 1 ? 2 : 1);
    fprintf(s->script, "set xrange [%.6g : %.6g]; set xtics out nomirror offset 0, 0.4 %.6g\n",
            p->x.low, p->x.high, step);
    fprintf(s->script, "plot 0 with lines lw 0.6 lc rgb grey");
    size_t index = panel->index;
    for (size_t mark = 0; mark < c->marks; mark++) {
        if (!has_mark(panel, mark))
            continue;
        bool bars = false;
        for (size_t k = 0; k < panel->points; k++)
            bars = bars || (panel->point[k].mark == mark && !isnan(panel->point[k].low) &&
                            !isnan(panel->point[k].high));
        if (bars)
            fprintf(s->script,
                    ", \\\n    D index %zu using 1:(S($3)):(0):(S($4)-S($3)) with vectors nohead "
                    "lw 0.6 lc rgb '#999999'",
                    index);
        fprintf(s->script,
                ", \\\n    D index %zu using 1:(S($2)):5 with points pt %d ps 0.5 lc variable",
                index, c->mark[mark].type);
        index++;
    }
    fputc('\n', s->script);
    sheet_clear_labels(s);
    return DONE;
}

static signed_axis axis_of(const scatter *c) {
    double low = 0, high = 0;
    for (size_t i = 0; i < c->panels; i++)
        for (size_t k = 0; k < c->panel[i].points; k++) {
            const scatter_point *at = &c->panel[i].point[k];
            low = fmin(fmin(low, at->y), at->low); /* fmin and fmax drop NaN */
            high = fmax(fmax(high, at->y), at->high);
        }
    return signed_axis_of(low, high);
}

/* Panels with points move to the front; returns their number. */
static size_t drop_empty(scatter *c) {
    size_t kept = 0;
    for (size_t i = 0; i < c->panels; i++) {
        scatter_panel panel = c->panel[i];
        if (panel.points)
            c->panel[kept++] = panel;
        else
            free(panel.point);
    }
    return kept;
}

int scatter_draw(scatter *c, sheet *s, status *st) {
    c->panels = drop_empty(c);
    if (!c->panels) {
        status_fail(st, "none of its numbers is defined");
        return NOT_DRAWN;
    }
    const signed_axis axis = axis_of(c);
    size_t columns = c->panels > 1 ? c->columns : 1;
    size_t rows = (c->panels + columns - 1) / columns;
    double height = c->panels == 1 ? 190 : rows < 4 ? 110 : 84;
    double width = (RIGHT - LEFT - (double)(columns - 1) * GAP) / (double)columns;
    double first_top = SHEET_TITLES + put_legend(c, s, 0, false) + TITLE_LINES;
    double pitch = height + TITLE_LINES + X_TICKS, bottom = first_top + (double)rows * pitch;
    bottom += X_LABEL - TITLE_LINES;
    put_data(c, s);
    s->height = (int)(bottom + 6 + (double)(sheet_notes(s, 0, c->notes, false) * NOTE_LINE) - 3);
    sheet_page(s, 0);
    sheet_titles(s, c->title, c->subtitle);
    put_legend(c, s, SHEET_TITLES, true);
    sheet_label(s, (LEFT + RIGHT) / 2.0, bottom - 8, c->x, FONT_TEXT, "center");
    sheet_label(s, 8, (first_top + bottom - X_TICKS - X_LABEL) / 2, c->y, FONT_TEXT,
                "center rotate by 90");
    sheet_notes(s, bottom + 6, c->notes, true);
    signed_axis_function(s->script, &axis);
    for (size_t i = 0; i < c->panels; i++) {
        place p = {.left = LEFT + (double)(i % columns) * (width + GAP),
                   .top = first_top + (double)(i / columns) * pitch,
                   .y = &axis};
        p.right = p.left + width;
        p.bottom = p.top + height;
        signed_axis_put(s->script, &axis, "y", i % columns == 0);
        if (put_panel(c, s, &c->panel[i], &p, st))
            return FAILED;
    }
    sheet_page_end(s);
    return DONE;
}
