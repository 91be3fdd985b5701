/*
 * columns: matrices of which each rank of a group has made some columns, and all are to have all.
 *
 * Where all ranks are on one node, a rank writes its columns where the others read them, in one of
 * two matrices in turn: so one barrier is enough, since nobody is still reading the matrix before
 * the last one once all have written the last one. Else the columns are packed and sent.
 */
#ifndef DPT_COMM_COLUMNS_H
#define DPT_COMM_COLUMNS_H

#include "core/comm/comm.h"

struct dpt_columns;

/* Collective over comm->world, which is borrowed. floats: of the largest matrix that is gathered;
 * widest: of the longest row that is exchanged. spin: every rank has a core of its own. Errors:
 * RANK. */
enum dpt_status dpt_columns_open(struct dpt_columns **columns, const struct dpt_comm *comm,
                                 size_t floats, size_t widest, bool spin, struct dpt_error *err);
/* Collective. */
void dpt_columns_close(struct dpt_columns *columns);

/*
 * Columns are cut evenly, in units of a cache line of 16 floats; a rank may have none.
 *
 * Collective. Gives all ranks the matrix [rows][width], of which rank r has the columns from cut[r]
 * to cut[r + 1]; width is cut[ranks]. Errors: RANK.
 */
enum dpt_status dpt_columns_gather(struct dpt_columns *columns, float *matrix, int64_t rows,
                                   const int64_t *cut, struct dpt_error *err);

/* Collective. Rank r has the rows from row[r] to row[r + 1] of a matrix, [][width], and gets the
 * columns from column[r] to column[r + 1] of all rows; width is column[ranks]. mine: this
 * rank's rows. to: its columns. Errors: RANK. */
enum dpt_status dpt_columns_exchange(struct dpt_columns *columns, const float *mine,
                                     const int64_t *row, const int64_t *column, float *to,
                                     struct dpt_error *err);

/* Bytes that a rank has for it by itself, and those that the ranks of a node share. */
void dpt_columns_bytes(int ranks, int node_ranks, size_t floats, size_t widest, double *own,
                       double *shared);

#endif
