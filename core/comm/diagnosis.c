#include <stdio.h>
#include <string.h>

#include "core/base/str.h"
#include "core/comm/watch.h"

/* Whether a rank waits in a collective; else other ranks may be waiting for it. */
bool dpt_watch_waits(const struct dpt_rank_status *s)
{
    return s->process == DPT_PROCESS_RUNS && (s->in_subgroup || s->phase % 2 == 1);
}

/*
 * A rank that has passed the collective in question holds nobody up, and a rank that waits at an
 * earlier collective is itself held up by another one. A stopped process sends no message, wherever
 * it stands.
 */
static bool is_missing(const struct dpt_rank_status *s, const struct dpt_rank_status *me,
                       double limit)
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

/* Lists the ranks for which `which` is set, or all where it is NULL. Returns how many there are. */
static int list_seen(const struct dpt_rank_status *seen, int n, const bool *which, char *out,
                     size_t size)
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

enum { LIST_TEXT = 512, WHERE_TEXT = 48, LAST_NOTE_TEXT = DPT_NOTE_TEXT + 80 };

/* "Its last word: computing", of the first one of `gone` ranks. */
static void last_note(const struct dpt_rank_status *first, int gone, char *out, size_t size)
{
    char who[32] = "It";

    if (gone > 1)
        snprintf(who, sizeof who, "Rank %d", first->rank);
    snprintf(out, size, "%s%s: %s", who,
             first->process == DPT_PROCESS_STOPPED ? " is stopped (SIGSTOP); its last word"
             : gone == 1                           ? "s last word"
                                                   : "'s last word",
             first->note);
}

static void describe_missing(const struct dpt_rank_status *seen, int n, int me, const bool *missing,
                             const struct dpt_diagnosis_context *context, char *line, size_t size)
{
    char absent[LIST_TEXT], others[LIST_TEXT], at[WHERE_TEXT], note[LAST_NOTE_TEXT];
    bool waiting[n];
    int first = 0, gone, kept;

    while (!missing[first])
        first++;
    for (int i = 0; i < n; i++)
        waiting[i] = !missing[i] && dpt_watch_waits(&seen[i]);
    gone = list_seen(seen, n, missing, absent, sizeof absent);
    kept = list_seen(seen, n, waiting, others, sizeof others);
    where(seen[me].step, at, sizeof at);
    last_note(&seen[first], gone, note, sizeof note);
    snprintf(line, size, "rank%s %s (%s) %s not arrived %s for %g s; rank%s %s wait%s. %s",
             gone == 1 ? "" : "s", absent, context->host, gone == 1 ? "has" : "have", at,
             context->limit, kept == 1 ? "" : "s", others, kept == 1 ? "s" : "", note);
}

/* All of the node wait: for another node, or where there is none, for nobody that could come. */
static void describe_waiting(const struct dpt_rank_status *seen, int n, int me,
                             const struct dpt_diagnosis_context *context, char *line, size_t size)
{
    char others[LIST_TEXT], at[WHERE_TEXT];
    int other = me;

    for (int i = 0; i < n && other == me; i++)
        if (strcmp(seen[i].note, seen[me].note) != 0)
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
                 others, context->host, at, context->limit, seen[me].rank, seen[me].note,
                 seen[other].rank, seen[other].note);
}

enum dpt_diagnosis dpt_watch_diagnose(const struct dpt_rank_status *seen, int n, int me,
                                      const struct dpt_diagnosis_context *context, char *line,
                                      size_t size)
{
    bool missing[n];
    bool some = false, late = false;

    if (!dpt_watch_waits(&seen[me]) || seen[me].still < context->limit)
        return DPT_ALL_WELL;
    for (int i = 0; i < n; i++) {
        missing[i] = i != me && is_missing(&seen[i], &seen[me], context->limit);
        some |= missing[i];
        /* It has not arrived, but it made progress not long ago: its time is not over. */
        late |= seen[i].phase < seen[me].phase && seen[i].still < context->limit;
    }
    if (some) {
        describe_missing(seen, n, me, missing, context, line, size);
        return DPT_SOME_MISSING;
    }
    if (late)
        return DPT_ALL_WELL;
    describe_waiting(seen, n, me, context, line, size);
    return DPT_NONE_MISSING;
}

/* "2 (node08), 4-5 (node09)" */
struct rank_list {
    char text[LIST_TEXT];
    size_t used;
    int n; /* ranks */
};

static void add_ranks(struct rank_list *p, const int *ranks, int n, const char *host)
{
    char some[LIST_TEXT / 2];

    list(ranks, n, some, sizeof some);
    if (p->used < sizeof p->text)
        p->used += (size_t)snprintf(p->text + p->used, sizeof p->text - p->used, "%s%s (%s)",
                                    p->n > 0 ? ", " : "", some, host);
    p->n += n;
}

/* Ranks of other nodes that are late but make progress are waited for this many times the limit.
 * What another node reports is no reason to wait for ever. */
static const double PATIENCE = 4;

enum dpt_diagnosis dpt_watch_diagnose_remote(const struct dpt_remote_node *remote, int n_remote,
                                             const struct dpt_rank_status *seen, int n, int me,
                                             const struct dpt_diagnosis_context *context,
                                             char *line, size_t size)
{
    const bool over = seen[me].still >= PATIENCE * context->limit;
    struct rank_list late = {0}, silent = {0};
    const struct rank_list *gone = &late;
    char others[LIST_TEXT], at[WHERE_TEXT], note[LAST_NOTE_TEXT];
    const struct dpt_rank_status *first = NULL;
    bool moving = false;

    for (int i = 0; i < n_remote; i++) {
        int ranks[remote[i].n_late + 1], count = 0;

        if (remote[i].state == DPT_REMOTE_SILENT)
            add_ranks(&silent, remote[i].ranks, remote[i].n_ranks, remote[i].host);
        for (int k = 0; k < remote[i].n_late && remote[i].state == DPT_REMOTE_HEARD; k++) {
            const struct dpt_rank_status *s = &remote[i].late[k];
            const bool missing =
                over || s->process != DPT_PROCESS_RUNS || s->still >= context->limit;

            moving |= !missing;
            if (!missing)
                continue;
            first = first == NULL ? s : first;
            ranks[count++] = s->rank;
        }
        if (count > 0)
            add_ranks(&late, ranks, count, remote[i].host);
    }
    if (late.n == 0 && silent.n == 0)
        return moving ? DPT_ALL_WELL : DPT_NONE_MISSING;
    if (first != NULL) {
        last_note(first, late.n, note, sizeof note);
    } else {
        gone = &silent;
        snprintf(note, sizeof note, "Nobody answers there any more: cut off, stopped or dead");
    }
    list_seen(seen, n, NULL, others, sizeof others);
    where(seen[me].step, at, sizeof at);
    snprintf(line, size, "rank%s %s %s not arrived %s for %g s; rank%s %s (%s) wait%s. %s",
             gone->n == 1 ? "" : "s", gone->text, gone->n == 1 ? "has" : "have", at,
             over ? PATIENCE * context->limit : context->limit, n == 1 ? "" : "s", others,
             context->host, n == 1 ? "s" : "", note);
    return DPT_SOME_MISSING;
}

void dpt_watch_describe_death(const struct dpt_rank_status *dead, const char *host, char *line,
                              size_t size)
{
    char at[WHERE_TEXT];

    where(dead->step, at, sizeof at);
    snprintf(
        line, size,
        "rank %d (%s) died %s: its process is gone (killed, crashed, or out of memory: `dptrain "
        "plan` says what it needs)%s%s",
        dead->rank, host, at, dead->note[0] != '\0' ? ". Its last word: " : "", dead->note);
}
