#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/file.h"

enum { PATH_TEXT = 512 };

static char folder[PATH_TEXT / 4];

static const char *in_folder(char path[PATH_TEXT], const char *name)
{
    snprintf(path, PATH_TEXT, "%s/%s", folder, name);
    return path;
}

static int enter(void **state)
{
    const char *base = getenv("TMPDIR");

    (void)state;
    snprintf(folder, sizeof folder, "%s/dptrain-file-XXXXXX", base == NULL ? P_tmpdir : base);
    return mkdtemp(folder) == NULL;
}

static int entries(void)
{
    DIR *dir = opendir(folder);
    int n = 0;

    assert_non_null(dir);
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n - 2;
}

static int leave(void **state)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;
    char path[PATH_TEXT];

    (void)state;
    while (dir != NULL && (entry = readdir(dir)) != NULL)
        if (entry->d_name[0] != '.' || strlen(entry->d_name) > 2)
            remove(in_folder(path, entry->d_name));
    if (dir != NULL)
        closedir(dir);
    return rmdir(folder);
}

static void assert_holds(const char *path, const char *want, size_t n)
{
    struct dpt_error err;
    char *bytes;
    size_t length;

    assert_int_equal(dpt_file_read(path, n, DPT_BAD_JOB, &bytes, &length, &err), DPT_OK);
    assert_int_equal(length, n);
    assert_memory_equal(bytes, want, n);
    assert_int_equal(bytes[length], '\0');
    free(bytes);
}

static void what_is_written_is_read(void **state)
{
    struct dpt_error err;
    char path[PATH_TEXT], bytes[3000];

    (void)state;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)(i * 7);
    in_folder(path, "a");
    assert_false(dpt_file_exists(path));
    for (size_t n = 0; n <= sizeof bytes; n += 500) {
        assert_int_equal(dpt_file_write(path, bytes, n, &err), DPT_OK);
        assert_holds(path, bytes, n);
        assert_int_equal(entries(), 1);
    }
    assert_true(dpt_file_exists(path));
    unlink(path);
}

static void pieces_follow_each_other(void **state)
{
    const struct dpt_file_piece pieces[] = {{"ab", 2}, {NULL, 0}, {"c", 1}, {"defg", 4}};
    struct dpt_error err;
    char path[PATH_TEXT];

    (void)state;
    in_folder(path, "pieces");
    for (size_t n = 0; n <= 4; n++) {
        static const size_t lengths[] = {0, 2, 2, 3, 7};

        assert_int_equal(dpt_file_write_pieces(path, pieces, n, &err), DPT_OK);
        assert_holds(path, "abcdefg", lengths[n]);
        assert_int_equal(entries(), 1);
    }
    unlink(path);
}

/* A file that somebody else writes: the old one stays until the new one is whole. */
static void a_temporary_file_is_put_in_place(void **state)
{
    struct dpt_error err;
    char path[PATH_TEXT], *temporary;

    (void)state;
    in_folder(path, "x");
    assert_int_equal(dpt_file_write(path, "old", 3, &err), DPT_OK);
    assert_int_equal(dpt_file_temporary(path, &temporary, &err), DPT_OK);
    assert_holds(temporary, "", 0);
    assert_int_equal(dpt_file_write(temporary, "newer", 5, &err), DPT_OK);
    assert_holds(path, "old", 3);
    assert_int_equal(dpt_file_commit(temporary, path, &err), DPT_OK);
    assert_holds(path, "newer", 5);
    assert_int_equal(entries(), 1);
    assert_int_equal(dpt_file_commit(temporary, path, &err), DPT_IO);
    assert_non_null(strstr(err.text, path));
    free(temporary);
    unlink(path);
    in_folder(path, "none/x");
    assert_int_equal(dpt_file_temporary(path, &temporary, &err), DPT_IO);
    assert_null(temporary);
}

static void expect_read_error(const char *path, size_t limit, const char *says)
{
    struct dpt_error err;
    char *bytes = NULL;
    size_t length;

    assert_int_equal(dpt_file_read(path, limit, DPT_BAD_JOB, &bytes, &length, &err), DPT_BAD_JOB);
    assert_null(bytes);
    assert_non_null(strstr(err.text, path));
    assert_non_null(strstr(err.text, says));
}

static void reading_says_what_is_wrong(void **state)
{
    struct dpt_error err;
    char path[PATH_TEXT];

    (void)state;
    expect_read_error(in_folder(path, "missing"), 10, "No such file");
    expect_read_error(folder, 10, "is a folder");
    expect_read_error("/dev/zero", 10, "not a regular file");
    in_folder(path, "pipe");
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_read_error(path, 10, "not a regular file"); /* and does not wait for a writer */
    unlink(path);
    in_folder(path, "long");
    assert_int_equal(dpt_file_write(path, "12345678901", 11, &err), DPT_OK);
    expect_read_error(path, 10, "11 bytes");
    assert_holds(path, "12345678901", 11);
    unlink(path);
}

/* What may stand where a file should be. */
static void put_other(const char *kind, const char *path, const char *victim)
{
    if (strcmp(kind, "link") == 0)
        assert_int_equal(symlink(victim, path), 0);
    else if (strcmp(kind, "pipe") == 0)
        assert_int_equal(mkfifo(path, 0600), 0);
    else
        assert_int_equal(mkdir(path, 0700), 0);
}

/* No mode waits; reading follows a link, writing does not, and neither does what is put in place
 * whole. */
static void only_files_are_opened(void **state)
{
    static const char *const kinds[] = {"link", "pipe", "folder"};
    static const enum dpt_file_mode all[] = {DPT_FILE_READ, DPT_FILE_APPEND, DPT_FILE_UPDATE};
    char path[PATH_TEXT], victim[PATH_TEXT], says[32];
    struct dpt_error err;
    struct stat info;
    int fd;

    (void)state;
    in_folder(path, "other");
    in_folder(victim, "victim");
    assert_int_equal(dpt_file_write(victim, "mine", 4, &err), DPT_OK);
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        put_other(kinds[k], path, victim);
        snprintf(says, sizeof says, ": is a %s%s", k == 0 ? "symbolic " : "", kinds[k]);
        for (size_t m = 0; m < sizeof all / sizeof all[0]; m++) {
            const bool good = k == 0 && all[m] == DPT_FILE_READ;
            const enum dpt_status status = dpt_file_open(path, all[m], DPT_BAD_DATA, &fd, &err);

            assert_int_equal(status, good ? DPT_OK : DPT_BAD_DATA);
            assert_true(good == (fd >= 0));
            if (good) {
                assert_int_equal(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
                close(fd);
            } else {
                assert_non_null(strstr(err.text, path));
                assert_non_null(strstr(err.text, says));
            }
        }
        assert_int_equal(dpt_file_write(path, "new", 3, &err), DPT_IO);
        assert_non_null(strstr(err.text, says));
        assert_int_equal(lstat(path, &info), 0);
        assert_false(S_ISREG(info.st_mode));
        remove(path);
    }
    assert_holds(victim, "mine", 4);
    for (size_t m = 1; m < sizeof all / sizeof all[0]; m++) { /* a link to nothing makes nothing */
        put_other("link", path, "nothing-there");
        assert_int_equal(dpt_file_open(path, all[m], DPT_IO, &fd, &err), DPT_IO);
        assert_non_null(strstr(err.text, "symbolic link"));
        unlink(path);
    }
    unlink(victim);
    assert_int_equal(entries(), 0);
}

/* Only temporary files of the same file and of a dead process are removed. */
static void left_behind_goes(void **state)
{
    char path[PATH_TEXT], name[64], file[PATH_TEXT];
    const pid_t child = fork();
    struct dpt_error err;
    long makers[2];

    (void)state;
    if (child == 0)
        _exit(0);
    assert_int_equal(waitpid(child, NULL, 0), child); /* its number is nobody's now */
    makers[0] = (long)child;
    makers[1] = (long)getppid();
    in_folder(path, "out");
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, ".%s.tmp-%ld", i < 2 ? "out" : "other",
                 i < 2 ? makers[i] : makers[0]);
        assert_int_equal(close(open(in_folder(file, name), O_CREAT | O_WRONLY, 0600)), 0);
    }
    assert_int_equal(dpt_file_write(path, "new", 3, &err), DPT_OK);
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, ".%s.tmp-%ld", i < 2 ? "out" : "other",
                 i < 2 ? makers[i] : makers[0]);
        assert_int_equal(access(in_folder(file, name), F_OK) == 0, i > 0);
        unlink(file);
    }
    unlink(path);
    assert_int_equal(entries(), 0);
}

/* A write that fails half way: the old content stays, nothing is left beside it, and the error
 * names the file. */
static void failed_write_keeps_the_old(void **state)
{
    static char large[100000];
    struct rlimit before, small;
    struct dpt_error err;
    char path[PATH_TEXT];
    enum dpt_status status;

    (void)state;
    in_folder(path, "kept");
    assert_int_equal(dpt_file_write(path, "old", 3, &err), DPT_OK);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 5000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    status = dpt_file_write(path, large, sizeof large, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(status, DPT_IO);
    assert_non_null(strstr(err.text, path));
    assert_holds(path, "old", 3);
    assert_int_equal(entries(), 1);
    unlink(path);
}

static void writing_says_what_is_wrong(void **state)
{
    struct dpt_error err;
    char path[PATH_TEXT], inner[PATH_TEXT];

    (void)state;
    assert_int_equal(dpt_file_write(in_folder(path, "no/file"), "x", 1, &err), DPT_IO);
    assert_non_null(strstr(err.text, path));
    assert_non_null(strstr(err.text, "No such file"));
    /* A folder stands where the file should go. */
    in_folder(path, "folder");
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(dpt_file_write(in_folder(inner, "folder/x"), "x", 1, &err), DPT_OK);
    assert_int_equal(dpt_file_write(path, "x", 1, &err), DPT_IO);
    assert_int_equal(entries(), 1);
    assert_holds(inner, "x", 1);
    unlink(inner);
    rmdir(path);
}

/* What a killed process with our number left behind does not stand in the way. */
static void old_temporary_is_replaced(void **state)
{
    struct dpt_error err;
    char path[PATH_TEXT], name[64];
    FILE *file;

    (void)state;
    snprintf(name, sizeof name, ".a.tmp-%ld", (long)getpid());
    file = fopen(in_folder(path, name), "w");
    assert_non_null(file);
    fputs("much that is old", file);
    fclose(file);
    assert_int_equal(dpt_file_write(in_folder(path, "a"), "new", 3, &err), DPT_OK);
    assert_holds(path, "new", 3);
    assert_int_equal(entries(), 1);
    unlink(path);
}

static void folders_are_made(void **state)
{
    static const char *const made[] = {"p/q/r", "p/q", "p"};
    struct dpt_error err;
    char path[PATH_TEXT];

    (void)state;
    for (int twice = 0; twice < 2; twice++)
        assert_int_equal(dpt_make_folders(in_folder(path, "p//q/r/"), &err), DPT_OK);
    assert_true(dpt_file_exists(in_folder(path, "p/q/r")));
    assert_int_equal(dpt_file_write(in_folder(path, "p/q/r/f"), "x", 1, &err), DPT_OK);
    assert_int_equal(dpt_make_folders(path, &err), DPT_IO); /* a file has the name */
    assert_non_null(strstr(err.text, path));
    assert_int_equal(dpt_make_folders(in_folder(path, "p/q/r/f/deeper"), &err), DPT_IO);
    assert_int_equal(dpt_make_folders("", &err), DPT_IO);
    assert_int_equal(dpt_make_folders("/", &err), DPT_OK);
    assert_int_equal(dpt_make_folders(".", &err), DPT_OK);
    unlink(in_folder(path, "p/q/r/f"));
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(rmdir(in_folder(path, made[i])), 0);
}

static void all_bytes_or_an_error(void **state)
{
    char path[PATH_TEXT], bytes[16];
    int fd;

    (void)state;
    fd = open(in_folder(path, "f"), O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(dpt_pwrite_all(fd, "0123456789", 10, 5), 0);
    assert_int_equal(dpt_pread_all(fd, bytes, 10, 5), 0);
    assert_memory_equal(bytes, "0123456789", 10);
    assert_int_equal(dpt_pread_all(fd, bytes, 0, 100), 0);
    assert_int_equal(dpt_pread_all(fd, bytes, 11, 5), -1);
    assert_int_equal(errno, EPIPE);
    close(fd);
    assert_int_equal(dpt_pwrite_all(fd, "x", 1, 0), -1);
    assert_int_equal(errno, EBADF);
    unlink(path);
    fd = open("/dev/full", O_WRONLY);
    if (fd >= 0) {
        assert_int_equal(dpt_pwrite_all(fd, "x", 1, 0), -1);
        assert_int_equal(errno, ENOSPC);
        close(fd);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(pieces_follow_each_other),
        cmocka_unit_test(a_temporary_file_is_put_in_place),
        cmocka_unit_test(reading_says_what_is_wrong),
        cmocka_unit_test(only_files_are_opened),
        cmocka_unit_test(left_behind_goes),
        cmocka_unit_test(failed_write_keeps_the_old),
        cmocka_unit_test(writing_says_what_is_wrong),
        cmocka_unit_test(old_temporary_is_replaced),
        cmocka_unit_test(folders_are_made),
        cmocka_unit_test(all_bytes_or_an_error),
    };

    return cmocka_run_group_tests(tests, enter, leave);
}
