#include "core/comm/transport.h"

#include <stdio.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/comm/internal.h"
#include "core/comm/watch/watch.h"

/* Floats of the trial sum: more than what a short message takes, and not much time. */
enum { TRIAL = 1 << 18 };

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

/* Collective. Connects the devices and tries a sum. */
static enum dpt_status connect(const struct dpt_comm *comm, const struct dpt_device_links *links,
                               const struct dpt_device_memory *memory, int device, void *link,
                               bool *right, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &comm->world;
    unsigned char id[DPT_LINK_ID] = {0};

    dpt_comm_note(comm, 0, "connecting the GPUs (comm.transport)");
    status = world->rank == 0 ? links->identify(link, id, err) : DPT_OK;
    DPT_TRY(dpt_group_agree(world, status, err));
    DPT_TRY(dpt_group_broadcast(world, 0, id, sizeof id, err));
    status = links->connect(link, device, id, world->rank, world->size, err);
    DPT_TRY(dpt_group_agree(world, status, err));
    DPT_TRY(dpt_comm_try_sum(comm, memory, device, TRIAL, links->sum, link, right, err));
out:
    return status;
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
        if (connect(comm, links, memory, device, *link, &right, err) != DPT_OK) {
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
        dpt_watch_linked(comm->watch);
    if (why == NULL)
        snprintf(how, DPT_CUDA_AWARE_TEXT, "NCCL %d.%d.%d", version / 10000, version / 100 % 100,
                 version % 100);
out:
    if ((status != DPT_OK || why != NULL) && *link != NULL) {
        links->abort(*link);
        links->close(*link);
        *link = NULL;
    }
    return status;
}
