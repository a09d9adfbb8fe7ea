#include "runtime/depth_program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A place in the list of sources, or the running tensor. */
typedef struct entry {
    int value; /* NO_VALUE: empty */
    source_kind kind;
    char name[DEPTH_NAME_ROOM];
} entry;

/* The procedure of a residual mode as state: `list` holds what was stored, `cur` is the running
 * tensor (Attention Residuals, section 3 and its block form). */
typedef struct builder {
    depth_program *p;
    const model_config *config;
    const removed_set *removed;
    entry *list; /* [listed] */
    size_t listed;
    entry cur;
    depth_value *value; /* what p->plan.value points to */
    depth_site *site;   /* what p->plan.site points to */
    int zero;           /* the one VALUE_ZERO, or NO_VALUE */
} builder;

static const entry EMPTY = {NO_VALUE, SOURCE_EMB, ""};

static int add_value(builder *b, value_kind kind, int first, int second) {
    b->value[b->p->plan.values] = (depth_value){kind, first, second, -1};
    return (int)b->p->plan.values++;
}

static void name_sublayer(char name[DEPTH_NAME_ROOM], size_t index) {
    snprintf(name, DEPTH_NAME_ROOM, "L%zu.%s", index / 2,
             index % 2 == SUBLAYER_ATTN ? "attn" : "mlp");
}

static entry output_entry(int value, size_t index) {
    entry e = {value, index % 2 == SUBLAYER_ATTN ? SOURCE_ATTN : SOURCE_MLP, ""};
    name_sublayer(e.name, index);
    return e;
}

static entry numbered_entry(int value, source_kind kind, char letter, size_t number) {
    entry e = {value, kind, ""};
    snprintf(e.name, sizeof e.name, "%c%zu", letter, number);
    return e;
}

static void push(builder *b, entry e) {
    if (e.kind == SOURCE_PARTIAL)
        e.kind = SOURCE_COMPLETE;
    if (e.value != NO_VALUE)
        b->list[b->listed++] = e;
}

static bool replaces(const builder *b) {
    return mode_is_full(b->config->mode) || mode_is_block(b->config->mode);
}

/* Index of a label, added where it is new: labels stand in order of first appearance. */
static int label_of(depth_program *p, const char *name) {
    for (size_t i = p->labels; i > 0; i--)
        if (strcmp(p->source_name[i - 1], name) == 0)
            return (int)(i - 1);
    snprintf(p->source_name[p->labels], sizeof p->source_name[0], "%s", name);
    return (int)p->labels++;
}

static void add_source(builder *b, size_t index, const entry *e) {
    depth_program *p = b->p;
    size_t at = p->offset[index + 1]++;
    p->source[at] = e->value;
    p->kind[at] = e->kind;
    p->label[at] = label_of(p, e->name);
}

/* What a site reads, before its sublayer changes anything. */
static void read_site(builder *b, size_t index, bool is_final) {
    depth_program *p = b->p;
    const model_config *c = b->config;
    depth_site *site = &b->site[index];
    bool routed = c->mode != MODE_NONE && (!is_final || c->final_site);
    site->source = p->source + p->offset[index];
    p->offset[index + 1] = p->offset[index];
    if (routed && c->null_source && !is_final) {
        entry null = {add_value(b, VALUE_NULL, (int)index, 0), SOURCE_NULL, "null"};
        add_source(b, index, &null);
        site->null_source = true;
    }
    for (size_t i = 0; routed && i < b->listed; i++)
        add_source(b, index, &b->list[i]);
    if (routed && replaces(b) && b->cur.value != NO_VALUE)
        add_source(b, index, &b->cur);
    size_t n = p->offset[index + 1] - p->offset[index];
    site->sources = (int)n;
    site->gate = n > 0 && !is_final && b->cur.value != NO_VALUE ? c->gate : GATE_NONE;
    site->interpolates = replaces(b) && site->gate != GATE_NONE;
    bool has_base = n == 0 || !replaces(b) || site->gate != GATE_NONE;
    site->base = has_base ? b->cur.value : NO_VALUE;
    p->site_read[index] = true;
}

/* What follows when sublayer `index` returned `out`: a VALUE_OUT, the VALUE_ZERO, or NO_VALUE where
 * it is dropped. Each returns the state after it, or NO_VALUE. */
static int after_full(builder *b, size_t index, int out) {
    if (out == NO_VALUE)
        return NO_VALUE;
    push(b, b->cur);
    b->cur = output_entry(out, index);
    return out;
}

static int after_block(builder *b, size_t index, int out) {
    size_t block = index / 2 / b->config->layers_per_block;
    if (index % (2 * b->config->layers_per_block) == 0) { /* opens a block: closes the one before */
        push(b, b->cur);
        b->cur = EMPTY;
    }
    bool alone = b->cur.value == NO_VALUE || b->cur.value == b->zero;
    if (out == NO_VALUE || (out == b->zero && !alone))
        return NO_VALUE;
    int sum = alone ? out : add_value(b, VALUE_ADD, b->cur.value, out);
    b->cur = numbered_entry(sum, SOURCE_PARTIAL, 'B', block + 1);
    return sum;
}

/* An ordinary stream: standard and delta modes. In `delta` the embedding enters the list with the
 * first attention's output, and a zero output stays in it: it takes weight, unlike a dropped one.
 */
static int after_stream(builder *b, size_t index, int out) {
    const model_config *c = b->config;
    bool by_block = c->mode == MODE_DELTA_BLOCK || c->mode == MODE_DELTA_MH;
    if (by_block && index % (2 * c->layers_per_block) == 0) {
        entry stored = b->cur;
        if (b->listed > 0) {
            /* Minus the last STORED source, so that from D2 on these are alternating sums and not
             * block deltas: the released weights were trained this way. */
            int rest = add_value(b, VALUE_SUB, b->cur.value, b->list[b->listed - 1].value);
            stored = numbered_entry(rest, SOURCE_DELTA, 'D', index / 2 / c->layers_per_block);
        }
        push(b, stored);
    }
    if (out == NO_VALUE)
        return NO_VALUE;
    if (c->mode == MODE_DELTA) {
        if (b->listed == 0)
            push(b, b->cur);
        push(b, output_entry(out, index));
    }
    if (out == b->zero)
        return NO_VALUE;
    return b->cur.value = add_value(b, VALUE_ADD, b->cur.value, out);
}

static int take_output(builder *b, size_t index, int out) {
    if (mode_is_full(b->config->mode))
        return after_full(b, index, out);
    if (mode_is_block(b->config->mode))
        return after_block(b, index, out);
    return after_stream(b, index, out);
}

static void run_sublayer(builder *b, size_t index) {
    depth_program *p = b->p;
    read_site(b, index, false);
    int out = add_value(b, VALUE_OUT, (int)p->sublayers, 0);
    p->sublayer[p->sublayers++] = (depth_sublayer){.index = index,
                                                   .layer = index / 2,
                                                   .kind = (sublayer_kind)(index % 2),
                                                   .site = index,
                                                   .out = out,
                                                   .state = take_output(b, index, out)};
}

static void skip_sublayer(builder *b, size_t index, removal how) {
    if (how == ZERO_OUTPUT && b->zero == NO_VALUE)
        b->zero = add_value(b, VALUE_ZERO, 0, 0);
    b->p->offset[index + 1] = b->p->offset[index];
    b->site[index] = (depth_site){.base = NO_VALUE, .source = b->p->source + b->p->offset[index]};
    take_output(b, index, how == ZERO_OUTPUT ? b->zero : NO_VALUE);
}

static void build(builder *b) {
    depth_program *p = b->p;
    size_t all = 2 * b->config->layers;
    p->emb = add_value(b, VALUE_EMB, 0, 0);
    b->cur = (entry){p->emb, SOURCE_EMB, "emb"};
    for (size_t index = 0; index < all; index++) {
        name_sublayer(p->site_name[index], index);
        if (b->config->removed[index])
            skip_sublayer(b, index, b->config->removal);
        else if (b->removed && b->removed->sublayer[index])
            skip_sublayer(b, index, b->removed->removal);
        else
            run_sublayer(b, index);
    }
    snprintf(p->site_name[all], sizeof p->site_name[0], "final");
    read_site(b, all, true);
}

/* Storage. Time runs 2k when sublayer k reads its site and 2k+1 when its output and what follows
 * from it are made; a value's slot is free once its last reader is done. */
static int assign_slots(builder *b, status *st) {
    depth_program *p = b->p;
    depth_plan *plan = &p->plan;
    int rc = FAILED;
    long *last = mem_array(plan->values, sizeof *last, "depth program", st);
    long *busy_until = mem_array(plan->values, sizeof *busy_until, "depth program", st);
    if (!last || !busy_until)
        goto done;
    for (size_t i = 0, run = 0; i < plan->sites; i++) {
        if (!p->site_read[i])
            continue;
        long now = 2 * (long)run++;
        if (b->site[i].base != NO_VALUE)
            last[b->site[i].base] = now;
        for (int s = 0; s < b->site[i].sources; s++)
            last[b->site[i].source[s]] = now;
    }
    long made = -1;
    for (size_t v = 0; v < plan->values; v++) {
        depth_value *value = &b->value[v];
        if (value->kind == VALUE_OUT)
            made = 2 * (long)value->a + 1;
        if (last[v] < made)
            last[v] = made; /* observed once as it is made */
        if (value->kind == VALUE_ADD || value->kind == VALUE_SUB) {
            last[value->a] = last[value->a] > made ? last[value->a] : made;
            last[value->b] = last[value->b] > made ? last[value->b] : made;
        }
    }
    for (size_t k = 0; k < p->sublayers; k++) {
        int state = p->sublayer[k].state;
        if (state != NO_VALUE && last[state] < 2 * (long)k + 1)
            last[state] = 2 * (long)k + 1;
    }
    made = -1;
    for (size_t v = 0; v < plan->values; v++) {
        depth_value *value = &b->value[v];
        if (value->kind == VALUE_NULL || value->kind == VALUE_ZERO)
            continue;
        if (value->kind == VALUE_OUT)
            made = 2 * (long)value->a + 1;
        size_t slot = 0;
        while (slot < plan->slots && busy_until[slot] >= made)
            slot++;
        if (slot == plan->slots)
            plan->slots++;
        busy_until[slot] = last[v];
        value->slot = (int)slot;
    }
    rc = DONE;
done:
    free(last);
    free(busy_until);
    return rc;
}

/* Whether sublayers' outputs are sources one by one (else block by block). */
static bool lists_outputs(const model_config *c) {
    return mode_is_full(c->mode) || c->mode == MODE_DELTA;
}

int depth_program_build(const model_config *config, const removed_set *removed, depth_program **out,
                        status *st) {
    size_t all = 2 * config->layers, sites = all + 1;
    size_t most_values = 2 + 3 * all + sites;
    size_t most_entries = sites * (lists_outputs(config) ? all + 3 : config->blocks_formed + 3);
    builder b = {.config = config, .removed = removed, .zero = NO_VALUE};
    depth_program *p = b.p = mem_array(1, sizeof *p, "depth program", st);
    if (!p)
        return FAILED;
    p->plan.width = config->width;
    p->plan.heads = config->routing_heads;
    p->plan.eps = config->eps;
    p->plan.sites = sites;
    p->sublayer = mem_array(all, sizeof *p->sublayer, "depth program", st);
    p->site_name = mem_array(sites, sizeof *p->site_name, "depth program", st);
    p->site_read = mem_array(sites, sizeof *p->site_read, "depth program", st);
    p->offset = mem_array(sites + 1, sizeof *p->offset, "depth program", st);
    p->label = mem_array(most_entries, sizeof *p->label, "depth program", st);
    p->kind = mem_array(most_entries, sizeof *p->kind, "depth program", st);
    p->source = mem_array(most_entries, sizeof *p->source, "depth program", st);
    p->source_name = mem_array(all + 3, sizeof *p->source_name, "depth program", st);
    p->plan.value = b.value = mem_array(most_values, sizeof *b.value, "depth program", st);
    p->plan.site = b.site = mem_array(sites, sizeof *b.site, "depth program", st);
    b.list = mem_array(all + 2, sizeof *b.list, "depth program", st);
    int rc = FAILED;
    if (p->sublayer && p->site_name && p->site_read && p->offset && p->label && p->kind &&
        p->source && p->source_name && b.value && b.site && b.list) {
        build(&b);
        rc = assign_slots(&b, st);
    }
    free(b.list);
    if (rc) {
        depth_program_free(p);
        return rc;
    }
    *out = p;
    return DONE;
}

void depth_program_free(depth_program *p) {
    if (!p)
        return;
    free((void *)p->plan.value);
    free((void *)p->plan.site);
    free(p->sublayer);
    free(p->site_name);
    free(p->site_read);
    free(p->offset);
    free(p->label);
    free(p->kind);
    free(p->source);
    free(p->source_name);
    free(p);
}

static bool same_value(const depth_value *a, const depth_value *b) {
    return a->kind == b->kind && a->a == b->a && a->b == b->b;
}

static bool same_site(const depth_site *a, const depth_site *b) {
    return a->base == b->base && a->sources == b->sources && a->edit == b->edit &&
           (a->sources == 0 ||
            memcmp(a->source, b->source, (size_t)a->sources * sizeof *a->source) == 0);
}

size_t depth_program_common(const depth_program *a, const depth_program *b) {
    size_t count = 0, v = 0;
    for (; count < a->sublayers && count < b->sublayers; count++) {
        const depth_sublayer *x = &a->sublayer[count], *y = &b->sublayer[count];
        if (x->index != y->index || x->out != y->out || a->plan.heads != b->plan.heads ||
            !same_site(&a->plan.site[x->site], &b->plan.site[y->site]))
            break;
        for (; v <= (size_t)x->out; v++)
            if (!same_value(&a->plan.value[v], &b->plan.value[v]))
                return count;
    }
    return count;
}
