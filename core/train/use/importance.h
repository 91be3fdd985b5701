/*
 * importance: how much worse a model of a table gets without a column's information.
 *
 * Permutation importance (Breiman 2001; Fisher, Rudin & Dominici 2019), as scikit-learn's
 * permutation_importance: the column's values are shuffled among the samples of a split, several
 * times, and the mean drop of accuracy or R2 is reported. The numbers of a category, or of whatever
 * else a column became, are shuffled together.
 */
#ifndef DPT_TRAIN_IMPORTANCE_H
#define DPT_TRAIN_IMPORTANCE_H

#include "core/base/memory.h"
#include "core/train/trainer.h"

struct dpt_importance {
    const char *name;    /* the column's; else its place in the sample, from 1 */
    int32_t first, n;    /* its numbers in a sample */
    double drop, spread; /* mean and standard deviation over the repeats */
};

/* Zero-initialise; release. */
struct dpt_importances {
    struct dpt_importance *at; /* [n], the largest drop first */
    size_t n;
    const char *score; /* "accuracy", "label accuracy" or "R2" */
    struct dpt_region region;
};

/* NULL, or why a split has no importance: it is no table, or not in memory. */
const char *dpt_importance_refused(const struct dpt_split *split);
/*
 * Measures all columns, with so many shuffles each, by the job's seed. Collective; the result is
 * rank 0's. t->scores and what else an evaluation leaves are those of a shuffled column then.
 * Errors: USAGE (dpt_importance_refused), BAD_DATA (no score to be had), dpt_trainer_evaluate's.
 */
enum dpt_status dpt_importance_measure(struct dpt_trainer *t, struct dpt_split *split, int repeats,
                                       struct dpt_importances *result, struct dpt_error *err);
void dpt_importances_release(struct dpt_importances *result);

#endif
