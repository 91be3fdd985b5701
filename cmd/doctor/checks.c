/* The checks, one row each, in the order of the report. */
#include "cmd/doctor/doctor.h"

#define RANK  DPT_DOCTOR_RANK, DPT_DOCTOR_TEXT
#define NODE  DPT_DOCTOR_NODE, DPT_DOCTOR_TEXT
#define LEAST DPT_DOCTOR_NODE, DPT_DOCTOR_LEAST
#define FIRST DPT_DOCTOR_FIRST, DPT_DOCTOR_TEXT
#define WORLD DPT_DOCTOR_WORLD, DPT_DOCTOR_TEXT
#define WARN  DPT_DOCTOR_WARNING
#define FAIL  DPT_DOCTOR_FAILED

// clang-format off
const struct dpt_doctor_check dpt_doctor_checks[] = {
    {"Program", "dptrain", RANK, dpt_doctor_program, NULL, FAIL, "another program: install the same one everywhere, or share one path"},
    {"Program", "backend", RANK, dpt_doctor_backend, NULL, WARN, "other libraries or instructions: `reproducible` gives other bytes"},
    {"Program", "user", RANK, dpt_doctor_user, NULL, WARN, "start all ranks as one user"},

    {"MPI", "start", FIRST, dpt_doctor_start, NULL, FAIL, NULL},
    {"MPI", "library", RANK, dpt_doctor_library, NULL, FAIL, "another MPI: check PATH, LD_LIBRARY_PATH and the modules there"},
    {"MPI", "launcher", RANK, dpt_doctor_launcher, NULL, WARN, NULL},
    {"MPI", "threads", RANK, dpt_doctor_threads, NULL, WARN, NULL},
    {"MPI", "ranks", WORLD, NULL, dpt_doctor_ranks, WARN, NULL},
    {"MPI", "cores", WORLD, NULL, dpt_doctor_cores, WARN, NULL},
    {"MPI", "shared memory", WORLD, NULL, dpt_doctor_shared, WARN, NULL},
    {"MPI", "network", WORLD, NULL, dpt_doctor_links, WARN, NULL},
    {"MPI", "small sum", WORLD, NULL, dpt_doctor_latency, WARN, NULL},
    {"MPI", "large sum", WORLD, NULL, dpt_doctor_sum, WARN, NULL},
    {"MPI", "clocks", WORLD, NULL, dpt_doctor_clocks, WARN, NULL},

    {"Machine", "system", NODE, dpt_doctor_system, NULL, WARN, "another system: its math library may round differently"},
    {"Machine", "processor", NODE, dpt_doctor_processor, NULL, WARN, "another processor: the others wait; `reproducible` may differ"},
    {"Machine", "speed", WORLD, NULL, dpt_doctor_speed, WARN, NULL},
    {"Machine", "frequency", NODE, dpt_doctor_governor, NULL, WARN, "set all nodes alike: each step waits for the slowest rank"},
    {"Machine", "NUMA", NODE, dpt_doctor_numa, NULL, WARN, "another layout: check the binding (mpirun --report-bindings)"},
    {"Machine", "huge pages", NODE, dpt_doctor_pages, NULL, WARN, "set all nodes alike"},
    {"Machine", "load", LEAST, dpt_doctor_load, NULL, WARN, NULL},
    {"Machine", "memory", LEAST, dpt_doctor_memory, NULL, WARN, NULL},
    {"Machine", "/dev/shm", LEAST, dpt_doctor_dev_shm, NULL, WARN, NULL},
    {"Machine", "temporary files", NODE, dpt_doctor_temporary, NULL, WARN, "set TMPDIR alike on all nodes"},

    {"GPU", "driver", NODE, dpt_doctor_driver, NULL, WARN, "install the same driver on all nodes"},
    {"GPU", "libraries", NODE, dpt_doctor_libraries, NULL, WARN, "other versions: `reproducible` may give other bytes"},
    {"GPU", "library files", NODE, dpt_doctor_library_files, NULL, DPT_DOCTOR_OK, NULL},
    {"GPU", "devices", NODE, dpt_doctor_devices, NULL, WARN, "other devices there: each step waits for the slowest rank"},
    {"GPU", "GPU ranks", WORLD, NULL, dpt_doctor_gpu_ranks, WARN, NULL},
    {"GPU", "CUDA-aware MPI", NODE, dpt_doctor_cuda_aware, NULL, WARN, NULL},
    {"GPU", "GPU sum", WORLD, NULL, dpt_doctor_gpu_sum, WARN, NULL},

    {"Files", "HDF5", RANK, dpt_doctor_hdf5, NULL, WARN, "another HDF5: check LD_LIBRARY_PATH and the modules on that host"},
    {"Files", "output folder", FIRST, dpt_doctor_output, NULL, WARN, NULL},
    {"Files", "free space", FIRST, dpt_doctor_disk, NULL, WARN, NULL},
    {"Files", "run lock", WORLD, NULL, dpt_doctor_lock, WARN, NULL},

    {"Limits", "ulimit", RANK, dpt_doctor_limits, NULL, WARN, "another limit: see limits.conf, the profile and slurmd's service there"},

    {"Environment", "variable", RANK, dpt_doctor_variables, NULL, WARN,
     "set it on all ranks or on none (mpirun -x NAME, srun --export=ALL)"},

    {"Slurm", "job", FIRST, dpt_doctor_slurm, NULL, WARN, NULL},
    {"Slurm", "cores", NODE, dpt_doctor_slurm_cores, NULL, WARN, NULL},
    {"Slurm", "time", FIRST, dpt_doctor_slurm_time, NULL, WARN, NULL},
    {"Slurm", "requeue", FIRST, dpt_doctor_slurm_requeue, NULL, WARN, NULL},
    {0},
};
// clang-format on
