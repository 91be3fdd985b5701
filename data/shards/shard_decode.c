/*
 * The image files that a shard keeps, decoded. Always at full size: libjpeg's scaled decoding
 * is faster, and gives other bytes than `dptrain convert`.
 */
#include <stdlib.h>

#include "core/base/str.h"
#include "data/shards/shard.h"

/* "FILE, sample 3 (cat/1.png)", for a message. */
static void name_sample(const struct dpt_shard *shard, int64_t sample, struct dpt_str *name)
{
    struct dpt_error ignored;
    char *ids = NULL;
    size_t stride;

    dpt_str_printf(name, "%s, sample %lld", shard->path, (long long)sample);
    if (shard->has_ids && dpt_shard_read_ids(shard, &ids, &stride, &ignored) == DPT_OK &&
        ids[(size_t)sample * stride] != '\0')
        dpt_str_printf(name, " (%s)", ids + (size_t)sample * stride);
    for (size_t i = 0; i < name->length; i++) /* whoever made the file may have named it so */
        if ((unsigned char)name->text[i] < ' ' || name->text[i] == 0x7F)
            name->text[i] = '?';
    free(ids);
}

enum dpt_status dpt_shard_picture(const struct dpt_shard *shard, int64_t sample,
                                  const uint8_t *bytes, size_t n, struct dpt_picture *picture,
                                  struct dpt_error *err)
{
    enum dpt_status status = dpt_picture_decode(picture, shard->path, bytes, n, false, err);
    struct dpt_str name = {0};

    if (status != DPT_BAD_DATA)
        return status;
    /* Its name takes a look into the file, so it is decoded again only to be told by that. */
    name_sample(shard, sample, &name);
    if (!name.failed)
        status = dpt_picture_decode(picture, name.text, bytes, n, false, err);
    dpt_str_release(&name);
    return status;
}

enum dpt_status dpt_shard_decode(const struct dpt_shard *shard, int64_t sample,
                                 const uint8_t *bytes, size_t n, uint8_t *out,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_picture picture = {0};

    DPT_TRY(dpt_shard_picture(shard, sample, bytes, n, &picture, err));
    DPT_TRY(dpt_picture_shape(&picture, &shard->form, out, err));
out:
    dpt_picture_release(&picture);
    return status;
}
