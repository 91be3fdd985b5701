/*
 * resume: continues where an earlier run stopped.
 *
 * A run is a function of the job and of the state in a checkpoint, so nothing else is needed to
 * continue: the next step is the one that would have followed. This file decides what may differ
 * from the job that wrote the checkpoint.
 */
#ifndef DPT_TRAIN_RESUME_H
#define DPT_TRAIN_RESUME_H

#include "core/train/trainer.h"

struct dpt_resume {
    const char *path; /* a checkpoint, or a run folder for its newest; NULL: the job's own folder */
    bool none;        /* do not resume */
    bool any;         /* accept weights that are not finite */
    bool overwrite;   /* the run that the folder holds is replaced (overwritten.h) */
};

/* word: "auto", "none", or a path; NULL: auto. With `overwrite`, auto is none. any: as in the
 * struct. */
struct dpt_resume dpt_resume_parse(const char *word, bool overwrite, bool any);

enum dpt_resumed {
    DPT_RESUMED_NOT,   /* there is no state to continue from: the run begins */
    DPT_RESUMED,       /* the state was loaded */
    DPT_RESUMED_ENDED, /* the folder's run made all its steps, but kept no checkpoint */
};

/*
 * Collective over the world. Loads the state to continue from into the trainer, or leaves the
 * trainer as it is if there is none. *resumed: out. Damaged checkpoints of the job's own folder are
 * skipped with a warning each. Errors: BAD_JOB (the job differs; lists how), BAD_DATA (no
 * checkpoint is intact; the given one is damaged or of another model), USAGE (the run folder holds
 * a run that this one would overwrite), RANK, IO.
 */
enum dpt_status dpt_resume_run(struct dpt_trainer *t, const struct dpt_resume *resume,
                               const char *job_text, enum dpt_resumed *resumed,
                               struct dpt_error *err);

/* Reads the last line of FOLDER/metrics.jsonl. *step: the number of steps of a run that ended
 * there, after all its steps or *early; -1: that line is no end; -2: there is no such file. Errors:
 * IO. */
enum dpt_status dpt_resume_end(const char *folder, int64_t *step, bool *early,
                               struct dpt_error *err);

/*
 * Removes from FOLDER/NAME (metrics.jsonl, hashes.jsonl) what came after `step` (all of it if step
 * < 0), so that the resumed run repeats no step in it. Errors: IO, BAD_DATA.
 */
enum dpt_status dpt_resume_trim(const char *folder, const char *name, int64_t step,
                                struct dpt_error *err);

#endif
