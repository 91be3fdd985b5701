/*
 * lead: what a file is that stands where something else is wanted, and which command takes it.
 */
#ifndef DPT_CMD_LEAD_H
#define DPT_CMD_LEAD_H

#include "cmd/cmd.h"

/* Where RUN is a run folder with its job.yaml, and the command takes a --checkpoint: puts that job
 * in the place of RUN and, unless there is one, adds --checkpoint RUN. buf: the job's path, for as
 * long as cli is used. */
void dpt_lead_take_run(struct dpt_cli *cli, char *buf, size_t size);

/* Fails where the word that should be a job file is a folder, a checkpoint, or data: says so, and
 * which command takes it. Errors: BAD_JOB. */
enum dpt_status dpt_lead_job(const struct dpt_cli *cli, struct dpt_error *err);
/* Fails: `predict` has no samples, or no job in front of them. Errors: USAGE, BAD_JOB. */
enum dpt_status dpt_lead_samples(const struct dpt_cli *cli, struct dpt_error *err);
/* Fails where a path stands in the place of a format of `convert`. Errors: USAGE. */
enum dpt_status dpt_lead_format(const char *path, struct dpt_error *err);

#endif
