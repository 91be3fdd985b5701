#include "data/sets/batch.h"

#include <string.h>

#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/base/sort.h"
#include "data/sets/augment.h"
#include "data/sets/parts.h"

struct dpt_batch_form dpt_batch_form_of(const struct dpt_dataset *set,
                                        const struct dpt_augment *augment, int32_t outputs)
{
    const bool augments = augment != NULL && dpt_augment_wanted(augment);
    const bool mixes = augments && dpt_augment_mixes(augment);

    return (struct dpt_batch_form){
        .set = set,
        .augment = augments ? augment : NULL,
        /* Mixing gives samples a probability of each class. */
        .targets = set->target == DPT_TARGET_VECTOR ? set->target_width
                   : mixes                          ? outputs
                                                    : 0,
    };
}

size_t dpt_batch_size(const struct dpt_batch_form *form)
{
    return (size_t)dpt_shape_size(&form->set->shape);
}

int dpt_batch_sources(const struct dpt_batch_form *form)
{
    return form->augment != NULL && dpt_augment_mixes(form->augment) ? 2 : 1;
}

size_t dpt_batch_scratch(const struct dpt_batch_form *form)
{
    if (form->augment == NULL)
        return dpt_fill_scratch(form->set);
    return dpt_augment_scratch(form->augment, form->set) +
           (size_t)(dpt_batch_sources(form) - 1) * dpt_batch_size(form);
}

enum dpt_status dpt_batch_sample(const struct dpt_batch_form *form,
                                 const struct dpt_augment_key *key, const uint8_t *stored,
                                 size_t bytes, float *out, float *scratch, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_dataset *set = form->set;
    const struct dpt_augment *augment = form->augment;
    struct dpt_picture picture = {0};
    uint8_t *decoded = NULL;

    if (augment != NULL && dpt_augment_takes_pictures(augment, set)) {
        const struct dpt_shard *shard = dpt_dataset_shard(set, key->sample);

        DPT_TRY(dpt_shard_picture(shard, key->sample - shard->first, stored, bytes, &picture, err));
        DPT_TRY(dpt_augment_picture(augment, set, key, &picture, out, scratch, err));
    } else {
        DPT_TRY(dpt_dataset_take(set, key->sample, bytes, &stored, &decoded, err));
        if (augment != NULL)
            dpt_augment_sample(augment, set, key, stored, out, scratch);
        else
            dpt_fill_sample(set, stored, out, scratch);
    }
out:
    dpt_picture_release(&picture);
    dpt_free(decoded);
    return status;
}

/* A sample of the first shard, or nothing but zeros. room: of `bytes`, which may become others. */
static enum dpt_status read_one(const struct dpt_dataset *set, int64_t sample, uint8_t **bytes,
                                size_t *room, size_t *n, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_shard *shard = set->parts->shards;

    dpt_dataset_place(set, sample, n);
    DPT_WIDEN(*bytes, room, *n, "a sample", err);
    if (set->files)
        DPT_TRY(
            dpt_field_read(&shard->images, dpt_shard_row(shard, sample), (int64_t)*n, *bytes, err));
out:
    return status;
}

enum dpt_status dpt_batch_cost(const struct dpt_batch_form *form, double *seconds,
                               struct dpt_error *err)
{
    enum { MOST = 64, LEAST = 4 };
    static const double enough = 0.1;
    enum dpt_status status = DPT_OK;
    const struct dpt_dataset *set = form->set;
    struct dpt_shard *shard = set->files ? set->parts->shards : NULL;
    const int64_t samples = shard != NULL ? shard->samples : set->samples;
    struct dpt_augment_key key = {0};
    size_t room = 0, n;
    uint8_t *bytes = NULL;
    float *out = NULL, *scratch = NULL;
    double taken[1 + MOST], all = 0;
    bool opened, held = false;
    int64_t made = 0;

    if (shard != NULL)
        DPT_TRY(dpt_shard_take(shard, true, &opened, err));
    held = shard != NULL;
    DPT_TRY(DPT_ALLOCATE(out, dpt_batch_size(form), "a sample", err));
    DPT_TRY(DPT_ALLOCATE(scratch, dpt_batch_scratch(form), "a sample", err));
    /* The first one, which touches the memory, does not count. */
    for (int64_t i = 0; i <= MOST && (i <= LEAST || all < enough); i++) {
        double start;

        key.sample = i % samples;
        DPT_TRY(read_one(set, key.sample, &bytes, &room, &n, err));
        start = dpt_now();
        DPT_TRY(dpt_batch_sample(form, &key, bytes, n, out, scratch, err));
        taken[i] = dpt_now() - start;
        all += taken[i];
        made = i;
    }
    *seconds = dpt_median(taken + 1, (size_t)made) * dpt_batch_sources(form);
out:
    if (held)
        dpt_shard_release(shard);
    dpt_free(bytes);
    dpt_free(out);
    dpt_free(scratch);
    return status;
}

enum dpt_status dpt_batch_buffer_open(struct dpt_batch_buffer *buffer,
                                      const struct dpt_batch_form *form, int32_t micro,
                                      struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t n = (size_t)micro;
    static const char what[] = "a micro-batch";

    memset(buffer, 0, sizeof *buffer);
    DPT_TRY(DPT_ALLOCATE(buffer->input, n * dpt_batch_size(form), what, err));
    DPT_TRY(DPT_ALLOCATE(buffer->labels, n, what, err));
    DPT_TRY(DPT_ALLOCATE(buffer->weights, n, what, err));
    DPT_TRY(DPT_ALLOCATE(buffer->sample, n, what, err));
    DPT_TRY(dpt_batch_buffer_widen(buffer, form, micro, err));
out:
    if (status != DPT_OK)
        dpt_batch_buffer_close(buffer);
    return status;
}

void dpt_batch_buffer_close(struct dpt_batch_buffer *buffer)
{
    dpt_free(buffer->input);
    dpt_free(buffer->labels);
    dpt_free(buffer->targets);
    dpt_free(buffer->weights);
    dpt_free(buffer->sample);
    dpt_free(buffer->scratch);
    memset(buffer, 0, sizeof *buffer);
}

enum dpt_status dpt_batch_buffer_scratch(struct dpt_batch_buffer *buffer, size_t floats,
                                         struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_WIDEN(buffer->scratch, &buffer->scratch_floats, floats, "making samples", err);
out:
    return status;
}

enum dpt_status dpt_batch_buffer_widen(struct dpt_batch_buffer *buffer,
                                       const struct dpt_batch_form *form, int32_t rows,
                                       struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t floats = (size_t)rows * (size_t)form->targets;

    DPT_WIDEN(buffer->targets, &buffer->target_floats, floats, "a micro-batch's targets", err);
    DPT_TRY(dpt_batch_buffer_scratch(buffer, dpt_batch_scratch(form), err));
out:
    return status;
}

struct dpt_batch_buffer dpt_batch_buffer_from(const struct dpt_batch_buffer *buffer,
                                              const struct dpt_batch_form *form, size_t row)
{
    struct dpt_batch_buffer from = *buffer;
    const size_t width = (size_t)form->targets;

    if (from.input != NULL)
        from.input += row * dpt_batch_size(form);
    if (from.targets != NULL)
        from.targets += row * width;
    from.target_floats -= row * width;
    from.labels += row;
    from.weights += row;
    from.sample += row;
    return from;
}
