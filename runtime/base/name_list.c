#include "runtime/base/name_list.h"

#include <stdio.h>
#include <string.h>

enum { NAMED_MAX = 8 };

void name_list_add(name_list *list, const char *name) {
    if (list->count++ >= NAMED_MAX)
        return;
    size_t used = strlen(list->text);
    snprintf(list->text + used, sizeof list->text - used, "%s%.100s", used ? ", " : "", name);
}

const char *name_list_text(name_list *list) {
    if (list->count > NAMED_MAX) {
        size_t used = strlen(list->text);
        snprintf(list->text + used, sizeof list->text - used, ", … (%zu in all)", list->count);
    }
    return list->text;
}
