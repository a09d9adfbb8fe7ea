/* interrupt.c - see interrupt.h. */
#include "runtime/base/interrupt.h"

#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static volatile sig_atomic_t pending;

static void on_signal(int number) {
    (void)number;
    if (pending)
        _exit(130);
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
