/* interrupt.h - SIGINT and SIGTERM become a flag that long loops look at.
 * The first signal sets the flag; one that comes more than a fifth of a second later ends the
 * process at once with exit status 130. */
#ifndef FATHOM_INTERRUPT_H
#define FATHOM_INTERRUPT_H

#include <stdbool.h>

void interrupt_install(void);
bool interrupt_pending(void);

#endif
