#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/memory.h"
#include "core/state/checkpoint_image.h"
#include "core/state/tests/folder.h"
#include "core/state/tests/load.h"
#include "data/shards/inspect.h"

static const char *const slot_names[] = {"m", "v"};

/* Ranks that have the floats of a state; what they write and read. */
struct ranks {
    const struct dpt_state *all;
    struct dpt_stretch done[32], begun[32]; /* begun: without checksums */
    size_t n;
    bool seen;
};

static enum dpt_status save(const struct dpt_state *state, const char *path, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct ranks *ranks = state->owners;
    struct dpt_image *image = NULL;

    DPT_TRY(dpt_image_open(&image, state, path, err));
    assert_int_equal(dpt_image_take(image, state, path, NULL, err), DPT_OK);
    if (dpt_image_waits(image))
        DPT_TRY(dpt_image_complete(image, ranks->done, ranks->n, err));
    DPT_TRY(dpt_image_save(image, path, err));
out:
    dpt_image_close(image);
    return status;
}

/* --- states of random models ------------------------------------------------------------------ */

struct world {
    struct dpt_graph graph;
    struct dpt_tensor tensors[7];
    struct dpt_target_scale targets;
    float scale[2];
    struct dpt_state state;
    char job[64];
};

/* Any bits, not-a-numbers and what lies between the tensors included. */
static float *random_arena(uint64_t seed, int64_t floats)
{
    uint32_t *words = dpt_alloc_array((size_t)floats, sizeof *words);

    assert_non_null(words);
    for (int64_t i = 0; i < floats; i++)
        words[i] = (uint32_t)dpt_random64(seed, DPT_RANDOM_SYNTHETIC, 5, (uint64_t)i);
    return (float *)words;
}

static void open_world(struct world *w, uint64_t seed)
{
    struct dpt_graph *g = &w->graph;
    struct dpt_progress *p = &w->state.progress;
    const int n = 1 + (int)dice(seed, 1, 7);

    memset(w, 0, sizeof *w);
    g->tensors = w->tensors;
    g->n_tensors = n;
    for (int i = 0; i < n; i++) {
        struct dpt_tensor *t = &w->tensors[i];

        snprintf(t->name, sizeof t->name, "layer%d/%s", i / 2, i % 2 == 0 ? "weight" : "bias");
        t->n_dims = 1 + (int)dice(seed, 10 + (uint64_t)i, 4);
        t->count = 1;
        for (int d = 0; d < t->n_dims; d++)
            t->count *= t->dims[d] =
                1 + (int64_t)dice(seed, 100 + 10 * (uint64_t)i + (uint64_t)d, 6);
        t->state = i >= 2 && i >= n - (int)dice(seed, 11, 3);
        t->offset = g->arena;
        g->arena += (t->count + 15) / 16 * 16;
        if (t->state)
            continue;
        g->floats = g->arena;
        g->parameters += t->count;
    }
    snprintf(w->job, sizeof w->job, "seed: %llu\n", (unsigned long long)seed);
    w->scale[0] = 1 + (float)dice(seed, 12, 5);
    w->scale[1] = 7;
    w->targets =
        (struct dpt_target_scale){.outputs = 2,
                                  .used = dice(seed, 13, 2) == 1,
                                  .mean = w->scale,
                                  .std = w->scale,
                                  .transform = (int)dice(seed, 19, DPT_TARGET_TRANSFORM_COUNT)};
    w->state = (struct dpt_state){
        .graph = g,
        .targets = &w->targets,
        .params = random_arena(seed, g->arena),
        .slots = (int)dice(seed, 2, 3),
        .slot_names = slot_names,
        .seed = (int64_t)seed,
        .job_text = w->job,
        .version = "1.2.3",
        .backend = "ref",
        .library = "none",
        .progress = {.step = 100 + (int64_t)dice(seed, 3, 1000),
                     .updates = (int64_t)dice(seed, 4, 100),
                     .samples = (int64_t)dice(seed, 5, INT64_C(1) << 60),
                     .epoch = (int64_t)dice(seed, 6, 50),
                     .epoch_step = (int64_t)dice(seed, 7, 50),
                     .best_metric = (double)dice(seed, 8, 1000) / 7,
                     .best_step = (int64_t)dice(seed, 9, 50) - 1,
                     .early_stop = {.step = -1},
                     .also = {.step = -1},
                     .plateau = {.step = -1}},
    };
    if (dice(seed, 10, 2) == 1) {
        snprintf(p->best_monitor, sizeof p->best_monitor, "valid.roc_auc");
        p->best_loss = (double)dice(seed, 11, 1000) / 3;
    }
    if (dice(seed, 12, 2) == 1)
        p->early_stop =
            (struct dpt_watch){"valid.loss", -0.3, (int64_t)dice(seed, 13, 50) - 1, 7, 0};
    if (dice(seed, 17, 2) == 1)
        p->also = (struct dpt_watch){"valid.r2", 0.7, (int64_t)dice(seed, 18, 50) - 1, 3, 0};
    if (dice(seed, 14, 2) == 1)
        p->plateau = (struct dpt_watch){"valid.mae", 1e-9, (int64_t)dice(seed, 15, 50) - 1, 0,
                                        (int64_t)dice(seed, 16, 50)};
    w->state.scaled = dice(seed, 20, 2) == 1;
    w->state.scale = (struct dpt_loss_scale){.scale = (float)(1 << dice(seed, 21, 16)),
                                             .good = (int32_t)dice(seed, 22, 1000),
                                             .overflows = (int64_t)dice(seed, 23, 1000)};
    for (int k = 0; k < w->state.slots; k++)
        w->state.slot[k] = random_arena(seed + 1000 * (uint64_t)(k + 1), g->floats);
}

static void close_world(struct world *w)
{
    dpt_free(w->state.params);
    for (int k = 0; k < DPT_MAX_SLOTS; k++)
        dpt_free(w->state.slot[k]);
}

/* state: whether the arena has that, too. */
static void assert_arena(const struct dpt_graph *g, bool state, const float *a, const float *b)
{
    for (int i = 0; i < g->n_tensors; i++)
        if (state || !g->tensors[i].state)
            assert_memory_equal(a + g->tensors[i].offset, b + g->tensors[i].offset,
                                (size_t)g->tensors[i].count * sizeof *a);
}

static char *read_file(const char *path, size_t *n)
{
    struct dpt_error err;
    char *bytes = NULL;

    assert_int_equal(dpt_file_read(path, SIZE_MAX / 2, DPT_IO, &bytes, n, &err), DPT_OK);
    return bytes;
}

static enum dpt_status
from_owners(void *owners, const struct dpt_stretch *wanted, size_t n, float *room,
            enum dpt_status (*take)(void *arg, size_t i, const float *x, struct dpt_error *err),
            void *arg, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct ranks *ranks = owners;
    const struct dpt_state *all = ranks->all;

    for (size_t i = 0; i < n; i++) {
        const struct dpt_tensor *tensor = &all->graph->tensors[wanted[i].tensor];

        memcpy(room, all->slot[wanted[i].arena] + tensor->offset + wanted[i].at,
               (size_t)wanted[i].n * sizeof *room);
        DPT_TRY(take(arg, i, room, err));
    }
out:
    return status;
}

/* A part of every second tensor, in two stretches. later: it keeps their checksums for save. */
static enum dpt_status write_some(void *owners, struct dpt_shared_file *file, int fd,
                                  const int64_t *offset, bool *later,
                                  const struct dpt_stretch **done, size_t *n, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct ranks *ranks = owners;
    const struct dpt_graph *graph = ranks->all->graph;
    bool same;

    *n = 0;
    DPT_TRY(dpt_shared_file_mark(file, fd, true, err));
    fd = dpt_shared_file_open(file, &same);
    assert_true(fd >= 0 && same);
    for (int k = -1; k < ranks->all->slots; k++)
        for (int i = 0; i < graph->n_tensors; i += 2) {
            const struct dpt_tensor *tensor = &graph->tensors[i];
            const float *from = (k < 0 ? ranks->all->params : ranks->all->slot[k]) + tensor->offset;
            const int64_t first = offset[(k + 1) * graph->n_tensors + i];

            assert_true((k >= 0 && tensor->state) == (first < 0) || first % 4 != 0);
            for (int64_t at = tensor->count / 5, half = 0; first >= 0 && half < 2; half++) {
                struct dpt_stretch *s = &ranks->done[*n];

                *s = ranks->begun[*n] =
                    (struct dpt_stretch){.arena = k, .tensor = i, .at = at, .n = tensor->count / 3};
                at += s->n + half;
                *n += s->n > 0;
                DPT_TRY(dpt_shared_file_write(file, fd, from + s->at, s->n, first + 4 * s->at,
                                              &s->crc, err));
            }
        }
    ranks->n = *n;
    *done = *later ? ranks->begun : ranks->done;
out:
    close(fd);
    return status;
}

/* All that lies in the file. */
static enum dpt_status read_all(void *owners, const int64_t *offset, size_t sets,
                                const struct dpt_stretch **done, size_t *n, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct ranks *ranks = owners;
    const struct dpt_graph *graph = ranks->all->graph;
    struct dpt_shared_file file = {0};
    const int fd = open(in_folder(file.path, "b.h5"), O_RDONLY | O_CLOEXEC);

    *done = ranks->done;
    *n = 0;
    assert_true(fd >= 0);
    assert_int_equal(sets, graph->n_tensors * (1 + ranks->all->slots));
    for (int k = -1; k < ranks->all->slots; k++)
        for (int i = 0; i < graph->n_tensors; i++) {
            const struct dpt_tensor *tensor = &graph->tensors[i];
            const int64_t first = offset[(k + 1) * graph->n_tensors + i];
            struct dpt_stretch *s = &ranks->done[*n];

            assert_int_equal(k >= 0 && tensor->state, first < 0);
            if (first < 0)
                continue;
            *s =
                (struct dpt_stretch){.arena = k, .tensor = i, .n = tensor->count, .not_finite = -1};
            ++*n;
            DPT_TRY(dpt_shared_file_read(
                &file, fd, (k < 0 ? ranks->all->params : ranks->all->slot[k]) + tensor->offset,
                s->n, first, &s->crc, err));
        }
out:
    close(fd);
    return status;
}

/* What was saved comes back, bit for bit, and the bytes of the file are a function of the state:
 * what lies between the tensors is none of it, nor is who holds the slots. */
static void what_was_saved_is_loaded(void **unused)
{
    char path[TEXT], again[TEXT];
    struct dpt_error err;

    (void)unused;
    in_folder(path, "a.h5");
    in_folder(again, "b.h5");
    for (uint64_t seed = 0; seed < 40; seed++) {
        struct world w, other;
        struct dpt_state *to = &other.state, parts;
        struct ranks ranks = {.all = to, .seen = true};
        size_t n, m;
        char *job, *a, *b;

        open_world(&w, seed);
        open_world(&other, seed);
        memset(to->params, 0x55, (size_t)w.graph.arena * sizeof(float));
        for (int k = 0; k < to->slots; k++)
            memset(to->slot[k], 0x55, (size_t)w.graph.floats * sizeof(float));
        memset(&to->progress, 0x55, sizeof to->progress);
        if (w.state.scaled)
            to->scale = (struct dpt_loss_scale){.good = -1, .overflows = -1};
        assert_int_equal(save(&w.state, path, &err), DPT_OK);
        assert_int_equal(dpt_checkpoint_verify(path, &err), DPT_OK);
        assert_int_equal(load(to, path,
                              DPT_LOAD_PARAMS | DPT_LOAD_SLOTS | DPT_LOAD_PROGRESS | DPT_LOAD_ANY,
                              &job, &err),
                         DPT_OK);
        assert_string_equal(job, w.job);
        free(job);
        assert_arena(&w.graph, true, to->params, w.state.params);
        for (int k = 0; k < to->slots; k++)
            assert_arena(&w.graph, false, to->slot[k], w.state.slot[k]);
        assert_memory_equal(&to->progress, &w.state.progress, sizeof to->progress);
        assert_true(to->scale.scale == w.state.scale.scale &&
                    to->scale.good == w.state.scale.good &&
                    to->scale.overflows == w.state.scale.overflows);
        parts = *to;
        parts.streams = true;
        parts.gather = from_owners;
        parts.write = seed % 4 == 1 ? write_some : NULL;
        parts.later = seed % 8 == 1;
        parts.owners = &ranks;
        memset(parts.slot, 0, sizeof parts.slot);
        assert_int_equal(save(seed % 2 == 0 ? to : &parts, again, &err), DPT_OK);
        a = read_file(path, &n);
        b = read_file(again, &m);
        assert_int_equal(n, m);
        assert_memory_equal(a, b, n);
        free(a);
        free(b);
        memset(to->params, 0x55, (size_t)w.graph.arena * sizeof(float));
        parts.read = read_all;
        parts.seen = &ranks.seen;
        assert_int_equal(
            load(&parts, again, DPT_LOAD_PARAMS | DPT_LOAD_SLOTS | DPT_LOAD_ANY, NULL, &err),
            DPT_OK);
        assert_arena(&w.graph, true, to->params, w.state.params);
        close_world(&w);
        close_world(&other);
    }
}

/* By its trailer, or, where that has been cut off, by its format. */
static void a_checkpoint_is_known(void **unused)
{
    struct dpt_inspect file = {0};
    enum dpt_trailer trailer;
    struct dpt_error err;
    char path[TEXT];
    struct world w;

    (void)unused;
    in_folder(path, "a.h5");
    open_world(&w, 3);
    assert_int_equal(save(&w.state, path, &err), DPT_OK);
    assert_int_equal(dpt_checkpoint_trailer(path, &trailer, &err), DPT_OK);
    assert_int_equal(trailer, DPT_TRAILER_GOOD);
    assert_int_equal(dpt_inspect_open(&file, path, &err), DPT_OK);
    assert_true(dpt_checkpoint_is(&file, trailer) && dpt_checkpoint_is(&file, DPT_TRAILER_NONE));
    dpt_inspect_close(&file);
    file = (struct dpt_inspect){0};
    assert_false(dpt_checkpoint_is(&file, DPT_TRAILER_NONE));
    close_world(&w);
}

/* One bit anywhere, any length but the right one: noticed, every time. */
static void any_damage_is_noticed(void **unused)
{
    char path[TEXT];
    struct dpt_error err;
    struct world w;
    char *bytes;
    size_t n;
    int fd;

    (void)unused;
    in_folder(path, "a.h5");
    open_world(&w, 3);
    assert_int_equal(save(&w.state, path, &err), DPT_OK);
    bytes = read_file(path, &n);
    assert_in_range(n, 2000, 50000);
    fd = open(path, O_RDWR | O_CLOEXEC);
    for (size_t i = 0; i < n; i++) {
        const char flipped = (char)(bytes[i] ^ 1 << dice(9, i, 8));

        assert_int_equal(pwrite(fd, &flipped, 1, (off_t)i), 1);
        if (dpt_checkpoint_verify(path, &err) != DPT_BAD_DATA)
            fail_msg("byte %zu of %zu", i, n);
        assert_non_null(strstr(err.text, path));
        assert_int_equal(pwrite(fd, bytes + i, 1, (off_t)i), 1);
    }
    assert_int_equal(dpt_checkpoint_verify(path, &err), DPT_OK);
    assert_int_equal(ftruncate(fd, (off_t)n + 1), 0);
    assert_int_equal(dpt_checkpoint_verify(path, &err), DPT_BAD_DATA);
    for (size_t length = n; length-- > 0;) {
        assert_int_equal(ftruncate(fd, (off_t)length), 0);
        if (dpt_checkpoint_verify(path, &err) != DPT_BAD_DATA)
            fail_msg("cut to %zu of %zu bytes", length, n);
    }
    /* And loading looks before HDF5 does. */
    put_file(path, bytes, n - 1);
    assert_int_equal(load(&w.state, path, DPT_LOAD_PARAMS, NULL, &err), DPT_BAD_DATA);
    close(fd);
    free(bytes);
    close_world(&w);
}

static void expect_refusal(struct world *w, const char *path, const char *words)
{
    struct dpt_error err;

    assert_int_equal(load(&w->state, path, DPT_LOAD_PARAMS | DPT_LOAD_SLOTS, NULL, &err),
                     DPT_BAD_DATA);
    if (strstr(err.text, words) == NULL || strstr(err.text, path) == NULL)
        fail_msg("'%s' lacks '%s'", err.text, words);
}

/* Of pictures and of rows; what is not a shape, or not there, is none. */
static void shapes_are_kept(void **unused)
{
    static const struct dpt_shape shapes[] = {{3, 5, 7, false}, {12, 1, 1, true}};
    char path[TEXT];

    (void)unused;
    for (size_t i = 0; i < 2; i++) {
        struct dpt_checkpoint c = {0};
        struct dpt_shape got = {0};
        struct dpt_error err;
        struct world w;

        open_world(&w, i);
        w.state.stored = &shapes[i];
        assert_int_equal(save(&w.state, in_folder(path, "a.h5"), &err), DPT_OK);
        assert_int_equal(dpt_checkpoint_open(&c, path, &err), DPT_OK);
        assert_true(dpt_checkpoint_shape(&c, "file_shape", &got));
        assert_true(got.c == shapes[i].c && got.h == shapes[i].h && got.w == shapes[i].w &&
                    got.flat == shapes[i].flat);
        assert_false(dpt_checkpoint_shape(&c, "version", &got));
        assert_false(dpt_checkpoint_shape(&c, "no such", &got));
        dpt_checkpoint_close(&c);
        close_world(&w);
    }
}

/* The first difference is told in words, with the file. */
static void another_model_is_refused(void **unused)
{
    static const char *const others[] = {"momentum", "v"};
    char path[TEXT], words[128];
    struct dpt_error err;
    struct world w, other;
    uint64_t seed = 0;

    (void)unused;
    in_folder(path, "a.h5");
    for (open_world(&w, seed);
         w.state.slots == 0 || w.graph.n_tensors < 2 || w.graph.arena > w.graph.floats;) {
        close_world(&w);
        open_world(&w, ++seed);
    }
    assert_int_equal(save(&w.state, path, &err), DPT_OK);
    open_world(&other, seed);

    other.state.slot_names = others;
    expect_refusal(&other, path, "holds no /optimizer/momentum, which this job needs");
    other.state.slot_names = slot_names;
    snprintf(other.tensors[1].name, DPT_NAME, "layer9/bias");
    expect_refusal(&other, path, "/params/layer9/bias; it is of another model");
    other.tensors[1] = w.tensors[1];
    other.tensors[0].dims[0] += 1;
    snprintf(words, sizeof words, "/params/layer0/weight is [%lld",
             (long long)w.tensors[0].dims[0]);
    expect_refusal(&other, path, words);
    other.tensors[0] = w.tensors[0];
    other.tensors[1].state = true;
    expect_refusal(&other, path, "holds no /state, which this job needs");
    other.tensors[1] = w.tensors[1];
    other.graph.n_tensors--;
    other.graph.parameters -= w.tensors[other.graph.n_tensors].count;
    expect_refusal(&other, path, "parameters, this job's has");
    close_world(&w);
    close_world(&other);
}

/* A limit on the size of files is told as such, whatever it is, and what was there stays. */
static void a_limit_leaves_the_old_file(void **unused)
{
    const struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    char path[TEXT];
    struct dpt_error err;
    struct world w, other;
    size_t n, m;
    char *before, *now;

    (void)unused;
    in_folder(path, "a.h5");
    open_world(&w, 3);
    open_world(&other, 4);
    assert_int_equal(save(&other.state, path, &err), DPT_OK);
    before = read_file(path, &n);
    assert_int_equal(save(&w.state, path, &err), DPT_OK);
    now = read_file(path, &m);
    free(now);
    put_file(path, before, n);
    signal(SIGXFSZ, SIG_IGN);
    for (size_t limit = 0; limit < m; limit += 1 + m / 50) {
        const struct rlimit small = {limit, RLIM_INFINITY};

        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        assert_int_equal(save(&w.state, path, &err), DPT_IO);
        assert_non_null(strstr(err.text, path));
    }
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &all), 0);
    now = read_file(path, &m);
    assert_int_equal(n, m);
    assert_memory_equal(now, before, n);
    free(now);
    free(before);
    in_folder(path, "nowhere/a.h5");
    assert_int_equal(save(&w.state, path, &err), DPT_IO);
    assert_non_null(strstr(err.text, path));
    close_world(&w);
    close_world(&other);
}

/* The calls of write that this process has made; -1: the kernel does not count them. */
static long count_writes(void)
{
    FILE *file = fopen("/proc/self/io", "r");
    char line[128];
    long n = -1;

    while (file != NULL && n < 0 && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "syscw: %ld", &n) != 1)
            n = -1;
    if (file != NULL)
        fclose(file);
    return n;
}

/* From now on this process is told that the file system cannot reserve space. */
static bool refuse_to_reserve(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fallocate, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EOPNOTSUPP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {sizeof filter / sizeof *filter, filter};

    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* Where space cannot be reserved, as on NFS 3 or ext3, a save takes as many writes as elsewhere. */
static void a_save_reserves_or_goes_on(void **unused)
{
    enum { SKIPPED = 77 };
    char path[TEXT];
    struct world w;
    int result;
    pid_t child;

    (void)unused;
    in_folder(path, "a.h5");
    open_world(&w, 3);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct dpt_error err;
        long first = count_writes(), second;
        bool whole = save(&w.state, path, &err) == DPT_OK;

        second = count_writes();
        if (first < 0 || !refuse_to_reserve())
            _exit(SKIPPED);
        whole = whole && save(&w.state, path, &err) == DPT_OK &&
                dpt_checkpoint_verify(path, &err) == DPT_OK;
        _exit(whole && count_writes() - second == second - first ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &result, 0), child);
    close_world(&w);
    assert_true(WIFEXITED(result));
    if (WEXITSTATUS(result) == SKIPPED)
        skip();
    assert_int_equal(WEXITSTATUS(result), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_saved_is_loaded),
        cmocka_unit_test(a_checkpoint_is_known),
        cmocka_unit_test(any_damage_is_noticed),
        cmocka_unit_test(another_model_is_refused),
        cmocka_unit_test(shapes_are_kept),
        cmocka_unit_test(a_limit_leaves_the_old_file),
        cmocka_unit_test(a_save_reserves_or_goes_on),
    };

    return cmocka_run_group_tests(tests, enter, leave);
}
