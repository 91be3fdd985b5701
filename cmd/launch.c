/* Starts ranks of this program under mpirun, passes on signals and what they write, and ends an
 * mpirun that does not end with its ranks. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cmd/job_command.h"
#include "cmd/relay.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/process.h"
#include "core/comm/launched.h"
#include "core/train/run/stop.h"
#include "core/train/setup/choose.h"

/* --- mpirun ----------------------------------------------------------------------------------- */

static const int numbers[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP};
enum { NUMBERS = sizeof numbers / sizeof numbers[0] };

static volatile pid_t mpirun;
static volatile sig_atomic_t asked_by, ended_by; /* the first signal, and the one that ends all */
static _Atomic double asked_at;
static volatile bool passes_requests;

/* What ends mpirun and its ranks: INT and TERM are blocked there. */
static const int END = SIGHUP;

/* What Open MPI needs on this machine, version 5 by names that begin with PRTE; other MPIs do not
 * look at these. What the user has set stays. */
static void set_environment(const struct dpt_cli *cli, int ranks)
{
    char columns[16];

    dpt_launched_export(getppid());
    setenv("DPTRAIN_TTY", cli->log.terminal ? "1" : "0", 0);
    snprintf(columns, sizeof columns, "%d", cli->log.columns);
    setenv("COLUMNS", columns, 1);
    setenv("OMPI_MCA_orte_execute_quiet", "1", 0);
    /* Threads of a rank and its loader need more than the one core that mpirun would bind it to. */
    setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 0);
    setenv("PRTE_MCA_hwloc_default_binding_policy", "none", 0);
    if (geteuid() == 0) {
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    }
    if (ranks > dpt_process_cores()) {
        setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 0);
        setenv("PRTE_MCA_rmaps_default_mapping_policy", "slot:oversubscribe", 0);
        setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    }
    /* hwloc looks for X displays at every start, which takes seconds where no name server answers,
     * and reads all PCI devices in every process, which takes milliseconds in virtual machines. */
    setenv("HWLOC_COMPONENTS", "-gl,-opencl,-pci,-linuxio", 0);
    /* An mpirun that is ended while it starts ranks makes epoll fail, and libevent says so. Open
     * MPI 5 can do with nothing else. */
    if (strncmp(dpt_comm_version(), "Open MPI 4", 10) == 0)
        setenv("EVENT_NOEPOLL", "1", 0);
    /* Containers often forbid the system call behind it, and Open MPI says so thousands of times.
     */
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
}

/*
 * A request to save and stop goes to the ranks by their page; look_after sends it to mpirun, too,
 * once nobody dies of it. A second request ends mpirun, and a third one kills it; if the command
 * knows no requests, the first one ends it. A repeated signal of one request is not a second one.
 */
static void pass_on(int number)
{
    const int before = errno;

    if (asked_by != 0 && dpt_stop_repeats(asked_at))
        return;
    asked_at = dpt_now();
    if (asked_by == 0 && passes_requests) {
        dpt_launched_request(number);
    } else {
        kill(mpirun, ended_by == 0 ? END : SIGKILL);
        ended_by = number;
    }
    if (asked_by == 0)
        asked_by = number;
    errno = before;
}

/* The signals stay blocked until there is a child to pass them on to. */
static void catch_signals(sigset_t *before)
{
    struct sigaction action = {.sa_handler = pass_on}, old;
    sigset_t block;

    sigemptyset(&block);
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < NUMBERS; i++)
        sigaddset(&block, numbers[i]);
    sigprocmask(SIG_BLOCK, &block, before);
    for (int i = 0; i < NUMBERS; i++)
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
}

/*
 * Runs in the child, which leaves the terminal's foreground group, so that Ctrl-C comes to the
 * parent alone: one that came to both before is the parent's, too. mpirun itself answers INT and
 * TERM by killing the ranks within two seconds, whether or not they have saved. Whoever signals all
 * processes of a job sends them to mpirun as well, so they are blocked there.
 */
static void leave_signals(const sigset_t *before)
{
    sigset_t mask = *before;
    struct sigaction old;

    setpgid(0, 0);
    sigaddset(&mask, SIGINT);
    sigaddset(&mask, SIGTERM);
    for (int i = 0; i < NUMBERS; i++)
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler == pass_on) {
            signal(numbers[i], SIG_IGN); /* drops what waits */
            signal(numbers[i], SIG_DFL);
        }
    sigprocmask(SIG_SETMASK, &mask, NULL);
}

/* mpirun -np N this-binary arguments…; --ranks among them is not heeded again (DPTRAIN_LAUNCHED).
 * Without the terminal's input, unless the command reads that. */
static void become_mpirun(const struct dpt_cli *cli, size_t n, char *program, char *self,
                          char *number, const struct dpt_relay *relay)
{
    char *words[n + 4];
    const int null = open("/dev/null", O_RDONLY);

    memcpy(words, (char *[]){program, "-np", number, self}, 4 * sizeof *words);
    memcpy(words + 4, cli->argv + 1, n * sizeof *words); /* and the NULL after them */
    prctl(PR_SET_PDEATHSIG, END);
    if (null >= 0 && !cli->reads_input)
        dup2(null, STDIN_FILENO);
    dpt_relay_enter(relay);
    execvp(words[0], words);
    fprintf(stderr, "dptrain: %s: %s\n", program, strerror(errno));
    _exit(dpt_exit_code(DPT_RANK));
}

/* --- watching it ------------------------------------------------------------------------------ */

/* Seconds from one look at mpirun to the next, and those that it may take to start its ranks. */
static const double LOOK = 0.25, START_LIMIT = 300;
/* While ranks come they are looked for more often, in the first seconds: one may die soon. */
static const double START_LOOK = 0.01, START_LOOKS = 10;
/* Bounds of those that it may take to end after them: it gives ranks that it ends a second or two
 * itself, and no network and no disk is waited for. */
static const double LEAST_LIMIT = 5, MOST_LIMIT = 60;

struct watched {
    double limit;  /* seconds from the ranks' end to that of mpirun */
    double looked; /* when */
    double alone;  /* seconds that mpirun has been without ranks */
    bool seen;     /* there were ranks */
    bool handed;   /* the request, to mpirun */
    bool killed;
};

/* Whether mpirun could continue: it is not stopped, and no terminal keeps its output back. */
static bool could_end(void)
{
    struct dpt_process process;

    return dpt_process_read(mpirun, &process) && process.state != 'T' && process.state != 't' &&
           !dpt_relay_blocked();
}

/* A signal that came to mpirun alone, where it is blocked; 0: none. */
static int sent_to_mpirun(void)
{
    char path[64], mask[32];

    snprintf(path, sizeof path, "/proc/%d/status", (int)mpirun);
    if (dpt_file_value(path, "ShdPnd", mask, sizeof mask))
        for (int i = 0; i < NUMBERS; i++)
            if ((strtoull(mask, NULL, 16) >> (numbers[i] - 1) & 1) != 0)
                return numbers[i];
    return 0;
}

/*
 * Ends an mpirun that stays when its ranks are gone. Open MPI 4.1's sometimes does where a rank
 * dies early, and then ignores TERM. Ranks on other nodes are not seen from here, but while one
 * of them lives mpirun talks to its node.
 */
static void look_after(struct watched *w)
{
    const double now = dpt_now(), passed = fmin(now - w->looked, 2 * LOOK);
    struct dpt_launched_tree tree;

    if (now - w->looked < LOOK)
        return;
    w->looked = now;
    dpt_launched_look(mpirun, &tree);
    w->seen |= tree.ranks || dpt_launched_come();
    if (asked_by == 0 && sent_to_mpirun() != 0)
        pass_on(sent_to_mpirun());
    /* A rank that is not yet that far would die of USR1; without the page nobody knows. */
    if (asked_by != 0 && passes_requests && !w->handed &&
        (dpt_launched_ready() || (tree.connected && !tree.ranks)))
        w->handed = kill(mpirun, SIGUSR1) == 0;
    if (tree.ranks || tree.connected || (!w->seen && tree.others) || !could_end())
        w->alone = 0;
    else
        w->alone += passed;
    if (w->killed || w->alone < (w->seen ? w->limit : START_LIMIT))
        return;
    kill(-mpirun, SIGKILL); /* with what else is in its group */
    kill(mpirun, SIGKILL);
    w->killed = true;
}

/* Waits until it has ended, with waitpid's *state, and all that it wrote is passed on. Errors: RANK
 * (no such child); IO (standard output took not all of it; *state is valid). */
static enum dpt_status await_mpirun(struct dpt_relay *relay, struct watched *w, int *state,
                                    struct dpt_error *err)
{
    const pid_t child = mpirun;
    const int ended = (int)syscall(SYS_pidfd_open, child, 0); /* -1: the next look finds out */
    const double begun = dpt_now();
    pid_t found;

    dpt_relay_begin(relay);
    w->looked = begun;
    do {
        const bool come = dpt_launched_ready() || dpt_now() - begun > START_LOOKS;

        dpt_launched_follow();
        dpt_relay_wait(relay, ended, (int)((come ? LOOK : START_LOOK) * 1e3));
        found = waitpid(child, state, WNOHANG);
        if (found == 0)
            look_after(w);
    } while (found == 0 || (found < 0 && errno == EINTR));
    if (ended >= 0)
        close(ended);
    if (found < 0)
        return dpt_fail_errno(err, DPT_RANK, "mpirun was lost");
    while (dpt_relay_wait(relay, -1, 0)) {
    }
    return dpt_relay_end(relay, err);
}

/* The code to end with, from waitpid's state. lost: a rank left without a word. */
static int exit_code(const struct watched *w, int state, bool lost)
{
    const int code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
    const int noted = dpt_launched_code();

    if (noted == dpt_exit_code(DPT_STOPPED)) /* all is saved, whatever mpirun ended of after that */
        return noted;
    if (ended_by != 0)
        return 128 + ended_by;
    if (w->killed)
        return noted >= 0 ? noted : dpt_exit_code(DPT_RANK);
    if (noted > 0)
        return noted;
    /* mpirun gives the signal of a rank that died by one. */
    return lost || code > 128 ? dpt_exit_code(DPT_RANK) : code;
}

/* Reports how it ended, where the ranks could not, and gives the code to end with. */
static int conclude(struct dpt_log *log, const struct watched *w, int state)
{
    char line[512];
    const bool lost = dpt_launched_lost(line, sizeof line);
    const int code = exit_code(w, state, lost);
    struct dpt_error err;

    if (w->killed)
        dpt_log_warn(log,
                     "mpirun had not ended %g s after its last rank, and was killed; the exit code "
                     "%d is %s",
                     w->seen ? w->limit : START_LIMIT, code,
                     dpt_launched_code() >= 0 ? "the ranks'" : "that of ranks that died");
    else if (lost && ended_by == 0) {
        dpt_fail(&err, DPT_RANK, "%s", line);
        dpt_log_error(log, &err);
    }
    return code;
}

/* Starts `ranks` ranks of this very command line under mpirun and gives its exit code in *code.
 * limit: seconds from the ranks' end to that of mpirun. Errors: USAGE (no mpirun), RANK. */
static enum dpt_status launch(struct dpt_cli *cli, int ranks, double limit, int *code,
                              struct dpt_error *err)
{
    char program[PATH_MAX], self[4096], number[24];
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    enum dpt_status status = DPT_OK;
    struct dpt_relay relay = DPT_RELAY_CLOSED;
    struct watched watched = {.limit = limit};
    sigset_t before;
    int state = 0;
    size_t n = 0;

    if (length <= 0)
        return dpt_fail_errno(err, DPT_RANK, "/proc/self/exe");
    self[length] = '\0';
    snprintf(number, sizeof number, "%d", ranks);
    while (cli->argv[n] != NULL)
        n++;
    DPT_TRY(dpt_mpirun_find(program, err));
    DPT_TRY(dpt_relay_open(&relay, dpt_mpirun_talks(), err));
    dpt_launched_create(ranks);
    passes_requests = cli->command->stops;
    catch_signals(&before);
    mpirun = fork();
    if (mpirun == 0) {
        leave_signals(&before);
        set_environment(cli, ranks); /* here no driver has threads, which counting GPUs may start */
        become_mpirun(cli, n, program, self, number, &relay);
    }
    if (mpirun < 0)
        DPT_TRY(dpt_fail_errno(err, DPT_RANK, "mpirun could not be started"));
    if (dpt_stop_signal() != 0) /* it came before */
        pass_on(dpt_stop_signal());
    sigprocmask(SIG_SETMASK, &before, NULL);
    status = await_mpirun(&relay, &watched, &state, err);
    *code = conclude(&cli->log, &watched, state);
    if (status == DPT_IO && *code != 0) /* what made it fail comes first */
        status = DPT_OK;
out:
    dpt_relay_close(&relay);
    return status;
}

/* --- how many --------------------------------------------------------------------------------- */

/* What it means that ranks share cores; those on GPUs compute there, and mpirun may have further
 * nodes. */
static void warn_crowded(struct dpt_log *log, long long ranks, enum dpt_device_kind kind)
{
    const int cores = dpt_process_cores();

    if (ranks <= cores || dpt_launcher_number("SLURM_JOB_NUM_NODES", 1) > 1 ||
        getenv("OMPI_MCA_orte_default_hostfile") != NULL || dpt_choose_count(kind) > 0)
        return;
    dpt_log_warn(log,
                 "%lld ranks share %d core%s: no more than %d of them compute at a time, and each "
                 "takes memory; --ranks %d is faster",
                 ranks, cores, cores == 1 ? "" : "s", cores, cores);
}

enum dpt_status dpt_launch_ranks(struct dpt_cli *cli, const struct dpt_job *job,
                                 const struct dpt_conf *conf, struct dpt_error *err)
{
    const enum dpt_device_kind kind =
        job != NULL ? (enum dpt_device_kind)job->device.kind : DPT_DEVICE_AUTO;
    const double timeout = job != NULL ? job->comm.timeout.n : 0;
    enum dpt_status status = DPT_OK;
    const char *text = dpt_cli_value(cli, "--ranks");
    long long ranks = 0;
    int code;

    if (text == NULL || dpt_launcher_present()) {
        if (text != NULL && getenv(DPT_LAUNCHED_VARIABLE) == NULL)
            return dpt_fail(
                err, DPT_USAGE,
                "dptrain %s: --ranks starts mpirun itself, but this runs under one already: "
                "leave one of the two out",
                cli->command->name);
        return DPT_OK;
    }
    if (strcmp(text, "auto") == 0) {
        ranks = dpt_advice_ranks(job, conf, cli->command->trains, &cli->log);
        if (ranks == 1)
            return DPT_OK;
    } else {
        DPT_TRY(dpt_cli_int(cli, "--ranks", 1, 65536, 1, &ranks, err));
        if (job != NULL)
            warn_crowded(&cli->log, ranks, kind);
    }
    DPT_TRY(launch(cli, (int)ranks,
                   timeout > 0 ? fmin(fmax(timeout, LEAST_LIMIT), MOST_LIMIT) : MOST_LIMIT, &code,
                   err));
    dpt_log_close(&cli->log);
    exit(code);
out:
    return status;
}
