#include <stdio.h>
#include <string.h>

#include "data/sets/parts.h"

/* A number behind `label` in a file of "label number" lines, or alone where label is ""; -1 where
 * there is none. */
static double read_number(const char *path, const char *label)
{
    FILE *file = fopen(path, "r");
    double value = -1;
    char line[256];

    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, label, strlen(label)) == 0 &&
            sscanf(line + strlen(label), "%lf", &value) == 1)
            break;
    if (file != NULL)
        fclose(file);
    return value;
}

/* Narrows `bytes` to what one control group leaves. Pages that only cache files are given up when
 * needed. */
static double narrow(double bytes, const char *folder)
{
    char path[1024];
    double most, used, cache;

    if (snprintf(path, sizeof path, "%s/memory.max", folder) >= (int)sizeof path)
        return bytes;
    most = read_number(path, "");
    if (most < 0)
        return bytes;
    snprintf(path, sizeof path, "%s/memory.current", folder);
    used = read_number(path, "");
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    cache = read_number(path, "inactive_file ");
    if (cache > 0 && used > cache)
        used -= cache;
    if (used > 0)
        most = most > used ? most - used : 0;
    return most < bytes ? most : bytes;
}

double dpt_memory_available(void)
{
    double bytes = 1024.0 * read_number("/proc/meminfo", "MemAvailable:");
    FILE *file = fopen("/proc/self/cgroup", "r");
    char line[512], folder[640];

    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "0::", 3) != 0) /* version 2 */
            continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(folder, sizeof folder, "/sys/fs/cgroup%s", line + 3);
        for (char *end = folder + strlen(folder); end - folder >= 14; end = strrchr(folder, '/')) {
            *end = '\0';
            bytes = narrow(bytes, folder);
        }
    }
    if (file != NULL)
        fclose(file);
    return bytes;
}
