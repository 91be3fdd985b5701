#include <stdio.h>
#include <string.h>

#include "core/comm/watch.h"

/* What a rank is to the one that looks: waiting too, or what it waits for. */
static bool waits(const struct dpt_seen *s)
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
    return !waits(s) && s->phase < me->phase && s->still >= limit;
}

/* "2" or "0-2, 4, 6-7": the ranks that `which` picks. */
static int list(const struct dpt_seen *seen, int n, const bool *which, char *out, size_t size)
{
    size_t used = 0;
    int found = 0;

    out[0] = '\0';
    for (int i = 0, last; i < n && used < size; i = last + 1) {
        last = i;
        if (!which[i])
            continue;
        while (last + 1 < n && which[last + 1] && seen[last + 1].rank == seen[last].rank + 1)
            last++;
        used += (size_t)snprintf(out + used, size - used, last > i ? "%s%d-%d" : "%s%d",
                                 found > 0 ? ", " : "", seen[i].rank, seen[last].rank);
        found += last - i + 1;
    }
    return found;
}

static void where(int64_t step, char *out, size_t size)
{
    if (step > 0)
        snprintf(out, size, "at step %lld", (long long)step);
    else
        snprintf(out, size, "before the first step");
}

enum { LIST_TEXT = 512, WHERE_TEXT = 48 };

static void tell_missing(const struct dpt_seen *seen, int n, int me, const bool *missing,
                         const struct dpt_verdict_context *context, char *line, size_t size)
{
    char absent[LIST_TEXT], others[LIST_TEXT], at[WHERE_TEXT], who[32] = "It";
    bool waiting[n];
    int first = 0, gone, kept;

    while (!missing[first])
        first++;
    for (int i = 0; i < n; i++)
        waiting[i] = !missing[i] && waits(&seen[i]);
    gone = list(seen, n, missing, absent, sizeof absent);
    kept = list(seen, n, waiting, others, sizeof others);
    where(seen[me].step, at, sizeof at);
    if (gone > 1)
        snprintf(who, sizeof who, "Rank %d", seen[first].rank);
    snprintf(line, size, "rank%s %s (%s) %s not arrived %s for %g s; rank%s %s wait%s. %s%s: %s",
             gone == 1 ? "" : "s", absent, context->host, gone == 1 ? "has" : "have", at,
             context->limit, kept == 1 ? "" : "s", others, kept == 1 ? "s" : "", who,
             seen[first].process == DPT_PROCESS_STOPPED ? " is stopped (SIGSTOP); its last word"
             : gone == 1                                ? "s last word"
                                                        : "'s last word",
             seen[first].word);
}

/* All of the node wait: for another node, or where there is none, for nobody that could come. */
static void tell_waiting(const struct dpt_seen *seen, int n, int me,
                         const struct dpt_verdict_context *context, char *line, size_t size)
{
    char others[LIST_TEXT], at[WHERE_TEXT];
    bool all[n];
    int other = me;

    for (int i = 0; i < n; i++) {
        all[i] = true;
        if (other == me && strcmp(seen[i].word, seen[me].word) != 0)
            other = i;
    }
    list(seen, n, all, others, sizeof others);
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

    if (!waits(&seen[me]) || seen[me].still < context->limit)
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

void dpt_watch_obituary(const struct dpt_seen *dead, const char *host, char *line, size_t size)
{
    char at[WHERE_TEXT];

    where(dead->step, at, sizeof at);
    snprintf(line, size,
             "rank %d (%s) died %s: its process is gone (killed, out of memory, or crashed)%s%s",
             dead->rank, host, at, dead->word[0] != '\0' ? ". Its last word: " : "", dead->word);
}
