/* ranks: 2 3 5 */
/* Columns that each rank has made come to all ranks, in shared memory and by messages; and rows
 * that each has are exchanged for columns. */
#include "core/comm/sums/columns.h"

#include "core/comm/tests/ranks.h"

enum { CASES = 20, ROWS = 40, WIDTH = 700, GUARD = 8 };

static struct dpt_error err;

/* Element (i, j) of matrix k. */
static float number(int k, int64_t i, int64_t j)
{
    return (float)(k * 100003 + i * 1009 + j);
}

/* Even shares of n in units of 16; the last ranks may have none. */
static void cut(int64_t n, int64_t *at)
{
    const int ranks = comm.world.size;
    const int64_t units = (n + 15) / 16;

    at[0] = 0;
    for (int r = 0; r < ranks; r++) {
        at[r + 1] = (units * (r + 1) / ranks) * 16;
        at[r + 1] = at[r + 1] < n ? at[r + 1] : n;
    }
}

static void check_gather(struct dpt_columns *columns, int k)
{
    const int64_t rows = 1 + (k * 7) % ROWS, width = k % 3 == 0 ? 1 + k : WIDTH - 3 * k;
    static float matrix[ROWS * WIDTH + GUARD];
    int64_t at[64];

    cut(width, at);
    for (int64_t i = 0; i < rows * width; i++)
        matrix[i] = -1;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = at[comm.world.rank]; j < at[comm.world.rank + 1]; j++)
            matrix[i * width + j] = number(k, i, j);
    for (int i = 0; i < GUARD; i++)
        matrix[rows * width + i] = -2;
    CHECK_OK(dpt_columns_gather(columns, matrix, rows, at, &err));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < width; j++)
            CHECK(matrix[i * width + j] == number(k, i, j));
    for (int i = 0; i < GUARD; i++)
        CHECK(matrix[rows * width + i] == -2);
}

/* Also of more rows than are exchanged at once. */
static void check_exchange(struct dpt_columns *columns, int k)
{
    const int64_t rows = k == 0 ? 6000 : 1 + (k * 37) % 300, width = WIDTH - 17 * k;
    const int rank = comm.world.rank, ranks = comm.world.size;
    int64_t row[64], column[64], own, n;
    float *mine, *to;

    cut(rows, row);
    cut(width, column);
    own = column[rank + 1] - column[rank];
    n = row[rank + 1] - row[rank];
    mine = malloc((size_t)(n * width + 1) * sizeof *mine);
    to = malloc((size_t)(rows * own + 1) * sizeof *to);
    CHECK(mine != NULL && to != NULL);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < width; j++)
            mine[i * width + j] = number(k, row[rank] + i, j);
    to[rows * own] = -2;
    CHECK_OK(dpt_columns_exchange(columns, mine, row, column, to, &err));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < own; j++)
            CHECK(to[i * own + j] == number(k, i, column[rank] + j));
    CHECK(to[rows * own] == -2 && row[ranks] == rows);
    free(mine);
    free(to);
}

static void run(const struct dpt_comm *ranks)
{
    struct dpt_columns *columns = NULL;

    CHECK_OK(dpt_columns_open(&columns, ranks, ROWS * WIDTH, WIDTH, false, &err));
    for (int k = 0; k < CASES; k++) {
        check_gather(columns, k);
        if (k < 6)
            check_exchange(columns, k);
    }
    dpt_columns_close(columns);
}

static void in_shared_memory(void **state)
{
    (void)state;
    run(&comm);
}

static void by_messages(void **state)
{
    struct dpt_comm apart = comm;

    (void)state;
    apart.node.size = 1; /* as if each were on a node of its own */
    run(&apart);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(in_shared_memory),
                                       cmocka_unit_test(by_messages)};

    return RUN_ON_ALL_RANKS(tests);
}
