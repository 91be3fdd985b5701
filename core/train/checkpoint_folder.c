#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/train/checkpoint.h"

const char *dpt_checkpoint_path(const char *folder, int64_t step, char *buf, size_t size)
{
    snprintf(buf, size, "%s/checkpoints/step-%08lld.h5", folder, (long long)step);
    return buf;
}

const char *dpt_checkpoint_resolve(const char *path, char *buf)
{
    struct stat info;
    const bool folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);

    snprintf(buf, PATH_MAX, folder ? "%s/checkpoints/latest" : "%s", path);
    return buf;
}

/* "step-00001200.h5" -> 1200; -1 for other names. */
static int64_t step_of(const char *name)
{
    char *end;
    long long step;

    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9')
        return -1;
    errno = 0;
    step = strtoll(name + 5, &end, 10);
    return errno == 0 && strcmp(end, ".h5") == 0 ? step : -1;
}

static int newest_first(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x < y) - (x > y);
}

enum dpt_status dpt_checkpoint_list(const char *folder, int64_t **steps, size_t *n,
                                    struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char path[PATH_MAX];
    struct dirent *entry;
    size_t capacity = 0;
    DIR *dir;

    *steps = NULL;
    *n = 0;
    snprintf(path, sizeof path, "%s/checkpoints", folder);
    dir = opendir(path);
    if (dir == NULL)
        return DPT_OK;
    while ((entry = readdir(dir)) != NULL) {
        if (step_of(entry->d_name) < 0)
            continue;
        if (*n == capacity) {
            int64_t *more = realloc(*steps, (capacity = capacity * 2 + 16) * sizeof *more);

            if (more == NULL)
                DPT_TRY(dpt_fail_memory(err, "the list of checkpoints", (double)capacity * 8));
            *steps = more;
        }
        (*steps)[(*n)++] = step_of(entry->d_name);
    }
    if (*n > 0)
        qsort(*steps, *n, sizeof **steps, newest_first);
out:
    closedir(dir);
    if (status != DPT_OK) {
        free(*steps);
        *steps = NULL;
        *n = 0;
    }
    return status;
}

/* Makes FOLDER/checkpoints/`name` a link to a file beside it, replacing an older one in one go. */
static enum dpt_status point(const char *folder, const char *name, const char *target,
                             struct dpt_error *err)
{
    char link[PATH_MAX], temporary[PATH_MAX + 32];

    snprintf(link, sizeof link, "%s/checkpoints/%s", folder, name);
    snprintf(temporary, sizeof temporary, "%s.tmp-%ld", link, (long)getpid());
    unlink(temporary);
    if (symlink(target, temporary) == 0 && rename(temporary, link) == 0)
        return DPT_OK;
    dpt_fail_errno(err, DPT_IO, "%s", link);
    unlink(temporary);
    return err->status;
}

/* What a killed process left: NAME.tmp-PID. Only one process writes here at a time, so all but ours
 * are left over. */
static void remove_temporaries(const char *folder)
{
    char path[PATH_MAX], file[PATH_MAX + 300];
    struct dirent *entry;
    DIR *dir;

    snprintf(path, sizeof path, "%s/checkpoints", folder);
    dir = opendir(path);
    while (dir != NULL && (entry = readdir(dir)) != NULL)
        if (strstr(entry->d_name, ".tmp-") != NULL) {
            snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
            unlink(file);
        }
    if (dir != NULL)
        closedir(dir);
}

enum dpt_status dpt_checkpoint_rotate(const char *folder, const char *path, int64_t keep,
                                      int64_t best_step, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *name = strrchr(path, '/') != NULL ? strrchr(path, '/') + 1 : path;
    char file[PATH_MAX];
    int64_t *steps = NULL;
    size_t n = 0;

    DPT_TRY(point(folder, "latest", name, err));
    if (best_step >= 0) {
        dpt_checkpoint_path(folder, best_step, file, sizeof file);
        if (dpt_file_exists(file))
            DPT_TRY(point(folder, "best", strrchr(file, '/') + 1, err));
    }
    DPT_TRY(dpt_file_sync_folder(path, err));
    remove_temporaries(folder);
    DPT_TRY(dpt_checkpoint_list(folder, &steps, &n, err));
    for (size_t i = keep > 0 ? (size_t)keep : n; i < n; i++)
        if (steps[i] != step_of(name) && steps[i] != best_step)
            unlink(dpt_checkpoint_path(folder, steps[i], file, sizeof file));
out:
    free(steps);
    return status;
}
