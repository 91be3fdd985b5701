/*
 * image: a checkpoint in memory, byte for byte as it will lie on the disk.
 *
 * Laid out once, since where each data set lies depends on the model and the job alone; filled
 * again at each save; the memory of a large one is the system's again once that is written. Filling
 * it (dpt_image_take) is all that training waits for, and takes the checksums in the same pass;
 * writing it costs next to no CPU time, since the bytes go from here to the device without a
 * copy in the system's cache, if the file system can do that. A state that streams has no
 * image: filling it writes the file, all but HDF5's metadata. An image belongs to one thread at
 * a time. The rest is private to checkpoint_*.c.
 */
#ifndef DPT_STATE_CHECKPOINT_IMAGE_H
#define DPT_STATE_CHECKPOINT_IMAGE_H

#include "core/base/pool.h"
#include "core/state/checkpoint.h"

struct dpt_image;

/* Allocates and lays out; path: the file that it is for, for messages. Errors: RANK (memory), IO
 * (larger than files may be). */
enum dpt_status dpt_image_open(struct dpt_image **image, const struct dpt_state *state,
                               const char *path, struct dpt_error *err);
void dpt_image_close(struct dpt_image *image);
/* Bytes of the file. */
uint64_t dpt_image_bytes(const struct dpt_image *image);

/* Copies the state, which must be of the same model and job; it may change as soon as this
 * returns. path: of the save that follows. pool: whose threads copy; NULL: the caller alone.
 * Errors: those of state->gather; of a state that streams also IO. */
enum dpt_status dpt_image_take(struct dpt_image *image, const struct dpt_state *state,
                               const char *path, struct dpt_pool *pool, struct dpt_error *err);

/*
 * Writes what was taken last: HDF5's metadata in memory first, then temporary name, reservation,
 * bytes, fsync, rename, fsync of the folder. Errors: IO (disk full, not writable; names the file),
 * RANK; then nothing is left of it, unless only the last fsync failed: then it is there, whole.
 */
enum dpt_status dpt_image_save(struct dpt_image *image, const char *path, struct dpt_error *err);

/* One data set of the file, and where its bytes come from. */
struct dpt_item {
    char name[DPT_NAME * 2];
    int arena;    /* -1: the parameters, 0 and up: a slot; not for text */
    size_t start; /* in its arena, in floats */
    size_t size;  /* bytes */
    uint32_t crc;
    int n_dims; /* 0: text */
    /* What is no tensor's, such as text; borrowed while the image is open; NULL: a tensor's. */
    const void *bytes;
    int64_t dims[4];
    uint64_t offset; /* in the file, once the metadata is made */
};

/*
 * Makes HDF5's metadata: all of the file but the bytes of its data sets, which are holes. HDF5
 * makes it in a file in memory and never touches the disk, so that a full disk is an errno of ours
 * and not a library that fails in its own close. Sets the items' offsets. fd: out, the caller
 * closes it; *size: the file's, without its last line. Errors: RANK, IO.
 */
enum dpt_status dpt_checkpoint_metadata(const struct dpt_state *state, struct dpt_item *items,
                                        int n, const char *path, int *fd, uint64_t *size,
                                        struct dpt_error *err);

#endif
