#include "core/train/use/audit.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/memory.h"
#include "core/train/mesh/mesh.h"
#include "core/train/setup/state.h"

enum { DIGITS = 16 };

enum { WEIGHTS, GRADIENT, ARENAS };
static const int arenas[ARENAS] = {DPT_PARAMS, DPT_GRADIENT};

int32_t dpt_audit_hashes(const struct dpt_trainer *t)
{
    return ARENAS * (t->model.graph.n_tensors + 1);
}

/* Hashes as dpt_hash_floats does, with the same bits for all that is not a number: which ones a sum
 * gives depends on which addend is the first. */
static uint64_t hash_numbers(const float *x, size_t n, uint64_t first)
{
    enum { PIECE = 1024 };
    float piece[PIECE];
    uint64_t sum = 0;

    for (size_t at = 0, here; at < n; at += here) {
        here = n - at < PIECE ? n - at : PIECE;
        for (size_t i = 0; i < here; i++)
            piece[i] = isnan(x[at + i]) ? NAN : x[at + i];
        sum += dpt_hash_floats(piece, here, first + at);
    }
    return sum;
}

/* Hashes what this rank has of a tensor of an arena, with the zeros after it: as a part of the
 * whole arena, and as a part of the tensor. The first of the replicas hashes the state. */
static void hash_tensor(const struct dpt_trainer *t, int k, int32_t number, uint64_t *of_arena,
                        uint64_t *of_tensor)
{
    static const float zeros[DPT_TENSOR_ALIGN];
    const struct dpt_tensor *whole = &t->model.graph.tensors[number],
                            *own = &dpt_trainer_graph(t)->tensors[number];
    const size_t at = (size_t)own->offset, last = (size_t)(whole->offset + whole->count);
    const int replica = dpt_trainer_replicas(t)->world.rank;
    const float *x = k == WEIGHTS ? t->arenas.params : t->reduction.sum;
    size_t begin = at, end = at + (size_t)own->count, first;

    if (own->state && replica > 0)
        return;
    if (!own->state) {
        const struct dpt_slice kept = dpt_trainer_kept(t, arenas[k], replica, own->offset);

        x = dpt_trainer_arena(t, arenas[k], own->offset);
        begin = begin > kept.begin ? begin : kept.begin;
        end = end < kept.end ? end : kept.end;
    }
    if (begin >= end)
        return;
    first = (size_t)own->first + (begin - at); /* counted in the tensor's floats */
    *of_tensor += hash_numbers(x + begin, end - begin, first);
    *of_arena += hash_numbers(x + begin, end - begin, (uint64_t)whole->offset + first);
    if (first + (end - begin) == (size_t)whole->count)
        *of_arena += dpt_hash_floats(zeros, dpt_round_up(last, sizeof(float)) - last, last);
}

enum dpt_status dpt_audit_take(const struct dpt_trainer *t, int64_t *hashes, struct dpt_error *err)
{
    memset(hashes, 0, (size_t)dpt_audit_hashes(t) * sizeof *hashes);
    for (int k = 0; k < ARENAS; k++) {
        uint64_t arena = 0;

        for (int32_t i = 0; i < t->model.graph.n_tensors; i++) {
            uint64_t own = 0;

            if (dpt_mesh_tells(t, i))
                hash_tensor(t, k, i, &arena, &own);
            hashes[ARENAS * (i + 1) + k] = (int64_t)own;
        }
        hashes[k] = (int64_t)arena;
    }
    return dpt_group_sum_ints(&t->comm->world, hashes, hashes, (size_t)dpt_audit_hashes(t), err);
}

static void hash(struct dpt_json *j, const char *key, int64_t value)
{
    char digits[DIGITS + 1];

    snprintf(digits, sizeof digits, "%016" PRIx64, (uint64_t)value);
    dpt_json_text(j, key, digits);
}

enum dpt_status dpt_audit_step(FILE *file, const struct dpt_trainer *t, const int64_t *hashes,
                               struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_json j = {.file = file};

    dpt_json_object(&j, NULL);
    dpt_json_int(&j, "step", t->progress.step);
    hash(&j, "weights", hashes[WEIGHTS]);
    hash(&j, "gradient", hashes[GRADIENT]);
    dpt_json_array(&j, "layers");
    for (int32_t i = 0; i < t->model.graph.n_tensors; i++) {
        const struct dpt_tensor *tensor = &t->model.graph.tensors[i];

        dpt_json_array(&j, NULL);
        dpt_json_text(&j, NULL, tensor->name);
        hash(&j, NULL, hashes[ARENAS * (i + 1) + WEIGHTS]);
        hash(&j, NULL, hashes[ARENAS * (i + 1) + GRADIENT]);
        dpt_json_end(&j);
    }
    dpt_json_end(&j);
    dpt_json_end(&j);
    DPT_TRY(dpt_json_finish(&j, "a line of hashes", err));
    if (j.error != 0 || fflush(file) != 0)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "hashes.jsonl"));
out:
    return status;
}

/* One of the two files, and the line that it is at. */
struct reader {
    char path[PATH_MAX];
    FILE *file;
    char *line;
    size_t capacity;
    int64_t step; /* -1: the file is at its end */
};

static enum dpt_status read_line(struct reader *r, struct dpt_error *err)
{
    static const char start[] = "{\"step\": ";
    const ssize_t n = getline(&r->line, &r->capacity, r->file);

    r->step = -1;
    if (n <= 0 || r->line[n - 1] != '\n') /* a kill may have cut the last line short */
        return DPT_OK;
    if (strncmp(r->line, start, sizeof start - 1) != 0)
        return dpt_fail(err, DPT_BAD_DATA, "%s: is no hashes.jsonl of dptrain", r->path);
    r->step = strtoll(r->line + sizeof start - 1, NULL, 10);
    return DPT_OK;
}

static enum dpt_status open_reader(struct reader *r, const char *path, struct dpt_error *err)
{
    snprintf(r->path, sizeof r->path, dpt_file_is_folder(path) ? "%s/hashes.jsonl" : "%s", path);
    if (!dpt_file_exists(r->path))
        return dpt_fail_errno(err, DPT_BAD_DATA, "%s (log.hashes: true makes a run write it)",
                              r->path);
    if (dpt_file_stream(r->path, DPT_FILE_READ, DPT_BAD_DATA, &r->file, err) != DPT_OK)
        return err->status;
    return read_line(r, err);
}

static void close_reader(struct reader *r)
{
    if (r->file != NULL)
        fclose(r->file);
    free(r->line);
}

/* The next tensor of a line: its name and two hashes. Returns the text after it, or NULL at the
 * end. */
static const char *next_layer(const char *at, char name[DPT_NAME], char hash[2][DIGITS + 1])
{
    int used = 0;

    at = strstr(at, "[\"");
    if (at == NULL ||
        sscanf(at, "[\"%63[^\"]\", \"%16[0-9a-f]\", \"%16[0-9a-f]\"]%n", name, hash[0], hash[1],
               &used) != 3 ||
        used == 0)
        return NULL;
    return at + used;
}

/* Reports where two lines of one step differ: a gradient first, since it makes the weights. */
static void describe_difference(const struct reader *a, const struct reader *b,
                                struct dpt_str *summary)
{
    static const char *const what[] = {"weights", "gradient"};

    dpt_str_printf(summary, "step %" PRId64 ": ", a->step);
    for (int k = 1; k >= 0; k--) {
        const char *x = strstr(a->line, "\"layers\""), *y = strstr(b->line, "\"layers\"");
        char names[2][DPT_NAME], hashes[2][2][DIGITS + 1];

        while (x != NULL && y != NULL && (x = next_layer(x, names[0], hashes[0])) != NULL &&
               (y = next_layer(y, names[1], hashes[1])) != NULL) {
            if (strcmp(names[0], names[1]) != 0) {
                dpt_str_printf(summary, "the models differ: %s and %s\n", names[0], names[1]);
                return;
            }
            if (strcmp(hashes[0][k], hashes[1][k]) == 0)
                continue;
            dpt_str_printf(summary, "the %s of %s differs first\n", what[k], names[0]);
            return;
        }
    }
    dpt_str_printf(summary, "the lines differ\n");
}

enum dpt_status dpt_audit_compare(const char *a, const char *b, struct dpt_str *summary, bool *same,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct reader x = {0}, y = {0};
    int64_t first = -1, last = -1, count = 0;

    *same = true;
    DPT_TRY(open_reader(&x, a, err));
    DPT_TRY(open_reader(&y, b, err));
    while (x.step >= 0 && y.step >= 0 && *same) {
        if (x.step != y.step) {
            DPT_TRY(read_line(x.step < y.step ? &x : &y, err));
            continue;
        }
        *same = strcmp(x.line, y.line) == 0;
        if (!*same) {
            describe_difference(&x, &y, summary);
            break;
        }
        first = first < 0 ? x.step : first;
        last = x.step;
        count++;
        DPT_TRY(read_line(&x, err));
        DPT_TRY(read_line(&y, err));
    }
    if (count > 0)
        dpt_str_printf(summary, "%" PRId64 " steps agree, %" PRId64 " to %" PRId64 "\n", count,
                       first, last);
    else if (*same)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s and %s have no step in common", x.path, y.path));
out:
    close_reader(&x);
    close_reader(&y);
    return status;
}
