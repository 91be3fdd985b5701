/* A run's history, from metrics.jsonl in any state. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/base/str.h"
#include "core/state/history.h"
#include "core/state/metrics.h"

static const char first[] =
    "{\"event\": \"run\", \"name\": \"a\", \"ranks\": 2, \"steps\": 60, \"steps_per_epoch\": 20, "
    "\"global\": 10}\n"
    "{\"event\": \"train\", \"step\": 10, \"epoch\": 1, \"loss\": 2.5, \"accuracy\": 0.25, \"lr\": "
    "0.1, \"samples_per_s\": 100, \"samples\": 100}\n"
    "{\"event\": \"train\", \"step\": 20, \"epoch\": 1, \"loss\": 1.5, \"samples_per_s\": 50, "
    "\"samples\": 200, \"new\": [1, {}]}\n"
    "{\"event\": \"eval\", \"step\": 20, \"epoch\": 1, \"split\": \"valid\", \"loss\": 1.25, "
    "\"accuracy\": 0.5, \"samples\": 7, \"seconds\": 0.5}\n"
    "{\"event\": \"checkpoint\", \"step\": 20, \"path\": \"a/b.h5\", \"seconds\": 0.25}\n"
    "{\"event\": \"of the future\", \"step\": 30}\n"
    "{\"event\": \"end\", \"step\": 20, \"reason\": \"stopped after step 20 of 60\", \"seconds\": "
    "3}\n";
static const char second[] =
    "{\"event\": \"run\", \"name\": \"a\", \"ranks\": 3, \"steps\": 60, \"steps_per_epoch\": 20, "
    "\"global\": 10, \"resumed_from_step\": 20}\n"
    "{\"event\": \"train\", \"step\": 30, \"epoch\": 2, \"loss\": null, \"samples_per_s\": 400, "
    "\"samples\": 300}\n"
    "{\"event\": \"epoch\", \"step\": 40, \"epoch\": 2, \"loss\": 3, \"samples\": 80}\n"
    "{\"event\": \"eval\", \"step\": 40, \"epoch\": 2, \"split\": \"valid\", \"loss\": 1, "
    "\"accuracy\": 0.5}\n"
    "{\"event\": \"eval\", \"step\": 60, \"epoch\": 3, \"split\": \"test\", \"loss\": 1, "
    "\"accuracy\": 0.75}\n"
    "{\"event\": \"end\", \"step\": 60, \"reason\": \"done\", \"seconds\": 4}\n";

struct folder {
    char path[64], file[96];
};

static void put(const struct folder *f, const char *mode, const char *bytes, size_t n)
{
    FILE *file = fopen(f->file, mode);

    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    fclose(file);
}

static struct folder make(void)
{
    struct folder f = {.path = "/tmp/dptrain-history-XXXXXX"};

    assert_non_null(mkdtemp(f.path));
    snprintf(f.file, sizeof f.file, "%s/metrics.jsonl", f.path);
    put(&f, "w", "", 0);
    return f;
}

static void clear(const struct folder *f)
{
    unlink(f->file);
    rmdir(f->path);
}

static void more(struct dpt_history *h, bool want)
{
    struct dpt_error err = {0};
    bool changed;

    if (dpt_history_more(h, &changed, &err) != DPT_OK)
        fail_msg("%s", err.text);
    assert_int_equal(changed, want);
}

static void open_folder(struct dpt_history *h, const char *path)
{
    struct dpt_error err = {0};

    if (dpt_history_open(h, path, &err) != DPT_OK)
        fail_msg("%s", err.text);
}

static void check_first(const struct dpt_history *h)
{
    assert_int_equal(h->n_starts, 1);
    assert_int_equal(h->n_train, 2);
    assert_int_equal(h->train[1].step, 20);
    assert_true(h->train[0].accuracy == 0.25 && isnan(h->train[1].accuracy));
    assert_true(isnan(h->train[0].norm) && h->train[0].lr == 0.1);
    assert_int_equal(h->starts[0].resumed_from, -1);
    assert_string_equal(h->starts[0].host, "");
    assert_int_equal(h->saved, 20);
    assert_int_equal(h->damaged, 0);
    assert_int_equal(h->lines, 7);
    assert_int_equal(dpt_history_step(h), 20);
    assert_false(dpt_history_done(h));
    assert_int_equal(dpt_history_epoch(h, 20), 1);
    assert_int_equal(dpt_history_epoch(h, 21), 2);
    assert_int_equal(dpt_history_epochs(h), 3);
    assert_true(fabs(dpt_history_rate(h) - 200.0 / 3) < 1e-9); /* 200 samples in 1 + 2 seconds */
    assert_true(dpt_history_seconds(h) == 3);
}

static void check_both(const struct dpt_history *h)
{
    assert_int_equal(h->n_starts, 2);
    assert_int_equal(h->train[2].start, 1);
    assert_true(isnan(h->train[2].loss));
    assert_int_equal(dpt_history_start(h)->resumed_from, 20);
    assert_int_equal(dpt_history_best(h, DPT_HISTORY_VALID)->step,
                     20); /* the first of equal ones */
    assert_int_equal(dpt_history_last(h, DPT_HISTORY_VALID)->step, 40);
    assert_int_equal(dpt_history_last(h, DPT_HISTORY_TEST)->step, 60);
    assert_true(dpt_history_last(h, DPT_HISTORY_EPOCH)->loss == 3);
    assert_int_equal(dpt_history_last(h, DPT_HISTORY_EPOCH)->samples, 80);
    assert_true(dpt_history_done(h));
    assert_true(dpt_history_rate(h) == 400);
    assert_true(dpt_history_seconds(h) == 7);
}

static void reads_a_resumed_run(void **state)
{
    const struct folder f = make();
    struct dpt_history h;
    struct dpt_run_status run_status;
    char slashes[80];

    (void)state;
    put(&f, "w", first, sizeof first - 1);
    open_folder(&h, f.path);
    check_first(&h);
    dpt_run_status_read(&h, &run_status);
    assert_int_equal(run_status.state, DPT_RUN_STOPPED);
    put(&f, "a", second, sizeof second - 1);
    more(&h, true);
    check_both(&h);
    more(&h, false);
    dpt_run_status_read(&h, &run_status);
    assert_int_equal(run_status.state, DPT_RUN_DONE);
    dpt_history_close(&h);
    snprintf(slashes, sizeof slashes, "%s//", f.path);
    open_folder(&h, slashes);
    assert_string_equal(h.folder, f.path);
    check_both(&h);
    dpt_history_close(&h);
    open_folder(&h, f.file);
    assert_string_equal(h.folder, f.path);
    check_both(&h);
    dpt_history_close(&h);
    clear(&f);
}

/* However the bytes arrive. */
static void grows_byte_by_byte(void **state)
{
    const struct folder f = make();
    struct dpt_history h;
    struct dpt_error err = {0};
    size_t n = sizeof first - 1;
    bool changed;

    (void)state;
    open_folder(&h, f.path);
    for (size_t i = 0; i < n; i++) {
        put(&f, "a", first + i, 1);
        assert_int_equal(dpt_history_more(&h, &changed, &err), DPT_OK);
        assert_int_equal(changed, first[i] == '\n');
    }
    check_first(&h);
    dpt_history_close(&h);
    clear(&f);
}

/* Cut anywhere, the lines before the cut count; the cut one is neither read nor counted. */
static void ignores_a_cut_line(void **state)
{
    const struct folder f = make();

    (void)state;
    for (size_t n = 0; n < sizeof first; n += 3) {
        struct dpt_history h;
        int64_t lines = 0;

        for (size_t i = 0; i < n; i++)
            lines += first[i] == '\n';
        put(&f, "w", first, n);
        open_folder(&h, f.path);
        assert_int_equal(h.lines, lines);
        assert_int_equal(h.damaged, 0);
        dpt_history_close(&h);
    }
    clear(&f);
}

static void passes_over_damage(void **state)
{
    static const char holes[] = "\0\0\0\0\n", half[] = "{\"event\": \"train\", \"ste\n",
                      other[] = "[1]\n", lacks[] = "{\"event\": \"train\", \"loss\": 1}\n",
                      odd[] = "{\"event\": \"eval\", \"step\": 20, \"split\": \"epoch\"}\n";
    const struct folder f = make();
    struct dpt_history h;

    (void)state;
    put(&f, "w", holes, sizeof holes - 1);
    put(&f, "a", first, sizeof first - 1);
    put(&f, "a", half, sizeof half - 1);
    put(&f, "a", other, sizeof other - 1);
    put(&f, "a", lacks, sizeof lacks - 1);
    put(&f, "a", odd, sizeof odd - 1);
    put(&f, "a", second, sizeof second - 1);
    open_folder(&h, f.path);
    assert_int_equal(h.damaged, 5);
    check_both(&h);
    dpt_history_close(&h);
    /* At the end it may be what has not arrived yet. */
    put(&f, "w", first, sizeof first - 1);
    put(&f, "a", holes, sizeof holes - 1);
    open_folder(&h, f.path);
    check_first(&h);
    put(&f, "a", second, sizeof second - 1);
    more(&h, true);
    assert_int_equal(h.damaged, 1);
    check_both(&h);
    dpt_history_close(&h);
    clear(&f);
}

/* Resuming rewrites the file, under its old name. */
static void starts_again_with_another_file(void **state)
{
    const struct folder f = make();
    struct folder new = f;
    struct dpt_history h;

    (void)state;
    put(&f, "w", first, sizeof first - 1);
    put(&f, "a", second, sizeof second - 1);
    open_folder(&h, f.path);
    check_both(&h);
    strcat(new.file, "-new");
    put(&new, "w", first, sizeof first - 1);
    assert_int_equal(rename(new.file, f.file), 0);
    more(&h, true);
    check_first(&h);
    dpt_history_close(&h);
    clear(&f);
}

/* A file of many pieces, with a line longer than one. */
static void reads_large_files(void **state)
{
    enum { LINES = 40000, LONG = 3 << 20 };
    const struct folder f = make();
    struct dpt_str text = {0};
    struct dpt_history h;
    char *filler = malloc(LONG);

    (void)state;
    memset(filler, 'x', LONG);
    for (int i = 0; i < LINES; i++) {
        dpt_str_printf(&text, "{\"event\": \"train\", \"step\": %d, \"loss\": %d.5}\n", i, i);
        if (i == LINES / 2) {
            dpt_str_add(&text, filler, LONG);
            dpt_str_printf(&text, "\n");
        }
    }
    put(&f, "w", text.text, text.length);
    open_folder(&h, f.path);
    assert_int_equal(h.n_train, LINES);
    for (int i = 0; i < LINES; i++)
        assert_true(h.train[i].step == i && h.train[i].loss == i + 0.5);
    assert_true(h.damaged > 0);
    dpt_history_close(&h);
    dpt_str_release(&text);
    free(filler);
    clear(&f);
}

static void says_where_there_is_none(void **state)
{
    const struct folder f = make();
    struct dpt_error err = {0};
    struct dpt_history h;

    (void)state;
    clear(&f);
    assert_int_equal(dpt_history_open(&h, f.path, &err), DPT_USAGE);
    assert_non_null(strstr(err.text, "no such run folder"));
    dpt_history_close(&h);
    assert_int_equal(dpt_history_open(&h, "/tmp", &err), DPT_USAGE);
    assert_non_null(strstr(err.text, "holds no run"));
    dpt_history_close(&h);
}

/* What a rank writes of the end stands in a line of its own, whatever one that was killed has left
 * of its last one. */
static void writes_behind_a_cut_line(void **state)
{
    static const char cut[] = "{\"event\": \"train\", \"ste", whole[] = "{}\n";
    static const char *const before[] = {"", cut, whole};

    (void)state;
    for (int i = 0; i < 3; i++) {
        const struct folder f = make();
        struct dpt_metrics metrics = {0};
        struct dpt_error err = {0};
        char wanted[200], text[200] = "";
        FILE *file;

        put(&f, "a", before[i], strlen(before[i]));
        assert_int_equal(dpt_metrics_open(&metrics, f.file, NULL, &err), DPT_OK);
        dpt_metrics_begin(&metrics, "end");
        assert_int_equal(dpt_metrics_end(&metrics, &err), DPT_OK);
        dpt_metrics_close(&metrics);
        file = fopen(f.file, "r");
        assert_non_null(file);
        assert_true(fread(text, 1, sizeof text - 1, file) > 0);
        fclose(file);
        snprintf(wanted, sizeof wanted, "%s%s{\"event\": \"end\"}\n", before[i],
                 before[i] == cut ? "\n" : "");
        assert_string_equal(text, wanted);
        clear(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_a_resumed_run),
        cmocka_unit_test(grows_byte_by_byte),
        cmocka_unit_test(ignores_a_cut_line),
        cmocka_unit_test(passes_over_damage),
        cmocka_unit_test(starts_again_with_another_file),
        cmocka_unit_test(reads_large_files),
        cmocka_unit_test(writes_behind_a_cut_line),
        cmocka_unit_test(says_where_there_is_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
