/* interrupt.c - see interrupt.h. */
#include "runtime/base/interrupt.h"

#include <signal.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t pending;
static struct timespec first;

static double seconds_since(const struct timespec *then) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - then->tv_sec) + 1e-9 * (double)(now.tv_nsec - then->tv_nsec);
}

/* A signal to a process and to its group arrives twice at once (timeout(1), some shells): that is
 * one wish, not two. */
static void on_signal(int number) {
    (void)number;
    if (pending && seconds_since(&first) > 0.2)
        _exit(130);
    if (!pending)
        clock_gettime(CLOCK_MONOTONIC, &first);
    pending = 1;
}

/* Installed even where the shell started us with SIGINT ignored (a background job), so that
 * `kill -INT` ends a recording in order. SA_RESTART: half-done writes are not failures. */
void interrupt_install(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

bool interrupt_pending(void) {
    return pending != 0;
}
