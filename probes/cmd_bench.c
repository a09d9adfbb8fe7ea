/* cmd_bench.c - `fathom bench`: what a forward pass, its statistics and a backward pass cost.
 *
 * One batch is run again and again; in each round every measured thing takes its turn, so that what
 * else the machine does falls on all alike. A ratio is the median over rounds of the ratio to the
 * same round's forward pass. */
#include "probes/bench_operations.h"
#include "probes/text_run.h"
#include "runtime/base/command.h"
#include "runtime/base/interrupt.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/output.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WARM_UPS = 2 };

enum { FORWARD, MAGNITUDES, SUMS, PAIRS, WEIGHTS, KEPT, BACKWARD, MEASURED };
static const struct {
    const char *name, *what;
    observer watch;
    bool routed; /* only a model that routes has it */
} measured[MEASURED] = {
    [FORWARD] = {"forward", "nothing observed", {0}, false},
    [MAGNITUDES] = {"magnitudes", "+ magnitudes", {.magnitudes = true}, false},
    [SUMS] = {"sums", "+ routing sums", {.magnitudes = true, .routing_sums = true}, true},
    [PAIRS] = {"pairs",
               "+ pairs of heads and of sources",
               {.magnitudes = true, .routing_sums = true, .routing_pairs = true},
               true},
    [WEIGHTS] = {"weights",
                 "+ routing weights",
                 {.magnitudes = true, .routing_sums = true, .routing_pairs = true, .weights = true},
                 true},
    [KEPT] = {"forward_kept", "forward that keeps what backward needs", {0}, false},
    [BACKWARD] = {"backward", "backward of it", {0}, false},
};

typedef struct bench {
    text_run run;   /* its session has backward */
    session *plain; /* without */
    batch batch;
    size_t runs;
    double *seconds[MEASURED]; /* [runs] */
    double *scratch;           /* [runs] */
} bench;

/* ---- measuring ---- */

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static bool exists(const bench *b, size_t which) {
    return !measured[which].routed || b->run.program->labels > 0;
}

static int run_one(bench *b, size_t which, double *seconds, status *st) {
    const observer *watch = &measured[which].watch;
    double start = seconds_now();
    int rc = which == BACKWARD ? session_backward(b->run.session, &b->batch, watch, st)
             : which == KEPT   ? session_forward(b->run.session, &b->batch, watch, st)
                               : session_forward(b->plain, &b->batch, watch, st);
    if (rc == DONE)
        rc = session_finish(which == BACKWARD || which == KEPT ? b->run.session : b->plain, st);
    *seconds = seconds_now() - start;
    if (rc == DONE && interrupt_pending()) {
        status_fail(st, "interrupted");
        return INTERRUPTED;
    }
    return rc;
}

static int run_rounds(bench *b, status *st) {
    progress_begin("bench", WARM_UPS + b->runs, "rounds");
    int rc = DONE;
    for (size_t round = 0; round < WARM_UPS + b->runs && rc == DONE; round++) {
        for (size_t i = 0; i < MEASURED && rc == DONE; i++) {
            double seconds = 0;
            if (exists(b, i))
                rc = run_one(b, i, &seconds, st);
            if (round >= WARM_UPS)
                b->seconds[i][round - WARM_UPS] = seconds;
        }
        progress_update(round + 1, 0);
    }
    progress_end();
    return rc;
}

static int open_bench(bench *b, run_options *options, status *st) {
    options->backward = true;
    if (text_run_open(options, &b->run, st))
        return FAILED;
    session_limits limits = b->run.limits;
    limits.backward = false;
    if (session_create(b->run.model, b->run.program, &limits, &b->plain, st))
        return FAILED;
    for (size_t i = 0; i < MEASURED; i++)
        if (!(b->seconds[i] = mem_array(b->runs, sizeof *b->seconds[i], "times", st)))
            return FAILED;
    b->scratch = mem_array(b->runs, sizeof *b->scratch, "times", st);
    return b->scratch ? text_run_next(&b->run, &b->batch, st) : FAILED;
}

static void close_bench(bench *b) {
    for (size_t i = 0; i < MEASURED; i++)
        free(b->seconds[i]);
    free(b->scratch);
    session_free(b->plain);
    text_run_clear(&b->run);
}

/* ---- saying it ---- */

static int compare_real(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of the times, or of their ratios to `other`. */
static double median(bench *b, const double *seconds, const double *other) {
    for (size_t i = 0; i < b->runs; i++)
        b->scratch[i] = other ? seconds[i] / other[i] : seconds[i];
    qsort(b->scratch, b->runs, sizeof *b->scratch, compare_real);
    return (b->scratch[(b->runs - 1) / 2] + b->scratch[b->runs / 2]) / 2;
}

static double machine_load(void) {
    double load;
    return getloadavg(&load, 1) == 1 ? load : NAN;
}

static void print_text(bench *b, FILE *out) {
    double rows = (double)b->batch.layout.rows;
    fprintf(out, "model      %s\n", model_path(b->run.model));
    fprintf(out, "device     %s\n",
            model_kernels(b->run.model)->describe(model_backend(b->run.model)));
    fprintf(out, "batch      %zu sequences, %zu tokens\n", b->batch.layout.sequences,
            b->batch.layout.rows);
    fprintf(out, "rounds     %zu, after %d to warm up\n", b->runs, WARM_UPS);
    fprintf(out, "load       %.2f over the last minute, this run included\n\n", machine_load());
    fprintf(out, "%-13s %10s %12s %8s\n", "", "ms", "tokens/s", "ratio");
    for (size_t i = 0; i < MEASURED; i++) {
        if (!exists(b, i))
            continue;
        double seconds = median(b, b->seconds[i], NULL);
        fprintf(out, "%-13s %10.2f %12.0f %8.3f  %s\n", measured[i].name, 1e3 * seconds,
                rows / seconds, median(b, b->seconds[i], b->seconds[FORWARD]), measured[i].what);
    }
}

static int print_json(bench *b, FILE *out, status *st) {
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "model", model_path(b->run.model));
    cJSON_AddStringToObject(json, "device",
                            model_kernels(b->run.model)->describe(model_backend(b->run.model)));
    cJSON_AddNumberToObject(json, "sequences", (double)b->batch.layout.sequences);
    cJSON_AddNumberToObject(json, "tokens", (double)b->batch.layout.rows);
    cJSON_AddNumberToObject(json, "rounds", (double)b->runs);
    cJSON_AddNumberToObject(json, "load", machine_load());
    cJSON *list = cJSON_AddArrayToObject(json, "measured");
    for (size_t i = 0; i < MEASURED; i++) {
        if (!exists(b, i))
            continue;
        cJSON *item = cJSON_CreateObject();
        double seconds = median(b, b->seconds[i], NULL);
        cJSON_AddStringToObject(item, "name", measured[i].name);
        cJSON_AddNumberToObject(item, "seconds", seconds);
        cJSON_AddNumberToObject(item, "tokens_per_second", (double)b->batch.layout.rows / seconds);
        cJSON_AddNumberToObject(item, "ratio", median(b, b->seconds[i], b->seconds[FORWARD]));
        cJSON_AddItemToArray(list, item);
    }
    char *text = cJSON_Print(json);
    int rc = text ? DONE : status_fail(st, "out of memory");
    if (text)
        fprintf(out, "%s\n", text);
    cJSON_free(text);
    cJSON_Delete(json);
    return rc;
}

static int write_result(bench *b, const char *path, bool json, status *st) {
    output *out;
    if (output_open(path, &out, st))
        return FAILED;
    if (!json) {
        print_text(b, output_stream(out));
    } else if (print_json(b, output_stream(out), st)) {
        output_abandon(out);
        return FAILED;
    }
    return output_commit(out, st);
}

/* Without a model. */
static int run_operations(const run_options *run, size_t rows, size_t rounds, const char *path,
                          bool json, status *st) {
    const backend_options options = {
        .threads = run->threads, .device = run->device, .dtype = run->dtype};
    operation_times times;
    output *out;
    int rc = bench_operations(&options, rows, rounds, &times, st);
    if (!rc && !(rc = output_open(path, &out, st))) {
        if (!json)
            operation_times_print(&times, output_stream(out));
        else
            rc = operation_times_json(&times, output_stream(out), st);
        if (rc)
            output_abandon(out);
        else
            rc = output_commit(out, st);
    }
    free(times.row);
    return rc;
}

static int run_model(bench *b, run_options *run, const char *path, bool json, status *st) {
    int rc = open_bench(b, run, st);
    if (rc == DONE)
        rc = run_rounds(b, st);
    if (rc == DONE)
        rc = write_result(b, path, json, st);
    close_bench(b);
    return rc;
}

int cmd_bench(int argc, char **argv) {
    run_options run = RUN_OPTIONS_DEFAULT;
    bench b = {.runs = 5};
    const char *path = NULL;
    bool json = false, operations = false;
    size_t rows = 0;
    const option_spec options[] = {
        {.name = "runs",
         .kind = OPTION_SIZE,
         .value = &b.runs,
         .min = 1,
         .max = 10000,
         .metavar = "N",
         .help = "rounds that are measured"},
        {.name = "operations",
         .kind = OPTION_FLAG,
         .value = &operations,
         .help = "single operations of the device, without a model"},
        {.name = "rows",
         .kind = OPTION_SIZE,
         .value = &rows,
         .max = 1 << 20,
         .metavar = "T",
         .help = "with --operations: tokens; 0 = 8192 on a GPU, else 256"},
        {.name = "json", .kind = OPTION_FLAG, .value = &json, .help = "JSON instead of text"},
        OPTION_OUTPUT(&path),
        RUN_OPTIONS(&run),
        OPTION_QUIET,
        OPTION_VERBOSE,
        {0}};
    const positional_spec arguments[] = {{.name = "DIR",
                                          .value = &run.dir,
                                          .help = "checkpoint folder: config.json and safetensors",
                                          .optional = true},
                                         {0}};
    const command_spec spec = {
        .name = "bench",
        .summary = "time of a forward pass, its statistics and a backward pass",
        .options = options,
        .positionals = arguments,
        .notes = "One batch, the first of the tokens, is run over and over. Times are medians over "
                 "the rounds; a ratio is the median over rounds of a time by that round's forward "
                 "pass. Nothing is written, so what HDF5 takes is not in it. With --operations "
                 "each line is a shape of one operation: its median time, the rate at which it "
                 "moves the bytes that it cannot do without, and that over the rate of the "
                 "fastest copy in the same run."};
    const int parsed = options_parse(&spec, argc, argv);
    if (parsed != OPTIONS_RUN)
        return parsed;
    if (operations == (run.dir != NULL)) {
        status wrong;
        status_fail(&wrong, "bench: %s",
                    operations ? "--operations takes no DIR"
                               : "DIR is missing: a checkpoint folder, or --operations");
        return command_fail(&wrong);
    }
    interrupt_install();
    status st;
    const int rc = operations ? run_operations(&run, rows, b.runs, path, json, &st)
                              : run_model(&b, &run, path, json, &st);
    if (rc == INTERRUPTED)
        log_error("interrupted");
    return rc == DONE ? EXIT_DONE : rc == INTERRUPTED ? EXIT_INTERRUPTED : command_fail(&st);
}
