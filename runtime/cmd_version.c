/* cmd_version.c - `fathom version`. */
#include "kernels/kernels.h"
#include "runtime/base/command.h"
#include "runtime/base/options.h"
#include "runtime/base/version.h"

#include <stdio.h>

/* What a device computes with, or why it cannot. */
static void print_device(const char *name) {
    status st;
    backend *device = NULL;
    const kernels *k = kernels_find(name, &st);
    if (k && k->open(&(backend_options){.device = name}, &device, &st) == DONE)
        printf("device     %s\n", k->describe(device));
    else
        printf("device     no %s: %s\n", name, st.text);
    if (device)
        k->close(device);
}

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
    print_device("cpu");
    print_device("cuda");
    printf("recording  %s\n", FATHOM_SCHEMA);
    return EXIT_DONE;
}
