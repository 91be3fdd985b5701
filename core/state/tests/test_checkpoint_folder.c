/* Which checkpoints of a run folder stay, what its links name, and which temporary files go. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/state/checkpoint.h"
#include "core/state/tests/folder.h"

enum { MOST_STEPS = 40 };

static bool is_there(const char *name)
{
    char path[TEXT];
    struct stat info;

    return lstat(in_folder(path, name), &info) == 0;
}

static bool step_is_there(int64_t step)
{
    char name[64];

    snprintf(name, sizeof name, "checkpoints/step-%08lld.h5", (long long)step);
    return is_there(name);
}

static int64_t link_step(const char *name)
{
    char path[TEXT], target[TEXT];
    const ssize_t n = readlink(in_folder(path, name), target, sizeof target - 1);

    if (n < 0)
        return -1;
    target[n] = '\0';
    return atoll(target + strlen("step-"));
}

/* After every save: the newest `keep`, the best one, nothing else but what is later; and both links
 * name files that are there. */
static void the_newest_and_the_best_are_kept(void **unused)
{
    char path[TEXT], checkpoints[TEXT];
    struct dpt_error err;

    (void)unused;
    in_folder(checkpoints, "checkpoints");
    for (uint64_t seed = 0; seed < 60; seed++) {
        const int64_t keep = (int64_t)dice(seed, 0, 4), later = 1000 + (int64_t)dice(seed, 1, 9);
        int64_t saved[MOST_STEPS], best = -1, n = 0;

        empty(checkpoints);
        put_file(dpt_checkpoint_path(folder, later, path, sizeof path), "damaged", 7);
        for (int64_t step = 1 + (int64_t)dice(seed, 2, 3); n < 12;
             step += 1 + (int64_t)dice(seed, (uint64_t)(3 + n), 5)) {
            saved[n++] = step;
            if (dice(seed, (uint64_t)(100 + n), 3) == 0)
                best = step;
            put_file(dpt_checkpoint_path(folder, step, path, sizeof path), "whole", 5);
            assert_int_equal(dpt_checkpoint_rotate(folder, path, keep, best, &err), DPT_OK);
            for (int64_t i = 0; i < n; i++) {
                const bool wanted = keep == 0 || n - i <= keep || saved[i] == best;

                if (wanted != step_is_there(saved[i]))
                    fail_msg("seed %d, keep %d, best %d: step %d after step %d", (int)seed,
                             (int)keep, (int)best, (int)saved[i], (int)step);
            }
            assert_true(step_is_there(later));
            assert_int_equal(link_step("checkpoints/latest"), step);
            assert_int_equal(link_step("checkpoints/best"), best);
        }
    }
    empty(checkpoints);
}

static void the_list_is_newest_first(void **unused)
{
    static const char *const strangers[] = {"step-x.h5",  "step-5.h5.tmp-1",
                                            "step-6",     "best.h5",
                                            "step--3.h5", "step-99999999999999999999.h5"};
    char path[TEXT], name[64];
    struct dpt_error err;
    int64_t *steps;
    size_t n;

    (void)unused;
    for (size_t i = 0; i < sizeof strangers / sizeof strangers[0]; i++) {
        snprintf(name, sizeof name, "checkpoints/%s", strangers[i]);
        put_file(in_folder(path, name), "", 0);
    }
    for (int64_t i = 0; i < 50; i++)
        put_file(dpt_checkpoint_path(folder, i * 7919 % 50 * 3000000, path, sizeof path), "", 0);
    assert_int_equal(dpt_checkpoint_list(folder, &steps, &n, &err), DPT_OK);
    assert_int_equal(n, 50);
    for (int64_t i = 0; i < 50; i++)
        assert_int_equal(steps[i], (49 - i) * 3000000);
    free(steps);
    assert_int_equal(dpt_checkpoint_list(in_folder(path, "nowhere"), &steps, &n, &err), DPT_OK);
    assert_int_equal(n, 0);
    empty(in_folder(path, "checkpoints"));
}

/* What killed runs left goes; what is ours, of another command, or no temporary file, stays. */
static void temporaries_of_others_go(void **unused)
{
    static const char *const stay[] = {".x.tmp-1a",
                                       ".x.tmp-",
                                       ".xtmp-5",
                                       "metrics.jsonl",
                                       "notes.tmp-1",
                                       ".out.npz.tmp-1",
                                       "checkpoints/step-1.h5.tmp-1a"};
    static const char *const go[] = {".job.yaml.tmp-1", ".metrics.jsonl.tmp-1", ".trace.json.tmp-1",
                                     "checkpoints/step-00000001.h5.tmp-1",
                                     "checkpoints/latest.tmp-999999999"};
    char path[TEXT], ours[64];
    struct dpt_error err;

    (void)unused;
    snprintf(ours, sizeof ours, ".job.yaml.tmp-%ld", (long)getpid());
    put_file(in_folder(path, ours), "", 0);
    for (size_t i = 0; i < sizeof stay / sizeof stay[0]; i++)
        put_file(in_folder(path, stay[i]), "", 0);
    for (size_t i = 0; i < sizeof go / sizeof go[0]; i++)
        put_file(in_folder(path, go[i]), "", 0);
    assert_int_equal(dpt_checkpoint_prepare(folder, &err), DPT_OK);
    assert_true(is_there(ours));
    for (size_t i = 0; i < sizeof stay / sizeof stay[0]; i++)
        assert_true(is_there(stay[i]));
    for (size_t i = 0; i < sizeof go / sizeof go[0]; i++)
        assert_false(is_there(go[i]));
    assert_int_equal(dpt_checkpoint_prepare(in_folder(path, "nowhere"), &err), DPT_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_newest_and_the_best_are_kept),
        cmocka_unit_test(the_list_is_newest_first),
        cmocka_unit_test(temporaries_of_others_go),
    };

    return cmocka_run_group_tests(tests, enter, leave);
}
