#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/file.h"
#include "data/sets/paths.h"

/* glob matches nothing in a folder that it cannot read, and keeps silent about it. */
enum dpt_status dpt_paths_check_folder(const char *key, const char *pattern, enum dpt_status wrong,
                                       struct dpt_error *err)
{
    char folder[PATH_MAX];
    const char *end = pattern + strcspn(pattern, "*?[{");
    const bool file = *end == '\0'; /* no pattern: the file itself says why */
    DIR *dir;

    while (!file && end > pattern && end[-1] != '/')
        end--;
    if (pattern[0] == '~' || end == pattern ||
        snprintf(folder, sizeof folder, "%.*s", (int)(end - pattern), pattern) >= PATH_MAX)
        return DPT_OK;
    dir = file ? NULL : opendir(folder);
    if (dir != NULL)
        closedir(dir);
    else if ((!file || access(folder, R_OK) != 0) && errno != ENOENT)
        return dpt_fail_errno(err, wrong, "%s: '%s'%s%s", key, folder,
                              file ? "" : ", the folder of ", file ? "" : pattern);
    return DPT_OK;
}

static enum dpt_status no_match(const char *key, const char *pattern, struct dpt_error *err)
{
    char from[PATH_MAX + 32];
    const char *star = strstr(pattern, "-*");

    return dpt_fail(err, DPT_BAD_JOB,
                    "%s: no file matches '%s'%s; `dptrain convert FORMAT IN... --output %.*s` "
                    "makes such files (FORMAT: idx of MNIST's, csv, pictures, ...)",
                    key, pattern, dpt_file_relative_to(pattern, from, sizeof from),
                    star != NULL ? (int)(star - pattern) : 6, star != NULL ? pattern : "PREFIX");
}

enum dpt_status dpt_paths_add(char ***paths, size_t *n, char *const *more, size_t count,
                              struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char **larger = realloc(*paths, (*n + count + 1) * sizeof *larger);

    if (larger == NULL)
        DPT_TRY(dpt_fail_memory(err, "the list of files", (double)*n * sizeof *larger));
    *paths = larger;
    larger[*n] = NULL;
    for (size_t i = 0; i < count; i++) {
        larger[*n] = strdup(more[i]);
        if (larger[*n] == NULL)
            DPT_TRY(dpt_fail_memory(err, "the list of files", (double)*n * sizeof *larger));
        larger[++*n] = NULL;
    }
out:
    return status;
}

enum dpt_status dpt_paths_match(const char *key, const char *pattern, char ***paths, size_t *n,
                                struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    glob_t found = {0};
    const int code = glob(pattern, GLOB_BRACE | GLOB_TILDE, NULL, &found);

    if (code == GLOB_ABORTED)
        DPT_TRY(dpt_fail_errno(err, DPT_BAD_JOB, "%s: '%s' cannot be searched", key, pattern));
    if (code != 0 && code != GLOB_NOMATCH)
        DPT_TRY(dpt_fail_memory(err, "the list of files", (double)*n * sizeof **paths));
    DPT_TRY(dpt_paths_add(paths, n, found.gl_pathv, found.gl_pathc, err));
out:
    globfree(&found);
    return status;
}

enum dpt_status dpt_paths_find(const struct dpt_texts *patterns, const char *key, char ***paths,
                               struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    size_t n = 0;

    *paths = NULL;
    if (patterns->n == 0)
        DPT_TRY(dpt_fail(err, DPT_BAD_JOB, "%s: names no file", key));
    for (size_t i = 0; i < patterns->n; i++) {
        const size_t before = n;

        DPT_TRY(dpt_paths_match(key, patterns->at[i], paths, &n, err));
        if (n == before)
            DPT_TRY(dpt_paths_check_folder(key, patterns->at[i], DPT_BAD_JOB, err));
        if (n == before)
            DPT_TRY(no_match(key, patterns->at[i], err));
    }
out:
    if (status != DPT_OK) {
        dpt_paths_release(*paths);
        *paths = NULL;
    }
    return status;
}

void dpt_paths_release(char **paths)
{
    for (size_t i = 0; paths != NULL && paths[i] != NULL; i++)
        free(paths[i]);
    free(paths);
}
