/* cmd_show.c - `fathom show`: what a recording holds. */
#include "probes/recording_file.h"
#include "runtime/base/command.h"
#include "runtime/base/log.h"
#include "runtime/base/options.h"

#include <hdf5_hl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void text_line(const char *key, const char *value) {
    if (*value)
        printf("%-16s %s\n", key, value);
}

static void show_about(const recording_about *a) {
    text_line("title", a->title);
    text_line("schema", a->schema);
    text_line("made by", a->source);
    text_line("history", a->history);
    text_line("model", a->model_path);
    text_line("model sha256", a->model_sha256);
    text_line("weights dtype", a->weights_dtype);
    printf("%-16s %s, %zu routing heads\n", "residual mode", a->residual_mode, a->heads);
    text_line("computed in", a->compute_dtype);
    text_line("computed on", a->device);
    text_line("tokenizer", a->tokenizer);
    text_line("tokens sha256", a->tokens_sha256);
    if (a->bos >= 0)
        printf("%-16s %" PRId64 "\n", "bos", a->bos);
    else
        printf("%-16s none\n", "bos");
    printf("%-16s %" PRIu64 "\n", "seed", a->seed);
    printf("%-16s %zu\n", "skip first", a->skip_first);
    if (a->has_gradients)
        printf("%-16s of the loss of %" PRIu64 " predicted tokens\n", "gradients", a->grad_tokens);
    if (!a->complete)
        printf("%-16s no: interrupted; the sequences below are whole\n", "complete");
}

static int show_loss(recording *rec, status *st) {
    const recording_about *a = recording_about_of(rec);
    size_t tokens = 0, scored = 0, least = a->positions;
    double sum = 0;
    float *loss = mem_array(a->positions, sizeof *loss, "losses", st);
    int result = loss ? DONE : FAILED;
    for (size_t seq = 0; seq < a->sequences && result == DONE; seq++) {
        size_t length = (size_t)a->length[seq];
        tokens += length;
        least = length < least ? length : least;
        if (a->has_loss)
            result = recording_read_tokens(rec, seq, NULL, loss, st);
        for (size_t t = 1; t < length && result == DONE && a->has_loss; t++) {
            sum += loss[t];
            scored++;
        }
    }
    free(loss);
    if (result)
        return FAILED;
    printf("%-16s %zu of %zu to %zu tokens, %zu tokens in all\n", "sequences", a->sequences,
           a->sequences ? least : 0, a->positions, tokens);
    if (scored)
        printf("%-16s %.4f nats/token over %zu tokens\n", "mean loss", sum / (double)scored,
               scored);
    return DONE;
}

/* ---- datasets ---- */

static const char *type_name(hid_t type) {
    static char name[16];
    size_t bits = 8 * H5Tget_size(type);
    switch (H5Tget_class(type)) {
    case H5T_STRING:
        return "text";
    case H5T_FLOAT:
        snprintf(name, sizeof name, "float%zu", bits);
        return name;
    case H5T_INTEGER:
        snprintf(name, sizeof name, "%s%zu", H5Tget_sign(type) == H5T_SGN_NONE ? "uint" : "int",
                 bits);
        return name;
    default:
        return "other";
    }
}

static herr_t scale_name(hid_t dataset, unsigned axis, hid_t scale, void *out) {
    (void)dataset;
    (void)axis;
    return H5DSget_scale_name(scale, out, 64) < 0 ? -1 : 1;
}

static herr_t show_dataset(hid_t file, const char *name, const H5O_info_t *info, void *context) {
    const char *path = context;
    if (info->type != H5O_TYPE_DATASET)
        return 0;
    hid_t dataset = H5Dopen2(file, name, H5P_DEFAULT), type = H5Dget_type(dataset);
    size_t rank = 0, extent[H5S_MAX_RANK];
    if (h5_shape(dataset, H5S_MAX_RANK, &rank, extent) == DONE && H5DSis_scale(dataset) <= 0) {
        char shape[256] = "";
        int used = 0;
        for (unsigned i = 0; i < rank && used < (int)sizeof shape - 90; i++) {
            char axis[64] = "?";
            H5DSiterate_scales(dataset, i, NULL, scale_name, axis);
            used += snprintf(shape + used, sizeof shape - (size_t)used, "%s%s %zu", i ? ", " : "",
                             axis, extent[i]);
        }
        char *units = NULL;
        status ignored;
        if (h5_get_text(dataset, path, "units", &units, &ignored))
            units = NULL;
        printf("  %-31s %-8s %-10s %9s  %s\n", name, type_name(type), units ? units : "",
               bytes_text(H5Dget_storage_size(dataset)).text, shape);
        free(units);
    }
    h5_close(&type);
    h5_close(&dataset);
    return 0;
}

/* ---- sites ---- */

/* Token-weighted mean of a row at one site and index, over the sequences. */
static double row_mean(const recording *rec, const double *data, size_t size, size_t site,
                       size_t index) {
    const recording_about *a = recording_about_of(rec);
    double sum = 0, tokens = 0;
    for (size_t seq = 0; seq < a->sequences; seq++) {
        double n = (double)recording_sum_tokens(rec, seq);
        if (n > 0)
            sum += n * data[(seq * a->sites + site) * size + index];
        tokens += n;
    }
    return sum / tokens;
}

static int show_sites(recording *rec, status *st) {
    const recording_about *a = recording_about_of(rec);
    double *mean = NULL, *entropy = NULL;
    if (a->sources == 0 || (!a->has_sums && !a->has_weights))
        return DONE;
    if (recording_read_row(rec, "mean", &mean, st) ||
        recording_read_row(rec, "entropy", &entropy, st)) {
        free(mean);
        return FAILED;
    }
    printf("\nrouting, means over tokens and heads\n"
           "  %-10s %7s  %-10s %8s  %8s %7s  %s\n",
           "site", "sources", "newest", "weight", "entropy", "of ln S", "heaviest source");
    for (size_t site = 0; site < a->sites; site++) {
        size_t count = 0, heaviest = 0;
        double most = -1, newest = NAN, h = 0;
        for (size_t s = 0; s < a->sources; s++) {
            if (!a->available[site * a->sources + s])
                continue;
            double weight = 0;
            for (size_t head = 0; head < a->heads; head++)
                weight += row_mean(rec, mean, a->heads * a->sources, site, head * a->sources + s) /
                          (double)a->heads;
            if (weight > most) {
                most = weight;
                heaviest = s;
            }
            if (a->newest[site] == (int32_t)s)
                newest = weight;
            count++;
        }
        if (count == 0) {
            printf("  %-10s %7d\n", a->site_name[site], 0);
            continue;
        }
        for (size_t head = 0; head < a->heads; head++)
            h += row_mean(rec, entropy, a->heads, site, head) / (double)a->heads;
        printf("  %-10s %7zu  %-10s %8.4f  %8.4f %7.3f  %s %.4f\n", a->site_name[site], count,
               a->newest[site] >= 0 ? a->source_name[a->newest[site]] : "-", newest, h,
               count > 1 ? h / log((double)count) : NAN, a->source_name[heaviest], most);
    }
    free(mean);
    free(entropy);
    return DONE;
}

int cmd_show(int argc, char **argv) {
    const char *path = NULL;
    const option_spec options[] = {OPTION_QUIET, OPTION_VERBOSE, {0}};
    const positional_spec arguments[] = {{.name = "FILE", .value = &path, .help = "a recording"},
                                         {0}};
    const command_spec spec = {.name = "show",
                               .summary = "what a recording holds",
                               .options = options,
                               .positionals = arguments};
    const int parsed = options_parse(&spec, argc, argv);
    if (parsed != OPTIONS_RUN)
        return parsed;
    status st;
    recording *rec;
    if (recording_open(path, &rec, &st))
        return command_fail(&st);
    show_about(recording_about_of(rec));
    int result = show_loss(rec, &st);
    if (result == DONE) {
        printf("\ndatasets\n");
        if (H5Ovisit(recording_file(rec), H5_INDEX_NAME, H5_ITER_INC, show_dataset, (void *)path) <
            0)
            result = h5_fail(&st, path, "list of datasets");
    }
    if (result == DONE)
        result = show_sites(rec, &st);
    recording_close(rec);
    return result ? command_fail(&st) : EXIT_DONE;
}
