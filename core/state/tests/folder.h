/* folder: a run folder of its own for a test program, and what it draws. */
#ifndef DPT_STATE_TESTS_FOLDER_H
#define DPT_STATE_TESTS_FOLDER_H

#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/rng.h"

enum { TEXT = 512 };

static char folder[TEXT / 4];

static inline uint64_t dice(uint64_t seed, uint64_t n, uint64_t below)
{
    return dpt_random64(seed, DPT_RANDOM_SYNTHETIC, 77, n) % below;
}

static inline const char *in_folder(char path[TEXT], const char *name)
{
    snprintf(path, TEXT, "%s/%s", folder, name);
    return path;
}

static inline void empty(const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    char inner[TEXT * 2];

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name);
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlink(inner);
    }
    if (dir != NULL)
        closedir(dir);
}

static inline int enter(void **state)
{
    char path[TEXT];

    (void)state;
    snprintf(folder, sizeof folder, "%.90s/dptrain-checkpoint-XXXXXX",
             getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp");
    return mkdtemp(folder) != NULL && mkdir(in_folder(path, "checkpoints"), 0777) == 0 ? 0 : -1;
}

static inline int leave(void **state)
{
    char path[TEXT];

    (void)state;
    empty(in_folder(path, "checkpoints"));
    rmdir(path);
    empty(folder);
    return rmdir(folder);
}

static inline void put_file(const char *path, const char *bytes, size_t n)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);

    assert_true(fd >= 0);
    assert_int_equal(dpt_pwrite_all(fd, bytes, n, 0), 0);
    assert_int_equal(close(fd), 0);
}

#endif
