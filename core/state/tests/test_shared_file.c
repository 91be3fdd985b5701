/* Who sees the file that rank 0 has open, and that what is written there comes back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/base/hash.h"
#include "core/state/shared_file.h"
#include "core/state/tests/folder.h"

enum { SIZE = 1 << 20 };

/* A new file, as a save makes it. */
static int make_file(struct dpt_shared_file *file, char temporary[TEXT])
{
    struct dpt_error err;
    char name[64];
    int fd;

    *file = (struct dpt_shared_file){.maker = 7};
    in_folder(file->path, "a.h5");
    snprintf(name, sizeof name, "a.h5.tmp-%lld", (long long)file->maker);
    fd = open(in_folder(temporary, name), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, SIZE), 0);
    assert_int_equal(dpt_shared_file_mark(file, fd, true, &err), DPT_OK);
    assert_int_equal(file->size, SIZE);
    return fd;
}

static bool sees(const struct dpt_shared_file *file, bool *same)
{
    const int fd = dpt_shared_file_open(file, same);

    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

/* Not another file of that name, whatever it is, nor one that has been made longer; a copy has
 * other numbers. */
static void only_that_file_is_seen(void **unused)
{
    struct dpt_shared_file file, other;
    char temporary[TEXT], aside[TEXT], *bytes;
    int fd = make_file(&file, temporary);
    bool same = false;

    (void)unused;
    assert_true(sees(&file, &same) && same);
    other = file;
    other.mark[3] ^= 1;
    assert_false(sees(&other, &same));
    other = file;
    other.maker = 8;
    assert_false(sees(&other, &same));
    other.maker = 0;
    assert_false(sees(&other, &same));
    assert_int_equal(ftruncate(fd, SIZE + 1), 0);
    assert_false(sees(&file, &same));
    assert_int_equal(ftruncate(fd, SIZE), 0);
    assert_int_equal(rename(temporary, in_folder(aside, "b.h5")), 0);
    assert_int_equal(symlink("b.h5", temporary), 0);
    assert_false(sees(&file, &same));
    unlink(temporary);
    assert_int_equal(mkfifo(temporary, 0666), 0);
    assert_false(sees(&file, &same));
    unlink(temporary);
    bytes = calloc(1, SIZE);
    assert_non_null(bytes);
    put_file(temporary, bytes, SIZE);
    assert_false(sees(&file, &same));
    memcpy(bytes, file.mark, sizeof file.mark);
    put_file(temporary, bytes, SIZE);
    assert_true(sees(&file, &same) && !same);
    free(bytes);
    close(fd);
    unlink(temporary);
    assert_false(sees(&file, &same));
}

static void what_is_written_comes_back(void **unused)
{
    enum { N = 600000, AT = 68, BEHIND = AT + N * (int)sizeof(float) };
    struct dpt_shared_file file;
    struct dpt_error err;
    char temporary[TEXT];
    uint32_t crc, again, first, second;
    float *x = malloc(2 * N * sizeof *x);
    int fd = make_file(&file, temporary);

    (void)unused;
    assert_non_null(x);
    for (int i = 0; i < N; i++)
        x[i] = (float)dice(5, (uint64_t)i, 1 << 24);
    assert_int_equal(dpt_shared_file_write(&file, fd, x, N, AT, &crc, &err), DPT_OK);
    assert_int_equal(crc, dpt_crc32(0, x, N * sizeof *x));
    assert_int_equal(dpt_shared_file_read(&file, fd, x + N, N, AT, &again, &err), DPT_OK);
    assert_int_equal(again, crc);
    assert_memory_equal(x, x + N, N * sizeof *x);
    assert_int_equal(dpt_shared_file_crc(file.path, fd, AT, AT + 999999, &first, &err), DPT_OK);
    assert_int_equal(dpt_shared_file_crc(file.path, fd, AT + 999999, BEHIND, &second, &err),
                     DPT_OK);
    assert_int_equal(dpt_crc32_join(first, second, BEHIND - AT - 999999), crc);
    assert_int_equal(dpt_shared_file_read(&file, fd, x, N, BEHIND, &crc, &err), DPT_IO);
    assert_non_null(strstr(err.text, file.path));
    close(fd);
    fd = open(temporary, O_RDONLY | O_CLOEXEC);
    assert_int_equal(dpt_shared_file_write(&file, fd, x, N, AT, &crc, &err), DPT_IO);
    assert_non_null(strstr(err.text, file.path));
    close(fd);
    unlink(temporary);
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_that_file_is_seen),
        cmocka_unit_test(what_is_written_comes_back),
    };

    return cmocka_run_group_tests(tests, enter, leave);
}
