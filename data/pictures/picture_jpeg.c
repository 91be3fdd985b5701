/*
 * JPEG through libjpeg. Its own way with errors is to print them and to end the program; here it
 * jumps back instead. What it calls a warning, a scan that breaks off or does not fit, is damage.
 */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>

#include "data/pictures/picture_decode.h"

struct reading {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    jmp_buf back;
    uint8_t *inks; /* one row of four; NULL: the image has none */
    char said[JMSG_LENGTH_MAX];
};

static void fail(j_common_ptr jpeg)
{
    struct reading *r = jpeg->client_data;

    jpeg->err->format_message(jpeg, r->said);
    longjmp(r->back, 1);
}

/* Bytes between markers, and marks of programs, that many cameras and editors leave, harm nothing.
 */
static void note(j_common_ptr jpeg, int level)
{
    const int code = jpeg->err->msg_code;

    if (level < 0 && code != JWRN_EXTRANEOUS_DATA && code != JWRN_ADOBE_XFORM &&
        code != JWRN_JFIF_MAJOR)
        fail(jpeg);
}

static void say_nothing(j_common_ptr jpeg)
{
    (void)jpeg;
}

/* Some markers of this number hold XMP. */
static int orientation_of(const struct reading *r)
{
    for (jpeg_saved_marker_ptr m = r->jpeg.marker_list; m != NULL; m = m->next)
        if (m->marker == JPEG_APP0 + 1 && m->data_length > 5 && memcmp(m->data, "Exif", 5) == 0)
            return dpt_picture_exif(m->data, m->data_length);
    return 1;
}

/* Reads up to the size; false where libjpeg jumped out. */
static bool head_of(struct reading *r, const uint8_t *bytes, size_t n)
{
    if (setjmp(r->back) != 0)
        return false;
    jpeg_create_decompress(&r->jpeg);
    jpeg_mem_src(&r->jpeg, bytes, (unsigned long)n);
    jpeg_save_markers(&r->jpeg, JPEG_APP0 + 1, 0xFFFF);
    jpeg_read_header(&r->jpeg, TRUE);
    r->jpeg.out_color_space = r->jpeg.num_components == 4                 ? JCS_CMYK
                              : r->jpeg.jpeg_color_space == JCS_GRAYSCALE ? JCS_GRAYSCALE
                                                                          : JCS_RGB;
    /* This method gives byte-identical pixels on every build and machine. */
    r->jpeg.dct_method = JDCT_ISLOW;
    return true;
}

/* Inks, of print, are stored as Adobe's programs have them, and as Pillow takes all of them: 255 is
 * none. */
static bool rows_of(struct reading *r, const struct dpt_picture *p)
{
    const size_t row = (size_t)p->width * (size_t)p->channels;

    if (setjmp(r->back) != 0)
        return false;
    jpeg_start_decompress(&r->jpeg);
    while (r->jpeg.output_scanline < r->jpeg.output_height) {
        uint8_t *out = p->pixels + (size_t)r->jpeg.output_scanline * row;
        JSAMPROW line = r->inks != NULL ? r->inks : out;

        jpeg_read_scanlines(&r->jpeg, &line, 1);
        if (r->inks != NULL)
            dpt_picture_inks(r->inks, (size_t)p->width, true, out);
    }
    jpeg_finish_decompress(&r->jpeg);
    return true;
}

static enum dpt_status decode(struct dpt_picture *p, const char *path, const uint8_t *bytes,
                              size_t n, bool header_only, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct reading r = {0};
    int orientation;

    r.jpeg.err = jpeg_std_error(&r.errors);
    r.jpeg.client_data = &r;
    r.errors.error_exit = fail;
    r.errors.emit_message = note;
    r.errors.output_message = say_nothing;
    if (!head_of(&r, bytes, n))
        DPT_TRY(dpt_picture_damaged(path, "JPEG file", r.said, err));
    if (r.jpeg.num_components == 2 || r.jpeg.num_components > 4)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: has %d colour channels; save it as RGB, grey or CMYK", path,
                         r.jpeg.num_components));
    DPT_TRY(dpt_picture_room(p, path, r.jpeg.image_width, r.jpeg.image_height,
                             r.jpeg.out_color_space == JCS_GRAYSCALE ? 1 : 3, header_only, err));
    if (r.jpeg.num_components == 4 && !header_only) {
        r.inks = malloc((size_t)p->width * 4);
        if (r.inks == NULL)
            DPT_TRY(dpt_fail_memory(err, path, (double)p->width * 4));
    }
    orientation = orientation_of(&r); /* finishing forgets the markers */
    if (!header_only && !rows_of(&r, p))
        DPT_TRY(dpt_picture_damaged(path, "JPEG file", r.said, err));
    DPT_TRY(dpt_picture_orient(p, path, orientation, err));
out:
    free(r.inks);
    jpeg_destroy_decompress(&r.jpeg);
    return status;
}

static bool is(const uint8_t *bytes, size_t n)
{
    return n >= 3 && memcmp(bytes, "\xff\xd8\xff", 3) == 0;
}

const struct dpt_picture_decoder dpt_picture_jpeg = {is, decode};
