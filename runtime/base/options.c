/* options.c - parsing by table; see options.h. The help is in options_help.c. */
#include "runtime/base/options.h"
#include "runtime/base/log.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool option_quiet, option_verbose;

enum { MANY_NAMES = 128 }; /* candidates looked at for "did you mean" */

void option_list_clear(option_list *list) {
    for (size_t i = 0; i < list->count; i++)
        free((void *)list->item[i]);
    free(list->item);
    *list = (option_list){0};
}

static int list_add(option_list *list, const char *text, size_t bytes, status *st) {
    const char **item = realloc(list->item, (list->count + 1) * sizeof *item);
    if (!item)
        return status_fail(st, "out of memory");
    list->item = item;
    char *copy = strndup(text, bytes);
    if (!copy)
        return status_fail(st, "out of memory");
    list->item[list->count++] = copy;
    return DONE;
}

int parse_size(const char *text, size_t *value, status *st) {
    static const struct {
        const char *name;
        uint64_t factor;
    } unit[] = {{"", 1},          {"k", 1000},      {"m", 1000000},  {"g", 1000000000},
                {"ki", 1u << 10}, {"mi", 1u << 20}, {"gi", 1u << 30}};
    char *end;
    errno = 0;
    unsigned long long number = isdigit((unsigned char)*text) ? strtoull(text, &end, 10) : 0;
    if (!isdigit((unsigned char)*text))
        return status_fail(st, "found '%s', expected a whole number such as 256, 64k or 16ki",
                           text);
    bool fits = errno == 0;
    for (size_t i = 0; i < sizeof unit / sizeof *unit; i++) {
        if (strcasecmp(end, unit[i].name) != 0)
            continue;
        size_t product;
        if (!fits || __builtin_mul_overflow(number, unit[i].factor, &product))
            return status_fail(st, "found '%s', expected a number below 2^64", text);
        *value = product;
        return DONE;
    }
    return status_fail(st, "found '%s', expected a whole number such as 256, 64k or 16ki", text);
}

static int parse_real(const char *text, double *value, status *st) {
    char *end;
    double number = strtod(text, &end);
    if (!*text || *end || isspace((unsigned char)*text) || !isfinite(number))
        return status_fail(st, "found '%s', expected a finite number", text);
    *value = number;
    return DONE;
}

/* Refuses a number outside min..max; `text` is what the user wrote. */
static int check_range(const option_spec *option, double number, const char *text, status *st) {
    if ((option->min == 0 && option->max == 0) || (number >= option->min && number <= option->max))
        return DONE;
    return status_fail(st, "found '%s', expected a number from %.15g to %.15g", text, option->min,
                       option->max);
}

static int parse_choice(const option_spec *option, const char *text, status *st) {
    char all[512] = "";
    size_t used = 0;
    for (size_t i = 0; option->choices[i]; i++) {
        if (strcmp(option->choices[i], text) == 0) {
            *(const char **)option->value = option->choices[i];
            return DONE;
        }
        if (used < sizeof all)
            used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", i ? ", " : "",
                                     option->choices[i]);
    }
    return status_fail(st, "found '%s', expected one of: %s", text, all);
}

static int parse_list(option_list *list, const char *text, status *st) {
    for (;;) {
        size_t bytes = strcspn(text, ",");
        if (bytes == 0)
            return status_fail(st, "an item of the list is empty");
        if (list_add(list, text, bytes, st))
            return FAILED;
        if (!text[bytes])
            return DONE;
        text += bytes + 1;
    }
}

/* Stores `text` (NULL for flags) in the option's variable. */
static int store(const option_spec *option, const char *text, status *st) {
    size_t size = 0;
    double real = 0;
    int result = FAILED;
    switch (option->kind) {
    case OPTION_FLAG:
        *(bool *)option->value = true;
        result = DONE;
        break;
    case OPTION_TEXT:
        *(const char **)option->value = text;
        result = DONE;
        break;
    case OPTION_SIZE:
        result = parse_size(text, &size, st) || check_range(option, (double)size, text, st);
        if (!result)
            *(size_t *)option->value = size;
        break;
    case OPTION_SEED:
        result = parse_size(text, &size, st);
        if (!result)
            *(uint64_t *)option->value = size;
        break;
    case OPTION_REAL:
        result = parse_real(text, &real, st) || check_range(option, real, text, st);
        if (!result)
            *(double *)option->value = real;
        break;
    case OPTION_CHOICE:
        result = parse_choice(option, text, st);
        break;
    case OPTION_LIST:
        result = parse_list(option->value, text, st);
        break;
    }
    if (result)
        return status_prefix(st, "--%s", option->name);
    if (option->given)
        *option->given = true;
    return DONE;
}

/* Edit distance between texts of at most 63 bytes; longer ones are never near. */
static size_t distance(const char *a, const char *b) {
    size_t n = strlen(a), m = strlen(b);
    size_t row[64];
    if (n > 63 || m > 63)
        return SIZE_MAX;
    for (size_t j = 0; j <= m; j++)
        row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t above = row[j];
            size_t change = diagonal + (a[i - 1] != b[j - 1]);
            size_t insert = (above < row[j - 1] ? above : row[j - 1]) + 1;
            row[j] = change < insert ? change : insert;
            diagonal = above;
        }
    }
    return row[m];
}

int nearest_name(const char *text, const char *const *names, size_t count) {
    size_t near = strlen(text) / 3 + 1; /* one slip in three letters is still a slip */
    int best = -1;
    for (size_t i = 0; i < count; i++) {
        size_t d = distance(text, names[i]);
        bool prefix = strlen(text) >= 3 && strncmp(text, names[i], strlen(text)) == 0;
        if (prefix)
            d = 1;
        if (d <= near && (best < 0 || d < near)) {
            near = d;
            best = (int)i;
        }
    }
    return best;
}

static int unknown_option(const command_spec *spec, const char *name, status *st) {
    const char *names[MANY_NAMES] = {"help"};
    size_t count = 1;
    for (const option_spec *o = spec->options; o->name && count < MANY_NAMES; o++)
        names[count++] = o->name;
    int near = nearest_name(name, names, count);
    if (near < 0)
        return status_fail(st, "unknown option --%s", name);
    return status_fail(st, "unknown option --%s; did you mean --%s?", name, names[near]);
}

/* One long option at argv[*at]: --name, --name=value or --name value. */
static int parse_long(const command_spec *spec, int argc, char **argv, int *at, status *st) {
    const char *name = argv[*at] + 2;
    size_t bytes = strcspn(name, "=");
    const char *text = name[bytes] ? name + bytes + 1 : NULL;
    const option_spec *option = spec->options;
    while (option->name &&
           (strlen(option->name) != bytes || strncmp(option->name, name, bytes) != 0))
        option++;
    if (!option->name) {
        char cut[64];
        snprintf(cut, sizeof cut, "%.*s", bytes < 60 ? (int)bytes : 60, name);
        return unknown_option(spec, cut, st);
    }
    if (option->kind == OPTION_FLAG && text)
        return status_fail(st, "--%s takes no value, found '%s'", option->name, text);
    if (option->kind != OPTION_FLAG && !text) {
        if (*at + 1 >= argc)
            return status_fail(st, "--%s needs a value", option->name);
        text = argv[++*at];
    }
    return store(option, text, st);
}

/* A group of short options at argv[*at]: -q, -qv, -c256 or -c 256. */
static int parse_short(const command_spec *spec, int argc, char **argv, int *at, status *st) {
    for (const char *letter = argv[*at] + 1; *letter; letter++) {
        const option_spec *option = spec->options;
        while (option->name && option->letter != *letter)
            option++;
        if (!option->name)
            return status_fail(st, "unknown option -%c in '%s'", *letter, argv[*at]);
        if (option->kind == OPTION_FLAG) {
            if (store(option, NULL, st))
                return FAILED;
            continue;
        }
        if (letter[1])
            return store(option, letter + 1, st);
        if (*at + 1 >= argc)
            return status_fail(st, "-%c needs a value", *letter);
        return store(option, argv[++*at], st);
    }
    return DONE;
}

/* Gives `text` to the positional *next and moves on unless that one takes many. */
static int parse_positional(const positional_spec **next, size_t *taken, const char *text,
                            status *st) {
    const positional_spec *positional = *next;
    if (!positional || !positional->name)
        return status_fail(st, "unexpected argument '%s'", text);
    if (positional->many) {
        ++*taken;
        return list_add(positional->value, text, strlen(text), st);
    }
    *(const char **)positional->value = text;
    ++*next;
    return DONE;
}

static int parse_all(const command_spec *spec, int argc, char **argv, status *st) {
    const positional_spec *next = spec->positionals;
    size_t taken = 0;
    bool options_over = false;
    for (int i = 1; i < argc; i++) {
        int result;
        if (options_over || argv[i][0] != '-' || !argv[i][1])
            result = parse_positional(&next, &taken, argv[i], st);
        else if (strcmp(argv[i], "--") == 0)
            options_over = true, result = DONE;
        else if (argv[i][1] == '-')
            result = parse_long(spec, argc, argv, &i, st);
        else
            result = parse_short(spec, argc, argv, &i, st);
        if (result)
            return FAILED;
    }
    if (next && next->name && !next->optional && taken == 0)
        return status_fail(st, "missing argument %s (%s)", next->name, next->help);
    return DONE;
}

static bool wants_help(int argc, char **argv) {
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

int options_parse(const command_spec *spec, int argc, char **argv) {
    /* Before anything is stored, so that the defaults shown are the defaults. */
    if (wants_help(argc, argv)) {
        options_print_help(spec, stdout);
        return OPTIONS_HELP;
    }
    status st;
    if (parse_all(spec, argc, argv, &st) == DONE)
        return OPTIONS_RUN;
    log_error("%s: %s", spec->name, st.text);
    fprintf(stderr, "Try: fathom help %s\n", spec->name);
    for (const option_spec *option = spec->options; option->name; option++)
        if (option->kind == OPTION_LIST)
            option_list_clear(option->value);
    for (const positional_spec *p = spec->positionals; p && p->name; p++)
        if (p->many)
            option_list_clear(p->value);
    return OPTIONS_WRONG;
}
