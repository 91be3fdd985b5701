#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cmd/job_command.h"
#include "cmd/launch/relay.h"

/* What Open MPI needs on this machine; other MPIs do not look at these names. What the user has set
 * stays. */
static void set_environment(const struct dpt_cli *cli, long long ranks)
{
    cpu_set_t cores;
    char columns[16];

    setenv("DPTRAIN_LAUNCHED", "1", 1);
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
    /* hwloc looks for X displays at every start, which takes seconds where no name server answers.
     */
    setenv("HWLOC_COMPONENTS", "-gl,-opencl", 0);
    /* Containers often forbid the system call behind it, and Open MPI says so thousands of times.
     */
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
}

/* mpirun -np N this-binary arguments…; --ranks among them is not heeded again (DPTRAIN_LAUNCHED).
 */
static char **command_line(const struct dpt_cli *cli, const char *self, char *number)
{
    size_t n = 0;
    char **words;

    while (cli->argv[n] != NULL)
        n++;
    words = calloc(n + 5, sizeof *words);
    if (words == NULL)
        return NULL;
    words[0] = "mpirun";
    words[1] = "-np";
    words[2] = number;
    words[3] = (char *)self;
    for (size_t i = 1; i < n; i++)
        words[3 + i] = cli->argv[i];
    return words;
}

static volatile pid_t mpirun;
static volatile sig_atomic_t asked;

/*
 * mpirun itself answers INT and TERM by killing the ranks within two seconds, but passes USR1 on to
 * them, and that is a request to save and stop. Asked twice it shall end at once.
 */
static void pass_on(int number)
{
    (void)number;
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

/* Out of the terminal's foreground group, so that Ctrl-C comes to us alone, and without its input.
 */
static void become_mpirun(char **words, const struct dpt_relay *relay)
{
    const int null = open("/dev/null", O_RDONLY);

    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (null >= 0)
        dup2(null, STDIN_FILENO);
    dpt_relay_enter(relay);
    execvp(words[0], words);
    fprintf(stderr, "dptrain: mpirun: %s; it comes with the MPI (Debian: openmpi-bin)\n",
            strerror(errno));
    _exit(dpt_exit_code(DPT_RANK));
}

enum dpt_status dpt_launch(const struct dpt_cli *cli, long long ranks, int *code,
                           struct dpt_error *err)
{
    char self[4096], number[24];
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    enum dpt_status status = DPT_OK;
    struct dpt_relay relay = {.from = {-1, -1}, .to = {-1, -1}};
    char **words = NULL;
    sigset_t before;
    int state = 0;
    pid_t child;

    if (length <= 0)
        return dpt_fail_errno(err, DPT_RANK, "/proc/self/exe");
    self[length] = '\0';
    snprintf(number, sizeof number, "%lld", ranks);
    words = command_line(cli, self, number);
    if (words == NULL)
        DPT_TRY(dpt_fail_memory(err, "the command line", 0));
    DPT_TRY(dpt_relay_open(&relay, err));
    catch_signals(&before);
    child = mpirun = fork();
    if (child == 0) {
        set_environment(cli, ranks); /* here no driver has threads, which counting GPUs may start */
        sigprocmask(SIG_SETMASK, &before, NULL);
        become_mpirun(words, &relay);
    }
    if (child < 0)
        DPT_TRY(dpt_fail_errno(err, DPT_RANK, "mpirun could not be started"));
    sigprocmask(SIG_SETMASK, &before, NULL);
    status = dpt_relay_run(&relay, child, &state, err);
    *code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
    /* mpirun gives the signal of a rank that died by one. */
    if (*code > 128 && asked < 2)
        *code = dpt_exit_code(DPT_RANK);
    if (status == DPT_IO && *code != 0) /* what made it fail comes first */
        status = DPT_OK;
out:
    dpt_relay_close(&relay);
    free(words);
    return status;
}
