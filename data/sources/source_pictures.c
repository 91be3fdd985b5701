/*
 * Pictures as samples to predict: files, or folders of them. Each thread decodes those of its own
 * micro-batches.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "data/pictures/picture.h"
#include "data/pictures/picture_list.h"
#include "data/sources/source_type.h"

struct state {
    struct dpt_picture_list list;
    int32_t *classes; /* [list.n_classes]: the model's number of each sub-folder */
    struct dpt_picture_form form;
};

static bool is(const uint8_t *head, size_t n)
{
    return dpt_picture_is(head, n);
}

/* The model's number of a class by its sub-folder's name; -1: none. */
static int32_t class_of(const struct dpt_source *s, const struct dpt_picture_list *list, size_t i)
{
    const struct dpt_source_model *model = &s->spec->model;
    const char *name = list->classes[i];
    char *end;
    long number;

    for (size_t k = 0; k < model->n_classes; k++)
        if (strcmp(model->classes[k], name) == 0)
            return (int32_t)k;
    if (model->n_classes > 0)
        return -1;
    number = strtol(name, &end, 10);
    if (name[0] >= '0' && name[0] <= '9' && *end == '\0' && number < s->spec->outputs)
        return (int32_t)number;
    return list->n_classes == (size_t)s->spec->outputs ? (int32_t)i : -1;
}

/* Sub-folders are labels where the model knows every one of them: by its name, by a number or,
 * where no names are known and there are as many as classes, by their order. */
static enum dpt_status find_truth(struct dpt_source *s, struct dpt_error *err)
{
    struct state *state = s->state;
    const struct dpt_picture_list *list = &state->list;

    for (size_t i = 0; i < list->n; i++)
        if (list->entries[i].class < 0)
            return DPT_OK;
    if (!s->spec->classes || list->n_classes == 0)
        return DPT_OK;
    state->classes = calloc(list->n_classes, sizeof *state->classes);
    if (state->classes == NULL)
        return dpt_fail_memory(err, "the classes", (double)list->n_classes);
    for (size_t i = 0; i < list->n_classes; i++) {
        state->classes[i] = class_of(s, list, i);
        if (state->classes[i] < 0) {
            dpt_log_info(s->spec->log,
                         "the sub-folders are not called as the model's classes ('%s' is none), so "
                         "they are taken for no labels",
                         list->classes[i]);
            return DPT_OK;
        }
    }
    s->info.truth = DPT_TRUTH_CLASS;
    return DPT_OK;
}

/* One line about what happens to pictures of another size or colour; by the first of them. */
static enum dpt_status tell_scaling(const struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct state *state = s->state;
    const struct dpt_picture_form *form = &state->form;
    struct dpt_picture p = {0};

    DPT_TRY(dpt_picture_look(&p, state->list.entries[0].path, err));
    if (p.width != form->width || p.height != form->height || p.channels != form->channels)
        dpt_log_info(
            s->spec->log,
            "%s is %d wide and %d high%s: made %d wide and %d high%s, as the model takes it",
            state->list.entries[0].name, p.width, p.height,
            p.channels == form->channels ? ""
            : p.channels == 1            ? ", in grey"
                                         : ", in colour",
            form->width, form->height,
            p.channels == form->channels ? ""
            : form->channels == 1        ? ", in grey"
                                         : ", in colour");
    dpt_picture_list_tell(&state->list, s->spec->log);
    if (s->spec->model.typed && !s->spec->model.u8)
        dpt_log_warn(s->spec->log,
                     "the job's training data are float32, not bytes; pictures are divided by 255, "
                     "which may not be what was done to those");
out:
    return status;
}

static enum dpt_status open_source(struct dpt_source *s, int rank, int ranks, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = calloc(1, sizeof *state);
    const struct dpt_shape *shape = s->spec->shape != NULL ? s->spec->shape : &s->spec->model.shape;
    struct stat info;
    char text[40];

    (void)rank;
    (void)ranks;
    s->state = state;
    if (state == NULL)
        DPT_TRY(dpt_fail_memory(err, "the pictures", sizeof *state));
    if (!s->spec->model.known && s->spec->shape == NULL)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "what size do the pictures have to be? The job's training data, which "
                         "tell, are not there: --shape C,H,W says it, as in 1,28,28"));
    if (shape->flat || (shape->c != 1 && shape->c != 3))
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "the model takes samples of %s, which are no pictures: --shape 1,H,W or "
                         "3,H,W says of what size they are to be",
                         dpt_shape_text(shape, text)));
    state->form = (struct dpt_picture_form){shape->c, shape->h, shape->w, s->spec->invert};
    for (size_t i = 0; i < s->n_paths; i++) {
        if (stat(s->paths[i], &info) == 0 && S_ISDIR(info.st_mode))
            DPT_TRY(dpt_picture_list_folder(&state->list, s->paths[i], err));
        else
            DPT_TRY(dpt_picture_list_add(&state->list, s->paths[i], err));
    }
    DPT_TRY(dpt_source_parts(s, 1, err));
    s->parts[0].samples = (int64_t)state->list.n;
    s->form.shape = *shape;
    s->form.u8 = true;
    DPT_TRY(find_truth(s, err));
    DPT_TRY(tell_scaling(s, err));
out:
    return status;
}

static void close_source(struct dpt_source *s)
{
    struct state *state = s->state;

    dpt_picture_list_release(&state->list);
    free(state->classes);
    free(state);
}

static enum dpt_status read_rows(struct dpt_source *s, size_t part, int64_t row, int64_t n,
                                 uint8_t *stored, int32_t *classes, float *targets,
                                 struct dpt_error *err)
{
    const struct state *state = s->state;

    (void)part;
    (void)stored;
    (void)targets;
    (void)err;
    for (int64_t i = 0; classes != NULL && i < n; i++)
        classes[i] = state->classes[state->list.entries[row + i].class];
    return DPT_OK;
}

static enum dpt_status render(const struct dpt_source *s, int64_t sample, uint8_t *stored,
                              struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct state *state = s->state;
    struct dpt_picture picture = {0};

    DPT_TRY(dpt_picture_read(&picture, state->list.entries[sample].path, err));
    DPT_TRY(dpt_picture_shape(&picture, &state->form, stored, err));
out:
    dpt_picture_release(&picture);
    return status;
}

static const char *name(const struct dpt_source *s, int64_t sample)
{
    return ((const struct state *)s->state)->list.entries[sample].name;
}

const struct dpt_source_type dpt_source_pictures = {
    .kind = DPT_SOURCE_PICTURES,
    .is = is,
    .open = open_source,
    .close = close_source,
    .read = read_rows,
    .render = render,
    .name = name,
};
