/* dptrain doctor: runs the checks and tells what they found. */
#include "cmd/doctor/doctor.h"

#include <stdio.h>

#include "cmd/job_command.h"
#include "cmd/output.h"
#include "core/base/file.h"
#include "core/train/setup/choose.h"
#include "core/train/team.h"
#include "core/train/trainer.h"

/* --- the checks, one row each, in the order of the report ------------------------------------- */

#define RANK  DPT_DOCTOR_RANK, DPT_DOCTOR_TEXT
#define NODE  DPT_DOCTOR_NODE, DPT_DOCTOR_TEXT
#define LEAST DPT_DOCTOR_NODE, DPT_DOCTOR_LEAST
#define FIRST DPT_DOCTOR_FIRST, DPT_DOCTOR_TEXT
#define WORLD DPT_DOCTOR_WORLD, DPT_DOCTOR_TEXT
#define WARN  DPT_DOCTOR_WARNING
#define FAIL  DPT_DOCTOR_FAILED

// clang-format off
static const struct dpt_doctor_check checks[] = {
    {"Program", "dptrain", RANK, dpt_doctor_program, NULL, FAIL, "another program: install the same one everywhere, or share one path"},
    {"Program", "backend", RANK, dpt_doctor_backend, NULL, WARN, "other libraries or instructions: `reproducible` gives other bytes"},
    {"Program", "user", RANK, dpt_doctor_user, NULL, WARN, "start all ranks as one user"},

    {"MPI", "start", FIRST, dpt_doctor_start, NULL, FAIL, NULL},
    {"MPI", "library", RANK, dpt_doctor_library, NULL, FAIL, "another MPI: check PATH, LD_LIBRARY_PATH and the modules there"},
    {"MPI", "launcher", RANK, dpt_doctor_launcher, NULL, WARN, NULL},
    {"MPI", "threads", RANK, dpt_doctor_threads, NULL, WARN, NULL},
    {"MPI", "ranks", WORLD, NULL, dpt_doctor_ranks, WARN, NULL},
    {"MPI", "mesh", WORLD, NULL, dpt_doctor_mesh, WARN, NULL},
    {"MPI", "cores", WORLD, NULL, dpt_doctor_cores, WARN, NULL},
    {"MPI", "shared memory", WORLD, NULL, dpt_doctor_shared, WARN, NULL},
    {"MPI", "network", WORLD, NULL, dpt_doctor_links, WARN, NULL},
    {"MPI", "small sum", WORLD, NULL, dpt_doctor_latency, WARN, NULL},
    {"MPI", "large sum", WORLD, NULL, dpt_doctor_sum, WARN, NULL},
    {"MPI", "clocks", WORLD, NULL, dpt_doctor_clocks, WARN, NULL},

    {"Machine", "system", NODE, dpt_doctor_system, NULL, WARN, "another system: its math library may round differently"},
    {"Machine", "processor", NODE, dpt_doctor_processor, NULL, WARN, "another CPU: the others wait; `reproducible` may differ"},
    {"Machine", "speed", WORLD, NULL, dpt_doctor_speed, WARN, NULL},
    {"Machine", "frequency", NODE, dpt_doctor_governor, NULL, WARN, "set all nodes alike: each step waits for the slowest rank"},
    {"Machine", "NUMA", NODE, dpt_doctor_numa, NULL, WARN, "another layout: check how ranks are bound to cores"},
    {"Machine", "huge pages", NODE, dpt_doctor_pages, NULL, WARN, "set all nodes alike"},
    {"Machine", "load", LEAST, dpt_doctor_load, NULL, WARN, NULL},
    {"Machine", "memory", LEAST, dpt_doctor_memory, NULL, WARN, NULL},
    {"Machine", "/dev/shm", LEAST, dpt_doctor_dev_shm, NULL, WARN, NULL},
    {"Machine", "temporary files", NODE, dpt_doctor_temporary, NULL, WARN, "set TMPDIR alike on all nodes"},

    {"GPU", "driver", NODE, dpt_doctor_driver, NULL, WARN, "install the same driver on all nodes"},
    {"GPU", "libraries", NODE, dpt_doctor_libraries, NULL, WARN, "other versions: `reproducible` may give other bytes"},
    {"GPU", "library files", NODE, dpt_doctor_library_files, NULL, DPT_DOCTOR_OK, NULL},
    {"GPU", "devices", NODE, dpt_doctor_devices, NULL, WARN, "other devices there: each step waits for the slowest rank"},
    {"GPU", "peer memory", NODE, dpt_doctor_peers, NULL, WARN, "other links there: each step waits for the slowest rank"},
    {"GPU", "GPU's CPUs", RANK, dpt_doctor_near, NULL, WARN, NULL},
    {"GPU", "GPU ranks", WORLD, NULL, dpt_doctor_gpu_ranks, WARN, NULL},
    {"GPU", "CUDA-aware MPI", NODE, dpt_doctor_cuda_aware, NULL, WARN, NULL},
    {"GPU", "GPU sum", WORLD, NULL, dpt_doctor_gpu_sum, WARN, NULL},
    {"GPU", "NCCL sum", WORLD, NULL, dpt_doctor_nccl, WARN, NULL},

    {"Files", "HDF5", RANK, dpt_doctor_hdf5, NULL, WARN, "another HDF5: check LD_LIBRARY_PATH and the modules on that host"},
    {"Files", "output folder", FIRST, dpt_doctor_output, NULL, WARN, NULL},
    {"Files", "free space", FIRST, dpt_doctor_disk, NULL, WARN, NULL},
    {"Files", "run lock", WORLD, NULL, dpt_doctor_lock, WARN, NULL},

    {"Limits", "ulimit", RANK, dpt_doctor_limits, NULL, WARN, "another limit: see limits.conf, the profile and slurmd's service there"},

    {"Environment", "variable", RANK, dpt_doctor_variables, NULL, WARN,
     "set it on all ranks or on none (mpirun -x NAME; MPICH: mpiexec -genvall; srun --export=ALL)"},

    {"Slurm", "job", FIRST, dpt_doctor_slurm, NULL, WARN, NULL},
    {"Slurm", "cores", NODE, dpt_doctor_slurm_cores, NULL, WARN, NULL},
    {"Slurm", "time", FIRST, dpt_doctor_slurm_time, NULL, WARN, NULL},
    {"Slurm", "requeue", FIRST, dpt_doctor_slurm_requeue, NULL, WARN, NULL},
    {0},
};
// clang-format on

/* --- the command ------------------------------------------------------------------------------ */

/* Seconds that a check may take, and so the wait for a rank that is busy with one. */
enum { LIMIT = 20 };

static enum dpt_status read_options(struct dpt_doctor *d, struct dpt_error *err)
{
    const struct dpt_cli *cli = d->cli;
    long long limit;

    if (cli->n_positional > 0)
        return dpt_fail(err, DPT_USAGE, "dptrain doctor: takes no '%s'; usage: dptrain doctor %s",
                        cli->positional[0], cli->command->usage);
    d->output = dpt_cli_value(cli, "--output");
    if (d->output != NULL && d->output[0] == '\0')
        return dpt_fail(err, DPT_USAGE, "dptrain doctor: --output is empty: give a folder");
    if (d->output == NULL) /* where the folders of runs are made */
        d->output = dpt_file_exists("runs") ? "runs" : ".";
    if (dpt_cli_int(cli, "--limit", 1, 3600, LIMIT, &limit, err) != DPT_OK)
        return err->status;
    d->limit = (double)limit;
    return dpt_doctor_read_mesh(cli, err);
}

/* All ranks start together, or this process continues by itself. */
static enum dpt_status start(struct dpt_doctor *d, struct dpt_error *err)
{
    enum dpt_status status = dpt_comm_open(&d->comm, err);

    if (status != DPT_OK && d->comm.started)
        return status;
    d->alone = status != DPT_OK;
    if (d->alone) {
        d->cores = d->node_cores = 1;
        d->why = err->text;
        return DPT_OK;
    }
    d->cli->log.silent = d->comm.world.rank != 0;
    dpt_comm_limit(&d->comm, (struct dpt_comm_limits){d->limit, d->limit});
    dpt_comm_note(&d->comm, 0, "looking around");
    status = dpt_core_share(&d->comm.node, &d->cores, err);
    if (status == DPT_OK)
        status = dpt_group_sum_doubles(&d->comm.node, &d->cores, &d->node_cores, 1, err);
    return status;
}

static bool takes_part(const struct dpt_doctor *d, const struct dpt_doctor_check *check)
{
    const bool takes[] = {[DPT_DOCTOR_RANK] = true,
                          [DPT_DOCTOR_NODE] = d->comm.node.rank == 0,
                          [DPT_DOCTOR_FIRST] = d->comm.world.rank == 0,
                          [DPT_DOCTOR_WORLD] = !d->alone};

    return takes[check->scope];
}

/* First what each rank does for itself, then what needs all of them. */
static void run_checks(struct dpt_doctor *d, bool together, struct dpt_error *err)
{
    for (const struct dpt_doctor_check *check = d->checks; check->name != NULL; check++) {
        char note[64];

        if ((check->scope == DPT_DOCTOR_WORLD) != together || !takes_part(d, check))
            continue;
        d->check = check;
        snprintf(note, sizeof note, "checking %s (%s)", check->name, check->section);
        dpt_comm_note(&d->comm, -1, note);
        if (!together)
            check->run(d);
        else if (check->together(d, err) != DPT_OK)
            dpt_failed(d, NULL, "%s", err->text);
    }
}

static enum dpt_status report(struct dpt_doctor *d, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_doctor_report all = {0};
    struct dpt_json json = {.file = stdout};
    struct dpt_str out = {0};

    dpt_comm_note(&d->comm, -1, "bringing all findings together");
    DPT_TRY(dpt_doctor_collect(d, &all, err));
    if (d->comm.world.rank == 0 && !d->cli->log.silent) {
        if (dpt_cli_has(d->cli, "--json")) {
            dpt_doctor_json(d, &all, &json);
            status = dpt_json_finish(&json, "the report", err);
        } else {
            dpt_doctor_print(d, &all, d->cli->log.level == DPT_LOG_QUIET, &out);
            status = dpt_output_text(&out, "the report", err);
        }
    }
    DPT_TRY(dpt_group_agree(&d->comm.world, status, err));
    err->text[0] = '\0'; /* the report says it */
    status = all.count[DPT_DOCTOR_FAILED] > 0 ? DPT_FAILED : DPT_OK;
out:
    return status;
}

static enum dpt_status run(struct dpt_cli *cli, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_doctor d = {.cli = cli, .checks = checks};
    struct dpt_error other = {0};

    DPT_TRY(read_options(&d, err));
    DPT_TRY(dpt_launch_ranks(cli, NULL, NULL, err));
    dpt_gpu_query(&d.gpus);
    dpt_doctor_listen(&d);
    if (d.gpus.own_bus[0] != '\0') /* the driver works, and MPI is to find the device in use */
        dpt_choose_early(DPT_DEVICE_AUTO);
    DPT_TRY(start(&d, err));
    /* Several ranks have watchdogs that name who does not come. */
    if (d.comm.world.size == 1)
        DPT_TRY(dpt_comm_guard(&d.comm, d.limit, err));
    run_checks(&d, false, &other);
    run_checks(&d, true, &other);
    DPT_TRY(report(&d, err));
out:
    dpt_str_release(&d.findings);
    dpt_region_release(&d.region);
    dpt_job_command_end(cli, &d.comm, status, err);
    return status;
}

static const struct dpt_cli_option options[] = {
    {"--output", "DIR", "folder for runs; default: runs, or this folder"},
    {"--ranks", "N|auto",
     "start N ranks of this by its MPI's mpirun; auto: one rank per GPU, else per core"},
    {"--mesh", "DxS", "placement of D data ranks x S stages (parallel.pipeline) on the nodes"},
    {"--limit", "SECONDS", "time limit of a check (20)"},
    {"--json", NULL, "one JSON object"},
    {0},
};

const struct dpt_command dpt_cmd_doctor = {
    .name = "doctor",
    .usage = "[--output DIR] [--ranks N] [--json]",
    .summary = "check the set-up of this machine, or of all nodes of a job",
    .details = "Checks MPI and how fast the ranks hear from each other, CPUs, memory, GPUs and "
               "what hides or slows them, the folder that runs go to, limits, the environment and "
               "Slurm. Each line has `ok`, "
               "`warning` or `failed`, what was found, and below that what to do. With --quiet "
               "only warnings and failures are printed. The exit code is 0, or 1 if something "
               "failed.\n\n"
               "Under mpirun or srun, all ranks check. What all agree about is printed once; if "
               "one differs, its number and host are named. So start it the way the job will be "
               "started. It takes some seconds and keeps nothing: it removes what it writes "
               "into the folder. With --mesh 4x2 it prints which nodes the stages of such a "
               "mesh (`parallel`) would be on, and what would go between nodes.\n\n"
               "  mpirun -np 4 dptrain doctor --output runs",
    .options = options,
    .run = run,
};
