/*
 * Starts ranks of this program under mpirun, and passes on what they write.
 *
 * mpirun ends a whole job when the reader of its output goes away, and does not heed a full disk.
 * With a relay the first loses nothing but the output, and the second is reported. A terminal needs
 * no relay and gets none, so that the ranks can see it. Where both streams are one file, the child
 * gets one pipe for both, so that what it wrote keeps its order.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cmd/job_command.h"
#include "cmd/output.h"
#include "core/train/choose.h"

/* --- the relay -------------------------------------------------------------------------------- */

struct relay {
    int from[2]; /* our ends, of standard output and error; -1: there is none */
    int to[2];   /* the child's */
};

/* How often a child is looked for that may have left its pipes to others. */
enum { LOOK_MILLISECONDS = 250, PIECE = 1 << 16 };

static bool same_file(int a, int b)
{
    struct stat x, y;

    return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static enum dpt_status open_pipe(struct relay *relay, int i, struct dpt_error *err)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) != 0)
        return dpt_fail_errno(err, DPT_RANK, "mpirun could not be started");
    relay->from[i] = ends[0];
    relay->to[i] = ends[1];
    fcntl(ends[0], F_SETFL,
          O_NONBLOCK); /* what others of its users leave in it is not waited for */
    return DPT_OK;
}

/* Before the fork. Errors: RANK. Close it in any case. */
static enum dpt_status open_relay(struct relay *relay, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    *relay = (struct relay){.from = {-1, -1}, .to = {-1, -1}};
    if (!isatty(STDOUT_FILENO))
        DPT_TRY(open_pipe(relay, 0, err));
    if (!isatty(STDERR_FILENO) && !same_file(STDOUT_FILENO, STDERR_FILENO))
        DPT_TRY(open_pipe(relay, 1, err));
out:
    return status;
}

static void close_end(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void close_relay(struct relay *relay)
{
    for (int i = 0; i < 2; i++) {
        close_end(&relay->from[i]);
        close_end(&relay->to[i]);
    }
}

/* In the child: its standard output and error are the pipes from here on. */
static void enter_relay(const struct relay *relay)
{
    const bool both = same_file(STDOUT_FILENO, STDERR_FILENO);

    if (relay->to[0] >= 0)
        dup2(relay->to[0], STDOUT_FILENO);
    if (relay->to[1] >= 0 || (both && relay->to[0] >= 0))
        dup2(relay->to[1] >= 0 ? relay->to[1] : relay->to[0], STDERR_FILENO);
}

/* Passes on what one pipe holds now. *lost: errno of the first write that failed; what comes behind
 * it is dropped. */
static void relay_bytes(int *from, int to, int *lost)
{
    char bytes[PIECE];
    const ssize_t n = read(*from, bytes, sizeof bytes);

    if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN))
        close_end(from);
    else if (n > 0 && *lost == 0 && !dpt_output_write(to, bytes, (size_t)n))
        *lost = errno;
}

/* In the parent: until both pipes are at their ends, or nothing has come since the child ended,
 * with waitpid's *state. Errors: RANK (no such child); IO (standard output took not all of it;
 * *state is valid). */
static enum dpt_status run_relay(struct relay *relay, pid_t child, int *state,
                                 struct dpt_error *err)
{
    static const int to[2] = {STDOUT_FILENO, STDERR_FILENO};
    int lost[2] = {0, 0};
    bool ended = false;

    close_end(&relay->to[0]);
    close_end(&relay->to[1]);
    while (relay->from[0] >= 0 || relay->from[1] >= 0) {
        struct pollfd on[2] = {{.fd = relay->from[0], .events = POLLIN},
                               {.fd = relay->from[1], .events = POLLIN}};
        const int ready = poll(on, 2, ended ? 0 : LOOK_MILLISECONDS);

        for (int i = 0; ready > 0 && i < 2; i++)
            if (on[i].revents != 0)
                relay_bytes(&relay->from[i], to[i], &lost[i]);
        if (ready == 0 && ended)
            break;
        if (ready == 0)
            ended = waitpid(child, state, WNOHANG) == child;
    }
    while (!ended && waitpid(child, state, 0) < 0)
        if (errno != EINTR)
            return dpt_fail_errno(err, DPT_RANK, "mpirun was lost");
    errno = lost[0];
    if (errno != 0 && errno != EPIPE)
        return dpt_fail_errno(err, DPT_IO, "standard output: cannot write");
    return DPT_OK;
}

/* --- mpirun ----------------------------------------------------------------------------------- */

static volatile pid_t mpirun;
static volatile sig_atomic_t asked;
static volatile int signal_file = -1; /* the first byte is the signal that came */

/* What Open MPI needs on this machine; other MPIs do not look at these names. What the user has set
 * stays. */
static void set_environment(const struct dpt_cli *cli, long long ranks)
{
    cpu_set_t cores;
    char columns[16], file[64];

    /* Where the ranks read which signal came (dpt_stop_name). */
    snprintf(file, sizeof file, "/proc/%d/fd/%d", (int)getppid(), signal_file);
    setenv("DPTRAIN_LAUNCHED", signal_file >= 0 ? file : "1", 1);
    setenv("DPTRAIN_TTY", cli->log.terminal ? "1" : "0", 0);
    snprintf(columns, sizeof columns, "%d", cli->log.columns);
    setenv("COLUMNS", columns, 1);
    setenv("OMPI_MCA_orte_execute_quiet", "1", 0);
    /* Threads of a rank and its loader need more than the one core that mpirun would bind it to. */
    setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 0);
    if (geteuid() == 0) {
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    }
    if (sched_getaffinity(0, sizeof cores, &cores) != 0 || ranks > CPU_COUNT(&cores)) {
        setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 0);
        setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    }
    /* hwloc looks for X displays at every start, which takes seconds where no name server answers,
     * and reads all PCI devices in every process, which takes milliseconds in virtual machines. */
    setenv("HWLOC_COMPONENTS", "-gl,-opencl,-pci,-linuxio", 0);
    /* Containers often forbid the system call behind it, and Open MPI says so thousands of times.
     */
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
}

/*
 * mpirun itself answers INT and TERM by killing the ranks within two seconds, but passes USR1 on to
 * them, and that is a request to save and stop. Asked twice it shall end at once.
 */
static void pass_on(int number)
{
    const int before = errno;
    const char byte = (char)number;

    if (asked == 0 && pwrite(signal_file, &byte, 1, 0) < 0)
        errno = before; /* then the ranks call it SIGUSR1 */
    kill(mpirun, asked++ == 0 ? SIGUSR1 : SIGTERM);
}

/* The signals stay blocked until there is a child to pass them on to. */
static void catch_signals(sigset_t *before)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP};
    struct sigaction action = {.sa_handler = pass_on}, old;
    sigset_t block;

    sigemptyset(&block);
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        sigaddset(&block, numbers[i]);
    sigprocmask(SIG_BLOCK, &block, before);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
}

/* mpirun -np N this-binary arguments…; --ranks among them is not heeded again
 * (DPTRAIN_LAUNCHED). Out of the terminal's foreground group, so that Ctrl-C comes to us alone,
 * and without its input, unless the command reads that. */
static void become_mpirun(const struct dpt_cli *cli, size_t n, char *self, char *number,
                          const struct relay *relay)
{
    char *words[n + 4];
    const int null = open("/dev/null", O_RDONLY);

    memcpy(words, (char *[]){"mpirun", "-np", number, self}, 4 * sizeof *words);
    memcpy(words + 4, cli->argv + 1, n * sizeof *words); /* and the NULL behind them */
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (null >= 0 && !cli->reads_input)
        dup2(null, STDIN_FILENO);
    enter_relay(relay);
    execvp(words[0], words);
    fprintf(stderr, "dptrain: mpirun: %s; it comes with the MPI (Debian: openmpi-bin)\n",
            strerror(errno));
    _exit(dpt_exit_code(DPT_RANK));
}

/* Starts `ranks` ranks of this very command line under mpirun and gives its exit code in *code.
 * Errors: USAGE (no mpirun), RANK. */
static enum dpt_status launch(const struct dpt_cli *cli, long long ranks, int *code,
                              struct dpt_error *err)
{
    char self[4096], number[24];
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    enum dpt_status status = DPT_OK;
    struct relay relay = {.from = {-1, -1}, .to = {-1, -1}};
    sigset_t before;
    int state = 0;
    size_t n = 0;
    pid_t child;

    if (length <= 0)
        return dpt_fail_errno(err, DPT_RANK, "/proc/self/exe");
    self[length] = '\0';
    snprintf(number, sizeof number, "%lld", ranks);
    while (cli->argv[n] != NULL)
        n++;
    DPT_TRY(open_relay(&relay, err));
    signal_file = memfd_create("dptrain", MFD_CLOEXEC);
    catch_signals(&before);
    child = mpirun = fork();
    if (child == 0) {
        set_environment(cli, ranks); /* here no driver has threads, which counting GPUs may start */
        sigprocmask(SIG_SETMASK, &before, NULL);
        become_mpirun(cli, n, self, number, &relay);
    }
    if (child < 0)
        DPT_TRY(dpt_fail_errno(err, DPT_RANK, "mpirun could not be started"));
    sigprocmask(SIG_SETMASK, &before, NULL);
    status = run_relay(&relay, child, &state, err);
    *code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
    /* mpirun gives the signal of a rank that died by one. */
    if (*code > 128 && asked < 2)
        *code = dpt_exit_code(DPT_RANK);
    if (status == DPT_IO && *code != 0) /* what made it fail comes first */
        status = DPT_OK;
out:
    close_relay(&relay);
    return status;
}

enum dpt_status dpt_launch_ranks(struct dpt_cli *cli, enum dpt_device_kind kind,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *text = dpt_cli_value(cli, "--ranks");
    long long ranks = 0;
    cpu_set_t cores;
    int code;

    if (text == NULL || dpt_launcher_present()) {
        if (text != NULL && getenv("DPTRAIN_LAUNCHED") == NULL)
            return dpt_fail(
                err, DPT_USAGE,
                "dptrain %s: --ranks starts mpirun itself, but this runs under one already: "
                "leave one of the two out",
                cli->command->name);
        return DPT_OK;
    }
    if (strcmp(text, "auto") == 0)
        ranks = dpt_choose_count(kind);
    else
        DPT_TRY(dpt_cli_int(cli, "--ranks", 1, 65536, 1, &ranks, err));
    if (ranks == 0)
        ranks = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
    DPT_TRY(launch(cli, ranks, &code, err));
    dpt_log_close(&cli->log);
    exit(code);
out:
    return status;
}
