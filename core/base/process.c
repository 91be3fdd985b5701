#include "core/base/process.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/file.h"

bool dpt_process_read(int pid, struct dpt_process *process)
{
    char path[64], text[1024], *p, *name;
    FILE *file;
    size_t n;

    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    file = fopen(path, "re");
    if (file == NULL)
        return false;
    n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = '\0';
    name = strchr(text, '(');
    p = strrchr(text, ')'); /* the name before it may hold anything */
    if (name == NULL || p == NULL)
        return false;
    *p = '\0';
    snprintf(process->name, sizeof process->name, "%s", name + 1);
    return sscanf(p + 1,
                  " %c %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %ld %*s %llu",
                  &process->state, &process->parent, &process->threads, &process->born) == 4;
}

double dpt_process_age(void)
{
    const long ticks = sysconf(_SC_CLK_TCK);
    struct dpt_process process;
    struct timespec now;
    double age;

    if (ticks <= 0 || !dpt_process_read((int)getpid(), &process))
        return 0.0;
    clock_gettime(CLOCK_BOOTTIME, &now);
    age = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec - (double)process.born / (double)ticks;
    return age > 0.0 ? age : 0.0;
}

/* /proc lists the children separately for each thread. */
void dpt_process_children(int pid, bool (*child)(void *arg, int pid), void *arg)
{
    char path[320];
    const struct dirent *entry;
    bool more = true;
    DIR *folder;

    snprintf(path, sizeof path, "/proc/%d/task", pid);
    folder = opendir(path);
    while (more && folder != NULL && (entry = readdir(folder)) != NULL) {
        FILE *file;
        int number;

        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/proc/%d/task/%s/children", pid, entry->d_name);
        file = fopen(path, "re");
        while (more && file != NULL && fscanf(file, "%d", &number) == 1)
            more = child(arg, number);
        if (file != NULL)
            fclose(file);
    }
    if (folder != NULL)
        closedir(folder);
}

double dpt_process_memory(const char *name)
{
    char kilobytes[64] = "0";

    dpt_file_value("/proc/self/status", name, kilobytes, sizeof kilobytes);
    return atof(kilobytes) * 1024;
}

int dpt_process_cores(void)
{
    cpu_set_t cores;

    return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

/* Adds the CPUs of a list as the kernel writes it: "0-31,64-95". */
static void add_list(const char *list, cpu_set_t *cpus)
{
    while (isdigit((unsigned char)*list)) {
        char *end;
        const long first = strtol(list, &end, 10);
        const long last = *end == '-' ? strtol(end + 1, &end, 10) : first;

        for (long cpu = first; cpu <= last && cpu < CPU_SETSIZE; cpu++)
            CPU_SET((size_t)cpu, cpus);
        list = *end == ',' ? end + 1 : end;
    }
}

bool dpt_process_near(const char *bus, cpu_set_t *own, cpu_set_t *near)
{
    char path[128] = "/sys/bus/pci/devices/", list[4096], *at = path + strlen(path);

    /* The driver writes the address in capitals, the system in small letters. */
    snprintf(at, sizeof path - strlen(path), "%.32s/local_cpulist", bus);
    for (; *at != '\0'; at++)
        *at = (char)tolower((unsigned char)*at);
    if (!dpt_file_line(path, list, sizeof list) || sched_getaffinity(0, sizeof *own, own) != 0)
        return false;
    CPU_ZERO(near);
    add_list(list, near);
    CPU_AND(near, near, own);
    return true;
}

bool dpt_process_bind(const cpu_set_t *from, const cpu_set_t *to)
{
    DIR *folder = opendir("/proc/self/task");
    const struct dirent *entry;
    cpu_set_t has;

    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        const pid_t thread = atoi(entry->d_name);

        if (thread > 0 && sched_getaffinity(thread, sizeof has, &has) == 0 && CPU_EQUAL(&has, from))
            sched_setaffinity(thread, sizeof *to, to);
    }
    if (folder != NULL)
        closedir(folder);
    return sched_getaffinity(0, sizeof has, &has) == 0 && CPU_EQUAL(&has, to);
}

double dpt_process_busy(void)
{
    FILE *file = fopen("/proc/loadavg", "re");
    double mean = 0;
    long running = 1; /* with this thread */
    const bool told = file != NULL && fscanf(file, "%lf %*f %*f %ld/", &mean, &running) == 2;

    if (file != NULL)
        fclose(file);
    return told ? fmax(0, fmin(mean, (double)running - 1)) : 0;
}

void dpt_stderr_end(double most)
{
    const double start = dpt_now(), look = 1e-3;
    const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    struct stat what;
    int left;

    if (fstat(STDERR_FILENO, &what) == 0 && S_ISFIFO(what.st_mode))
        while (ioctl(STDERR_FILENO, FIONREAD, &left) == 0 && left > 0 && dpt_now() - start < most)
            dpt_sleep(look);
    if (null >= 0)
        dup2(null, STDERR_FILENO);
}
