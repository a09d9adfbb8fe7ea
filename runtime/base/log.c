/* log.c - see log.h. Failures to write to stderr are ignored: there is nowhere left to say so. */
#include "runtime/base/log.h"
#include "runtime/base/options.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct {
    bool active, terminal, drawn;
    char step[64], unit[32];
    uint64_t total, done, bytes;
    double begun, shown; /* seconds, monotonic */
} progress;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void clear_bar(void) {
    if (progress.drawn)
        fputs("\r\033[K", stderr);
    progress.drawn = false;
}

static log_watcher *watcher;
static void *watcher_context;

void log_watch(log_watcher *watch, void *context) {
    watcher = watch;
    watcher_context = context;
}

static void watch_line(log_kind kind, const char *format, va_list arguments) {
    char text[4096];
    vsnprintf(text, sizeof text, format, arguments);
    watcher(watcher_context, kind, text);
}

static void print_line(log_kind kind, bool shown, const char *format, va_list arguments) {
    if (!shown && !watcher)
        return;
    flockfile(stderr);
    if (watcher) {
        watch_line(kind, format, arguments);
    } else {
        clear_bar();
        fprintf(stderr, "fathom: %s", kind == LOG_WARNING ? "warning: " : "");
        vfprintf(stderr, format, arguments);
        fputc('\n', stderr);
    }
    funlockfile(stderr);
}

#define PRINT_LINE(kind, shown, format)                                                            \
    do {                                                                                           \
        va_list arguments;                                                                         \
        va_start(arguments, format);                                                               \
        print_line(kind, shown, format, arguments);                                                \
        va_end(arguments);                                                                         \
    } while (0)

void log_error(const char *format, ...) {
    PRINT_LINE(LOG_ERROR, true, format);
}

void log_warn(const char *format, ...) {
    PRINT_LINE(LOG_WARNING, !option_quiet, format);
}

void log_note(const char *format, ...) {
    PRINT_LINE(LOG_NOTE, !option_quiet, format);
}

void log_detail(const char *format, ...) {
    PRINT_LINE(LOG_DETAIL, option_verbose && !option_quiet, format);
}

byte_text bytes_text(uint64_t bytes) {
    static const char *const unit[] = {"bytes", "kB", "MB", "GB", "TB", "PB", "EB"};
    byte_text out;
    double value = (double)bytes;
    size_t step = 0;
    /* 999.5 and above would print as 1000. */
    while (value >= (step ? 999.5 : 1000) && step + 1 < sizeof unit / sizeof *unit) {
        value /= 1000;
        step++;
    }
    snprintf(out.text, sizeof out.text, step > 0 && value < 9.95 ? "%.1f %s" : "%.0f %s", value,
             unit[step]);
    return out;
}

/* "950", "12.3k", "4.56M": three digits. */
static byte_text rate_text(double rate) {
    static const char *const unit[] = {"", "k", "M", "G", "T"};
    byte_text out;
    size_t step = 0;
    while (rate >= 999.5 && step + 1 < sizeof unit / sizeof *unit) {
        rate /= 1000;
        step++;
    }
    int digits = rate < 9.995 ? 2 : rate < 99.95 ? 1 : 0;
    snprintf(out.text, sizeof out.text, "%.*f%s", digits, rate, unit[step]);
    return out;
}

static byte_text duration_text(double seconds) {
    byte_text out;
    uint64_t whole = seconds < 1e9 ? (uint64_t)(seconds + 0.5) : 1000000000;
    unsigned hours = (unsigned)(whole / 3600), minutes = (unsigned)(whole / 60 % 60);
    unsigned rest = (unsigned)(whole % 60);
    if (hours)
        snprintf(out.text, sizeof out.text, "%u:%02u:%02u", hours, minutes, rest);
    else
        snprintf(out.text, sizeof out.text, "%u:%02u", minutes, rest);
    return out;
}

static void print_state(double elapsed) {
    double part = progress.total ? (double)progress.done / (double)progress.total : 0;
    double rate = elapsed > 0 ? (double)progress.done / elapsed : 0;
    if (progress.terminal) {
        char bar[21];
        memset(bar, '.', 20);
        memset(bar, '#', part < 1 ? (size_t)(20 * part) : 20);
        bar[20] = 0;
        fprintf(stderr, "\r\033[K%s [%s] ", progress.step, bar);
        progress.drawn = true;
    } else {
        fprintf(stderr, "fathom: %s: ", progress.step);
    }
    fprintf(stderr, "%3.0f%%, %s %s/s", 100 * part, rate_text(rate).text, progress.unit);
    if (progress.bytes)
        fprintf(stderr, ", %s", bytes_text(progress.bytes).text);
    if (rate > 0 && progress.total >= progress.done)
        fprintf(stderr, ", %s left",
                duration_text((double)(progress.total - progress.done) / rate).text);
    if (!progress.terminal)
        fputc('\n', stderr);
}

void progress_begin(const char *step, uint64_t total, const char *unit) {
    memset(&progress, 0, sizeof progress);
    if (option_quiet)
        return;
    progress.active = true;
    progress.terminal = isatty(STDERR_FILENO) == 1;
    progress.total = total;
    snprintf(progress.step, sizeof progress.step, "%s", step);
    snprintf(progress.unit, sizeof progress.unit, "%s", unit);
    progress.begun = progress.shown = now();
}

void progress_update(uint64_t done, uint64_t bytes_written) {
    if (!progress.active)
        return;
    progress.done = done;
    progress.bytes = bytes_written;
    double time = now();
    if (time - progress.shown < (progress.terminal ? 0.1 : 10))
        return;
    progress.shown = time;
    flockfile(stderr);
    print_state(time - progress.begun);
    fflush(stderr);
    funlockfile(stderr);
}

void progress_end(void) {
    if (!progress.active)
        return;
    progress.active = false;
    double elapsed = now() - progress.begun;
    double rate = elapsed > 0 ? (double)progress.done / elapsed : 0;
    log_note("%s: %llu %s in %.1f s, %s %s/s%s%s", progress.step, (unsigned long long)progress.done,
             progress.unit, elapsed, rate_text(rate).text, progress.unit,
             progress.bytes ? ", " : "", progress.bytes ? bytes_text(progress.bytes).text : "");
}
