#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/comm/internal.h"
#include "core/comm/launched.h"

/* Names for the MPI that this is built with, and for the other one: a launcher's real name, a name
 * beside the common one, a program of its folder. */
#if defined(OMPI_MAJOR_VERSION)
#define OURS       "orterun"
#define BESIDE     "mpirun.openmpi"
#define MARK       "ompi_info"
#define THEIRS     "mpiexec.hydra"
#define THEIR_MARK "hydra_pmi_proxy"
#else
#define OURS       "mpiexec.hydra"
#define BESIDE     "mpiexec.mpich"
#define MARK       "hydra_pmi_proxy"
#define THEIRS     "orterun"
#define THEIR_MARK "ompi_info"
#endif

enum { FILES = 4 };

/* Two folders of a PATH, files and links (NAME>TARGET) in them, and the one that is found. */
// clang-format off
static const struct {
    const char *a[FILES], *b[FILES], *want;
} cases[] = {
    {{"mpirun"}, {OURS, "mpirun>" OURS}, "a/mpirun"},               /* a user's own script */
    {{OURS, "mpirun>" OURS}, {"mpirun"}, "a/mpirun"},
    {{THEIRS, "mpirun>" THEIRS}, {OURS, "mpirun>" OURS}, "b/mpirun"},
    {{"mpirun", MARK}, {OURS, "mpirun>" OURS}, "a/mpirun"},         /* another version, a module's */
    {{"mpirun", THEIR_MARK}, {OURS, "mpirun>" OURS}, "b/mpirun"},
    {{"mpirun>mpirun.other", "mpirun.other", MARK, THEIR_MARK}, {0}, "a/mpirun"},
    {{THEIRS, "mpirun>" THEIRS, OURS, BESIDE ">" OURS}, {0}, "a/" BESIDE}, /* Debian's, of both */
    {{"hello"}, {OURS, "mpirun>../b/" OURS}, "b/mpirun"},
};
// clang-format on

static void fill(const char *top, const char *folder, const char *const files[FILES])
{
    char path[PATH_MAX], target[PATH_MAX];

    snprintf(path, sizeof path, "%s/%s", top, folder);
    assert_int_equal(mkdir(path, 0755), 0);
    for (int i = 0; i < FILES && files[i] != NULL; i++) {
        const char *link = strchr(files[i], '>');
        const int n = (int)strcspn(files[i], ">");

        snprintf(path, sizeof path, "%s/%s/%.*s", top, folder, n, files[i]);
        snprintf(target, sizeof target, "%s", link != NULL ? link + 1 : "");
        if (link != NULL)
            assert_int_equal(symlink(target, path), 0);
        else
            close(creat(path, 0755));
    }
}

static void the_first_that_is_not_another_mpis_is_found(void **state)
{
    const char *before = getenv("PATH");
    char *const path = strdup(before != NULL ? before : "");

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char top[] = "/tmp/test-mpirun-XXXXXX", list[PATH_MAX], found[PATH_MAX], want[PATH_MAX];
        char command[PATH_MAX];
        struct dpt_error err = {0};

        assert_non_null(mkdtemp(top));
        fill(top, "a", cases[i].a);
        fill(top, "b", cases[i].b);
        snprintf(list, sizeof list, ":%s/missing:%s/a::%s/b", top, top, top);
        snprintf(want, sizeof want, "%s/%s", top, cases[i].want);
        setenv("PATH", list, 1);
        assert_int_equal(dpt_mpirun_find(found, &err), DPT_OK);
        setenv("PATH", path, 1);
        assert_string_equal(found, want);
        snprintf(command, sizeof command, "rm -r %s", top);
        assert_int_equal(system(command), 0);
    }
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_that_is_not_another_mpis_is_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
