#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/comm/internal.h"
#include "core/comm/launched.h"
#include "core/comm/watch/watchdog.h"

/* Seconds that links are given to end; in which the other ranks of the node see that the job ends,
 * and begin to end theirs; and between two looks. */
static const double ABORT_LIMIT = 2, NOTICE = 0.3, PAUSE = 0.01;

/* --- notes ------------------------------------------------------------------------------------ */

/* Copies as much of a text as there is room for. Returns where it ends in the note. */
static size_t add_text(char note[DPT_NOTE_TEXT], size_t at, const char *text)
{
    const size_t n = strlen(text), room = DPT_NOTE_TEXT - 1 - at, fits = n < room ? n : room;

    memcpy(note + at, text, fits);
    note[at + fits] = '\0';
    return at + fits;
}

void dpt_watch_note(struct dpt_watch *w, int64_t step, const char *what, const char *name)
{
    struct dpt_watched_rank *watched = w->mine;
    const unsigned next = atomic_load_explicit(&watched->note, memory_order_relaxed) + 1;
    char *note = watched->notes[next & 1];
    const size_t end = add_text(note, 0, what);

    if (step >= 0) {
        atomic_store_explicit(&watched->step, step, memory_order_relaxed);
        dpt_launched_step(step);
    }
    if (name[0] != '\0')
        add_text(note, add_text(note, end, " "), name);
    atomic_store_explicit(&watched->note, next, memory_order_release);
}

void dpt_comm_note(const struct dpt_comm *comm, int64_t step, const char *what)
{
    if (comm->watch != NULL)
        dpt_watch_note(comm->watch, step, what, "");
}

void dpt_comm_note_of(const struct dpt_comm *comm, const char *what, const char *name)
{
    if (comm->watch != NULL)
        dpt_watch_note(comm->watch, -1, what, name);
}

/* --- phases, limits --------------------------------------------------------------------------- */

static void advance(_Atomic uint64_t *phase)
{
    /* There is one writer, so the addition need not be atomic. */
    atomic_store_explicit(phase, atomic_load_explicit(phase, memory_order_relaxed) + 1,
                          memory_order_relaxed);
}

/* Once a line says why the job ends, no step may follow it: a launcher has a stopped rank continue
 * to end it, and then the collective that all waited for would be whole. */
static void stand_still_at_the_end(const struct dpt_watch *w)
{
    while (w->page != NULL && atomic_load_explicit(&w->page->explained, memory_order_acquire))
        pause();
}

static void pass(const struct dpt_group *g, bool inside)
{
    const struct dpt_communicator *c = g->handle;
    struct dpt_watched_rank *mine;

    if (c->watch == NULL)
        return;
    stand_still_at_the_end(c->watch);
    mine = c->watch->mine;
    if (c->axis == 0) {
        advance(&mine->phase);
    } else if (c->axis == DPT_SOME_OF_NODE) {
        atomic_store_explicit(&mine->in_subgroup, inside, memory_order_relaxed);
    } else {
        advance(&mine->axes[c->axis].phase);
        atomic_store_explicit(&mine->axis, inside ? c->axis : 0, memory_order_relaxed);
    }
}

int dpt_watch_axes(const struct dpt_watch *w)
{
    return w != NULL ? w->axes : 0;
}

void dpt_watch_join(struct dpt_watch *w, int axis, int first)
{
    if (w == NULL)
        return;
    w->axes = first >= 0 ? axis : axis - 1;
    atomic_store(&w->mine->axes[axis].phase, 0);
    atomic_store(&w->mine->axes[axis].group, first + 1);
}

void dpt_group_enter(const struct dpt_group *g)
{
    pass(g, true);
}

void dpt_group_leave(const struct dpt_group *g)
{
    pass(g, false);
}

void dpt_watch_closing(struct dpt_watch *w)
{
    atomic_store(&w->closing, true);
    advance(&w->mine->phase);
}

void dpt_comm_limit(const struct dpt_comm *comm, struct dpt_comm_limits limits)
{
    if (comm->watch == NULL)
        return;
    pthread_mutex_lock(&comm->watch->thread.lock);
    comm->watch->limits = limits;
    atomic_store(&comm->watch->started, false);
    pthread_mutex_unlock(&comm->watch->thread.lock);
}

void dpt_comm_started(const struct dpt_comm *comm)
{
    if (comm->watch != NULL)
        atomic_store(&comm->watch->started, true);
}

void dpt_comm_places(const struct dpt_comm *comm, char (*places)[DPT_PLACE_TEXT])
{
    struct dpt_watch *w = comm->watch;

    if (w == NULL) {
        dpt_free(places);
        return;
    }
    pthread_mutex_lock(&w->thread.lock);
    dpt_free(w->places);
    w->places = places;
    pthread_mutex_unlock(&w->thread.lock);
}

struct dpt_device_waits *dpt_comm_device_waits(const struct dpt_comm *comm)
{
    return comm->watch != NULL ? &comm->watch->device_waits : NULL;
}

void dpt_comm_on_end(const struct dpt_comm *comm, void (*tell)(void *arg, const char *line),
                     void *arg)
{
    struct dpt_watch *w = comm->watch;

    if (w == NULL)
        return;
    atomic_store(&w->tell, NULL);
    w->tell_arg = arg;
    atomic_store(&w->tell, tell);
}

/* --- links ------------------------------------------------------------------------------------ */

static void *abort_links(void *arg)
{
    struct dpt_watch *w = arg;
    void (*const abort)(void *link) = atomic_load(&w->abort);

    if (abort != NULL)
        abort(w->link);
    atomic_store(&w->aborted, true);
    return NULL;
}

void dpt_watch_abort_links(struct dpt_watch *w)
{
    pthread_t thread;

    if (atomic_load(&w->abort) == NULL || atomic_exchange(&w->device_waits.over, true))
        return;
    /* It may wait for the device itself, and then does not return. */
    if (pthread_create(&thread, NULL, abort_links, w) != 0)
        return;
    pthread_detach(thread);
    for (double waited = 0; waited < (atomic_load(&w->aborted) ? NOTICE : ABORT_LIMIT);
         waited += PAUSE)
        dpt_sleep(PAUSE);
}

void dpt_watch_linked(struct dpt_watch *w, void (*abort)(void *link), void *link)
{
    if (w == NULL)
        return;
    pthread_mutex_lock(&w->thread.lock); /* the watchdog holds it while it ends the job */
    while (atomic_load(&w->device_waits.over))
        pause();
    w->link = link;
    atomic_store(&w->abort, abort);
    pthread_mutex_unlock(&w->thread.lock);
}
