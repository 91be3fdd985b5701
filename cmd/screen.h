/*
 * screen: a terminal's whole screen, lent for a while.
 *
 * Between open and close the other screen of the terminal is shown (what was there before comes
 * back), the cursor is hidden, and keys arrive one by one without being shown. Signals that end,
 * stop or resize are blocked and read where the caller waits, so that the terminal is set right
 * first, whatever happens but SIGKILL. One at a time; one thread.
 */
#ifndef DPT_CMD_SCREEN_H
#define DPT_CMD_SCREEN_H

#include <signal.h>
#include <stdbool.h>
#include <termios.h>

#include "core/base/error.h"
#include "core/base/str.h"

struct dpt_screen {
    bool open;
    bool keys;             /* standard input is a terminal, too */
    struct termios before; /* of standard input */
    sigset_t mask;         /* before */
    int signals;           /* signalfd */
};

/* What ended a wait. */
enum dpt_screen_event {
    DPT_SCREEN_TIME,   /* the time is over */
    DPT_SCREEN_REDRAW, /* terminal resized, or process stopped and continued */
    DPT_SCREEN_QUIT,   /* q, Ctrl-C, or standard input has ended */
    DPT_SCREEN_KILLED  /* another signal that ends a process: *number */
};

/* Whether standard output is a terminal that can be steered. */
bool dpt_screen_possible(void);
/* Its size; where it does not tell, COLUMNS and LINES, else 80 x 24. */
void dpt_screen_size(int *columns, int *rows);

enum dpt_status dpt_screen_open(struct dpt_screen *screen, struct dpt_error *err);
void dpt_screen_close(struct dpt_screen *screen);

/* Shows lines from the top left corner on; at most `rows` of them. Errors: IO (it is gone). */
enum dpt_status dpt_screen_show(const struct dpt_str *lines, int rows, struct dpt_error *err);
/* Waits for a key, a signal or so many milliseconds. */
enum dpt_screen_event dpt_screen_wait(struct dpt_screen *screen, int milliseconds, int *number);

#endif
