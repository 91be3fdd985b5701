#include "core/comm/comm.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/base/memory.h"
#include "core/comm/internal.h"
#include "core/comm/watch/watch.h"

/* Bytes of address space that MPI may allocate when it starts. */
enum { RESERVE = 256 << 20 };

/* Makes a group of a communicator, which it owns on success. A group of one rank keeps no
 * handle. */
static enum dpt_status group_open(struct dpt_group *g, MPI_Comm comm, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_communicator *handle = NULL;

    DPT_TRY_MPI(MPI_Comm_set_errhandler, comm, MPI_ERRORS_RETURN);
    DPT_TRY_MPI(MPI_Comm_rank, comm, &g->rank);
    DPT_TRY_MPI(MPI_Comm_size, comm, &g->size);
    if (g->size == 1) {
        if (comm != MPI_COMM_WORLD)
            DPT_TRY_MPI(MPI_Comm_free, &comm);
        return DPT_OK;
    }
    DPT_TRY(DPT_ALLOCATE(handle, 1, "a communicator", err));
    handle->comm = comm;
    handle->limit = DPT_MESSAGE_LIMIT;
    g->handle = handle;
out:
    return status;
}

static void group_close(struct dpt_group *g)
{
    struct dpt_communicator *handle = g->handle;

    if (handle != NULL && handle->comm != MPI_COMM_WORLD)
        MPI_Comm_free(&handle->comm);
    dpt_free(handle);
    *g = (struct dpt_group){0};
}

/* Finds the first ranks of all nodes, once comm->node is known. */
static enum dpt_status find_leaders(struct dpt_comm *comm, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    MPI_Comm part = MPI_COMM_NULL;

    DPT_TRY_COLLECTIVE(&comm->world, MPI_Comm_split, dpt_mpi_comm(&comm->world),
                       comm->node.rank == 0 ? 0 : MPI_UNDEFINED, comm->world.rank, &part);
    if (part == MPI_COMM_NULL) {
        comm->leaders = (struct dpt_group){.rank = -1};
    } else {
        DPT_TRY(group_open(&comm->leaders, part, err));
        comm->nodes = comm->leaders.size;
    }
    DPT_TRY(dpt_group_broadcast(&comm->node, 0, &comm->nodes, sizeof comm->nodes, err));
out:
    return status;
}

static enum dpt_status find_nodes(struct dpt_comm *comm, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    MPI_Comm part = MPI_COMM_NULL;

    DPT_TRY_MPI(MPI_Comm_split_type, dpt_mpi_comm(&comm->world), MPI_COMM_TYPE_SHARED,
                comm->world.rank, MPI_INFO_NULL, &part);
    DPT_TRY(group_open(&comm->node, part, err));
    DPT_TRY(find_leaders(comm, err));
out:
    return status;
}

static enum dpt_status find_hosts(struct dpt_comm *comm, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    status = DPT_ALLOCATE(comm->hosts, (size_t)comm->world.size, "the list of hosts", err);
    DPT_TRY(dpt_group_agree(&comm->world, status, err));
    DPT_TRY(dpt_group_allgather(&comm->world, comm->host, comm->hosts, sizeof comm->host, err));
out:
    return status;
}

/* From now on the watchdog counts the collectives of its groups. */
static void watch_groups(struct dpt_comm *comm, struct dpt_watch *watch)
{
    struct dpt_group *const groups[] = {&comm->world, &comm->node, &comm->leaders};

    comm->watch = watch;
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        struct dpt_communicator *handle = groups[i]->handle;

        if (handle == NULL)
            continue;
        handle->watch = watch;
        handle->axis = groups[i] != &comm->leaders ? comm->axis : DPT_SOME_OF_NODE;
    }
}

/* Connects the watchdogs: from now on the ranks of each node watch each other. */
static enum dpt_status start_watching(struct dpt_comm *comm, struct dpt_watch *watch,
                                      struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(find_hosts(comm, err));
    DPT_TRY(dpt_watch_attach(watch, comm, err));
    watch_groups(comm, watch);
out:
    return status;
}

/* One group of a split of another one's. */
static enum dpt_status split_group(const struct dpt_group *g, int color, struct dpt_group *part,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    MPI_Comm comm = MPI_COMM_NULL;

    if (g->size <= 1)
        return DPT_OK;
    DPT_TRY_COLLECTIVE(g, MPI_Comm_split, dpt_mpi_comm(g), color, g->rank, &comm);
    DPT_TRY(group_open(part, comm, err));
out:
    return status;
}

enum dpt_status dpt_comm_split(const struct dpt_comm *parent, int color, struct dpt_comm *part,
                               struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    int first = 0;
    double axis;

    *part = (struct dpt_comm){0};
    if (dpt_group_max(&parent->world, dpt_watch_axes(parent->watch) + 1, &axis, err) != DPT_OK)
        return err->status;
    if (axis > DPT_AXES_MOST)
        return dpt_fail(err, DPT_INTERNAL, "a rank is in groups of more than %d splits",
                        DPT_AXES_MOST);
    *part = (struct dpt_comm){.nodes = 1, .started = parent->started, .axis = (int)axis};
    part->world = part->node = part->leaders = (struct dpt_group){.size = 1};
    memcpy(part->host, parent->host, sizeof part->host);
    DPT_TRY(split_group(&parent->world, color, &part->world, err));
    DPT_TRY(split_group(&parent->node, color, &part->node, err));
    if (part->world.size > 1)
        DPT_TRY(find_leaders(part, err));
    /* The rank of the job that is its first names the group: no two of a split have one. */
    if (parent->watch != NULL)
        MPI_Comm_rank(MPI_COMM_WORLD, &first);
    DPT_TRY(dpt_group_broadcast(&part->world, 0, &first, sizeof first, err));
    dpt_watch_join(parent->watch, part->axis, first);
    DPT_TRY(find_hosts(part, err)); /* none counts before all have joined */
    watch_groups(part, parent->watch);
out:
    if (status != DPT_OK)
        dpt_comm_close(part);
    return status;
}

bool dpt_comm_has_threads(void)
{
    int provided = MPI_THREAD_SINGLE;

    return MPI_Query_thread(&provided) == MPI_SUCCESS && provided == MPI_THREAD_MULTIPLE;
}

enum dpt_status dpt_comm_split_beside(const struct dpt_comm *job, struct dpt_comm *beside,
                                      struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_comm_split(job, 0, beside, err));
    watch_groups(beside, NULL);
    beside->watch = job->watch; /* for its end */
    beside->beside = true;
out:
    return status;
}

bool dpt_memory_reserve(size_t bytes)
{
    void *p = dpt_reserve(bytes);

    dpt_unreserve(p, bytes);
    return p != NULL;
}

/* Reports that there is too little memory for MPI, which would crash or hang. This rank prints the
 * error itself: only rank 0 prints errors otherwise, and without MPI it cannot learn of this
 * one. */
static enum dpt_status fail_alone(const struct dpt_comm *comm, struct dpt_error *err)
{
    const enum dpt_status status = dpt_fail_memory(err, "MPI", RESERVE);

    dpt_siblings_notify();
    if (dpt_launcher_rank() != 0)
        fprintf(stderr, "rank %d (%s): %s\n", dpt_launcher_rank(), comm->host, err->text);
    usleep((useconds_t)(DPT_SIBLINGS_NOTICE * 1e6));
    return status;
}

enum dpt_status dpt_comm_open(struct dpt_comm *comm, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK, watched = DPT_OK;
    int provided = MPI_THREAD_SINGLE;
    struct dpt_watch *watch = NULL;

    *comm = (struct dpt_comm){.nodes = 1};
    comm->world = comm->node = comm->leaders = (struct dpt_group){.size = 1};
    dpt_host_name(comm->host);
    DPT_TRY(dpt_launcher_check(0, err));
    dpt_launcher_prepare();
    /* The watchdog also bounds the start of MPI, so its thread exists already during MPI_Init. It
     * does not read the environment, which MPI_Init changes. */
    if (dpt_launcher_present())
        watched = dpt_watch_open(&watch, dpt_launcher_rank(), err);
    if (!dpt_memory_reserve((size_t)RESERVE))
        DPT_TRY(fail_alone(comm, err));
    DPT_TRY_MPI(MPI_Init_thread, NULL, NULL, MPI_THREAD_MULTIPLE, &provided);
    comm->started = true;
    /* At other levels than MULTIPLE, MPI_Abort of the watchdog is the only MPI call outside the
     * main thread, which libraries at the FUNNELED level tolerate in practice; at SINGLE a library
     * may not support threads at all. */
    if (provided < MPI_THREAD_FUNNELED)
        DPT_TRY(dpt_fail(err, DPT_RANK, "MPI: this library was built without support for threads"));
    DPT_TRY_MPI(MPI_Comm_set_errhandler, MPI_COMM_SELF, MPI_ERRORS_RETURN);
    DPT_TRY(group_open(&comm->world, MPI_COMM_WORLD, err));
    status = dpt_launcher_check(comm->world.size, err);
    if (status != DPT_OK)
        dpt_siblings_await_alone();
    DPT_TRY(status);
    if (comm->world.size <= 1)
        goto out;
    DPT_TRY(dpt_group_agree(&comm->world, watched, err));
    DPT_TRY(find_nodes(comm, err));
    DPT_TRY(start_watching(comm, watch, err));
out:
    if (comm->watch == NULL)
        dpt_watch_close(watch);
    return status;
}

static void close_groups(struct dpt_comm *comm)
{
    group_close(&comm->leaders);
    group_close(&comm->node);
    group_close(&comm->world);
}

void dpt_comm_close(struct dpt_comm *comm)
{
    struct dpt_watch *watch = comm->watch;

    if (comm->axis > 0) { /* a part of the job's ranks: MPI goes on */
        close_groups(comm);
        dpt_watch_join(watch, comm->axis, -1);
        dpt_free(comm->hosts);
        *comm = (struct dpt_comm){0};
        return;
    }
    if (!comm->started) {
        dpt_watch_close(watch);
        comm->watch = NULL;
        return;
    }
    dpt_comm_note(comm, -1, "ending");
    if (comm->world.size > 1) {
        dpt_group_enter(&comm->world);
        MPI_Barrier(dpt_mpi_comm(&comm->world));
        dpt_group_leave(&comm->world);
    }
    close_groups(comm);
    /* MPI_Finalize waits for all ranks, too. */
    if (watch != NULL)
        dpt_watch_closing(watch);
    MPI_Finalize();
    dpt_watch_close(watch);
    dpt_free(comm->hosts);
    *comm = (struct dpt_comm){0};
}

enum dpt_status dpt_comm_number_nodes(const struct dpt_comm *comm, int32_t *nodes,
                                      struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    int32_t first = comm->world.rank;

    DPT_TRY(dpt_group_broadcast(&comm->node, 0, &first, sizeof first, err));
    DPT_TRY(dpt_group_allgather(&comm->world, &first, nodes, sizeof first, err));
    for (int i = 0, n = 0; i < comm->world.size; i++)
        nodes[i] = nodes[i] == i ? n++ : nodes[nodes[i]];
out:
    return status;
}

const char *dpt_comm_host(const struct dpt_comm *comm, int rank)
{
    return comm->hosts != NULL ? comm->hosts[rank] : comm->host;
}

const char *dpt_comm_where(const struct dpt_comm *comm, int rank, char where[DPT_WHERE_TEXT])
{
    return dpt_watch_where(comm->watch, rank, dpt_comm_host(comm, rank), where);
}
