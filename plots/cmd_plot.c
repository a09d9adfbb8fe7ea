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
    const char *path, *folder;
    option_list formats, names;
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

static int list_figures(const table *from) {
    for (size_t i = 0; i < figure_count; i++) {
        const figure *f = &figures[i];
        const char *lacks = figure_lacks(f, from);
        if (lacks)
            printf("%s\tno\t%s (no section %s; `%s` makes it)\n", f->name, f->title, lacks,
                   f->made_by);
        else
            printf("%s\tyes\t%s\n", f->name, f->title);
    }
    return EXIT_DONE;
}

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

static int draw_figure(plot_request *request, const figure *f, const table *from, status *st) {
    static const char *const usual[] = {"svg"};
    const char *const *format = request->formats.count ? request->formats.item : usual;
    size_t formats = request->formats.count ? request->formats.count : 1, pages = 1;
    int result = figure_write(f, from, request->folder, format[0], &pages, st);
    if (result)
        return result;
    printf("%s/%s.gp\n", request->folder, f->name);
    for (size_t i = 0; i < formats && !result && !request->no_gnuplot; i++)
        result = draw_image(request, f, format[i], pages, st);
    return result;
}

static int draw_all(plot_request *request, const table *from, status *st) {
    size_t drawn = 0, tried = 0;
    const char *lacking = NULL;
    const figure *lacks_it = NULL;
    if (folder_make(request->folder, st))
        return FAILED;
    for (size_t i = 0; i < figure_count; i++) {
        const figure *f = &figures[i];
        const char *lacks = figure_lacks(f, from);
        if (!wanted(request, f))
            continue;
        if (interrupt_pending())
            return INTERRUPTED;
        if (lacks && request->names.count)
            return status_fail(st, "%s: no section %s, which %s needs; `%s` makes it",
                               table_path(from), lacks, f->name, f->made_by);
        if (lacks) {
            lacking = lacks;
            lacks_it = f;
            continue;
        }
        int result = draw_figure(request, f, from, st);
        if (result == NOT_DRAWN)
            log_note("%s: not drawn: %s", f->name, st->text);
        else if (result)
            return result;
        drawn += result == DONE;
        tried++;
    }
    if (drawn)
        return DONE;
    if (!tried)
        return status_fail(st, "%s: no figure can be drawn: no section %s; `%s` makes it",
                           table_path(from), lacking, lacks_it->made_by);
    return status_fail(st, "%s: no figure was drawn", table_path(from));
}

static int plot(plot_request *request, status *st) {
    table *from = NULL;
    if (check_request(request, st) || table_read(request->path, &from, st))
        return FAILED;
    int result = request->list ? list_figures(from) : draw_all(request, from, st);
    table_free(from);
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
         .help = "figures to draw; all that the table holds where none is given"},
        {.name = "list",
         .kind = OPTION_FLAG,
         .value = &request.list,
         .help = "list the figures and whether the table holds them, and draw nothing"},
        OPTION_QUIET,
        OPTION_VERBOSE,
        {0}};
    const positional_spec positionals[] = {{.name = "TABLE",
                                            .value = &request.path,
                                            .help = "table of `fathom routing`; - reads stdin"},
                                           {0}};
    const command_spec spec = {
        .name = "plot",
        .summary = "draw the figures of a table with gnuplot",
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
    option_list_clear(&request.formats);
    option_list_clear(&request.names);
    return result;
}
