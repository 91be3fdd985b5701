#include "core/state/overwritten.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/state/checkpoint.h"
#include "core/state/run_files.h"

static const char whole[] = "overwritten", under_way[] = ".overwriting";

enum { ROOM = PATH_MAX };

/* FOLDER/NAME; "" where that is too long for a path, so that nothing is found there. */
static const char *inside(const char *folder, const char *name, char path[ROOM])
{
    if (snprintf(path, ROOM, "%s/%s", folder, name) >= ROOM)
        path[0] = '\0';
    return path;
}

/* Takes FROM/NAME to TO/NAME, or removes it where `to` is NULL. One that is not there is fine. */
static enum dpt_status take(const char *from, const char *to, const char *name,
                            struct dpt_error *err)
{
    char source[ROOM], target[ROOM];

    inside(from, name, source);
    if (TEMP_FAILURE_RETRY(to != NULL ? rename(source, inside(to, name, target))
                                      : unlink(source)) == 0 ||
        errno == ENOENT)
        return DPT_OK;
    return dpt_fail_errno(err, DPT_IO, "%s", source);
}

static enum dpt_status take_checkpoints(const char *from, const char *to, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char source[ROOM], target[ROOM] = "", name[NAME_MAX + sizeof "checkpoints/"];
    struct dirent *entry;
    DIR *dir;

    dir = opendir(inside(from, "checkpoints", source));
    if (dir == NULL)
        return errno == ENOENT ? DPT_OK : dpt_fail_errno(err, DPT_IO, "%s", source);
    if (to != NULL)
        DPT_TRY(dpt_make_folders(inside(to, "checkpoints", target), err));
    while ((entry = readdir(dir)) != NULL) {
        snprintf(name, sizeof name, "checkpoints/%s", entry->d_name);
        if (dpt_checkpoint_is_name(entry->d_name) && dpt_run_file_ours(from, name))
            DPT_TRY(take(source, to != NULL ? target : NULL, entry->d_name, err));
    }
    rmdir(source); /* stays where something else lies in it */
out:
    closedir(dir);
    return status;
}

/* A run from one folder to another, or to nothing; other files stay. */
static enum dpt_status take_run(const char *from, const char *to, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(take_checkpoints(from, to, err));
    for (size_t i = 0; dpt_run_file_name(i) != NULL; i++)
        if (dpt_run_file_ours(from, dpt_run_file_name(i)))
            DPT_TRY(take(from, to, dpt_run_file_name(i), err));
out:
    return status;
}

/* Files that only look like some of a run's are none without it. */
static bool holds_run(const char *folder)
{
    char path[ROOM];
    struct dpt_error ignored;
    int64_t *steps = NULL;
    size_t n = 0;

    if (dpt_checkpoint_list(folder, &steps, &n, &ignored) == DPT_OK)
        free(steps);
    return n > 0 || (dpt_file_exists(inside(folder, "metrics.jsonl", path)) &&
                     dpt_run_file_ours(folder, "metrics.jsonl"));
}

bool dpt_overwritten_exists(const char *folder)
{
    char path[ROOM];

    return holds_run(inside(folder, whole, path));
}

enum dpt_status dpt_overwritten_restore(const char *folder, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char path[ROOM];

    if (!dpt_file_exists(inside(folder, under_way, path)))
        return DPT_OK;
    DPT_TRY(take_run(path, folder, err));
    if (rmdir(path) != 0)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s", path));
    DPT_TRY(dpt_file_sync_folder(path, err));
out:
    return status;
}

/* The names in a folder and in its checkpoints/ are on the disk. */
static enum dpt_status sync_run(const char *folder, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char latest[ROOM], checkpoints[ROOM];

    if (dpt_file_exists(inside(folder, "checkpoints", checkpoints)))
        DPT_TRY(dpt_file_sync_folder(inside(checkpoints, "latest", latest), err));
    DPT_TRY(dpt_file_sync_folder(checkpoints, err));
out:
    return status;
}

enum dpt_status dpt_overwritten_put(const char *folder, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char part[ROOM], path[ROOM];

    if (dpt_overwritten_exists(folder))
        return take_run(folder, NULL, err);
    if (!holds_run(folder))
        return DPT_OK;
    inside(folder, under_way, part);
    if (rmdir(inside(folder, whole, path)) != 0 && errno != ENOENT)
        DPT_TRY(
            dpt_fail(err, DPT_USAGE,
                     "%s holds files that are of no run: --overwrite keeps the old run there until "
                     "the new run has saved; move them away",
                     path));
    DPT_TRY(dpt_make_folders(part, err));
    DPT_TRY(take_run(folder, part, err));
    DPT_TRY(sync_run(part, err));
    if (TEMP_FAILURE_RETRY(rename(part, path)) != 0)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s", path));
    DPT_TRY(dpt_file_sync_folder(path, err));
out:
    return status;
}

enum dpt_status dpt_overwritten_remove(const char *folder, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char path[ROOM];

    DPT_TRY(take_run(inside(folder, whole, path), NULL, err));
    rmdir(path); /* stays where something else lies in it */
out:
    return status;
}
