#include "core/state/saver.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/base/pool.h"
#include "core/state/checkpoint_image.h"

enum phase { IDLE, AWAITS, WRITING, ENDED }; /* AWAITS: what other ranks write */

struct dpt_saver {
    const char *folder;
    int64_t keep;
    struct dpt_image *image;
    const struct dpt_lock *run_lock; /* of the run folder */
    int64_t best_step;
    struct dpt_saved saved;
    double start;
    struct dpt_thread thread; /* the writer; waits for work, the main one until it is done */
    _Atomic enum phase
        phase; /* changed under its lock; read without it by a poll that does not wait */
    struct dpt_spans *spans; /* NULL: nobody looks */
    enum dpt_status status;  /* of the save that ended */
    struct dpt_error err;
};

static void save(struct dpt_saver *s)
{
    s->status = dpt_lock_check(s->run_lock, &s->err);
    if (s->status == DPT_OK)
        s->status = dpt_checkpoint_prepare(s->folder, &s->err);
    if (s->status == DPT_OK)
        s->status = dpt_image_save(s->image, s->saved.path, &s->err);
    if (s->status == DPT_OK)
        s->status = dpt_lock_check(s->run_lock, &s->err);
    if (s->status == DPT_OK)
        s->status = dpt_checkpoint_rotate(s->folder, s->saved.path, s->keep, s->best_step, &s->err);
    s->saved.seconds = dpt_now() - s->start;
}

static void *serve(void *arg)
{
    struct dpt_saver *s = arg;

    pthread_mutex_lock(&s->thread.lock);
    for (;;) {
        while (!s->thread.stop && s->phase != WRITING)
            pthread_cond_wait(&s->thread.work, &s->thread.lock);
        if (s->phase != WRITING)
            break;
        if (s->spans != NULL)
            dpt_spans_begin(s->spans);
        pthread_mutex_unlock(&s->thread.lock);
        save(s);
        pthread_mutex_lock(&s->thread.lock);
        if (s->spans != NULL) {
            s->spans->step = (int32_t)s->saved.step;
            dpt_spans_mark(s->spans, DPT_SPAN_SAVE);
        }
        s->phase = ENDED;
        pthread_cond_broadcast(&s->thread.done);
    }
    pthread_mutex_unlock(&s->thread.lock);
    return NULL;
}

enum dpt_status dpt_saver_open(struct dpt_saver **saver, const struct dpt_state *state,
                               const char *folder, int64_t keep, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_saver *s;
    char checkpoints[PATH_MAX];
    int code;

    *saver = NULL;
    DPT_TRY(DPT_ALLOCATE(s, 1, "saving", err));
    s->folder = folder;
    s->keep = keep;
    snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", folder);
    DPT_TRY(dpt_image_open(&s->image, state, checkpoints, err));
    code = dpt_thread_start(&s->thread, serve, s);
    if (code != 0)
        DPT_TRY(dpt_fail(err, DPT_RANK, "cannot start the saving thread: %s", strerror(code)));
    *saver = s;
out:
    if (status != DPT_OK)
        dpt_saver_close(s);
    return status;
}

void dpt_saver_close(struct dpt_saver *s)
{
    if (s == NULL)
        return;
    dpt_thread_end(&s->thread);
    dpt_image_close(s->image);
    dpt_free(s);
}

uint64_t dpt_saver_bytes(const struct dpt_saver *s)
{
    return dpt_image_bytes(s->image);
}

void dpt_saver_observe(struct dpt_saver *s, struct dpt_spans *spans)
{
    pthread_mutex_lock(&s->thread.lock);
    s->spans = spans;
    if (spans != NULL) /* in the middle of a save, too */
        dpt_spans_begin(spans);
    pthread_mutex_unlock(&s->thread.lock);
}

/* Leaves the rest to the thread. */
static void go_on(struct dpt_saver *s)
{
    pthread_mutex_lock(&s->thread.lock);
    s->phase = WRITING;
    pthread_cond_signal(&s->thread.work);
    pthread_mutex_unlock(&s->thread.lock);
}

enum dpt_status dpt_saver_start(struct dpt_saver *s, const struct dpt_state *state,
                                struct dpt_pool *pool, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_saved before;
    bool ended;

    DPT_TRY(dpt_saver_poll(s, true, &ended, &before, err));
    s->start = dpt_now();
    dpt_checkpoint_path(s->folder, state->progress.step, s->saved.path, sizeof s->saved.path);
    DPT_TRY(dpt_image_take(s->image, state, s->saved.path, pool, err));
    s->run_lock = state->lock;
    s->best_step = state->progress.best_step;
    s->saved.step = state->progress.step;
    s->saved.copying = dpt_now() - s->start;
    if (dpt_image_waits(s->image))
        s->phase = AWAITS;
    else
        go_on(s);
out:
    return status;
}

enum dpt_status dpt_saver_complete(struct dpt_saver *s, bool written,
                                   const struct dpt_stretch *done, size_t n, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (s->phase != AWAITS)
        return DPT_OK;
    s->phase = IDLE;
    if (!written) {
        dpt_image_drop_file(s->image);
        return DPT_OK;
    }
    DPT_TRY(dpt_image_complete(s->image, done, n, err));
    go_on(s);
out:
    return status;
}

static bool is_writing(const void *saver)
{
    const struct dpt_saver *s = saver;

    return s->phase == WRITING;
}

bool dpt_saver_busy(struct dpt_saver *s, double seconds)
{
    return s != NULL && s->phase == WRITING && dpt_thread_await(&s->thread, is_writing, s, seconds);
}

enum dpt_status dpt_saver_poll(struct dpt_saver *s, bool wait, bool *ended, struct dpt_saved *saved,
                               struct dpt_error *err)
{
    *ended = false;
    if (s->phase == IDLE || s->phase == AWAITS || (s->phase == WRITING && !wait))
        return DPT_OK;
    pthread_mutex_lock(&s->thread.lock);
    while (s->phase == WRITING)
        pthread_cond_wait(&s->thread.done, &s->thread.lock);
    s->phase = IDLE;
    pthread_mutex_unlock(&s->thread.lock);
    if (s->status != DPT_OK) {
        *err = s->err;
        return s->status;
    }
    *ended = true;
    *saved = s->saved;
    return DPT_OK;
}
