#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/str.h"
#include "core/comm/watch/watch.h"

bool dpt_watch_waits(const struct dpt_rank_status *s)
{
    return s->process == DPT_PROCESS_RUNS && (s->in_subgroup || s->phase % 2 == 1);
}

/* Seconds for which a rank that runs may stay away. */
static double patience(const struct dpt_diagnosis_context *context)
{
    return fmax(context->limit, context->start);
}

/*
 * A rank that has passed the collective in question holds nobody up, and a rank that waits at an
 * earlier collective is itself held up by another one. A stopped process sends no message, wherever
 * it stands.
 */
static bool is_missing(const struct dpt_rank_status *s, const struct dpt_rank_status *me,
                       const struct dpt_diagnosis_context *context)
{
    if (s->process != DPT_PROCESS_RUNS)
        return true;
    return !dpt_watch_waits(s) && s->phase < me->phase && s->still >= patience(context);
}

/* Seconds for which this missing rank was waited for. */
static double patience_with(const struct dpt_rank_status *missing,
                            const struct dpt_diagnosis_context *context)
{
    return missing != NULL && missing->process == DPT_PROCESS_RUNS ? patience(context)
                                                                   : context->limit;
}

enum { LIST_TEXT = 512, WHERE_TEXT = 48, LAST_NOTE_TEXT = DPT_NOTE_TEXT + 80 };

/* "2 (node08), 4-5 (node09)" */
struct rank_list {
    char text[LIST_TEXT];
    size_t used;
    int n; /* ranks */
};

static const char *place_of(const struct dpt_diagnosis_context *context, int rank)
{
    return context->places != NULL ? context->places[rank] : "";
}

/* Adds n ranks of one place. */
static void add_run(struct rank_list *list, const int *ranks, int n, const char *host,
                    const char *place)
{
    struct dpt_str text = {0};

    dpt_str_ranks(&text, ranks, n);
    if (host != NULL)
        dpt_str_printf(&text, " (%s%s%s)", host, place[0] != '\0' ? ", " : "", place);
    if (list->used < sizeof list->text)
        list->used +=
            (size_t)snprintf(list->text + list->used, sizeof list->text - list->used, "%s%s",
                             list->n > 0 ? ", " : "", text.failed ? "" : text.text);
    list->n += n;
    dpt_str_release(&text);
}

/* host: NULL: neither that nor the places are said. */
static void add_ranks(struct rank_list *list, const int *ranks, int n, const char *host,
                      const struct dpt_diagnosis_context *context)
{
    for (int i = 0, k; i < n; i = k) {
        const char *place = place_of(context, ranks[i]);

        for (k = i + 1; k < n && (host == NULL || strcmp(place_of(context, ranks[k]), place) == 0);)
            k++;
        add_run(list, ranks + i, k - i, host, place);
    }
}

/* Adds the ranks for which `which` is set, or all where it is NULL. */
static void add_seen(struct rank_list *list, const struct dpt_rank_status *seen, int n,
                     const bool *which, const char *host,
                     const struct dpt_diagnosis_context *context)
{
    int ranks[n], found = 0;

    memset(ranks, 0, sizeof ranks);
    for (int i = 0; i < n; i++)
        if (which == NULL || which[i])
            ranks[found++] = seen[i].rank;
    add_ranks(list, ranks, found, host, context);
}

static void where(int64_t step, char *out, size_t size)
{
    if (step > 0)
        snprintf(out, size, "at step %lld", (long long)step);
    else
        snprintf(out, size, "before the first step");
}

/* Writes "Its last word: computing", from the note of the first of `gone` ranks. */
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

static void describe_missing(const struct rank_list *missing, const struct rank_list *waiting,
                             int64_t step, double seconds, const char *note, char *line,
                             size_t size)
{
    char at[WHERE_TEXT];

    where(step, at, sizeof at);
    snprintf(line, size, "rank%s %s %s not arrived %s for %g s; rank%s %s wait%s. %s",
             missing->n == 1 ? "" : "s", missing->text, missing->n == 1 ? "has" : "have", at,
             seconds, waiting->n == 1 ? "" : "s", waiting->text, waiting->n == 1 ? "s" : "", note);
}

/* Describes that all ranks of this node wait: for another node, or, without one, for each other. */
static void describe_waiting(const struct dpt_rank_status *seen, int n, int me,
                             const struct dpt_diagnosis_context *context, char *line, size_t size)
{
    struct rank_list all = {0};
    char at[WHERE_TEXT];
    int other = me;

    for (int i = 0; i < n && other == me; i++)
        if (strcmp(seen[i].note, seen[me].note) != 0)
            other = i;
    add_seen(&all, seen, n, NULL, NULL, context);
    where(seen[me].step, at, sizeof at);
    if (context->elsewhere[0] != '\0')
        snprintf(line, size,
                 "a rank on %s has not arrived %s for %g s; rank%s %s (%s) wait%s, and no rank of "
                 "this node is missing",
                 context->elsewhere, at, patience(context), n == 1 ? "" : "s", all.text,
                 context->host, n == 1 ? "s" : "");
    else
        snprintf(line, size,
                 "ranks %s (%s) all wait for each other %s for %g s; last words: rank %d: %s, "
                 "rank %d: %s",
                 all.text, context->host, at, patience(context), seen[me].rank, seen[me].note,
                 seen[other].rank, seen[other].note);
}

enum dpt_diagnosis dpt_watch_diagnose(const struct dpt_rank_status *seen, int n, int me,
                                      const struct dpt_diagnosis_context *context, char *line,
                                      size_t size)
{
    struct rank_list absent = {0}, others = {0};
    const struct dpt_rank_status *first = NULL;
    char note[LAST_NOTE_TEXT];
    bool missing[n], waiting[n], late = false;

    if (!dpt_watch_waits(&seen[me]) || seen[me].still < context->limit)
        return DPT_ALL_WELL;
    for (int i = 0; i < n; i++) {
        missing[i] = i != me && is_missing(&seen[i], &seen[me], context);
        waiting[i] = !missing[i] && dpt_watch_waits(&seen[i]);
        if (missing[i] && first == NULL)
            first = &seen[i];
        /* A rank that has not arrived but has made progress within the limit is waited for. */
        late |= seen[i].phase < seen[me].phase && seen[i].still < patience(context);
    }
    if (first != NULL) {
        add_seen(&absent, seen, n, missing, context->host, context);
        add_seen(&others, seen, n, waiting, NULL, context);
        last_note(first, absent.n, note, sizeof note);
        describe_missing(&absent, &others, seen[me].step, patience_with(first, context), note, line,
                         size);
        return DPT_SOME_MISSING;
    }
    if (late)
        return DPT_ALL_WELL;
    describe_waiting(seen, n, me, context, line, size);
    return DPT_NONE_MISSING;
}

/* Ranks of other nodes that are late but make progress are waited for this many times the limit,
 * since a wrong report of another node must not make this one wait for ever. */
static const double PATIENCE = 4;

enum dpt_diagnosis dpt_watch_diagnose_remote(const struct dpt_remote_node *remote, int n_remote,
                                             const struct dpt_rank_status *seen, int n, int me,
                                             const struct dpt_diagnosis_context *context,
                                             char *line, size_t size)
{
    const bool over = seen[me].still >= PATIENCE * patience(context);
    struct rank_list late = {0}, silent = {0}, here = {0};
    char note[LAST_NOTE_TEXT] = "Nobody answers there any more: cut off, stopped or dead";
    const struct dpt_diagnosis_context anywhere = {.host = context->host}; /* they are not late */
    const struct dpt_rank_status *first = NULL;
    bool moving = false;

    for (int i = 0; i < n_remote; i++) {
        int ranks[remote[i].n_late + 1], count = 0;

        if (remote[i].state == DPT_REMOTE_SILENT)
            add_ranks(&silent, remote[i].ranks, remote[i].n_ranks, remote[i].host, context);
        for (int k = 0; k < remote[i].n_late && remote[i].state == DPT_REMOTE_HEARD; k++) {
            const struct dpt_rank_status *s = &remote[i].late[k];
            const bool missing =
                over || s->process != DPT_PROCESS_RUNS || s->still >= patience(context);

            moving |= !missing;
            if (!missing)
                continue;
            first = first == NULL ? s : first;
            ranks[count++] = s->rank;
        }
        if (count > 0)
            add_ranks(&late, ranks, count, remote[i].host, context);
    }
    if (late.n == 0 && silent.n == 0)
        return moving ? DPT_ALL_WELL : DPT_NONE_MISSING;
    if (first != NULL)
        last_note(first, late.n, note, sizeof note);
    add_seen(&here, seen, n, NULL, context->host, &anywhere);
    describe_missing(first != NULL ? &late : &silent, &here, seen[me].step,
                     over ? PATIENCE * patience(context) : patience_with(first, context), note,
                     line, size);
    return DPT_SOME_MISSING;
}

void dpt_watch_describe_death(const struct dpt_rank_status *dead, const char *host, char *line,
                              size_t size)
{
    char at[WHERE_TEXT], who[32] = "a rank";

    where(dead->step, at, sizeof at);
    if (dead->rank >= 0)
        snprintf(who, sizeof who, "rank %d", dead->rank);
    snprintf(line, size,
             "%s (%s) died %s: its process is gone (killed, crashed, or out of memory: "
             "`dptrain plan` prints what it needs)%s%s",
             who, host, at, dead->note[0] != '\0' ? ". Its last word: " : "", dead->note);
}

void dpt_watch_describe_absence(const struct dpt_rank_status *late, const char *host,
                                double seconds, char *line, size_t size)
{
    char at[WHERE_TEXT];

    where(late->step, at, sizeof at);
    snprintf(
        line, size,
        "rank %d (%s): its part of the sum over the GPUs has been missing for %.0f s: it %s %s%s%s",
        late->rank, host, seconds,
        late->process == DPT_PROCESS_STOPPED ? "is stopped (SIGSTOP)" : "is", at,
        late->note[0] != '\0' ? ". Its last word: " : "", late->note);
}
