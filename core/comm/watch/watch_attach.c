#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/memory.h"
#include "core/base/process.h"
#include "core/comm/internal.h"
#include "core/comm/launched.h"
#include "core/comm/watch/watchdog.h"

static void fill_entry(struct dpt_watch *w)
{
    struct dpt_process process;

    w->mine->rank = w->rank;
    w->mine->pid = (int32_t)getpid();
    if (dpt_process_read(w->mine->pid, &process))
        w->mine->born = process.born;
    dpt_watch_note(w, 0, "starting", "");
}

/* Finds the ranks whose processes are visible here: a rank in a container of its own has a process
 * number that belongs to another process here, or to none. */
static void find_visible(struct dpt_watch *w, int n)
{
    for (int i = 0; i < n; i++) {
        const struct dpt_watched_rank *watched = &w->page->ranks[i];
        struct dpt_process process;

        w->visible[i] = dpt_process_read(watched->pid, &process) && process.born == watched->born;
    }
}

enum dpt_status dpt_watch_attach(struct dpt_watch *w, const struct dpt_comm *comm,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t n = (size_t)comm->node.size;
    struct dpt_nodes nodes = {0};

    DPT_TRY(dpt_shared_open(&w->shared, &comm->node, sizeof *w->page + n * sizeof *w->mine, err));
    w->history = calloc(n, sizeof *w->history);
    w->seen = calloc(n, sizeof *w->seen);
    w->visible = calloc(n, sizeof *w->visible);
    if (w->history == NULL || w->seen == NULL || w->visible == NULL)
        status = dpt_fail_memory(err, "the watchdog", (double)(n * sizeof *w->seen));
    DPT_TRY(dpt_group_agree(&comm->world, status, err));
    pthread_mutex_lock(&w->thread.lock);
    w->page = w->shared.bytes;
    w->mine = &w->page->ranks[comm->node.rank];
    pthread_mutex_unlock(&w->thread.lock);
    fill_entry(w);
    DPT_TRY(dpt_group_barrier(&comm->node, err)); /* now all ranks have filled their entries */
    find_visible(w, comm->node.size);
    DPT_TRY(dpt_nodes_open(&nodes, comm, err));
    pthread_mutex_lock(&w->thread.lock);
    w->nodes = nodes;
    w->n = comm->node.size;
    w->me = comm->node.rank;
    memcpy(w->host, comm->host, sizeof w->host);
    if (w->nodes.heartbeat != NULL)
        dpt_heartbeat_poll(w->nodes.heartbeat, false, w->looked);
    pthread_mutex_unlock(&w->thread.lock);
out:
    if (status != DPT_OK)
        dpt_nodes_close(&nodes);
    return status;
}

void dpt_watch_close(struct dpt_watch *w)
{
    if (w == NULL)
        return;
    dpt_watch_end(w);
    dpt_nodes_close(&w->nodes);
    dpt_shared_close(&w->shared);
    free(w->history);
    free(w->seen);
    free(w->visible);
    dpt_free(w->places);
    dpt_free(w);
}
