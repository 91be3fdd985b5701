/*
 * completion: scripts for the shells.
 *
 * Each is a fixed part and what the tables say, as functions of the shell's own language. The
 * functions of bash and zsh leave their answer in $REPLY.
 */
#ifndef DPT_CMD_COMPLETION_H
#define DPT_CMD_COMPLETION_H

#include "cmd/words.h"

/* Write the script; check out->failed. */
void dpt_completion_bash(const struct dpt_cli *cli, const struct dpt_word_keys *keys,
                         struct dpt_str *out);
void dpt_completion_zsh(const struct dpt_cli *cli, const struct dpt_word_keys *keys,
                        struct dpt_str *out);
void dpt_completion_fish(const struct dpt_cli *cli, const struct dpt_word_keys *keys,
                         struct dpt_str *out);

/*
 * Adds text in single quotes; escape: how a quote inside is written ("'\\''" or "\\'"); a backslash
 * is doubled where `doubled`.
 */
void dpt_completion_quote(struct dpt_str *out, const char *text, const char *escape, bool doubled);

/* Shell functions for bash and zsh. _dptrain_options: for each command `begin`, what `write`
 * makes of each of its options, and `end`. */
void dpt_completion_options(struct dpt_str *out, const struct dpt_cli *cli, const char *begin,
                            void (*write)(struct dpt_str *out, const struct dpt_cli_option *option),
                            const char *end);
/* _dptrain_option and _dptrain_arguments: the kind of what an option (COMMAND:--option) and a
 * command take, and words for it; _dptrain_values: those that a key of the job file takes. */
void dpt_completion_values(struct dpt_str *out, const struct dpt_cli *cli,
                           const struct dpt_word_keys *keys);

#endif
