/*
 * A folder of PNG and JPEG files into shards: a sub-folder a class.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/base/rng.h"
#include "core/base/str.h"
#include "data/pictures/picture.h"
#include "data/pictures/picture_list.h"
#include "data/sources/convert.h"
#include "data/sources/source.h"

enum { BATCH_BYTES = 1 << 20 };

struct pictures {
    const struct dpt_convert_job *job;
    struct dpt_picture_list list;
    struct dpt_arena arena;
    struct dpt_source_model like; /* --like */
    struct dpt_picture_form form; /* height 0: as they are */
    const char *const *names;     /* of the classes */
    size_t n_names;
    int32_t *numbers; /* [list.n_classes]: the class of each sub-folder */
    bool shuffle;
    uint64_t seed;
    double shown;
};

static enum dpt_status take_size(struct pictures *p, struct dpt_error *err)
{
    const char *text = p->job->option[DPT_CONVERT_SIZE];
    int end = 0;

    if (text == NULL)
        return DPT_OK;
    if (sscanf(text, "%6dx%6d%n", &p->form.height, &p->form.width, &end) != 2 ||
        text[end] != '\0' || p->form.height < 1 || p->form.width < 1 ||
        p->form.height > DPT_PICTURE_SIDE || p->form.width > DPT_PICTURE_SIDE)
        return dpt_fail(err, DPT_USAGE, "--size %s: must be height and width, as in 32x32", text);
    return DPT_OK;
}

static enum dpt_status take_seed(struct pictures *p, struct dpt_error *err)
{
    const char *text = p->job->option[DPT_CONVERT_SHUFFLE];
    char *end;

    if (text == NULL)
        return DPT_OK;
    p->shuffle = true;
    p->seed = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0')
        return dpt_fail(err, DPT_USAGE, "--shuffle %s: must be a whole number from 0 on", text);
    return DPT_OK;
}

/* Another set's form and classes. */
static enum dpt_status take_like(struct pictures *p, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *path = p->job->option[DPT_CONVERT_LIKE];
    const struct dpt_shape *shape = &p->like.shape;
    char text[40];

    if (path == NULL)
        return DPT_OK;
    if (p->form.height > 0 || p->form.channels > 0)
        DPT_TRY(dpt_fail(err, DPT_USAGE,
                         "--like says of what size and colour they are; leave "
                         "--size and --grey out"));
    DPT_TRY(dpt_source_model_of(&p->like, path, true, &p->arena, err));
    if (!p->like.u8 || shape->flat || (shape->c != 1 && shape->c != 3))
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "--like: %s holds samples of %s %s, which are no pictures", path,
                         dpt_shape_text(shape, text), p->like.u8 ? "uint8" : "float32"));
    if (p->like.n_classes == 0)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "--like: %s does not name its classes", path));
    p->form = (struct dpt_picture_form){shape->c, shape->h, shape->w, false};
out:
    return status;
}

/* Each picture needs a class, and each class a picture. */
static enum dpt_status check_list(const struct pictures *p, struct dpt_error *err)
{
    const struct dpt_picture_list *list = &p->list;
    const char *folder = p->job->inputs[0];

    if (list->n_classes == 0)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: holds pictures, but no sub-folders: a sub-folder a class is needed, "
                        "as in %s/cat/1.png and %s/dog/1.png",
                        folder, folder, folder);
    for (size_t i = 0; i < list->n; i++)
        if (list->entries[i].class < 0)
            return dpt_fail(err, DPT_BAD_DATA,
                            "%s: lies beside the sub-folders of the classes: of which class is it? "
                            "Move it into one of them",
                            list->entries[i].path);
    if (list->empty != NULL)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: holds no picture (.png, .jpg, .jpeg), so there is nothing to learn "
                        "this class from; remove the sub-folder or fill it",
                        list->empty);
    if (list->n_classes == 1 && p->job->log != NULL && p->n_names < 2)
        dpt_log_warn(p->job->log, "%s: one class only, '%s': there is nothing to tell apart",
                     folder, list->classes[0]);
    return DPT_OK;
}

/* The class numbers of the sub-folders. */
static enum dpt_status number_classes(struct pictures *p, struct dpt_error *err)
{
    const struct dpt_picture_list *list = &p->list;
    size_t longest = 1;

    p->numbers = dpt_alloc_array(list->n_classes, sizeof *p->numbers);
    if (p->numbers == NULL)
        return dpt_fail_memory(err, "the classes", (double)list->n_classes);
    p->names = p->like.n_classes > 0 ? p->like.classes : list->classes;
    p->n_names = p->like.n_classes > 0 ? p->like.n_classes : list->n_classes;
    for (size_t i = 0; i < list->n_classes; i++) {
        size_t k = 0;

        while (k < p->n_names && strcmp(p->names[k], list->classes[i]) != 0)
            k++;
        if (k == p->n_names)
            return dpt_fail(err, DPT_BAD_DATA, "%s/%s: is no class of %s", p->job->inputs[0],
                            list->classes[i], p->job->option[DPT_CONVERT_LIKE]);
        p->numbers[i] = (int32_t)k;
    }
    for (size_t k = 0; k < p->n_names; k++)
        longest = strlen(p->names[k]) > longest ? strlen(p->names[k]) : longest;
    if (p->n_names * longest > DPT_CLASS_NAME_BYTES)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: %zu sub-folders with names of up to %zu bytes are too many for names "
                        "of classes",
                        p->job->inputs[0], p->n_names, longest);
    return DPT_OK;
}

static void show(struct pictures *p, size_t n)
{
    char done[32], all[32], line[96];

    if (p->job->log == NULL || dpt_now() - p->shown < 0.1)
        return;
    p->shown = dpt_now();
    snprintf(line, sizeof line, "looking at pictures: %s of %s",
             dpt_group_digits(done, (long long)n), dpt_group_digits(all, (long long)p->list.n));
    dpt_log_live(p->job->log, line);
}

/* Finds the size and colour that were not given: one size for all, colour where any has it. */
static enum dpt_status find_form(struct pictures *p, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_picture_form *form = &p->form;
    const bool size = form->height == 0, colour = form->channels == 0;
    struct dpt_picture one = {0};

    for (size_t i = 0; (size || colour) && i < p->list.n; i++) {
        const char *path = p->list.entries[i].path;

        if (p->job->stop != NULL && *p->job->stop != 0)
            DPT_TRY(dpt_fail(err, DPT_STOPPED, "stopped; nothing was written"));
        DPT_TRY(dpt_picture_look(&one, path, err));
        if (colour && one.channels > form->channels)
            form->channels = one.channels;
        if (size && i == 0) {
            form->height = one.height;
            form->width = one.width;
        }
        if (size && (one.height != form->height || one.width != form->width))
            DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                             "%s is %d high and %d wide, %s %d high and %d wide: --size %dx%d "
                             "makes all of one size",
                             p->list.entries[0].path, form->height, form->width, path, one.height,
                             one.width, form->height, form->width));
        show(p, i);
    }
out:
    if (p->job->log != NULL)
        dpt_log_live(p->job->log, NULL);
    return status;
}

static enum dpt_status store(const struct pictures *p, struct dpt_shard_writer *writer,
                             struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_picture_form *form = &p->form;
    const size_t bytes = (size_t)form->channels * (size_t)form->height * (size_t)form->width;
    const size_t batch = bytes < BATCH_BYTES ? BATCH_BYTES / bytes : 1, n = p->list.n;
    uint8_t *pixels = dpt_alloc_array(batch, bytes);
    int32_t *labels = dpt_alloc_array(batch, sizeof *labels);
    struct dpt_picture picture = {0};

    if (pixels == NULL || labels == NULL)
        DPT_TRY(dpt_fail_memory(err, "some pictures", (double)batch * (double)bytes));
    for (size_t i = 0; i < n; i++) {
        const size_t at =
            p->shuffle ? (size_t)dpt_permute(p->seed, DPT_STREAM_SHUFFLE, 0, n, i) : i;
        const struct dpt_picture_entry *entry = &p->list.entries[at];

        DPT_TRY(dpt_picture_read(&picture, entry->path, err));
        DPT_TRY(dpt_picture_shape(&picture, form, pixels + (i % batch) * bytes, err));
        dpt_picture_release(&picture);
        labels[i % batch] = p->numbers[entry->class];
        if ((i + 1) % batch == 0 || i + 1 == n)
            DPT_TRY(
                dpt_shard_writer_add(writer, pixels, labels, NULL, (int64_t)(i % batch) + 1, err));
    }
out:
    dpt_picture_release(&picture);
    dpt_free(pixels);
    dpt_free(labels);
    return status;
}

static enum dpt_status convert(struct pictures *p, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_shard_writer *writer = NULL;
    struct dpt_shard_form form = {.u8 = true, .n_dims = 3};

    if (p->job->n_inputs != 1)
        DPT_TRY(dpt_fail(err, DPT_USAGE, "pictures takes one folder; %zu inputs given",
                         p->job->n_inputs));
    DPT_TRY(take_size(p, err));
    p->form.channels = p->job->option[DPT_CONVERT_GREY] != NULL ? 1 : 0;
    DPT_TRY(take_seed(p, err));
    DPT_TRY(take_like(p, err));
    DPT_TRY(dpt_picture_list_folder(&p->list, p->job->inputs[0], err));
    DPT_TRY(number_classes(p, err));
    DPT_TRY(check_list(p, err));
    DPT_TRY(find_form(p, err));
    if (p->job->log != NULL)
        dpt_picture_list_tell(&p->list, p->job->log);
    form.samples = (int64_t)p->list.n;
    form.dims[0] = p->form.channels;
    form.dims[1] = p->form.height;
    form.dims[2] = p->form.width;
    form.classes = (int64_t)p->n_names;
    form.class_names = p->names;
    DPT_TRY(dpt_shard_writer_open(&writer, p->job, &form, err));
    DPT_TRY(store(p, writer, err));
    DPT_TRY(dpt_shard_writer_commit(writer, err));
out:
    dpt_shard_writer_close(writer);
    return status;
}

static enum dpt_status run(const struct dpt_convert_job *job, struct dpt_error *err)
{
    struct pictures p = {.job = job};
    const enum dpt_status status = convert(&p, err);

    dpt_picture_list_release(&p.list);
    dpt_arena_release(&p.arena);
    dpt_free(p.numbers);
    return status;
}

const struct dpt_converter dpt_convert_pictures = {
    .name = "pictures",
    .inputs = "FOLDER",
    .summary = "a folder of PNG and JPEG files, with a sub-folder a class",
    .details =
        "FOLDER/CLASS/... with pictures at any depth become uint8 [N,C,H,W], grey where all "
        "are grey, in the order of their names. The sub-folders' names, sorted (numbers by "
        "their value), are the classes, an attribute of /labels. Transparent is white; JPEGs "
        "are turned upright as their EXIF says; --size stretches. A test set goes with "
        "--like TRAINSHARD, so that its classes have the same numbers.",
    .options = 1u << DPT_CONVERT_SIZE | 1u << DPT_CONVERT_GREY | 1u << DPT_CONVERT_LIKE |
               1u << DPT_CONVERT_SHUFFLE,
    .run = run,
};
