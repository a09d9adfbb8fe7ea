#include "plots/figure.h"

#include "runtime/base/output.h"

#include <stdlib.h>
#include <string.h>

static const char *const weights_sections[] = {"SIT", "MEA", NULL};
static const char *const depth_sections[] = {"SIT", "MEA", "ENN", "HDV", "TIN", "LBN", NULL};
#define ROUTING "fathom routing RECORDING"

const figure figures[] = {
    {.name = "depth_attention",
     .title = "which sources each site reads: mean weight, mean over heads",
     .sections = weights_sections,
     .made_by = ROUTING,
     .shows = "Each row is a site and each column an earlier source: the colour is the weight that "
              "the site gives the source, averaged over tokens and routing heads.",
     .caveat = "A large mean weight says where a site reads, not that the source matters there.",
     .draw = draw_depth_attention},
    {.name = "depth_attention_heads",
     .title = "the same for each routing head",
     .sections = weights_sections,
     .made_by = ROUTING,
     .shows = "The same map for every routing head by itself, on one colour scale.",
     .caveat = "Heads with random queries differ too: compare with the null band of "
               "head_divergence before calling heads specialised.",
     .draw = draw_depth_attention_heads},
    {.name = "routing_by_depth",
     .title = "entropy_norm, head_divergence, token_information and lookback_norm by depth",
     .sections = depth_sections,
     .made_by = ROUTING,
     .shows = "How spread out, how different between heads, how token-dependent and how far back "
              "the routing of each site is, from the first layer to the last.",
     .caveat = "Only what lies outside the band of equally sharp random queries is more than "
               "sharpness explains.",
     .draw = draw_routing_by_depth},
};
const size_t figure_count = sizeof figures / sizeof *figures;

const figure *figure_find(const char *name) {
    for (size_t i = 0; i < figure_count; i++)
        if (strcmp(figures[i].name, name) == 0)
            return &figures[i];
    return NULL;
}

const char *figure_lacks(const figure *f, const table *from) {
    for (size_t i = 0; f->sections[i]; i++)
        if (!table_find(from, f->sections[i]))
            return f->sections[i];
    return NULL;
}

/* FOLDER/NAME.EXTENSION, or NULL with `st` filled. */
static char *path_of(const char *folder, const char *name, const char *extension, status *st) {
    size_t size = strlen(folder) + strlen(name) + strlen(extension) + 3;
    char *path = mem_array(size, 1, "a path", st);
    if (path)
        snprintf(path, size, "%s/%s.%s", folder, name, extension);
    return path;
}

/* The head depends on what was drawn, so the body waits in memory. */
static int write_script(const figure *f, const table *from, const sheet *s, const char *body,
                        const char *path, const char *format, status *st) {
    output *out;
    if (output_open(path, &out, st))
        return FAILED;
    bool utf8 = false;
    for (const char *at = body; *at; at++)
        utf8 = utf8 || (*at & 0x80);
    const char *source = *table_command(from) ? table_command(from) : table_path(from);
    sheet_head(output_stream(out), s, f->name, f->title, source, format, utf8);
    fputs(body, output_stream(out));
    fputs("unset output\n", output_stream(out));
    return output_commit(out, st);
}

int figure_write(const figure *f, const table *from, const char *folder, const char *format,
                 size_t *pages, status *st) {
    int result = FAILED;
    char *body = NULL;
    size_t body_bytes;
    output *data = NULL;
    sheet s = {.pages = 1};
    char *data_path = path_of(folder, f->name, "dat", st);
    char *script_path = path_of(folder, f->name, "gp", st);
    if (!data_path || !script_path)
        goto end;
    s.script = open_memstream(&body, &body_bytes);
    if (!s.script) {
        status_fail(st, "no memory for the script of %s", f->name);
        goto end;
    }
    if (output_open(data_path, &data, st))
        goto end;
    s.data = output_stream(data);
    result = f->draw(from, &s, st);
    int closed = fclose(s.script);
    s.script = NULL;
    if (result != DONE)
        goto end;
    result = FAILED;
    if (closed) {
        status_fail(st, "no memory for the script of %s", f->name);
        goto end;
    }
    output *whole = data;
    data = NULL;
    if (output_commit(whole, st) || write_script(f, from, &s, body, script_path, format, st))
        goto end;
    *pages = s.pages;
    result = DONE;
end:
    output_abandon(data);
    if (s.script)
        fclose(s.script);
    free(body);
    free(data_path);
    free(script_path);
    return result;
}
