#include "plots/figure.h"

#include "runtime/base/output.h"

#include <stdlib.h>
#include <string.h>

static const char *const weights_sections[] = {"SIT", "MEA", NULL};
static const char *const depth_sections[] = {"SIT", "MEA", "ENN", "HDV", "TIN", "LBN", NULL};
static const char *const raw_sections[] = {"SIT", "MEA", "ENT", "LBK", NULL};
static const char *const kind_sections[] = {"SIT", "MEA", "KND", NULL};
static const char *const contribution_sections[] = {"SIT", "MEA", "CON", "SCN", NULL};
static const char *const head_js_sections[] = {"SIT", "MEA", "HJS", NULL};
static const char *const cos_sections[] = {"SIT", "MEA", "COS", NULL};
static const char *const reach_sections[] = {"SIT", "MEA", "RCH", NULL};
static const char *const matrix_sections[] = {"SIT", "MEA", "DMX", NULL};
static const char *const magnitude_sections[] = {"MAG", NULL};
static const char *const gradient_sections[] = {"GRD", NULL};
static const char *const position_sections[] = {"LPO", NULL};
static const char *const token_sections[] = {"TOK", NULL};
static const char *const summary_sections[] = {"LOS", "CAV", NULL};
static const char *const compared_sections[] = {"DEP", NULL};
static const char *const compared_routing[] = {"CST", "RJS", NULL};
#define ROUTING "fathom routing RECORDING"
#define DEPTH "fathom depth RECORDING"
#define COMPARE "fathom compare RECORDING RECORDING"

const figure figures[] = {
    {.name = "depth_attention",
     .title = "which sources each site reads: mean weight, mean over heads",
     .sections = weights_sections,
     .made_by = ROUTING,
     .shows = "Each row is a site and each column an earlier source: the colour is the weight that "
              "the site gives the source, averaged over tokens and routing heads.",
     .caveat = "A large mean weight says where a site reads, not that the source matters there.",
     .draw = draw_depth_attention},
    {.name = "depth_attention_lift",
     .title = "mean weight relative to uniform weights, on a scale of doublings",
     .sections = weights_sections,
     .made_by = ROUTING,
     .shows = "The same weights divided by what each source would get if all had the same: orange "
              "sources get more than their part, blue ones less.",
     .caveat = "Deep sites have many sources, so that one of twice its part may still be small.",
     .draw = draw_depth_attention_lift},
    {.name = "depth_attention_heads",
     .title = "which sources each routing head reads: its mean weight",
     .sections = weights_sections,
     .made_by = ROUTING,
     .shows = "The same map for every routing head by itself, on one colour scale.",
     .caveat = "Heads with random queries differ too: compare with the null band of "
               "head_divergence before calling heads specialised.",
     .draw = draw_depth_attention_heads},
    {.name = "head_deviation",
     .title = "each routing head's mean weight minus the mean over heads",
     .sections = weights_sections,
     .made_by = ROUTING,
     .shows = "Where a routing head reads a source more (orange) or less (blue) than the heads do "
              "on average.",
     .caveat = "Heads with random queries deviate too, and so does one seed of training from "
               "another: a pattern here is no proof of a role.",
     .draw = draw_head_deviation},
    {.name = "routing_by_depth",
     .title = "entropy, head divergence, token information and lookback by depth, normalised",
     .sections = depth_sections,
     .made_by = ROUTING,
     .shows = "How spread out, how different between heads, how token-dependent and how far back "
              "the routing of each site is, from the first layer to the last.",
     .caveat = "Only what lies outside the band of equally sharp random queries is more than "
               "sharpness explains.",
     .draw = draw_routing_by_depth},
    {.name = "routing_by_depth_raw",
     .title = "entropy, sources in use, lookback and the largest weight by depth, not normalised",
     .sections = raw_sections,
     .made_by = ROUTING,
     .shows = "The same in nats and in numbers of sources, beside what uniform weights would give "
              "(dashed).",
     .caveat = "All of these grow with the number of sources, so that sites are compared in the "
               "normalised figure.",
     .draw = draw_routing_by_depth_raw},
    {.name = "kind_mass",
     .title = "weight on each kind of source by depth",
     .sections = kind_sections,
     .made_by = ROUTING,
     .shows = "How much of a site's weight goes to the embedding, to attention and MLP outputs, or "
              "to whole blocks and the running sum; below, the same relative to uniform weights.",
     .caveat = "A kind with more sources gets more mass without being preferred: read the lift.",
     .draw = draw_kind_mass},
    {.name = "contribution",
     .title = "mean weight beside contribution and signed_contribution of each source",
     .sections = contribution_sections,
     .made_by = ROUTING,
     .shows = "The weight of each source, its share in the norms of what is added up, and its "
              "share along the mix that results; blue shares point against the mix.",
     .caveat = "A share of the mix is no causal effect, and sources of large norm contribute more "
               "than their weight.",
     .draw = draw_contribution},
    {.name = "head_js",
     .title = "Jensen-Shannon divergence of each two routing heads, by depth",
     .sections = head_js_sections,
     .made_by = ROUTING "` of several heads, made with `fathom capture --record pairs",
     .shows = "How differently each two routing heads weigh the sources of a token: bright pairs "
              "differ, dark ones agree.",
     .caveat = "Random queries diverge too: the number in brackets is what equally sharp ones do.",
     .draw = draw_head_js},
    {.name = "source_cos",
     .title = "mean cosine of each two sources",
     .sections = cos_sections,
     .made_by = ROUTING "` of one made with `fathom capture --record pairs",
     .shows = "How alike the sources point: orange pairs point the same way, blue ones against "
              "each other.",
     .caveat = "Among nearly collinear sources uniform routing is not indifference: any weights "
               "would give the same mix.",
     .draw = draw_source_cos},
    {.name = "reach",
     .title = "probability that a walk back from final visits each output",
     .sections = reach_sections,
     .made_by = "fathom routing RECORDING_OF_FULL_MODE",
     .shows = "How often a walk from the last site back to the embedding, which at each site "
              "chooses a source by its weight, passes each sublayer's output.",
     .caveat = "It follows weights, not influence, and later outputs have fewer readers.",
     .draw = draw_reach},
    {.name = "depth_matrix",
     .title = "mean weight by sublayer, a block's weight spread over its members",
     .sections = matrix_sections,
     .made_by = "fathom routing RECORDING_OF_BLOCK_MODE",
     .shows = "The map of depth_attention with each block's weight shared out equally over the "
              "sublayers it is the sum of, to be held against models without blocks.",
     .caveat = "Within a block the equal shares are an assumption: the model weighs the sum.",
     .draw = draw_depth_matrix},
    {.name = "token_sources",
     .title = "an example: the weight each token of one sequence gives each source",
     .sections = token_sections,
     .made_by = ROUTING "` of one made with `fathom capture --record weights",
     .shows = "Each row is a token of one sequence, with its text, and each column an earlier "
              "source: the colour is the weight that the site gives the source at that token.",
     .caveat = "One sequence at one site: what stands out here may be rare elsewhere.",
     .draw = draw_token_sources},
    {.name = "magnitude_by_depth",
     .title = "size of hidden states by depth, linear and logarithmic",
     .sections = magnitude_sections,
     .made_by = DEPTH,
     .shows = "How large the states are that sublayers read, return and leave behind, from the "
              "first layer to the last, on a linear and on a logarithmic axis.",
     .caveat = "Modes keep different states: what is read is what may be compared, and a large "
               "state is not an important one.",
     .overlay = draw_magnitude_by_depth},
    {.name = "gradient_by_depth",
     .title = "size of gradients by depth, linear and logarithmic",
     .sections = gradient_sections,
     .made_by = DEPTH "` of one made with `fathom capture --gradients",
     .shows = "How much of the loss's gradient reaches the output of each sublayer and the "
              "parameters of each layer.",
     .caveat = "Only the gradient of outputs (out_l2) may be compared across modes; one training "
               "seed each.",
     .overlay = draw_gradient_by_depth},
    {.name = "loss_by_position",
     .title = "loss by position in the sequence",
     .sections = position_sections,
     .made_by = DEPTH,
     .shows = "How the loss falls as more of the text before a token is seen.",
     .caveat = "Few sequences make a few hard passages look like a trend: read the intervals.",
     .overlay = draw_loss_by_position},
    {.name = "compare_summary",
     .title = "differences from the reference run: loss and mean routing statistics",
     .sections = summary_sections,
     .made_by = COMPARE,
     .shows = "Each run's difference from the reference with its paired interval: loss, and "
              "routing statistics as means over the sites that both runs have.",
     .caveat = "Intervals cover the choice of text, not training seeds: no run is shown to be "
               "better than another.",
     .draw = draw_compare_summary},
    {.name = "compare_magnitude",
     .title = "sizes of hidden states against the reference run, by depth",
     .sections = compared_sections,
     .made_by = COMPARE,
     .shows = "The logarithm of each run's size of states over the reference's, place by place: "
              "0 is equal, 0.7 twice as large.",
     .caveat = "Modes keep different states under the same name; see what each one is in the "
               "table of depth.",
     .draw = draw_compare_magnitude},
    {.name = "compare_routing",
     .title = "routing statistics against the reference run, by depth",
     .sections = compared_routing,
     .made_by = COMPARE,
     .shows = "Each run's difference from the reference at every site that both have, and how far "
              "apart the mean weights of two runs of one mode are (run_js).",
     .caveat = "Runs with other sources at a site differ in what there is to choose from; of "
               "run_js only what exceeds the split-half band is more than text explains.",
     .draw = draw_compare_routing},
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
static int write_script(const figure *f, const table *const *from, size_t tables, const sheet *s,
                        const char *body, const char *path, const char *format, status *st) {
    output *out;
    if (output_open(path, &out, st))
        return FAILED;
    bool utf8 = false;
    for (const char *at = body; *at; at++)
        utf8 = utf8 || (*at & 0x80);
    char source[1024] = "";
    for (size_t i = 0, used = 0; i < tables && used < sizeof source; used = strlen(source), i++) {
        const char *command = table_command(from[i]);
        snprintf(source + used, sizeof source - used, "%s%s", i ? "; " : "",
                 *command ? command : table_path(from[i]));
    }
    sheet_head(output_stream(out), s, f->name, f->title, source, format, utf8);
    fputs(body, output_stream(out));
    fputs("unset output\n", output_stream(out));
    return output_commit(out, st);
}

static int draw(const figure *f, const table *const *from, size_t tables, sheet *s, status *st) {
    for (size_t i = 0; i < tables; i++) {
        const char *lacks = figure_lacks(f, from[i]);
        if (!lacks)
            continue;
        status_fail(st, "%s: no section %s; `%s` makes it", table_path(from[i]), lacks, f->made_by);
        return NOT_DRAWN;
    }
    if (tables == 1 && f->draw)
        return f->draw(from[0], s, st);
    if (f->overlay)
        return f->overlay(from, tables, s, st);
    status_fail(st, "it shows one table, and %zu hold its sections", tables);
    return NOT_DRAWN;
}

int figure_write(const figure *f, const table *from, const char *folder, const char *format,
                 size_t *pages, status *st) {
    return figure_write_all(f, &from, 1, folder, format, pages, st);
}

int figure_write_all(const figure *f, const table *const *from, size_t tables, const char *folder,
                     const char *format, size_t *pages, status *st) {
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
    result = draw(f, from, tables, &s, st);
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
    if (output_commit(whole, st) ||
        write_script(f, from, tables, &s, body, script_path, format, st))
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
