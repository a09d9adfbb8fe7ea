/* scratch.c - see scratch.h. */
#include "runtime/tests/scratch.h"
#include "runtime/base/output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static FILE *captured;
static int kept[2];

static void give_up(const char *text) {
    fprintf(stderr, "test: %s\n", text);
    exit(1);
}

char *scratch_path(const char *name) {
    const char *folder = getenv("TEST_TMP");
    status st;
    if (!folder || !*folder)
        folder = "build/tmp";
    if (folder_make(folder, &st))
        give_up(st.text);
    char *path;
    if (asprintf(&path, "%s/%s", folder, name) < 0)
        give_up("out of memory");
    return path;
}

void scratch_capture_begin(void) {
    captured = tmpfile();
    if (!captured)
        give_up("no temporary file");
    fflush(NULL);
    for (int i = 0; i < 2; i++) {
        kept[i] = dup(STDOUT_FILENO + i);
        dup2(fileno(captured), STDOUT_FILENO + i);
    }
}

char *scratch_capture_end(void) {
    fflush(NULL);
    for (int i = 0; i < 2; i++) {
        dup2(kept[i], STDOUT_FILENO + i);
        close(kept[i]);
    }
    char *text = calloc(1, 1 << 16);
    if (!text)
        give_up("out of memory");
    rewind(captured);
    size_t bytes = fread(text, 1, (1 << 16) - 1, captured);
    text[bytes] = 0;
    fclose(captured);
    return text;
}
