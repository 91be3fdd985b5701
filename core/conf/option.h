/*
 * option: tables that say what a job may contain.
 *
 * Each module describes its options in an array of struct dpt_option that ends with a row without a
 * name; reading checks a map of the tree against the table, fills a struct by offsets, and puts the
 * defaults that were left out into the tree, so that the tree becomes the resolved job, its keys in
 * the order of the tables: read again, it gives the same structs. Help, schema, man page and error
 * texts walk the same tables.
 *
 * null, ~ or nothing after a key means "not given", as if the key were absent: the default is
 * taken. Only plain scalars are numbers, true, false or words like auto; in quotes they are text.
 *
 * A CUSTOM callback gets the node and its dotted path and may use everything here for what lies
 * below. A list of layers, each `relu`, `dense: 10` or `conv: {channels: 32}`:
 *
 *     for (size_t i = 0; i < node->n; i++) {
 *         const char *at = dpt_option_path(conf, path, NULL, i);     model.layers[3]
 *
 *         if (!dpt_option_entry(conf, node->items[i], at, "layer", names, n, &name, &value))
 *             continue;                                              noted as an error
 *         ... find the type and make its zeroed options ...
 *         if (!dpt_option_bare(conf, value, "outputs") ||            10 -> {outputs: 10}
 *             !dpt_options_read(conf, value, dpt_option_path(conf, at, name, 0),
 *                               type->options, options))             model.layers[3].dense
 *             return false;
 *     }
 *     return !conf->region.failed;
 */
#ifndef DPT_CONF_OPTION_H
#define DPT_CONF_OPTION_H

#include <stdint.h>

#include "core/base/json.h"
#include "core/conf/yaml.h"

enum dpt_option_type {
    DPT_OPT_BOOL,    /* bool; `true` or `false`, nothing else */
    DPT_OPT_INT,     /* int64_t; within [min, max] */
    DPT_OPT_REAL,    /* double; within [min, max], finite; `1e-3` and `1` are numbers */
    DPT_OPT_TEXT,    /* const char *, in the document's region; any scalar */
    DPT_OPT_NAME,    /* as TEXT, but one that can name a file or folder: dpt_option_is_name */
    DPT_OPT_CHOICE,  /* int: index into `choices` */
    DPT_OPT_INTS,    /* struct dpt_ints: a list, or one number for a list of one */
    DPT_OPT_REALS,   /* struct dpt_reals: likewise */
    DPT_OPT_TEXTS,   /* struct dpt_texts: likewise */
    DPT_OPT_NAMED,   /* struct dpt_named_reals: a map of any names to numbers */
    DPT_OPT_EVERY,   /* struct dpt_every: "1 epoch", "50 steps", "10 min" (s, min, h), "never",
                        "10 %"; of these what `units` says */
    DPT_OPT_SECTION, /* a struct with its own table `rows` at `offset` */
    DPT_OPT_VARIANT, /* struct dpt_variant_value: `type:` picks a row of `variants`, whose table
                        reads the other keys; left out: the default's, which is a name alone */
    DPT_OPT_CUSTOM,  /* whatever `read` makes of the node */
};

struct dpt_ints {
    int64_t *at;
    size_t n;
};
struct dpt_reals {
    double *at;
    size_t n;
};
struct dpt_texts {
    const char **at;
    size_t n;
};

struct dpt_named_reals {
    const char **names;
    double *at;
    size_t n;
};

enum dpt_unit { DPT_NEVER, DPT_EPOCHS, DPT_STEPS, DPT_SECONDS, DPT_PERCENT, DPT_AUTO };

struct dpt_every {
    double n;           /* > 0 unless unit is DPT_NEVER or DPT_AUTO; whole for steps */
    enum dpt_unit unit; /* DPT_AUTO: the row's `word` */
};

/* The words of a CHOICE, of the list that its enum is made of (base/str.h). */
#define DPT_CHOICES(list) ((const char *const[]){list(DPT_LIST_WORD) NULL})

/* How another value of an option affects a run that continues from a checkpoint. */
enum dpt_effect {
    DPT_EFFECT_AS_ABOVE,  /* as the section's, variant's or entry's that the row stands in */
    DPT_EFFECT_BY_ROW,    /* SECTION: each of its rows says it */
    DPT_EFFECT_RESULT,    /* other bytes in the weights: a run does not resume with it */
    DPT_EFFECT_LENGTH,    /* where it ends; up to there its steps are the same */
    DPT_EFFECT_NONE,      /* nothing changes; so it does not stand in a checkpoint's job */
    DPT_EFFECT_NONE_KEPT, /* likewise, but the first checkpoints had it in their job: there its
                             default stands, whatever the job says */
    DPT_EFFECT_OUTPUT     /* as NONE: where results go, and what is told of them */
};

struct dpt_alternatives;

struct dpt_option {
    const char *name;
    enum dpt_option_type type;
    size_t offset;
    /*
     * YAML text of the default ("32", "[0.1307]", "{}"); NULL: must be given. "null" (where that is
     * not `word`): may be left out, and then `dest` stays zero (CHOICE: -1) and a CUSTOM `read` is
     * not called.
     */
    const char *fallback;
    double min,
        max; /* INT, INTS, REAL, REALS, NAMED; min == max == 0: no bounds but the type's; INFINITY:
                        none on that side */
    const char *word; /* INT, REAL, EVERY: a word that stands for "none or automatic" ("auto",
                         "null"), read as `word_value`, or as the unit DPT_AUTO */
    double word_value;
    bool range;                    /* REALS: two numbers, the least and the most */
    size_t most;                   /* INTS: entries of a list, at least one; 0: any number */
    unsigned units;                /* EVERY: bits 1 << enum dpt_unit of those allowed; 0: all but
                                      per cent */
    const char *const *choices;    /* CHOICE: names, ends with NULL */
    const struct dpt_option *rows; /* SECTION */
    const char *bare; /* SECTION: the option that a value which is no map stands for, or NULL */
    const struct dpt_variant *const *variants; /* VARIANT: ends with NULL */
    /*
     * CUSTOM: reads `node` into `dest` (the address base + offset), adds errors to conf, may
     * rewrite the node into its full form. Returns false only where memory ran out.
     */
    bool (*read)(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path, void *dest);
    const char *rival; /* the key beside it that says the same in another way: not both; but one
                          that is set takes the place of the file's. Both default to "null" */
    enum dpt_effect effect;
    /*
     * The option was added after the first checkpoints were written: a checkpoint's job does not
     * hold it at its default, so that jobs without it keep their bytes. Older rows always stand
     * there.
     */
    bool added;
    const char *value_text; /* CUSTOM: what the value looks like, for help: "list of layers" */
    const struct dpt_alternatives
        *alternatives; /* CUSTOM: the values that it reads, for the schema; NULL: anything */
    const char *help;  /* one line, lower case, no full stop */
};

/* A kind of entry in a list of named things: `relu`, `dense: 10`, `conv: {channels: 32}`. */
struct dpt_option_kind {
    const char *name, *summary;
    const struct dpt_option *options;
    const char *bare; /* option that a value which is no map stands for, or NULL */
};

/* The values that a CUSTOM row accepts, as far as a table can describe them. */
struct dpt_alternatives {
    const struct dpt_option *entries; /* a list of maps that this table reads; else NULL, and: */
    const struct dpt_option *either; /* whatever one of these rows reads (their names do not matter,
                                        but the last has none); or NULL: a list of kinds */
    size_t most;                     /* entries of such a list, at least one; 0: any number */
    bool (*kind)(size_t i, struct dpt_option_kind *kind); /* the i-th, or false after the last */
    const char *name; /* of such a list whose kinds may have such a list themselves; or NULL */
};

/* What a row has that reads a number into the member of a struct of the same name. */
#define DPT_ROW_REAL(options, member, usual, least, most)                                          \
    .name = #member, .type = DPT_OPT_REAL, .offset = offsetof(options, member),                    \
    .fallback = (usual), .min = (least), .max = (most)

/* One of several kinds of a thing, each with its own options (an optimizer, a schedule, a model, a
 * loss). */
struct dpt_variant {
    const char *name;
    const char *summary;
    const struct dpt_option *options; /* may be empty, never NULL */
    size_t size;                      /* of the struct that the options fill */
    const void *impl; /* the module's own table of operations for this kind; may be NULL */
};

/* What a VARIANT is read into: the row, and its options in the document's region. `optimizer: adam`
 * and `{type: adam}` are the same. */
struct dpt_variant_value {
    const struct dpt_variant *variant;
    void *options;
    const struct dpt_conf_node *at; /* where it stands, in */
    const char *file;               /* this one; for messages about what only shows later */
};

/*
 * Reads a map against a table into `base`. path: dotted name of the map, "" for the root. Every
 * error is added to conf: unknown keys with a suggestion, wrong types, values out of bounds,
 * missing keys. Defaults are put into the map. Returns false only where memory ran out. *base is
 * zeroed by the caller.
 */
bool dpt_options_read(struct dpt_conf *conf, struct dpt_conf_node *map, const char *path,
                      const struct dpt_option *table, void *base);

/* Reads one value as the row says (what dpt_options_read does for each key); a null node becomes
 * the row's default. */
bool dpt_option_read(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path,
                     const struct dpt_option *row, void *dest);

/* Whether a text can name a file in a folder, and be told in a line: 1 to 255 bytes without a
 * slash, control character or line end, and neither . nor .. */
bool dpt_option_is_name(const char *text);

/* The whole path of the key that a word is a synonym of, or NULL. */
const char *dpt_option_synonym(const struct dpt_synonym *synonyms, const char *word);
/* What a word that is none of n names may mean: the one that is spelt otherwise, or is a synonym of
 * it, or is near; a sentence; or NULL. path: of an unknown key, for which the path of another may
 * stand; NULL: only the names are meant. */
const char *dpt_word_meant(const struct dpt_synonym *synonyms, const char *path, const char *word,
                           const char *const *names, size_t n);

/*
 * What a word that is none of n names may mean: "; did you mean 'full'?", "; ranks are ..." or "".
 * path: of an unknown key, which may then be meant to stand elsewhere; NULL: it is a value. In the
 * region.
 */
const char *dpt_value_suggestion(struct dpt_conf *conf, const char *path, const char *text,
                                 const char *const *names, size_t n);

/* "path.key", or "path[index]" where key is NULL; in the region. NULL where memory ran out
 * (conf->region.failed). */
const char *dpt_option_path(struct dpt_conf *conf, const char *path, const char *key, size_t index);

/*
 * Takes apart an entry of a list of named things: `relu`, or a map with one key, `conv: {…}`.
 * *name: the key; *value: what stands after it, an empty map where there is nothing; the entry is
 * rewritten to {name: value}. what: "layer", for messages; names: those that exist, for the
 * suggestion. False where the entry is no such thing (an error was added) or memory ran out.
 */
bool dpt_option_entry(struct dpt_conf *conf, struct dpt_conf_node *entry, const char *path,
                      const char *what, const char *const *names, size_t n_names, const char **name,
                      struct dpt_conf_node **value);

/* Turns a node that is not a map into {key: node}: `dense: 10` into `dense: {outputs: 10}`. False
 * where memory ran out. */
bool dpt_option_bare(struct dpt_conf *conf, struct dpt_conf_node *node, const char *key);

/*
 * Writes the table as help text: dotted names, types, bounds, defaults, help; 80 columns.
 *
 * key: "" for all of it; "batch" or "optimizer.lr" for one key and those in it; "lr" for all whose
 * last name that is. Returns whether there was any.
 */
bool dpt_options_help(const struct dpt_option *table, const char *key, struct dpt_str *out);

/*
 * Writes the table as a JSON Schema (draft 7) of a file that it reads. It accepts what
 * dpt_options_read accepts, but for rules between keys, those of CUSTOM rows beyond their
 * `alternatives`, and how a scalar is spelt (32.0 where 32 is wanted).
 */
void dpt_options_schema(const struct dpt_option *table, const char *title, struct dpt_json *j);

/* A row on a walk over all tables that a table leads to. */
struct dpt_option_visit {
    const char *path;              /* "optimizer.lr"; "conv.channels" for a kind's */
    const struct dpt_option *row;  /* NULL: where a variant's or kind's own rows begin */
    const char *variant, *summary; /* whose, and what it is; or NULL */
    int depth;                     /* sections, variants and kinds that it stands in */
    bool listed;                   /* in an entry of a list: `path` begins at the kind */
};

/* Visits every row, in the order of the tables, each before those in it; the kinds of a list not
 * once more in an entry of a list. */
void dpt_options_walk(const struct dpt_option *table,
                      void (*visit)(void *arg, const struct dpt_option_visit *at), void *arg);

/* Writes what dpt_options_help says of one row, or of a variant where `row` is NULL. */
void dpt_option_help(const struct dpt_option_visit *at, struct dpt_str *out);

/* "whole number in 1 … 64 or auto; default 32"; adds it to out. */
void dpt_option_describe(const struct dpt_option *row, struct dpt_str *out);

/*
 * A tree as a flat list of keys and values, for tables and for comparing: a setting is a scalar, a
 * list of scalars, or an empty list or map: "optimizer.lr", "data.train",
 * "model.layers[3].conv.kernel".
 */
/* path: lives during the visit. effect: what its row says of it, or that of what it stands in. */
typedef void dpt_setting_visit(void *arg, const char *path, const struct dpt_conf_node *setting,
                               enum dpt_effect effect);

/* Whether a node is a setting. */
bool dpt_conf_is_setting(const struct dpt_conf_node *node);
/* Visits the settings below a node, in the order of the tree. False where memory ran out. */
bool dpt_conf_settings(const struct dpt_conf_node *root, dpt_setting_visit *visit, void *arg);

/* Adds a setting's value in one line as a terminal may show it: `0.1`, `[1, 28, 28]`, `{}`. */
void dpt_conf_setting_text(const struct dpt_conf_node *setting, struct dpt_str *out);

/* Bytes of the decimal number that text begins with, 0 for none: [+-] digits [. digits] [e [+-]
 * digits], or `.5`, `5.` */
size_t dpt_number_length(const char *text);
/* Reads a whole number or a number from all of `text`. False where it is none or out of range of
 * the type. */
bool dpt_parse_int(const char *text, int64_t *value);
bool dpt_parse_real(const char *text, double *value);
/* Reads a size above 0: a number and B, kB, MB, GB or TB (powers of 1000; k, M, G and T are the
 * same), or KiB, MiB, GiB or TiB (of 1024), in upper or lower case. bare: what a number without a
 * unit counts, in bytes; 0: it must have one. NULL, or static text that says what is wrong. */
const char *dpt_parse_size(const char *text, double bare, double *bytes);

#endif
