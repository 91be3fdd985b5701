/*
 * clock: seconds.
 */
#ifndef DPT_BASE_CLOCK_H
#define DPT_BASE_CLOCK_H

/* Monotonic seconds from an arbitrary start. */
double dpt_now(void);
/* Seconds since this process was started (exec), from /proc; 0 where that cannot be read. Linux. */
double dpt_process_age(void);

#endif
