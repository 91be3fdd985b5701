/* ranks: 1 2 3 */
#include <math.h>
#include <sys/wait.h>

#include "core/base/clock.h"
#include "core/comm/probe.h"
#include "core/comm/tests/ranks.h"

/* Built and run here with one and the same library. */
static void library_is_the_one_built_with(void **state)
{
    char text[128];

    (void)state;
    dpt_probe_library(text, sizeof text);
    CHECK(strcmp(text, dpt_comm_version()) == 0);
    CHECK(strstr("multiple serialized funneled", dpt_probe_threads()) != NULL);
    CHECK(dpt_probe_claims_cuda() >= -1 && dpt_probe_claims_cuda() <= 1);
}

static double late_clock(void)
{
    return dpt_now() - 100.0 * comm.world.rank;
}

/* All ranks of one machine read one clock: what is found must say so, within its own bound; and so
 * with clocks that are late. */
static void one_machine_has_one_clock(void **state)
{
    struct dpt_error err = {0};
    double offset, bound;

    (void)state;
    for (int round = 0; round < 40; round++) {
        const bool late = round >= 20;

        CHECK_OK(dpt_clock_offset(&comm.world, late ? late_clock : dpt_now, &offset, &bound, &err));
        CHECK(isfinite(bound) && bound >= 0 && (comm.world.rank > 0 || bound == 0));
        CHECK(fabs(offset - (late ? 100.0 * comm.world.rank : 0)) <=
              bound + 1e-6); /* of rounding */
    }
}

/* Only between nodes: on one there is none to measure. */
static void links_are_between_nodes(void **state)
{
    struct dpt_probe_link *links = calloc((size_t)comm.nodes, sizeof *links);
    struct dpt_error err = {0};

    (void)state;
    CHECK(links != NULL);
    CHECK_OK(dpt_probe_links(&comm, links, &err));
    for (int i = 0; i < comm.nodes && comm.world.rank == 0; i++)
        CHECK(i == 0 ? links[i].latency == 0 : links[i].latency > 0 && links[i].bandwidth > 0);
    free(links);
}

/* A sum, of few numbers or of many, takes a time that all ranks agree about. */
static void sums_take_their_time(void **state)
{
    static const size_t sizes[] = {8, 4 << 20};
    struct dpt_error err = {0};
    double seconds, most;

    (void)state;
    for (int i = 0; i < 4; i++) {
        CHECK_OK(dpt_probe_sum(&comm, sizes[i / 2], i % 2 != 0, false, 0.01, &seconds, &err));
        CHECK(isfinite(seconds) && seconds >= 0);
        CHECK_OK(dpt_group_max(&comm.world, seconds, &most, &err));
        CHECK(most == seconds);
    }
}

static void ranks_of_a_node_share_memory(void **state)
{
    struct dpt_probe_shared works = {0};
    struct dpt_error err = {0};

    (void)state;
    CHECK_OK(dpt_probe_shared(&comm, &works, &err));
    CHECK(works.memfd || works.dev_shm);
}

/* In a process of its own, made before MPI starts: bytes arrive, and the rank then starts as ever.
 */
static void message_in_a_child(void **state)
{
    struct dpt_error err = {0};
    pid_t child;
    int code = -1;

    (void)state;
    child = fork();
    if (child == 0) {
        char from[1000], to[sizeof from] = {0};

        memset(from, 5, sizeof from);
        dpt_probe_leave_launcher();
        if (dpt_probe_device_message(from, to, sizeof from, &err) != DPT_OK)
            _exit(2);
        _exit(memcmp(from, to, sizeof from) == 0 ? 0 : 3);
    }
    CHECK(child > 0 && waitpid(child, &code, 0) == child && WIFEXITED(code));
    CHECK(WEXITSTATUS(code) == 0);
}

int main(void)
{
    const struct CMUnitTest before[] = {cmocka_unit_test(message_in_a_child)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(library_is_the_one_built_with),
        cmocka_unit_test(one_machine_has_one_clock),
        cmocka_unit_test(links_are_between_nodes),
        cmocka_unit_test(sums_take_their_time),
        cmocka_unit_test(ranks_of_a_node_share_memory),
    };
    const int failed = cmocka_run_group_tests(before, NULL, NULL);

    return failed + RUN_ON_ALL_RANKS(tests);
}
