/*
 * simulate: the ranks of a training job on a cluster that is not there.
 *
 * Built with SimGrid's smpicc from the sources of core/comm, core/train/gradient_reduction_* and
 * the sampler as they are: the messages of a simulated step are those that dptrain sends. Computing
 * is not done but waited for (smpi_execute), for times that were measured; so the gradients hold
 * nothing, and lie in memory that all ranks share. The linker puts a few calls of those sources
 * here (--wrap): the start of MPI and of the watchdog, whose thread SimGrid cannot run; the
 * allocation of large buffers; the adding of blocks of the tree, which takes simulated time;
 * and MPI_Allreduce, which gets an operation that takes simulated time, too. With --check the
 * memory is each rank's own, the adding is real, and the sums are compared with their closed form.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/comm/comm.h"
#include "core/comm/sums/placement.h"
#include "core/comm/sums/tree.h"
#include "core/train/layout/actions.h"
#include "core/train/layout/shares.h"
#include "core/train/reduction/gradient_reduction.h"
#include "core/train/team.h"
#include "data/sets/sampler.h"

/* Blocks from here on are shared between the ranks: gradients, and no list that a rank reads. */
enum { LARGE = 2 << 20 };

/* What the command line says; SimGrid gives each rank globals of its own. */
static struct {
    long long floats, global, micro, steps;
    long long at_once;      /* micro-batches that a rank computes at once under `reproducible` */
    long long stages, edge; /* of a pipeline, all alike; floats of a micro-batch between two */
    double micro_seconds, step_seconds; /* of computing: a micro-batch; once a step */
    double add_seconds;                 /* a float added to another */
    const char *way;
    bool check;
} spec = {.floats = 1000,
          .global = 64,
          .micro = 1,
          .steps = 3,
          .at_once = 1,
          .stages = 1,
          .edge = 1,
          .way = "allreduce"};

/* --- what the linker puts in the place of calls in the sources -------------------------------- */

struct dpt_watch;

void *__real_dpt_alloc(size_t bytes);
void __real_dpt_tree_push(struct dpt_tree *tree, struct dpt_block block, float *value, size_t n,
                          float **released, int *n_released);
void __real_dpt_tree_add(float *restrict to, const float *restrict from, size_t n);
void __real_dpt_placement_begin(struct dpt_placement *p, bool at_owner);
int __real_MPI_Allreduce(const void *send, void *receive, int n, MPI_Datatype type, MPI_Op op,
                         MPI_Comm comm);

enum dpt_status __wrap_dpt_watch_attach(struct dpt_watch *watch, const struct dpt_comm *comm,
                                        struct dpt_error *err)
{
    (void)watch;
    (void)comm;
    (void)err;
    return DPT_OK;
}

/* Nobody asks for the cores of simulated ranks. */
enum dpt_status dpt_core_share(const struct dpt_group *node, double *cores, struct dpt_error *err)
{
    (void)node, (void)err;
    *cores = 1;
    return DPT_OK;
}

/* SimGrid offers SINGLE, which is all that a job without a watchdog asks for. */
int __wrap_MPI_Init_thread(int *argc, char ***argv, int wanted, int *provided)
{
    *provided = wanted;
    return MPI_Init(argc, argv);
}

void *__wrap_dpt_alloc(size_t bytes)
{
    return bytes < LARGE || spec.check ? __real_dpt_alloc(bytes) : SMPI_SHARED_MALLOC(bytes);
}

void *__wrap_dpt_alloc_array(size_t n, size_t size)
{
    return size != 0 && n > SIZE_MAX / size ? NULL : __wrap_dpt_alloc(n * size);
}

/* smpi_helpers.h makes this smpi_shared_free, which knows both kinds. */
void __wrap_dpt_free(void *p)
{
    free(p);
}

void __wrap_dpt_tree_push(struct dpt_tree *tree, struct dpt_block block, float *value, size_t n,
                          float **released, int *n_released)
{
    const int before = tree->n;

    __real_dpt_tree_push(tree, block, value, spec.check ? n : 0, released, n_released);
    /* One block came, and each that merged took one away. */
    if (n > 0 && before + 1 > tree->n)
        smpi_execute((before + 1 - tree->n) * (double)n * spec.add_seconds);
}

void __wrap_dpt_tree_add(float *restrict to, const float *restrict from, size_t n)
{
    if (spec.check)
        __real_dpt_tree_add(to, from, n);
    smpi_execute((double)n * spec.add_seconds);
}

/* Whether prices are in use all ranks find alike, each by itself, and it takes the square of their
 * number; so the first one here finds it for all. The list of what is found is in the process's
 * environment, of which ranks have no copies. */
struct found {
    int hosts, n;
    bool at_owner, priced;
    struct found *next;
};

static const char *const places = "SIMULATED_PLACEMENTS";

void __wrap_dpt_placement_begin(struct dpt_placement *p, bool at_owner)
{
    void *list = NULL;
    struct found *f;
    char text[32];

    if (getenv(places) != NULL)
        sscanf(getenv(places), "%p", &list);
    for (f = list; f != NULL; f = f->next)
        if (f->hosts == p->hosts && f->n == p->n && f->at_owner == at_owner) {
            p->at_owner = at_owner;
            p->priced = f->priced;
            return;
        }
    __real_dpt_placement_begin(p, at_owner);
    f = malloc(sizeof *f);
    *f = (struct found){p->hosts, p->n, at_owner, p->priced, list};
    snprintf(text, sizeof text, "%p", (void *)f);
    setenv(places, text, 1);
}

/* What waits for a message asks again and again whether it has come; here it just waits. */
int __wrap_MPI_Testall(int n, MPI_Request *request, int *gone, MPI_Status *status)
{
    const int code = MPI_Waitall(n, request, status);

    *gone = code == MPI_SUCCESS;
    return code;
}

static void add_floats(void *from, void *to, int *n, MPI_Datatype *type)
{
    const float *x = from;
    float *sum = to;

    (void)type;
    for (int i = 0; spec.check && i < *n; i++)
        sum[i] += x[i];
    smpi_execute(*n * spec.add_seconds);
}

int __wrap_MPI_Allreduce(const void *send, void *receive, int n, MPI_Datatype type, MPI_Op op,
                         MPI_Comm comm)
{
    MPI_Op timed;
    int code;

    if (type != MPI_FLOAT || op != MPI_SUM)
        return __real_MPI_Allreduce(send, receive, n, type, op, comm);
    code = MPI_Op_create(add_floats, 1, &timed);
    if (code == MPI_SUCCESS)
        code = __real_MPI_Allreduce(send, receive, n, type, timed, comm);
    if (code == MPI_SUCCESS)
        code = MPI_Op_free(&timed);
    return code;
}

/* SimGrid's own way to copy a message, which its header shows to C++ only. */
void copy_message(smx_activity_t message, void *from, size_t bytes) __asm__(
    "_Z30smpi_comm_copy_buffer_callbackPN7simgrid6kernel8activity8CommImplEPvm");

/* Gradients hold nothing: their messages take time, and no copying. */
static void copy_small(smx_activity_t message, void *from, size_t bytes)
{
    if (bytes < LARGE)
        copy_message(message, from, bytes);
}

/* --- one step, as core/train/engines/host.c goes through it ----------------------------------- */

/* The gradient of a micro-batch for --check: small whole numbers, whose sums are exact. */
static float leaf(int64_t micro_batch, int64_t i)
{
    return (float)(micro_batch % 61 + i % 13);
}

static enum dpt_status check_sum(const struct dpt_trainer *t, int64_t step, struct dpt_error *err)
{
    const int64_t m = dpt_sampler_micro_batches(&t->data.train.sampler, step);
    double leaves = 0;

    for (int64_t k = 0; k < m; k++)
        leaves += (double)(k % 61);
    for (int64_t i = 0; i < dpt_trainer_graph(t)->floats; i++)
        if (t->reduction.sum[i] != (float)(leaves + (double)m * (double)(i % 13)))
            return dpt_fail(err, DPT_INTERNAL, "rank %d, step %lld: sum %lld is %g, not %g",
                            t->comm->world.rank, (long long)step, (long long)i, t->reduction.sum[i],
                            leaves + (double)m * (double)(i % 13));
    return DPT_OK;
}

/* Whether the rank computes the gradient of this micro-batch together with the next one's. */
static bool goes_on(const struct dpt_trainer *t, const struct dpt_step_view *view,
                    int32_t micro_batch, int32_t *first)
{
    const int32_t all = dpt_sampler_micro_batches(&t->data.train.sampler, view->step);
    int32_t n;

    for (*first = view->first;; *first += n) {
        n = dpt_share_at_once(t->layout.at_once, all, *first, view->last);
        if (*first + n > micro_batch)
            return *first + n > micro_batch + 1;
    }
}

/* A micro-batch's gradient, which is computed in so many seconds. */
static void go_back(struct dpt_trainer *t, const struct dpt_step_view *view, int32_t micro_batch,
                    double seconds)
{
    const struct dpt_metric_sums metric_sums[DPT_MOST_AT_ONCE] = {{0}};
    int32_t first;
    float *gradient;
    bool add;

    smpi_execute(seconds);
    if (goes_on(t, view, micro_batch, &first))
        return;
    gradient = t->reduction.type->target(t, 0, dpt_gradient_whole(t), &add);
    for (int64_t k = 0; spec.check && k < dpt_trainer_graph(t)->floats; k++) {
        gradient[k] = add ? gradient[k] : 0;
        for (int32_t i = first; i <= micro_batch; i++)
            gradient[k] += leaf(i, k);
    }
    t->reduction.type->done(t, 0, first, micro_batch + 1 - first, gradient, dpt_gradient_whole(t),
                            metric_sums);
}

/* Of a stage's seconds for a micro-batch: forward one part, back two, for data and weights. */
static const double forward_part = 1.0 / 3;

/* A stage's micro-batches, as core/train/layout/planners.c lists them. */
static enum dpt_status pass_stage(struct dpt_trainer *t, const struct dpt_step_view *view,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &t->comm->world;
    const int away = dpt_trainer_replicas(t)->world.size; /* from a stage to the next */
    const size_t bytes = (size_t)spec.edge * sizeof(float);
    const double seconds = spec.micro_seconds / (double)spec.stages;
    const bool first = t->stage->number == 0, last = t->stage->number == t->layout.stages - 1;
    struct dpt_pipeline_walk walk = {.schedule = DPT_PIPELINE_1F1B,
                                     .stages = t->layout.stages,
                                     .stage = t->stage->number,
                                     .micro_batches = view->last - view->first};
    struct dpt_pipeline_action action;
    struct dpt_sending *sending = NULL; /* [micro-batches][forward, back] */
    float *value = NULL;

    DPT_TRY(DPT_ALLOCATE(value, (size_t)spec.edge, "a value", err));
    DPT_TRY(DPT_ALLOCATE(sending, 2 * (size_t)walk.micro_batches + 1, "messages", err));
    while (dpt_pipeline_next(&walk, &action)) {
        const bool gets = action.back ? !last : !first, gives = action.back ? !first : !last;

        if (gets)
            DPT_TRY(dpt_group_receive(world, world->rank + (action.back ? away : -away), value,
                                      bytes, err));
        if (action.back)
            go_back(t, view, view->first + action.micro_batch, (1 - forward_part) * seconds);
        else
            smpi_execute(forward_part * seconds);
        if (gives)
            DPT_TRY(dpt_group_send(world, world->rank + (action.back ? -away : away), value, bytes,
                                   &sending[2 * action.micro_batch + action.back], err));
    }
    for (int32_t i = 0; i < 2 * walk.micro_batches; i++)
        DPT_TRY(dpt_group_sent(world, &sending[i], err));
out:
    dpt_free(value);
    dpt_free(sending);
    return status;
}

static enum dpt_status one_step(struct dpt_trainer *t, int64_t step, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_step_view view = {.step = step};
    const struct dpt_group *replicas = &dpt_trainer_replicas(t)->world;
    const float flags[DPT_FLAGS] = {0};

    dpt_sampler_partition(&t->data.train.sampler, step, replicas->rank, replicas->size, &view.first,
                          &view.last);
    t->reduction.type->begin(t, view.step);
    DPT_TRY(pass_stage(t, &view, err));
    DPT_TRY(t->reduction.type->sum(t, flags, err));
    if (spec.check)
        DPT_TRY(check_sum(t, step, err));
    smpi_execute(spec.step_seconds / (double)spec.stages);
out:
    return status;
}

static enum dpt_status run(const struct dpt_comm *comm, struct dpt_error *err)
{
    static const struct dpt_gradient_reduction_type *const types[] = {
        &dpt_gradient_reduction_allreduce, &dpt_gradient_reduction_reproducible};
    enum dpt_status status = DPT_OK;
    struct dpt_worker worker = {0};
    /* Simulated ranks of a node share no memory, and their threads cannot be simulated. */
    const struct dpt_job job = {.comm.hierarchical = comm->nodes == comm->world.size
                                                         ? DPT_HIERARCHICAL_AUTO
                                                         : DPT_HIERARCHICAL_OFF,
                                .comm.overlap = DPT_OVERLAP_NEVER};
    const int replicas = comm->world.size / (int)spec.stages;
    struct dpt_layout_stage stage = {.number = comm->world.rank / replicas};
    struct dpt_trainer t = {.job = &job,
                            .comm = comm,
                            .stage = &stage,
                            .mesh = {.replicas = comm},
                            .layout = {.job = &job,
                                       .stages = (int)spec.stages,
                                       .tensor = 1,
                                       .ranks = comm->world.size,
                                       .replicas = replicas,
                                       .owners = 1,
                                       .threads = 1,
                                       .gradient_workers = 1,
                                       .micro = (int32_t)spec.micro,
                                       .at_once = (int32_t)spec.at_once},
                            .team = {.workers = &worker}};
    double start = 0;

    t.reduction.type = types[strcmp(spec.way, "reproducible") == 0];
    t.model.graph.floats = t.model.graph.arena =
        (int64_t)dpt_round_up((size_t)spec.floats, sizeof(float));
    t.layout.graph = &t.model.graph;
    stage.graph.floats = stage.graph.arena =
        (int64_t)dpt_round_up((size_t)(spec.floats / spec.stages), sizeof(float));
    if (spec.stages > 1) {
        DPT_TRY(dpt_comm_split(comm, stage.number, &t.mesh.replica_group, err));
        t.mesh.replicas = &t.mesh.replica_group;
    }
    t.data.train.sampler = t.layout.sampler = (struct dpt_sampler){
        .total = spec.global * (spec.steps + 1),
        .samples = spec.global * (spec.steps + 1),
        .global = (int32_t)spec.global,
        .micro = (int32_t)spec.micro,
    };
    t.steps_per_epoch = dpt_sampler_steps(&t.data.train.sampler);
    DPT_TRY(t.reduction.type->open(&t, err));
    /* The first one is not timed. The barriers are MPI's own: that of a group sleeps between polls,
     * which the simulated clock would count. */
    for (int64_t step = 0; step <= spec.steps; step++) {
        DPT_TRY(one_step(&t, step, err));
        if (step == 0) {
            MPI_Barrier(MPI_COMM_WORLD);
            start = MPI_Wtime();
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (comm->world.rank == 0)
        printf("%.9g\n", (MPI_Wtime() - start) / (double)spec.steps);
out:
    t.reduction.type->close(&t);
    if (t.mesh.replica_group.started)
        dpt_comm_close(&t.mesh.replica_group);
    return status;
}

/* --- the command line: NAME=VALUE, from run.sh ------------------------------------------------ */

static bool read_word(const char *word)
{
    const struct {
        const char *name;
        long long *whole;
        double *seconds;
    } names[] = {
        {"floats", &spec.floats, NULL},
        {"global", &spec.global, NULL},
        {"micro", &spec.micro, NULL},
        {"steps", &spec.steps, NULL},
        {"at_once", &spec.at_once, NULL},
        {"stages", &spec.stages, NULL},
        {"edge", &spec.edge, NULL},
        {"micro_seconds", NULL, &spec.micro_seconds},
        {"step_seconds", NULL, &spec.step_seconds},
        {"add_seconds", NULL, &spec.add_seconds},
    };
    const char *value = strchr(word, '=');

    if (strcmp(word, "check") == 0) {
        spec.check = true;
        return true;
    }
    if (value == NULL)
        return false;
    if (strncmp(word, "way=", 4) == 0) {
        spec.way = value + 1;
        return strcmp(spec.way, "allreduce") == 0 || strcmp(spec.way, "reproducible") == 0;
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strlen(names[i].name) != (size_t)(value - word) ||
            strncmp(word, names[i].name, (size_t)(value - word)) != 0)
            continue;
        if (names[i].whole != NULL)
            return sscanf(value + 1, "%lld", names[i].whole) == 1 && *names[i].whole > 0;
        return sscanf(value + 1, "%lf", names[i].seconds) == 1 && *names[i].seconds >= 0;
    }
    return false;
}

__attribute__((visibility("default"))) int main(int argc, char **argv)
{
    struct dpt_comm comm = {0};
    struct dpt_error err = {0};
    enum dpt_status status;

    for (int i = 1; i < argc; i++)
        if (!read_word(argv[i])) {
            fprintf(stderr, "simulate: what is '%s'?\n", argv[i]);
            return 2;
        }
    if (!spec.check)
        smpi_comm_set_copy_data_callback(copy_small);
    status = dpt_comm_open(&comm, &err);
    if (status == DPT_OK)
        status = run(&comm, &err);
    if (status != DPT_OK) {
        fprintf(stderr, "simulate: %s\n", err.text);
        MPI_Abort(MPI_COMM_WORLD, dpt_exit_code(status));
    }
    dpt_comm_close(&comm);
    return 0;
}
