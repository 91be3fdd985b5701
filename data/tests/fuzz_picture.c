/*
 * Fuzzer for pictures: any bytes are an image of the size that its header says, or are refused
 * with a reason that names the file.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/tests/demand.h"
#include "data/pictures/picture.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 1 << 22 }; /* pixels; more take too long */

static void demand_reason(enum dpt_status status, const char *path, const struct dpt_error *err)
{
    DEMAND(status == DPT_BAD_DATA && err->status == status && strstr(err->text, path) != NULL,
           "%d: %s", (int)status, err->text);
}

/* All of its pixels are there: they are added up, so that a sanitizer looks at each. */
static void demand_whole(const struct dpt_picture *p, const struct dpt_picture *head)
{
    const size_t n = (size_t)p->width * (size_t)p->height * (size_t)p->channels;
    uint64_t sum = 0;

    DEMAND(p->width == head->width && p->height == head->height && p->channels == head->channels,
           "%d x %d x %d, its header says %d x %d x %d", p->channels, p->height, p->width,
           head->channels, head->height, head->width);
    for (size_t i = 0; i < n; i++)
        sum += p->pixels[i];
    DEMAND(sum <= 255 * (uint64_t)n, "%llu", (unsigned long long)sum);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const int fd = memfd_create("picture", 0);
    struct dpt_picture head = {0}, picture = {0};
    struct dpt_error err = {0};
    enum dpt_status status;
    char path[32];

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    DEMAND(fd >= 0 && write(fd, data, size) == (ssize_t)size, "cannot write %s", path);
    status = dpt_picture_read(&head, path, true, &err);
    if (status != DPT_OK) {
        demand_reason(status, path, &err);
    } else if ((int64_t)head.width * head.height <= MOST) {
        DEMAND(dpt_picture_is(data, size), "it was read");
        status = dpt_picture_read(&picture, path, false, &err);
        if (status == DPT_OK)
            demand_whole(&picture, &head);
        else
            demand_reason(status, path, &err);
    }
    dpt_picture_release(&picture);
    dpt_picture_release(&head);
    close(fd);
    return 0;
}
