#include "core/base/folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statfs.h>
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

/* --- file systems ----------------------------------------------------------------------------- */

#define LOCAL  DPT_FILESYSTEM_LOCAL
#define REMOTE DPT_FILESYSTEM_REMOTE
#define MEMORY DPT_FILESYSTEM_MEMORY

#define FLEETING "in memory: takes the job's, and is lost with the machine"

/* statfs(2). */
// clang-format off
static const struct {
    unsigned long magic;
    struct dpt_filesystem of;
} kinds[] = {
    {0xEF53, {"ext4", LOCAL, NULL}},
    {0x58465342, {"xfs", LOCAL, NULL}},
    {0x9123683E, {"btrfs", LOCAL, NULL}},
    {0x2FC12FC1, {"zfs", LOCAL, NULL}},
    {0xF2F52010, {"f2fs", LOCAL, NULL}},
    {0x01021997, {"9p", LOCAL, NULL}},
    {0x01021994, {"tmpfs", MEMORY, FLEETING}},
    {0x858458F6, {"ramfs", MEMORY, FLEETING}},
    {0x794C7630, {"overlay", LOCAL, "a container's own: lost with it; mount a folder"}},
    {0x6969, {"NFS", REMOTE, "mount it `hard`; the run's lock needs no NFS locking"}},
    {0x0BD00BD0, {"Lustre", REMOTE, "for checkpoints of gigabytes: lfs setstripe -c 4"}},
    {0x47504653, {"GPFS", REMOTE, NULL}},
    {0x19830326, {"BeeGFS", REMOTE, NULL}},
    {0x00C36400, {"CephFS", REMOTE, NULL}},
    {0x20030528, {"OrangeFS", REMOTE, NULL}},
    {0xAAD7AAEA, {"PanFS", REMOTE, NULL}},
    {0x5346414F, {"AFS", REMOTE, "its token must last as long as the run (krenew)"}},
    {0xFF534D42, {"CIFS", REMOTE, NULL}},
    {0xFE534D42, {"SMB", REMOTE, NULL}},
    {0x65735546, {"FUSE", REMOTE, "sshfs, s3fs and the like neither keep nor lock as a disk does"}},
};
// clang-format on

const struct dpt_filesystem *dpt_filesystem(const char *path)
{
    static const struct dpt_filesystem unknown = {.name = "an unknown file system"};
    struct statfs info;

    for (size_t i = 0; statfs(path, &info) == 0 && i < sizeof kinds / sizeof kinds[0]; i++)
        if (kinds[i].magic == ((unsigned long)info.f_type & 0xFFFFFFFF))
            return &kinds[i].of;
    return &unknown;
}
