#include "runtime/depth_edits.h"

#include <stdlib.h>
#include <string.h>

bool depth_edit_empties(const depth_edit *edit, size_t sources) {
    size_t gone = 0;
    if (edit->kind != EDIT_MASK && edit->kind != EDIT_MASK_RAW)
        return false;
    for (size_t s = 0; s < sources; s++)
        for (size_t i = 0; i < edit->sources; i++)
            if ((size_t)edit->source[i] == s) {
                gone++;
                break;
            }
    return gone == sources;
}

bool depth_edit_changes(const depth_edit *edit, size_t heads, size_t sources) {
    bool any_head = !edit->head;
    for (size_t h = 0; edit->head && h < heads; h++)
        any_head = any_head || edit->head[h];
    if (!any_head || sources == 0)
        return false;
    switch (edit->kind) {
    case EDIT_QUERY_SCALE:
        return edit->scale != 1.0f && sources > 1;
    case EDIT_MASK:
    case EDIT_MASK_RAW:
        return edit->sources > 0 && !depth_edit_empties(edit, sources);
    case EDIT_MEAN_VALUE:
        return edit->sources > 0;
    case EDIT_SWAP:
        return edit->source[0] != edit->source[1];
    case EDIT_HEAD_MEAN:
        return heads > 1 && sources > 1;
    case EDIT_UNIFORM:
    case EDIT_TOKEN_MEAN:
        return sources > 1;
    case EDIT_GIVEN:
        return true;
    }
    return true;
}

/* `count` elements of `size` bytes at `from`, freed by depth_program_free. */
static void *copied(const void *from, size_t count, size_t size, bool *failed, status *st) {
    void *to = mem_array(count, size, "depth program", st);
    if (to && count > 0)
        memcpy(to, from, count * size);
    *failed = *failed || !to;
    return to;
}

int depth_program_edit(const depth_program *base, const depth_edit *const *edit, size_t heads,
                       depth_program **out, status *st) {
    const size_t sites = base->plan.sites, entries = base->offset[sites];
    if (heads == 0)
        heads = base->plan.heads;
    if (base->plan.width % heads)
        return status_fail(st, "%zu routing heads do not divide the width %zu", heads,
                           base->plan.width);
    depth_program *p = mem_array(1, sizeof *p, "depth program", st);
    if (!p)
        return FAILED;
    bool failed = false;
    *p = *base;
    p->plan.heads = heads;
    p->sublayer = copied(base->sublayer, base->sublayers, sizeof *p->sublayer, &failed, st);
    p->site_name = copied(base->site_name, sites, sizeof *p->site_name, &failed, st);
    p->site_read = copied(base->site_read, sites, sizeof *p->site_read, &failed, st);
    p->offset = copied(base->offset, sites + 1, sizeof *p->offset, &failed, st);
    p->source = copied(base->source, entries, sizeof *p->source, &failed, st);
    p->label = copied(base->label, entries, sizeof *p->label, &failed, st);
    p->kind = copied(base->kind, entries, sizeof *p->kind, &failed, st);
    p->source_name = copied(base->source_name, base->labels, sizeof *p->source_name, &failed, st);
    p->plan.value = copied(base->plan.value, base->plan.values, sizeof *p->plan.value, &failed, st);
    depth_site *site = copied(base->plan.site, sites, sizeof *site, &failed, st);
    p->plan.site = site;
    if (failed) {
        depth_program_free(p);
        return FAILED;
    }
    for (size_t i = 0; i < sites; i++) {
        site[i].source = p->source + p->offset[i];
        if (edit && edit[i])
            site[i].edit =
                depth_edit_changes(edit[i], heads, (size_t)site[i].sources) ? edit[i] : NULL;
    }
    *out = p;
    return DONE;
}
