#include "plots/gnuplot.h"

#include "runtime/base/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* The environment with LC_ALL=C.UTF-8, or NULL: numbers with points and labels in UTF-8 whatever
 * the user's locale. Only the array is to be freed. */
static char **plain_environment(status *st) {
    static char locale[] = "LC_ALL=C.UTF-8";
    size_t count = 0, kept = 0;
    while (environ[count])
        count++;
    char **copy = mem_array(count + 2, sizeof *copy, "the environment", st);
    if (!copy)
        return NULL;
    for (size_t i = 0; i < count; i++)
        if (strncmp(environ[i], "LC_ALL=", 7) != 0)
            copy[kept++] = environ[i];
    copy[kept] = locale;
    return copy;
}

/* What gnuplot is called: a path with a folder is resolved first, since the run changes folder. To
 * be freed. */
static char *program_name(status *st) {
    const char *name = getenv("GNUPLOT");
    if (!name || !*name)
        name = "gnuplot";
    char *full = strchr(name, '/') ? realpath(name, NULL) : NULL;
    return full ? full : mem_text(name, st);
}

/* Starts it with everything it prints going to `out`; an errno. */
static int start(const char *folder, char **argv, char **environment, int out, pid_t *child) {
    posix_spawn_file_actions_t actions;
    int error = posix_spawn_file_actions_init(&actions);
    if (error)
        return error;
    if (!(error = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0)) &&
        !(error = posix_spawn_file_actions_adddup2(&actions, out, 1)) &&
        !(error = posix_spawn_file_actions_adddup2(&actions, out, 2)) &&
        !(error = posix_spawn_file_actions_addchdir_np(&actions, folder)))
        error = posix_spawnp(child, argv[0], &actions, NULL, argv, environment);
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

/* Reads to the end, keeps what fits, and makes one line of it. */
static void collect(int in, char *said, size_t size) {
    char piece[4096];
    size_t used = 0;
    ssize_t got;
    while ((got = read(in, piece, sizeof piece)) > 0 || (got < 0 && errno == EINTR)) {
        for (ssize_t i = 0; i < got && used + 1 < size; i++) {
            bool space = strchr("\n\r\t ", piece[i]) != NULL;
            if (!space || (used && said[used - 1] != ' '))
                said[used++] = space ? ' ' : piece[i];
        }
    }
    while (used && said[used - 1] == ' ')
        used--;
    said[used] = 0;
}

int gnuplot_run(const char *folder, const char *name, const char *format, char *said, size_t size,
                status *st) {
    char script[128], choice[64];
    int ends[2] = {-1, -1}, result = FAILED, code = 0;
    said[0] = 0;
    snprintf(script, sizeof script, "%s.gp", name);
    snprintf(choice, sizeof choice, "format='%s'", format);
    char *program = program_name(st), **environment = plain_environment(st);
    if (!program || !environment)
        goto end;
    if (pipe2(ends, O_CLOEXEC)) {
        status_fail(st, "cannot start %s: %s", program, strerror(errno));
        goto end;
    }
    pid_t child;
    char *argv[] = {program, (char[]){"-e"}, choice, script, NULL};
    int error = start(folder, argv, environment, ends[1], &child);
    if (error) {
        status_fail(st, "cannot start '%s': %s", program, strerror(error));
        if (error == ENOENT || error == ENOTDIR)
            result = GNUPLOT_MISSING;
        goto end;
    }
    close(ends[1]);
    ends[1] = -1;
    collect(ends[0], said, size);
    while (waitpid(child, &code, 0) < 0 && errno == EINTR)
        ;
    if (WIFEXITED(code) && WEXITSTATUS(code) == 0)
        result = DONE;
    else if (interrupt_pending())
        result = INTERRUPTED;
    else if (WIFEXITED(code))
        status_fail(st, "%s/%s: '%s' ended with status %d: %s", folder, script, program,
                    WEXITSTATUS(code), *said ? said : "it said nothing");
    else
        status_fail(st, "%s/%s: '%s' was ended by signal %d", folder, script, program,
                    WTERMSIG(code));
end:
    if (ends[0] >= 0)
        close(ends[0]);
    if (ends[1] >= 0)
        close(ends[1]);
    free(program);
    free(environment);
    return result;
}
