/* Tests where cuDNN and cuBLASLt are searched for, and in which order: with an empty library in a
 * tree of folders like those of pip, conda, Debian and pyenv. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#if defined(DPT_WITH_CUDA) && DPT_WITH_CUDA
#include "core/backend/cuda/libraries/library_find.h"

#define LIBRARY "libdptest.so.9"
#define PACKAGE "/nvidia/cudnn/lib"

static const char *const names[] = {LIBRARY, "libdptest.so.8", NULL};
static const char *const variables[] = {"DPTEST_UNSET", "DPTEST_ROOT", NULL};

/* The folders, in the order in which they are searched. */
static const char *const places[] = {
    "given",
    "given/lib64",
    "given/lib",
    "given" PACKAGE,
    "given/nvidia/cu13/lib",
    "given/nvidia/cublas/lib",
    "given/lib/python3.11/site-packages" PACKAGE,
    "root/lib64",
    "root/lib",
    "loader",
    "active/lib/python3.12/site-packages" PACKAGE,
    "conda/lib",
    "venv/lib/python3.11/site-packages" PACKAGE,
    "venv/lib64/python3.11/site-packages" PACKAGE,
    "base/lib/python3.11/site-packages" PACKAGE,
    "base/lib/python3.9/site-packages" PACKAGE,
    "base/lib/python3/dist-packages" PACKAGE,
    "base/local/lib/python3.11/dist-packages" PACKAGE,
    "pyenv/versions/3.12.1/lib/python3.12/site-packages" PACKAGE,
    "pyenv/versions/3.9.2/lib/python3.9/site-packages" PACKAGE,
    "third/lib/python3.13/site-packages" PACKAGE,
    "home/.local/lib/python3.11/site-packages" PACKAGE,
};

enum { PLACES = sizeof places / sizeof *places, TEXT = 4000 };

static const char *top;
static bool built; /* there is a compiler */

__attribute__((format(printf, 1, 2))) static bool shell(const char *format, ...)
{
    char command[TEXT];
    va_list list;
    int n = snprintf(command, sizeof command, "cd %s && ", top);

    va_start(list, format);
    vsnprintf(command + n, sizeof command - (size_t)n, format, list);
    va_end(list);
    return system(command) == 0;
}

static void set(const char *name, const char *format)
{
    char text[TEXT];

    snprintf(text, sizeof text, format, top, top, top, top, top);
    setenv(name, text, 1);
}

static int begin(void **state)
{
    (void)state;
    built = shell("echo 'int dptest;' >a.c && cc -shared -fPIC -o library a.c 2>log");
    for (int i = 0; i < PLACES; i++)
        assert_true(shell("mkdir -p %s", places[i]));
    assert_true(shell("mkdir -p empty base/bin venv/bin pyenv/shims third/bin none/bin none/lib"));
    assert_true(shell("echo >base/bin/python3.11 && cp base/bin/python3.11 pyenv/shims/python3 && "
                      "cp base/bin/python3.11 third/bin/python && "
                      "chmod +x base/bin/python3.11 pyenv/shims/python3 third/bin/python && "
                      "echo >none/bin/python3")); /* no program */
    assert_true(
        shell("ln -s python3.11 base/bin/python3 && ln -s %s/base/bin/python3 venv/bin/", top));
    set("DPTRAIN_CUDA_PATH", "%s/empty::%s/given");
    set("DPTEST_ROOT", "%s/root");
    set("VIRTUAL_ENV", "%s/active");
    set("CONDA_PREFIX", "%s/conda");
    set("HOME", "%s/home");
    unsetenv("PYTHONUSERBASE");
    return 0;
}

static int end(void **state)
{
    (void)state;
    return !shell("cd / && rm -r %s", top);
}

/* Searches in a child, since an opened library stays open. Gives its report: the file below `top`,
 * or where it has searched, or what was broken. */
static const char *find(void)
{
    static char reported[TEXT];
    int ends[2], code;
    size_t n = 0;
    ssize_t got;
    pid_t child;

    assert_int_equal(pipe(ends), 0);
    child = fork();
    if (child == 0) {
        struct dpt_cuda_search search = {0};
        void *handle;
        const char *text;

        set("PATH", "%s/none/bin:relative:%s/venv/bin:%s/base/bin:%s/pyenv/shims:%s/third/bin");
        handle = dpt_cuda_find(names, variables, &search);
        text = handle != NULL               ? dpt_cuda_path_of(handle) + strlen(top) + 1
               : search.broken.text != NULL ? search.broken.text
                                            : search.looked.text;
        code = write(ends[1], text, strlen(text)) != (ssize_t)strlen(text);
        dpt_cuda_search_release(&search);
        _exit(code);
    }
    close(ends[1]);
    while ((got = read(ends[0], reported + n, sizeof reported - 1 - n)) > 0)
        n += (size_t)got;
    close(ends[0]);
    reported[n] = '\0';
    assert_true(child > 0 && waitpid(child, &code, 0) == child && code == 0);
    return reported;
}

static void first_place_wins(void **state)
{
    char want[TEXT];

    (void)state;
    if (!built)
        skip();
    for (int i = 0; i < PLACES; i++)
        assert_true(shell("cp library %s/" LIBRARY, places[i]));
    for (int i = 0; i < PLACES; i++) {
        snprintf(want, sizeof want, "%s/" LIBRARY, places[i]);
        assert_string_equal(find(), want);
        /* An older library in an earlier place is preferred to a newer one in a later place. */
        if (i % 5 == 0) {
            assert_true(shell("mv %s/" LIBRARY " %s/libdptest.so.8", places[i], places[i]));
            snprintf(want, sizeof want, "%s/libdptest.so.8", places[i]);
            assert_string_equal(find(), want);
        }
        assert_true(shell("rm %s/libdptest.so.*", places[i]));
    }
}

static void nowhere(void **state)
{
    const char *reported = find();
    char want[TEXT];

    (void)state;
    snprintf(want, sizeof want,
             "DPTRAIN_CUDA_PATH (%s/empty::%s/given), DPTEST_ROOT (%s/root), the loader's folders",
             top, top, top);
    assert_memory_equal(reported, want, strlen(want));
    snprintf(want, sizeof want,
             ", pip's below %s/active:%s/conda:%s/venv:%s/base:%s/pyenv/versions:...", top, top,
             top, top, top);
    assert_non_null(strstr(reported, want));
    assert_string_equal(strstr(reported, want), want);
}

/* A file that does not load is reported if there is no other. */
static void damaged(void **state)
{
    const char *const damaged_places[] = {"given", "loader"};

    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_true(shell("echo garbage that is long enough to be looked at >%s/" LIBRARY,
                          damaged_places[i]));
        assert_non_null(strstr(find(), LIBRARY ": "));
        assert_non_null(strstr(find(), "file too short"));
        if (built) {
            assert_true(shell("cp library third/lib/python3.13/site-packages" PACKAGE "/" LIBRARY));
            assert_string_equal(find(), "third/lib/python3.13/site-packages" PACKAGE "/" LIBRARY);
            assert_true(shell("rm third/lib/python3.13/site-packages" PACKAGE "/" LIBRARY));
        }
        assert_true(shell("rm %s/" LIBRARY, damaged_places[i]));
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_place_wins),
        cmocka_unit_test(nowhere),
        cmocka_unit_test(damaged),
    };

    (void)argc;
    top = getenv("DPTEST_TOP");
    if (top == NULL) { /* the loader reads its variable, and looks at the folders, at the start */
        char folder[] = "/tmp/dptrain-test-XXXXXX", loader[sizeof folder + 8];

        if (mkdtemp(folder) == NULL)
            return 1;
        snprintf(loader, sizeof loader, "%s/loader", folder);
        if (mkdir(loader, 0700) != 0)
            return 1;
        setenv("DPTEST_TOP", folder, 1);
        setenv("LD_LIBRARY_PATH", loader, 1);
        execv(argv[0], argv);
        return 1;
    }
    return cmocka_run_group_tests(tests, begin, end);
}
#else
#include "core/backend/tests/left_out.h"

int main(void)
{
    return left_out("built without CUDA");
}
#endif
