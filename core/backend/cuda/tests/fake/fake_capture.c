/* The fake device's captures: work enqueued on streams becomes a graph, across streams by
 * events. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend/cuda/tests/fake/fake_driver.h"

enum { CAPTURES = 16 };

/* The captures in progress; under the lock. */
static struct fake_capture *going[CAPTURES];
static uint64_t captures;

static unsigned long self(void)
{
    return (unsigned long)pthread_self();
}

static void copy_frontier(int **to, int *n_to, const int *from, int n)
{
    free(*to);
    *to = fake_zalloc((size_t)n * sizeof **to);
    *n_to = n;
    if (n > 0)
        memcpy(*to, from, (size_t)n * sizeof **to);
}

void fake_capture_drop(struct fake_capture *c)
{
    if (--c->refs > 0)
        return;
    if (c->graph != NULL)
        fake_graph_free(c->graph);
    free(c);
}

void fake_capture_break(struct fake_capture *c, CUresult why, const char *what)
{
    if (!c->broken)
        fakegpu_complain("%s ends a capture", what);
    c->broken = true;
    c->why = why;
}

CUresult fake_capture_forbids(const char *what)
{
    bool forbidden = false;

    for (int i = 0; i < CAPTURES; i++) {
        struct fake_capture *c = going[i];

        if (c == NULL || (c->thread != self() && c->mode != CU_STREAM_CAPTURE_MODE_GLOBAL))
            continue;
        fake_capture_break(c, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, what);
        forbidden = true;
    }
    return forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult fake_capture_forbids_legacy(void)
{
    bool forbidden = false;

    for (struct fake_object *o = fake_objects(); o != NULL; o = o->next) {
        struct CUstream_st *s = (struct CUstream_st *)o;

        if (o->kind == FAKE_STREAM && s->capture != NULL && s->blocking) {
            fake_capture_break(s->capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "the legacy stream");
            forbidden = true;
        }
    }
    return forbidden ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

CUresult fake_capture_add(struct CUstream_st *s, enum fake_step step, struct fake_op *op,
                          struct CUevent_st *event)
{
    struct CUgraph_st *g = s->capture->graph;
    struct CUgraphNode_st *n;

    if (s->capture->broken)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    n = fake_zalloc(sizeof *n);
    n->step = step;
    n->op = op;
    n->event = event;
    if (op != NULL)
        op->refs++;
    if (event != NULL)
        event->refs++;
    copy_frontier(&n->after, &n->n_after, s->frontier, s->n_frontier);
    if (g->n == g->capacity) {
        g->capacity = g->capacity > 0 ? 2 * g->capacity : 64;
        g->node = realloc(g->node, (size_t)g->capacity * sizeof(struct CUgraphNode_st *));
        if (g->node == NULL)
            abort();
    }
    g->node[g->n] = n;
    copy_frontier(&s->frontier, &s->n_frontier, &g->n, 1);
    g->n++;
    return CUDA_SUCCESS;
}

CUresult fake_capture_record(struct CUevent_st *event, struct CUstream_st *s)
{
    if (s->capture->broken)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    s->capture->refs++;
    if (event->capture != NULL)
        fake_capture_drop(event->capture);
    event->capture = s->capture;
    copy_frontier(&event->frontier, &event->n_frontier, s->frontier, s->n_frontier);
    return CUDA_SUCCESS;
}

static void join(struct CUstream_st *s, struct fake_capture *c)
{
    s->capture = c;
    c->refs++;
    copy_frontier(&s->frontier, &s->n_frontier, NULL, 0);
}

static void leave(struct CUstream_st *s)
{
    struct fake_capture *c = s->capture;

    s->capture = NULL;
    fake_capture_drop(c);
}

CUresult fake_capture_wait(struct CUstream_st *s, struct CUevent_st *event)
{
    struct fake_capture *c = event->capture;
    int *more;

    if (c == NULL || c->ended || (s->capture != NULL && s->capture != c)) {
        if (s->capture == NULL) { /* the event's capture is over */
            fakegpu_complain("a stream waits for an event of a capture that is over");
            return CUDA_ERROR_CAPTURED_EVENT;
        }
        fake_capture_break(s->capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
                           "an event from outside of it (not CU_EVENT_WAIT_EXTERNAL)");
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (c->broken)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (s->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (s->capture == NULL)
        join(s, c);
    more = fake_zalloc((size_t)(s->n_frontier + event->n_frontier) * sizeof *more);
    if (s->n_frontier > 0)
        memcpy(more, s->frontier, (size_t)s->n_frontier * sizeof *more);
    for (int i = 0; i < event->n_frontier; i++)
        more[s->n_frontier + i] = event->frontier[i];
    free(s->frontier);
    s->frontier = more;
    s->n_frontier += event->n_frontier;
    return CUDA_SUCCESS;
}

static CUresult begin_capture(CUstream handle, CUstreamCaptureMode mode)
{
    struct fake_capture *c;
    struct CUstream_st *s;
    CUresult result = fake_stream_of(handle, &s);
    int i = 0;

    if (result != CUDA_SUCCESS)
        return result;
    if (s->legacy || s->capture != NULL)
        return s->legacy ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_ERROR_ILLEGAL_STATE;
    while (i < CAPTURES && going[i] != NULL)
        i++;
    if (i == CAPTURES)
        return CUDA_ERROR_UNKNOWN;
    c = fake_zalloc(sizeof *c);
    c->refs = 1;
    c->mode = mode;
    c->origin = s;
    c->thread = self();
    c->id = ++captures;
    c->graph = fake_zalloc(sizeof *c->graph);
    going[i] = c;
    join(s, c);
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode)
{
    CUresult result;

    FAKE(cuStreamBeginCapture, CUDA_ERROR_UNKNOWN, "%d", (int)mode);
    fake_lock();
    result = begin_capture(stream, mode);
    fake_unlock();
    return result;
}

/* Whether all nodes lead to these. */
static bool all_lead_to(const struct CUgraph_st *g, const int *last, int n)
{
    bool *led = fake_zalloc((size_t)g->n), all = true;

    for (int i = 0; i < n; i++)
        led[last[i]] = true;
    for (int i = g->n - 1; i >= 0; i--) {
        for (int k = 0; led[i] && k < g->node[i]->n_after; k++)
            led[g->node[i]->after[k]] = true;
        all &= led[i];
    }
    free(led);
    return all;
}

static CUresult end_capture(CUstream handle, CUgraph *graph)
{
    struct fake_capture *c;
    struct CUstream_st *s;
    CUresult result = fake_stream_of(handle, &s);

    *graph = NULL;
    if (result != CUDA_SUCCESS)
        return result;
    c = s->capture;
    if (c == NULL)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (c->origin != s) {
        fake_capture_break(c, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "cuStreamEndCapture elsewhere");
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    if (c->thread != self() && c->mode != CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    if (c->broken)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (!all_lead_to(c->graph, s->frontier, s->n_frontier))
        result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    if (result == CUDA_ERROR_STREAM_CAPTURE_UNJOINED)
        fakegpu_complain("a capture ends with work on another stream that it does not wait for");
    for (struct fake_object *o = fake_objects(); o != NULL; o = o->next) {
        if (o->kind == FAKE_STREAM && ((struct CUstream_st *)o)->capture == c)
            leave((struct CUstream_st *)o);
    }
    c->ended = true;
    for (int i = 0; i < CAPTURES; i++) {
        if (going[i] == c)
            going[i] = NULL;
    }
    if (result == CUDA_SUCCESS) {
        *graph = c->graph;
        c->graph = NULL;
        fake_register(&(*graph)->object, FAKE_GRAPH, s->object.device);
    }
    fake_capture_drop(c);
    return result;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    CUresult result;

    FAKE(cuStreamEndCapture, CUDA_ERROR_UNKNOWN, "%s", "");
    fake_lock();
    result = end_capture(stream, graph);
    fake_unlock();
    return result;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    struct CUstream_st *s;
    CUresult result;

    FAKE(cuStreamIsCapturing, CUDA_ERROR_UNKNOWN, "%s", "");
    fake_lock();
    result = fake_stream_of(stream, &s);
    if (result == CUDA_SUCCESS)
        *status = s->capture == NULL   ? CU_STREAM_CAPTURE_STATUS_NONE
                  : s->capture->broken ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                       : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    fake_unlock();
    return result;
}

#if CUDA_VERSION >= 13000
CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                CUgraph *graph, const CUgraphNode **nodes,
                                const CUgraphEdgeData **edges, size_t *n)
#else
CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                CUgraph *graph, const CUgraphNode **nodes, size_t *n)
#endif
{
    const CUresult result = cuStreamIsCapturing(stream, status);

    if (id != NULL)
        *id = result == CUDA_SUCCESS && stream != NULL && stream->capture != NULL
                  ? stream->capture->id
                  : 0;
    if (graph != NULL)
        *graph = NULL;
    if (nodes != NULL)
        *nodes = NULL;
#if CUDA_VERSION >= 13000
    if (edges != NULL)
        *edges = NULL;
#endif
    if (n != NULL)
        *n = 0;
    return result;
}
