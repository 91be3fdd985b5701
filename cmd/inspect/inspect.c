/*
 * `dptrain inspect`: what is in a checkpoint or shard, on one process.
 *
 * HDF5 can crash on a damaged file, or never return from it. So each file is looked at in a child
 * process, which prints what it finds; its end, whatever it is, becomes our exit code.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cmd/cmd.h"
#include "cmd/inspect/print.h"
#include "cmd/output.h"
#include "core/base/str.h"
#include "core/train/use/audit.h"
#include "data/sets/paths.h"

enum {
    STUCK_SECONDS = 30, /* of a CPU's time on one piece, which takes milliseconds */
    MORE_MEMORY_GIB = 4,
};

/* One look at a file or two. In memory shared with the child. */
struct inspection {
    const char *path, *other; /* other: to compare with, or NULL */
    bool job, verbose;
    char reading[PATH_MAX + 600]; /* "FILE: NAME" */
    bool ended;                   /* the child came to its end, with this: */
    enum dpt_status status;
    struct dpt_error err;
};

static void watch(void *arg, const char *name)
{
    const struct itimerval most = {.it_value = {.tv_sec = STUCK_SECONDS}};
    char *reading = arg, *end = strchr(reading, '\n');

    snprintf(end + 1, 512, "%s", name);
    setitimer(ITIMER_PROF, &most, NULL);
}

/* Lists a file and reads all of it. */
static enum dpt_status read_file(struct inspection *inspection, const char *path,
                                 struct dpt_inspect *f, enum dpt_trailer *trailer,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char file[PATH_MAX];

    dpt_checkpoint_newest(path, file);
    snprintf(inspection->reading, sizeof inspection->reading, "%s\n", file);
    f->watch = watch;
    f->watch_arg = inspection->reading;
    DPT_TRY(dpt_checkpoint_trailer(file, trailer, err));
    status = dpt_inspect_open(f, file, err);
    if (status == DPT_BAD_DATA && *trailer == DPT_TRAILER_WRONG)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s is damaged in its metadata: the checksum of the whole does not match, "
                        "and HDF5 cannot open it",
                        file);
    DPT_TRY(status);
    for (size_t i = 0; i < f->n_sets && !ferror(stdout); i++)
        DPT_TRY(dpt_inspect_read(f, &f->sets[i], err));
out:
    return status;
}

static enum dpt_status print_job(struct dpt_inspect *f, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_inspect_set *set = dpt_inspect_find(f, "/job");
    const char *text = NULL;

    if (set != NULL)
        DPT_TRY(dpt_inspect_text(f, set, &text, err));
    if (text == NULL)
        return dpt_fail(err, DPT_BAD_DATA, "%s holds no job: it is no checkpoint", f->path);
    fputs(text, stdout);
out:
    return status;
}

static enum dpt_status inspect_file(struct inspection *inspection, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_inspect f = {0}, other = {0};
    enum dpt_trailer trailer, other_trailer;

    DPT_TRY(read_file(inspection, inspection->path, &f, &trailer, err));
    if (inspection->other != NULL) {
        DPT_TRY(dpt_inspect_validation_result(&f, trailer, err));
        DPT_TRY(read_file(inspection, inspection->other, &other, &other_trailer, err));
        DPT_TRY(dpt_inspect_validation_result(&other, other_trailer, err));
        DPT_TRY(dpt_inspect_diff(&f, &other, err));
        goto out;
    }
    status = inspection->job ? print_job(&f, err) : dpt_inspect_print(&f, trailer, err);
    if (status == DPT_OK || status == DPT_BAD_DATA) { /* damage comes before what it leads to */
        struct dpt_error result;

        if (dpt_inspect_validation_result(&f, trailer, &result) != DPT_OK) {
            *err = result;
            status = result.status;
        }
    }
out:
    dpt_inspect_close(&f);
    dpt_inspect_close(&other);
    return status;
}

/* A damaged size must not take all of the machine's memory: what we have now, and some GiB. */
static void limit_memory(void)
{
    const rlim_t more = (rlim_t)MORE_MEMORY_GIB << 30;
    FILE *file = fopen("/proc/self/statm", "re");
    unsigned long long pages;
    struct rlimit limit;

    /* The sixth number: what RLIMIT_DATA counts. */
    if (file != NULL && fscanf(file, "%*u %*u %*u %*u %*u %llu", &pages) == 1 &&
        getrlimit(RLIMIT_DATA, &limit) == 0) {
        const rlim_t wanted = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + more;

        if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur > wanted)
            limit.rlim_cur = wanted;
        setrlimit(RLIMIT_DATA, &limit);
    }
    if (file != NULL)
        fclose(file);
}

static void be_child(struct inspection *inspection)
{
    static const int fatal[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGPROF};
    const struct rlimit no_core = {0, 0};
    const int nowhere = inspection->verbose ? -1 : open("/dev/null", O_WRONLY | O_CLOEXEC);

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setrlimit(RLIMIT_CORE, &no_core);
    limit_memory();
    for (size_t i = 0; i < sizeof fatal / sizeof fatal[0]; i++)
        signal(fatal[i], SIG_DFL);
    if (nowhere >= 0) /* a crash is told by the parent, in our words */
        dup2(nowhere, STDERR_FILENO);
    inspection->status = inspect_file(inspection, &inspection->err);
    if (inspection->status == DPT_OK)
        inspection->status = dpt_output_flush(&inspection->err);
    else
        fflush(stdout);
    inspection->ended = true;
    _exit(0);
}

/* What a child that did not come to its end died of. */
static enum dpt_status tell_crash(struct inspection *inspection, int how, struct dpt_error *err)
{
    const int number = WIFSIGNALED(how) ? WTERMSIG(how) : 0;
    char *name = strchr(inspection->reading, '\n');

    if (name == NULL)
        return dpt_fail(err, DPT_RANK, "%s: looking at it was ended by signal %d", inspection->path,
                        number);
    *name++ = '\0';
    name = *name != '\0' ? name : "its bytes";
    if (number == SIGKILL || number == SIGTERM || number == SIGINT || number == SIGHUP)
        return dpt_fail(err, DPT_RANK, "%s: reading it was ended by signal %d, at %s%s",
                        inspection->reading, number, name,
                        number == SIGKILL ? "; memory may have run out" : "");
    if (number == SIGPROF)
        return dpt_fail(err, DPT_BAD_DATA, "%s is damaged: HDF5 found no end in %d s of reading %s",
                        inspection->reading, STUCK_SECONDS, name);
    return dpt_fail(err, DPT_BAD_DATA, "%s is damaged: it made HDF5 crash (signal %d) at %s",
                    inspection->reading, number, name);
}

static enum dpt_status in_child(const struct inspection *wanted, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct inspection *inspection =
        mmap(NULL, sizeof *inspection, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child;
    int how;

    if (inspection == MAP_FAILED)
        return dpt_fail_errno(err, DPT_RANK, "cannot share memory with a process");
    *inspection = *wanted;
    fflush(stdout);
    child = fork();
    if (child == 0)
        be_child(inspection);
    if (child < 0)
        DPT_TRY(dpt_fail_errno(err, DPT_RANK, "cannot start a process"));
    while (waitpid(child, &how, 0) < 0)
        if (errno != EINTR)
            DPT_TRY(dpt_fail_errno(err, DPT_RANK, "waiting for a process"));
    if (!inspection->ended)
        DPT_TRY(tell_crash(inspection, how, err));
    *err = inspection->err;
    status = inspection->status;
out:
    munmap(inspection, sizeof *inspection);
    return status;
}

static enum dpt_status audit(const struct dpt_cli *cli, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_str summary = {0};
    bool same = true;

    if (cli->n_positional != 2)
        return dpt_fail(err, DPT_USAGE, "dptrain inspect: --audit compares two run folders");
    DPT_TRY(dpt_audit_compare(cli->positional[0], cli->positional[1], &summary, &same, err));
    fputs(summary.text != NULL ? summary.text : "", stdout);
    if (!same) {
        err->text[0] = '\0'; /* all is said */
        status = DPT_FAILED;
    }
out:
    dpt_str_release(&summary);
    return status;
}

/* The files that a word stands for: a folder that is no run's for the shards in it. */
static enum dpt_status add_files(const char *word, char ***paths, size_t *n, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t before = *n;
    char latest[PATH_MAX], shards[PATH_MAX];
    struct stat info;

    dpt_checkpoint_newest(word, latest);
    if (strcmp(latest, word) == 0 || lstat(latest, &info) == 0)
        return dpt_paths_add(paths, n, (char *const[]){(char *)word}, 1, err);
    snprintf(shards, sizeof shards, "%s/*.h5", word);
    DPT_TRY(dpt_paths_match("dptrain inspect", shards, paths, n, err));
    if (*n == before)
        status = dpt_fail(err, DPT_BAD_DATA,
                          "%s has neither the checkpoints of a run (checkpoints/latest) nor shards "
                          "(*.h5)",
                          word);
out:
    return status;
}

static enum dpt_status run(struct dpt_cli *cli, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char **paths = NULL;
    size_t n = 0;
    struct inspection inspection = {.other = dpt_cli_value(cli, "--diff"),
                                    .job = dpt_cli_has(cli, "--job"),
                                    .verbose = cli->log.level == DPT_LOG_VERBOSE};

    if (dpt_cli_has(cli, "--audit"))
        return audit(cli, err);
    if (dpt_cli_value(cli, "--augmented") != NULL)
        return dpt_inspect_augmented(cli, dpt_cli_value(cli, "--augmented"), err);
    if (dpt_cli_value(cli, "--set") != NULL)
        return dpt_fail(err, DPT_USAGE, "dptrain inspect: --set goes with --augmented alone");
    if (cli->n_positional == 0)
        return dpt_fail(err, DPT_USAGE, "dptrain inspect: no checkpoint or shard given");
    if (inspection.other != NULL && (cli->n_positional > 1 || inspection.job))
        return dpt_fail(err, DPT_USAGE,
                        "dptrain inspect: --diff compares one file with one other%s",
                        inspection.job ? ", jobs included: leave --job out" : "");
    for (size_t i = 0; i < cli->n_positional; i++)
        DPT_TRY(add_files(cli->positional[i], &paths, &n, err));
    for (size_t i = 0; i < n; i++) {
        struct dpt_error this = {0};
        enum dpt_status found;

        inspection.path = paths[i];
        if (i > 0)
            putchar('\n');
        found = in_child(&inspection, &this);
        if (found == DPT_OK)
            continue;
        if (status != DPT_OK) /* the last one is printed by our caller */
            dpt_log_error(&cli->log, err);
        *err = this;
        status = status != DPT_OK ? status : found;
    }
out:
    dpt_paths_release(paths);
    return status;
}

static const struct dpt_cli_option options[] = {
    {"--diff", "OTHER", "print where FILE and OTHER differ; exit 1 if they do"},
    {"--audit", NULL, "find the first step and tensor that differ in two runs with log.hashes"},
    {"--job", NULL, "print only the job that the checkpoint was made by"},
    {"--augmented", "SHEET.png", "write training samples of a job file as stored, and augmented"},
    {"--set", "KEY=VALUE", "override a key of that job file (data.augment.rotate=30); repeatable"},
    {0},
};

const struct dpt_command dpt_cmd_inspect = {
    .name = "inspect",
    .usage = "FILE... [--job | --diff OTHER] | --audit RUN RUN | JOB.yaml --augmented SHEET.png",
    .summary = "show a checkpoint or a shard, and verify its checksums",
    .details = "Lists the data sets of each file with their shapes, types and the range of "
               "their values; for a checkpoint also the run's progress and what made it, for a "
               "shard the samples of each class. All checksums are verified; the exit code is "
               "65 if a file is damaged or cannot be read. A run folder stands for its newest "
               "checkpoint, another folder for the shards in it.\n\n"
               "With --diff the attributes, the jobs and every value are compared by their "
               "bits: the first difference, and for each data set how many values differ and by "
               "how much at most, absolutely and relative to the larger of the two.\n\n"
               "--augmented draws eight training samples of a job: each as stored, and as the "
               "first seven epochs see it, cropped, rotated, coloured and mixed as set in "
               "data.augment.\n\n"
               "  dptrain inspect runs/mnist-cnn\n"
               "  dptrain inspect data/mnist/train-*.h5\n"
               "  dptrain inspect runs/a --diff runs/b\n"
               "  dptrain inspect --audit runs/a runs/b\n"
               "  dptrain inspect job.yaml --augmented sheet.png --set data.augment.rotate=30",
    .options = options,
    .one_rank = true,
    .run = run,
};
