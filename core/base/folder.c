#include "core/base/folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void dpt_folder_present(const char *path, char place[PATH_MAX])
{
    snprintf(place, PATH_MAX, "%s", path);
    while (access(place, F_OK) != 0 && errno == ENOENT) {
        char *end = strrchr(place, '/');

        while (end != NULL && end > place && end[1] == '\0') { /* a slash at the end */
            *end = '\0';
            end = strrchr(place, '/');
        }
        if (end == NULL)
            strcpy(place, ".");
        else if (end == place)
            end[1] = '\0';
        else
            *end = '\0';
    }
}

bool dpt_folder_scratch(const char *place, char folder[PATH_MAX])
{
    char whole[PATH_MAX];

    if (realpath(place, whole) == NULL)
        return false;
    if (snprintf(folder, PATH_MAX, "%s/.dptrain-XXXXXX", whole) >= PATH_MAX) {
        errno = ENAMETOOLONG;
        return false;
    }
    return mkdtemp(folder) != NULL;
}

void dpt_folder_remove(const char *folder)
{
    DIR *dir = opendir(folder);
    const struct dirent *entry;

    while (dir != NULL && (entry = readdir(dir)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlinkat(dirfd(dir), entry->d_name, 0);
    if (dir != NULL)
        closedir(dir);
    rmdir(folder);
}
