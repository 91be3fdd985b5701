/* Shards as ranks send them to each other: all of a job run one program on machines of one kind. */
#include <stdlib.h>
#include <string.h>

#include "data/shards/shard.h"

/* A text, or none, with its NUL, after its length. */
static void add_text(struct dpt_str *out, const char *text)
{
    const int64_t n = text != NULL ? (int64_t)strlen(text) : -1;

    dpt_str_add(out, (const char *)&n, sizeof n);
    if (text != NULL)
        dpt_str_add(out, text, (size_t)n + 1);
}

static const char *next_text(const char **at)
{
    const char *text = *at + sizeof(int64_t);
    int64_t n;

    memcpy(&n, *at, sizeof n);
    *at = text + n + 1;
    return n < 0 ? NULL : text;
}

/* Adds a text unless it is that of the shard before. */
static void add_new(struct dpt_str *out, const char *text, struct dpt_str *before)
{
    const bool same = text != NULL && before->text != NULL && strcmp(text, before->text) == 0;

    add_text(out, same ? NULL : text);
    if (text == NULL || same)
        return;
    dpt_str_clear(before);
    dpt_str_add(before, text, strlen(text));
}

void dpt_shard_pack(struct dpt_shard_pack *pack, const struct dpt_shard *shard)
{
    struct dpt_str names = {0};

    dpt_str_add(&pack->bytes, (const char *)shard, sizeof *shard);
    add_text(&pack->bytes, shard->images.name);
    add_text(&pack->bytes, shard->labels.name);
    add_text(&pack->bytes, shard->weights.name);
    dpt_class_names_write(shard->names.at, shard->names.n, &names);
    add_new(&pack->bytes, names.text, &pack->names);
    add_new(&pack->bytes, shard->columns, &pack->columns);
    if (shard->files)
        dpt_str_add(&pack->bytes, (const char *)shard->offsets,
                    (size_t)(shard->samples + 1) * sizeof *shard->offsets);
    pack->bytes.failed = pack->bytes.failed || names.failed;
    dpt_str_release(&names);
}

void dpt_shard_pack_release(struct dpt_shard_pack *pack)
{
    dpt_str_release(&pack->bytes);
    dpt_str_release(&pack->names);
    dpt_str_release(&pack->columns);
}

/* Copies the names of the fields, for whoever unpacked lives shorter than the shard. */
static enum dpt_status take_names(struct dpt_shard *shard, const char **at, struct dpt_error *err)
{
    const char *const begin = *at;
    const char *names[DPT_SHARD_FIELDS];

    for (size_t i = 0; i < DPT_SHARD_FIELDS; i++)
        names[i] = next_text(at);
    shard->texts = malloc((size_t)(*at - begin));
    if (shard->texts == NULL)
        return dpt_fail_memory(err, "the names of data sets", (double)(*at - begin));
    memcpy(shard->texts, begin, (size_t)(*at - begin));
    for (size_t i = 0; i < DPT_SHARD_FIELDS; i++) {
        struct dpt_field *field = dpt_shard_field(shard, i);

        field->name = names[i] != NULL ? shard->texts + (names[i] - begin) : NULL;
        field->path = shard->path;
        field->fd = -1;
    }
    return DPT_OK;
}

enum dpt_status dpt_shard_unpack(struct dpt_shard *shard, const char *path, bool offsets,
                                 const char **at, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *names, *columns;
    size_t bytes;

    memcpy(shard, *at, sizeof *shard);
    *at += sizeof *shard;
    bytes = shard->files ? (size_t)(shard->samples + 1) * sizeof *shard->offsets : 0;
    shard->path = shard->columns = shard->texts = NULL;
    shard->offsets = NULL;
    shard->names = (struct dpt_class_names){0};
    DPT_TRY(dpt_shard_begin(shard, path, err));
    DPT_TRY(take_names(shard, at, err));
    names = next_text(at);
    columns = next_text(at);
    if (names != NULL)
        DPT_TRY(dpt_class_names_parse(&shard->names, names, path, err));
    if (columns != NULL && (shard->columns = strdup(columns)) == NULL)
        DPT_TRY(dpt_fail_memory(err, "the columns", (double)strlen(columns)));
    if (offsets && bytes > 0 && (shard->offsets = malloc(bytes)) == NULL)
        DPT_TRY(dpt_fail_memory(err, "/offsets", (double)bytes));
    if (offsets && bytes > 0)
        memcpy(shard->offsets, *at, bytes);
    *at += bytes;
out:
    if (status != DPT_OK)
        dpt_shard_close(shard);
    return status;
}
