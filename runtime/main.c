/* main.c - the command table of `fathom`.
 *
 * A command is `int cmd_NAME(int argc, char **argv)` in FOLDER/cmd_NAME.c and one line here. */
#include "runtime/base/command.h"
#include "runtime/base/log.h"
#include "runtime/base/options.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* COMMAND(group, name, summary), in the order of the usage text. */
#define COMMANDS                                                                                   \
    COMMAND("data", tokenize, "turn a text into a token file")                                     \
    COMMAND("model", info, "describe a checkpoint: sizes, modes, sites, routers")                  \
    COMMAND("model", eval, "mean loss and perplexity of a checkpoint over text or tokens")         \
    COMMAND("model", bench, "time of a forward pass, its statistics and a backward pass")          \
    COMMAND("record", capture, "run a checkpoint over text and record how it reads its layers")    \
    COMMAND("record", show, "what a recording holds")                                              \
    COMMAND("record", check, "check every invariant of recordings, one line each")                 \
    COMMAND("record", diff, "largest difference of two recordings by dataset, against bounds")     \
    COMMAND("experiments", prune, "which layers the model needs: remove them, search, export")     \
    COMMAND("experiments", ablate, "what the model loses when routes over depth are edited")       \
    COMMAND("statistics", routing, "statistics of depth routing, with intervals")                  \
    COMMAND("statistics", depth, "sizes and gradients of hidden states over the layers")           \
    COMMAND("statistics", compare,                                                                 \
            "several recordings of the same tokens, each against the first")                       \
    COMMAND("figures", plot, "draw the figures of a table with gnuplot")                           \
    COMMAND("figures", report, "record, measure and draw checkpoints, and put all on one page")    \
    COMMAND("other", version, "version, compiler, flags and libraries of this build")              \
    COMMAND("other", help, "this list, or the help of one command")

#define COMMAND(group, name, summary) int cmd_##name(int argc, char **argv);
COMMANDS
#undef COMMAND

#define COMMAND(group, name, summary) {group, #name, summary, cmd_##name},
static const struct command {
    const char *group, *name, *summary;
    int (*run)(int argc, char **argv);
} commands[] = {COMMANDS};
#undef COMMAND

enum { COMMAND_COUNT = sizeof commands / sizeof *commands };

static const char *running_line = "fathom";

static void print_usage(FILE *out) {
    fputs("Usage: fathom COMMAND [ARGUMENT]...\n"
          "Records how depth-routed transformers read their own layers, and measures it.\n",
          out);
    const char *group = "";
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(group, commands[i].group) != 0)
            fprintf(out, "\n%s\n", commands[i].group);
        group = commands[i].group;
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].summary);
    }
    fputs("\nfathom help COMMAND shows the options of one command.\n", out);
}

static const struct command *find_command(const char *name) {
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

static int unknown_command(const char *name) {
    const char *names[COMMAND_COUNT];
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        names[i] = commands[i].name;
    int near = nearest_name(name, names, COMMAND_COUNT);
    if (near >= 0)
        log_error("unknown command '%s'; did you mean '%s'?", name, names[near]);
    else
        log_error("unknown command '%s'", name);
    fputs("Try: fathom help\n", stderr);
    return EXIT_WRONG;
}

/* Adds `word` and a space before it to `line`, quoted where sh would not take it as it stands. */
static void add_word(FILE *line, const char *word) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_-+=./:,@%^";
    fputc(' ', line);
    if (*word && word[strspn(word, plain)] == 0) {
        fputs(word, line);
        return;
    }
    fputc('\'', line);
    for (; *word; word++) {
        if (*word == '\'')
            fputs("'\\''", line);
        else
            fputc(*word, line);
    }
    fputc('\'', line);
}

char *command_text(int argc, char **argv) {
    char *text = NULL;
    size_t bytes;
    FILE *line = open_memstream(&text, &bytes);
    if (!line)
        return NULL;
    fputs("fathom", line);
    for (int i = 0; i < argc; i++)
        add_word(line, argv[i]);
    if (fclose(line)) {
        free(text);
        return NULL;
    }
    return text;
}

int command_run(int argc, char **argv) {
    const struct command *command = find_command(argv[0]);
    if (!command)
        return unknown_command(argv[0]);
    char *line = command_text(argc, argv);
    if (!line) {
        log_error("out of memory");
        return EXIT_WRONG;
    }
    /* A command run by another one inherits its -q and -v and leaves them as they were. */
    const char *outer_line = running_line;
    bool outer_quiet = option_quiet, outer_verbose = option_verbose;
    running_line = line;
    int code = command->run(argc, argv);
    running_line = outer_line;
    option_quiet = outer_quiet;
    option_verbose = outer_verbose;
    free(line);
    return code;
}

const char *command_line(void) {
    return running_line;
}

int command_fail(const status *st) {
    log_error("%s", st->text);
    return EXIT_WRONG;
}

int cmd_help(int argc, char **argv) {
    const char *name = NULL;
    const option_spec options[] = {{0}};
    const positional_spec arguments[] = {
        {.name = "COMMAND", .value = &name, .help = "the command to explain", .optional = true},
        {0}};
    const command_spec spec = {.name = "help",
                               .summary = "this list, or the help of one command",
                               .options = options,
                               .positionals = arguments};
    const int parsed = options_parse(&spec, argc, argv);
    if (parsed != OPTIONS_RUN)
        return parsed;
    if (!name) {
        print_usage(stdout);
        return EXIT_DONE;
    }
    char command[64], help[] = "--help";
    snprintf(command, sizeof command, "%s", name);
    return command_run(2, (char *[]){command, help, NULL});
}

/* Descriptors 0 to 2 are made to exist, so that no file opened later is taken for a standard
 * stream. The ones made here can only be read: writing to a closed stdout stays an error. */
static void open_standard_streams(void) {
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) == -1 && open("/dev/null", O_RDONLY) != fd)
            _exit(EXIT_WRONG);
}

static int run_program(int argc, char **argv) {
    if (argc < 2) {
        print_usage(stderr);
        return EXIT_WRONG;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_usage(stdout);
        return EXIT_DONE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        char version[] = "version";
        return command_run(1, (char *[]){version, NULL});
    }
    return command_run(argc - 1, argv + 1);
}

/* Weak: test programs link this file for command_run and bring their own main. */
__attribute__((weak)) int main(int argc, char **argv) {
    open_standard_streams();
    signal(SIGPIPE, SIG_DFL); /* `fathom … | head` ends quietly */
    signal(SIGXFSZ, SIG_IGN); /* a file over its size limit is a failed write, not a crash */
    int code = run_program(argc, argv);
    errno = 0;
    bool broken = ferror(stdout) != 0;
    if (fclose(stdout) || broken) {
        log_error("standard output: could not be written%s%s", errno ? ": " : "",
                  errno ? strerror(errno) : "");
        return EXIT_WRONG;
    }
    return code;
}
