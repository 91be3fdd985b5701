/*
 * completion: scripts for the shells.
 *
 * Each is a fixed part and what the tables say, as functions of the shell's own language.
 */
#ifndef DPT_CMD_COMPLETION_H
#define DPT_CMD_COMPLETION_H

#include "cmd/cli.h"
#include "cmd/words.h"

/* Names of enum dpt_word_kind, as the scripts have them. */
extern const char *const dpt_completion_kinds[DPT_WORD_KINDS];

/* Writes the script; check out->failed. */
void dpt_completion_bash(const struct dpt_word_keys *keys, struct dpt_str *out);
void dpt_completion_zsh(const struct dpt_word_keys *keys, struct dpt_str *out);
void dpt_completion_fish(const struct dpt_word_keys *keys, struct dpt_str *out);

/*
 * Adds text in single quotes; escape: how a quote inside is written ("'\\''" or "\\'"); a backslash
 * is doubled where `doubled`.
 */
void dpt_completion_quote(struct dpt_str *out, const char *text, const char *escape, bool doubled);

/* The shell function _dptrain_options: for each command `begin`, what `write` makes of each of its
 * options, and `end`. */
void dpt_completion_options(struct dpt_str *out, const char *begin,
                            void (*write)(struct dpt_str *out, const struct dpt_cli_option *option),
                            const char *end);

#endif
