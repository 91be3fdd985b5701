/* Checks of the folder that runs go to: whether a run could save there, and lock it. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "cmd/doctor/doctor.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/folder.h"
#include "core/state/lock.h"
#include "data/sets/dataset.h"

enum { SAMPLE = 1 << 20, RESERVED = 16 << 20 };

/* Free space in bytes, and files that may still be made. */
static const double least_room = 50e6, little_room = 1e9;
static const double least_files = 50, little_files = 1000;

void dpt_doctor_hdf5(struct dpt_doctor *d)
{
    const char *locking = getenv("HDF5_USE_FILE_LOCKING");

    dpt_ok(d, "%s%s%s", dpt_h5_version(), locking != NULL ? ", HDF5_USE_FILE_LOCKING=" : "",
           locking != NULL ? locking : "");
}

/* The advice for an errno. */
static const char *remedy(int code)
{
    static const struct {
        int code;
        const char *text;
    } remedies[] = {
        {EACCES, "choose another --output, or change its rights (chmod, chown)"},
        {EPERM, "choose another --output, or change its rights (chmod, chown)"},
        {EROFS, "it is mounted for reading only: choose another --output"},
        {ENOSPC, "the disk is full: free some space, or choose another --output"},
        {EDQUOT, "your quota is used up: free some space, or choose another --output"},
        {ENOTDIR, "a part of the path is no folder: choose another --output"},
        {EIO, "the disk or its server is broken: choose another --output"},
        {ESTALE, "the file server lost it: mount it again, or choose another --output"},
    };

    for (size_t i = 0; i < sizeof remedies / sizeof remedies[0]; i++)
        if (remedies[i].code == code)
            return remedies[i].text;
    return "choose another --output";
}

static void path_in(const char *folder, const char *name, char path[PATH_MAX + 64])
{
    snprintf(path, PATH_MAX + 64, "%s/%s", folder, name);
}

/* --- saving ----------------------------------------------------------------------------------- */

/* Locks a file as h5py does when it opens one; 0 or errno. */
static int try_flock(const char *path)
{
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    int code = fd < 0 || flock(fd, LOCK_EX | LOCK_NB) != 0 ? errno : 0;

    if (fd >= 0)
        close(fd);
    return code;
}

/* Writes a file as checkpoints are written (another name, fsync, rename, fsync of the folder); 0
 * or errno. */
static int save_file(const char *path, double *seconds)
{
    static char bytes[SAMPLE];
    char *back = NULL;
    struct dpt_error err = {0};
    double start = dpt_now();
    size_t length = 0;
    int code = 0;

    memset(bytes, 'x', SAMPLE);
    errno = 0;
    if (dpt_file_write(path, bytes, SAMPLE, &err) != DPT_OK) {
        code = errno != 0 ? errno : EIO;
        /* The line names the cause best: what came after may have changed errno. */
        for (int i = 1; i < 134; i++)
            if (strstr(err.text, strerror(i)) != NULL)
                code = i;
    }
    *seconds = dpt_now() - start;
    if (code == 0 && (dpt_file_read(path, SAMPLE, DPT_IO, &back, &length, &err) != DPT_OK ||
                      length != SAMPLE || memcmp(back, bytes, SAMPLE) != 0))
        code = EIO;
    free(back);
    return code;
}

static void tell_unwritable(struct dpt_doctor *d, const char *place, int code)
{
    d->unwritable = true;
    dpt_failed(d, remedy(code), "%s: %s", place, strerror(code));
}

void dpt_doctor_output(struct dpt_doctor *d)
{
    char place[PATH_MAX], folder[PATH_MAX], path[PATH_MAX + 64], time[32];
    const struct dpt_filesystem *fs;
    double seconds;
    int code;

    dpt_folder_present(d->output, place);
    if (!dpt_folder_scratch(place, folder)) {
        tell_unwritable(d, place, errno);
        return;
    }
    path_in(folder, "checkpoint", path);
    code = save_file(path, &seconds);
    fs = dpt_filesystem(folder);
    if (code != 0) {
        tell_unwritable(d, place, code);
        dpt_folder_remove(folder);
        return;
    }
    dpt_doctor_say(d, fs->kind == DPT_FILESYSTEM_MEMORY ? DPT_DOCTOR_WARNING : DPT_DOCTOR_OK,
                   fs->note, "%s%s, %s: 1 MB safe in %s", place,
                   strcmp(place, d->output) != 0 ? " (exists)" : "", fs->name,
                   dpt_show_seconds(seconds, time));
    code = try_flock(path);
    dpt_folder_remove(folder);
    dpt_doctor_add(d,
                   (struct dpt_finding){.name = "flock",
                                        .level = code != 0 ? DPT_DOCTOR_WARNING : DPT_DOCTOR_OK},
                   code != 0 ? "for h5py: export HDF5_USE_FILE_LOCKING=FALSE; dptrain needs nothing"
                             : NULL,
                   "%s", code == 0 ? "works; dptrain does not need it" : strerror(code));
}

/* Reserves bytes; 0, or the errno that says why not: the count of free blocks does not show a
 * quota. */
static int try_reserve(const char *place)
{
    char folder[PATH_MAX], path[PATH_MAX + 64];
    int fd, code = 0;

    if (!dpt_folder_scratch(place, folder))
        return 0; /* told by another check */
    path_in(folder, "room", path);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0 && fallocate(fd, 0, 0, RESERVED) != 0)
        code = errno == ENOSPC || errno == EDQUOT ? errno : 0;
    if (fd >= 0)
        close(fd);
    dpt_folder_remove(folder);
    return code;
}

void dpt_doctor_disk(struct dpt_doctor *d)
{
    char place[PATH_MAX], has[32], had[32], files[32];
    struct statvfs fs;
    double free_bytes, count;
    int code;

    dpt_folder_present(d->output, place);
    if (d->unwritable || statvfs(place, &fs) != 0)
        return;
    code = try_reserve(place);
    free_bytes = (double)fs.f_bavail * (double)fs.f_frsize;
    count = fs.f_files > 0 ? (double)fs.f_favail : little_files; /* some have no such number */
    dpt_show_bytes(free_bytes, has);
    dpt_show_bytes((double)fs.f_blocks * (double)fs.f_frsize, had);
    dpt_group_digits(files, (long long)count);
    if (code != 0 || free_bytes < least_room)
        dpt_failed(d, remedy(code != 0 ? code : ENOSPC), "%s of %s%s", has, had,
                   code == EDQUOT ? ", but your quota is used up" : "");
    else if (count < little_files)
        dpt_judge(d, dpt_doctor_below(count, least_files, little_files),
                  "remove small files, or choose another --output", "%s of %s, but %s files", has,
                  had, files);
    else
        dpt_judge(d, dpt_doctor_below(free_bytes, 0, little_room),
                  "`dptrain plan JOB.yaml` prints a checkpoint's size; checkpoint.keep", "%s of %s",
                  has, had);
}

/* --- locking, and who sees it ----------------------------------------------------------------- */

/* Takes the lock of a folder, also where a file server shows it for a while after it was given
 * back. */
static enum dpt_status take_lock(const struct dpt_doctor *d, const char *folder,
                                 struct dpt_lock **lock, struct dpt_error *err)
{
    const double end = dpt_now() + 0.5 * d->limit;
    struct dpt_log silent = {.silent = true};
    enum dpt_status status;

    while ((status = dpt_lock_take(lock, folder, d->comm.host, &silent, err)) == DPT_USAGE &&
           dpt_now() < end)
        dpt_sleep(2e-3);
    return status;
}

/* Rank 0 takes the lock; rank `other` (0: there is none) must be refused then, and get it once
 * rank 0 has given it back. Collective. */
static enum dpt_status take_turns(struct dpt_doctor *d, const char *folder, int other,
                                  struct dpt_error *err)
{
    const struct dpt_group *world = &d->comm.world;
    const bool second = other > 0 && world->rank == other;
    enum dpt_status status = DPT_OK;
    struct dpt_log silent = {.silent = true};
    struct dpt_lock *lock = NULL;

    if (world->rank == 0)
        status = take_lock(d, folder, &lock, err);
    DPT_TRY(dpt_group_agree(world, status, err));
    if (second && (status = dpt_lock_take(&lock, folder, d->comm.host, &silent, err)) == DPT_OK)
        status = dpt_fail(err, DPT_IO, "two ranks have it at once");
    DPT_TRY(dpt_group_agree(world, status == DPT_USAGE ? DPT_OK : status, err));
    if (world->rank == 0)
        dpt_lock_release(lock);
    lock = NULL;
    DPT_TRY(dpt_group_barrier(world, err));
    status = second ? take_lock(d, folder, &lock, err) : DPT_OK;
    DPT_TRY(dpt_group_agree(world, status, err));
out:
    dpt_lock_release(lock);
    return status;
}

/* A folder that rank 0 makes; the others see whether they find it. */
struct meeting {
    char folder[PATH_MAX];
    char token[32];
};

static bool sees(const struct meeting *m)
{
    char path[PATH_MAX + 64], token[sizeof m->token];

    path_in(m->folder, "token", path);
    return dpt_file_line(path, token, sizeof token) && strcmp(token, m->token) == 0;
}

static void open_meeting(struct dpt_doctor *d, struct meeting *m)
{
    char place[PATH_MAX], path[PATH_MAX + 64];
    struct dpt_error ignored;

    dpt_folder_present(d->output, place);
    if (!dpt_folder_scratch(place, m->folder)) {
        m->folder[0] = '\0';
        return;
    }
    if (chmod(m->folder, 0755) != 0)
        return;
    snprintf(m->token, sizeof m->token, "%ld-%.0f", (long)getpid(), dpt_now() * 1e6);
    path_in(m->folder, "token", path);
    dpt_file_write(path, m->token, strlen(m->token), &ignored);
}

static void tell_seen(struct dpt_doctor *d, const bool *seen)
{
    struct dpt_finding f = {.name = "seen by"};
    const int n = d->comm.world.size;
    int blind = 0, first = -1;

    for (int r = n - 1; r >= 0; r--)
        if (!seen[r]) {
            blind++;
            first = r;
        }
    if (d->comm.nodes == 1 && blind == 0)
        return;
    f.level = blind > 0 ? DPT_DOCTOR_WARNING : DPT_DOCTOR_OK;
    if (blind == 0)
        dpt_doctor_add(d, f, NULL, "all %d nodes", d->comm.nodes);
    else
        dpt_doctor_add(d, f,
                       "a run started there would start from scratch: use a folder that all share",
                       "not by rank %d (%s)%s", first, dpt_comm_host(&d->comm, first),
                       blind > 1 ? " and others" : "");
}

static void tell_lock(struct dpt_doctor *d, int other, enum dpt_status status,
                      const struct dpt_error *failure)
{
    if (status != DPT_OK)
        dpt_failed(d, "two runs could not be kept apart: another --output", "%s", failure->text);
    else if (other > 0)
        dpt_ok(d, "rank 0 and rank %d (%s) took turns", other, dpt_comm_host(&d->comm, other));
    else
        dpt_ok(d, "taken and given back%s", d->comm.world.size > 1 ? ", by rank 0 alone" : "");
}

/* The rank that takes the lock beside rank 0, on another node if one sees the folder; 0: there
 * is none. */
static int choose_other(const struct dpt_doctor *d, const bool *seen)
{
    for (int far = 1; far >= 0; far--)
        for (int r = 1; r < d->comm.world.size; r++)
            if (seen[r] &&
                (strcmp(dpt_comm_host(&d->comm, r), dpt_comm_host(&d->comm, 0)) != 0) == (far == 1))
                return r;
    return 0;
}

enum dpt_status dpt_doctor_lock(struct dpt_doctor *d, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &d->comm.world;
    struct meeting m = {0};
    const bool *seen;
    struct dpt_error failure = {0};
    bool mine;
    int other;

    if (world->rank == 0)
        open_meeting(d, &m);
    DPT_TRY(dpt_group_broadcast(world, 0, &m, sizeof m, err));
    if (m.folder[0] == '\0') /* told by another check */
        goto out;
    mine = sees(&m);
    DPT_DOCTOR_GATHER(seen, d, &mine, sizeof mine, err);
    if (!seen[0]) /* likewise: nothing can be written there */
        goto out;
    other = choose_other(d, seen);
    tell_lock(d, other, take_turns(d, m.folder, other, &failure), &failure);
    tell_seen(d, seen);
out:
    if (world->rank == 0 && m.folder[0] != '\0')
        dpt_folder_remove(m.folder);
    return status;
}
