/* Headers of safetensors files at their bounds. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/interchange/weights.h"

/* A file of one float, whose shape has so many dimensions of size 1. */
static void write_file(const char *path, int dims)
{
    static const char type[] = "{\"w\":{\"dtype\":\"F32\",\"data_offsets\":[0,4],\"shape\":[";
    const float number = 2.5F;
    char header[256];
    unsigned char length[8] = {0};
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    strcpy(header, type);
    for (int d = 0; d < dims; d++)
        strcat(header, d == 0 ? "1" : ",1");
    strcat(header, "]}}");
    length[0] = (unsigned char)strlen(header);
    assert_int_equal(fwrite(length, 1, sizeof length, file), sizeof length);
    assert_int_equal(fwrite(header, 1, strlen(header), file), strlen(header));
    assert_int_equal(fwrite(&number, 1, sizeof number, file), sizeof number);
    assert_int_equal(fclose(file), 0);
}

static void eight_dimensions_are_read_and_nine_refused(void **state)
{
    char path[] = "/tmp/dptrain-test-XXXXXX";
    const int fd = mkstemp(path);
    struct dpt_error err = {0};

    (void)state;
    assert_true(fd >= 0);
    close(fd);
    for (int dims = 0; dims <= 9; dims++) {
        struct dpt_weights w = {0};
        enum dpt_status status;

        write_file(path, dims);
        status = dpt_weights_open(&w, path, NULL, &err);
        if (status != (dims <= 8 ? DPT_OK : DPT_BAD_DATA))
            fail_msg("%d dimensions: %s", dims, status == DPT_OK ? "read" : err.text);
        if (status == DPT_OK) {
            float number = 0;

            assert_int_equal(w.n, 1);
            assert_int_equal(w.at[0].n_dims, dims);
            assert_int_equal(w.at[0].count, 1);
            assert_int_equal(dpt_weights_read(&w, &w.at[0], &number, &err), DPT_OK);
            assert_true(number == 2.5F);
        } else {
            assert_non_null(strstr(err.text, "'w' has more than 8 dimensions"));
        }
        dpt_weights_close(&w);
    }
    unlink(path);
}

/* Asking about a file that is not there leaves the process' own files open, the first one too. */
static void a_missing_file_is_nobodys(void **state)
{
    const int first = dup(0) >= 0 ? fcntl(0, F_GETFD) : open("/dev/null", O_RDONLY);

    (void)state;
    assert_true(first >= 0);
    assert_false(dpt_weights_foreign("/nowhere/w.h5", NULL));
    assert_true(fcntl(0, F_GETFD) >= 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eight_dimensions_are_read_and_nine_refused),
        cmocka_unit_test(a_missing_file_is_nobodys),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
