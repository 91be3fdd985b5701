#include <stdio.h>
#include <string.h>

#include "core/base/str.h"
#include "core/comm/watch.h"

/* What a rank is to the one that looks: waiting too, or what it waits for. */
bool dpt_watch_waits(const struct dpt_seen *s)
{
    return s->process == DPT_PROCESS_RUNS && (s->aside || s->phase % 2 == 1);
}

/*
 * A rank that has gone past the collective in question keeps nobody; one that waits at an earlier
 * one is itself kept by another. A stopped process moves no message, wherever it is.
 */
static bool is_missing(const struct dpt_seen *s, const struct dpt_seen *me, double limit)
{
    if (s->process != DPT_PROCESS_RUNS)
        return true;
    return !dpt_watch_waits(s) && s->phase < me->phase && s->still >= limit;
}

static void list(const int *ranks, int n, char *out, size_t size)
{
    struct dpt_str text = {0};

    dpt_str_ranks(&text, ranks, n);
    snprintf(out, size, "%s", text.text != NULL ? text.text : "");
    dpt_str_release(&text);
}

/* The ranks that `which` picks; NULL: all. Returns how many. */
static int list_seen(const struct dpt_seen *seen, int n, const bool *which, char *out, size_t size)
{
    int ranks[n], found = 0;

    memset(ranks, 0, sizeof ranks);
    for (int i = 0; i < n; i++)
        if (which == NULL || which[i])
            ranks[found++] = seen[i].rank;
    list(ranks, found, out, size);
    return found;
}

static void where(int64_t step, char *out, size_t size)
{
    if (step > 0)
        snprintf(out, size, "at step %lld", (long long)step);
    else
        snprintf(out, size, "before the first step");
}

enum { LIST_TEXT = 512, WHERE_TEXT = 48, WORD_TEXT = DPT_NOTE_TEXT + 80 };

/* "Its last word: computing", of the first one of `gone` ranks. */
static void last_word(const struct dpt_seen *first, int gone, char *out, size_t size)
{
    char who[32] = "It";

    if (gone > 1)
        snprintf(who, sizeof who, "Rank %d", first->rank);
    snprintf(out, size, "%s%s: %s", who,
             first->process == DPT_PROCESS_STOPPED ? " is stopped (SIGSTOP); its last word"
             : gone == 1                           ? "s last word"
                                                   : "'s last word",
             first->word);
}

static void tell_missing(const struct dpt_seen *seen, int n, int me, const bool *missing,
                         const struct dpt_verdict_context *context, char *line, size_t size)
{
    char absent[LIST_TEXT], others[LIST_TEXT], at[WHERE_TEXT], word[WORD_TEXT];
    bool waiting[n];
    int first = 0, gone, kept;

    while (!missing[first])
        first++;
    for (int i = 0; i < n; i++)
        waiting[i] = !missing[i] && dpt_watch_waits(&seen[i]);
    gone = list_seen(seen, n, missing, absent, sizeof absent);
    kept = list_seen(seen, n, waiting, others, sizeof others);
    where(seen[me].step, at, sizeof at);
    last_word(&seen[first], gone, word, sizeof word);
    snprintf(line, size, "rank%s %s (%s) %s not arrived %s for %g s; rank%s %s wait%s. %s",
             gone == 1 ? "" : "s", absent, context->host, gone == 1 ? "has" : "have", at,
             context->limit, kept == 1 ? "" : "s", others, kept == 1 ? "s" : "", word);
}

/* All of the node wait: for another node, or where there is none, for nobody that could come. */
static void tell_waiting(const struct dpt_seen *seen, int n, int me,
                         const struct dpt_verdict_context *context, char *line, size_t size)
{
    char others[LIST_TEXT], at[WHERE_TEXT];
    int other = me;

    for (int i = 0; i < n && other == me; i++)
        if (strcmp(seen[i].word, seen[me].word) != 0)
            other = i;
    list_seen(seen, n, NULL, others, sizeof others);
    where(seen[me].step, at, sizeof at);
    if (context->elsewhere[0] != '\0')
        snprintf(line, size,
                 "a rank on %s has not arrived %s for %g s; rank%s %s (%s) wait%s, and no rank of "
                 "this node is missing",
                 context->elsewhere, at, context->limit, n == 1 ? "" : "s", others, context->host,
                 n == 1 ? "s" : "");
    else
        snprintf(line, size,
                 "ranks %s (%s) all wait for each other %s for %g s; last words: rank %d: %s, "
                 "rank %d: %s",
                 others, context->host, at, context->limit, seen[me].rank, seen[me].word,
                 seen[other].rank, seen[other].word);
}

enum dpt_verdict dpt_watch_judge(const struct dpt_seen *seen, int n, int me,
                                 const struct dpt_verdict_context *context, char *line, size_t size)
{
    bool missing[n];
    bool some = false, late = false;

    if (!dpt_watch_waits(&seen[me]) || seen[me].still < context->limit)
        return DPT_ALL_WELL;
    for (int i = 0; i < n; i++) {
        missing[i] = i != me && is_missing(&seen[i], &seen[me], context->limit);
        some |= missing[i];
        /* Not here yet, but it moved not long ago: its time is not over. */
        late |= seen[i].phase < seen[me].phase && seen[i].still < context->limit;
    }
    if (some) {
        tell_missing(seen, n, me, missing, context, line, size);
        return DPT_SOME_MISSING;
    }
    if (late)
        return DPT_ALL_WELL;
    tell_waiting(seen, n, me, context, line, size);
    return DPT_NONE_MISSING;
}

/* "2 (node08), 4-5 (node09)" */
struct places {
    char text[LIST_TEXT];
    size_t used;
    int n; /* ranks */
};

static void add_place(struct places *p, const int *ranks, int n, const char *host)
{
    char some[LIST_TEXT / 2];

    list(ranks, n, some, sizeof some);
    if (p->used < sizeof p->text)
        p->used += (size_t)snprintf(p->text + p->used, sizeof p->text - p->used, "%s%s (%s)",
                                    p->n > 0 ? ", " : "", some, host);
    p->n += n;
}

/* Of the limit: so long ranks of other nodes are waited for that are late but move. What another
 * node says is no reason to wait for ever. */
static const double PATIENCE = 4;

enum dpt_verdict dpt_watch_judge_far(const struct dpt_far *far, int n_far,
                                     const struct dpt_seen *seen, int n, int me,
                                     const struct dpt_verdict_context *context, char *line,
                                     size_t size)
{
    const bool over = seen[me].still >= PATIENCE * context->limit;
    struct places late = {0}, silent = {0};
    const struct places *gone = &late;
    char others[LIST_TEXT], at[WHERE_TEXT], word[WORD_TEXT];
    const struct dpt_seen *first = NULL;
    bool moving = false;

    for (int i = 0; i < n_far; i++) {
        int ranks[far[i].n_late + 1], count = 0;

        if (far[i].state == DPT_FAR_SILENT)
            add_place(&silent, far[i].ranks, far[i].n_ranks, far[i].host);
        for (int k = 0; k < far[i].n_late && far[i].state == DPT_FAR_HEARD; k++) {
            const struct dpt_seen *s = &far[i].late[k];
            const bool missing =
                over || s->process != DPT_PROCESS_RUNS || s->still >= context->limit;

            moving |= !missing;
            if (!missing)
                continue;
            first = first == NULL ? s : first;
            ranks[count++] = s->rank;
        }
        if (count > 0)
            add_place(&late, ranks, count, far[i].host);
    }
    if (late.n == 0 && silent.n == 0)
        return moving ? DPT_ALL_WELL : DPT_NONE_MISSING;
    if (first != NULL) {
        last_word(first, late.n, word, sizeof word);
    } else {
        gone = &silent;
        snprintf(word, sizeof word, "Nobody answers there any more: cut off, stopped or dead");
    }
    list_seen(seen, n, NULL, others, sizeof others);
    where(seen[me].step, at, sizeof at);
    snprintf(line, size, "rank%s %s %s not arrived %s for %g s; rank%s %s (%s) wait%s. %s",
             gone->n == 1 ? "" : "s", gone->text, gone->n == 1 ? "has" : "have", at,
             over ? PATIENCE * context->limit : context->limit, n == 1 ? "" : "s", others,
             context->host, n == 1 ? "s" : "", word);
    return DPT_SOME_MISSING;
}

void dpt_watch_obituary(const struct dpt_seen *dead, const char *host, char *line, size_t size)
{
    char at[WHERE_TEXT];

    where(dead->step, at, sizeof at);
    snprintf(
        line, size,
        "rank %d (%s) died %s: its process is gone (killed, crashed, or out of memory: `dptrain "
        "plan` says what it needs)%s%s",
        dead->rank, host, at, dead->word[0] != '\0' ? ". Its last word: " : "", dead->word);
}
