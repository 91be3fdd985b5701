#include "core/state/board.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/base/file.h"

enum { RECORD_HEAD = 12, RECORD_TAIL = 4 };

/* CRC-32C (Castagnoli, reflected polynomial 0x82F63B78) of four bits. */
static const uint32_t nibbles[16] = {
    0x00000000, 0x105EC76F, 0x20BD8EDE, 0x30E349B1, 0x417B1DBC, 0x5125DAD3, 0x61C69362, 0x7198540D,
    0x82F63B78, 0x92A8FC17, 0xA24BB5A6, 0xB21572C9, 0xC38D26C4, 0xD3D3E1AB, 0xE330A81A, 0xF36E6F75,
};

/* Masks a CRC as TFRecords do: a CRC of data that holds CRCs would be a poor one, so it is turned
 * and moved. */
static uint32_t masked_crc(const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    uint32_t crc = 0xFFFFFFFF;

    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        crc = nibbles[crc & 15] ^ crc >> 4;
        crc = nibbles[crc & 15] ^ crc >> 4;
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xA282EAD8;
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "numbers are taken as they lie in memory");

/* A record's masked CRC, which lies after the n bytes. */
static uint32_t crc_behind(const char *bytes, size_t n)
{
    uint32_t crc;

    memcpy(&crc, bytes + n, sizeof crc);
    return crc;
}

void dpt_record_add(struct dpt_str *out, const void *data, size_t n)
{
    const uint64_t length = n;
    const uint32_t head = masked_crc(&length, sizeof length), tail = masked_crc(data, n);

    dpt_str_add(out, (const char *)&length, sizeof length);
    dpt_str_add(out, (const char *)&head, sizeof head);
    dpt_str_add(out, data, n);
    dpt_str_add(out, (const char *)&tail, sizeof tail);
}

/* The record at `offset` of a file of `size` bytes, into *data, which grows. *n: its data's length;
 * SIZE_MAX: there is no whole one. */
static enum dpt_status read_record(int fd, const char *path, long long offset, long long size,
                                   char **data, size_t *n, struct dpt_error *err)
{
    const long long left = size - offset - RECORD_HEAD - RECORD_TAIL;
    char head[RECORD_HEAD], *larger;
    uint64_t length;

    *n = SIZE_MAX;
    if (left < 0)
        return DPT_OK;
    if (dpt_pread_all(fd, head, sizeof head, offset) != 0)
        return dpt_fail_errno(err, DPT_IO, "%s", path);
    memcpy(&length, head, sizeof length);
    if (crc_behind(head, sizeof length) != masked_crc(head, sizeof length) ||
        length > (uint64_t)left)
        return DPT_OK;
    larger = realloc(*data, length + RECORD_TAIL);
    if (larger == NULL)
        return dpt_fail_memory(err, path, (double)length);
    *data = larger;
    if (dpt_pread_all(fd, *data, length + RECORD_TAIL, offset + RECORD_HEAD) != 0)
        return dpt_fail_errno(err, DPT_IO, "%s", path);
    if (crc_behind(*data, length) == masked_crc(*data, length))
        *n = length;
    return DPT_OK;
}

enum dpt_status dpt_records_scan(int fd, const char *path,
                                 bool (*visit)(void *arg, char *data, size_t n), void *arg,
                                 long long *end, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct stat info;
    char *data = NULL;

    *end = 0;
    if (fstat(fd, &info) != 0)
        return dpt_fail_errno(err, DPT_IO, "%s", path);
    for (;;) {
        size_t n;

        DPT_TRY(read_record(fd, path, *end, (long long)info.st_size, &data, &n, err));
        if (n == SIZE_MAX)
            break;
        if (visit(arg, data, n)) {
            const uint32_t crc = masked_crc(data, n);

            memcpy(data + n, &crc, sizeof crc);
            if (dpt_pwrite_all(fd, data, n + RECORD_TAIL, *end + RECORD_HEAD) != 0)
                DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s", path));
        }
        *end += RECORD_HEAD + (long long)n + RECORD_TAIL;
    }
out:
    free(data);
    return status;
}
