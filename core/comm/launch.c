#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/comm/internal.h"

static bool is_set(const char *name)
{
    const char *text = getenv(name);

    return text != NULL && text[0] != '\0';
}

/* The number in an environment variable, or `otherwise` where there is none. */
static int number_of(const char *name, int otherwise)
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
 * A batch script has SLURM_PROCID too, without being a task of srun: only a step with several tasks
 * counts. The tasks of the step are asked for first, since a shell on the first node of an
 * allocation sees the tasks of the whole allocation in SLURM_NTASKS.
 */
static bool is_slurm_task(void)
{
    return is_set("SLURM_PROCID") && is_set("SLURM_STEP_ID") &&
           number_of("SLURM_STEP_NUM_TASKS", number_of("SLURM_NTASKS", 1)) > 1;
}

static const char *const rank_names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};

enum { RANK_NAMES = sizeof rank_names / sizeof rank_names[0] };

bool dpt_launcher_present(void)
{
    for (int i = 0; i < RANK_NAMES; i++)
        if (is_set(rank_names[i]))
            return true;
    return is_slurm_task();
}

int dpt_launcher_rank(void)
{
    for (int i = 0; i < RANK_NAMES; i++)
        if (is_set(rank_names[i]))
            return number_of(rank_names[i], 0);
    return is_slurm_task() ? number_of("SLURM_PROCID", 0) : 0;
}

void dpt_launcher_prepare_lone(void)
{
    /* Open MPI would start a daemon and probe the network for this one process: 0.3 s instead of
     * 0.02 s. */
    setenv("OMPI_MCA_ess_singleton_isolated", "1", 0);
    setenv("OMPI_MCA_pml", "ob1", 0);
    setenv("OMPI_MCA_btl", "self,vader", 0);
    /* Processes that start and end side by side would remove one another's session folders. */
    setenv("OMPI_MCA_orte_create_session_dirs", "0", 0);
    /* hwloc looks for X displays at every start: seconds where no name server answers. */
    setenv("HWLOC_COMPONENTS", "-gl,-opencl", 0);
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
