#include "core/base/json.h"

#include <errno.h>

/* Bytes that pile up before they are written. */
enum { PILE = 1 << 14 };

static void flush(struct dpt_json *j)
{
    if (j->error == 0 && j->text.failed)
        j->error = ENOMEM;
    if (j->error == 0 && j->text.length > 0 &&
        fwrite(j->text.text, 1, j->text.length, j->file) != j->text.length)
        j->error = errno;
    dpt_str_clear(&j->text);
}

/* What stands in front of a value or a closing bracket. */
static void separate(struct dpt_json *j, bool closing)
{
    const char *comma = j->comma && !closing ? "," : "";

    if (j->file != NULL && j->text.length >= PILE)
        flush(j);
    if (j->indent && j->depth + closing > 0 && (j->comma || !closing))
        dpt_str_printf(&j->text, "%s\n%*s", comma, 2 * j->depth, "");
    else
        dpt_str_printf(&j->text, "%s%s", comma, j->newline ? "\n" : *comma != '\0' ? " " : "");
    j->newline = false;
    j->comma = true;
}

static void begin(struct dpt_json *j, const char *key)
{
    separate(j, false);
    if (key == NULL)
        return;
    dpt_str_json(&j->text, key);
    dpt_str_add(&j->text, ": ", 2);
}

static void open(struct dpt_json *j, const char *key, bool array)
{
    const uint64_t bit = UINT64_C(1) << j->depth;

    begin(j, key);
    dpt_str_add(&j->text, array ? "[" : "{", 1);
    j->arrays = array ? j->arrays | bit : j->arrays & ~bit;
    j->depth++;
    j->comma = false;
}

void dpt_json_object(struct dpt_json *j, const char *key)
{
    open(j, key, false);
}

void dpt_json_array(struct dpt_json *j, const char *key)
{
    open(j, key, true);
}

void dpt_json_end(struct dpt_json *j)
{
    j->depth--;
    separate(j, true);
    dpt_str_add(&j->text, j->arrays >> j->depth & 1 ? "]" : "}", 1);
}

void dpt_json_text(struct dpt_json *j, const char *key, const char *value)
{
    if (value == NULL) {
        dpt_json_null(j, key);
        return;
    }
    begin(j, key);
    dpt_str_json(&j->text, value);
}

void dpt_json_int(struct dpt_json *j, const char *key, int64_t value)
{
    begin(j, key);
    dpt_str_printf(&j->text, "%lld", (long long)value);
}

void dpt_json_real(struct dpt_json *j, const char *key, double value)
{
    begin(j, key);
    dpt_str_number(&j->text, value);
}

void dpt_json_bool(struct dpt_json *j, const char *key, bool value)
{
    begin(j, key);
    dpt_str_printf(&j->text, value ? "true" : "false");
}

void dpt_json_null(struct dpt_json *j, const char *key)
{
    begin(j, key);
    dpt_str_add(&j->text, "null", 4);
}

void dpt_json_break(struct dpt_json *j)
{
    j->newline = true;
}

enum dpt_status dpt_json_finish(struct dpt_json *j, const char *what, struct dpt_error *err)
{
    dpt_str_add(&j->text, "\n", 1);
    flush(j);
    dpt_str_release(&j->text);
    errno = j->error;
    return j->error == ENOMEM ? dpt_fail_memory(err, what, 0) : DPT_OK;
}
