/* export_model.c - see export_model.h. config.json is written last: a folder without it does not
 * load, so a killed export is never taken for a model. */
#include "analyze/export_model.h"

#include "runtime/base/log.h"
#include "runtime/base/output.h"
#include "runtime/base/version.h"
#include "runtime/safetensors_write.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_BYTES_MAX = 1 << 28 };

/* One export. */
typedef struct exporter {
    const model *m;
    const export_options *o;
    const model_config *config; /* of the model as it is opened */
    bool gone[2 * CONFIG_LAYERS_MAX];
    removal removal; /* of all of them */
    bool plain;
    size_t map[CONFIG_LAYERS_MAX]; /* new layer -> old layer */
    size_t layers;                 /* of the new numbering */
} exporter;

static bool layer_is_gone(const bool *gone, size_t layer) {
    return gone[2 * layer] && gone[2 * layer + 1];
}

bool export_is_plain(const model_config *config, const bool *removed, removal how) {
    if (config->mode != MODE_NONE && !(mode_is_full(config->mode) && how == DROP_SOURCE))
        return false;
    for (size_t i = 0; i < config->layers; i++)
        if (removed[2 * i] != removed[2 * i + 1])
            return false;
    return true;
}

/* ---- what is removed ---- */

static int plan(exporter *e, status *st) {
    const model_config *c = e->config;
    size_t kept = 0;
    e->removal = e->o->removal;
    for (size_t i = 0; i < 2 * c->layers; i++) {
        e->gone[i] = c->removed[i] || e->o->removed[i];
        kept += !e->gone[i];
    }
    if (!kept)
        return status_fail(st, "%s: every sublayer is removed, expected some to stay",
                           e->o->folder);
    if (c->pruned) { /* a standard model is the same either way */
        if (c->removal != e->o->removal && c->mode != MODE_NONE)
            return status_fail(st,
                               "%s: was pruned with %s before, so what is removed now must be "
                               "too: say --removal %s",
                               model_path(e->m), removal_name(c->removal),
                               removal_name(c->removal));
        e->removal = c->removal;
    }
    e->plain = export_is_plain(c, e->gone, e->removal);
    for (size_t i = 0; i < c->layers; i++)
        if (!e->plain || !layer_is_gone(e->gone, i))
            e->map[e->layers++] = i;
    return DONE;
}

/* ---- config.json ---- */

/* cJSON may print a number one unit in the last place away: what is not whole is replaced by its
 * shortest exact text. */
static bool keep_numbers(cJSON *json) {
    for (cJSON *e = json->child, *next; e; e = next) {
        next = e->next;
        if (e->child && !keep_numbers(e))
            return false;
        double x = e->valuedouble;
        if (!cJSON_IsNumber(e) || !(x > -1e15 && x < 1e15) || (double)(long long)x == x)
            continue;
        char text[32];
        for (int digits = 1; digits <= 17; digits++) {
            snprintf(text, sizeof text, "%.*g", digits, x);
            if (strtod(text, NULL) == x)
                break;
        }
        char *name = e->string ? strdup(e->string) : NULL;
        cJSON *raw = cJSON_CreateRaw(text);
        if (!raw || (e->string && !name))
            return false;
        raw->string = name; /* cJSON_ReplaceItemViaPointer leaves names alone */
        if (!cJSON_ReplaceItemViaPointer(json, e, raw))
            return false;
    }
    return true;
}

/* Cuts the arrays that have one entry a layer. */
static void cut_arrays(const exporter *e, cJSON *json) {
    for (cJSON *array = json->child; array; array = array->next) {
        if (!cJSON_IsArray(array) || !strstr(array->string, "layer"))
            continue;
        if ((size_t)cJSON_GetArraySize(array) != e->config->layers) {
            if (array->child)
                log_warn("%s: config.json: \"%s\": %d entries for %zu layers, left as it is",
                         e->o->folder, array->string, cJSON_GetArraySize(array), e->config->layers);
            continue;
        }
        for (size_t i = e->config->layers; i-- > 0;)
            if (layer_is_gone(e->gone, i))
                cJSON_DeleteItemFromArray(array, (int)i);
    }
}

/* Where the model comes from, for people and programs; no reader needs it. */
static bool add_origin(const exporter *e, cJSON *json) {
    cJSON *origin = cJSON_AddObjectToObject(json, "fathom_pruned");
    bool made = origin && cJSON_AddStringToObject(origin, "parent_sha256", e->o->parent_sha256) &&
                cJSON_AddStringToObject(origin, "command", e->o->command) &&
                cJSON_AddStringToObject(origin, "version", FATHOM_VERSION);
    cJSON *map = made && e->plain ? cJSON_AddArrayToObject(origin, "parent_layers") : NULL;
    for (size_t i = 0; map && i < e->layers; i++)
        made = cJSON_AddItemToArray(map, cJSON_CreateNumber((double)e->map[i])) && made;
    return made && (map || !e->plain);
}

/* ["L0.attn", ...] */
static bool add_kept(const exporter *e, cJSON *json) {
    cJSON *kept = cJSON_AddArrayToObject(json, "kept");
    for (size_t i = 0; kept && i < 2 * e->config->layers; i++) {
        char name[DEPTH_NAME_ROOM];
        if (e->gone[i])
            continue;
        snprintf(name, sizeof name, "L%zu.%s", i / 2, i % 2 ? "mlp" : "attn");
        if (!cJSON_AddItemToArray(kept, cJSON_CreateString(name)))
            return false;
    }
    return kept;
}

static bool set_number(cJSON *json, const char *key, size_t value) {
    cJSON_DeleteItemFromObjectCaseSensitive(json, key);
    return cJSON_AddNumberToObject(json, key, (double)value);
}

/* Takes `whole`, the whole model's configuration. NULL without memory. */
static cJSON *new_config(const exporter *e, cJSON *whole) {
    bool made = keep_numbers(whole);
    if (made && e->config->mode != MODE_NONE && !json_has(whole, "attnres_num_heads"))
        made = set_number(whole, "attnres_num_heads", e->config->routing_heads);
    cJSON *json = whole;
    if (e->plain) {
        cut_arrays(e, whole);
        cJSON *layers = cJSON_GetObjectItemCaseSensitive(whole, "num_hidden_layers");
        cJSON_SetNumberValue(layers, (double)e->layers);
    } else {
        json = cJSON_CreateObject();
        made = made && json && cJSON_AddStringToObject(json, "model_type", "fathom_pruned") &&
               cJSON_AddItemToObject(json, "parent_config", whole) && add_kept(e, json) &&
               cJSON_AddStringToObject(json, "removal", removal_name(e->removal));
    }
    if (made && add_origin(e, json))
        return json;
    cJSON_Delete(json);
    return NULL;
}

static int write_config(const exporter *e, const char *path, status *st) {
    const char *text = model_config_text(e->m);
    cJSON *json = NULL, *whole;
    if (json_parse(text, strlen(text), model_path(e->m), &json, st))
        return FAILED;
    whole = json;
    if (e->config->pruned) {
        whole = cJSON_DetachItemFromObjectCaseSensitive(json, "parent_config");
        cJSON_Delete(json);
    }
    cJSON_DeleteItemFromObjectCaseSensitive(whole, "fathom_pruned");
    json = new_config(e, whole);
    char *written = json ? cJSON_Print(json) : NULL;
    cJSON_Delete(json);
    output *file;
    int rc = written ? output_open(path, &file, st) : status_fail(st, "%s: out of memory", path);
    if (!rc) {
        fprintf(output_stream(file), "%s\n", written);
        rc = output_commit(file, st);
    }
    cJSON_free(written);
    return rc;
}

/* ---- weights and the files beside them ---- */

static cJSON *new_metadata(const exporter *e) {
    cJSON *metadata = cJSON_CreateObject(), *origin = cJSON_CreateObject(), *all = NULL;
    char *text = NULL;
    /* "pt": transformers asks for it. */
    bool made = metadata && origin && cJSON_AddStringToObject(metadata, "format", "pt") &&
                add_origin(e, origin) &&
                cJSON_AddStringToObject(origin, "removal", removal_name(e->removal)) &&
                add_kept(e, origin);
    if (made) {
        all = cJSON_DetachItemFromObjectCaseSensitive(origin, "fathom_pruned");
        for (cJSON *item = origin->child, *next; item; item = next) {
            next = item->next;
            cJSON_AddItemToObject(all, item->string, cJSON_DetachItemViaPointer(origin, item));
        }
        text = cJSON_PrintUnformatted(all);
    }
    made = text && cJSON_AddStringToObject(metadata, "fathom_pruned", text);
    cJSON_free(text);
    cJSON_Delete(all);
    cJSON_Delete(origin);
    if (made)
        return metadata;
    cJSON_Delete(metadata);
    return NULL;
}

/* The tensor's name in the new checkpoint; false: it does not come along. */
static bool new_name(const exporter *e, const char *old, char *name, size_t room) {
    long layer, sublayer = tensor_sublayer(old, &layer);
    snprintf(name, room, "%s", old);
    if (layer < 0)
        return true;
    if ((size_t)layer >= e->config->layers || (sublayer >= 0 && e->gone[sublayer]) ||
        layer_is_gone(e->gone, (size_t)layer))
        return false;
    for (size_t i = 0; i < e->layers; i++)
        if (e->map[i] == (size_t)layer)
            snprintf(name, room, "model.layers.%zu%s", i,
                     strchr(old + strlen("model.layers."), '.'));
    return true;
}

static int write_weights(const exporter *e, const char *path, status *st) {
    enum { NAME = 256 };
    const checkpoint *ck = model_checkpoint(e->m);
    size_t all = checkpoint_tensors(ck), count = 0;
    int rc = FAILED;
    tensor_copy *copy = mem_array(all, sizeof *copy, "the table of tensors", st);
    char(*name)[NAME] = mem_array(all, sizeof *name, "names of tensors", st);
    cJSON *metadata = NULL;
    if (!copy || !name)
        goto done;
    for (size_t i = 0; i < all; i++) {
        const tensor_info *t = checkpoint_tensor(ck, i);
        if (strlen(t->name) + 8 > NAME) {
            status_fail(st, "%s: %.64s…: a name of more than %d bytes", model_path(e->m), t->name,
                        NAME - 8);
            goto done;
        }
        if (!new_name(e, t->name, name[count], NAME))
            continue;
        copy[count] = (tensor_copy){name[count], t};
        count++;
    }
    metadata = new_metadata(e);
    rc = metadata ? safetensors_write(path, ck, copy, count, metadata, st)
                  : status_fail(st, "%s: out of memory", path);
done:
    cJSON_Delete(metadata);
    free(copy);
    free(name);
    return rc;
}

/* Files that other programs want beside the weights. */
static const char *const beside[] = {
    "tokenizer.json",     "tokenizer_config.json",
    "tokenizer.model",    "special_tokens_map.json",
    "vocab.json",         "merges.txt",
    "added_tokens.json",  "chat_template.jinja",
    "chat_template.json", "generation_config.json",
};
enum { BESIDE = sizeof beside / sizeof *beside };

static int path_of(const char *folder, const char *name, char path[4096], status *st) {
    if (snprintf(path, 4096, "%s/%s", folder, name) >= 4096)
        return status_fail(st, "%.100s…: path too long", folder);
    return DONE;
}

static int copy_beside(const exporter *e, status *st) {
    for (size_t i = 0; i < BESIDE; i++) {
        char from[4096], to[4096], *text;
        size_t bytes;
        output *file;
        if (path_of(model_path(e->m), beside[i], from, st) ||
            path_of(e->o->folder, beside[i], to, st))
            return FAILED;
        if (access(from, F_OK))
            continue;
        if (text_read(from, FILE_BYTES_MAX, &text, &bytes, st))
            return FAILED;
        int rc = output_open(to, &file, st);
        if (!rc) {
            fwrite(text, 1, bytes, output_stream(file));
            rc = output_commit(file, st);
        }
        free(text);
        if (rc)
            return FAILED;
    }
    return DONE;
}

/* ---- the folder ---- */

int export_folder_check(const char *folder, status *st) {
    DIR *dir = opendir(folder);
    if (!dir && errno == ENOENT)
        return DONE;
    if (!dir)
        return status_fail(st, "%s: cannot be read as a folder: %s", folder, strerror(errno));
    int rc = DONE;
    for (struct dirent *entry; !rc && (entry = readdir(dir));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            rc = status_fail(st, "%s: holds %.200s, expected a new or an empty folder", folder,
                             entry->d_name);
    closedir(dir);
    return rc;
}

static int make_folder(const char *folder, bool *made, status *st) {
    struct stat info;
    *made = stat(folder, &info) != 0;
    return export_folder_check(folder, st) || folder_make(folder, st) ? FAILED : DONE;
}

static void take_back(const char *folder, bool made) {
    static const char *const own[] = {"config.json", "model.safetensors"};
    char path[4096];
    status ignored;
    for (size_t i = 0; i < 2 + BESIDE; i++)
        if (!path_of(folder, i < 2 ? own[i] : beside[i - 2], path, &ignored))
            unlink(path);
    if (made)
        rmdir(folder);
}

/* ---- the proof ---- */

static bool same_rope(const rope_config *a, const rope_config *b) {
    return a->kind == b->kind && a->theta == b->theta && a->factor == b->factor &&
           a->low_freq_factor == b->low_freq_factor && a->high_freq_factor == b->high_freq_factor &&
           a->original_positions == b->original_positions;
}

static bool same_decoder(const model_config *a, const model_config *b) {
    return a->family == b->family && a->vocabulary == b->vocabulary && a->width == b->width &&
           a->query_heads == b->query_heads && a->kv_heads == b->kv_heads &&
           a->head_dim == b->head_dim && a->mlp_width == b->mlp_width && a->eps == b->eps &&
           a->positions == b->positions && a->tied == b->tied && a->head_norm == b->head_norm &&
           a->qkv_bias == b->qkv_bias && a->out_bias == b->out_bias && a->mlp_bias == b->mlp_bias &&
           same_rope(&a->rope, &b->rope);
}

static bool same_site(const depth_site *a, const depth_site *b) {
    return a->base == b->base && a->interpolates == b->interpolates && a->gate == b->gate &&
           a->sources == b->sources && a->null_source == b->null_source &&
           (a->sources == 0 ||
            memcmp(a->source, b->source, (size_t)a->sources * sizeof *a->source) == 0);
}

/* The same values from the same sublayers, read by the same sites; `old` numbers its layers as
 * `map` says. */
static bool same_program(const depth_program *new, const depth_program *old, const size_t *map) {
    bool same = new->sublayers == old->sublayers &&new->plan.values ==
                old->plan.values &&new->plan.heads == old->plan.heads &&new->plan.eps ==
                old->plan.eps;
    for (size_t v = 0; same && v < new->plan.values; v++) {
        const depth_value *a = &new->plan.value[v], *b = &old->plan.value[v];
        same = a->kind == b->kind && a->b == b->b &&
               (a->kind == VALUE_NULL ? 2 * map[a->a / 2] + (size_t)a->a % 2 == (size_t)b->a
                                      : a->a == b->a);
    }
    for (size_t k = 0; same && k < new->sublayers; k++) {
        const depth_sublayer *a = &new->sublayer[k], *b = &old->sublayer[k];
        same = a->kind == b->kind && map[a->layer] == b->layer && a->out == b->out &&
               same_site(&new->plan.site[a->site], &old->plan.site[b->site]);
    }
    return same &&
           same_site(&new->plan.site[new->plan.sites - 1], &old->plan.site[old->plan.sites - 1]);
}

/* Opens what was written and compares it with what was asked for. */
static int prove(const exporter *e, status *st) {
    const removed_set removed = {e->gone, e->config->mode == MODE_NONE ? DROP_SOURCE : e->removal};
    model_config whole = *e->config;
    depth_program *old = NULL, *new = NULL;
    model *m = NULL;
    const model_options describe = {.describe = true};
    memset(whole.removed, 0, sizeof whole.removed); /* all of it is in `removed` */
    int rc = model_open(e->o->folder, &describe, &m, st);
    if (!rc)
        rc = depth_program_build(&whole, &removed, &old, st);
    if (!rc) {
        model_config wrote = *model_configuration(m);
        if (e->config->mode == MODE_NONE)
            wrote.removal = DROP_SOURCE;
        rc = depth_program_build(&wrote, NULL, &new, st);
        if (!rc && (!same_decoder(e->config, &wrote) || !same_program(new, old, e->map)))
            rc = status_fail(st,
                             "%s: would not compute what was asked for: nothing is exported; "
                             "please report this with config.json of %s",
                             e->o->folder, model_path(e->m));
    }
    depth_program_free(old);
    depth_program_free(new);
    model_close(m);
    return rc;
}

int export_model(const model *m, const export_options *o, status *st) {
    char weights[4096], config[4096];
    bool made = false;
    exporter *e = mem_array(1, sizeof *e, "an export", st);
    if (!e)
        return FAILED;
    e->m = m;
    e->o = o;
    e->config = model_configuration(m);
    int rc = plan(e, st);
    if (!rc)
        rc = path_of(o->folder, "model.safetensors", weights, st) ||
                     path_of(o->folder, "config.json", config, st)
                 ? FAILED
                 : make_folder(o->folder, &made, st);
    if (!rc && (write_weights(e, weights, st) || copy_beside(e, st) ||
                write_config(e, config, st) || prove(e, st))) {
        take_back(o->folder, made);
        rc = FAILED;
    }
    if (!rc)
        log_note("%s: written as model_type %s", o->folder,
                 e->plain ? e->config->model_type : "fathom_pruned");
    free(e);
    return rc;
}
