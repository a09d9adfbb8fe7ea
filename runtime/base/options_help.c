/* options_help.c - the help of a command, made from the table that parses its arguments. */
#include "runtime/base/options.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { HELP_COLUMN = 26, HELP_WIDTH = 80 };

/* Prints `text` word by word from `column` on, later lines indented to `indent`. Spaces and line
 * breaks of the text itself are kept only as word borders; an empty line begins a paragraph. */
static void print_wrapped(FILE *out, const char *text, size_t indent, size_t column) {
    while (*text) {
        size_t blank = strspn(text, " \n");
        if (blank > 1 && memchr(text, '\n', blank) != memrchr(text, '\n', blank)) {
            fprintf(out, "\n\n%*s", (int)indent, "");
            column = indent;
        }
        text += blank;
        size_t word = strcspn(text, " \n");
        if (column > indent && column + 1 + word > HELP_WIDTH) {
            fprintf(out, "\n%*s", (int)indent, "");
            column = indent;
        }
        if (column > indent) {
            fputc(' ', out);
            column++;
        }
        fwrite(text, 1, word, out);
        column += word;
        text += word;
    }
    fputc('\n', out);
}

/* `left` at the margin, `text` in the help column. */
static void print_entry(FILE *out, const char *left, const char *text) {
    if (strlen(left) < HELP_COLUMN)
        fprintf(out, "%-*s", HELP_COLUMN, left);
    else
        fprintf(out, "%s\n%*s", left, HELP_COLUMN, "");
    print_wrapped(out, text, HELP_COLUMN, HELP_COLUMN);
}

/* Adds to the text in `out`, which has room for `room` bytes; what does not fit is left out. */
static void add(char *out, size_t room, const char *format, ...) PRINTF_LIKE(3, 4);
static void add(char *out, size_t room, const char *format, ...) {
    size_t used = strlen(out);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(out + used, room - used, format, arguments);
    va_end(arguments);
}

/* "(1 to 1048576; default 256)": range, choices and the value the variable holds now. */
static void add_facts(const option_spec *option, char *out, size_t room) {
    char facts[1024] = "";
    size_t size = sizeof facts;
    if (option->min != 0 || option->max != 0)
        add(facts, size, "%.15g to %.15g; ", option->min, option->max);
    const char *text = NULL;
    switch (option->kind) {
    case OPTION_CHOICE:
        add(facts, size, "one of");
        for (size_t i = 0; option->choices[i]; i++)
            add(facts, size, "%s %s", i ? "," : "", option->choices[i]);
        add(facts, size, "; ");
        text = *(const char **)option->value;
        break;
    case OPTION_TEXT:
        text = *(const char **)option->value;
        break;
    case OPTION_SIZE:
        add(facts, size, "default %zu; ", *(size_t *)option->value);
        break;
    case OPTION_SEED:
        add(facts, size, "default %llu; ", (unsigned long long)*(uint64_t *)option->value);
        break;
    case OPTION_REAL:
        add(facts, size, "default %.6g; ", *(double *)option->value);
        break;
    case OPTION_LIST:
        add(facts, size, "may be repeated; commas separate items; ");
        break;
    case OPTION_FLAG:
        break;
    }
    if (text)
        add(facts, size, "default %s; ", text);
    size_t length = strlen(facts);
    if (length > 2)
        add(out, room, " (%.*s)", (int)(length - 2), facts);
}

static void print_option(FILE *out, const option_spec *option) {
    char left[128] = "", right[2048] = "";
    if (option->letter)
        add(left, sizeof left, "  -%c, ", option->letter);
    else
        add(left, sizeof left, "      ");
    add(left, sizeof left, "--%s", option->name);
    if (option->kind != OPTION_FLAG)
        add(left, sizeof left, " %s", option->metavar ? option->metavar : "VALUE");
    add(right, sizeof right, "%s", option->help);
    add_facts(option, right, sizeof right);
    print_entry(out, left, right);
}

void options_print_help(const command_spec *spec, FILE *out) {
    fprintf(out, "Usage: fathom %s [OPTION]...", spec->name);
    const positional_spec *first = spec->positionals;
    for (const positional_spec *p = first; p && p->name; p++)
        fprintf(out, p->optional ? " [%s]%s" : " %s%s", p->name, p->many ? "..." : "");
    fputc('\n', out);
    print_wrapped(out, spec->summary, 0, 0);
    if (first && first->name) {
        fputs("\nArguments:\n", out);
        for (const positional_spec *p = first; p->name; p++) {
            char left[128] = "  ";
            add(left, sizeof left, "%s", p->name);
            print_entry(out, left, p->help);
        }
    }
    fputs("\nOptions:\n", out);
    for (const option_spec *option = spec->options; option->name; option++)
        print_option(out, option);
    print_entry(out, "      --help", "this text");
    if (spec->notes) {
        fputc('\n', out);
        print_wrapped(out, spec->notes, 0, 0);
    }
}
