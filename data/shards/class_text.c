/* Names of classes as one text: a line each, in which a line break is "\n" and a backslash "\\". */
#include <stdlib.h>
#include <string.h>

#include "data/shards/shard.h"

void dpt_class_names_write(const char *const *names, size_t n, struct dpt_str *out)
{
    for (size_t i = 0; i < n; i++) {
        for (const char *at = names[i]; *at != '\0'; at++)
            if (*at == '\n' || *at == '\\')
                dpt_str_add(out, *at == '\n' ? "\\n" : "\\\\", 2);
            else
                dpt_str_add(out, at, 1);
        dpt_str_add(out, "\n", 1);
    }
}

enum dpt_status dpt_class_names_parse(struct dpt_class_names *names, const char *text,
                                      const char *from, struct dpt_error *err)
{
    const size_t length = strlen(text);
    const char **at;
    size_t n = 0;
    char *to;

    *names = (struct dpt_class_names){0};
    for (const char *p = text; *p != '\0'; p++)
        n += *p == '\n' || p[1] == '\0';
    if (n == 0)
        return DPT_OK;
    if (n > DPT_MOST_CLASSES)
        return dpt_fail(err, DPT_BAD_DATA, "%s: names %zu classes, no model has more than %d", from,
                        n, DPT_MOST_CLASSES);
    at = malloc(n * sizeof *at + length + 1); /* each line's end makes room for a NUL */
    if (at == NULL)
        return dpt_fail_memory(err, "the names of classes", (double)length);
    to = (char *)(at + n);
    *names = (struct dpt_class_names){at, n};
    for (size_t i = 0; i < n; i++) {
        at[i] = to;
        for (; *text != '\0' && *text != '\n'; text++) {
            const bool escaped = *text == '\\' && (text[1] == 'n' || text[1] == '\\');

            *to++ = escaped && text[1] == 'n' ? '\n' : *text;
            text += escaped;
        }
        *to++ = '\0';
        text += *text == '\n';
    }
    return DPT_OK;
}
