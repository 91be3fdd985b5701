/*
 * words: what can stand where on the command line, as completion and man page tell it.
 *
 * Made from the rows of the subcommands (cmd.h) and the tables of the job file (option.h), so that
 * a new option is known by being there.
 */
#ifndef DPT_CMD_WORDS_H
#define DPT_CMD_WORDS_H

#include "cmd/cmd.h"
#include "core/base/memory.h"
#include "core/base/str.h"

/* What an argument is, for a shell. */
enum dpt_word_kind {
    DPT_WORD_ANY,  /* nothing to offer: a number, a name */
    DPT_WORD_FILE, /* any file */
    DPT_WORD_FOLDER,
    DPT_WORD_JOB,     /* *.yaml */
    DPT_WORD_HDF5,    /* *.h5: a shard or a checkpoint; or a folder */
    DPT_WORD_SETTING, /* KEY=VALUE of the job file */
    DPT_WORD_KEY,     /* a key of the job file */
    DPT_WORD_KINDS
};

/* Says what the text after an option's name takes: "auto|none|PATH", "DIR". Adds the fixed words
 * that may stand there to `words`, a space after each. */
enum dpt_word_kind dpt_word_of_value(const char *value, struct dpt_str *words);
/* The names that `dptrain layers` knows, a space after each. */
void dpt_word_kinds(struct dpt_str *words);
/* What stands after a command's name, from its usage: "JOB.yaml [options]". Likewise. */
enum dpt_word_kind dpt_word_of_command(const struct dpt_command *command, struct dpt_str *words);

/* A key of the job file and its values, for --set. */
struct dpt_word_key {
    const char *path;   /* "optimizer.type" */
    const char *values; /* the words it takes, a space after each; "" */
    const char *help;
};

/* All keys, each once, in the order of the tables. */
struct dpt_word_keys {
    struct dpt_word_key *at;
    size_t n, room;
    struct dpt_region texts;
    bool failed;
};

/* Fills *keys, to be closed in any case. Errors: RANK (memory). */
enum dpt_status dpt_word_keys_open(struct dpt_word_keys *keys, struct dpt_error *err);
void dpt_word_keys_close(struct dpt_word_keys *keys);

#endif
