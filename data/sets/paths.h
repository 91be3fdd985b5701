/* paths: the files that patterns name. */
#ifndef DPT_DATA_PATHS_H
#define DPT_DATA_PATHS_H

#include <stddef.h>

#include "core/base/error.h"
#include "core/conf/option.h"

/* Files that patterns name, in the order of the patterns, those of one sorted. *paths: out, a
   NULL-terminated array, the caller frees it and each text in it. Errors: BAD_JOB (nothing matches;
   `key` in front), RANK. */
enum dpt_status dpt_paths_find(const struct dpt_texts *patterns, const char *key, char ***paths,
                               struct dpt_error *err);
/* Adds the files that match a pattern, maybe none, to such an array, of *n. Errors: BAD_JOB (a
 * folder cannot be searched), RANK. */
enum dpt_status dpt_paths_match(const char *key, const char *pattern, char ***paths, size_t *n,
                                struct dpt_error *err);
/* Fails where the folder of a pattern that matches nothing, or of a file that is not found, is
 * there and cannot be read. Errors: `wrong` (says why). */
enum dpt_status dpt_paths_check_folder(const char *key, const char *pattern, enum dpt_status wrong,
                                       struct dpt_error *err);
/* Adds copies of `count` texts to such an array, of *n. Errors: RANK. */
enum dpt_status dpt_paths_add(char ***paths, size_t *n, char *const *more, size_t count,
                              struct dpt_error *err);
void dpt_paths_release(char **paths);

#endif
