/*
 * The fake device's graphs. A node is a piece of work, the record of an event or the wait for one,
 * after other nodes; nodes that no path orders are done in any order, also between the work of
 * other streams.
 */
#include <stdlib.h>
#include <string.h>

#include "core/backend/cuda/tests/fake/fake_driver.h"

/* --- graphs ----------------------------------------------------------------------------------- */

static void free_node(struct CUgraphNode_st *n)
{
    fake_op_drop(n->op);
    fake_event_drop(n->event);
    free(n->after);
    free(n);
}

static struct CUgraphNode_st *copy_node(const struct CUgraphNode_st *n)
{
    struct CUgraphNode_st *copy = fake_zalloc(sizeof *copy);

    *copy = *n;
    if (n->op != NULL)
        n->op->refs++;
    if (n->event != NULL)
        n->event->refs++;
    copy->after = fake_zalloc((size_t)n->n_after * sizeof *n->after);
    if (n->n_after > 0)
        memcpy(copy->after, n->after, (size_t)n->n_after * sizeof *n->after);
    return copy;
}

void fake_graph_free(struct CUgraph_st *g)
{
    for (int i = 0; i < g->n; i++)
        free_node(g->node[i]);
    free(g->node);
    free(g);
}

/* --- what nodes share ------------------------------------------------------------------------- */

/* The nodes that lead to each node: n x n. */
static bool *find_orders(const struct CUgraph_st *g)
{
    bool *led = fake_zalloc((size_t)g->n * (size_t)g->n);

    for (int i = 0; i < g->n; i++) {
        for (int k = 0; k < g->node[i]->n_after; k++) {
            const int before = g->node[i]->after[k];

            led[(size_t)i * (size_t)g->n + (size_t)before] = true;
            for (int j = 0; j < before; j++)
                led[(size_t)i * (size_t)g->n + (size_t)j] |=
                    led[(size_t)before * (size_t)g->n + (size_t)j];
        }
    }
    return led;
}

static bool overlap(const struct fakegpu_work *a, const struct fakegpu_work *b)
{
    for (int i = 0; i < a->n; i++) {
        for (int k = 0; k < b->n; k++) {
            const struct fakegpu_range *x = &a->ranges[i], *y = &b->ranges[k];

            if ((x->written || y->written) &&
                (const char *)x->at < (const char *)y->at + y->bytes &&
                (const char *)y->at < (const char *)x->at + x->bytes)
                return true;
        }
    }
    return false;
}

/* Nodes that no path orders may run at the same time: none may write memory that another one
 * touches. */
static bool is_free_of_races(const struct CUgraph_st *g)
{
    struct fakegpu_work *work = fake_zalloc((size_t)g->n * sizeof *work);
    bool *led = find_orders(g), right = true;

    fake_memory_open(); /* kernels' ranges are in lists there */
    for (int i = 0; i < g->n; i++) {
        const struct fake_op *op = g->node[i]->op;

        if (op != NULL && !fake_kernel_accesses(op, &work[i]))
            work[i] = op->work;
    }
    fake_memory_shut();
    for (int i = 0; i < g->n; i++) {
        for (int k = 0; k < i; k++) {
            if (led[(size_t)i * (size_t)g->n + (size_t)k] || !overlap(&work[i], &work[k]))
                continue;
            fakegpu_complain("nodes %d (%s) and %d (%s) of a graph may run at once, and one writes "
                             "what the other one touches",
                             k, g->node[k]->op->work.name, i, g->node[i]->op->work.name);
            right = false;
        }
    }
    free(work);
    free(led);
    return right;
}

/* --- launching -------------------------------------------------------------------------------- */

static CUresult instantiate(CUgraphExec *exec, CUgraph graph)
{
    struct CUgraphExec_st *e;

    if (!fake_alive(graph, FAKE_GRAPH))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!is_free_of_races(graph))
        return CUDA_ERROR_INVALID_VALUE;
    e = fake_zalloc(sizeof *e);
    e->refs = 1;
    e->n = graph->n;
    e->node = fake_zalloc((size_t)e->n * sizeof(struct CUgraphNode_st *));
    for (int i = 0; i < e->n; i++)
        e->node[i] = copy_node(graph->node[i]);
    fake_register(&e->object, FAKE_EXEC, graph->object.device);
    *exec = e;
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    CUresult result;

    FAKE(cuGraphInstantiate, CUDA_ERROR_OUT_OF_MEMORY, "%llu", flags);
    fake_lock();
    result = instantiate(exec, graph);
    fake_unlock();
    return result;
}

static void drop_exec(struct CUgraphExec_st *e)
{
    if (--e->refs > 0)
        return;
    for (int i = 0; i < e->n; i++)
        free_node(e->node[i]);
    fake_ticket_drop(e->last);
    free(e->node);
    free(e);
}

/* An external record replaces the event's record when the launch is enqueued; a wait is for the
 * record at that time. */
static struct fake_launch *new_launch(struct CUgraphExec_st *e, struct CUstream_st *s)
{
    struct fake_launch *l = fake_zalloc(sizeof *l);

    l->exec = e;
    e->refs++;
    l->left = e->n;
    l->done = fake_zalloc((size_t)e->n);
    l->ticket = fake_zalloc((size_t)e->n * sizeof(struct fake_ticket *));
    l->end = fake_ticket_new(s);
    for (int i = 0; i < e->n; i++) {
        struct CUevent_st *event = e->node[i]->event;

        if (event == NULL)
            continue;
        if (e->node[i]->step == FAKE_RECORD) {
            fake_ticket_drop(event->ticket);
            event->ticket = fake_ticket_new(s);
        }
        if (event->ticket == NULL)
            continue;
        l->ticket[i] = event->ticket;
        event->ticket->refs++;
    }
    return l;
}

void fake_launch_drop(struct fake_launch *l)
{
    for (int i = 0; i < l->exec->n; i++)
        fake_ticket_drop(l->ticket[i]);
    fake_ticket_drop(l->end);
    drop_exec(l->exec);
    free(l->done);
    free(l->ticket);
    free(l);
}

int fake_launch_ready(const struct fake_launch *l, int *ready, int most, struct fake_ticket **waits)
{
    int n = 0;

    for (int i = 0; i < l->exec->n; i++) {
        const struct CUgraphNode_st *node = l->exec->node[i];
        bool can = !l->done[i];

        for (int k = 0; can && k < node->n_after; k++)
            can = l->done[node->after[k]];
        if (!can)
            continue;
        if (node->step == FAKE_WAIT && l->ticket[i] != NULL && !l->ticket[i]->done) {
            if (waits != NULL)
                *waits = l->ticket[i];
        } else if (n < most) {
            ready[n++] = i;
        }
    }
    return n;
}

bool fake_launch_do(struct fake_launch *l, int node, struct CUstream_st *s)
{
    const struct CUgraphNode_st *n = l->exec->node[node];

    if (n->step == FAKE_WORK) {
        fake_run(s->object.device, n->op, s);
        fake_clock_pass(n->op->work.name, true);
    }
    if (n->step == FAKE_RECORD)
        fake_ticket_complete(l->ticket[node]);
    l->done[node] = true;
    return --l->left == 0;
}

static CUresult launch(CUgraphExec exec, CUstream handle)
{
    struct CUstream_st *s;
    CUresult result = fake_stream_of(handle, &s);
    struct fake_launch *l;

    if (result == CUDA_SUCCESS && s->legacy)
        result = fake_capture_forbids_legacy();
    if (result != CUDA_SUCCESS)
        return result;
    if (!fake_alive(exec, FAKE_EXEC))
        return CUDA_ERROR_INVALID_HANDLE;
    if (s->capture != NULL) {
        fake_capture_break(s->capture, CUDA_ERROR_NOT_SUPPORTED, "a graph inside of a graph");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    for (int i = 0; i < exec->n; i++) {
        if (exec->node[i]->op != NULL &&
            !fake_memory_check(s->object.device, &exec->node[i]->op->work, "launch"))
            return CUDA_ERROR_INVALID_VALUE;
    }
    if (exec->last != NULL && !exec->last->done) { /* launches of one graph do not overlap */
        exec->last->refs++;
        fake_append(s, (struct fake_item){.step = FAKE_WAIT, .ticket = exec->last});
    }
    l = new_launch(exec, s);
    fake_ticket_drop(exec->last);
    exec->last = l->end;
    l->end->refs++;
    fake_append(s, (struct fake_item){.step = FAKE_LAUNCH, .launch = l});
    fake_enqueued();
    return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    CUresult result;

    FAKE(cuGraphLaunch, CUDA_ERROR_UNKNOWN, "%d nodes", exec != NULL ? exec->n : -1);
    fake_lock();
    result = launch(exec, stream);
    fake_unlock();
    return result;
}

CUresult cuGraphDestroy(CUgraph graph)
{
    CUresult result = CUDA_ERROR_INVALID_HANDLE;

    FAKE(cuGraphDestroy, CUDA_ERROR_UNKNOWN, "%s", "");
    fake_lock();
    if (fake_alive(graph, FAKE_GRAPH)) {
        fake_unregister(&graph->object);
        fake_graph_free(graph);
        result = CUDA_SUCCESS;
    }
    fake_unlock();
    return result;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    CUresult result = CUDA_ERROR_INVALID_HANDLE;

    FAKE(cuGraphExecDestroy, CUDA_ERROR_UNKNOWN, "%s", "");
    fake_lock();
    if (fake_alive(exec, FAKE_EXEC)) {
        fake_unregister(&exec->object);
        drop_exec(exec);
        result = CUDA_SUCCESS;
    }
    fake_unlock();
    return result;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *n)
{
    CUresult result = CUDA_ERROR_INVALID_HANDLE;

    FAKE(cuGraphGetNodes, CUDA_ERROR_UNKNOWN, "%s", "");
    fake_lock();
    if (fake_alive(graph, FAKE_GRAPH)) {
        if (nodes == NULL || *n > (size_t)graph->n)
            *n = (size_t)graph->n;
        for (size_t i = 0; nodes != NULL && i < *n; i++)
            nodes[i] = graph->node[i];
        result = CUDA_SUCCESS;
    }
    fake_unlock();
    return result;
}
