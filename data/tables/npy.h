/*
 * npy: the header of NumPy's array files.
 *
 * NumPy Enhancement Proposal 1 and numpy.lib.format: "\x93NUMPY", version 1.0, 2.0 or 3.0, the
 * header's length, and a Python dictionary with the keys descr, fortran_order and shape. The header
 * is input like any other: nothing in it is trusted.
 */
#ifndef DPT_DATA_NPY_H
#define DPT_DATA_NPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"

enum { DPT_NPY_DIMS = 8, DPT_NPY_HEADER = 512 /* more than one of four dimensions has */ };

struct dpt_npy {
    char descr[16]; /* "<f4", as the file has it */
    char kind;      /* 'u', 'i', 'f' or 'b' (one byte, 0 or 1) */
    int size;       /* bytes of a number: 1, 2, 4 or 8 */
    bool swapped;   /* the other byte order than this machine's */
    bool fortran_order;
    int n_dims; /* 0 … DPT_NPY_DIMS */
    int64_t dims[DPT_NPY_DIMS];
    int64_t count; /* numbers in all */
};

/*
 * Reads a file's header, up to its numbers. read: gives the file's next n bytes, all of them. path:
 * for messages. *length: out, of the header. Errors: BAD_DATA (no such header, a type that is no
 * number of 1 to 8 bytes, more dimensions or numbers than fit), RANK, those of `read`.
 */
enum dpt_status dpt_npy_read(const char *path,
                             enum dpt_status (*read)(void *arg, void *bytes, size_t n,
                                                     struct dpt_error *err),
                             void *arg, struct dpt_npy *npy, size_t *length, struct dpt_error *err);

/*
 * The dictionary of a header, text[0 … n-1]. `path` is for messages. Errors: BAD_DATA (no such
 * dictionary, a type that is no number of 1 to 8 bytes, more dimensions or numbers than fit).
 */
enum dpt_status dpt_npy_parse(const char *path, const char *text, size_t n, struct dpt_npy *npy,
                              struct dpt_error *err);

/* Writes what stands in front of the numbers of an array of at most four dimensions, as version 1.0
 * has it; gives its length, at most DPT_NPY_HEADER. */
size_t dpt_npy_header(const char *descr, const int64_t *dims, int n_dims,
                      char header[DPT_NPY_HEADER]);

#endif
