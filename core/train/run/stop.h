/*
 * stop: requests to stop, from signals and from the clock.
 *
 * A signal handler only sets a flag, which the rank passes on with the next step's reduction; so
 * all ranks stop after the same step. Any signal within two seconds of the first one is the same
 * request once more: a batch system, systemd and `timeout` signal each process of a group, and srun
 * and mpirun pass theirs on. One that comes later ends the process at once, unless all is saved
 * (dpt_stop_done). There is one such flag in the process.
 */
#ifndef DPT_TRAIN_STOP_H
#define DPT_TRAIN_STOP_H

#include <stdbool.h>

/* Catches INT, TERM, USR1 and USR2; signals that the parent had ignored stay ignored. It is the
 * first thing that main does, since one that comes while the program starts is a request, too. */
void dpt_stop_catch(void);
/* Gives the signals their usual effect again, for what is not ended by requests: one that came
 * since dpt_stop_catch ends the process now. */
void dpt_stop_release(void);
/* To be called once the request is fulfilled: no signal changes the exit code any more. */
void dpt_stop_done(void);
/* Whether a signal that comes now, after one at `first` (dpt_now), is the same request once more.
 * For signal handlers. */
bool dpt_stop_repeats(double first);
/* The signal that came, here or to the process that started these ranks (core/comm/launched.h), or
 * 0. */
int dpt_stop_signal(void);
/* "SIGUSR1"; of ranks that `--ranks` started the signal that came to their launcher. */
const char *dpt_stop_name(int signal);

/*
 * The moment, by dpt_now, at which this process should have ended: the earlier of `max_time`
 * seconds (0: none) after its start and the end of the SLURM job (SLURM_JOB_END_TIME or, if that is
 * not set, what squeue reports); INFINITY if there is neither.
 */
double dpt_stop_deadline(double max_time);

#endif
