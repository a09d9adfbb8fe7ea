/* options.h - one table per command parses its arguments and prints its help.
 *
 *     size_t context = 256;
 *     const char *model = NULL;
 *     const option_spec options[] = {
 *         {"context", 'c', OPTION_SIZE, &context, .min = 1, .max = 1 << 20, .metavar = "N",
 *          .help = "tokens in a sequence"},
 *         OPTION_QUIET, OPTION_VERBOSE, {0}};
 *     const positional_spec arguments[] = {{"DIR", &model, "checkpoint folder"}, {0}};
 *     const command_spec spec = {"info", "describe a checkpoint", options, arguments};
 *     const int parsed = options_parse(&spec, argc, argv);
 *     if (parsed != OPTIONS_RUN)
 *         return parsed;
 *
 * The value a variable holds before parsing is its default, shown live by --help.
 */
#ifndef FATHOM_OPTIONS_H
#define FATHOM_OPTIONS_H

#include "runtime/base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef enum option_kind {
    OPTION_FLAG = 1, /* bool: present or absent, no argument */
    OPTION_TEXT,     /* const char *: points into argv */
    OPTION_SIZE,     /* size_t: k, m, g (1000s) and ki, mi, gi (1024s) accepted; min..max checked */
    OPTION_SEED,     /* uint64_t */
    OPTION_REAL,     /* double: finite, min..max checked */
    OPTION_CHOICE,   /* const char *: one of `choices` */
    OPTION_LIST,     /* option_list: may be given many times; commas separate items */
} option_kind;

typedef struct option_list {
    size_t count;
    const char **item; /* [count], points into memory owned by the list; option_list_clear frees */
} option_list;

void option_list_clear(option_list *list);

typedef struct option_spec {
    const char *name; /* long name without dashes */
    char letter;      /* short name, 0 for none */
    option_kind kind;
    void *value;                /* the variable; its value before parsing is the default */
    double min, max;            /* OPTION_SIZE, OPTION_REAL; both 0: no bounds */
    const char *const *choices; /* OPTION_CHOICE: NULL-terminated */
    const char *metavar;        /* name of the argument in the help */
    const char *help;           /* one or two plain sentences */
    bool *given;                /* set to true where the user gave it; may be NULL */
} option_spec;

typedef struct positional_spec {
    const char *name; /* as in the usage line: DIR, FILE */
    void *value;      /* const char **, or option_list * where `many` */
    const char *help;
    bool optional;
    bool many; /* the last one only: one or more (zero or more where optional) */
} positional_spec;

typedef struct command_spec {
    const char *name;
    const char *summary;                /* one line */
    const option_spec *options;         /* ends with {0} */
    const positional_spec *positionals; /* ends with {0}; may be NULL */
    const char *notes;                  /* paragraphs after the options, may be NULL */
} command_spec;

enum { OPTIONS_RUN = -1, OPTIONS_HELP = 0, OPTIONS_WRONG = 2 };

/* Parses argv[1..]. OPTIONS_RUN: go on. Otherwise the result is the command's exit status and every
 * list is clear. OPTIONS_HELP: --help was printed to stdout. OPTIONS_WRONG: the reason, the nearest
 * option's name where one is close, and how to get help were printed to stderr. Options and
 * positionals mix; `--` ends options; `-` is a positional;
 * `--name=value` and `--name value` both work; long names are given in full. */
int options_parse(const command_spec *spec, int argc, char **argv) MUST_USE;

/* What --help prints: usage, arguments, options with ranges and the values their variables hold now
 * as defaults, notes. */
void options_print_help(const command_spec *spec, FILE *out);

/* A number with k, m, g, ki, mi, gi; the whole text must be used. */
int parse_size(const char *text, size_t *value, status *st) MUST_USE;

/* Index of the name nearest to `text` by edit distance in a list of `count`, or -1 where none is
 * near. For "did you mean". */
int nearest_name(const char *text, const char *const *names, size_t count);

/* Options that every command shares; set by options_parse through these entries. */
extern bool option_quiet, option_verbose;
#define OPTION_QUIET                                                                               \
    {                                                                                              \
        .name = "quiet", .letter = 'q', .kind = OPTION_FLAG, .value = &option_quiet,               \
        .help = "no progress and no notes on stderr"                                               \
    }
#define OPTION_VERBOSE                                                                             \
    {                                                                                              \
        .name = "verbose", .letter = 'v', .kind = OPTION_FLAG, .value = &option_verbose,           \
        .help = "more notes on stderr"                                                             \
    }
#define OPTION_OUTPUT(variable)                                                                    \
    {                                                                                              \
        .name = "output", .letter = 'o', .kind = OPTION_TEXT, .value = (variable),                 \
        .metavar = "FILE", .help = "write here instead of to standard output"                      \
    }
#define OPTION_THREADS(variable)                                                                   \
    {                                                                                              \
        .name = "threads", .kind = OPTION_SIZE, .value = (variable), .min = 0, .max = 64,          \
        .metavar = "N", .help = "CPU threads; 0 = one per core. Results do not depend on it"       \
    }
#define OPTION_SEED(variable)                                                                      \
    {                                                                                              \
        .name = "seed", .kind = OPTION_SEED, .value = (variable), .metavar = "N",                  \
        .help = "seed of the random numbers"                                                       \
    }

#endif
