#include "core/state/metrics.h"

#include <stdlib.h>
#include <sys/stat.h>

#include "core/base/file.h"

/* A rank that was killed may have left part of a line. */
static bool ends_within_line(const char *path)
{
    struct dpt_error ignored;
    FILE *file;
    bool within;

    if (dpt_file_stream(path, DPT_FILE_READ, DPT_IO, &file, &ignored) != DPT_OK)
        return false;
    within = fseek(file, -1, SEEK_END) == 0 && fgetc(file) != '\n';
    fclose(file);
    return within;
}

enum dpt_status dpt_metrics_open(struct dpt_metrics *m, const char *path, struct dpt_log *log,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    m->path = path;
    m->log = log;
    m->told = false;
    DPT_TRY(dpt_file_stream(path, DPT_FILE_APPEND, DPT_IO, &m->file, err));
    if (ends_within_line(path) && dpt_append_all(fileno(m->file), "\n", 1) != 0)
        status = dpt_fail_errno(err, DPT_IO, "%s", path);
out:
    return status;
}

void dpt_metrics_close(struct dpt_metrics *m)
{
    if (m->file != NULL)
        fclose(m->file);
    m->file = NULL;
    dpt_str_release(&m->line.text);
}

void dpt_metrics_begin(struct dpt_metrics *m, const char *event)
{
    dpt_str_clear(&m->line.text);
    m->line = (struct dpt_json){.text = m->line.text};
    dpt_json_object(&m->line, NULL);
    dpt_json_text(&m->line, "event", event);
}

void dpt_metrics_int(struct dpt_metrics *m, const char *name, int64_t value)
{
    dpt_json_int(&m->line, name, value);
}

void dpt_metrics_real(struct dpt_metrics *m, const char *name, double value)
{
    dpt_json_real(&m->line, name, value);
}

void dpt_metrics_text(struct dpt_metrics *m, const char *name, const char *value)
{
    dpt_json_text(&m->line, name, value);
}

void dpt_metrics_reals(struct dpt_metrics *m, const char *name, const double *values, size_t n)
{
    char digits[32];

    dpt_json_array(&m->line, name);
    for (size_t i = 0; i < n; i++) {
        snprintf(digits, sizeof digits, "%.6g", values[i]);
        dpt_json_real(&m->line, NULL, strtod(digits, NULL));
    }
    dpt_json_end(&m->line);
}

void dpt_metrics_ints(struct dpt_metrics *m, const char *name, const int32_t *values, size_t n)
{
    dpt_json_array(&m->line, name);
    for (size_t i = 0; i < n; i++)
        dpt_json_int(&m->line, NULL, values[i]);
    dpt_json_end(&m->line);
}

void dpt_metrics_texts(struct dpt_metrics *m, const char *name, const char *const *values, size_t n)
{
    dpt_json_array(&m->line, name);
    for (size_t i = 0; i < n; i++)
        dpt_json_text(&m->line, NULL, values[i]);
    dpt_json_end(&m->line);
}

enum dpt_status dpt_metrics_end(struct dpt_metrics *m, struct dpt_error *err)
{
    struct stat info;

    if (m->file == NULL)
        return DPT_OK;
    dpt_json_end(&m->line);
    dpt_str_add(&m->line.text, "\n", 1);
    if (m->line.text.failed)
        return dpt_fail_memory(err, "a line of metrics", 0);
    if (fstat(fileno(m->file), &info) == 0 && info.st_nlink == 0 && !m->told && m->log != NULL) {
        dpt_log_warn(m->log,
                     "%s was removed or replaced under this run: what it writes there is lost from "
                     "here on",
                     m->path);
        m->told = true;
    }
    /* Part of a line must not stand in front of a later one; where it cannot be taken back,
     * resuming leaves it out. */
    if (dpt_append_all(fileno(m->file), m->line.text.text, m->line.text.length) != 0)
        return dpt_fail_errno(err, DPT_IO, "%s", m->path);
    return DPT_OK;
}
