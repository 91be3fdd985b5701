/* ranks: 1 2 3 5 */
/* Clocks of one machine are the same: what is found out about them must say so, within its bound.
 */
#include <math.h>

#include "core/comm/probe.h"
#include "core/comm/tests/ranks.h"
#include "core/trace/profile.h"

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

    return RUN_ON_ALL_RANKS(tests);
}
