/* kernels.c - finding and opening a backend by name. */
#include "kernels/kernels.h"

#include "runtime/base/log.h"
#include "runtime/base/version.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PLUGIN "fathom-cuda.so"
#define STRING(name) #name
#define STRING_OF(macro) STRING(macro)

/* ---- the plug-in ---- */

/* Opens the plug-in in `folder`, where it is a file; *found then names it. */
static void *open_in(const char *folder, char found[PATH_MAX]) {
    char path[PATH_MAX];
    if (!folder || snprintf(path, sizeof path, "%s/%s", folder, PLUGIN) >= (int)sizeof path ||
        access(path, F_OK) != 0)
        return NULL;
    strcpy(found, path);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static void *open_plugin(char found[PATH_MAX]) {
    char beside[PATH_MAX - 32] = "", installed[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", beside, sizeof beside - 1);
    beside[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(beside, '/');
    if (slash)
        *slash = '\0';
    snprintf(installed, sizeof installed, "%s/../lib/fathom", beside);
    const char *const folders[] = {getenv("FATHOM_PLUGINS"), beside, installed};
    void *plugin = NULL;
    for (size_t i = 0; i < sizeof folders / sizeof *folders && !*found; i++)
        plugin = open_in(folders[i], found);
    return plugin;
}

/* The plug-in's table, or NULL with the reason. */
static const kernels *read_plugin(void *plugin, const char *path, status *st) {
    kernels_entry *entry;
    const char *build;
    *(void **)&entry = dlsym(plugin, STRING_OF(KERNELS_ENTRY));
    if (!entry) {
        status_fail(st, "%s: has no %s", path, STRING_OF(KERNELS_ENTRY));
        return NULL;
    }
    const kernels *table = entry(&build);
    if (table->abi == KERNELS_ABI && table->size == sizeof *table &&
        strcmp(build, build_hash()) == 0)
        return table;
    status_fail(st, "%s: was built from %s, this program from %s: build both together", path, build,
                build_hash());
    return NULL;
}

static const kernels *find_cuda(status *st) {
    static const kernels *table;
    char path[PATH_MAX] = "";
    if (table)
        return table;
    if (!dlopen("libcuda.so.1", RTLD_LAZY | RTLD_GLOBAL)) {
        status_fail(st, "no NVIDIA driver on this machine (libcuda.so.1 cannot be opened)");
        return NULL;
    }
    void *plugin = open_plugin(path);
    if (!plugin && *path)
        status_fail(st, "%s", dlerror());
    else if (!plugin)
        status_fail(st,
                    "%s is not beside the program nor in ../lib/fathom: it is built where nvcc "
                    "is found",
                    PLUGIN);
    else if (!(table = read_plugin(plugin, path, st)))
        dlclose(plugin);
    return table;
}

static int not_known(const char *name, status *st) {
    return status_fail(st, "device '%s': not known; expected auto, cpu, cuda or cuda:N", name);
}

const kernels *kernels_find(const char *name, status *st) {
    if (strcmp(name, kernels_cpu.name) == 0)
        return &kernels_cpu;
    if (strcmp(name, "cuda") == 0)
        return find_cuda(st);
    not_known(name, st);
    return NULL;
}

/* ---- opening ---- */

static int open_cpu(const backend_options *options, const kernels **k, backend **device,
                    status *st) {
    const backend_options cpu = {options->threads, "cpu", options->dtype};
    *k = &kernels_cpu;
    return kernels_cpu.open(&cpu, device, st);
}

static int open_cuda(const backend_options *options, size_t elements, const kernels **k,
                     backend **device, status *st) {
    *k = kernels_find("cuda", st);
    if (!*k || (*k)->open(options, device, st))
        return FAILED;
    const size_t bytes = elements * (*k)->real_size(*device), left = (*k)->memory_left(*device);
    if (bytes <= left)
        return DONE;
    status_fail(st, "the weights take %zu MiB, the GPU has %zu MiB left", bytes >> 20, left >> 20);
    (*k)->close(*device);
    *device = NULL;
    return FAILED;
}

int kernels_open(const backend_options *options, size_t elements, const kernels **k,
                 backend **device, status *st) {
    const char *name = options->device ? options->device : "auto";
    const char *dtype = options->dtype ? options->dtype : "fp32";
    const bool any = strcmp(name, "auto") == 0;
    if (strcmp(dtype, "fp32") != 0 && strcmp(dtype, "bf16") != 0)
        return status_fail(st, "dtype '%s': not known; expected fp32 or bf16", dtype);
    if (strcmp(name, "cpu") == 0)
        return open_cpu(options, k, device, st);
    if (!any && strcmp(name, "cuda") != 0 && strncmp(name, "cuda:", 5) != 0)
        return not_known(name, st);
    const backend_options cuda = {options->threads, any ? "cuda" : name, options->dtype};
    if (open_cuda(&cuda, elements, k, device, st) == DONE)
        return DONE;
    if (!any)
        return status_prefix(st, "device '%s'", name);
    const status why = *st;
    if (open_cpu(options, k, device, st))
        return status_fail(st, "%s; no GPU instead: %s", st->text, why.text);
    log_note("no GPU: %s", why.text);
    return DONE;
}
