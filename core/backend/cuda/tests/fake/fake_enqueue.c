/* The driver's functions of streams and events. */
#include "core/backend/cuda/tests/fake/fake_driver.h"

CUresult fake_stream_of(CUstream handle, struct CUstream_st **stream)
{
    struct CUctx_st *context;
    CUresult result = fake_context(&context);

    if (result != CUDA_SUCCESS)
        return result;
    if (handle == NULL || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD)
        handle = context->legacy;
    if (!fake_alive(handle, FAKE_STREAM))
        return CUDA_ERROR_INVALID_HANDLE;
    if (handle->object.device != context->device) {
        fakegpu_complain("a stream of device %d, and the context is of %d", handle->object.device,
                         context->device);
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    *stream = handle;
    return CUDA_SUCCESS;
}

/* The legacy stream waits for all blocking ones, and they for it. */
static void keep_legacy_order(struct CUstream_st *s)
{
    for (struct fake_object *o = fake_objects(); o != NULL; o = o->next) {
        struct CUstream_st *other = (struct CUstream_st *)o;
        struct fake_ticket *t;

        if (o->kind != FAKE_STREAM || o->device != s->object.device || other == s ||
            other->first == NULL || other->capture != NULL)
            continue;
        if (!(s->legacy && other->blocking) && !(s->blocking && other->legacy))
            continue;
        t = fake_ticket_new(other);
        t->refs++;
        fake_append(other, (struct fake_item){.step = FAKE_RECORD, .ticket = t});
        fake_append(s, (struct fake_item){.step = FAKE_WAIT, .ticket = t});
    }
}

CUresult fake_enqueue_locked(CUstream handle, const struct fakegpu_work *work)
{
    struct CUstream_st *s;
    CUresult result = fake_stream_of(handle, &s);

    if (result == CUDA_SUCCESS && s->legacy)
        result = fake_capture_forbids_legacy();
    if (result != CUDA_SUCCESS)
        return result;
    if (!fake_memory_check(s->object.device, work, "enqueuing")) {
        if (s->capture != NULL)
            fake_capture_break(s->capture, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, work->name);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (s->capture != NULL && !fake_clock_captures(work->name)) {
        fake_capture_break(s->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, work->name);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (s->capture != NULL) {
        struct fake_op *op = fake_op_new(work);

        result = fake_capture_add(s, FAKE_WORK, op, NULL);
        fake_op_drop(op);
        return result;
    }
    keep_legacy_order(s);
    fake_append(s, (struct fake_item){.step = FAKE_WORK, .op = fake_op_new(work)});
    fake_enqueued();
    return CUDA_SUCCESS;
}

CUresult fakegpu_enqueue(CUstream stream, const struct fakegpu_work *work)
{
    FAKE_LOCKED(fake_enqueue_locked(stream, work));
}

void fakegpu_add_range(struct fakegpu_work *work, const void *at, size_t bytes,
                       enum fakegpu_where where, bool written)
{
    if (work->n < FAKEGPU_RANGES && bytes > 0)
        work->ranges[work->n++] = (struct fakegpu_range){at, bytes, where, written};
}

bool fake_queue_is_empty(void *stream)
{
    return ((struct CUstream_st *)stream)->first == NULL;
}

/* --- streams ---------------------------------------------------------------------------------- */

static CUresult create_stream(CUstream *stream, unsigned flags)
{
    struct CUctx_st *context;
    const CUresult result = fake_context(&context);

    if (flags > CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *stream = fake_stream_new(context->device, !(flags & CU_STREAM_NON_BLOCKING), false);
    return result;
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    FAKE(cuStreamCreateWithPriority, CUDA_ERROR_OUT_OF_MEMORY, "%u %d", flags, priority);
    FAKE_LOCKED(create_stream(stream, flags));
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    FAKE(cuStreamCreate, CUDA_ERROR_OUT_OF_MEMORY, "%u", flags);
    FAKE_LOCKED(create_stream(stream, flags));
}

static CUresult destroy_stream(CUstream handle)
{
    if (handle == NULL || !fake_alive(handle, FAKE_STREAM) || handle->destroyed)
        return CUDA_ERROR_INVALID_HANDLE;
    if (handle->capture != NULL)
        fake_capture_break(handle->capture, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
                           "cuStreamDestroy");
    fake_stream_end(handle);
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream stream)
{
    FAKE(cuStreamDestroy, CUDA_ERROR_UNKNOWN, "%s", "");
    FAKE_LOCKED(destroy_stream(stream));
}

/* A stream that may be waited for. */
static CUresult waitable(CUstream handle, const char *what, struct CUstream_st **s)
{
    CUresult result = fake_stream_of(handle, s);

    if (result == CUDA_SUCCESS && (*s)->legacy)
        result = fake_capture_forbids_legacy();
    if (result == CUDA_SUCCESS && (*s)->capture != NULL) {
        fakegpu_complain("%s of a stream that is captured", what);
        fake_capture_break((*s)->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, what);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return result;
}

static CUresult fault_of(const struct CUstream_st *s)
{
    struct CUctx_st *context;
    const CUresult result = fake_context_of(s->object.device, &context);

    return result != CUDA_SUCCESS ? result : context->fault;
}

static CUresult synchronize_stream(CUstream handle)
{
    struct CUstream_st *s;
    const CUresult result = waitable(handle, "cuStreamSynchronize", &s);

    if (result != CUDA_SUCCESS)
        return result;
    if (s->legacy)
        keep_legacy_order(s);
    fake_drain(fake_queue_is_empty, s, s);
    return fault_of(s);
}

CUresult cuStreamSynchronize(CUstream stream)
{
    FAKE(cuStreamSynchronize, CUDA_ERROR_ILLEGAL_ADDRESS, "%s", "");
    FAKE_LOCKED(synchronize_stream(stream));
}

/* Each query does a little work, so that polling makes progress. */
static void work_a_little(struct CUstream_st *target)
{
    fake_memory_open();
    for (uint64_t n = fakegpu_chance() % 4; n > 0 && fake_work(target); n--)
        ;
    fake_memory_shut();
}

static CUresult query_stream(CUstream handle)
{
    struct CUstream_st *s;
    const CUresult result = waitable(handle, "cuStreamQuery", &s);

    if (result != CUDA_SUCCESS)
        return result;
    if (s->first != NULL)
        work_a_little(s);
    return s->first != NULL ? CUDA_ERROR_NOT_READY : fault_of(s);
}

CUresult cuStreamQuery(CUstream stream)
{
    FAKE(cuStreamQuery, CUDA_ERROR_ILLEGAL_ADDRESS, "%s", "");
    FAKE_LOCKED(query_stream(stream));
}

static CUresult wait_event(CUstream handle, CUevent event, unsigned flags)
{
    const bool external = flags & CU_EVENT_WAIT_EXTERNAL;
    struct CUstream_st *s;
    const CUresult result = fake_stream_of(handle, &s);

    if (result != CUDA_SUCCESS)
        return result;
    if (!fake_alive(event, FAKE_EVENT))
        return CUDA_ERROR_INVALID_HANDLE;
    if (flags > CU_EVENT_WAIT_EXTERNAL || (external && s->capture == NULL)) {
        fakegpu_complain("CU_EVENT_WAIT_EXTERNAL on a stream that is not captured");
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (external)
        return fake_capture_add(s, FAKE_WAIT, NULL, event);
    if (s->capture != NULL || event->capture != NULL)
        return fake_capture_wait(s, event);
    if (event->ticket == NULL)
        return CUDA_SUCCESS; /* never recorded: nothing to wait for */
    keep_legacy_order(s);
    event->ticket->refs++;
    fake_append(s, (struct fake_item){.step = FAKE_WAIT, .ticket = event->ticket});
    fake_enqueued();
    return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    FAKE(cuStreamWaitEvent, CUDA_ERROR_UNKNOWN, "%u", flags);
    FAKE_LOCKED(wait_event(stream, event, flags));
}

/* --- events ----------------------------------------------------------------------------------- */

static CUresult create_event(CUevent *event, unsigned flags)
{
    struct CUctx_st *context;
    const CUresult result = fake_context(&context);

    if (result != CUDA_SUCCESS)
        return result;
    *event = fake_zalloc(sizeof **event);
    (*event)->refs = 1;
    (*event)->timed = !(flags & CU_EVENT_DISABLE_TIMING);
    fake_register(&(*event)->object, FAKE_EVENT, context->device);
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    FAKE(cuEventCreate, CUDA_ERROR_OUT_OF_MEMORY, "%u", flags);
    FAKE_LOCKED(create_event(event, flags));
}

static CUresult destroy_event(CUevent event)
{
    if (!fake_alive(event, FAKE_EVENT))
        return CUDA_ERROR_INVALID_HANDLE;
    fake_unregister(&event->object);
    fake_event_drop(event);
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event)
{
    FAKE(cuEventDestroy, CUDA_ERROR_UNKNOWN, "%s", "");
    FAKE_LOCKED(destroy_event(event));
}

static CUresult record_event(CUevent event, CUstream handle, unsigned flags)
{
    const bool external = flags & CU_EVENT_RECORD_EXTERNAL;
    struct CUstream_st *s;
    CUresult result = fake_stream_of(handle, &s);

    if (result == CUDA_SUCCESS && s->legacy)
        result = fake_capture_forbids_legacy();
    if (result != CUDA_SUCCESS)
        return result;
    if (!fake_alive(event, FAKE_EVENT))
        return CUDA_ERROR_INVALID_HANDLE;
    if (flags > CU_EVENT_RECORD_EXTERNAL || (external && s->capture == NULL)) {
        fakegpu_complain("CU_EVENT_RECORD_EXTERNAL on a stream that is not captured");
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (external)
        return fake_capture_add(s, FAKE_RECORD, NULL, event);
    if (s->capture != NULL)
        return fake_capture_record(event, s);
    if (event->capture != NULL)
        fake_capture_drop(event->capture);
    event->capture = NULL;
    keep_legacy_order(s);
    fake_ticket_drop(event->ticket);
    event->ticket = fake_ticket_new(s);
    event->ticket->refs++;
    fake_append(s, (struct fake_item){.step = FAKE_RECORD, .ticket = event->ticket});
    fake_enqueued();
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    FAKE(cuEventRecord, CUDA_ERROR_UNKNOWN, "%s", "");
    FAKE_LOCKED(record_event(event, stream, 0));
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags)
{
    FAKE(cuEventRecordWithFlags, CUDA_ERROR_UNKNOWN, "%u", flags);
    FAKE_LOCKED(record_event(event, stream, flags));
}

static bool ticket_is_done(void *ticket)
{
    return ((struct fake_ticket *)ticket)->done;
}

static CUresult ask_event(CUevent event, const char *what, bool wait)
{
    struct fake_ticket *t;
    struct CUstream_st *s;
    CUresult result = fake_capture_forbids(what);
    bool done;

    if (result != CUDA_SUCCESS)
        return result;
    if (!fake_alive(event, FAKE_EVENT))
        return CUDA_ERROR_INVALID_HANDLE;
    if (event->capture != NULL) {
        fakegpu_complain("%s of an event that was recorded in a capture", what);
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    t = event->ticket;
    if (t == NULL)
        return CUDA_SUCCESS;
    t->refs++;
    s = t->stream;
    if (wait)
        fake_drain(ticket_is_done, t, s);
    else if (!t->done)
        work_a_little(s);
    done = t->done;
    result = fault_of(s);
    fake_ticket_drop(t);
    return done || wait ? result : CUDA_ERROR_NOT_READY;
}

CUresult cuEventQuery(CUevent event)
{
    FAKE(cuEventQuery, CUDA_ERROR_ILLEGAL_ADDRESS, "%s", "");
    FAKE_LOCKED(ask_event(event, "cuEventQuery", false));
}

CUresult cuEventSynchronize(CUevent event)
{
    FAKE(cuEventSynchronize, CUDA_ERROR_ILLEGAL_ADDRESS, "%s", "");
    FAKE_LOCKED(ask_event(event, "cuEventSynchronize", true));
}

static CUresult elapsed(float *ms, CUevent a, CUevent b)
{
    if (!fake_alive(a, FAKE_EVENT) || !fake_alive(b, FAKE_EVENT) || !a->timed || !b->timed ||
        a->ticket == NULL || b->ticket == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!a->ticket->done || !b->ticket->done)
        return CUDA_ERROR_NOT_READY;
    *ms = (float)(b->ticket->at - a->ticket->at);
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *ms, CUevent a, CUevent b)
{
    FAKE(cuEventElapsedTime, CUDA_ERROR_UNKNOWN, "%s", "");
    FAKE_LOCKED(elapsed(ms, a, b));
}

static bool queues_are_empty(void *context)
{
    for (struct fake_object *o = fake_objects(); o != NULL; o = o->next) {
        if (o->kind == FAKE_STREAM && o->device == ((struct CUctx_st *)context)->device &&
            ((struct CUstream_st *)o)->first != NULL)
            return false;
    }
    return true;
}

static CUresult synchronize_context(void)
{
    struct CUctx_st *context;
    CUresult result = fake_capture_forbids("cuCtxSynchronize");

    if (result == CUDA_SUCCESS)
        result = fake_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    fake_drain(queues_are_empty, context, NULL);
    return context->fault;
}

CUresult cuCtxSynchronize(void)
{
    FAKE(cuCtxSynchronize, CUDA_ERROR_ILLEGAL_ADDRESS, "%s", "");
    FAKE_LOCKED(synchronize_context());
}
