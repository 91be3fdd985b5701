#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/conf/yaml.h"
#include "core/state/board.h"
#include "core/state/checkpoint.h"

const char *dpt_checkpoint_path(const char *folder, int64_t step, char *buf, size_t size)
{
    snprintf(buf, size, "%s/checkpoints/step-%08lld.h5", folder, (long long)step);
    return buf;
}

const char *dpt_checkpoint_newest(const char *path, char *buf)
{
    snprintf(buf, PATH_MAX, dpt_file_is_folder(path) ? "%s/checkpoints/latest" : "%s", path);
    return buf;
}

/* Reads by which value of data.valid the job of a folder's run has its best checkpoint chosen
 * (checkpoint.monitor); "": it does not say. */
static void read_monitor(const char *folder, char monitor[DPT_WATCH_NAME])
{
    struct dpt_conf conf = {0};
    struct dpt_error ignored;
    char path[PATH_MAX];

    monitor[0] = '\0';
    snprintf(path, sizeof path, "%s/job.yaml", folder);
    if (dpt_file_exists(path) && dpt_conf_load(&conf, path, &ignored) == DPT_OK) {
        const struct dpt_conf_node *node =
            dpt_conf_get(dpt_conf_get(conf.root, "checkpoint"), "monitor");

        if (node != NULL && node->kind == DPT_NODE_SCALAR && strncmp(node->text, "valid.", 6) == 0)
            snprintf(monitor, DPT_WATCH_NAME, "%s", node->text);
    }
    dpt_conf_release(&conf);
}

/* The best checkpoint of a run folder whose job says by what it is chosen; false: there is none. */
static bool find_best(const char *path, char *best, char monitor[DPT_WATCH_NAME])
{
    snprintf(best, PATH_MAX, "%s/checkpoints/best", path);
    if (!dpt_file_exists(best)) /* of a file there is none either */
        return false;
    read_monitor(path, monitor);
    return monitor[0] != '\0';
}

const char *dpt_checkpoint_resolve(const char *path, char *buf)
{
    char monitor[DPT_WATCH_NAME];

    return find_best(path, buf, monitor) ? buf : dpt_checkpoint_newest(path, buf);
}

void dpt_checkpoint_tell(const char *path, struct dpt_log *log)
{
    char best[PATH_MAX], monitor[DPT_WATCH_NAME], step[NAME_MAX + 1];
    ssize_t n;

    if (!find_best(path, best, monitor))
        return;
    n = readlink(best, step, sizeof step - 1);
    step[n > 0 ? n : 0] = '\0';
    dpt_log_info(log,
                 "%s: taking its best checkpoint by %s%s%s; its newest is "
                 "%s/checkpoints/latest",
                 path, monitor, n > 0 ? ", " : "", step, path);
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

bool dpt_checkpoint_is_name(const char *name)
{
    const char *step = strncmp(name, "aside-", 6) == 0 ? name + 6 : name;

    return step_of(step) >= 0 || strcmp(name, "latest") == 0 || strcmp(name, "best") == 0;
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
        DPT_GROW(*steps, &capacity, *n + 1, "the list of checkpoints", err);
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
    char link[PATH_MAX], temporary[PATH_MAX + 32], present[NAME_MAX + 1];
    ssize_t n;

    snprintf(link, sizeof link, "%s/checkpoints/%s", folder, name);
    n = readlink(link, present, sizeof present - 1);
    if (n == (ssize_t)strlen(target) && memcmp(present, target, (size_t)n) == 0)
        return DPT_OK;
    if (n < 0) /* a file there gives way, as where a copy made one of the link */
        if (dpt_file_check_target(link, err) != DPT_OK)
            return err->status;
    snprintf(temporary, sizeof temporary, "%s.tmp-%ld", link, (long)getpid());
    if (TEMP_FAILURE_RETRY(symlink(target, temporary)) != 0) {
        if (errno == EEXIST && unlink(temporary) == 0) /* an earlier process had our number */
            errno = TEMP_FAILURE_RETRY(symlink(target, temporary)) == 0 ? 0 : errno;
        if (errno != 0)
            return dpt_fail_errno(err, DPT_IO, "%s", link);
    }
    if (TEMP_FAILURE_RETRY(rename(temporary, link)) == 0)
        return DPT_OK;
    dpt_fail_errno(err, DPT_IO, "%s", link);
    unlink(temporary);
    return err->status;
}

/* Whether a name is one that a run writes one of its own files under before it has its own. */
static bool is_temporary(const char *name)
{
    static const char *const hidden[] = {".metrics.jsonl", ".hashes.jsonl", ".job.yaml",
                                         ".trace.json"};
    const char *end = strstr(name, ".tmp-");
    char own[NAME_MAX + 1];

    if (end == NULL || dpt_file_maker(end) <= 0 || dpt_file_maker(end) == (long)getpid())
        return false;
    snprintf(own, sizeof own, "%.*s", (int)(end - name), name);
    for (size_t i = 0; i < sizeof hidden / sizeof hidden[0]; i++)
        if (strcmp(own, hidden[i]) == 0)
            return true;
    return step_of(own) >= 0 || strcmp(own, "latest") == 0 || strcmp(own, "best") == 0;
}

/* What killed runs left in a folder. Only one writes there at a time, so all but our own are left
 * over, also those of other machines; what other commands or people write there is theirs. */
static void remove_temporaries(const char *path)
{
    char file[PATH_MAX + NAME_MAX + 2];
    struct dirent *entry;
    DIR *dir = opendir(path);

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (!is_temporary(entry->d_name))
            continue;
        snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        unlink(file);
    }
    if (dir != NULL)
        closedir(dir);
}

/* Syncs a file of a run folder where it is there. */
static enum dpt_status sync_file(const char *folder, const char *name, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char path[PATH_MAX];
    int fd;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (!dpt_file_exists(path))
        return DPT_OK;
    if (dpt_file_open(path, DPT_FILE_READ, DPT_IO, &fd, err) != DPT_OK)
        return err->status;
    if (TEMP_FAILURE_RETRY(fsync(fd)) != 0)
        status = dpt_fail_errno(err, DPT_IO, "%s", path);
    close(fd);
    return status;
}

enum dpt_status dpt_checkpoint_prepare(const char *folder, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char path[PATH_MAX];

    snprintf(path, sizeof path, "%s/checkpoints", folder);
    remove_temporaries(path);
    remove_temporaries(folder);
    DPT_TRY(sync_file(folder, "metrics.jsonl", err));
    DPT_TRY(sync_file(folder, DPT_TENSORBOARD_FILE, err));
out:
    return status;
}

enum dpt_status dpt_checkpoint_rotate(const char *folder, const char *path, int64_t keep,
                                      int64_t best_step, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *name = strrchr(path, '/') != NULL ? strrchr(path, '/') + 1 : path;
    char file[PATH_MAX];
    struct stat info;
    int64_t *steps = NULL;
    size_t n = 0, first = 0; /* later ones, damaged or left behind, stand for none that is kept */

    DPT_TRY(point(folder, "latest", name, err));
    if (best_step >= 0) {
        dpt_checkpoint_path(folder, best_step, file, sizeof file);
        if (dpt_file_exists(file))
            DPT_TRY(point(folder, "best", strrchr(file, '/') + 1, err));
    }
    DPT_TRY(dpt_file_sync_folder(path, err));
    DPT_TRY(dpt_checkpoint_list(folder, &steps, &n, err));
    while (first < n && steps[first] > step_of(name))
        first++;
    for (size_t i = keep > 0 ? first + (size_t)keep : n; i < n; i++)
        if (steps[i] != best_step)
            unlink(dpt_checkpoint_path(folder, steps[i], file, sizeof file));
    /* It may have pointed to one that is chosen by another value than the present job's. */
    snprintf(file, sizeof file, "%s/checkpoints/best", folder);
    if (lstat(file, &info) == 0 && S_ISLNK(info.st_mode) && !dpt_file_exists(file))
        unlink(file);
out:
    free(steps);
    return status;
}

enum dpt_status dpt_checkpoint_set_aside(const char *folder, int64_t step, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char from[PATH_MAX], to[PATH_MAX + 32];
    int64_t *steps = NULL;
    size_t n = 0;

    DPT_TRY(dpt_checkpoint_list(folder, &steps, &n, err));
    for (size_t i = 0; i < n && steps[i] > step; i++) {
        dpt_checkpoint_path(folder, steps[i], from, sizeof from);
        snprintf(to, sizeof to, "%s/checkpoints/aside-step-%08lld.h5", folder, (long long)steps[i]);
        if (TEMP_FAILURE_RETRY(rename(from, to)) != 0)
            DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s", from));
    }
out:
    free(steps);
    return status;
}
