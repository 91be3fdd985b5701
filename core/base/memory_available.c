#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/file.h"
#include "core/base/memory.h"

/* Narrows `bytes` to what one control group leaves. Pages that only cache files are given up when
 * needed. first: it is of version 1. */
static double narrow(double bytes, const char *folder, bool first)
{
    char path[1024], cache[64];
    double most, used;

    snprintf(path, sizeof path, "%s/%s", folder, first ? "memory.limit_in_bytes" : "memory.max");
    most = dpt_file_number(path, -1); /* also where it is "max" */
    if (most < 0)
        return bytes;
    snprintf(path, sizeof path, "%s/%s", folder,
             first ? "memory.usage_in_bytes" : "memory.current");
    used = dpt_file_number(path, 0);
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    if (dpt_file_value(path, first ? "total_inactive_file " : "inactive_file ", cache,
                       sizeof cache) &&
        used > atof(cache))
        used -= atof(cache);
    most = most > used ? most - used : 0;
    return most < bytes ? most : bytes;
}

double dpt_memory_available(void)
{
    FILE *file = fopen("/proc/self/cgroup", "re");
    char line[512], folder[640], kilobytes[64];
    double bytes = -1;

    if (dpt_file_value("/proc/meminfo", "MemAvailable", kilobytes, sizeof kilobytes))
        bytes = atof(kilobytes) * 1024.0;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        /* "0::/path" of version 2 or "4:memory:/path" of version 1; inside a container the path may
         * be that of the outside, so the folders above it are asked as well. */
        const bool first = strstr(line, ":memory:") != NULL;
        const char *path = strchr(line, '/');

        if (path == NULL || (!first && strncmp(line, "0::", 3) != 0))
            continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(folder, sizeof folder, "/sys/fs/cgroup%s%s", first ? "/memory" : "", path);
        for (char *end = folder + strlen(folder); end - folder >= (long)strlen("/sys/fs/cgroup");
             end = strrchr(folder, '/')) {
            *end = '\0';
            bytes = narrow(bytes, folder, first);
        }
    }
    if (file != NULL)
        fclose(file);
    return bytes;
}
