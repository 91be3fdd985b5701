/*
 * begin: the backend `cuda` for tests, with the fake device's libraries or a real device's
 * (which_device.h). To be included once in a program, whose main calls cuda_begin first.
 */
#ifndef DPT_BACKEND_CUDA_TESTS_BEGIN_H
#define DPT_BACKEND_CUDA_TESTS_BEGIN_H

#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/backend/backend.h"
#include "core/backend/cuda/tests/fake/fake_set.h"
#include "core/backend/cuda/tests/which_device.h"
#include "core/backend/tests/left_out.h"

static const struct dpt_backend *cuda; /* NULL: this build has none */

/* Finds the backend; for the fake device the program starts once more, with its libraries in the
 * loader's path. false: there is no backend here. */
static inline bool cuda_begin(char **argv)
{
    char path[4096], here[2000];

    cuda = dpt_backend_find("cuda");
    if (cuda == NULL)
        return false;
    if (real_device())
        return true;
    snprintf(here, sizeof here, "%s", argv[0]);
    snprintf(path, sizeof path, "%s/fakegpu", dirname(here));
    if (getenv("FAKEGPU_HERE") == NULL) {
        setenv("FAKEGPU_HERE", "1", 1);
        setenv("LD_LIBRARY_PATH", path, 1);
        /* Plans that take this long are timed without many runs. */
        setenv("FAKEGPU_TAKES", "engine:2000:2000,algorithm:2000:2000", 0);
        unsetenv("CUDA_HOME"), unsetenv("CUDNN_ROOT"), unsetenv("CUDA_VISIBLE_DEVICES");
        unsetenv("DPTRAIN_CUDA_PATH");
        execv(argv[0], argv);
        return false;
    }
    strcat(path, "/libcuda.so.1");
    return access(path, R_OK) == 0;
}

/* A whole file as text, to be freed: the fake device's log. */
static inline char *read_file(const char *path)
{
    struct stat found;
    char *text;
    int file = open(path, O_RDONLY);

    assert_true(file >= 0 && fstat(file, &found) == 0);
    text = calloc(1, (size_t)found.st_size + 1);
    assert_true(read(file, text, (size_t)found.st_size) == found.st_size);
    close(file);
    return text;
}

#endif
