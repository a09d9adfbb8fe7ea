/* fathom plot: figures from a table, as gnuplot scripts, their data and images. */
#include "plots/figure.h"
#include "plots/gnuplot.h"

#include "runtime/base/command.h"
#include "runtime/base/interrupt.h"
#include "runtime/base/log.h"
#include "runtime/base/options.h"
#include "runtime/base/output.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const format_names[] = {"svg", "png", "pdf"};
enum { FORMATS = sizeof format_names / sizeof *format_names };

typedef struct plot_request {
    const char *folder;
    option_list paths, formats, names;
    bool list;
    bool no_gnuplot; /* found out once, then not tried again */
    status missing;  /* what to say of it at the end */
} plot_request;

/* The names of a list must be known ones. */
static int check_names(const option_list *list, const char *what, const char *const *known,
                       size_t count, status *st) {
    for (size_t i = 0; i < list->count; i++) {
        size_t at = 0;
        while (at < count && strcmp(list->item[i], known[at]) != 0)
            at++;
        if (at < count)
            continue;
        status_fail(st, "unknown %s '%s'", what, list->item[i]);
        int near = nearest_name(list->item[i], known, count);
        size_t used = strlen(st->text);
        if (near >= 0)
            snprintf(st->text + used, sizeof st->text - used, "; did you mean '%s'?", known[near]);
        for (size_t k = 0; near < 0 && k < count; k++) {
            used = strlen(st->text);
            snprintf(st->text + used, sizeof st->text - used, "%s%s", k ? ", " : "; there are ",
                     known[k]);
        }
        return FAILED;
    }
    return DONE;
}

static int check_request(const plot_request *request, status *st) {
    const char **known = mem_array(figure_count, sizeof *known, "names", st);
    if (!known)
        return FAILED;
    for (size_t i = 0; i < figure_count; i++)
        known[i] = figures[i].name;
    int result = check_names(&request->names, "figure", known, figure_count, st);
    free(known);
    if (!result)
        result = check_names(&request->formats, "format", format_names, FORMATS, st);
    if (!result && !request->list && !request->folder)
        result = status_fail(st, "where should the figures go? Give a folder with -o FOLDER");
    return result;
}

static bool wanted(const plot_request *request, const figure *f) {
    for (size_t i = 0; i < request->names.count; i++)
        if (strcmp(request->names.item[i], f->name) == 0)
            return true;
    return request->names.count == 0;
}

/* ---- Tables ---- */

typedef struct table_list {
    table **item; /* [count] */
    size_t count;
} table_list;

static void free_tables(table_list *list) {
    for (size_t i = 0; list->item && i < list->count; i++)
        table_free(list->item[i]);
    free(list->item);
}

static int read_tables(const option_list *paths, table_list *list, status *st) {
    *list = (table_list){.item = mem_array(paths->count, sizeof *list->item, "tables", st)};
    if (!list->item)
        return FAILED;
    for (; list->count < paths->count; list->count++)
        if (table_read(paths->item[list->count], &list->item[list->count], st)) {
            free_tables(list);
            return FAILED;
        }
    return DONE;
}

/* Whether the command that made the table is the one that makes what the figure needs. */
static bool made_for(const figure *f, const table *from) {
    size_t words = strcspn(f->made_by, " ");
    words += f->made_by[words] ? 1 + strcspn(f->made_by + words + 1, " ") : 0;
    return strncmp(table_command(from), f->made_by, words) == 0;
}

/* The tables that hold what a figure needs, to some [all->count]. Those of its own command that do
 * not are named where others do. */
static size_t choose_tables(const figure *f, const table_list *all, const table **some,
                            bool noted) {
    size_t count = 0;
    for (size_t i = 0; i < all->count; i++)
        if (!figure_lacks(f, all->item[i]))
            some[count++] = all->item[i];
    for (size_t i = 0; noted && count && i < all->count; i++) {
        const char *lacks = figure_lacks(f, all->item[i]);
        if (lacks && made_for(f, all->item[i]))
            log_note("%s: without %s, which has no section %s", f->name, table_path(all->item[i]),
                     lacks);
    }
    return count;
}

static int list_figures(const table_list *all, status *st) {
    const table **some = mem_array(all->count, sizeof *some, "tables", st);
    if (!some)
        return FAILED;
    for (size_t i = 0; i < figure_count; i++) {
        const figure *f = &figures[i];
        if (choose_tables(f, all, some, false))
            printf("%s\tyes\t%s\n", f->name, f->title);
        else
            printf("%s\tno\t%s (no section %s; `%s` makes it)\n", f->name, f->title,
                   figure_lacks(f, all->item[0]), f->made_by);
    }
    free(some);
    return DONE;
}

/* ---- Images ---- */

/* FOLDER/NAME.FORMAT or, of several pages, FOLDER/NAME-PAGE.FORMAT. */
static void image_path(char *path, size_t size, const plot_request *request, const figure *f,
                       const char *format, size_t page, size_t pages) {
    if (pages > 1)
        snprintf(path, size, "%s/%s-%zu.%s", request->folder, f->name, page + 1, format);
    else
        snprintf(path, size, "%s/%s.%s", request->folder, f->name, format);
}

/* One format of one figure. A failed run leaves no image behind: it may be half one. */
static int draw_image(plot_request *request, const figure *f, const char *format, size_t pages,
                      status *st) {
    char said[1024], path[4096];
    if (strcmp(format, "pdf") == 0)
        pages = 1;
    int result = gnuplot_run(request->folder, f->name, format, said, sizeof said, st);
    if (result == GNUPLOT_MISSING) {
        status_fail(&request->missing,
                    "%s: no images; the scripts and their data are in %s. Install gnuplot "
                    "(gnuplot-nox), or set GNUPLOT to its path, and run `gnuplot NAME.gp` there",
                    st->text, request->folder);
        request->no_gnuplot = true;
        return DONE; /* the scripts of the other figures are still to be written */
    }
    if (!result && *said)
        log_warn("%s/%s.gp: gnuplot says: %s", request->folder, f->name, said);
    for (size_t page = 0; page < pages; page++) {
        image_path(path, sizeof path, request, f, format, page, pages);
        if (result)
            unlink(path);
        else
            printf("%s\n", path);
    }
    return result;
}

static int draw_figure(plot_request *request, const figure *f, const table *const *from,
                       size_t tables, status *st) {
    static const char *const usual[] = {"svg"};
    const char *const *format = request->formats.count ? request->formats.item : usual;
    size_t formats = request->formats.count ? request->formats.count : 1, pages = 1;
    int result = figure_write_all(f, from, tables, request->folder, format[0], &pages, st);
    if (result)
        return result;
    printf("%s/%s.gp\n", request->folder, f->name);
    for (size_t i = 0; i < formats && !result && !request->no_gnuplot; i++)
        result = draw_image(request, f, format[i], pages, st);
    return result;
}

/* One figure of the list; adds to how many were tried and drawn. `some` [all->count] is scratch. */
static int try_figure(plot_request *request, const figure *f, const table_list *all,
                      const table **some, size_t *tried, size_t *drawn, status *st) {
    size_t tables = choose_tables(f, all, some, true);
    if (!tables && request->names.count)
        return status_fail(st, "%s: no section %s, which %s needs; `%s` makes it",
                           table_path(all->item[0]), figure_lacks(f, all->item[0]), f->name,
                           f->made_by);
    if (!tables)
        return DONE;
    int result = draw_figure(request, f, some, tables, st);
    if (result == NOT_DRAWN)
        log_note("%s: not drawn: %s", f->name, st->text);
    else if (result)
        return result;
    *drawn += result == DONE;
    ++*tried;
    return DONE;
}

static int draw_all(plot_request *request, const table_list *all, status *st) {
    size_t drawn = 0, tried = 0;
    const table *first = all->item[0];
    const table **some = mem_array(all->count, sizeof *some, "tables", st);
    int result = some ? folder_make(request->folder, st) : FAILED;
    for (size_t i = 0; !result && i < figure_count; i++) {
        if (!wanted(request, &figures[i]))
            continue;
        result = interrupt_pending()
                     ? INTERRUPTED
                     : try_figure(request, &figures[i], all, some, &tried, &drawn, st);
    }
    free(some);
    if (result || drawn)
        return result;
    if (!tried)
        return status_fail(st, "%s: no figure can be drawn: no section %s; `%s` makes it",
                           table_path(first), figure_lacks(&figures[0], first), figures[0].made_by);
    return status_fail(st, "%s: no figure was drawn", table_path(first));
}

static int plot(plot_request *request, status *st) {
    table_list all;
    if (check_request(request, st) || read_tables(&request->paths, &all, st))
        return FAILED;
    int result = request->list ? list_figures(&all, st) : draw_all(request, &all, st);
    free_tables(&all);
    return result;
}

int cmd_plot(int argc, char **argv) {
    plot_request request = {0};
    const option_spec options[] = {
        {.name = "output",
         .letter = 'o',
         .kind = OPTION_TEXT,
         .value = &request.folder,
         .metavar = "FOLDER",
         .help = "folder of the scripts, data and images; made where missing"},
        {.name = "format",
         .kind = OPTION_LIST,
         .value = &request.formats,
         .metavar = "FORMAT",
         .help = "svg, png or pdf, or several; svg where none is given"},
        {.name = "figure",
         .kind = OPTION_LIST,
         .value = &request.names,
         .metavar = "NAME",
         .help = "figures to draw; all that the tables hold where none is given"},
        {.name = "list",
         .kind = OPTION_FLAG,
         .value = &request.list,
         .help = "list the figures and whether a table holds them, and draw nothing"},
        OPTION_QUIET,
        OPTION_VERBOSE,
        {0}};
    const positional_spec positionals[] = {
        {.name = "TABLE",
         .value = &request.paths,
         .help = "tables of `fathom routing`, `depth` or `compare`; - reads stdin. Of several, "
                 "figures that can overlay runs do",
         .many = true},
        {0}};
    const command_spec spec = {
        .name = "plot",
        .summary = "draw the figures of tables with gnuplot",
        .options = options,
        .positionals = positionals,
        .notes = "Each figure is a script NAME.gp, its data NAME.dat in plain text, and the image; "
                 "`gnuplot NAME.gp` in that folder draws it again without fathom. Without gnuplot "
                 "the scripts and data are still written, and the exit status is 2. The "
                 "environment variable GNUPLOT names "
                 "another gnuplot. Prints the files it made."};
    status st;
    const int parsed = options_parse(&spec, argc, argv);
    if (parsed != OPTIONS_RUN)
        return parsed;
    interrupt_install();
    int result = plot(&request, &st);
    if (!result && request.no_gnuplot) {
        st = request.missing;
        result = FAILED;
    }
    if (result == INTERRUPTED)
        result = EXIT_INTERRUPTED;
    else if (result)
        result = command_fail(&st);
    option_list_clear(&request.paths);
    option_list_clear(&request.formats);
    option_list_clear(&request.names);
    return result;
}
