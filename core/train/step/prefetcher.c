#include "core/train/step/prefetcher.h"

#include <pthread.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/base/pool.h"

/* A step that is being filled, or was filled. */
struct item {
    struct dpt_prefetched prefetched;
    enum dpt_status status;
    struct dpt_error err;
};

/* One of the threads that fill a staging buffer. */
struct filler {
    float *scratch; /* where samples are made */
    enum dpt_status status;
    struct dpt_error err;
};

/*
 * Staging buffers are used round-robin: the thread fills staging buffer `filled % staging_buffers`
 * while filled - released < staging_buffers; next() waits for staging buffer `taken %
 * staging_buffers`. The thread's lock guards all but the item being filled and the one that was
 * taken.
 */
struct dpt_prefetcher {
    struct dpt_prefetcher_spec spec;
    struct item *items;     /* [staging_buffers] */
    struct dpt_pool *pool;  /* fills a staging buffer; run by the thread alone */
    struct filler *fillers; /* [threads] */
    struct dpt_thread thread;
    bool wanted;  /* it may fill staging buffers */
    bool working; /* it has the loader and a staging buffer */
    uint64_t filled, taken, released;
    double waited;
};

/* The rows of a staging buffer that are micro-batch k's. */
static struct dpt_batch_buffer rows_of(const struct dpt_prefetcher *f,
                                       const struct dpt_staging_buffer *staging_buffer, int32_t k)
{
    const size_t micro = (size_t)f->spec.micro, at = (size_t)k * micro;
    const size_t width = (size_t)f->spec.form->targets;
    struct dpt_batch_buffer rows = {.sample = staging_buffer->sample + at};

    if (staging_buffer->input != NULL)
        rows.input = staging_buffer->input + at * dpt_batch_size(f->spec.form);
    if (staging_buffer->labels != NULL)
        rows.labels = staging_buffer->labels + at;
    if (staging_buffer->targets != NULL)
        rows.targets = staging_buffer->targets + at * width;
    if (staging_buffer->weights != NULL)
        rows.weights = staging_buffer->weights + at;
    rows.target_floats = micro * width;
    return rows;
}

/* A step that is filled. */
struct filling {
    struct dpt_prefetcher *f;
    struct dpt_step_view view;
    struct dpt_staging_buffer staging_buffer;
};

/* A thread's rows of all micro-batches. */
static void fill_share(void *arg, int thread)
{
    const struct filling *filling = arg;
    const struct dpt_prefetcher *f = filling->f;
    const struct dpt_step_view *view = &filling->view;
    struct filler *filler = &f->fillers[thread];

    filler->status = DPT_OK;
    for (int32_t k = 0; filler->status == DPT_OK && k < view->last - view->first; k++) {
        struct dpt_batch_buffer rows = rows_of(f, &filling->staging_buffer, k);
        struct dpt_batch batch = {0};

        filler->status = dpt_loader_fill_part(
            f->spec.loader, view, dpt_loader_nth(f->spec.loader, view, k), thread, f->spec.threads,
            &rows, filler->scratch, &batch, &filler->err);
        if (thread == 0)
            filling->staging_buffer.count[k] = batch.count;
    }
}

/* The inputs of a step, by all threads. */
static enum dpt_status fill_inputs(struct dpt_prefetcher *f, struct filling *filling,
                                   struct dpt_error *err)
{
    dpt_pool_run(f->pool, fill_share, filling);
    for (int i = 0; i < f->spec.threads; i++)
        if (f->fillers[i].status != DPT_OK) {
            *err = f->fillers[i].err;
            return err->status;
        }
    return DPT_OK;
}

static enum dpt_status fill(struct dpt_prefetcher *f, struct dpt_prefetched *prefetched,
                            struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct filling filling = {.f = f};
    const struct dpt_step_view *view = &filling.view;
    const struct dpt_staging_buffer *staging_buffer = &filling.staging_buffer;

    DPT_TRY(dpt_loader_next(f->spec.loader, &filling.view, err));
    DPT_TRY(f->spec.type->staging_buffer(f->spec.steps, prefetched->staging_buffer,
                                         &filling.staging_buffer, err));
    prefetched->micros = view->last - view->first;
    if (staging_buffer->input != NULL)
        DPT_TRY(fill_inputs(f, &filling, err));
    for (int32_t k = 0; staging_buffer->input == NULL && k < prefetched->micros; k++) {
        struct dpt_batch_buffer rows = rows_of(f, staging_buffer, k);
        struct dpt_steps_move *move = staging_buffer->move;

        if (move != NULL)
            move += (size_t)k * (size_t)f->spec.micro;
        dpt_loader_fill_labels(f->spec.loader, view, dpt_loader_nth(f->spec.loader, view, k), &rows,
                               move, &staging_buffer->count[k]);
    }
    DPT_TRY(f->spec.type->send(f->spec.steps, prefetched->staging_buffer, prefetched->micros, err));
out:
    return status;
}

static void *serve(void *arg)
{
    struct dpt_prefetcher *f = arg;

    pthread_mutex_lock(&f->thread.lock);
    while (!f->thread.stop) {
        struct item *item = &f->items[f->filled % (unsigned)f->spec.staging_buffers];

        if (!f->wanted || f->filled - f->released == (unsigned)f->spec.staging_buffers) {
            pthread_cond_wait(&f->thread.work, &f->thread.lock);
            continue;
        }
        item->prefetched.staging_buffer = (int)(f->filled % (unsigned)f->spec.staging_buffers);
        f->working = true;
        pthread_mutex_unlock(&f->thread.lock);
        item->status = fill(f, &item->prefetched, &item->err);
        pthread_mutex_lock(&f->thread.lock);
        f->working = false;
        f->filled++;
        if (item->status != DPT_OK) /* no step follows one that failed */
            f->wanted = false;
        pthread_cond_signal(&f->thread.done);
    }
    pthread_mutex_unlock(&f->thread.lock);
    return NULL;
}

enum dpt_status dpt_prefetcher_open(struct dpt_prefetcher **prefetcher,
                                    const struct dpt_prefetcher_spec *spec, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_prefetcher *f = NULL;
    int code;

    *prefetcher = NULL;
    DPT_TRY(DPT_ALLOCATE(f, 1, "feeding the device", err));
    f->spec = *spec;
    DPT_TRY(DPT_ALLOCATE(f->items, (size_t)spec->staging_buffers, "feeding the device", err));
    DPT_TRY(DPT_ALLOCATE(f->fillers, (size_t)spec->threads, "feeding the device", err));
    for (int i = 0; i < spec->threads; i++)
        DPT_TRY(DPT_ALLOCATE(f->fillers[i].scratch, dpt_batch_scratch(spec->form),
                             "feeding the device", err));
    DPT_TRY(dpt_pool_open(&f->pool, spec->threads, false, err));
    code = dpt_thread_start(&f->thread, serve, f);
    if (code != 0)
        DPT_TRY(dpt_fail(err, DPT_RANK, "cannot start the thread that feeds the device: %s",
                         strerror(code)));
    *prefetcher = f;
out:
    if (status != DPT_OK)
        dpt_prefetcher_close(f);
    return status;
}

void dpt_prefetcher_close(struct dpt_prefetcher *f)
{
    if (f == NULL)
        return;
    dpt_thread_end(&f->thread);
    dpt_pool_close(f->pool);
    for (int i = 0; f->fillers != NULL && i < f->spec.threads; i++)
        dpt_free(f->fillers[i].scratch);
    dpt_free(f->fillers);
    dpt_free(f->items);
    dpt_free(f);
}

enum dpt_status dpt_prefetcher_next(struct dpt_prefetcher *f, struct dpt_prefetched *prefetched,
                                    struct dpt_error *err)
{
    const struct item *item;

    pthread_mutex_lock(&f->thread.lock);
    if (!f->wanted && f->filled == f->taken) {
        f->wanted = true;
        pthread_cond_signal(&f->thread.work);
    }
    if (f->filled == f->taken) {
        const double start = dpt_now();

        while (f->filled == f->taken)
            pthread_cond_wait(&f->thread.done, &f->thread.lock);
        f->waited += dpt_now() - start;
    }
    item = &f->items[f->taken % (unsigned)f->spec.staging_buffers];
    f->taken++;
    pthread_mutex_unlock(&f->thread.lock);
    *prefetched = item->prefetched;
    if (item->status != DPT_OK)
        *err = item->err;
    return item->status;
}

void dpt_prefetcher_release(struct dpt_prefetcher *f, int held)
{
    pthread_mutex_lock(&f->thread.lock);
    f->released = f->taken - (unsigned)held;
    pthread_cond_signal(&f->thread.work);
    pthread_mutex_unlock(&f->thread.lock);
}

void dpt_prefetcher_pause(struct dpt_prefetcher *f)
{
    pthread_mutex_lock(&f->thread.lock);
    f->wanted = false;
    while (f->working)
        pthread_cond_wait(&f->thread.done, &f->thread.lock);
    f->filled = f->taken = f->released = 0;
    pthread_mutex_unlock(&f->thread.lock);
}

double dpt_prefetcher_waited(const struct dpt_prefetcher *f)
{
    return f->waited;
}
