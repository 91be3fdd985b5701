#include "cmd/launcher_text.h"

#include <string.h>

enum { RULE = 40 }; /* characters of such a line at least: Hydra's has 83, prterun's 74 */

/* How the first line of such a text begins, and single lines after it. */
static const char *const openings[] = {
    "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
    "prterun detected that ",
    "prterun noticed that ",
    "prterun has exited due to ",
    "MPI_ABORT was invoked on rank ",
};
static const char *const tails[] = {
    "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: ",
    "This typically refers to a problem with your application.",
    "Please see the FAQ page for debugging suggestions",
};

/* Whether n bytes, a whole line or its beginning, are the beginning of one of these, or it of
 * them. */
static bool begins(const char *line, size_t n, const char *const *texts, size_t count, bool whole)
{
    for (size_t i = 0; i < count; i++) {
        const size_t length = strlen(texts[i]);

        if (whole ? n >= length && memcmp(line, texts[i], length) == 0
                  : memcmp(line, texts[i], n < length ? n : length) == 0)
            return true;
    }
    return false;
}

#define BEGINS(line, n, texts, whole) begins(line, n, texts, sizeof(texts) / sizeof *(texts), whole)

/* The character that all n bytes are, if it is a rule's; else 0. */
static char rule_of(const char *line, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (line[i] != line[0])
            return 0;
    return n > 0 && (line[0] == '=' || line[0] == '-') ? line[0] : 0;
}

static char whole_rule(const char *line, size_t n)
{
    return n >= RULE ? rule_of(line, n) : 0;
}

/* Whether the last line, of which n bytes are there, may turn out to be the launcher's. */
static bool is_open(const struct dpt_launcher_text *t, size_t n)
{
    const char *line = t->held + t->line;

    if (t->n == sizeof t->held)
        return false;
    return n == 0 || rule_of(line, n) != 0 || BEGINS(line, n, tails, false) ||
           (t->line > 0 && BEGINS(line, n, openings, false));
}

static size_t release(struct dpt_launcher_text *t, char *out)
{
    const size_t n = t->n;

    memcpy(out, t->held, n);
    t->n = t->line = 0;
    return n;
}

/* Judges the last line, which is whole and has n bytes before its end. Gives how many bytes were
 * released. */
static size_t end_line(struct dpt_launcher_text *t, size_t n, char *out)
{
    const char *line = t->held + t->line;
    const char rule = whole_rule(line, n), before = t->line > RULE ? t->held[t->line - 2] : 0;

    if (before != 0 && BEGINS(line, n, openings, true)) {
        t->rule = before;
        t->n = t->line = 0;
        return 0;
    }
    if (BEGINS(line, n, tails, true)) {
        t->n = t->line;
        return 0;
    }
    if (rule != 0 && before != 0) { /* the one before was somebody else's */
        const size_t others = t->line;

        memcpy(out, t->held, others);
        memmove(t->held, line, n + 1);
        t->n = t->line = n + 1;
        return others;
    }
    if (rule != 0 || (n == 0 && t->line == 0)) { /* Hydra's rule has an empty line before it */
        t->line = t->n;
        return 0;
    }
    return release(t, out);
}

size_t dpt_launcher_text(struct dpt_launcher_text *t, const char *bytes, size_t n, char *out)
{
    size_t written = 0;

    for (size_t i = 0; i < n;) {
        const char *end = memchr(bytes + i, '\n', n - i);
        const size_t length = end != NULL ? (size_t)(end - bytes) + 1 - i : n - i;
        size_t room = sizeof t->held - t->n;

        if (t->ended && bytes[i] == '\0') { /* Open MPI 5 writes the end of its string, too */
            i++;
            continue;
        }
        t->ended = false;
        if (t->passing) {
            memcpy(out + written, bytes + i, length);
            written += length;
            t->passing = end == NULL;
            i += length;
            continue;
        }
        room = room < length ? room : length;
        memcpy(t->held + t->n, bytes + i, room);
        t->n += room;
        i += room;
        if (room == length && end != NULL && t->rule == 0) {
            written += end_line(t, t->n - t->line - 1, out + written);
        } else if (t->rule != 0) { /* inside: all is dropped, up to the closing rule */
            if (end != NULL && room == length && whole_rule(t->held, t->n - 1) == t->rule)
                t->rule = 0, t->ended = true;
            if (end != NULL || room < length)
                t->n = t->line = 0;
        } else if (!is_open(t, t->n - t->line)) {
            written += release(t, out + written);
            t->passing = true;
        }
    }
    return written;
}

size_t dpt_launcher_text_end(struct dpt_launcher_text *t, char *out)
{
    return release(t, out);
}
