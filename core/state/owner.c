#include "core/state/lock.h"

#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/process.h"

const double dpt_owner_patience = 60;

/* A word of the line: no spaces, never empty. */
static void put_word(char word[DPT_OWNER_WORD], const char *text)
{
    size_t n = 0;

    for (; text != NULL && *text != '\0' && *text != '\n' && n + 1 < DPT_OWNER_WORD; text++)
        word[n++] = isgraph((unsigned char)*text) ? *text : '_';
    word[n] = '\0';
    if (n == 0)
        strcpy(word, "-");
}

/* Whether /proc shows the process numbers that we use: a container may see its host's. */
static bool proc_is_ours(void)
{
    char link[32] = "";
    const ssize_t n = readlink("/proc/self", link, sizeof link - 1);

    return n > 0 && strtol(link, NULL, 10) == (long)getpid();
}

void dpt_owner_self(struct dpt_owner *owner, const char *host)
{
    const char *job = getenv("SLURM_JOB_ID"), *cluster = getenv("SLURM_CLUSTER_NAME");
    const char *restart = getenv("SLURM_RESTART_COUNT");
    const time_t now = time(NULL);
    char text[DPT_OWNER_WORD * 2];
    struct dpt_process process;
    struct stat space;
    struct tm local;

    memset(owner, 0, sizeof *owner);
    owner->pid = (long)getpid();
    put_word(owner->host, host);
    dpt_file_line("/proc/sys/kernel/random/boot_id", text, sizeof text);
    put_word(owner->boot, text);
    snprintf(text, sizeof text, "%s/%s", cluster != NULL ? cluster : "", job != NULL ? job : "");
    put_word(owner->job, job != NULL && job[0] != '\0' ? text : "-");
    owner->restart = restart != NULL ? atoll(restart) : 0;
    if (localtime_r(&now, &local) == NULL ||
        strftime(owner->since, sizeof owner->since, "%Y-%m-%dT%H:%M:%S", &local) == 0)
        put_word(owner->since, "-");
    if (!proc_is_ours())
        return;
    if (dpt_process_read((int)owner->pid, &process))
        owner->start = process.born;
    if (stat("/proc/self/ns/pid", &space) == 0)
        owner->pid_space = (unsigned long long)space.st_ino;
}

size_t dpt_owner_write(const struct dpt_owner *o, char line[DPT_OWNER_LINE])
{
    return (size_t)snprintf(line, DPT_OWNER_LINE,
                            "dptrain host=%s pid=%ld start=%llu boot=%s pids=%llu slurm=%s "
                            "restart=%lld generation=%lld since=%s\n",
                            o->host, o->pid, o->start, o->boot, o->pid_space, o->job, o->restart,
                            o->generation, o->since);
}

bool dpt_owner_read(const char *line, struct dpt_owner *o)
{
    char end = '\0';

    memset(o, 0, sizeof *o);
    /* The widths are DPT_OWNER_WORD - 1. */
    if (sscanf(line,
               "dptrain host=%79s pid=%ld start=%llu boot=%79s pids=%llu slurm=%79s restart=%lld "
               "generation=%lld since=%79s%c",
               o->host, &o->pid, &o->start, o->boot, &o->pid_space, o->job, &o->restart,
               &o->generation, o->since, &end) == 10 &&
        end == '\n' && o->pid > 0)
        return true;
    memset(o, 0, sizeof *o);
    return false;
}

const char *dpt_owner_text(const struct dpt_owner *o, char *buf, size_t size)
{
    if (o->pid > 0)
        snprintf(buf, size, "process %ld on %s (since %s)", o->pid, o->host, o->since);
    else
        snprintf(buf, size, "an unknown process");
    return buf;
}

bool dpt_owner_near(const struct dpt_owner *o, const struct dpt_owner *me)
{
    return o->pid > 0 && o->start != 0 && me->start != 0 && o->pid_space != 0 &&
           o->pid_space == me->pid_space && strcmp(o->boot, "-") != 0 &&
           strcmp(o->boot, me->boot) == 0;
}

static bool process_gone(const struct dpt_owner *o)
{
    struct dpt_process now;

    /* Others' processes may be hidden in /proc, so that only ESRCH counts there. */
    if (!dpt_process_read((int)o->pid, &now))
        return kill((pid_t)o->pid, 0) != 0 && errno == ESRCH;
    /* One that nobody has waited for yet writes no more, once its last thread has ended. */
    return now.born != o->start || ((now.state == 'Z' || now.state == 'X') && now.threads <= 1);
}

bool dpt_owner_gone(const struct dpt_owner *o, const struct dpt_owner *me, double age)
{
    /* SLURM has restarted the job: what is left of it elsewhere is fenced off. */
    if (o->pid > 0 && strcmp(o->job, "-") != 0 && strcmp(o->job, me->job) == 0 &&
        o->restart < me->restart)
        return true;
    if (dpt_owner_near(o, me))
        return process_gone(o);
    return age > dpt_owner_patience;
}
