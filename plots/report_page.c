/* report_page.c - the page: summary, figures with the models side by side, commands; see report.h.
 *
 * It holds no date and no duration: the same results make the same file. */
#include "plots/report.h"

#include "plots/figure.h"
#include "plots/page.h"
#include "runtime/base/command.h"
#include "runtime/base/output.h"
#include "runtime/base/version.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* ---- Which images ---- */

/* Whether a file that a step wrote is an image of a figure: .../NAME.svg, or NAME-2.svg of several
 * pages. */
static bool is_image(const char *file, const figure *f) {
    const char *name = strrchr(file, '/');
    size_t length = strlen(f->name);
    name = name ? name + 1 : file;
    if (strncmp(name, f->name, length) != 0)
        return false;
    name += length;
    if (*name == '-' && isdigit((unsigned char)name[1]))
        name += 1 + strspn(name + 1, "0123456789");
    return strcmp(name, ".svg") == 0;
}

static size_t count_images(const report_step *s, const figure *f) {
    size_t count = 0;
    for (size_t i = 0; i < s->files.count; i++)
        count += is_image(s->files.item[i], f);
    return count;
}

/* Over the steps of one kind. */
static bool kind_draws(const report *r, const step_kind *kind, const figure *f) {
    for (size_t i = 0; i < r->steps; i++)
        if (r->step[i].kind == kind && count_images(&r->step[i], f))
            return true;
    return false;
}

static bool kind_draws_any(const report *r, const step_kind *kind) {
    for (size_t k = 0; kind->part && k < figure_count; k++)
        if (kind_draws(r, kind, &figures[k]))
            return true;
    return false;
}

/* ---- Pieces ---- */

/* A title begins with a capital on the page, unless its first word is a name with underscores. */
static void put_title(FILE *out, const figure *f) {
    size_t word = strcspn(f->title, " ,:");
    bool name = memchr(f->title, '_', word) != NULL;
    char first[2] = {(char)(name ? *f->title : toupper((unsigned char)*f->title)), 0};
    html_text(out, first);
    html_text(out, f->title + 1);
}

/* The class of what belongs to one model: hidden where another is chosen. */
static void put_class(FILE *out, const report *r, const report_model *model) {
    if (model)
        fprintf(out, " class=\"m m%zu\"", (size_t)(model - r->model) + 1);
}

static int put_figure(FILE *out, const report *r, const report_step *s, const figure *f,
                      status *st) {
    size_t pages = count_images(s, f), page = 0;
    const char *name = s->model ? s->model->name : "all models";
    fputs("<figure", out);
    put_class(out, r, s->model);
    fputs("><figcaption>", out);
    html_text(out, name);
    fputs("</figcaption>\n", out);
    for (size_t i = 0; i < s->files.count; i++) {
        if (!is_image(s->files.item[i], f))
            continue;
        char *path = text_make(st, "%s/%s", r->options.out, s->files.item[i]);
        char *alt = pages > 1
                        ? text_make(st, "%s: %s, page %zu of %zu", name, f->title, ++page, pages)
                        : text_make(st, "%s: %s", name, f->title);
        int result = path && alt ? html_svg(out, path, alt, st) : FAILED;
        free(path);
        free(alt);
        if (result)
            return FAILED;
    }
    fputs("<code>", out);
    html_command(out, s->command);
    fputs("</code></figure>\n", out);
    return DONE;
}

/* What the command said about the figure: that a model has none and why, that a run is not in it.
 */
static void put_notes(FILE *out, const report *r, const report_step *s, const figure *f) {
    size_t length = strlen(f->name);
    for (size_t i = 0; i < s->said.count; i++) {
        const char *text = strchr(s->said.item[i], ' ') + 1;
        if (strncmp(text, f->name, length) != 0 || strncmp(text + length, ": ", 2) != 0)
            continue;
        fputs("<p", out);
        put_class(out, r, s->model);
        fputs("><span class=\"absent\">", out);
        html_print(out, "%s: %s.", s->model ? s->model->name : "all models", text + length + 2);
        fputs("</span></p>\n", out);
    }
}

/* One figure of all models that have it, side by side. */
static int put_figures(FILE *out, const report *r, const step_kind *kind, const figure *f,
                       status *st) {
    fprintf(out, "<article id=\"f%zu-%s\">\n<h3>", (size_t)(kind - step_kinds), f->name);
    put_title(out, f);
    fprintf(out, " <code>%s</code></h3>\n", f->name);
    if (f->shows) {
        fputs("<p>", out);
        html_text(out, f->shows);
        fputs("</p>\n", out);
    }
    if (f->caveat) {
        fputs("<p class=\"caveat\">", out);
        html_text(out, f->caveat);
        fputs("</p>\n", out);
    }
    fputs("<div class=\"row\">\n", out);
    for (size_t i = 0; i < r->steps; i++)
        if (r->step[i].kind == kind && count_images(&r->step[i], f) &&
            put_figure(out, r, &r->step[i], f, st))
            return FAILED;
    fputs("</div>\n", out);
    for (size_t i = 0; i < r->steps; i++)
        if (r->step[i].kind == kind)
            put_notes(out, r, &r->step[i], f);
    fputs("</article>\n", out);
    return DONE;
}

static int put_parts(FILE *out, const report *r, status *st) {
    for (size_t k = 0; k < step_kind_count; k++) {
        const step_kind *kind = &step_kinds[k];
        if (!kind_draws_any(r, kind))
            continue;
        fprintf(out, "<section id=\"part%zu\">\n<h2>", k);
        html_text(out, kind->part);
        fputs("</h2>\n", out);
        for (size_t i = 0; i < figure_count; i++)
            if (kind_draws(r, kind, &figures[i]) && put_figures(out, r, kind, &figures[i], st))
                return FAILED;
        fputs("</section>\n", out);
    }
    return DONE;
}

static void put_contents(FILE *out, const report *r) {
    fputs("<nav aria-label=\"Contents\"><ul>\n<li class=\"part\"><a href=\"#summary\">Summary</a>"
          "</li>\n",
          out);
    for (size_t k = 0; k < step_kind_count; k++) {
        const step_kind *kind = &step_kinds[k];
        if (!kind_draws_any(r, kind))
            continue;
        fprintf(out, "<li class=\"part\"><a href=\"#part%zu\">", k);
        html_text(out, kind->part);
        fputs("</a></li>\n", out);
        for (size_t i = 0; i < figure_count; i++) {
            if (!kind_draws(r, kind, &figures[i]))
                continue;
            fprintf(out, "<li><a href=\"#f%zu-%s\">", k, figures[i].name);
            put_title(out, &figures[i]);
            fputs("</a></li>\n", out);
        }
    }
    fputs("<li class=\"part\"><a href=\"#models\">Models and commands</a></li>\n</ul></nav>\n",
          out);
}

/* One radio button a model, and one for all. */
static void put_views(FILE *out, const report *r) {
    if (r->models < 2)
        return;
    for (size_t m = 0; m <= r->models; m++)
        fprintf(out, "<input class=\"view\" type=\"radio\" name=\"view\" id=\"v%zu\"%s>\n", m,
                m ? "" : " checked");
}

static void put_view_labels(FILE *out, const report *r) {
    if (r->models < 2)
        return;
    fputs("<div class=\"views\"><span>Show</span><label for=\"v0\">all models</label>\n", out);
    for (size_t m = 0; m < r->models; m++) {
        fprintf(out, "<label for=\"v%zu\">", m + 1);
        html_text(out, r->model[m].name);
        fputs("</label>\n", out);
    }
    fputs("</div>\n", out);
}

static char *page_title(const report *r, status *st) {
    size_t read = 0;
    for (size_t m = 0; m < r->models; m++)
        read += r->model[m].info != NULL;
    return r->models == 1 ? text_make(st, "How %s reads its own layers", r->model[0].name)
                          : text_make(st, "How %zu models read their own layers", read);
}

static void put_introduction(FILE *out, const report *r, const char *title) {
    const report_options *o = &r->options;
    fputs("<header>\n<h1>", out);
    html_text(out, title);
    fputs("</h1>\n<p>", out);
    html_print(out, "%s read ", r->models == 1 ? "It" : "Each of them");
    fputs("<code>", out);
    html_text(out, o->text ? o->text : o->tokens);
    fputs("</code>, ", out);
    if (o->sequences)
        fprintf(out, "at most %zu sequences of ", o->sequences);
    fprintf(out, "at most %zu tokens%s. What", o->context, o->sequences ? "" : " at a time");
    fputs(" a model does at every depth was recorded during the pass, statistics with "
          "intervals were computed from the recording, and figures were drawn from these. Under "
          "each figure stands the command that made it; the script and the data of each lie in "
          "the folder <code>figures</code> of its model.</p>\n</header>\n",
          out);
}

/* What went wrong, before all else. */
static void put_failures(FILE *out, const report *r) {
    bool some = false;
    for (size_t m = 0; m < r->models; m++)
        some = some || !r->model[m].info;
    for (size_t i = 0; i < r->steps; i++)
        some = some || r->step[i].state == STEP_FAILED;
    if (!some)
        return;
    fputs("<section class=\"bad\" id=\"missing\">\n<h2>What is missing</h2>\n<ul>\n", out);
    for (size_t m = 0; m < r->models; m++) {
        if (r->model[m].info)
            continue;
        fputs("<li>", out);
        html_print(out, "%s could not be read: %s", r->model[m].name, r->model[m].why);
        fputs("</li>\n", out);
    }
    for (size_t i = 0; i < r->steps; i++) {
        const report_step *s = &r->step[i];
        if (s->state != STEP_FAILED && s->state != STEP_LEFT_OUT)
            continue;
        fputs("<li>", out);
        html_print(out, "%s%s%s %s: %s", s->kind->name, s->model ? " of " : "",
                   s->model ? s->model->name : "",
                   s->state == STEP_FAILED ? "failed" : "was left out", said_why(&s->said));
        fputs("</li>\n", out);
    }
    fputs("</ul>\n</section>\n", out);
}

static int put_summary(FILE *out, const report *r, status *st) {
    fputs("<section id=\"summary\">\n<h2>Summary</h2>\n", out);
    if (report_summary(out, r, st))
        return FAILED;
    fputs(
        "<p class=\"soft\">Below a number stands its 95 % interval, where there are 8 "
        "sequences that do not overlap. It covers the choice of text and not the training seed: "
        "two models differ by more than it shows, and one run of each "
        "does not say that one method is better than another. Null: the mean over sites of random "
        "queries whose logits vary as much as those of the trained ones; by chance alone a site "
        "lies above all R draws once in R + 1. A mean over sites leaves out sites with one "
        "source.</p>\n</section>\n",
        out);
    return DONE;
}

static void put_details(FILE *out, const char *title, const char *text) {
    fputs("<details><summary>", out);
    html_text(out, title);
    fputs("</summary><pre tabindex=\"0\">", out);
    html_lines(out, text);
    fputs("</pre></details>\n", out);
}

static void put_commands(FILE *out, const report *r, const report_model *model) {
    fputs("<pre class=\"wrap\">", out);
    for (size_t i = 0; i < r->steps; i++) {
        const report_step *s = &r->step[i];
        if (s->model != model || !s->command || s->state == STEP_EMPTY || s->state == STEP_LEFT_OUT)
            continue;
        html_command(out, s->command);
        fputc('\n', out);
    }
    fputs("</pre>\n", out);
}

static void put_models(FILE *out, const report *r) {
    fputs("<section id=\"models\">\n<h2>Models and commands</h2>\n<p>These commands, run in this "
          "order, make everything above once its folders are there. This one runs them "
          "all:</p>\n<pre class=\"wrap\">",
          out);
    html_command(out, command_line());
    fputs("</pre>\n", out);
    for (size_t m = 0; m < r->models; m++) {
        if (!r->model[m].info)
            continue;
        fprintf(out, "<article class=\"m m%zu\">\n<h3>", m + 1);
        html_text(out, r->model[m].name);
        fputs("</h3>\n", out);
        put_details(out, "What the checkpoint holds (fathom info)", r->model[m].info);
        put_commands(out, r, &r->model[m]);
        fputs("</article>\n", out);
    }
    if (r->models > 1) {
        fputs("<article>\n<h3>All models together</h3>\n", out);
        put_commands(out, r, NULL);
        fputs("</article>\n", out);
    }
    fputs("</section>\n", out);
}

static int put_page(FILE *out, const report *r, status *st) {
    char *title = page_title(r, st);
    if (!title)
        return FAILED;
    page_begin(out, title, r->models > 1 ? r->models + 1 : 0);
    put_views(out, r);
    put_introduction(out, r, title);
    free(title);
    put_failures(out, r);
    put_contents(out, r);
    put_view_labels(out, r);
    fputs("<main>\n", out);
    if (put_summary(out, r, st) || put_parts(out, r, st))
        return FAILED;
    put_models(out, r);
    fprintf(out, "</main>\n<footer>fathom %s (%s)</footer>\n", FATHOM_VERSION, build_hash());
    page_end(out);
    return DONE;
}

int report_page(const report *r, status *st) {
    char *path = text_make(st, "%s/index.html", r->options.out);
    output *out;
    if (!path || output_open(path, &out, st)) {
        free(path);
        return FAILED;
    }
    free(path);
    if (put_page(output_stream(out), r, st)) {
        output_abandon(out);
        return FAILED;
    }
    return output_commit(out, st);
}
