/*
 * process: what /proc says of a process of this machine.
 */
#ifndef DPT_BASE_PROCESS_H
#define DPT_BASE_PROCESS_H

#include <sched.h>
#include <stdbool.h>

struct dpt_process {
    char name[16];
    char state;
    int parent;
    long threads;
    unsigned long long born; /* clock ticks after the machine's start */
};

/* False: there is no such process, or it cannot be looked at. */
bool dpt_process_read(int pid, struct dpt_process *process);

/* Seconds since this process was started (exec), from /proc; 0 where that cannot be read. Linux. */
double dpt_process_age(void);

/* Calls `child` with the number of each child of a process, until it returns false. */
void dpt_process_children(int pid, bool (*child)(void *arg, int pid), void *arg);

/* Bytes of this process's memory, by a name in /proc/self/status ("VmHWM": the most that it had);
 * 0: not known. */
double dpt_process_memory(const char *name);

/* Cores that this process may use; 1 where nobody says. */
int dpt_process_cores(void);

/* The CPUs that the calling thread may use, and those of them in the NUMA node of a PCI device
 * ("0000:17:00.0"), maybe none. False: the system does not say. */
bool dpt_process_near(const char *bus, cpu_set_t *own, cpu_set_t *near);

/* Binds all threads of this process that may use the CPUs of `from`, neither more nor fewer, to
 * those of `to`. A thread that is created later has those of its creator. False: the calling thread
 * was not bound. */
bool dpt_process_bind(const cpu_set_t *from, const cpu_set_t *to);

/* Cores of this machine that others keep busy: the mean of the last minute, which knows too long
 * what has ended, or what wants a core at this moment, whichever is less. 0: not known. */
double dpt_process_busy(void);

/* Ends standard error: where it is a pipe, waits until its reader has taken all, `most` seconds at
 * most; what is written to it from here on goes nowhere. */
void dpt_stderr_end(double most);

#endif
