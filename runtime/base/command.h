/* command.h - the commands of `fathom`, each in FOLDER/cmd_NAME.c. */
#ifndef FATHOM_COMMAND_H
#define FATHOM_COMMAND_H

#include "runtime/base/status.h"

/* Exit statuses. */
enum { EXIT_DONE = 0, EXIT_NO = 1, EXIT_WRONG = 2, EXIT_INTERRUPTED = 130 };

/* Runs one command as if typed after `fathom`: argv[0] is the command's name. Returns its exit
 * status. Defined in runtime/main.c; `report` calls it. */
int command_run(int argc, char **argv);

/* The command line of the running command, shell-quoted, "fathom capture --text 'my file.txt' …".
 * Valid until the next command_run. */
const char *command_line(void);

/* What command_line() would say of these arguments: "fathom" and each, quoted where sh would not take
 * it as it stands. To be freed; NULL without memory. */
char *command_text(int argc, char **argv);

/* Prints "fathom: TEXT" to stderr and returns EXIT_WRONG. */
int command_fail(const status *st);

#endif
