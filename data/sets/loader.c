#include "data/sets/loader.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/base/pool.h"
#include "data/sets/augment.h"
#include "data/sets/mix.h"
#include "data/sets/parts.h"
#include "data/sets/targets.h"

enum { LEAST_AHEAD = 3, MOST_AHEAD = 16 };

int dpt_loader_ahead(double step_bytes)
{
    const double budget = 8 << 20;
    const double steps = step_bytes > 0 ? budget / step_bytes : MOST_AHEAD;

    return steps < LEAST_AHEAD ? LEAST_AHEAD : steps > MOST_AHEAD ? MOST_AHEAD : (int)steps;
}

/* A step that is being read, or ready. */
struct entry {
    int64_t epoch, step;
    bool ready;
    int32_t samples; /* of this rank */
    int64_t *index;  /* [samples]: numbers, in the order of the micro-batches; then the partners' */
    uint8_t *bytes;  /* [samples][stride], and the partners'; files one after the other */
    size_t *at;      /* of `index`: where in `bytes` each file begins; NULL: no files */
    size_t room;     /* of `bytes` */
    enum dpt_status status;
    struct dpt_error err;
};

/*
 * Entries are used in turn: the thread fills entry `filled % ahead` while filled - released <
 * ahead; next() waits for entry `taken % ahead` and lends it until the next call. `round` changes
 * with every seek, so that what was being read for before is thrown away.
 */
struct dpt_loader {
    struct dpt_batch_form form;
    const struct dpt_dataset *set; /* the form's */
    struct dpt_sampler sampler;
    int rank, ranks;
    bool streaming, mixing;
    int64_t epoch, step; /* next one to give */
    double waited;

    /* Only for streaming; all below under the thread's lock, but for entries that are lent or being
     * filled. */
    struct dpt_reader *reader; /* the thread's */
    struct entry *ring;        /* [ahead] */
    int ahead;
    struct dpt_thread thread;
    int64_t read_epoch, read_step; /* next one to read */
    uint64_t filled, released, taken, round;
    struct dpt_spans *spans; /* NULL: nobody looks */
};

static void advance(const struct dpt_sampler *s, int64_t *epoch, int64_t *step)
{
    if (++*step == dpt_sampler_steps(s)) {
        *step = 0;
        ++*epoch;
    }
}

/* Makes room for the files of a step, n of them, which may be larger than those of others. */
static enum dpt_status make_room(const struct dpt_loader *loader, struct entry *entry, int32_t n,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    size_t all;

    if (entry->at == NULL)
        return DPT_OK;
    all = dpt_reader_places(loader->set, entry->index, n, entry->at);
    DPT_WIDEN(entry->bytes, &entry->room, all, "reading ahead", err);
out:
    return status;
}

/* The number of the sample that is mixed into the one at a position of a step. */
static int64_t partner_at(const struct dpt_loader *loader, int64_t epoch, int64_t step,
                          int32_t position)
{
    const struct dpt_sampler *s = &loader->sampler;
    const int32_t count = dpt_sampler_count(s, step);
    const int32_t partner = dpt_mix_partner(s->seed, epoch, step, count, position);
    int64_t sample;

    dpt_sampler_samples(s, epoch, step * s->global + partner, 1, &sample);
    return sample;
}

/* Lists what the rank computes in a step, run by run, or the partners of that; gives how many. */
static int32_t list_entry(const struct dpt_loader *loader, const struct entry *entry, bool partners,
                          int64_t *index)
{
    const struct dpt_sampler *s = &loader->sampler;
    const int64_t count = dpt_sampler_count(s, entry->step), start = entry->step * s->global;
    int32_t first, last, n, listed = 0;

    dpt_sampler_partition(s, entry->step, loader->rank, loader->ranks, &first, &last);
    for (int32_t k = 0; k < last - first; k += n) {
        const int64_t begin = (int64_t)dpt_sampler_nth(s, loader->ranks, first, k) * s->micro;
        int64_t end;

        n = last - first - k;
        n = s->round_robin > 0 && s->round_robin < n ? s->round_robin : n;
        end = begin + (int64_t)n * s->micro;
        end = end < count ? end : count;
        if (!partners)
            dpt_sampler_samples(s, entry->epoch, start + begin, end - begin, index + listed);
        for (int64_t i = begin; partners && i < end; i++)
            index[listed + i - begin] = partner_at(loader, entry->epoch, entry->step, (int32_t)i);
        listed += (int32_t)(end - begin);
    }
    return listed;
}

static void fill_entry(struct dpt_loader *loader, struct entry *entry)
{
    int32_t n = entry->samples = list_entry(loader, entry, false, entry->index);

    if (loader->mixing)
        n += list_entry(loader, entry, true, entry->index + n);
    entry->status = make_room(loader, entry, n, &entry->err);
    if (entry->status == DPT_OK)
        entry->status = dpt_reader_read(loader->reader, entry->index, n, entry->bytes, &entry->err);
}

static void *read_ahead(void *arg)
{
    struct dpt_loader *loader = arg;

    pthread_mutex_lock(&loader->thread.lock);
    while (!loader->thread.stop) {
        struct entry *entry = &loader->ring[loader->filled % (unsigned)loader->ahead];
        const uint64_t round = loader->round;

        if (round == 0 || loader->filled - loader->released == (unsigned)loader->ahead) {
            pthread_cond_wait(&loader->thread.work, &loader->thread.lock);
            continue;
        }
        entry->epoch = loader->read_epoch;
        entry->step = loader->read_step;
        if (loader->spans != NULL)
            dpt_spans_begin(loader->spans);
        pthread_mutex_unlock(&loader->thread.lock);
        fill_entry(loader, entry);
        pthread_mutex_lock(&loader->thread.lock);
        if (loader->spans != NULL) {
            loader->spans->step = (int32_t)entry->step + 1;
            dpt_spans_mark(loader->spans, DPT_SPAN_READ);
        }
        if (round != loader->round) /* sought elsewhere meanwhile */
            continue;
        advance(&loader->sampler, &loader->read_epoch, &loader->read_step);
        loader->filled++;
        pthread_cond_signal(&loader->thread.done);
    }
    pthread_mutex_unlock(&loader->thread.lock);
    return NULL;
}

static enum dpt_status open_stream(struct dpt_loader *loader, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_sampler *s = &loader->sampler;
    const int64_t batches = ((int64_t)s->global + s->micro - 1) / s->micro;
    const int64_t each = s->round_robin > 0 ? s->round_robin : 1, all = each * loader->ranks;
    const int64_t most = (batches + all - 1) / all * each * s->micro;
    const size_t samples =
        (size_t)(most < s->global ? most : s->global) * (size_t)dpt_batch_sources(&loader->form);
    const size_t bytes = loader->set->files ? 0 : samples * loader->set->stride;
    int code;

    loader->ahead = dpt_loader_ahead((double)samples * (double)loader->set->bytes /
                                     (double)loader->set->samples);
    DPT_TRY(DPT_ALLOCATE(loader->ring, loader->ahead, "reading ahead", err));
    for (int i = 0; i < loader->ahead; i++) {
        DPT_TRY(DPT_ALLOCATE(loader->ring[i].index, samples, "reading ahead", err));
        DPT_TRY(DPT_ALLOCATE(loader->ring[i].bytes, bytes, "reading ahead", err));
        if (loader->set->files)
            DPT_TRY(DPT_ALLOCATE(loader->ring[i].at, samples, "reading ahead", err));
    }
    DPT_TRY(dpt_reader_open(&loader->reader, loader->set, samples, s->shuffle != DPT_SHUFFLE_FULL,
                            err));
    code = dpt_thread_start(&loader->thread, read_ahead, loader);
    if (code != 0)
        DPT_TRY(dpt_fail(err, DPT_RANK, "cannot start the loader's thread: %s", strerror(code)));
out:
    return status;
}

enum dpt_status dpt_loader_open_labels(struct dpt_loader **out, const struct dpt_batch_form *form,
                                       const struct dpt_sampler *sampler, int rank, int ranks,
                                       struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_loader *loader;

    *out = NULL;
    DPT_TRY(DPT_ALLOCATE(loader, 1, "a loader", err));
    loader->form = *form;
    loader->set = form->set;
    loader->mixing = dpt_batch_sources(form) > 1;
    loader->sampler = *sampler;
    loader->rank = rank;
    loader->ranks = ranks;
    if (dpt_sampler_steps(sampler) == 0)
        DPT_TRY(dpt_fail(err, DPT_BAD_JOB,
                         "%s: %lld samples make no whole step of %d: data.drop_last leaves nothing",
                         form->set->parts->key, (long long)sampler->samples, sampler->global));
    *out = loader;
out:
    if (status != DPT_OK)
        dpt_loader_close(loader);
    return status;
}

enum dpt_status dpt_loader_open(struct dpt_loader **out, const struct dpt_batch_form *form,
                                const struct dpt_sampler *sampler, int rank, int ranks,
                                struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_loader *loader = NULL;

    DPT_TRY(dpt_loader_open_labels(out, form, sampler, rank, ranks, err));
    loader = *out;
    loader->streaming = form->set->memory == NULL;
    if (form->augment != NULL)
        DPT_TRY(dpt_augment_check(form->augment, form->set, err));
    if (loader->streaming)
        DPT_TRY(open_stream(loader, err));
out:
    if (status != DPT_OK) {
        dpt_loader_close(loader);
        *out = NULL;
    }
    return status;
}

void dpt_loader_close(struct dpt_loader *loader)
{
    if (loader == NULL)
        return;
    dpt_thread_end(&loader->thread);
    dpt_reader_close(loader->reader);
    for (int i = 0; loader->ring != NULL && i < loader->ahead; i++) {
        dpt_free(loader->ring[i].index);
        dpt_free(loader->ring[i].bytes);
        dpt_free(loader->ring[i].at);
    }
    dpt_free(loader->ring);
    dpt_free(loader);
}

enum dpt_status dpt_loader_seek(struct dpt_loader *loader, int64_t epoch, int64_t step,
                                struct dpt_error *err)
{
    if (epoch < 0 || step < 0 || step >= dpt_sampler_steps(&loader->sampler))
        return dpt_fail(err, DPT_INTERNAL, "the loader was sent to step %lld of epoch %lld",
                        (long long)step, (long long)epoch);
    loader->epoch = epoch;
    loader->step = step;
    if (!loader->streaming)
        return DPT_OK;
    pthread_mutex_lock(&loader->thread.lock);
    loader->read_epoch = epoch;
    loader->read_step = step;
    loader->round++;
    loader->filled = loader->taken = loader->released = 0;
    pthread_cond_signal(&loader->thread.work);
    pthread_mutex_unlock(&loader->thread.lock);
    return DPT_OK;
}

/* Gives back the entry lent last and waits for the next. */
static enum dpt_status take_entry(struct dpt_loader *loader, int *entry, struct dpt_error *err)
{
    const double start = dpt_now();

    pthread_mutex_lock(&loader->thread.lock);
    if (loader->round == 0) { /* never sought: from the beginning */
        loader->round = 1;
        pthread_cond_signal(&loader->thread.work);
    }
    if (loader->released != loader->taken) {
        loader->released = loader->taken;
        /* Not for each one: waking the thread costs about as much as reading a small step. */
        if (loader->filled - loader->released <= (unsigned)(loader->ahead - loader->ahead / 4 - 1))
            pthread_cond_signal(&loader->thread.work);
    }
    while (loader->filled == loader->taken)
        pthread_cond_wait(&loader->thread.done, &loader->thread.lock);
    *entry = (int)(loader->taken % (unsigned)loader->ahead);
    loader->taken++;
    pthread_mutex_unlock(&loader->thread.lock);
    loader->waited += dpt_now() - start;
    if (loader->ring[*entry].status != DPT_OK)
        *err = loader->ring[*entry].err;
    return loader->ring[*entry].status;
}

enum dpt_status dpt_loader_next(struct dpt_loader *loader, struct dpt_step_view *view,
                                struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    view->epoch = loader->epoch;
    view->step = loader->step;
    view->total = dpt_sampler_count(&loader->sampler, loader->step);
    view->entry = -1;
    dpt_sampler_partition(&loader->sampler, loader->step, loader->rank, loader->ranks, &view->first,
                          &view->last);
    if (loader->streaming)
        status = take_entry(loader, &view->entry, err);
    advance(&loader->sampler, &loader->epoch, &loader->step);
    return status;
}

int32_t dpt_loader_nth(const struct dpt_loader *loader, const struct dpt_step_view *view, int32_t k)
{
    return dpt_sampler_nth(&loader->sampler, loader->ranks, view->first, k);
}

void dpt_loader_observe(struct dpt_loader *loader, struct dpt_spans *spans)
{
    if (!loader->streaming)
        return;
    pthread_mutex_lock(&loader->thread.lock);
    loader->spans = spans;
    if (spans != NULL) /* in the middle of a step, too */
        dpt_spans_begin(spans);
    pthread_mutex_unlock(&loader->thread.lock);
}

double dpt_loader_waited(const struct dpt_loader *loader)
{
    return loader->waited;
}

/* The target of a sample that is mixed with another one, a row of probabilities. */
static void mix_targets(const struct dpt_loader *loader, int64_t epoch, int64_t sample,
                        int64_t partner, float *target, float *weight)
{
    const struct dpt_dataset *set = loader->set;
    const struct dpt_augment_key key = {loader->sampler.seed, epoch, sample};
    const struct dpt_mix mix = dpt_mix_draw(loader->form.augment, &set->shape, &key);
    const bool weighs = set->weights != NULL;
    const int32_t width = loader->form.targets;
    float share[2], of_both;

    dpt_mix_shares(&mix, weighs ? set->weights[sample] : 1, weighs ? set->weights[partner] : 1,
                   share, weighs ? weight : &of_both);
    if (set->target == DPT_TARGET_VECTOR) {
        const float *own = set->targets + sample * width, *other = set->targets + partner * width;

        for (int32_t k = 0; k < width; k++)
            target[k] = share[0] * own[k] + share[1] * other[k];
        return;
    }
    memset(target, 0, (size_t)width * sizeof *target);
    target[set->labels[sample]] = share[0];
    target[set->labels[partner]] += share[1];
}

static void fill_targets(const struct dpt_loader *loader, const struct dpt_step_view *view,
                         int32_t micro_batch, int32_t first, int32_t last,
                         struct dpt_batch_buffer *buffer)
{
    const struct dpt_dataset *set = loader->set;
    const size_t width = (size_t)loader->form.targets;
    const int32_t begin = micro_batch * loader->sampler.micro; /* in the step */
    const int64_t *sample = buffer->sample;
    float *targets = buffer->targets;

    for (int32_t i = first; set->weights != NULL && i < last; i++)
        buffer->weights[i] = set->weights[sample[i]];
    if (loader->mixing)
        for (int32_t i = first; i < last; i++)
            mix_targets(loader, view->epoch, sample[i],
                        partner_at(loader, view->epoch, view->step, begin + i),
                        targets + (size_t)i * width, &buffer->weights[i]);
    else if (width == 0)
        for (int32_t i = first; i < last; i++)
            buffer->labels[i] = set->labels[sample[i]];
    else if (set->scale != NULL && dpt_target_scale_changes(set->scale))
        for (int32_t i = first; i < last; i++)
            dpt_target_scale_apply(set->scale, set->targets + (size_t)sample[i] * width,
                                   targets + (size_t)i * width);
    else if (set->positive != NULL)
        for (size_t i = (size_t)first * width; i < (size_t)last * width; i++) {
            const float target = set->targets[(size_t)sample[i / width] * width + i % width];

            targets[i] = target > 0 ? -set->positive[i % width] : target;
        }
    else if (width == 1)
        for (int32_t i = first; i < last; i++)
            targets[i] = set->targets[sample[i]];
    else
        for (int32_t i = first; i < last; i++)
            memcpy(targets + (size_t)i * width, set->targets + (size_t)sample[i] * width,
                   width * sizeof(float));
}

/* The numbers of the rows [first, last); gives the place of the first among those that were read
 * ahead. */
static int64_t find_rows(const struct dpt_loader *loader, const struct dpt_step_view *view,
                         int32_t micro_batch, int32_t first, int32_t last, int64_t *sample)
{
    const struct dpt_sampler *s = &loader->sampler;
    const int64_t begin = (int64_t)micro_batch * s->micro + first;

    if (loader->streaming) {
        const struct entry *entry = &loader->ring[view->entry];
        const int64_t at =
            (int64_t)dpt_sampler_place(s, loader->ranks, view->first, micro_batch) * s->micro +
            first;

        memcpy(sample + first, entry->index + at, (size_t)(last - first) * sizeof *sample);
        return at;
    }
    dpt_sampler_samples(s, view->epoch, view->step * s->global + begin, last - first,
                        sample + first);
    return 0;
}

/* A sample as the model takes it, but for the mixing: the one at a place among those that were read
 * ahead, or in memory. */
static enum dpt_status make_sample(const struct dpt_loader *loader,
                                   const struct dpt_step_view *view, int64_t place, int64_t sample,
                                   float *out, float *scratch, struct dpt_error *err)
{
    const struct dpt_augment_key key = {loader->sampler.seed, view->epoch, sample};
    size_t bytes;
    const int64_t at = dpt_dataset_place(loader->set, sample, &bytes);
    const struct entry *entry = loader->streaming ? &loader->ring[view->entry] : NULL;
    const uint8_t *stored = entry == NULL       ? loader->set->memory + at
                            : entry->at != NULL ? entry->bytes + entry->at[place]
                                                : entry->bytes + (size_t)place * bytes;

    return dpt_batch_sample(&loader->form, &key, stored, bytes, out, scratch, err);
}

/* Mixes its partner into a sample. */
static enum dpt_status mix_sample(const struct dpt_loader *loader, const struct dpt_step_view *view,
                                  int64_t place, int64_t sample, int64_t partner, float *image,
                                  float *scratch, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_shape *shape = &loader->set->shape;
    const struct dpt_augment_key key = {loader->sampler.seed, view->epoch, sample};
    const struct dpt_mix mix = dpt_mix_draw(loader->form.augment, shape, &key);
    float *const other = scratch, *const rest = scratch + dpt_shape_size(shape);

    DPT_TRY(make_sample(loader, view, place, partner, other, rest, err));
    dpt_mix_input(&mix, shape, other, image);
out:
    return status;
}

static enum dpt_status fill_rows(const struct dpt_loader *loader, const struct dpt_step_view *view,
                                 int32_t micro_batch, int64_t place, int32_t first, int32_t last,
                                 struct dpt_batch_buffer *buffer, float *scratch,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_dataset *set = loader->set;
    const size_t size = dpt_batch_size(&loader->form);
    const int32_t begin = micro_batch * loader->sampler.micro; /* in the step */
    /* From one that was read ahead to its partner. */
    const int64_t apart = loader->streaming ? loader->ring[view->entry].samples : 0;

    if (!loader->streaming && loader->form.augment == NULL && !set->files && !set->views)
        return dpt_dataset_fill(set, buffer->sample + first, last - first,
                                buffer->input + (size_t)first * size, err);
    for (int32_t i = first; i < last; i++) {
        const int64_t sample = buffer->sample[i];
        float *out = buffer->input + (size_t)i * size;

        if (!loader->streaming && i + 1 < last)
            dpt_dataset_prefetch(set, buffer->sample[i + 1]);
        DPT_TRY(make_sample(loader, view, place + i - first, sample, out, scratch, err));
        if (loader->mixing)
            DPT_TRY(mix_sample(loader, view, place + i - first + apart, sample,
                               partner_at(loader, view->epoch, view->step, begin + i), out, scratch,
                               err));
    }
out:
    return status;
}

/* Samples of a micro-batch. */
static int32_t rows_of(const struct dpt_loader *loader, const struct dpt_step_view *view,
                       int32_t micro_batch)
{
    const int32_t micro = loader->sampler.micro, left = view->total - micro_batch * micro;

    return left < micro ? left : micro;
}

void dpt_loader_fill_labels(const struct dpt_loader *loader, const struct dpt_step_view *view,
                            int32_t micro_batch, struct dpt_batch_buffer *buffer,
                            struct dpt_steps_move *move, int32_t *count)
{
    *count = rows_of(loader, view, micro_batch);
    find_rows(loader, view, micro_batch, 0, *count, buffer->sample);
    fill_targets(loader, view, micro_batch, 0, *count, buffer);
    for (int32_t i = 0; move != NULL && i < *count; i++)
        move[i] = loader->form.augment != NULL
                      ? dpt_augment_draw(loader->form.augment, loader->sampler.seed, view->epoch,
                                         buffer->sample[i])
                      : (struct dpt_steps_move){0};
}

enum dpt_status dpt_loader_fill_part(const struct dpt_loader *loader,
                                     const struct dpt_step_view *view, int32_t micro_batch,
                                     int part, int parts, struct dpt_batch_buffer *buffer,
                                     float *scratch, struct dpt_batch *batch, struct dpt_error *err)
{
    const struct dpt_dataset *set = loader->set;
    const int32_t micro = loader->sampler.micro, count = rows_of(loader, view, micro_batch);
    const int32_t first = (int32_t)((int64_t)count * part / parts);
    const int32_t last = (int32_t)((int64_t)count * (part + 1) / parts);
    const size_t size = (size_t)dpt_shape_size(&set->shape);
    enum dpt_status status;
    int64_t place;

    batch->count = count;
    batch->input = buffer->input;
    batch->sample = buffer->sample;
    batch->labels = loader->form.targets == 0 ? buffer->labels : NULL;
    batch->targets = loader->form.targets == 0 ? NULL : buffer->targets;
    batch->weights = set->weights != NULL ? buffer->weights : NULL;
    place = find_rows(loader, view, micro_batch, first, last, buffer->sample);
    status = fill_rows(loader, view, micro_batch, place, first, last, buffer, scratch, err);
    fill_targets(loader, view, micro_batch, first, last, buffer);
    if (part == parts - 1 && count < micro)
        memset(buffer->input + (size_t)count * size, 0,
               (size_t)(micro - count) * size * sizeof(float));
    return status;
}

enum dpt_status dpt_loader_fill(const struct dpt_loader *loader, const struct dpt_step_view *view,
                                int32_t micro_batch, struct dpt_batch_buffer *buffer,
                                struct dpt_batch *batch, struct dpt_error *err)
{
    const enum dpt_status status =
        dpt_batch_buffer_widen(buffer, &loader->form, loader->sampler.micro, err);

    return status != DPT_OK ? status
                            : dpt_loader_fill_part(loader, view, micro_batch, 0, 1, buffer,
                                                   buffer->scratch, batch, err);
}
