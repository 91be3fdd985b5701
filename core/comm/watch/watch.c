#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/process.h"
#include "core/base/str.h"
#include "core/comm/internal.h"
#include "core/comm/launched.h"
#include "core/comm/watch/watchdog.h"

/* Seconds. A dead rank stays unnoticed for at most a tick; a launcher that notices it too ends the
 * other ranks after one second. */
static const double TICK = 0.25;
/* The limits until the job sets its own. There is one MPI per process. */
static struct dpt_comm_limits first_limits = {60, 900};
/* Delays before a line is printed, so that the node whose rank is missing prints first, then one
 * node after another, and on a node the first rank, which knows about the other nodes. */
static const double GRACE = 2, NODE_GRACE = 0.25, RANK_GRACE = 1;
/* A rank that knows the cause prints before one that only sees an effect. */
static const double YIELD = 1.5;
/* A wait for a device may last for so many times the longest one that has ended: a step may take
 * longer than the limit. */
static const double DEVICE_PATIENCE = 4;
/* A process ends by itself if MPI_Abort takes longer than so many seconds. */
enum { ABORT_LIMIT = 5 };

static enum dpt_process_state process_of(const struct dpt_watched_rank *watched)
{
    struct dpt_process process;

    if (!dpt_process_read(watched->pid, &process))
        /* /proc may also be unreadable for lack of descriptors or memory, so kill has the last
         * word. */
        return kill(watched->pid, 0) == 0 ? DPT_PROCESS_RUNS : DPT_PROCESS_GONE;
    if (process.born != watched->born || process.state == 'Z' || process.state == 'X')
        return DPT_PROCESS_GONE;
    return process.state == 'T' || process.state == 't' ? DPT_PROCESS_STOPPED : DPT_PROCESS_RUNS;
}

/* A phase that no rank is before, and in which none waits. */
static const uint64_t PASSED = UINT64_MAX - 1;

/* What the rank is doing in the groups where this one waits. */
static void read_phase(const struct dpt_watch *w, const struct dpt_watched_rank *watched,
                       struct dpt_rank_status *seen)
{
    const int axis = atomic_load_explicit(&w->mine->axis, memory_order_relaxed);
    const bool aside = atomic_load_explicit(&watched->in_subgroup, memory_order_relaxed) ||
                       atomic_load_explicit(&watched->axis, memory_order_relaxed) != 0;
    const uint64_t phase = atomic_load_explicit(&watched->phase, memory_order_relaxed);

    seen->phase = phase;
    seen->in_subgroup = aside;
    if (axis == 0)
        return;
    seen->in_subgroup = aside || phase % 2 == 1;
    seen->phase = atomic_load(&watched->axes[axis].group) == atomic_load(&w->mine->axes[axis].group)
                      ? atomic_load_explicit(&watched->axes[axis].phase, memory_order_relaxed)
                      : PASSED;
}

/* What the rank does, and in which step. */
static void read_note(const struct dpt_watched_rank *watched, struct dpt_rank_status *seen)
{
    const unsigned note = atomic_load_explicit(&watched->note, memory_order_acquire);

    seen->step = atomic_load_explicit(&watched->step, memory_order_relaxed);
    /* If the rank makes two notes during the copy the text is a mixture, which is harmless. */
    memcpy(seen->note, watched->notes[note & 1], sizeof seen->note);
    seen->note[sizeof seen->note - 1] = '\0';
}

static void read_status(const struct dpt_watch *w, int i, bool process,
                        struct dpt_rank_status *seen)
{
    const struct dpt_watched_rank *watched = &w->page->ranks[i];

    seen->rank = watched->rank;
    read_phase(w, watched, seen);
    read_note(watched, seen);
    seen->still = w->history[i].still;
    seen->process = process && w->visible[i] ? process_of(watched) : DPT_PROCESS_RUNS;
}

/* Prints a line with one write, so that no other rank's line comes between. What ranks noted may
 * hold names and paths. */
static void print_line(const char *text)
{
    struct dpt_str line = {0};
    ssize_t written;

    dpt_str_printable(&line, text, strlen(text), false);
    dpt_str_add(&line, "\n", 1);
    written = write(STDERR_FILENO, line.text, line.length);
    (void)written; /* the job ends in any case */
    dpt_str_release(&line);
}

/* Prints who is waited for, and for how long that may go on. */
static void print_warning(const struct dpt_watch *w, const char *text)
{
    struct dpt_str line = {0};

    dpt_str_printf(&line, "warning: %s%s", text,
                   text[0] != '\0' && text[strlen(text) - 1] == '.' ? "" : ".");
    if (w->limits.start > 0)
        dpt_str_printf(&line, " The start may take %g s (comm.start_timeout)", w->limits.start);
    if (!line.failed)
        print_line(line.text);
    dpt_str_release(&line);
}

/* Prints the line, if no rank of this node has printed one, and ends the job. */
static _Noreturn void end_job(struct dpt_watch *w, int code, const char *line)
{
    void (*const tell)(void *arg, const char *line) = atomic_load(&w->tell);
    const bool first = w->page == NULL || !atomic_exchange(&w->page->explained, true);

    if (first) {
        print_line(line);
        dpt_launched_end(code);
        if (tell != NULL)
            tell(w->tell_arg, line);
    }
    dpt_watch_abort_links(w);
    if (!first)
        dpt_sleep(YIELD); /* the rank that printed ends the job, and its exit code should count */
    /* A launcher that is told to end all may lose what it has not read yet, and MPI_Abort may add
     * lines of MPI's own. */
    dpt_stderr_end(1);
    /* MPI_Abort talks to a launcher, which may hang itself. */
    signal(SIGALRM, SIG_DFL);
    alarm(ABORT_LIMIT);
    if (w->n != 0 && !atomic_load(&w->closing))
        MPI_Abort(MPI_COMM_WORLD, code);
    dpt_sleep(TICK); /* a launcher that sees the exit first may lose the line */
    _exit(code);
}

const char *dpt_watch_where(const struct dpt_watch *w, int rank, const char *host,
                            char where[DPT_WHERE_TEXT])
{
    const char *place = w != NULL && w->places != NULL ? w->places[rank] : "";

    snprintf(where, DPT_WHERE_TEXT, "%s%s%s", host, place[0] != '\0' ? ", " : "", place);
    return where;
}

/* Ends the job where the process of the node's next rank is gone. */
static void check_neighbour(struct dpt_watch *w)
{
    const int next = (w->me + 1) % w->n;
    const struct dpt_watched_rank *watched = &w->page->ranks[next];
    char line[512 + DPT_PLACE_TEXT], where[DPT_WHERE_TEXT];
    struct dpt_rank_status seen;

    if (!w->visible[next] || process_of(watched) != DPT_PROCESS_GONE ||
        atomic_load(&watched->ended))
        return;
    /* A launcher that kills all ranks also kills this one, within a tick, and then nothing is
     * printed. */
    dpt_sleep(TICK);
    if (atomic_load(&w->page->explained) || atomic_load(&watched->ended))
        return;
    read_status(w, next, false, &seen);
    dpt_watch_describe_death(&seen, dpt_watch_where(w, seen.rank, w->host, where), line,
                             sizeof line);
    end_job(w, dpt_exit_code(DPT_RANK), line);
}

/* The seconds for which a rank that runs may stay away now. */
static double start_limit(const struct dpt_watch *w)
{
    return atomic_load(&w->started) ? 0 : w->limits.start > 0 ? w->limits.start : INFINITY;
}

/* Changes with every collective that the rank enters or leaves. */
static uint64_t all_phases(const struct dpt_watched_rank *watched)
{
    uint64_t sum = atomic_load_explicit(&watched->phase, memory_order_relaxed);

    for (int axis = 1; axis <= DPT_AXES_MOST; axis++)
        sum += atomic_load_explicit(&watched->axes[axis].phase, memory_order_relaxed);
    return sum;
}

/* Files that other threads move while a rank waits, a loader's, are no progress of what it waits
 * for. */
static void note_progress(struct dpt_watch *w, double passed)
{
    const uint64_t device = atomic_load_explicit(&w->device_waits.ended, memory_order_relaxed);

    atomic_store_explicit(&w->mine->moves, dpt_file_moves() + device, memory_order_relaxed);
    for (int i = 0; i < w->n; i++) {
        const struct dpt_watched_rank *watched = &w->page->ranks[i];
        const uint64_t phase = all_phases(watched);
        const uint64_t moves = atomic_load_explicit(&watched->moves, memory_order_relaxed);
        struct dpt_watch_history *m = &w->history[i];
        struct dpt_rank_status seen = {0};

        read_phase(w, watched, &seen);
        m->waiting = phase == m->phase ? m->waiting + passed : 0;
        m->still = phase != m->phase || (moves != m->moves && !dpt_watch_waits(&seen))
                       ? 0
                       : m->still + passed;
        m->phase = phase;
        m->moves = moves;
    }
}

/* Answers the other nodes' questions, and asks where this rank has waited for half its limit. */
static void poll_other_nodes(struct dpt_watch *w, double now)
{
    const double limit = w->limits.seconds;
    const bool waiting = limit > 0 && w->history[w->me].still >= limit / 2;
    struct dpt_heartbeat_report report = {0};

    if (!dpt_heartbeat_poll(w->nodes.heartbeat, waiting, now))
        return;
    for (int i = 0; i < w->n && report.n < DPT_HEARTBEAT_RANKS; i++) {
        read_status(w, i, true, &w->seen[i]);
        if (w->seen[i].process != DPT_PROCESS_RUNS || !dpt_watch_waits(&w->seen[i]))
            report.late[report.n++] = w->seen[i];
    }
    dpt_heartbeat_answer(w->nodes.heartbeat, &report);
}

/* Brings nodes->remote up to date. */
static void update_nodes(struct dpt_nodes *nodes, double now)
{
    for (int i = 0; i < nodes->n; i++) {
        struct dpt_remote_node *remote = &nodes->remote[i];
        const struct dpt_heartbeat_report *report;

        remote->n_late = 0;
        if (i == nodes->me)
            continue;
        remote->state = dpt_heartbeat_state(nodes->heartbeat, i, now, &report);
        remote->late = report->late;
        remote->n_late = report->n;
    }
}

/* Diagnoses this node, as far as `still` of `seen` goes, and then the others. start: seconds, as in
 * the context. */
static enum dpt_diagnosis diagnose(struct dpt_watch *w, double start, double now, char *line,
                                   size_t size)
{
    const struct dpt_diagnosis_context context = {w->host, w->limits.seconds, w->nodes.others,
                                                  (const char(*)[DPT_PLACE_TEXT])w->places, start};
    /* The nodes ask each other from half the limit on, and of many each takes longer to know. */
    const double asking = dpt_heartbeat_delay(w->nodes.n) - w->limits.seconds / 2;
    const double more =
        fmax(GRACE, asking) + NODE_GRACE * w->nodes.me + (w->me > 0 ? RANK_GRACE : 0);
    const double still = w->seen[w->me].still;
    enum dpt_diagnosis diagnosis;

    diagnosis = dpt_watch_diagnose(w->seen, w->n, w->me, &context, line, size);
    if (diagnosis != DPT_NONE_MISSING)
        return diagnosis;
    if (still < w->limits.seconds + more)
        return DPT_ALL_WELL;
    if (w->nodes.heartbeat != NULL) {
        update_nodes(&w->nodes, now);
        diagnosis = dpt_watch_diagnose_remote(w->nodes.remote, w->nodes.n, w->seen, w->n, w->me,
                                              &context, line, size);
    }
    return diagnosis == DPT_NONE_MISSING && still < start + more ? DPT_ALL_WELL : diagnosis;
}

/* Whether it is for this rank to say who is waited for; then no other of the node does for as long
 * as the limit. */
static bool may_tell(const struct dpt_watch *w, double now)
{
    int64_t told = atomic_load(&w->page->told);

    return w->nodes.me == 0 && (double)told + w->limits.seconds <= now &&
           atomic_compare_exchange_strong(&w->page->told, &told, (int64_t)now);
}

/* While the job starts: says who is waited for. */
static void tell_waiting(struct dpt_watch *w, double now)
{
    char line[2048];

    for (int i = 0; i < w->n; i++)
        w->seen[i].still = w->history[i].waiting;
    if (diagnose(w, 0, now, line, sizeof line) == DPT_ALL_WELL || !may_tell(w, now))
        return;
    print_warning(w, line);
}

static void check_waiting(struct dpt_watch *w, double now)
{
    const double start = start_limit(w), limit = w->limits.seconds;
    char line[2048];

    if (limit <= 0 || w->history[w->me].waiting < limit)
        return;
    for (int i = 0; i < w->n; i++)
        read_status(w, i, true, &w->seen[i]);
    if (diagnose(w, start, now, line, sizeof line) != DPT_ALL_WELL)
        end_job(w, dpt_exit_code(DPT_RANK), line);
    if (start > limit)
        tell_waiting(w, now);
}

/* Ends the job with a line that all ranks of this machine would print: the lowest rank prints it,
 * the others wait for it to end the job. */
static _Noreturn void end_start(const struct dpt_watch *w, const char *line)
{
    if (w->rank == (w->siblings.first >= 0 ? w->siblings.first : 0)) {
        print_line(line);
        dpt_launched_end(dpt_exit_code(DPT_RANK));
        dpt_siblings_notify();
        dpt_sleep(DPT_SIBLINGS_NOTICE);
    } else {
        dpt_sleep(GRACE);
    }
    _exit(dpt_exit_code(DPT_RANK));
}

/*
 * Checks the ranks while MPI starts and there is no page yet. This machine's ranks are found as
 * the children of its launcher; one that died or is stopped is certainly the cause of the wait.
 */
void dpt_watch_check_start(struct dpt_watch *w, double passed)
{
    const double limit = w->limits.seconds, start = w->limits.start;
    struct dpt_rank_status dead = {0};
    char line[512];

    w->waited += passed;
    dpt_siblings_update(&w->siblings);
    if (w->siblings.explained || (w->slept && w->siblings.dead >= 0)) {
        dpt_sleep(GRACE); /* the launcher usually ends this rank meanwhile */
        _exit(dpt_exit_code(DPT_RANK));
    }
    if (w->siblings.dead >= 0) {
        dead.rank = w->siblings.dead;
        dpt_watch_describe_death(&dead, w->host, line, sizeof line);
        dpt_sleep(TICK); /* as for a neighbour */
        end_start(w, line);
    }
    if (w->siblings.stopped >= 0 && limit > 0 && w->waited >= limit) {
        snprintf(line, sizeof line,
                 "rank %d (%s) has not arrived at the start of MPI for %g s: it is stopped "
                 "(SIGSTOP)",
                 w->siblings.stopped, w->host, limit);
        end_start(w, line);
    }
    snprintf(line, sizeof line, "rank %d (%s): MPI has not started after %g s: a rank is missing",
             w->rank, w->host, floor(w->waited));
    if (start > 0 && w->waited >= start)
        end_start(w, line);
    if (w->rank == 0 && limit > 0 && w->waited >= w->told + limit) {
        w->told = w->waited;
        print_warning(w, line);
    }
}

void dpt_watch_check_note(struct dpt_watch *w, double passed)
{
    const unsigned note = atomic_load_explicit(&w->mine->note, memory_order_acquire);
    const uint64_t moves = dpt_file_moves();
    char line[DPT_NOTE_TEXT + 128];

    w->lasted = note == w->note && moves == w->moves ? w->lasted + passed : 0;
    w->note = note;
    w->moves = moves;
    if (w->lasted < w->patience)
        return;
    snprintf(line, sizeof line,
             "no answer for %g s while %.*s: a file server or a device may be gone", w->patience,
             DPT_NOTE_TEXT - 1, w->mine->notes[note & 1]);
    end_job(w, dpt_exit_code(DPT_RANK), line);
}

/* Finds a rank of the node that keeps its linked device from giving its part: one that neither
 * waits for it nor in a collective. false: there is none, so a device or another node is at
 * fault. */
static bool find_absent(struct dpt_watch *w, int64_t step, struct dpt_rank_status *late)
{
    for (int i = 0; i < w->n && atomic_load(&w->abort) != NULL; i++) {
        const bool for_device = atomic_load(&w->page->ranks[i].for_device);

        read_status(w, i, true, late);
        if (i != w->me && (late->process != DPT_PROCESS_RUNS ||
                           (!for_device && !dpt_watch_waits(late) && late->step <= step)))
            return true;
    }
    return false;
}

/* It is told a moment before the other ranks would tell that this one has not arrived: it knows
 * why. */
void dpt_watch_check_device(struct dpt_watch *w, double passed)
{
    const uint64_t ended = atomic_load_explicit(&w->device_waits.ended, memory_order_relaxed);
    const bool waits = atomic_load_explicit(&w->device_waits.begun, memory_order_relaxed) != ended;
    const double start = start_limit(w), usual = w->limits.seconds;
    char line[DPT_NOTE_TEXT + DPT_WHERE_TEXT + 192], where[DPT_WHERE_TEXT], longest[64] = "";
    struct dpt_rank_status seen = {0}, late = {0};
    double limit;

    if (waits && ended == w->device_waited) {
        w->device_wait += passed;
    } else {
        w->device_longest = fmax(w->device_longest, w->device_wait);
        w->device_wait = 0;
    }
    w->device_waited = ended;
    atomic_store_explicit(&w->mine->for_device, waits, memory_order_relaxed);
    limit = fmax(fmax(usual, start), DEVICE_PATIENCE * w->device_longest);
    if (usual <= 0 || w->device_wait < fmax(limit - YIELD, limit / 2))
        return;
    read_note(w->mine, &seen);
    if (limit > fmax(usual, start))
        snprintf(longest, sizeof longest, "; the longest wait before: %.0f s", w->device_longest);
    snprintf(line, sizeof line,
             "rank %d (%s): its device has not ended what it was given for %.0f s "
             "(comm.%s: %g s%s), at step %lld while %s: check that nvidia-smi still answers",
             w->rank, dpt_watch_where(w, w->rank, w->host, where), w->device_wait,
             start > usual ? "start_timeout" : "timeout", fmax(usual, start), longest,
             (long long)seen.step, seen.note);
    if (find_absent(w, seen.step, &late))
        dpt_watch_describe_absence(&late, dpt_watch_where(w, late.rank, w->host, where),
                                   w->device_wait, line, sizeof line);
    end_job(w, dpt_exit_code(DPT_RANK), line);
}

static void *serve(void *arg)
{
    struct dpt_watch *w = arg;
    struct timespec until;

    dpt_siblings_update(&w->siblings);
    pthread_mutex_lock(&w->thread.lock);
    while (!w->thread.stop) {
        double now, passed;

        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += (long)(TICK * 1e9);
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        if (pthread_cond_timedwait(&w->thread.work, &w->thread.lock, &until) == 0)
            continue; /* woken to end */
        now = dpt_now();
        /* A long pause means that this process did not run, so it says nothing about the others. */
        passed = now - w->looked < 2 * TICK ? now - w->looked : 2 * TICK;
        w->slept |= now - w->looked > GRACE;
        w->looked = now;
        dpt_watch_check_device(w, passed);
        if (w->patience > 0)
            dpt_watch_check_note(w, passed);
        if (w->alone)
            continue;
        if (w->n == 0) {
            dpt_watch_check_start(w, passed);
            continue;
        }
        note_progress(w, passed);
        if (atomic_load(&w->page->explained))
            dpt_watch_abort_links(w); /* another rank ends the job */
        check_neighbour(w);
        if (w->nodes.heartbeat != NULL)
            poll_other_nodes(w, now);
        check_waiting(w, now);
    }
    pthread_mutex_unlock(&w->thread.lock);
    return NULL;
}

enum dpt_status dpt_watch_open(struct dpt_watch **watch, int rank, struct dpt_error *err)
{
    struct dpt_watch *w = dpt_alloc(sizeof *w);
    int code;

    if (w == NULL)
        return dpt_fail_memory(err, "the watchdog", sizeof *w);
    w->rank = rank;
    w->limits = first_limits;
    w->looked = dpt_now();
    w->mine = &w->own;
    dpt_host_name(w->host);
    code = dpt_thread_start(&w->thread, serve, w);
    if (code != 0) {
        dpt_free(w);
        return dpt_fail(err, DPT_RANK, "not enough memory or threads for the watchdog: %s",
                        strerror(code));
    }
    *watch = w;
    return DPT_OK;
}

/* The first other rank of the node that has not ended yet; -1: none. */
static int still_ending(const struct dpt_watch *w)
{
    for (int i = 0; i < w->n; i++)
        if (i != w->me && w->visible[i] && !atomic_load(&w->page->ranks[i].ended) &&
            process_of(&w->page->ranks[i]) != DPT_PROCESS_GONE)
            return i;
    return -1;
}

/* Waits until the node's other ranks have ended: a launcher would wait for ever for one that is
 * stopped at its end once no other rank is left to notice it. */
static void await_others(struct dpt_watch *w)
{
    const struct dpt_watched_rank *watched;
    const double limit = w->limits.seconds;
    double waited = 0, pause = 1e-4;
    char line[512 + DPT_PLACE_TEXT], where[DPT_WHERE_TEXT];
    int late;

    for (; (late = still_ending(w)) >= 0 && limit > 0; pause = fmin(2 * pause, TICK)) {
        if (waited >= limit) {
            watched = &w->page->ranks[late];
            snprintf(line, sizeof line,
                     "rank %d (%s) has not come to its end for %g s after all others%s; the run's "
                     "results are whole",
                     watched->rank, dpt_watch_where(w, watched->rank, w->host, where), limit,
                     process_of(watched) == DPT_PROCESS_STOPPED ? ": it is stopped (SIGSTOP)" : "");
            end_job(w, dpt_exit_code(DPT_RANK), line);
        }
        dpt_sleep(pause);
        waited += pause; /* time in which this process itself was stopped does not count */
    }
}

void dpt_watch_end(struct dpt_watch *w)
{
    atomic_store(&w->mine->ended, true);
    if (w->n > 1) {
        atomic_fetch_add(&w->mine->phase, 1); /* MPI_Finalize: its waiting is over */
        await_others(w);
    }
    dpt_thread_end(&w->thread);
}

void dpt_comm_start_limit(struct dpt_comm_limits limits)
{
    first_limits = limits;
}

enum dpt_status dpt_comm_guard(struct dpt_comm *comm, double seconds, struct dpt_error *err)
{
    if (comm->watch == NULL) {
        if (dpt_watch_open(&comm->watch, 0, err) != DPT_OK)
            return err->status;
        comm->watch->alone = true;
    }
    pthread_mutex_lock(&comm->watch->thread.lock);
    comm->watch->patience = seconds;
    pthread_mutex_unlock(&comm->watch->thread.lock);
    return DPT_OK;
}

void dpt_watch_give_up(struct dpt_watch *w, int code, const char *text)
{
    char line[DPT_ERROR_TEXT + DPT_WHERE_TEXT + 32], where[DPT_WHERE_TEXT];

    snprintf(line, sizeof line, "rank %d (%s): %s", w->rank,
             dpt_watch_where(w, w->rank, w->host, where), text);
    dpt_sleep(YIELD);
    end_job(w, code, line);
}
