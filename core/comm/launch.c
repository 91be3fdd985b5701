#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/process.h"
#include "core/comm/internal.h"

static bool is_set(const char *name)
{
    const char *text = getenv(name);

    return text != NULL && text[0] != '\0';
}

int dpt_launcher_number(const char *name, int otherwise)
{
    const char *text = getenv(name);
    char *end;
    long value;

    if (text == NULL || text[0] == '\0')
        return otherwise;
    value = strtol(text, &end, 10);
    return *end == '\0' && value >= 0 && value < 1 << 30 ? (int)value : otherwise;
}

/*
 * How many tasks srun started; 0 outside of a step: a batch script has SLURM_PROCID too, without
 * being a task of srun. The tasks of the step are asked for first, since a shell on the first node
 * of an allocation sees the tasks of the whole allocation in SLURM_NTASKS.
 */
static int slurm_tasks(void)
{
    if (!is_set("SLURM_PROCID") || !is_set("SLURM_STEP_ID"))
        return 0;
    return dpt_launcher_number("SLURM_STEP_NUM_TASKS", dpt_launcher_number("SLURM_NTASKS", 1));
}

static const char *const rank_names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};

enum { RANK_NAMES = sizeof rank_names / sizeof rank_names[0] };

/* The only task of srun --mpi=pmi2 talks to no other, so it works without Open MPI's PMI-2
 * support. */
static bool is_only_task(const char *name)
{
    return name == rank_names[RANK_NAMES - 1] && slurm_tasks() == 1 &&
           dpt_launcher_number("PMI_SIZE", 0) == 1;
}

/* The name of the variable that holds this rank; NULL if no launcher sets one that MPI reads. */
static const char *rank_name(void)
{
    for (int i = 0; i < RANK_NAMES; i++)
        if (is_set(rank_names[i]) && !is_only_task(rank_names[i]))
            return rank_names[i];
    return NULL;
}

int dpt_launcher_rank_variable(const char *text, const char **value)
{
    for (int i = 0; i < RANK_NAMES; i++) {
        const size_t n = strlen(rank_names[i]);

        if (strncmp(text, rank_names[i], n) == 0 && text[n] == '=') {
            *value = text + n + 1;
            return i;
        }
    }
    return -1;
}

bool dpt_launcher_present(void)
{
    return rank_name() != NULL || slurm_tasks() > 1;
}

int dpt_launcher_rank(void)
{
    const char *name = rank_name();

    if (name != NULL)
        return dpt_launcher_number(name, 0);
    return slurm_tasks() > 1 ? dpt_launcher_number("SLURM_PROCID", 0) : 0;
}

/* A launcher's own variables come before Slurm's, which a batch script passes to all that it
 * starts. */
static const char *const local_names[] = {
    "OMPI_COMM_WORLD_LOCAL_RANK", /* Open MPI, PRRTE */
    "MPI_LOCALRANKID",            /* Hydra: MPICH, Intel MPI */
    "MV2_COMM_WORLD_LOCAL_RANK",  /* MVAPICH */
    "PMI_LOCAL_RANK",             /* Cray PMI */
    "PALS_LOCAL_RANKID",          /* Cray PALS */
    "FLUX_TASK_LOCAL_ID",         /* Flux */
};

int dpt_launcher_local_rank(void)
{
    if (!dpt_launcher_present())
        return 0;
    for (size_t i = 0; i < sizeof local_names / sizeof local_names[0]; i++)
        if (dpt_launcher_number(local_names[i], -1) >= 0)
            return dpt_launcher_number(local_names[i], -1);
    /* SLURM_LOCALID may belong to a task that started this rank; it counts if the rank is that
     * task. */
    if (slurm_tasks() > 0 && dpt_launcher_number("SLURM_PROCID", -1) == dpt_launcher_rank())
        return dpt_launcher_number("SLURM_LOCALID", -1);
    return -1;
}

/* Open MPI would fail in MPI_Init, with a page of advice from each task. Other MPIs may ask Slurm
 * directly; if they do not, each task becomes a world of its own, which is found after MPI_Init. */
#if defined(OMPI_MAJOR_VERSION)
static const bool needs_a_rank = true;
static const char srun_plugin[] = "pmix"; /* what it mostly finds its ranks by */
#else
static const bool needs_a_rank = false;
static const char srun_plugin[] = "pmi2";
#endif

/* How many ranks the launcher says that there are, and what it is called; 0: it does not say. */
static int launched_ranks(const char **launcher)
{
    const char *name = rank_name();

    *launcher = "Open MPI's mpirun";
    if (name == rank_names[0])
        return dpt_launcher_number("OMPI_COMM_WORLD_SIZE", 0);
    *launcher = "Hydra (MPICH)";
    if (name != NULL && is_set("MPI_LOCALRANKID"))
        return dpt_launcher_number("PMI_SIZE", 0);
    *launcher = "srun";
    if (slurm_tasks() > 1)
        return slurm_tasks();
    *launcher = "the launcher";
    return name != NULL ? dpt_launcher_number("PMI_SIZE", 0) : 0;
}

enum dpt_status dpt_launcher_check(int ranks, struct dpt_error *err)
{
    char srun[32] = "";
    const char *launcher;
    const int launched = launched_ranks(&launcher);

    if (ranks > 1 || launched <= 1 || (ranks == 0 && (rank_name() != NULL || !needs_a_rank)))
        return DPT_OK;
    if (strcmp(launcher, "srun") == 0)
        snprintf(srun, sizeof srun, "srun --mpi=%s, ", srun_plugin);
    if (rank_name() != NULL)
        return dpt_fail(err, DPT_USAGE,
                        "%s started %d ranks, but this dptrain is linked with %s, which knows of "
                        "1: use %sthat MPI's %s, or --ranks %d without a launcher",
                        launcher, launched, dpt_comm_version(), srun, dpt_mpirun_name(), launched);
    return dpt_fail(err, DPT_USAGE,
                    "srun started %d tasks and did not tell MPI that they belong together: add "
                    "--mpi=%s to srun (srun --mpi=list prints the choices), or use %s",
                    slurm_tasks(), srun_plugin, dpt_mpirun_name());
}

void dpt_launcher_prepare_lone(void)
{
    /* In a step of Slurm (srun -n 1, srun --pty bash) Open MPI would insist on Slurm's PMI. */
    unsetenv("SLURM_STEP_ID");
    /* Open MPI would start a daemon and probe the network for this one process: 0.3 s instead of
     * 0.02 s. */
    setenv("OMPI_MCA_ess_singleton_isolated", "1", 0);
    setenv("OMPI_MCA_pml", "ob1", 0);
    setenv("OMPI_MCA_btl", "self,vader", 0);
    /* Open MPI 5 does not start without one. */
    setenv("HOME", "/", 0);
    /* Processes that start and end at the same time would remove each other's session folders. */
    setenv("OMPI_MCA_orte_create_session_dirs", "0", 0);
    /* hwloc looks for X displays at every start: seconds where no name server answers. It also
     * reads all PCI devices: 10 ms of the 60 that MPI takes to start in a virtual machine. */
    setenv("HWLOC_COMPONENTS", "-gl,-opencl,-pci,-linuxio", 0);
}

/* Whether the launcher says that all ranks are on this node. */
static bool on_one_node(void)
{
    const int ranks = dpt_launcher_number("OMPI_COMM_WORLD_SIZE", -1);

    if (ranks > 0)
        return dpt_launcher_number("OMPI_COMM_WORLD_LOCAL_SIZE", -1) == ranks;
    return slurm_tasks() > 1 && dpt_launcher_number("SLURM_STEP_NUM_NODES", -1) == 1;
}

void dpt_launcher_prepare(void)
{
    if (!dpt_launcher_present())
        dpt_launcher_prepare_lone();
    /* Open MPI 5 complains of addresses that do not reach each other, IPv6 ones mostly, even where
     * all ranks share their memory and no message takes that way. */
    if (on_one_node())
        setenv("OMPI_MCA_btl_tcp_disable_family", "6", 0);
}

void dpt_host_name(char host[DPT_HOST_TEXT])
{
    char name[256];

    if (gethostname(name, sizeof name) != 0)
        strcpy(name, "unknown");
    name[sizeof name - 1] = '\0';
    name[strcspn(name, ".")] = '\0';
    name[DPT_HOST_TEXT - 1] = '\0';
    strcpy(host, name);
}

/* How the names of processes begin that start ranks. */
static const struct {
    const char *process, *text;
} launchers[] = {
    {"mpirun", "mpirun"},   {"orterun", "mpirun"},        {"mpiexec", "mpiexec"},
    {"orted", "mpirun"},    {"prterun", "mpirun"},        {"prted", "mpirun"},
    {"slurmstepd", "srun"}, {"hydra_pmi_proxy", "Hydra"},
};

const char *dpt_launcher_name(void)
{
    struct dpt_process process;
    int pid = getppid();

    for (int depth = 0; depth < 16 && pid > 1 && dpt_process_read(pid, &process); depth++) {
        for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++)
            if (strncmp(process.name, launchers[i].process, strlen(launchers[i].process)) == 0)
                return launchers[i].text;
        pid = process.parent;
    }
    return NULL;
}
