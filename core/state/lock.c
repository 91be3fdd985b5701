#include "core/state/lock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/pool.h"

/* Seconds between two signs of life. */
enum { RENEW = 10 };
/* Seconds given to a process on this machine that may be about to end, and to one that may be about
 * to write its line. */
static const double LINGER = 2;
/* How often the lock may turn out to be another than the one just looked at. */
enum { TRIES = 20 };

struct dpt_lock {
    char folder[PATH_MAX];
    char path[PATH_MAX + 64];  /* the lock */
    char claim[PATH_MAX + 64]; /* who replaces a lock that was left behind holds this one */
    char last[PATH_MAX + 64];  /* the line of the owner before */
    char own[PATH_MAX + 160];  /* our line, before it gets one of those names */
    struct dpt_owner me;
    char line[DPT_OWNER_LINE];
    size_t length;
    int fd;     /* our line's file */
    bool taken; /* the lock is ours */
    bool fresh; /* the folder was not there before */
    struct dpt_thread thread;
};

/* A lock file as it was found. */
struct found {
    bool there;
    char line[DPT_OWNER_LINE];
    struct dpt_owner owner;
    struct timespec renewed;
};

/* Opening a file asks a network file system's server for its present state. False with errno. */
static bool read_lock(const char *path, struct found *found)
{
    const int fd = TEMP_FAILURE_RETRY(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat info;
    ssize_t n = -1;
    int code;

    if (fd < 0)
        return false;
    if (fstat(fd, &info) != 0)
        n = -1;
    else if (!S_ISREG(info.st_mode))
        errno = EINVAL;
    else
        n = pread(fd, found->line, sizeof found->line - 1, 0);
    code = errno;
    close(fd);
    errno = code;
    if (n < 0)
        return false;
    found->there = true;
    found->line[n] = '\0';
    found->renewed = info.st_mtim;
    dpt_owner_read(found->line, &found->owner);
    return true;
}

static long long generation_in(const char *path)
{
    struct found found;

    return read_lock(path, &found) ? found.owner.generation : 0;
}

/* Makes a file with our line; -1 with errno. */
static int write_line(const struct dpt_lock *lock, const char *path)
{
    const int fd = TEMP_FAILURE_RETRY(open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    int code;

    if (fd < 0 || (dpt_pwrite_all(fd, lock->line, lock->length, 0) == 0 &&
                   TEMP_FAILURE_RETRY(fsync(fd)) == 0))
        return fd;
    code = errno;
    unlink(path);
    close(fd);
    errno = code;
    return -1;
}

/* Our line under a name of its own, with the file system's present time. */
static enum dpt_status write_own(struct dpt_lock *lock, long long generation, struct dpt_error *err)
{
    lock->me.generation = generation;
    lock->length = dpt_owner_write(&lock->me, lock->line);
    if (lock->fd >= 0)
        close(lock->fd);
    unlink(lock->own);
    lock->fd = write_line(lock, lock->own);
    if (lock->fd < 0)
        return dpt_fail_errno(err, DPT_IO, "%s: cannot be locked for this run", lock->folder);
    return DPT_OK;
}

/* Where there are no hard links. Others see an empty file for a moment: an unknown, living owner.
 */
static bool create(struct dpt_lock *lock, const char *path)
{
    const int fd = write_line(lock, path);

    if (fd < 0)
        return false;
    close(lock->fd);
    lock->fd = fd;
    return true;
}

/* Gives our line the name `path`, unless something has it. False with errno. */
static bool link_or_create(struct dpt_lock *lock, const char *path)
{
    struct stat info;

    if (TEMP_FAILURE_RETRY(link(lock->own, path)) == 0)
        return true;
    /* A server's answer may get lost, and the second try then says that it exists. */
    if (errno == EEXIST) {
        if (fstat(lock->fd, &info) == 0 && info.st_nlink == 2)
            return true;
        errno = EEXIST;
        return false;
    }
    if (errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS && errno != EMLINK)
        return false;
    return create(lock, path);
}

static bool gone(const struct dpt_lock *lock, const struct found *found)
{
    struct stat now;
    double age = 0;

    if (fstat(lock->fd, &now) == 0) /* just written: the file system's own time */
        age = difftime(now.st_mtim.tv_sec, found->renewed.tv_sec) +
              1e-9 * (double)(now.st_mtim.tv_nsec - found->renewed.tv_nsec);
    return dpt_owner_gone(&found->owner, &lock->me, age);
}

/* Whether nothing is in the file: a power cut took the line of its owner, or an owner where there
 * are no hard links is about to write it. */
static bool blank(const struct found *found)
{
    return found->there && found->line[0] == '\0';
}

/* A process of this machine that was killed may take a moment to end, and so may one that is done,
 * or begins. */
static void wait_a_moment(const struct dpt_lock *lock, const struct found *found)
{
    const double end = dpt_now() + LINGER;
    struct found now;

    if (!dpt_owner_near(&found->owner, &lock->me) && !blank(found))
        return;
    while (dpt_now() < end && !dpt_owner_gone(&found->owner, &lock->me, 0) &&
           read_lock(lock->path, &now) && strcmp(now.line, found->line) == 0)
        dpt_sleep(20e-3);
}

static enum dpt_status refuse(const struct dpt_lock *lock, const struct found *found,
                              struct dpt_error *err)
{
    char who[DPT_OWNER_WORD * 3];

    return dpt_fail(err, DPT_USAGE, "%s is in use by %s: choose another --output, or wait",
                    lock->folder, dpt_owner_text(&found->owner, who, sizeof who));
}

/* Whether another owner came and went since our line was written, so that its number is not new. */
static bool outdated(const struct dpt_lock *lock)
{
    return generation_in(lock->last) >= lock->me.generation;
}

/*
 * Replaces a lock whose owner is gone. Several may want to: only who holds the claim does it, after
 * a second look. *done: the lock is ours; else look again.
 */
static enum dpt_status replace(struct dpt_lock *lock, const struct found *old, bool *done,
                               struct dpt_error *err)
{
    struct found now;

    *done = false;
    if (!link_or_create(lock, lock->claim)) {
        if (errno != EEXIST)
            return dpt_fail_errno(err, DPT_IO, "%s", lock->claim);
        if (!read_lock(lock->claim, &now))
            return DPT_OK;
        if (!gone(lock, &now))
            return refuse(lock, &now, err);
        unlink(lock->claim);
        return DPT_OK;
    }
    if (!read_lock(lock->path, &now) || strcmp(now.line, old->line) != 0 ||
        now.owner.generation >= lock->me.generation || outdated(lock)) {
        unlink(lock->claim);
        return DPT_OK;
    }
    if (TEMP_FAILURE_RETRY(rename(lock->claim, lock->path)) != 0) {
        dpt_fail_errno(err, DPT_IO, "%s", lock->path);
        unlink(lock->claim);
        return err->status;
    }
    *done = true;
    return DPT_OK;
}

/* One attempt. *done: the lock is ours; else look again. found: in, what the attempt before saw and
 * waited for; out, what this one saw. */
static enum dpt_status attempt(struct dpt_lock *lock, bool waited, bool *done, struct found *found,
                               struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const long long before = generation_in(lock->last), held = generation_in(lock->path);
    const bool stays_blank = waited && blank(found);

    *done = false;
    memset(found, 0, sizeof *found);
    DPT_TRY(write_own(lock, (before > held ? before : held) + 1, err));
    if (link_or_create(lock, lock->path)) {
        *done = !outdated(lock);
        if (!*done)
            unlink(lock->path);
        return DPT_OK;
    }
    if (errno != EEXIST)
        return dpt_fail_errno(err, DPT_IO, "%s", lock->path);
    if (!read_lock(lock->path, found)) {
        if (errno != ENOENT)
            return dpt_fail_errno(err, DPT_IO, "%s", lock->path);
        return DPT_OK;
    }
    if (gone(lock, found) || (stays_blank && blank(found)))
        return replace(lock, found, done, err);
    if (waited || (!dpt_owner_near(&found->owner, &lock->me) && !blank(found)))
        return refuse(lock, found, err);
    wait_a_moment(lock, found);
out:
    return status;
}

static const char prefix[] = ".lock.tmp-";

/* Whether the name of a file without a whole line says that a process of this host made it, which
 * is gone. */
static bool named_gone(const struct dpt_lock *lock, const char *name)
{
    const char *host = name + sizeof prefix - 1, *process = strrchr(name, '-') + 1;

    return strncmp(host, lock->me.host, strlen(lock->me.host)) == 0 &&
           process == host + strlen(lock->me.host) + 1 &&
           dpt_process_gone(strtol(process, NULL, 10));
}

/* What processes left in the folder that were killed while they took the lock. */
static void remove_leftovers(const struct dpt_lock *lock)
{
    char path[PATH_MAX + NAME_MAX + 2];
    DIR *dir = opendir(lock->folder);
    struct dirent *entry;
    struct found found;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (strncmp(entry->d_name, prefix, sizeof prefix - 1) != 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", lock->folder, entry->d_name);
        if (read_lock(path, &found) &&
            (gone(lock, &found) || (found.owner.pid == 0 && named_gone(lock, entry->d_name))))
            unlink(path);
    }
    if (dir != NULL)
        closedir(dir);
}

static enum dpt_status acquire(struct dpt_lock *lock, struct dpt_log *log, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char who[DPT_OWNER_WORD * 3];
    struct found found = {0};
    bool done = false;

    for (int i = 0; i < TRIES && !done; i++)
        DPT_TRY(attempt(lock, i > 0, &done, &found, err));
    if (!done)
        DPT_TRY(dpt_fail(err, DPT_USAGE,
                         "%s: other runs are starting in this folder: choose another --output, or "
                         "wait",
                         lock->folder));
    lock->taken = true;
    if (blank(&found))
        dpt_log_info(log, "%s is empty, as a power cut leaves it: taking the folder over",
                     lock->path);
    else if (found.there)
        dpt_log_info(log, "%s was left behind by %s, which is gone: taking it over", lock->folder,
                     dpt_owner_text(&found.owner, who, sizeof who));
out:
    TEMP_FAILURE_RETRY(unlink(lock->own));
    if (status == DPT_OK)
        remove_leftovers(lock);
    return status;
}

/* Shows every few seconds that this process lives. */
static void *renew(void *arg)
{
    struct dpt_lock *lock = arg;
    struct dpt_thread *own = &lock->thread;
    struct timespec next;

    pthread_mutex_lock(&own->lock);
    clock_gettime(CLOCK_MONOTONIC, &next);
    while (!own->stop) {
        next.tv_sec += RENEW;
        while (!own->stop && pthread_cond_timedwait(&own->work, &own->lock, &next) == 0)
            continue;
        if (own->stop)
            break;
        pthread_mutex_unlock(&own->lock);
        futimens(lock->fd, NULL); /* our file's time even where another has its name by now */
        pthread_mutex_lock(&own->lock);
    }
    pthread_mutex_unlock(&own->lock);
    return NULL;
}

enum dpt_status dpt_lock_take(struct dpt_lock **out, const char *folder, const char *host,
                              struct dpt_log *log, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_lock *lock;
    int code;

    *out = NULL;
    DPT_TRY(DPT_ALLOCATE(lock, 1, "the run folder's lock", err));
    lock->fd = -1;
    lock->fresh = !dpt_file_exists(folder);
    snprintf(lock->folder, sizeof lock->folder, "%s", folder);
    snprintf(lock->path, sizeof lock->path, "%s/.lock", folder);
    snprintf(lock->claim, sizeof lock->claim, "%s/.lock.claim", folder);
    snprintf(lock->last, sizeof lock->last, "%s/.lock.last", folder);
    dpt_owner_self(&lock->me, host);
    snprintf(lock->own, sizeof lock->own, "%s/.lock.tmp-%s-%ld", folder, lock->me.host,
             lock->me.pid);
    DPT_TRY(dpt_make_folders(folder, err));
    DPT_TRY(dpt_file_check_target(lock->path, err));
    DPT_TRY(dpt_file_check_target(lock->claim, err));
    DPT_TRY(dpt_file_check_target(lock->last, err));
    DPT_TRY(acquire(lock, log, err));
    code = dpt_thread_start(&lock->thread, renew, lock);
    if (code != 0)
        DPT_TRY(dpt_fail(err, DPT_RANK, "cannot start the thread that renews %s: %s", lock->path,
                         strerror(code)));
    *out = lock;
out:
    if (status != DPT_OK)
        dpt_lock_release(lock);
    return status;
}

void dpt_lock_keep(struct dpt_lock *lock)
{
    if (lock != NULL)
        lock->fresh = false;
}

void dpt_lock_release(struct dpt_lock *lock)
{
    struct dpt_error err;

    if (lock == NULL)
        return;
    dpt_thread_end(&lock->thread);
    if (lock->fd >= 0)
        close(lock->fd);
    if (lock->taken && dpt_lock_check(lock, &err) == DPT_OK) {
        if (lock->fresh || TEMP_FAILURE_RETRY(rename(lock->path, lock->last)) != 0)
            TEMP_FAILURE_RETRY(unlink(lock->path));
    }
    if (lock->fresh)
        rmdir(lock->folder); /* fails where something lies in it, and then it stays */
    dpt_free(lock);
}

enum dpt_status dpt_lock_check(const struct dpt_lock *lock, struct dpt_error *err)
{
    char who[DPT_OWNER_WORD * 3];
    struct found now;

    if (lock == NULL)
        return DPT_OK;
    if (!read_lock(lock->path, &now)) {
        if (errno != ENOENT)
            return dpt_fail_errno(err, DPT_IO, "%s: cannot see whether the folder is still ours",
                                  lock->path);
        return dpt_fail(err, DPT_RANK,
                        "%s is gone: another run may have had %s since: this run ends", lock->path,
                        lock->folder);
    }
    if (strcmp(now.line, lock->line) == 0)
        return DPT_OK;
    return dpt_fail(err, DPT_RANK, "%s was taken over by %s: this run ends", lock->folder,
                    dpt_owner_text(&now.owner, who, sizeof who));
}

bool dpt_lock_holder(const char *folder, const char *host, struct dpt_owner *owner, bool *alive,
                     double *silent)
{
    char path[PATH_MAX + 8];
    struct dpt_owner me;
    struct found found;
    struct timespec now;

    snprintf(path, sizeof path, "%s/.lock", folder);
    if (!read_lock(path, &found))
        return false;
    clock_gettime(CLOCK_REALTIME, &now);
    dpt_owner_self(&me, host);
    *owner = found.owner;
    *silent = difftime(now.tv_sec, found.renewed.tv_sec) +
              1e-9 * (double)(now.tv_nsec - found.renewed.tv_nsec);
    *alive = !dpt_owner_gone(&found.owner, &me, *silent);
    return true;
}
