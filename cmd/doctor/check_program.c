/* Checks of what a rank is: the program, its user, its limits, its environment. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cmd/doctor/doctor.h"
#include "core/backend/backend.h"
#include "core/base/hash.h"
#include "core/base/str.h"

void dpt_doctor_program(struct dpt_doctor *d)
{
    static char bytes[1 << 16];
    FILE *file = fopen("/proc/self/exe", "re");
    uint32_t crc = 0;
    size_t n;

    while (file != NULL && (n = fread(bytes, 1, sizeof bytes, file)) > 0)
        crc = dpt_crc32(crc, bytes, n);
    if (file != NULL)
        fclose(file);
    dpt_ok(d, "%s, checksum %08x", DPT_VERSION, crc);
}

void dpt_doctor_backend(struct dpt_doctor *d)
{
    const struct dpt_backend *b = dpt_backends[0];

    dpt_ok(d, "%s: %s", b->name, b->describe());
}

static bool is_set(const char *name)
{
    const char *text = getenv(name);

    return text != NULL && text[0] != '\0';
}

bool dpt_doctor_open_mpi(void)
{
    return strncmp(dpt_comm_version(), "Open MPI", 8) == 0;
}

void dpt_doctor_user(struct dpt_doctor *d)
{
    const bool root = geteuid() == 0;
    const bool allowed =
        is_set("OMPI_ALLOW_RUN_AS_ROOT") && is_set("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM");

    if (root && !allowed && !dpt_launcher_present() && dpt_doctor_open_mpi())
        dpt_warning(d, "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                    "root, whom mpirun refuses (--ranks N does not)");
    else
        dpt_ok(d, "%s%ld%s", root ? "root (" : "number ", (long)geteuid(), root ? ")" : "");
}

/* --- limits ----------------------------------------------------------------------------------- */

enum unit { COUNT, BYTES, SECONDS };

// clang-format off
static const struct {
    const char *name;
    int resource;
    enum unit unit;
    double fails, warns; /* below these */
    const char *advice;
} limits[] = {
    {"open files", RLIMIT_NOFILE, COUNT, 64, 1024, "ulimit -n 4096: shards, ranks and MPI's connections are files"},
    {"processes", RLIMIT_NPROC, COUNT, 0, 256, "ulimit -u 4096: each rank has several threads"},
    {"stack", RLIMIT_STACK, BYTES, 256e3, 1e6, "ulimit -s 8192"},
    {"address space", RLIMIT_AS, BYTES, 1e9, INFINITY, "ulimit -v unlimited: it bounds addresses, which MPI takes plenty of"},
    {"locked memory", RLIMIT_MEMLOCK, BYTES, 0, 0, NULL},
    {"file size", RLIMIT_FSIZE, BYTES, 1e6, INFINITY, "ulimit -f unlimited: a checkpoint beyond it cannot be written"},
    {"processor time", RLIMIT_CPU, SECONDS, 60, INFINITY, "ulimit -t unlimited: a run that is over it is killed without saving"},
    {"core dumps", RLIMIT_CORE, BYTES, 0, 0, NULL},
};
// clang-format on

static void write_limit(char *text, size_t size, double value, enum unit unit)
{
    char number[32];

    if (isinf(value))
        snprintf(text, size, "unlimited");
    else if (unit == BYTES) /* in the units of `ulimit` */
        snprintf(text, size, "%s kB",
                 dpt_group_digits(number, (long long)fmin(value / 1024, 9e15)));
    else
        snprintf(text, size, "%s%s", dpt_group_digits(number, (long long)value),
                 unit == SECONDS ? " s" : "");
}

static void look_at_limit(struct dpt_doctor *d, size_t i)
{
    struct dpt_finding f = {.name = limits[i].name};
    char text[64];
    const char *advice = limits[i].advice;
    double warns = limits[i].warns;
    struct rlimit limit;
    double value;

    if (getrlimit(limits[i].resource, &limit) != 0)
        return;
    value = limit.rlim_cur == RLIM_INFINITY ? INFINITY : (double)limit.rlim_cur;
    /* InfiniBand and networks like it send from locked memory. */
    if (limits[i].resource == RLIMIT_MEMLOCK && access("/sys/class/infiniband", F_OK) == 0) {
        warns = INFINITY;
        advice = "ulimit -l unlimited: the fast network needs it (limits.conf, slurmd)";
    }
    f.level = dpt_doctor_below(value, limits[i].fails, warns);
    write_limit(text, sizeof text, value, limits[i].unit);
    dpt_doctor_add(d, f, f.level != DPT_DOCTOR_OK ? advice : NULL, "%s", text);
}

void dpt_doctor_limits(struct dpt_doctor *d)
{
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++)
        look_at_limit(d, i);
}

/* --- environment ------------------------------------------------------------------------------ */

/* Whether MPI's list of the ways to send leaves out shared memory. */
static bool without_memory(const char *list)
{
    const bool named = strstr(list, "vader") != NULL || strstr(list, "sm") != NULL;

    return list[0] == '^' ? named : !named;
}

static bool is_on(const char *value)
{
    return strcmp(value, "0") != 0;
}

static bool is_socket(const char *value)
{
    return strcasecmp(value, "Socket") == 0;
}

/* Variables that do harm: with the values that `value` accepts, or with any (NULL). */
static const struct {
    const char *name;
    bool (*value)(const char *value);
    const char *advice;
} hurts[] = {
    {"LD_PRELOAD", NULL, "is in every process: unset it unless it is intended"},
    {"OMPI_MCA_btl", without_memory,
     "a node's ranks talk through the network: unset it, or add self,vader"},
    {"OMPI_MCA_coll", NULL, "may leave out the fast sums: unset it"},
    {"HDF5_DISABLE_VERSION_CHECK", NULL, "lets a wrong HDF5 through: unset it, load the right one"},
    {"MALLOC_PERTURB_", NULL, "makes memory slow: unset it"},
    {"MALLOC_CHECK_", NULL, "makes memory slow: unset it"},
    {"GOMP_CPU_AFFINITY", NULL, "puts all ranks' threads on the same cores: unset it"},
    {"KMP_AFFINITY", NULL, "puts all ranks' threads on the same cores: unset it"},
    {"OMP_PROC_BIND", NULL, "puts all ranks' threads on the same cores: unset it"},
    {"DNNL_MAX_CPU_ISA", NULL,
     "keeps oneDNN from the CPU's best instructions: unset it, or set device.isa"},
    {"ONEDNN_MAX_CPU_ISA", NULL,
     "keeps oneDNN from the CPU's best instructions: unset it, or set device.isa"},
    {"DNNL_VERBOSE", NULL, "has oneDNN write a line per layer: unset it"},
    {"ONEDNN_VERBOSE", NULL, "has oneDNN write a line per layer: unset it"},
    {"CUDA_LAUNCH_BLOCKING", NULL, "makes a GPU wait for each kernel: unset it"},
    {"NCCL_P2P_DISABLE", is_on, "keeps GPUs of a node from each other's memory: unset it"},
    {"NCCL_SHM_DISABLE", is_on, "a node's ranks talk through the network: unset it"},
    {"NCCL_IB_DISABLE", is_on, "keeps NCCL from InfiniBand and RoCE: unset it if there are any"},
    {"NCCL_NET", is_socket, "NCCL sends through TCP between nodes: unset it"},
    {"NCCL_SOCKET_IFNAME", NULL, "NCCL uses these interfaces alone: each node must have them"},
};

/* These are told, too, but no warning: they may well be meant. */
static const char *const meant[] = {"NCCL_SOCKET_IFNAME"};

/* The row of a variable that hurts with this value, or NULL. Other MPIs do not heed Open MPI's. */
static const char *harm(const char *name, const char *value)
{
    if (strncmp(name, "OMPI_", 5) == 0 && !dpt_doctor_open_mpi())
        return NULL;
    for (size_t i = 0; i < sizeof hurts / sizeof hurts[0] && value != NULL; i++)
        if (strcmp(hurts[i].name, name) == 0 && value[0] != '\0' &&
            (hurts[i].value == NULL || hurts[i].value(value)))
            return hurts[i].advice;
    return NULL;
}

/* Beginnings of the names of variables that change what a rank does: told where ranks differ. */
static const char *const watched[] = {
    "OMPI_MCA_", "MPIR_CVAR_", "I_MPI_", "LD_",     "OMP_",           "GOMP_",
    "KMP_",      "HDF5_",      "DNNL_",  "ONEDNN_", "CUDA_",          "NVIDIA_",
    "NCCL_",     "UCX_",       "FI_",    "MALLOC_", "GLIBC_TUNABLES", "DPTRAIN_",
};

/* Beginnings of names by which a launcher tells each rank or node something else: these differ
 * always. */
static const char *const own[] = {
    "OMPI_MCA_ess_",
    "OMPI_MCA_orte_",
    "OMPI_MCA_plm",
    "OMPI_MCA_routed",
    "OMPI_MCA_pmix",
    "OMPI_MCA_shmem_RUNTIME",
    "OMPI_MCA_initial_wdir",
    "PMIX_MCA_",
    "CUDA_VISIBLE_DEVICES",
    "OMPI_MCA_mpi_oversubscribe",
    "MPIR_CVAR_CH3_INTERFACE_HOSTNAME",
};

/* Writes a value; a long one is cut, with a checksum that tells it from others. */
static void write_value(char *text, size_t size, const char *value)
{
    enum { MOST = 120 };

    if (strlen(value) <= MOST)
        snprintf(text, size, "%s", value[0] != '\0' ? value : "(empty)");
    else
        snprintf(text, size, "%.*s... (checksum %08x)", MOST, value,
                 dpt_crc32(0, value, strlen(value)));
}

static void look_at_variable(struct dpt_doctor *d, const char *name, const char *value)
{
    const char *advice = harm(name, value);
    const bool warns =
        advice != NULL && !dpt_begins_with(name, meant, sizeof meant / sizeof meant[0]);
    const struct dpt_finding f = {
        .name = name, .quiet = advice == NULL, .level = warns ? DPT_DOCTOR_WARNING : DPT_DOCTOR_OK};
    char text[DPT_DOCTOR_LINE];

    write_value(text, sizeof text, value);
    dpt_doctor_add(d, f, advice, "%s", text);
}

void dpt_doctor_variables(struct dpt_doctor *d)
{
    struct dpt_finding none = {0};

    for (char **at = environ; *at != NULL; at++) {
        char name[2 * DPT_DOCTOR_NAME];
        const size_t n = strcspn(*at, "=");

        if ((*at)[n] == '\0' || n >= sizeof name)
            continue;
        memcpy(name, *at, n);
        name[n] = '\0';
        if (d->nccl_log > 0 && strncmp(name, "NCCL_DEBUG", strlen("NCCL_DEBUG")) == 0)
            continue; /* set by this program */
        if (!dpt_begins_with(name, own, sizeof own / sizeof own[0]) &&
            (dpt_begins_with(name, watched, sizeof watched / sizeof watched[0]) ||
             harm(name, *at + n + 1) != NULL))
            look_at_variable(d, name, *at + n + 1);
        none.quiet |= harm(name, *at + n + 1) != NULL;
    }
    dpt_doctor_add(d, none, NULL, "none that hurts%s",
                   is_set("OMP_NUM_THREADS") ? " (OMP_NUM_THREADS is not heeded)" : "");
}
