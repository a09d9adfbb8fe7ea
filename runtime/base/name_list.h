/* name_list.h - the first names of a list and its length, for messages: "a, b, c, … (12 in all)".
 *
 *     name_list missing = {0};
 *     name_list_add(&missing, name);
 *     if (missing.count) return status_fail(st, "missing: %s", name_list_text(&missing));
 */
#ifndef FATHOM_NAME_LIST_H
#define FATHOM_NAME_LIST_H

#include <stddef.h>

typedef struct name_list {
    size_t count; /* of all names added */
    char text[1024];
} name_list;

/* Appends `name` (its first 100 bytes) where it is among the first eight. */
void name_list_add(name_list *list, const char *name);
/* The finished text, inside `list`; asked for once, after the last name. */
const char *name_list_text(name_list *list);

#endif
