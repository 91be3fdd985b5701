/* Checks of a node: its system, CPU, memory, and what else it is busy with. */
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "cmd/doctor/doctor.h"
#include "core/base/file.h"
#include "core/base/folder.h"
#include "core/base/isa.h"
#include "core/base/memory.h"

/* Bytes that a rank needs for a small model, and in /dev/shm for MPI's messages. */
static const double least_memory = 128e6, little_memory = 512e6, shm_rank = 16e6;
static const double least_temporary = 20e6;

/* --- what it is ------------------------------------------------------------------------------- */

void dpt_doctor_system(struct dpt_doctor *d)
{
    struct utsname name;
    char system[80] = "Linux";

    dpt_file_value("/etc/os-release", "PRETTY_NAME", system, sizeof system);
    if (uname(&name) != 0)
        strcpy(name.release, "unknown");
    dpt_ok(d, "%s, %.40s", system, name.release);
}

void dpt_doctor_processor(struct dpt_doctor *d)
{
    char model[80] = "", maker[16] = "?", part[16];

    dpt_file_value("/proc/cpuinfo", "model name", model, sizeof model);
    dpt_file_value("/proc/cpuinfo", "CPU implementer", maker, sizeof maker);
    if (model[0] == '\0' && dpt_file_value("/proc/cpuinfo", "CPU part", part, sizeof part))
        snprintf(model, sizeof model, "arm64 processor %s of implementer %s", part, maker);
    else if (model[0] == '\0')
        snprintf(model, sizeof model, "unknown model");
#if DPT_X86
    if (dpt_isa_machine() >= DPT_ISA_AVX512)
        dpt_ok(d, "%s, AVX-512", model);
    else if (dpt_isa_machine() >= DPT_ISA_AVX2)
        dpt_ok(d, "%s, AVX2", model);
    else
        dpt_warning(d, "several times slower than a CPU with AVX2", "%s, neither AVX2 nor AVX-512",
                    model);
#elif DPT_ARM64
    dpt_ok(d, "%s, NEON", model);
#else
    dpt_ok(d, "%s", model);
#endif
}

void dpt_doctor_governor(struct dpt_doctor *d)
{
    static const char folder[] = "/sys/devices/system/cpu";
    char path[128], governor[40], driver[40] = "";
    double boost, no_turbo;
    bool saves;

    snprintf(path, sizeof path, "%s/cpu0/cpufreq/scaling_governor", folder);
    if (!dpt_file_line(path, governor, sizeof governor)) {
        dpt_ok(d, "the host's own affair (no cpufreq here)");
        return;
    }
    snprintf(path, sizeof path, "%s/cpu0/cpufreq/scaling_driver", folder);
    dpt_file_line(path, driver, sizeof driver);
    snprintf(path, sizeof path, "%s/cpufreq/boost", folder);
    boost = dpt_file_number(path, 1);
    snprintf(path, sizeof path, "%s/intel_pstate/no_turbo", folder);
    no_turbo = dpt_file_number(path, 0);
    /* In these drivers' own modes `powersave` is the usual one, and runs as fast as needed. */
    saves = strcmp(governor, "conservative") == 0 ||
            (strcmp(governor, "powersave") == 0 && strcmp(driver, "intel_pstate") != 0 &&
             strcmp(driver, "amd-pstate-epp") != 0);
    dpt_judge(d, saves ? DPT_DOCTOR_WARNING : DPT_DOCTOR_OK,
              "cpupower frequency-set -g performance", "%s (%s)%s", governor, driver,
              boost == 0 || no_turbo == 1 ? ", turbo off" : "");
}

void dpt_doctor_numa(struct dpt_doctor *d)
{
    glob_t nodes = {0};
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    size_t n = 1;

    if (glob("/sys/devices/system/node/node[0-9]*", 0, NULL, &nodes) == 0)
        n = nodes.gl_pathc;
    globfree(&nodes);
    dpt_ok(d, "%zu memory node%s, %ld core%s", n, n == 1 ? "" : "s", cores, cores == 1 ? "" : "s");
}

void dpt_doctor_pages(struct dpt_doctor *d)
{
    char line[128] = "", *begin;

    dpt_file_line("/sys/kernel/mm/transparent_hugepage/enabled", line, sizeof line);
    begin = strchr(line, '['); /* "always [madvise] never" */
    if (begin == NULL) {
        dpt_ok(d, "not known here");
        return;
    }
    begin[strcspn(begin, "]")] = '\0';
    dpt_ok(d, "transparent: %s", begin + 1);
}

/* --- what is free ----------------------------------------------------------------------------- */

void dpt_doctor_load(struct dpt_doctor *d)
{
    const double cores = (double)sysconf(_SC_NPROCESSORS_ONLN);
    struct dpt_finding f;
    double load;

    if (getloadavg(&load, 1) != 1)
        return;
    f = (struct dpt_finding){.value = -load / cores,
                             .level = load > 0.5 * cores ? DPT_DOCTOR_WARNING : DPT_DOCTOR_OK};
    dpt_doctor_add(
        d, f,
        f.level != DPT_DOCTOR_OK ? "others compute there: steps take longer, on all ranks" : NULL,
        "%.1f on %.0f core%s in the last minute", load, cores, cores > 1 ? "s" : "");
}

void dpt_doctor_memory(struct dpt_doctor *d)
{
    const double all = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    const double ranks = d->comm.node.size;
    struct dpt_finding f = {.value = dpt_memory_available()};
    char has[32], had[32], each[32];

    if (f.value < 0)
        return;
    f.level = dpt_doctor_below(f.value, least_memory * ranks, little_memory * ranks);
    dpt_show_bytes(f.value / ranks, each);
    dpt_doctor_add(d, f,
                   f.level != DPT_DOCTOR_OK
                       ? "ask for more (sbatch --mem); `dptrain plan` prints what a job needs"
                       : NULL,
                   "%s of %s free%s%s%s", dpt_show_bytes(f.value, has), dpt_show_bytes(all, had),
                   ranks > 1 ? ", " : "", ranks > 1 ? each : "", ranks > 1 ? " a rank" : "");
}

void dpt_doctor_dev_shm(struct dpt_doctor *d)
{
    const bool wanted = d->comm.node.size > 1;
    const double wants = wanted ? shm_rank * d->comm.node.size : 0;
    struct dpt_finding f = {0};
    struct statvfs fs;
    char has[32], had[32], text[32], advice[DPT_DOCTOR_LINE];

    if (statvfs("/dev/shm", &fs) != 0 || access("/dev/shm", W_OK) != 0) {
        dpt_judge(d, wanted ? DPT_DOCTOR_WARNING : DPT_DOCTOR_OK,
                  "MPI sends through it: mount a tmpfs there that all may write to",
                  "cannot be used");
        return;
    }
    f.value = (double)fs.f_bavail * (double)fs.f_frsize;
    f.level = f.value < wants ? DPT_DOCTOR_WARNING : DPT_DOCTOR_OK;
    snprintf(advice, sizeof advice,
             "MPI may need %s there for so many ranks (docker run --shm-size=1g)",
             dpt_show_bytes(wants, text));
    dpt_doctor_add(d, f, f.level != DPT_DOCTOR_OK ? advice : NULL, "%s of %s free",
                   dpt_show_bytes(f.value, has),
                   dpt_show_bytes((double)fs.f_blocks * (double)fs.f_frsize, had));
}

void dpt_doctor_temporary(struct dpt_doctor *d)
{
    static const char *const names[] = {"OMPI_MCA_orte_tmpdir_base", "TMPDIR", "TEMP", "TMP"};
    const char *path = NULL;
    const struct dpt_filesystem *fs;
    struct statvfs space = {0};
    char has[32];

    for (size_t i = 0; i < sizeof names / sizeof names[0] && path == NULL; i++)
        path = getenv(names[i]);
    path = path != NULL && path[0] != '\0' ? path : "/tmp";
    fs = dpt_filesystem(path);
    if (access(path, W_OK | X_OK) != 0)
        dpt_failed(d, "MPI keeps its session there: set TMPDIR to a folder",
                   "%s cannot be written to", path);
    else if (fs->kind == DPT_FILESYSTEM_REMOTE)
        dpt_warning(d, "MPI's start and its session are slow there: export TMPDIR=/tmp",
                    "%s, on %s", path, fs->name);
    else if (statvfs(path, &space) == 0 &&
             (double)space.f_bavail * (double)space.f_frsize < least_temporary)
        dpt_warning(d, "MPI needs some space there: clear it, or set TMPDIR", "%s has %s free",
                    path, dpt_show_bytes((double)space.f_bavail * (double)space.f_frsize, has));
    else
        dpt_ok(d, "%s, on %s", path, fs->name);
}
