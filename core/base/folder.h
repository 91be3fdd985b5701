/*
 * folder: a folder of our own among a user's, to try something in.
 */
#ifndef DPT_BASE_FOLDER_H
#define DPT_BASE_FOLDER_H

#include <limits.h>
#include <stdbool.h>

/* What of a path is there: itself, or the nearest folder above it. */
void dpt_folder_present(const char *path, char place[PATH_MAX]);
/* Makes a new folder in `place`, for us alone; false with errno. */
bool dpt_folder_scratch(const char *place, char folder[PATH_MAX]);
/* Removes it with its files, which are all ours. */
void dpt_folder_remove(const char *folder);

#endif
