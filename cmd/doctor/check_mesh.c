/* Where a mesh of the ranks would be: which stage is on which node, and what goes between nodes. */
#include <stdlib.h>
#include <string.h>

#include "cmd/doctor/doctor.h"

/* "4x2" or, with tensor in the middle, "4x1x2": the ranks along each axis, as `dptrain plan --mesh
 * auto` lists them. Rank (stage x data + replica) x tensor + part has that place. */
struct mesh {
    long data, tensor, stages;
};

static bool read_mesh(const char *text, struct mesh *m)
{
    long along[3] = {0};
    int n = 0;
    char *end;

    while (n < 3) {
        along[n] = strtol(text, &end, 10);
        if (end == text || along[n] < 1 || along[n] > 1 << 20)
            return false;
        n++;
        text = end + 1;
        if (*end == '\0')
            break;
        if (*end != 'x')
            return false;
    }
    *m = (struct mesh){along[0], n == 3 ? along[1] : 1, along[n - 1]};
    return n >= 2 && *end == '\0';
}

enum dpt_status dpt_doctor_read_mesh(const struct dpt_cli *cli, struct dpt_error *err)
{
    const char *text = dpt_cli_value(cli, "--mesh");
    struct mesh m;

    if (text == NULL || read_mesh(text, &m))
        return DPT_OK;
    return dpt_fail(err, DPT_USAGE,
                    "dptrain doctor: --mesh %s: give ranks along data and pipeline, as 4x2", text);
}

/* Whether some ranks that differ along one axis alone are on several nodes. */
static bool crosses(const struct mesh *m, const int32_t *nodes, long step, long along)
{
    for (long r = 0; r < m->data * m->tensor * m->stages; r++)
        if (r / step % along > 0 && nodes[r] != nodes[r - step])
            return true;
    return false;
}

/* "node01: stages 1-2; node02: stages 3-4", as far as there is room. */
static void list_nodes(const struct dpt_doctor *d, const struct mesh *m, const int32_t *nodes,
                       struct dpt_str *out)
{
    enum { SHOWN = 4 };
    const int ranks = d->comm.world.size;
    const long stage = m->data * m->tensor;

    for (int node = 0; node < d->comm.nodes; node++) {
        int first = 0, last = ranks - 1;

        if (node == SHOWN && d->comm.nodes > SHOWN + 1) {
            dpt_str_printf(out, "; and %d nodes more", d->comm.nodes - SHOWN);
            break;
        }
        while (nodes[first] != node)
            first++;
        while (nodes[last] != node)
            last--;
        dpt_str_printf(out, "%s%s: stage", node > 0 ? "; " : "", dpt_comm_host(&d->comm, first));
        if (first / stage == last / stage)
            dpt_str_printf(out, " %ld", first / stage + 1);
        else
            dpt_str_printf(out, "s %ld-%ld", first / stage + 1, last / stage + 1);
    }
}

enum dpt_status dpt_doctor_mesh(struct dpt_doctor *d, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *text = dpt_cli_value(d->cli, "--mesh");
    const int ranks = d->comm.world.size;
    struct dpt_str where = {0};
    bool values, sums, parts;
    int32_t *nodes;
    struct mesh m;

    if (text == NULL || !read_mesh(text, &m))
        return DPT_OK;
    if (m.data * m.tensor * m.stages != ranks) {
        dpt_warning(d, "start as many as the mesh has", "%s are %ld ranks, and %d %s here", text,
                    m.data * m.tensor * m.stages, ranks, ranks == 1 ? "is" : "are");
        return DPT_OK;
    }
    nodes = dpt_region_alloc(&d->region, (size_t)ranks * sizeof *nodes);
    DPT_TRY(dpt_group_agree(&d->comm.world,
                            nodes != NULL ? DPT_OK : dpt_fail_memory(err, "the list of nodes", 0),
                            err));
    DPT_TRY(dpt_comm_number_nodes(&d->comm, nodes, err));
    parts = crosses(&m, nodes, 1, m.tensor);
    sums = crosses(&m, nodes, m.tensor, m.data);
    values = crosses(&m, nodes, m.tensor * m.data, m.stages);
    list_nodes(d, &m, nodes, &where);
    if (d->comm.nodes == 1)
        dpt_ok(d, "%s, all on %s", text, d->comm.host);
    else if ((parts || sums) && m.data * m.tensor <= ranks / d->comm.nodes)
        dpt_warning(
            d, "ranks per node that are a multiple of a stage's keep its sums of gradients there",
            "%s: %s; the ranks of a stage are on several nodes", text,
            where.failed ? "" : where.text);
    else
        dpt_ok(d, "%s: %s; between nodes go%s%s%s%s", text, where.failed ? "" : where.text,
               parts ? " parts of layers" : "", parts && (sums || values) ? "," : "",
               sums ? " sums of gradients" : "",
               values ? (sums ? " and values of stages" : " values of stages") : "");
out:
    dpt_str_release(&where);
    return status;
}
