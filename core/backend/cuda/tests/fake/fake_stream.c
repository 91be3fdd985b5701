/*
 * The fake device's streams and events. A stream is a queue; its first entry can be done unless it
 * waits for a ticket, which the record of an event gets. Nothing is done before something waits for
 * it (or nobody has called for a while): then the order among streams is chosen by FAKEGPU_SEED.
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/backend/cuda/tests/fake/fake_driver.h"

enum { CHOICES = 64 };

const char *volatile fake_doing;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t moved, end;
    int waiting; /* for the lock */
    struct fake_object *objects;
    int number, busy;
    uint64_t items, calls, done; /* done: pieces of work */
    pthread_t idler;
    bool idles, ending;
} gpu = {.lock = PTHREAD_MUTEX_INITIALIZER,
         .moved = PTHREAD_COND_INITIALIZER,
         .end = PTHREAD_COND_INITIALIZER};

void *fake_zalloc(size_t bytes)
{
    void *at = calloc(1, bytes > 0 ? bytes : 1);

    if (at == NULL) {
        fakegpu_complain("no memory for %zu bytes", bytes);
        abort();
    }
    return at;
}

static void take_lock(void)
{
    __atomic_add_fetch(&gpu.waiting, 1, __ATOMIC_RELAXED);
    pthread_mutex_lock(&gpu.lock);
    __atomic_sub_fetch(&gpu.waiting, 1, __ATOMIC_RELAXED);
}

/* Work is also done while nobody calls, since a real device does not wait to be asked. */
static void *idle(void *nothing)
{
    uint64_t calls = 0;

    take_lock();
    while (!gpu.ending) {
        const long long ms = fakegpu_number("FAKEGPU_IDLE_MS", 20);
        struct timespec until;

        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += (ms > 0 ? ms : 20) % 1000 * 1000000;
        until.tv_sec += (ms > 0 ? ms : 20) / 1000 + until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&gpu.end, &gpu.lock, &until);
        if (ms > 0 && calls == gpu.calls) {
            fake_memory_open();
            while (!gpu.ending && calls == gpu.calls && gpu.waiting == 0 && fake_work(NULL))
                ;
            fake_memory_shut();
        }
        calls = gpu.calls;
    }
    pthread_mutex_unlock(&gpu.lock);
    return nothing;
}

void fake_lock(void)
{
    take_lock();
    gpu.calls++;
    if (!gpu.idles && !gpu.ending)
        gpu.idles = pthread_create(&gpu.idler, NULL, idle, NULL) == 0;
}

void fake_unlock(void)
{
    pthread_mutex_unlock(&gpu.lock);
}

static __attribute__((destructor)) void end(void)
{
    take_lock();
    gpu.ending = true;
    pthread_cond_broadcast(&gpu.end);
    pthread_mutex_unlock(&gpu.lock);
    if (gpu.idles && !pthread_equal(gpu.idler, pthread_self()))
        pthread_join(gpu.idler, NULL);
    if (fakegpu_number("FAKEGPU_LEAKS", 0) != 0)
        fake_memory_leaks(-2);
}

/* --- handles ---------------------------------------------------------------------------------- */

void fake_register(struct fake_object *object, enum fake_kind kind, int device)
{
    object->kind = kind;
    object->device = device;
    object->number = ++gpu.number;
    object->next = gpu.objects;
    gpu.objects = object;
}

void fake_unregister(struct fake_object *object)
{
    struct fake_object **link = &gpu.objects;

    while (*link != object)
        link = &(*link)->next;
    *link = object->next;
}

struct fake_object *fake_objects(void)
{
    return gpu.objects;
}

bool fake_alive(const void *object, enum fake_kind kind)
{
    static const char *const names[FAKE_KINDS] = {"nothing", "stream", "event",
                                                  "graph",   "exec",   "module"};
    const struct fake_object *o = gpu.objects;

    while (o != NULL && (o != object || o->kind != kind))
        o = o->next;
    if (o == NULL)
        fakegpu_complain("%p is no %s, or one that was destroyed", object, names[kind]);
    return o != NULL;
}

/* --- tickets, work, items --------------------------------------------------------------------- */

struct fake_ticket *fake_ticket_new(struct CUstream_st *stream)
{
    struct fake_ticket *t = fake_zalloc(sizeof *t);

    t->refs = 1;
    t->stream = stream;
    stream->refs++;
    return t;
}

static void drop_stream(struct CUstream_st *s)
{
    if (--s->refs > 0)
        return;
    free(s->frontier);
    free(s);
}

void fake_ticket_drop(struct fake_ticket *t)
{
    if (t == NULL || --t->refs > 0)
        return;
    drop_stream(t->stream);
    free(t);
}

struct fake_op *fake_op_new(const struct fakegpu_work *work)
{
    struct fake_op *op = fake_zalloc(sizeof *op + work->bytes);

    op->refs = 1;
    op->work = *work;
    op->work.data = op + 1;
    if (work->bytes > 0)
        memcpy(op + 1, work->data, work->bytes);
    return op;
}

void fake_op_drop(struct fake_op *op)
{
    if (op != NULL && --op->refs == 0)
        free(op);
}

void fake_event_drop(struct CUevent_st *e)
{
    if (e == NULL || --e->refs > 0)
        return;
    fake_ticket_drop(e->ticket);
    if (e->capture != NULL)
        fake_capture_drop(e->capture);
    free(e->frontier);
    free(e);
}

struct CUstream_st *fake_stream_new(int device, bool blocking, bool legacy)
{
    struct CUstream_st *s = fake_zalloc(sizeof *s);

    s->refs = 1;
    s->blocking = blocking;
    s->legacy = legacy;
    fake_register(&s->object, FAKE_STREAM, device);
    return s;
}

/* Enqueued work is still done; the memory stays until then. */
void fake_stream_end(struct CUstream_st *s)
{
    s->destroyed = true;
    if (s->first == NULL) {
        fake_unregister(&s->object);
        drop_stream(s);
    }
}

void fake_append(struct CUstream_st *s, struct fake_item item)
{
    struct fake_item *i = fake_zalloc(sizeof *i);

    *i = item;
    i->next = NULL;
    i->number = ++gpu.items;
    if (s->last != NULL)
        s->last->next = i;
    else
        s->first = i;
    s->last = i;
}

void fake_ticket_complete(struct fake_ticket *t)
{
    t->done = true;
    t->at = fake_clock();
}

static void pop(struct CUstream_st *s)
{
    struct fake_item *i = s->first;

    s->first = i->next;
    if (s->first == NULL)
        s->last = NULL;
    if (i->step == FAKE_RECORD)
        fake_ticket_complete(i->ticket);
    fake_ticket_drop(i->ticket);
    fake_op_drop(i->op);
    if (i->launch != NULL) {
        fake_ticket_complete(i->launch->end);
        fake_launch_drop(i->launch);
    }
    free(i);
    if (s->first == NULL && s->destroyed) {
        fake_unregister(&s->object);
        drop_stream(s);
    }
}

void fake_run(int device, struct fake_op *op, struct CUstream_st *stream)
{
    struct CUctx_st *context;

    if (fake_context_of(device, &context) != CUDA_SUCCESS || context->fault != CUDA_SUCCESS)
        return; /* a device that failed does nothing any more */
    if (!fake_memory_check(device, &op->work, "execution")) {
        fake_fault(device, CUDA_ERROR_ILLEGAL_ADDRESS);
        return;
    }
    if (!op->work.host) {
        fake_doing = op->work.name;
        op->work.run((void *)(op + 1));
        fake_doing = NULL;
        return;
    }
    stream->busy = true;
    gpu.busy++;
    pthread_mutex_unlock(&gpu.lock);
    op->work.run((void *)(op + 1));
    take_lock();
    stream->busy = false;
    gpu.busy--;
    pthread_cond_broadcast(&gpu.moved);
}

/* --- the order of work ------------------------------------------------------------------------ */

/* The work that can be done next on a stream. node: of a graph, or -1. */
struct choice {
    struct CUstream_st *stream;
    int node;
};

static int choices_of(struct CUstream_st *s, struct choice *choices, int most)
{
    const struct fake_item *i = s->first;
    int ready[CHOICES], n;

    if (i == NULL || s->busy || (i->step == FAKE_WAIT && !i->ticket->done) || most == 0)
        return 0;
    if (i->step != FAKE_LAUNCH || i->launch->left == 0) {
        choices[0] = (struct choice){s, -1};
        return 1;
    }
    n = fake_launch_ready(i->launch, ready, most, NULL);
    for (int k = 0; k < n; k++)
        choices[k] = (struct choice){s, ready[k]};
    return n;
}

/* The work that must be done before `target`. */
static int choices_for(struct CUstream_st *target, struct choice *choices, int most)
{
    for (int depth = 0; depth < CHOICES; depth++) {
        const struct fake_item *i = target->first;
        struct fake_ticket *waits = NULL;
        const int n = choices_of(target, choices, most);

        if (n > 0 || i == NULL)
            return n;
        if (i->step == FAKE_WAIT)
            waits = i->ticket;
        else if (i->step == FAKE_LAUNCH)
            fake_launch_ready(i->launch, NULL, 0, &waits);
        if (waits == NULL)
            return 0;
        target = waits->stream;
    }
    return 0;
}

static struct choice choose(const struct choice *choices, int n, unsigned way)
{
    int best = 0;

    if (way < 2)
        return choices[fakegpu_chance() % (unsigned)n];
    for (int i = 1; i < n; i++) {
        const uint64_t a = choices[i].stream->first->number;
        const uint64_t b = choices[best].stream->first->number;

        if (way == 2 ? a < b : a > b || (a == b && i > best))
            best = i;
    }
    return choices[best];
}

/* The device hangs: no enqueued work is done any more. */
static bool hangs(void)
{
    const long long most = fakegpu_number("FAKEGPU_HANG", 0);

    return most > 0 && gpu.done >= (uint64_t)most;
}

bool fake_work(struct CUstream_st *target)
{
    const unsigned way = (unsigned)fakegpu_number("FAKEGPU_SEED", 1) % 4;
    struct choice choices[CHOICES], c;
    struct CUstream_st *s;
    struct fake_item *i;
    int n = 0;

    if (hangs())
        return false;
    if (way == 0 && target != NULL)
        n = choices_for(target, choices, CHOICES);
    if (n == 0) {
        for (struct fake_object *o = gpu.objects; o != NULL; o = o->next) {
            if (o->kind == FAKE_STREAM)
                n += choices_of((struct CUstream_st *)o, choices + n, CHOICES - n);
        }
    }
    if (n == 0)
        return false;
    c = choose(choices, n, way);
    s = c.stream;
    i = s->first;
    if (i->step == FAKE_WORK) {
        fake_run(s->object.device, i->op, s);
        fake_clock_pass(i->op->work.name, false);
    }
    if (i->step != FAKE_LAUNCH || i->launch->left == 0 || fake_launch_do(i->launch, c.node, s))
        pop(s);
    gpu.done++;
    pthread_cond_broadcast(&gpu.moved);
    return true;
}

bool fake_drain(bool (*over)(void *what), void *what, struct CUstream_st *target)
{
    bool reached = true;

    fake_memory_open();
    while (!over(what)) {
        if (!fake_work(target)) {
            if (gpu.busy == 0 && !hangs()) {
                reached = false; /* nothing that is enqueued leads there */
                break;
            }
            pthread_cond_wait(&gpu.moved, &gpu.lock);
        } else if (__atomic_load_n(&gpu.waiting, __ATOMIC_RELAXED) > 0) {
            pthread_mutex_unlock(&gpu.lock);
            sched_yield();
            take_lock();
        }
    }
    fake_memory_shut();
    if (!reached)
        fakegpu_complain("work that waits for what never comes");
    return reached;
}

static bool device_is_idle(void *what)
{
    const int device = *(const int *)what;

    for (struct fake_object *o = gpu.objects; o != NULL; o = o->next) {
        if (o->kind == FAKE_STREAM && (device < 0 || o->device == device) &&
            ((struct CUstream_st *)o)->first != NULL)
            return false;
    }
    return true;
}

void fake_drain_device(int device)
{
    fake_drain(device_is_idle, &device, NULL);
}

void fake_enqueued(void)
{
    if (fakegpu_number("FAKEGPU_EAGER", 0) != 0)
        fake_drain_device(-1);
}
