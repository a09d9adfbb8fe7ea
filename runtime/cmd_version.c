/* cmd_version.c - `fathom version`. */
#include "runtime/base/command.h"
#include "runtime/base/options.h"
#include "runtime/base/version.h"

#include <stdio.h>

int cmd_version(int argc, char **argv) {
    const option_spec options[] = {{0}};
    const command_spec spec = {.name = "version",
                               .summary = "version, compiler, flags and libraries of this build",
                               .options = options};
    const int parsed = options_parse(&spec, argc, argv);
    if (parsed != OPTIONS_RUN)
        return parsed;
    printf("fathom %s (%s)\n", FATHOM_VERSION, build_hash());
    printf("build      %s\n", build_text());
    printf("libraries  %s\n", build_libraries());
    printf("recording  %s\n", FATHOM_SCHEMA);
    return EXIT_DONE;
}
