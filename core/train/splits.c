/* The data sets of a job, and which of their samples train, validate and test. */
#include <stdio.h>

#include "core/train/parts.h"

static enum dpt_status open_set(struct dpt_trainer *t, const char *name, struct dpt_dataset *set,
                                const struct dpt_texts *paths, uint64_t part, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char word[32];
    const struct dpt_dataset_spec spec = {
        .conf = &t->job->data,
        .paths = paths,
        .classes = t->model.loss.kind == DPT_LOSS_CROSS_ENTROPY,
        .seed = (uint64_t)t->job->seed,
        .part = part,
    };

    if (t->planned)
        return dpt_dataset_describe(set, &spec, err);
    snprintf(word, sizeof word, "opening data.%s", name);
    dpt_comm_note(t->comm, 0, word);
    DPT_TRY(dpt_dataset_open(set, &spec, t->comm, err));
    if (t->comm->world.rank == 0)
        dpt_dataset_warn_unused(set, t->log);
out:
    return status;
}

static void add_split(struct dpt_split *split, const char *name, const struct dpt_dataset *set)
{
    split->name = name;
    split->present = true;
    split->set = set;
    split->sampler.total = split->sampler.samples = set->samples;
}

/* valid: a fraction of train is a split of the same data set, not a data set of its own. */
static enum dpt_status open_valid(struct dpt_trainer *t, unsigned parts, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_texts *valid = &t->job->data.valid;
    double fraction;

    if (valid->n == 0)
        return DPT_OK;
    if (valid->n == 1 && dpt_parse_real(valid->at[0], &fraction)) {
        struct dpt_sampler *s = &t->data.train.sampler;

        if (!t->data.train.present)
            return DPT_OK;
        if (!(fraction > 0 && fraction <= 0.5))
            return dpt_fail(err, DPT_BAD_JOB, "data.valid: the fraction %s is not in (0, 0.5]",
                            valid->at[0]);
        s->held_out = (int64_t)((double)s->total * fraction + 0.5);
        if (s->held_out < 1)
            return dpt_fail(err, DPT_BAD_JOB, "data.valid: %s of %lld samples is not one sample",
                            valid->at[0], (long long)s->total);
        s->samples = s->total - s->held_out;
        add_split(&t->data.valid, "valid", t->data.train.set);
        t->data.valid.sampler.held_out = t->data.valid.sampler.samples = s->held_out;
        t->data.valid.sampler.validation = true;
        return DPT_OK;
    }
    if ((parts & DPT_PART_VALID) != 0) {
        DPT_TRY(open_set(t, "valid", &t->data.sets[1], valid, 1, err));
        add_split(&t->data.valid, "valid", &t->data.sets[1]);
    }
out:
    return status;
}

void dpt_trainer_warn_layout(const struct dpt_trainer *t, struct dpt_log *log)
{
    const struct dpt_split *const splits[] = {&t->data.train, &t->data.valid, &t->data.test};
    char text[DPT_ERROR_TEXT];

    for (size_t i = 0; i < 3; i++) {
        if (!splits[i]->present || !dpt_dataset_suspect_layout(splits[i]->set, text, sizeof text))
            continue;
        dpt_log_warn(log, "%s", text);
        break;
    }
}

enum dpt_status dpt_trainer_open_data(struct dpt_trainer *t, unsigned parts, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if ((parts & DPT_PART_TRAIN) != 0) {
        DPT_TRY(open_set(t, "train", &t->data.sets[0], &t->job->data.train, 0, err));
        add_split(&t->data.train, "train", &t->data.sets[0]);
    }
    DPT_TRY(open_valid(t, parts, err));
    if ((parts & DPT_PART_TEST) != 0 && t->job->data.test.n > 0) {
        DPT_TRY(open_set(t, "test", &t->data.sets[2], &t->job->data.test, 2, err));
        add_split(&t->data.test, "test", &t->data.sets[2]);
    }
    if (t->log != NULL)
        dpt_trainer_warn_layout(t, t->log);
out:
    return status;
}

void dpt_trainer_close_data(struct dpt_trainer *t)
{
    for (size_t i = 0; t->comm != NULL && i < 3; i++)
        dpt_dataset_close(&t->data.sets[i], t->comm);
}

/* A mean over samples none of which counts is nothing: told before the first step, not as NaN. */
static enum dpt_status check_weights(const struct dpt_split *split, struct dpt_error *err)
{
    const struct dpt_sampler *s = &split->sampler;
    int64_t samples[256];

    if (split->set->weights == NULL)
        return DPT_OK;
    for (int64_t first = 0, n; first < s->samples; first += n) {
        n = s->samples - first < 256 ? s->samples - first : 256;
        dpt_sampler_samples(s, 0, first, n, samples);
        for (int64_t i = 0; i < n; i++)
            if (split->set->weights[samples[i]] > 0)
                return DPT_OK;
    }
    return dpt_fail(err, DPT_BAD_DATA, "data.%s: all its %lld samples have weight 0: none counts",
                    split->name, (long long)s->samples);
}

enum dpt_status dpt_trainer_open_loaders(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_split *const splits[] = {&t->data.train, &t->data.valid, &t->data.test};

    for (size_t i = 0; i < 3; i++) {
        struct dpt_sampler *s = &splits[i]->sampler;

        if (!splits[i]->present)
            continue;
        DPT_TRY(check_weights(splits[i], err));
        DPT_TRY(dpt_loader_open(&splits[i]->loader, splits[i]->set, s,
                                i == 0 ? &t->job->data.augment : NULL, t->comm->world.rank,
                                t->comm->world.size, err));
    }
out:
    return status;
}

void dpt_trainer_close_loaders(struct dpt_trainer *t)
{
    struct dpt_split *const splits[] = {&t->data.train, &t->data.valid, &t->data.test};

    for (size_t i = 0; i < 3; i++) {
        dpt_loader_close(splits[i]->loader);
        splits[i]->loader = NULL;
    }
}
