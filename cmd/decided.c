#include "cmd/decided.h"

#include <math.h>
#include <stdlib.h>

#include "cmd/job_command.h"

enum dpt_status dpt_decided_open(struct dpt_decided *d, struct dpt_error *err)
{
    dpt_decision_tell(&d->decision, " ", &d->thresholds);
    d->score =
        dpt_region_alloc(&d->decision.region, (size_t)d->decision.classes * sizeof *d->score);
    return d->score == NULL || d->thresholds.failed ? dpt_fail_memory(err, "the thresholds", 0)
                                                    : DPT_OK;
}

void dpt_decided_close(struct dpt_decided *d)
{
    dpt_decision_close(&d->decision);
    dpt_str_release(&d->thresholds);
    free(d->said);
}

static void count(struct dpt_class_score *score, bool holds, bool says)
{
    score->weight += holds;
    score->chosen += says;
    score->right += holds && says;
}

/* Decides for each of several labels; tells whether all are right. truth: or NULL. */
static bool decide_labels(struct dpt_decided *d, const float *logits, const float *truth,
                          int32_t *said)
{
    bool right = true;

    for (int32_t k = 0; k < d->decision.classes; k++) {
        said[k] = isfinite(logits[k]) ? dpt_label_holds(logits[k], d->decision.odds[k]) : -1;
        if (truth == NULL)
            continue;
        count(&d->score[k], truth[k] >= 0.5F, said[k] > 0);
        right = right && (truth[k] >= 0.5F) == said[k];
    }
    return right;
}

/* The class of a sample of the run; -1: nobody knows it. */
static int32_t true_class(const struct dpt_decided *d, const struct dpt_predicted *p, int32_t i)
{
    const float *row = p->targets != NULL ? p->targets + (size_t)i * (size_t)p->outputs : NULL;

    return p->classes != NULL ? p->classes[i]
           : row == NULL      ? -1
           : d->decision.pair ? row[0] >= 0.5F
                              : dpt_argmax(row, p->outputs);
}

enum dpt_status dpt_decided_take(struct dpt_decided *d, const struct dpt_predicted *p,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t outputs = (size_t)p->outputs, width = d->decision.labels ? outputs : 1;

    DPT_GROW(d->said, &d->said_room, (size_t)p->count * width, "the classes of samples", err);
    for (int32_t i = 0; i < p->count; i++) {
        const float *logits = p->values + (size_t)i * outputs;
        const int32_t class = true_class(d, p, i);
        int32_t *said = d->said + (size_t)i * width;
        const float pair[2] = {0, logits[0]};

        if (d->decision.labels) {
            const float *truth = p->targets != NULL ? p->targets + (size_t)i * outputs : NULL;

            d->right += decide_labels(d, logits, truth, said);
            continue;
        }
        *said = dpt_decide(&d->decision, d->decision.pair ? pair : logits);
        d->right += *said == class;
        for (int32_t k = 0; class >= 0 && k < d->decision.classes; k++)
            count(&d->score[k], class == k, *said == k);
    }
    d->samples += p->count;
out:
    return status;
}

void dpt_decided_tell(const struct dpt_decided *d, struct dpt_str *out)
{
    const struct dpt_decision *decision = &d->decision;
    char number[DPT_CLASS_NUMBER];

    dpt_str_printf(out, "by %s: %s %.4f", d->thresholds.text,
                   decision->labels ? "exact match" : "accuracy",
                   (double)d->right / (double)d->samples);
    for (int32_t k = 0; k < decision->classes; k++) {
        const struct dpt_class_score *c = &d->score[k];

        if (isnan(decision->threshold[k]))
            continue;
        dpt_str_printf(out, ", of %s precision %.4f and recall %.4f",
                       dpt_class_text(&decision->called, k, number),
                       c->chosen > 0 ? c->right / c->chosen : 0,
                       c->weight > 0 ? c->right / c->weight : 0);
    }
}
