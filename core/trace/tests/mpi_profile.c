/* ranks: 1 2 3 5 */
/* Clocks of one machine are the same: what is found out about them must say so, within its bound.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <unistd.h>

#include "core/comm/probe.h"
#include "core/trace/profile.h"

static struct dpt_comm comm;

static void check_at(bool ok, const char *what, int line)
{
    if (ok)
        return;
    fprintf(stderr, "rank %d, line %d: %s\n", comm.world.rank, line, what);
    _exit(1); /* the launcher ends the others */
}

#define CHECK(condition) check_at(condition, #condition, __LINE__)

static void an_offset_is_within_its_bound(void **state)
{
    struct dpt_error err = {0};
    double offset, bound;

    (void)state;
    for (int i = 0; i < 5; i++) {
        CHECK(dpt_clock_offset(&comm.world, dpt_now, &offset, &bound, &err) == DPT_OK);
        CHECK(isfinite(offset) && isfinite(bound) && bound >= 0);
        CHECK(fabs(offset) <= bound);
        CHECK(comm.world.rank != 0 || (offset == 0 && bound == 0));
    }
}

static void ranks_of_one_node_need_none(void **state)
{
    struct dpt_error err = {0};
    double offset = 1, bound = 1;

    (void)state;
    CHECK(dpt_profile_offset(&comm, &offset, &bound, &err) == DPT_OK);
    CHECK(comm.nodes > 1 || (offset == 0 && bound == 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_offset_is_within_its_bound),
        cmocka_unit_test(ranks_of_one_node_need_none),
    };
    struct dpt_error err = {0};
    int failed;

    if (dpt_comm_open(&comm, &err) != DPT_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    dpt_comm_close(&comm);
    return failed;
}
