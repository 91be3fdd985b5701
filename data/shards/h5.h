/*
 * h5: HDF5 calls that return our errors.
 *
 * The library is not thread-safe in every build, so each call runs under one lock of the process:
 * dpt_h5_enter and dpt_h5_leave around any HDF5 calls, ours here included (they take it themselves;
 * it is recursive). HDF5's own error printing is off. File locking is off for reading (it breaks on
 * Lustre and NFS).
 */
#ifndef DPT_DATA_H5_H
#define DPT_DATA_H5_H

#include <hdf5.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "core/base/error.h"

void dpt_h5_enter(void);
void dpt_h5_leave(void);
/* Closes what has this id, whatever it is; negative: nothing. Under dpt_h5_enter. */
void dpt_h5_close(hid_t id);

/* Fails with `text` (what was tried, naming the file) and the innermost message of HDF5's error
 * stack after it. */
enum dpt_status dpt_h5_fail(struct dpt_error *err, enum dpt_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Opens for reading, without file locks. Errors: BAD_DATA (missing, unreadable, not HDF5,
 * truncated). */
enum dpt_status dpt_h5_open(const char *path, hid_t *file, struct dpt_error *err);

/* Whether another program has the file open for writing, as far as HDF5's lock on it tells. */
bool dpt_h5_is_written(const char *path);

/* Opens likewise a file that stat has seen: a regular one. Errors: as above, BAD_DATA (another file
 * has come there). */
enum dpt_status dpt_h5_open_known(const char *path, const struct stat *known, hid_t *file,
                                  struct dpt_error *err);

/* The descriptor of the open file, which is HDF5's; -1: unknown. */
int dpt_h5_fd(hid_t file);

/*
 * Whether a name leads to an object; *exists is false also where a soft link leads nowhere. A link
 * into another file, or of a type of somebody's own, is never followed: here and wherever HDF5 is
 * called it leads to no object. Errors: BAD_DATA (such a link is on the way; names it and where it
 * points).
 */
enum dpt_status dpt_h5_exists(hid_t file, const char *path, const char *name, bool *exists,
                              struct dpt_error *err);

/* Why a data set's values do not lie in its file, from its creation property list: reading them, or
 * the extent of a virtual one, would open other files. NULL: they do. Under dpt_h5_enter. */
const char *dpt_h5_elsewhere(hid_t plist);

enum { DPT_H5_DIMS = 8 };

/* The layout of a data set, checked before its bytes are read. */
struct dpt_h5_info {
    int n_dims;
    int64_t dims[DPT_H5_DIMS];
    enum {
        DPT_H5_U8,
        DPT_H5_F32,
        DPT_H5_F64,
        DPT_H5_INTEGER,
        DPT_H5_OTHER
    } type;             /* INTEGER: any but unsigned 8 bit */
    int size;           /* bytes of an element */
    bool is_signed;     /* integers */
    char type_text[24]; /* "uint8", "float64", "string", … for messages */
    bool contiguous; /* one run of bytes at `offset`, in this machine's byte order, all within the
                        file */
    int64_t offset, bytes;      /* bytes: of all elements, uncompressed */
    int64_t chunk_rows;         /* extent of a chunk along the first axis; 0: not chunked */
    int64_t chunk[DPT_H5_DIMS]; /* along each */
    bool has_crc;               /* an attribute `crc32` */
    uint32_t crc;
};

/* Reads and checks the layout of /name ("images", "params/conv1/weight"). Errors: BAD_DATA (absent,
   not a data set, or one of another file, larger than the file can hold, never written, a filter that this
   machine lacks). */
enum dpt_status dpt_h5_info(hid_t file, const char *path, const char *name,
                            struct dpt_h5_info *info, struct dpt_error *err);

/*
 * The texts of an attribute of an open object, in the order of the attribute: one block, to be
 * freed. NULL where there is no such attribute, or it is damaged or holds something else; then *n
 * is 0, or where memory ran out the number of texts. Under dpt_h5_enter.
 */
const char *const *dpt_h5_texts(hid_t object, const char *name, size_t *n);

/*
 * One text of fixed length, the whole of a data set ("/job") that the file is long enough to hold,
 * malloc'ed. Under dpt_h5_enter. Errors: BAD_DATA (it is something else, or damaged), RANK.
 */
enum dpt_status dpt_h5_text(hid_t file, const char *path, const char *name, char **text,
                            struct dpt_error *err);

#endif
