#include "kernels/depth_edit.h"

#include <float.h>
#include <math.h>
#include <string.h>

void depth_edit_logits(const depth_edit *edit, size_t heads, size_t sources, float *logit) {
    if (edit->kind != EDIT_QUERY_SCALE)
        return;
    for (size_t h = 0; h < heads; h++)
        for (size_t s = 0; depth_edit_of_head(edit, h) && s < sources; s++)
            logit[h * sources + s] *= edit->scale;
}

/* Takes the weights of one head away. Where nothing would be left they stay. */
static void mask(const depth_edit *edit, size_t sources, float *weight, float *spare) {
    memcpy(spare, weight, sources * sizeof *spare);
    for (size_t i = 0; i < edit->sources; i++)
        spare[edit->source[i]] = 0.0f;
    float left = 0.0f;
    for (size_t s = 0; s < sources; s++)
        left += spare[s];
    if (left == 0.0f) {
        if (edit->skipped)
#pragma omp atomic
            ++*edit->skipped;
        return;
    }
    const float scale = edit->kind == EDIT_MASK ? 1.0f / left : 1.0f;
    for (size_t s = 0; s < sources; s++)
        weight[s] = spare[s] * scale;
}

static void head_mean(size_t heads, size_t sources, const float *weight, float *mean) {
    for (size_t s = 0; s < sources; s++) {
        double sum = 0.0;
        for (size_t h = 0; h < heads; h++)
            sum += (double)weight[h * sources + s];
        mean[s] = (float)(sum / (double)heads);
    }
}

static void edit_head(const depth_edit *edit, size_t head, size_t sources, const float *given,
                      float *weight, float *spare) {
    switch (edit->kind) {
    case EDIT_QUERY_SCALE:
        return;
    case EDIT_MASK:
    case EDIT_MASK_RAW:
        if (edit->sources > 0)
            mask(edit, sources, weight, spare);
        return;
    case EDIT_UNIFORM:
        for (size_t s = 0; s < sources; s++)
            weight[s] = 1.0f / (float)sources;
        return;
    case EDIT_HEAD_MEAN:
        memcpy(weight, spare, sources * sizeof *weight);
        return;
    case EDIT_TOKEN_MEAN:
        memcpy(weight, edit->weights + head * sources, sources * sizeof *weight);
        return;
    case EDIT_SWAP: {
        const float first = weight[edit->source[0]];
        weight[edit->source[0]] = weight[edit->source[1]];
        weight[edit->source[1]] = first;
        return;
    }
    case EDIT_GIVEN:
    case EDIT_MEAN_VALUE:
        if (given)
            memcpy(weight, given + head * sources, sources * sizeof *weight);
        return;
    }
}

void depth_edit_weights(const depth_edit *edit, size_t heads, size_t sources, const float *given,
                        float *weight, float *spare) {
    if (edit->kind == EDIT_HEAD_MEAN)
        head_mean(heads, sources, weight, spare);
    for (size_t h = 0; h < heads; h++)
        if (depth_edit_of_head(edit, h))
            edit_head(edit, h, sources, given, weight + h * sources, spare);
}

/* A weight too small for a float counts as the smallest one; NaN stays NaN. */
static double scaled_log(float weight, float scale) {
    return (double)scale * log(weight == 0.0f ? (double)FLT_TRUE_MIN : (double)weight);
}

void depth_edit_scaled(const depth_edit *edit, size_t heads, size_t sources, float *weight) {
    for (size_t h = 0; h < heads; h++) {
        float *w = weight + h * sources;
        double sum = 0.0, largest = -INFINITY;
        if (!depth_edit_of_head(edit, h) || edit->scale == 1.0f)
            continue;
        for (size_t s = 0; s < sources; s++)
            largest = fmax(largest, scaled_log(w[s], edit->scale));
        for (size_t s = 0; s < sources; s++)
            sum += exp(scaled_log(w[s], edit->scale) - largest);
        for (size_t s = 0; s < sources; s++)
            w[s] = (float)(exp(scaled_log(w[s], edit->scale) - largest) / sum);
    }
}

void depth_edit_values(const depth_edit *edit, size_t sources, size_t width, const float *const *v,
                       const float **mean) {
    memcpy(mean, v, sources * sizeof *mean);
    for (size_t i = 0; i < edit->sources; i++)
        mean[edit->source[i]] = edit->mean + i * width;
}
