/* Texts in attributes of HDF5 files, in a file that lies in memory alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "data/shards/h5.h"

/* As they are, and none where an attribute says that it holds more than 64 MB. */
static void texts_are_read_up_to_a_bound(void **state)
{
    static const struct {
        size_t width;
        hsize_t count;
        size_t read;
    } cases[] = {{3, 2, 2}, {1, 1000, 1000}, {100000, 9, 9}, {64000001, 1, 0}};
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    hid_t file;

    (void)state;
    H5Pset_fapl_core(access, 1 << 27, 0);                               /* grows at once */
    H5Pset_libver_bounds(access, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST); /* for large attributes */
    file = H5Fcreate("test_h5_text.h5", H5F_ACC_TRUNC, H5P_DEFAULT, access);
    assert_true(file >= 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate_simple(1, &cases[i].count, NULL);
        char *bytes = calloc(cases[i].count, cases[i].width);
        const char *const *texts;
        hid_t attribute;
        size_t n;

        assert_non_null(bytes);
        bytes[0] = 'a';
        assert_true(H5Tset_size(type, cases[i].width) >= 0);
        attribute = H5Acreate2(file, "texts", type, space, H5P_DEFAULT, H5P_DEFAULT);
        assert_true(attribute >= 0 && H5Awrite(attribute, type, bytes) >= 0);
        H5Aclose(attribute);
        texts = dpt_h5_texts(file, "texts", &n);
        assert_int_equal(n, cases[i].read);
        assert_int_equal(texts != NULL, cases[i].read > 0);
        if (texts != NULL)
            assert_string_equal(texts[0], "a");
        free((void *)texts);
        free(bytes);
        H5Adelete(file, "texts");
        H5Sclose(space);
        H5Tclose(type);
    }
    H5Fclose(file);
    H5Pclose(access);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_read_up_to_a_bound),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
