/*
 * The cache file begins with a line that says how its plans were measured; a file without that line
 * is ignored. Then follows a line for each problem: its text, a tab, the tag of its plan. Lines for
 * other devices or versions of the libraries are kept, and malformed lines are skipped.
 */
#include <stdlib.h>
#include <string.h>

#include "core/backend/cuda/program/program.h"
#include "core/base/file.h"

enum { MOST_BYTES = 4 << 20 };

/* Earlier versions timed single launches and wrote no such line, so their files are ignored. */
static const char heading[] = "# fastest plans, measured in graphs\n";

struct dpt_cuda_cache {
    struct dpt_str path;  /* empty: there is no file */
    struct dpt_str text;  /* "problem\ttag\n" of all known plans */
    struct dpt_str added; /* the lines that are new since the last save */
};

/* Reads the file; the caller frees the result. NULL: there is no usable file. */
static char *read_plans(const char *path, size_t *length)
{
    struct dpt_error ignored;
    char *bytes = NULL;

    *length = 0;
    if (dpt_file_read(path, MOST_BYTES, DPT_BAD_DATA, &bytes, length, &ignored) == DPT_OK &&
        strncmp(bytes, heading, sizeof heading - 1) == 0)
        return bytes;
    free(bytes);
    *length = 0;
    return NULL;
}

struct dpt_cuda_cache *dpt_cuda_cache_open(const char *folder)
{
    struct dpt_cuda_cache *cache = calloc(1, sizeof *cache);
    size_t length;
    char *bytes;

    if (cache == NULL || folder == NULL)
        return cache;
    dpt_str_printf(&cache->path, "%s/gpu-plans.txt", folder);
    bytes = cache->path.failed ? NULL : read_plans(cache->path.text, &length);
    if (bytes != NULL)
        dpt_str_add(&cache->text, bytes, strlen(bytes));
    free(bytes);
    return cache;
}

bool dpt_cuda_tag_find(const char *text, const char *problem, char *tag)
{
    const size_t n = strlen(problem);
    bool found = false;

    for (const char *line = text; line != NULL && *line != '\0';) {
        const size_t bytes = strcspn(line, "\n");

        if (bytes > n + 1 && memcmp(line, problem, n) == 0 && line[n] == '\t' &&
            bytes - n - 1 < DPT_CUDA_FUSED_TAG) {
            memcpy(tag, line + n + 1, bytes - n - 1);
            tag[bytes - n - 1] = '\0';
            found = true;
        }
        line += bytes + (line[bytes] == '\n');
    }
    return found;
}

bool dpt_cuda_cache_find(const struct dpt_cuda_cache *cache, const char *problem, char *tag)
{
    return cache != NULL && dpt_cuda_tag_find(cache->text.text, problem, tag);
}

void dpt_cuda_cache_add(struct dpt_cuda_cache *cache, const char *problem, const char *tag)
{
    if (cache == NULL)
        return;
    dpt_str_printf(&cache->text, "%s%s\t%s\n",
                   cache->text.length > 0 && cache->text.text[cache->text.length - 1] != '\n' ? "\n"
                                                                                              : "",
                   problem, tag);
    dpt_str_printf(&cache->added, "%s\t%s\n", problem, tag);
}

void dpt_cuda_cache_save(struct dpt_cuda_cache *cache)
{
    struct dpt_error ignored;
    char *bytes, *end;
    size_t length;

    if (cache == NULL || cache->path.text == NULL || cache->path.failed ||
        cache->added.length == 0 || cache->added.failed)
        return;
    end = strrchr(cache->path.text, '/');
    *end = '\0';
    if (end > cache->path.text)
        dpt_make_folders(cache->path.text, &ignored);
    *end = '/';
    /* The file is read again, since another process may have written it meanwhile. If one writes it
     * between here and the end its lines are lost, which only costs a measurement. A file that has
     * grown large is started from scratch. */
    bytes = read_plans(cache->path.text, &length);
    if (length > MOST_BYTES / 2)
        length = 0;
    {
        const struct dpt_file_piece pieces[] = {
            {heading, length > 0 ? 0 : sizeof heading - 1},
            {bytes, length},
            {"\n", length > 0 && bytes[length - 1] != '\n'},
            {cache->added.text, cache->added.length},
        };

        dpt_file_write_pieces(cache->path.text, pieces, sizeof pieces / sizeof *pieces, &ignored);
    }
    free(bytes);
    dpt_str_clear(&cache->added);
}

void dpt_cuda_cache_close(struct dpt_cuda_cache *cache)
{
    if (cache == NULL)
        return;
    dpt_str_release(&cache->text);
    dpt_str_release(&cache->added);
    dpt_str_release(&cache->path);
    free(cache);
}
