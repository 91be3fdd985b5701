/* WebP through libwebp: always colour; its orientation stands in a chunk of the file (RFC 9649). */
#include <string.h>

#include <webp/decode.h>

#include "data/pictures/picture_decode.h"

enum { RIFF = 12, CHUNK = 8 };
static const char what[] = "WebP file, or of a rare kind";

static bool is(const uint8_t *bytes, size_t n)
{
    return n >= RIFF && memcmp(bytes, "RIFF", 4) == 0 && memcmp(bytes + 8, "WEBP", 4) == 0;
}

/* What its EXIF chunk says; 1, upright, where there is none. */
static int orientation_of(const uint8_t *bytes, size_t n)
{
    for (size_t at = RIFF; at + CHUNK <= n;) {
        const uint8_t *c = bytes + at;
        const size_t size = dpt_picture_number(c + 4, 4, true);

        if (size > n - at - CHUNK)
            return 1;
        if (memcmp(c, "EXIF", 4) == 0)
            return dpt_picture_exif(c + CHUNK, size);
        at += CHUNK + size + size % 2;
    }
    return 1;
}

static enum dpt_status decode(struct dpt_picture *p, const char *path, const uint8_t *bytes,
                              size_t n, bool header_only, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    WebPBitstreamFeatures f;
    uint8_t *pixels = NULL;
    int width = 0, height = 0;
    size_t count;

    if (WebPGetFeatures(bytes, n, &f) != VP8_STATUS_OK)
        DPT_TRY(dpt_picture_damaged(path, what, NULL, err));
    if (f.has_animation)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: is an animated WebP file; save one of its images",
                         path));
    DPT_TRY(dpt_picture_room(p, path, (uint32_t)f.width, (uint32_t)f.height, 3, header_only, err));
    if (!header_only) {
        pixels = f.has_alpha ? WebPDecodeRGBA(bytes, n, &width, &height)
                             : WebPDecodeRGB(bytes, n, &width, &height);
        if (pixels == NULL || width != p->width || height != p->height)
            DPT_TRY(dpt_picture_damaged(path, what, NULL, err));
        count = (size_t)width * (size_t)height;
        if (f.has_alpha)
            dpt_picture_flatten(pixels, count, 3, p->pixels);
        else
            memcpy(p->pixels, pixels, count * 3);
    }
    DPT_TRY(dpt_picture_orient(p, path, orientation_of(bytes, n), err));
out:
    WebPFree(pixels);
    return status;
}

const struct dpt_picture_decoder dpt_picture_webp = {is, decode};
