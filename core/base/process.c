#include "core/base/process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/file.h"

bool dpt_process_read(int pid, struct dpt_process *process)
{
    char path[64], text[1024], *p, *name;
    FILE *file;
    size_t n;

    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    file = fopen(path, "re");
    if (file == NULL)
        return false;
    n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = '\0';
    name = strchr(text, '(');
    p = strrchr(text, ')'); /* the name before it may hold anything */
    if (name == NULL || p == NULL)
        return false;
    *p = '\0';
    snprintf(process->name, sizeof process->name, "%s", name + 1);
    return sscanf(p + 1,
                  " %c %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %ld %*s %llu",
                  &process->state, &process->parent, &process->threads, &process->born) == 4;
}

double dpt_process_memory(const char *name)
{
    char kilobytes[64] = "0";

    dpt_file_value("/proc/self/status", name, kilobytes, sizeof kilobytes);
    return atof(kilobytes) * 1024;
}
