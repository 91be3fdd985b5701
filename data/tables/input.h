/*
 * input: reading a file of another program, gzipped or not, or one that lies in a zip archive.
 *
 * A regular file, read from front to back; one that begins as gzip does is unpacked on the way. A
 * gzip stream that ends early, is damaged, or declares more than it can hold is an error. One
 * thread.
 */
#ifndef DPT_DATA_INPUT_H
#define DPT_DATA_INPUT_H

#include <signal.h>
#include <stdint.h>
#include <zlib.h>

#include "core/base/error.h"

/* Zero-initialise: {0}. */
struct dpt_input {
    const char *path; /* borrowed */
    gzFile gz;
    struct dpt_zip_entry *entry;       /* is read instead; NULL: none is */
    int64_t size;                      /* of the file on disk; the most that the entry has */
    int64_t read;                      /* unpacked bytes handed out */
    const volatile sig_atomic_t *stop; /* not 0: give up as soon as possible; or NULL */
};

/* Errors: IO (missing, unreadable), BAD_DATA (no regular file). */
enum dpt_status dpt_input_open(struct dpt_input *in, const char *path,
                               const volatile sig_atomic_t *stop, struct dpt_error *err);
/* Opens NAME of an archive; shown: what messages call it, borrowed. Errors: as of
 * dpt_zip_entry_open. */
enum dpt_status dpt_input_open_entry(struct dpt_input *in, const char *path, const char *name,
                                     const char *shown, const volatile sig_atomic_t *stop,
                                     struct dpt_error *err);
void dpt_input_close(struct dpt_input *in);

/* Reads up to `capacity` bytes; *got is less only at the end. Errors: BAD_DATA (damaged gzip
 * stream), IO, STOPPED. */
enum dpt_status dpt_input_some(struct dpt_input *in, void *bytes, size_t capacity, size_t *got,
                               struct dpt_error *err);
/* Reads exactly n bytes. Errors: also BAD_DATA (the file is too short). */
enum dpt_status dpt_input_exact(struct dpt_input *in, void *bytes, size_t n, struct dpt_error *err);
/* Skips n bytes; going back (n < 0) is slow where the file is gzipped. Skipping past the end fails
 * at the next read. Errors: BAD_DATA (a damaged gzip stream), IO. */
enum dpt_status dpt_input_skip(struct dpt_input *in, int64_t n, struct dpt_error *err);
/* Fails with BAD_DATA where the file cannot hold `bytes` more bytes: a wrong header is reported
 * before the disk is filled. */
enum dpt_status dpt_input_promise(struct dpt_input *in, int64_t bytes, struct dpt_error *err);
/* Fails with BAD_DATA where there are bytes left. */
enum dpt_status dpt_input_end(struct dpt_input *in, struct dpt_error *err);

#endif
