#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/conf/internal.h"

enum {
    LISTED = 40,         /* errors shown */
    MESSAGE = 1024,      /* bytes of one message before it is made printable */
    MESSAGE_SHOWN = 400, /* characters of it */
    PATH_SHOWN = 160,
    TAIL = 64, /* bytes kept for "and 12 more errors" */
};

static void add(struct dpt_conf *conf, const struct dpt_mistake *mistake)
{
    struct dpt_mistake *grown =
        dpt_grow(conf->mistakes, &conf->mistakes_capacity, conf->n_mistakes + 1, sizeof *grown);

    if (grown == NULL) {
        conf->region.failed = true;
        return;
    }
    conf->mistakes = grown;
    grown[conf->n_mistakes] = *mistake;
    grown[conf->n_mistakes].number = conf->n_mistakes;
    conf->n_mistakes++;
}

/* key: at the position of the key that the node stands under. */
static void add_formatted(struct dpt_conf *conf, const struct dpt_conf_node *at, bool key,
                          const char *path, const char *format, va_list args)
{
    char message[MESSAGE], shown[6 * MESSAGE_SHOWN + 8];
    struct dpt_mistake mistake = {0};
    int used = 0;

    if (at != NULL) {
        key = key && at->key_line != 0;
        mistake.line = key ? at->key_line : at->line;
        mistake.column = key ? at->key_column : at->column;
        mistake.origin = at->origin;
    }
    if (path != NULL && path[0] != '\0')
        used = snprintf(message, sizeof message, "%s: ", path);
    if (used < 0 || (size_t)used >= sizeof message)
        used = 0;
    vsnprintf(message + used, sizeof message - (size_t)used, format, args);
    dpt_show_text(shown, message, MESSAGE_SHOWN);
    mistake.text = dpt_region_strdup(&conf->region, shown);
    if (mistake.text != NULL)
        add(conf, &mistake);
}

void dpt_conf_mistake(struct dpt_conf *conf, const struct dpt_conf_node *at, const char *path,
                      const char *format, ...)
{
    va_list args;

    va_start(args, format);
    add_formatted(conf, at, false, path, format, args);
    va_end(args);
}

void dpt_conf_mistake_key(struct dpt_conf *conf, const struct dpt_conf_node *at, const char *path,
                          const char *format, ...)
{
    va_list args;

    va_start(args, format);
    add_formatted(conf, at, true, path, format, args);
    va_end(args);
}

/* The file as a whole, then its lines, then the command line; what was found first comes first. */
static int by_place(const void *left, const void *right)
{
    const struct dpt_mistake *a = left, *b = right;

    if ((a->origin == NULL) != (b->origin == NULL))
        return a->origin == NULL ? -1 : 1;
    if (a->line != b->line)
        return a->line < b->line ? -1 : 1;
    if (a->column != b->column)
        return a->column < b->column ? -1 : 1;
    return a->number < b->number ? -1 : 1;
}

/* An error as a line at err->text + used. The bytes it has, also where they did not fit. */
static size_t print(const struct dpt_mistake *m, const char *path, char *out, size_t capacity)
{
    int n;

    if (m->origin != NULL)
        n = snprintf(out, capacity, "%s: %s", m->origin, m->text);
    else if (m->line > 0)
        n = snprintf(out, capacity, "%s:%d:%d: %s", path, m->line, m->column, m->text);
    else
        n = snprintf(out, capacity, "%s: %s", path, m->text);
    return n < 0 ? capacity : (size_t)n;
}

enum dpt_status dpt_conf_validation_result(struct dpt_conf *conf, struct dpt_error *err)
{
    char path[6 * PATH_SHOWN + 8];
    const size_t capacity = sizeof err->text - TAIL;
    size_t used = 0, i;

    if (conf->region.failed)
        return dpt_fail_memory(err, "the job file", DPT_YAML_BYTES);
    if (conf->n_mistakes == 0)
        return DPT_OK;
    dpt_show_text(path, conf->path, PATH_SHOWN);
    qsort(conf->mistakes, conf->n_mistakes, sizeof *conf->mistakes, by_place);
    for (i = 0; i < conf->n_mistakes && i < LISTED; i++) {
        char *line = err->text + used + (i > 0);
        const size_t space = capacity - used - (i > 0);
        const size_t n = print(&conf->mistakes[i], path, line, space);

        if (n + 1 >= space && i > 0)
            break;
        if (i > 0)
            line[-1] = '\n';
        used = (size_t)(line - err->text) + (n < space ? n : space - 1);
    }
    err->text[used] = '\0';
    if (i < conf->n_mistakes)
        snprintf(err->text + used, sizeof err->text - used, "\nand %zu more errors",
                 conf->n_mistakes - i);
    err->status = DPT_BAD_JOB;
    return err->status;
}
