/*
 * launcher_text: takes out of a launcher's output what the launcher itself has to say about ranks
 * that failed.
 *
 * Hydra (MPICH) and prterun (Open MPI 5) put a text between two long lines of = or - around every
 * error, and have no option against it. The ranks, or who started the launcher, have said better
 * what is wrong. All other bytes stay as they are, in their order.
 */
#ifndef DPT_CMD_LAUNCHER_TEXT_H
#define DPT_CMD_LAUNCHER_TEXT_H

#include <stdbool.h>
#include <stddef.h>

enum { DPT_LAUNCHER_TEXT_HELD = 1024 };

/* One stream's; all zero at the start. */
struct dpt_launcher_text {
    char held[DPT_LAUNCHER_TEXT_HELD]; /* what may be the beginning of such a text */
    size_t n, line;                    /* bytes of it; those before its last line */
    char rule;                         /* of the text that it is in: '=' or '-'; 0: it is in none */
    bool ended;                        /* it has just ended */
    bool passing;                      /* the rest of this line stays */
};

/* Copies to `out`, of n + DPT_LAUNCHER_TEXT_HELD bytes, what of these bytes and of those before
 * stays. Gives the number of bytes. */
size_t dpt_launcher_text(struct dpt_launcher_text *t, const char *bytes, size_t n, char *out);
/* Copies what is still held at the end of the stream; `out` has DPT_LAUNCHER_TEXT_HELD bytes. */
size_t dpt_launcher_text_end(struct dpt_launcher_text *t, char *out);

#endif
