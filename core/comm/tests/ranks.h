/*
 * ranks: programs whose tests all ranks run, in the same order.
 *
 * A rank whose check fails ends the job, so that the others do not hang.
 */
#ifndef DPT_COMM_TESTS_RANKS_H
#define DPT_COMM_TESTS_RANKS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/comm/comm.h"

static struct dpt_comm comm;

static inline void check_at(bool ok, const char *what, int line)
{
    if (ok)
        return;
    fprintf(stderr, "rank %d, line %d: %s\n", comm.world.rank, line, what);
    _exit(1); /* the launcher ends the others */
}

/* CHECK_OK: of a call that has written `err`. */
#define CHECK(condition) check_at(condition, #condition, __LINE__)
#define CHECK_OK(call)   check_at((call) == DPT_OK, err.text, __LINE__)

static inline void open_ranks(void)
{
    struct dpt_error err = {0};

    CHECK_OK(dpt_comm_open(&comm, &err));
}

static inline int close_ranks(int failed)
{
    dpt_comm_close(&comm);
    return failed;
}

/* The ranks as if the machine were so many nodes; node: this rank's. Close `part` at the end. */
static inline struct dpt_comm split_into_nodes(int node, int nodes, struct dpt_comm *part)
{
    struct dpt_comm several = comm;
    struct dpt_error err = {0};

    CHECK_OK(dpt_comm_split(&comm, node, part, &err));
    several.node = part->world;
    several.nodes = nodes;
    return several;
}

/* What `main` returns: how many of an array of tests failed. */
#define RUN_ON_ALL_RANKS(tests)                                                                    \
    (open_ranks(), close_ranks(cmocka_run_group_tests(tests, NULL, NULL)))

#endif
