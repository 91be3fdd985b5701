/* Sums of GPU memory by an MPI that can, that cannot, and that crashes on it. Where this program is
 * started by itself under mpirun it is a rank; a GPU's memory is then the host's, or none at all
 * that the host may touch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/memory.h"
#include "core/comm/cuda_aware.h"
#include "core/comm/probe.h"

/* --- a rank ----------------------------------------------------------------------------------- */

enum { LONG = 1 << 18, LONGER = LONG + 1001 };

/* How a rank's device is. */
struct device {
    int rank;
    bool remote; /* only the device may touch its memory */
    bool wrong;  /* the last element of a sum comes out wrong */
    bool late;   /* of a very long one only */
    bool full;   /* has no memory */
    bool claims; /* MPI says that it can sum its memory */
    bool slow;   /* but takes long */
    bool far;    /* a copy to it takes long */
    int buffers; /* that are there */
    float *at;   /* of the last one */
};

/* The process has one, as it is one rank: the functions below get no more than its number. */
static struct device the_device;

/* Something that takes as long as copies of many bytes. */
static void take_long(void)
{
    volatile double x = 1;

    for (int i = 0; i < 10000000; i++)
        x = x * 0.5 + 1;
}

static void close_buffer(struct dpt_device_buffer *b)
{
    if (b->device == NULL)
        return;
    free(b->pinned);
    if (!the_device.remote)
        free(b->at);
    the_device.buffers--;
    *b = (struct dpt_device_buffer){0};
}

static enum dpt_status open_buffer(int number, float value, int n, struct dpt_device_buffer *b,
                                   struct dpt_error *err)
{
    struct device *d = &the_device;

    (void)number;
    if (d->full)
        return dpt_fail(err, DPT_RANK, "CUDA: cuMemAlloc: no memory");
    *b = (struct dpt_device_buffer){.n = n, .device = d};
    b->pinned = malloc((size_t)n * sizeof *b->pinned);
    d->buffers++;
    if (d->remote) {
        b->at =
            mmap(NULL, (size_t)n * sizeof *b->at, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        return b->at == MAP_FAILED ? dpt_fail_memory(err, "a test", n) : DPT_OK;
    }
    b->at = malloc((size_t)n * sizeof *b->at);
    for (int i = 0; i < n; i++)
        b->at[i] = value;
    d->at = b->at;
    return DPT_OK;
}

static enum dpt_status fetch(struct dpt_device_buffer *b, struct dpt_error *err)
{
    const struct device *d = b->device;

    (void)err;
    memcpy(b->pinned, b->at, (size_t)b->n * sizeof *b->at);
    if (d->wrong || (d->late && b->n > LONG))
        b->pinned[b->n - 1] += 1;
    return DPT_OK;
}

static enum dpt_status give(struct dpt_device_buffer *b, struct dpt_error *err)
{
    const struct device *d = b->device;

    (void)err;
    if (d->far)
        take_long();
    memcpy(b->at, b->pinned, (size_t)b->n * sizeof *b->at);
    return DPT_OK;
}

/* --- an MPI ----------------------------------------------------------------------------------- */

/* These stand before the library's own: an MPI that says that it can, and may be slow at it. */
int MPIX_Query_cuda_support(void)
{
    return the_device.claims;
}

int MPI_Allreduce(const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op,
                  MPI_Comm comm)
{
    if (the_device.slow && the_device.at != NULL && receive == the_device.at)
        take_long();
    return PMPI_Allreduce(send, receive, count, type, op, comm);
}

/* What is so on rank `who` of so many. Rank 0 prints what came out: "on how" or "status text". */
static int be_rank(const char *kind, int who, enum dpt_cuda_aware wanted)
{
    struct dpt_comm comm;
    struct dpt_error err = {0};
    struct device *d = &the_device;
    const struct dpt_device_memory memory = {open_buffer, fetch, give, close_buffer};
    const int64_t largest = strcmp(kind, "small") == 0 ? 100 : LONGER;
    char how[DPT_CUDA_AWARE_TEXT] = "";
    bool on_device = false;
    enum dpt_status status = dpt_comm_open(&comm, &err);

    if (status != DPT_OK)
        return 1;
    d->rank = comm.world.rank;
    d->slow = strcmp(kind, "slow") == 0;
    d->far = strcmp(kind, "far") == 0;
    d->claims = d->slow || d->far;
    if (who < 0 || d->rank == who) {
        d->remote = strcmp(kind, "remote") == 0;
        d->wrong = strcmp(kind, "wrong") == 0;
        d->late = strcmp(kind, "late") == 0;
        d->full = strcmp(kind, "full") == 0;
    }
    status = dpt_comm_device_sums(&comm, wanted, &memory, 0, largest, &on_device, how, &err);
    if (d->buffers != 0)
        status = dpt_fail(&err, DPT_INTERNAL, "%d buffers are left", d->buffers);
    if (comm.world.rank == comm.world.size - 1) /* all know the same */
        printf("%d %d %s\n", status, on_device, status == DPT_OK ? how : err.text);
    fflush(stdout);
    dpt_comm_close(&comm);
    return dpt_exit_code(status);
}

/* --- the tests -------------------------------------------------------------------------------- */

/* Runs this program as so many ranks; gives the exit code and all they wrote. */
static int run(char *out, size_t size, int ranks, const char *kind, int who,
               enum dpt_cuda_aware wanted)
{
    char command[600], self[400];
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    FILE *pipe;
    size_t n;
    int code;

    assert_true(length > 0);
    self[length] = '\0';
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 0);
    setenv("PRTE_MCA_rmaps_default_mapping_policy", "slot:oversubscribe", 0);
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* MPI's own start keeps memory to the end */
    snprintf(command, sizeof command, "timeout 60 mpirun -np %d '%s' %s %d %d 2>&1", ranks, self,
             kind, who, (int)wanted);
    pipe = popen(command, "r");
    assert_non_null(pipe);
    n = fread(out, 1, size - 1, pipe);
    out[n] = '\0';
    code = pclose(pipe);
    return WIFEXITED(code) ? WEXITSTATUS(code) : -1;
}

static void says(const char *text, const char *what)
{
    if (strstr(text, what) == NULL)
        fail_msg("'%s' does not say '%s'", text, what);
}

static void a_sum_that_comes_out_right(void **state)
{
    char out[4000];

    (void)state;
    for (int ranks = 2; ranks <= 3; ranks++) {
        assert_int_equal(run(out, sizeof out, ranks, "right", -1, DPT_CUDA_AWARE_ON), 0);
        says(out, "0 1 yes (sums of 1024 to 263145 floats on the GPU came out right)\n");
    }
    assert_int_equal(run(out, sizeof out, 2, "small", -1, DPT_CUDA_AWARE_ON), 0);
    says(out, "0 1 yes (sums of 1024 to 262144 floats on the GPU came out right)\n");
}

static void nobody_is_asked(void **state)
{
    char out[4000];

    (void)state;
    assert_int_equal(run(out, sizeof out, 2, "remote", -1, DPT_CUDA_AWARE_OFF), 0);
    says(out, "0 0 no (comm.cuda_aware: off)\n");
    assert_int_equal(run(out, sizeof out, 1, "remote", -1, DPT_CUDA_AWARE_ON), 0);
    says(out, "0 0 not asked (one rank)\n");
}

/* What the MPI says of itself decides whether it is tried. */
static void by_itself(void **state)
{
    char out[4000], want[200];

    (void)state;
    assert_int_equal(run(out, sizeof out, 2, "right", -1, DPT_CUDA_AWARE_AUTO), 0);
    snprintf(want, sizeof want, "0 0 no (%s ", dpt_comm_version());
    says(out, want);
}

/* Both ways are timed, and the faster one is taken; who insists gets what they want. */
static void by_its_speed(void **state)
{
    const char *times = " (sums of 263145 floats come out right and take ";
    char out[4000], want[200];

    (void)state;
    snprintf(want, sizeof want, "0 0 no%s", times);
    assert_int_equal(run(out, sizeof out, 2, "slow", -1, DPT_CUDA_AWARE_AUTO), 0);
    says(out, want);
    says(out, " through pinned memory of the host)");
    snprintf(want, sizeof want, "0 1 yes%s", times);
    assert_int_equal(run(out, sizeof out, 3, "far", -1, DPT_CUDA_AWARE_AUTO), 0);
    says(out, want);
    assert_int_equal(run(out, sizeof out, 2, "slow", -1, DPT_CUDA_AWARE_ON), 0);
    says(out, "0 1 yes (sums of 1024 to 263145 floats on the GPU came out right)");
}

static void a_wrong_sum_on_one_rank_counts_for_all(void **state)
{
    char out[4000];

    (void)state;
    assert_int_equal(run(out, sizeof out, 3, "wrong", 1, DPT_CUDA_AWARE_ON), 78);
    says(out, " 0 comm.cuda_aware: on: this MPI (");
    says(out, "cannot sum GPU memory: a sum of 1024 floats came out wrong");
    says(out, "`off`");
    /* One of the job's own size is tried, too. */
    assert_int_equal(run(out, sizeof out, 2, "late", 0, DPT_CUDA_AWARE_ON), 78);
    says(out, "cannot sum GPU memory: a sum of 263145 floats came out wrong");
}

static void a_device_without_memory(void **state)
{
    char out[4000];

    (void)state;
    assert_int_equal(run(out, sizeof out, 2, "full", 0, DPT_CUDA_AWARE_ON), 71);
    says(out, "rank 0 (");
    says(out, "CUDA: cuMemAlloc: no memory");
}

/* One rank or all: the job ends with a line that says what to set, however the others wait. */
static void a_crash_is_explained(void **state)
{
    char out[8000];

    (void)state;
    for (int who = -1; who <= 1; who++) {
        assert_int_equal(run(out, sizeof out, 2, "remote", who, DPT_CUDA_AWARE_ON), 78);
        says(out, "comm.cuda_aware: on: this MPI (");
        says(out, "it crashed when that was tried; `auto` or `off` goes through the host");
        says(out, who == 0 ? "rank 0 (" : who == 1 ? "rank 1 (" : "rank ");
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sum_that_comes_out_right),
        cmocka_unit_test(nobody_is_asked),
        cmocka_unit_test(by_itself),
        cmocka_unit_test(by_its_speed),
        cmocka_unit_test(a_wrong_sum_on_one_rank_counts_for_all),
        cmocka_unit_test(a_device_without_memory),
        cmocka_unit_test(a_crash_is_explained),
    };

    if (argc == 4)
        return be_rank(argv[1], atoi(argv[2]), (enum dpt_cuda_aware)atoi(argv[3]));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
