/*
 * zip_entry: one file of a zip archive, as NumPy's .npz is, read from front to back.
 *
 * Nothing that the archive says of sizes is trusted beyond what its bytes can hold; libzip compares
 * the entry's checksum at its end. One thread.
 */
#ifndef DPT_DATA_ZIP_ENTRY_H
#define DPT_DATA_ZIP_ENTRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/memory.h"

/* Deflate packs at most so many bytes into one (RFC 1951: 258 bytes by two bits). */
enum { DPT_DEFLATE_MOST = 1032 };

struct dpt_zip_entry;

/* shown: what messages call it; borrowed. *most: the most bytes that it has. Errors: BAD_DATA (no
 * archive, no such entry, encrypted, a method that libzip lacks), IO, RANK. */
enum dpt_status dpt_zip_entry_open(struct dpt_zip_entry **entry, const char *path, const char *name,
                                   const char *shown, int64_t *most, struct dpt_error *err);
void dpt_zip_entry_close(struct dpt_zip_entry *entry);

/* Reads up to n bytes, fewer at the end only. Errors: BAD_DATA (damaged). */
enum dpt_status dpt_zip_entry_read(struct dpt_zip_entry *entry, void *bytes, size_t n, size_t *got,
                                   struct dpt_error *err);
/* Goes n bytes on, or back, for which it is read again from its beginning. Errors: BAD_DATA. */
enum dpt_status dpt_zip_entry_skip(struct dpt_zip_entry *entry, int64_t n, struct dpt_error *err);

/* The names of an archive's entries that end in `.npy`, without that; in the region. Errors:
 * BAD_DATA (no archive), IO, RANK. */
enum dpt_status dpt_zip_list_npy(const char *path, const char *const **names, size_t *n,
                                 struct dpt_region *region, struct dpt_error *err);

#endif
