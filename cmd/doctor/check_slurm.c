/* Checks of what Slurm gave to the job, against what the ranks use of it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/doctor/doctor.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/train/run/stop.h"

/* Seconds of the job below which a warning is due. */
static const double little_time = 300;

static const char *job(void)
{
    const char *text = getenv("SLURM_JOB_ID");

    return text != NULL && text[0] != '\0' ? text : NULL;
}

void dpt_doctor_slurm(struct dpt_doctor *d)
{
    const long nodes =
        dpt_launcher_number("SLURM_JOB_NUM_NODES", dpt_launcher_number("SLURM_NNODES", 1));
    const long tasks =
        dpt_launcher_number("SLURM_STEP_NUM_TASKS", dpt_launcher_number("SLURM_NTASKS", 0));
    const int ranks = d->comm.world.size;

    if (job() == NULL)
        dpt_ok(d, "not in one");
    else if (d->alone)
        dpt_ok(d, "%s", job());
    else if (tasks > 0 && tasks != ranks)
        dpt_warning(d,
                    dpt_doctor_open_mpi()
                        ? "srun --mpi=pmix, or mpirun without -np, starts a rank for each"
                        : "srun --mpi=pmi2, or mpiexec without -np, starts a rank for each",
                    "%s: %ld task%s, but %d rank%s", job(), tasks, tasks == 1 ? "" : "s", ranks,
                    ranks == 1 ? "" : "s");
    else if (nodes > d->comm.nodes)
        dpt_warning(d, "sbatch --ntasks-per-node deals the ranks to them",
                    "%s: %ld nodes, but the ranks are on %d", job(), nodes, d->comm.nodes);
    else
        dpt_ok(d, "%s: %d rank%s on %ld node%s", job(), ranks, ranks == 1 ? "" : "s", nodes,
               nodes == 1 ? "" : "s");
}

void dpt_doctor_slurm_cores(struct dpt_doctor *d)
{
    const long given = dpt_launcher_number("SLURM_CPUS_ON_NODE", 0);
    const double used = d->node_cores;

    if (job() == NULL || given == 0 || d->alone)
        return;
    if (used < (double)given - 0.5)
        dpt_warning(d, "srun --cpus-per-task=N (sbatch's is lost), mpirun --bind-to none",
                    "%ld given, the ranks may use %.0f of them", given, used);
    else
        dpt_ok(d, "%ld given, the ranks may use %.0f", given, used);
}

void dpt_doctor_slurm_time(struct dpt_doctor *d)
{
    double left;

    if (job() == NULL)
        return;
    left = dpt_stop_deadline(0) - dpt_now();
    if (isinf(left))
        dpt_ok(d, "no end is known");
    else
        dpt_judge(d, dpt_doctor_below(left, -INFINITY, little_time),
                  "a run would save and stop soon: sbatch --time",
                  "%d:%02d:%02d left; a run saves and stops before", (int)(left / 3600),
                  (int)(left / 60) % 60, (int)left % 60);
}

/* The number after "Requeue=" and the like in what Slurm says about the job; -1: none. */
static long field(const char *text, const char *name)
{
    const char *at = strstr(text, name);

    return at != NULL ? strtol(at + strlen(name), NULL, 10) : -1;
}

void dpt_doctor_slurm_requeue(struct dpt_doctor *d)
{
    char command[160], text[4096];
    const char *id = job();
    long restarts;

    if (id == NULL || strspn(id, "0123456789") != strlen(id) || strlen(id) > 20)
        return;
    snprintf(command, sizeof command, "timeout 5 scontrol show job -o %s 2>/dev/null", id);
    dpt_command_line(command, text, sizeof text);
    restarts = dpt_launcher_number("SLURM_RESTART_COUNT", -1);
    if (restarts < 0)
        restarts = field(text, " Restarts=");
    if (field(text, " Requeue=") == 1 && restarts > 0)
        dpt_ok(d, "yes; started again %ld time%s so far", restarts, restarts == 1 ? "" : "s");
    else if (field(text, " Requeue=") == 1)
        dpt_ok(d, "yes");
    else if (field(text, " Requeue=") == 0)
        dpt_doctor_say(d, DPT_DOCTOR_OK,
                       "with sbatch --requeue a preempted job is started again, and resumes", "no");
    else
        dpt_ok(d, "not known: scontrol does not report it");
}
