#include "core/comm/transport.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/device_waits.h"
#include "core/base/memory.h"
#include "core/base/pool.h"
#include "core/comm/internal.h"
#include "core/comm/watch/watch.h"

/* Floats of the trial sum: more than what a short message takes, and not much time. */
enum { TRIAL = 1 << 18 };

/* Seconds between two questions how the other ranks' calls go, at most. */
static const double LONGEST_PAUSE = 0.05;

/* What keeps a rank from using the library; "": nothing. */
struct finding {
    int version;
    char why[DPT_CUDA_AWARE_TEXT];
};

/* What keeps the ranks from it together. Returns NULL where nothing does. */
static const char *compare(const struct finding *all, int ranks, char why[2 * DPT_CUDA_AWARE_TEXT])
{
    for (int r = 0; r < ranks; r++) {
        if (all[r].why[0] != '\0') {
            snprintf(why, 2 * DPT_CUDA_AWARE_TEXT, "rank %d: %s", r, all[r].why);
            return why;
        }
        if (all[r].version != all[0].version) {
            snprintf(why, 2 * DPT_CUDA_AWARE_TEXT,
                     "ranks 0 and %d have different versions of NCCL: %d and %d", r, all[0].version,
                     all[r].version);
            return why;
        }
    }
    return NULL;
}

/* Collective. Opens the library, and says whether all ranks could connect their devices; why: else
 * what keeps them from it. */
static enum dpt_status find_all(const struct dpt_comm *comm, const struct dpt_device_links *links,
                                bool shared, void **link, int *version, const char **why,
                                char text[2 * DPT_CUDA_AWARE_TEXT], struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int ranks = comm->world.size;
    struct finding mine = {0}, *all = NULL;
    struct dpt_error missing;

    if (links == NULL)
        snprintf(mine.why, sizeof mine.why, "this backend has none");
    else if (links->open(link, &mine.version, &missing) != DPT_OK)
        snprintf(mine.why, sizeof mine.why, "%.*s", (int)sizeof mine.why - 1, missing.text);
    status = DPT_ALLOCATE(all, (size_t)ranks, "the ranks' transports", err);
    DPT_TRY(dpt_group_agree(&comm->world, status, err));
    DPT_TRY(dpt_group_allgather(&comm->world, &mine, all, sizeof mine, err));
    *why = compare(all, ranks, text);
    if (*why == NULL && shared)
        *why = "ranks share a GPU";
    *version = all[0].version;
out:
    dpt_free(all);
    return status;
}

/* --- calls that wait for each other ----------------------------------------------------------- */

/*
 * A call that may wait for the other ranks' calls for ever, where one of these has failed. So it is
 * made beside the thread that asks the others how theirs go.
 */
struct call {
    struct dpt_thread thread;
    enum dpt_status (*make)(struct call *c);
    const struct dpt_comm *comm;
    const struct dpt_device_links *links;
    void *link;
    int device; /* and `id`: of a connection */
    unsigned char id[DPT_LINK_ID];
    struct dpt_device_buffer *buffer; /* of a sum */
    enum dpt_status status;           /* and `err`: once it has returned */
    struct dpt_error err;
    atomic_bool returned;
};

static enum dpt_status make_connection(struct call *c)
{
    const struct dpt_group *world = &c->comm->world;

    return c->links->connect(c->link, c->device, c->id, world->rank, world->size, &c->err);
}

static enum dpt_status make_sum(struct call *c)
{
    return c->links->sum(c->link, c->buffer, &c->err);
}

static void *make_call(void *arg)
{
    struct call *c = arg;

    c->status = c->make(c);
    atomic_store(&c->returned, true);
    return NULL;
}

/* Collective. Returns when the call has on all ranks, or when one has failed: with this rank's
 * status where its own has returned. */
static enum dpt_status make_together(struct call *c, enum dpt_status (*make)(struct call *c),
                                     struct dpt_error *err)
{
    enum dpt_status status = DPT_OK, mine;
    struct dpt_device_waits *waits = dpt_comm_device_waits(c->comm);
    int64_t n[2]; /* ranks whose call has not returned, and those whose call has failed */
    double pause = 1e-3;
    int code;

    c->make = make;
    atomic_store(&c->returned, false);
    code = dpt_thread_start(&c->thread, make_call, c);
    if (code != 0) {
        c->status =
            dpt_fail(&c->err, DPT_RANK, "no thread to connect the GPUs: %s", strerror(code));
        atomic_store(&c->returned, true);
    }
    dpt_device_wait_begin(waits);
    do {
        n[0] = !atomic_load(&c->returned);
        n[1] = n[0] == 0 && c->status != DPT_OK;
        mine = n[1] > 0 ? c->status : DPT_OK;
        DPT_TRY(dpt_group_sum_ints(&c->comm->world, n, n, 2, err));
        dpt_sleep(n[0] > 0 ? pause : 0);
        pause = fmin(2 * pause, LONGEST_PAUSE);
    } while (n[0] > 0 && n[1] == 0);
    status = mine;
    if (mine != DPT_OK)
        *err = c->err;
out:
    dpt_device_wait_end(waits);
    return status;
}

/* Implements dpt_buffer_sum. */
static enum dpt_status sum_together(void *sums, struct dpt_device_buffer *b, struct dpt_error *err)
{
    struct call *c = sums;
    const struct dpt_group *world = &c->comm->world;
    enum dpt_status status;

    c->buffer = b;
    status = dpt_group_agree(world, make_together(c, make_sum, err), err);
    if (!atomic_load(&c->returned))
        c->links->abort(c->link);
    for (double waited = 0; waited < 1 && !atomic_load(&c->returned); waited += LONGEST_PAUSE)
        dpt_sleep(LONGEST_PAUSE);
    if (!atomic_load(&c->returned)) /* the buffer cannot be left to the device */
        return dpt_group_give_up(world, status, err);
    dpt_thread_end(&c->thread);
    return status;
}

/* Collective. Connects the devices and tries a sum. *link: NULL where it is left behind. */
static enum dpt_status connect(const struct dpt_comm *comm, const struct dpt_device_links *links,
                               const struct dpt_device_memory *memory, int device, void **link,
                               bool *right, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &comm->world;
    struct call *c = NULL;

    dpt_comm_note(comm, 0, "connecting the GPUs (comm.transport)");
    status = DPT_ALLOCATE(c, 1, "the GPUs' connections", err);
    if (status == DPT_OK) {
        *c = (struct call){.comm = comm, .links = links, .link = *link, .device = device};
        status = world->rank == 0 ? links->identify(*link, c->id, err) : DPT_OK;
    }
    DPT_TRY(dpt_group_agree(world, status, err));
    DPT_TRY(dpt_group_broadcast(world, 0, c->id, sizeof c->id, err));
    status = dpt_group_agree(world, make_together(c, make_connection, err), err);
    if (status != DPT_OK && !atomic_load(&c->returned)) {
        *link = NULL;
        return status;
    }
    dpt_thread_end(&c->thread);
    DPT_TRY(status);
    dpt_watch_linked(comm->watch, links->abort, *link);
    DPT_TRY(dpt_comm_try_sum(comm, memory, device, TRIAL, sum_together, c, right, err));
out:
    dpt_free(c);
    return status;
}

/* --- the choice ------------------------------------------------------------------------------- */

void dpt_comm_unlink(const struct dpt_comm *comm, const struct dpt_device_links *links, void *link)
{
    dpt_watch_linked(comm->watch, NULL, NULL);
    if (link != NULL)
        links->close(link);
}

enum dpt_status dpt_comm_transport(const struct dpt_comm *comm, enum dpt_transport wanted,
                                   const struct dpt_device_links *links,
                                   const struct dpt_device_memory *memory, int device, bool shared,
                                   void **link, char how[DPT_CUDA_AWARE_TEXT],
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char text[2 * DPT_CUDA_AWARE_TEXT];
    const char *why = NULL;
    bool right = true;
    int version = 0;

    *link = NULL;
    how[0] = '\0';
    if (comm->world.size == 1)
        return DPT_OK;
    if (wanted == DPT_TRANSPORT_MPI) {
        snprintf(how, DPT_CUDA_AWARE_TEXT, "no (comm.transport: mpi)");
        return DPT_OK;
    }
    DPT_TRY(find_all(comm, links, shared, link, &version, &why, text, err));
    if (why == NULL) {
        /* All ranks have the same status, and the text of the one that failed. */
        if (connect(comm, links, memory, device, link, &right, err) != DPT_OK) {
            snprintf(text, sizeof text, "%.*s", (int)sizeof text - 1, err->text);
            why = text;
        } else if (!right) {
            why = "a trial sum came out wrong";
        }
    }
    if (why != NULL && wanted == DPT_TRANSPORT_NCCL)
        DPT_TRY(dpt_fail(err, DPT_BAD_JOB,
                         "comm.transport: nccl: %s; `auto` takes MPI where NCCL cannot be used",
                         why));
    if (why != NULL)
        snprintf(how, DPT_CUDA_AWARE_TEXT, "no (%.*s)", DPT_CUDA_AWARE_TEXT - 8, why);
    else
        snprintf(how, DPT_CUDA_AWARE_TEXT, "NCCL %d.%d.%d", version / 10000, version / 100 % 100,
                 version % 100);
out:
    if ((status != DPT_OK || why != NULL) && *link != NULL) {
        links->abort(*link);
        dpt_comm_unlink(comm, links, *link);
        *link = NULL;
    }
    return status;
}
