/* What is written as PNG is a whole file, and is read back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "data/pictures/picture.h"

static void png_is_read_back(void **state)
{
    enum { WIDTH = 7, HEIGHT = 5 };
    static const uint8_t end[] = {0, 0, 0, 0, 'I', 'E', 'N', 'D', 0xae, 0x42, 0x60, 0x82};

    (void)state;
    for (int channels = 1; channels <= 3; channels += 2) {
        uint8_t pixels[WIDTH * HEIGHT * 3];
        struct dpt_picture picture = {0};
        struct dpt_str out = {0};
        struct dpt_error err;

        for (size_t i = 0; i < sizeof pixels; i++)
            pixels[i] = (uint8_t)(i * 37);
        dpt_picture_write(&out, pixels, WIDTH, HEIGHT, channels);
        assert_false(out.failed);
        assert_true(dpt_picture_is((const uint8_t *)out.text, out.length));
        assert_memory_equal(out.text + out.length - sizeof end, end, sizeof end);
        assert_int_equal(dpt_picture_decode(&picture, "a.png", (const uint8_t *)out.text,
                                            out.length, false, &err),
                         DPT_OK);
        assert_int_equal(picture.width, WIDTH);
        assert_int_equal(picture.height, HEIGHT);
        assert_int_equal(picture.channels, channels);
        assert_memory_equal(picture.pixels, pixels, (size_t)(WIDTH * HEIGHT * channels));
        dpt_picture_release(&picture);
        dpt_str_release(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(png_is_read_back)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
