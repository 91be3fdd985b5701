/*
 * image: a checkpoint in memory, byte for byte as it will lie on the disk.
 *
 * Laid out once, since where each data set lies depends on the model and the job alone; filled
 * again at each save; the memory of a large one is the system's again once that is written. Filling
 * it (dpt_image_take) is all that training waits for, and takes the checksums in the same pass;
 * writing it costs next to no CPU time, since the bytes go from here to the device without a
 * copy in the system's cache, if the file system can do that. A state that streams has no
 * image: filling it writes the file, all but HDF5's metadata; each rank writes its own part where
 * it sees the file (shared_file.h), and rank 0 what that leaves. Where ranks write theirs later,
 * the image waits for it (dpt_image_waits), and has a copy of what they leave. An image belongs to
 * one thread at a time. The rest is private to checkpoint_*.c.
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

/* Whether it waits for what ranks write of themselves. */
bool dpt_image_waits(const struct dpt_image *image);
/* Tells it what they have written, as struct dpt_state's `write` does; before it is saved. Errors:
 * RANK; nothing is left then. */
enum dpt_status dpt_image_complete(struct dpt_image *image, const struct dpt_stretch *done,
                                   size_t n, struct dpt_error *err);

/*
 * Writes what was taken last: HDF5's metadata in memory first, then temporary name, reservation,
 * bytes, fsync, rename, fsync of the folder. Errors: IO (disk full, not writable; names the file),
 * RANK; then nothing is left of it, unless only the last fsync failed: then it is there, whole.
 */
enum dpt_status dpt_image_save(struct dpt_image *image, const char *path, struct dpt_error *err);

/* One data set of the file, and where its bytes come from. */
struct dpt_item {
    char name[DPT_NAME * 2];
    int arena; /* -1: the parameters, 0 and up: a slot; not for text */
    int32_t tensor;
    size_t start; /* in its arena, in floats */
    size_t size;  /* bytes */
    uint32_t crc;
    int n_dims; /* 0: text */
    /* What is no tensor's, such as text; borrowed while the image is open; NULL: a tensor's. */
    const void *bytes;
    int64_t dims[4];
    uint64_t offset; /* in the file, once the metadata is made */
};

/* A part of a data set that is copied, or written, at once. */
struct dpt_chunk {
    int item;
    size_t start, size; /* bytes */
    uint64_t to;        /* in the file */
    uint32_t crc;
    bool written; /* by one of the ranks, of itself */
    size_t kept;  /* else, while the image waits: where in image->rest it is */
};

/* Bytes: what writing past the cache wants addresses, offsets and sizes to divide; and the images
 * up to which their memory is held between two saves. */
enum { DPT_IMAGE_PAGE = 4096, DPT_IMAGE_HELD = 16 << 20 };

struct dpt_image {
    struct dpt_state state; /* as it was taken, without its arenas */
    struct dpt_item *items; /* as HDF5 is told of them: in another order it lays out another file */
    int n;
    int *order;               /* the items' numbers, by their offsets */
    struct dpt_chunk *chunks; /* of all items, in their order */
    int n_chunks;
    size_t chunk_room; /* of dpt_grow */
    unsigned char *bytes;
    size_t room;         /* of them; where the state streams, of a chunk */
    bool waits;          /* for what the ranks write */
    unsigned char *rest; /* meanwhile: what rank 0 writes then */
    size_t rest_room;    /* of dpt_grow */
    uint64_t size;       /* without the last line */
    int fd;              /* of what is being written; -1: nothing */
    char temporary[PATH_MAX];
};

/* checkpoint_layout.c. cut: lists the chunks; done: what was written of them already, in the order
 * of arena, tensor and place. Errors: RANK. open_file: makes the file under its temporary name.
 * Errors: IO. drop_file: leaves nothing of a file that did not get its name. source: where the
 * bytes of a chunk are on this rank. */
enum dpt_status dpt_image_cut(struct dpt_image *image, const struct dpt_stretch *done, size_t n,
                              struct dpt_error *err);
enum dpt_status dpt_image_open_file(struct dpt_image *image, const char *path,
                                    struct dpt_error *err);
void dpt_image_drop_file(struct dpt_image *image);
const void *dpt_image_source(const struct dpt_image *image, const struct dpt_chunk *chunk);

/* checkpoint_stream.c. Writes the file of a state that streams, but for HDF5's metadata. Errors:
 * IO, RANK, those of the state's functions; nothing is left then. */
enum dpt_status dpt_image_stream(struct dpt_image *image, const char *path, struct dpt_error *err);
/* Writes what was kept while the image waited. Errors: IO. */
enum dpt_status dpt_image_put_rest(struct dpt_image *image, const char *path,
                                   struct dpt_error *err);

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
