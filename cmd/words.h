/*
 * words: what can stand where on the command line, as completion and man page tell it.
 *
 * Made from the rows of the subcommands (cmd.h) and the tables of the job file (option.h), so that
 * a new option is known by being there.
 */
#ifndef DPT_CMD_WORDS_H
#define DPT_CMD_WORDS_H

#include "cmd/cmd.h"
#include "core/base/str.h"

/* What an argument is, for a shell. */
enum dpt_word_kind {
    DPT_WORD_ANY,  /* nothing to offer: a number, a name */
    DPT_WORD_FILE, /* any file */
    DPT_WORD_FOLDER,
    DPT_WORD_JOB,     /* *.yaml */
    DPT_WORD_HDF5,    /* *.h5: a shard or a checkpoint; or a folder */
    DPT_WORD_SETTING, /* KEY=VALUE of the job file */
    DPT_WORD_KINDS
};

struct dpt_word {
    enum dpt_word_kind kind;
    struct dpt_str words; /* fixed words that may stand there too, with spaces between them */
};

/* From the text behind an option's name: "auto|none|PATH", "DIR". Release word->words. */
void dpt_word_of_value(const char *value, struct dpt_word *word);
/* What stands behind a command's name, from its usage: "JOB.yaml [options]". Likewise. */
void dpt_word_of_command(const struct dpt_command *command, struct dpt_word *word);

/* A key of the job file and its values, for --set. */
struct dpt_word_key {
    const char *path;   /* "optimizer.type" */
    const char *values; /* the words it takes, a space behind each; "" */
    const char *help;
};

/* All keys, each once, in the order of the tables; n: out. The caller frees it as one; NULL: memory
 * ran out. */
struct dpt_word_keys;
struct dpt_word_keys *dpt_word_keys_make(void);
size_t dpt_word_keys_count(const struct dpt_word_keys *keys);
struct dpt_word_key dpt_word_keys_at(const struct dpt_word_keys *keys, size_t i);
void dpt_word_keys_free(struct dpt_word_keys *keys);

#endif
