#include "core/base/proto.h"

#include <string.h>

/* How a field's value lies in the file. */
enum wire { VARINT = 0, EIGHT_BYTES = 1, COUNTED = 2, FOUR_BYTES = 5 };

/* Seven bits per byte, the least significant first; the eighth says that more come. */
static void add_varint(struct dpt_str *s, uint64_t value)
{
    char bytes[10];
    size_t n = 0;

    do {
        bytes[n++] = (char)((value & 0x7F) | (value > 0x7F ? 0x80 : 0));
        value >>= 7;
    } while (value != 0);
    dpt_str_add(s, bytes, n);
}

static void add_tag(struct dpt_str *s, int field, enum wire wire)
{
    add_varint(s, (uint64_t)field << 3 | wire);
}

/* The n lowest bytes, the least significant first, whatever this machine's order is. */
static void add_little(struct dpt_str *s, uint64_t bits, size_t n)
{
    char bytes[8];

    for (size_t i = 0; i < n; i++)
        bytes[i] = (char)(bits >> 8 * i);
    dpt_str_add(s, bytes, n);
}

static uint64_t bits_of(double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

void dpt_proto_int(struct dpt_str *s, int field, int64_t value)
{
    add_tag(s, field, VARINT);
    add_varint(s, (uint64_t)value);
}

void dpt_proto_float(struct dpt_str *s, int field, float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    add_tag(s, field, FOUR_BYTES);
    add_little(s, bits, 4);
}

void dpt_proto_double(struct dpt_str *s, int field, double value)
{
    add_tag(s, field, EIGHT_BYTES);
    add_little(s, bits_of(value), 8);
}

void dpt_proto_head(struct dpt_str *s, int field, uint64_t n)
{
    add_tag(s, field, COUNTED);
    add_varint(s, n);
}

void dpt_proto_bytes(struct dpt_str *s, int field, const void *bytes, size_t n)
{
    dpt_proto_head(s, field, n);
    dpt_str_add(s, bytes, n);
}

void dpt_proto_text(struct dpt_str *s, int field, const char *text)
{
    dpt_proto_bytes(s, field, text, strlen(text));
}

void dpt_proto_message(struct dpt_str *s, int field, struct dpt_str *message)
{
    dpt_proto_bytes(s, field, message->text, message->length);
    s->failed = s->failed || message->failed;
    dpt_str_clear(message);
}

void dpt_proto_ints(struct dpt_str *s, int field, const int64_t *values, size_t n)
{
    struct dpt_str list = {0};

    for (size_t i = 0; i < n; i++)
        add_varint(&list, (uint64_t)values[i]);
    dpt_proto_message(s, field, &list);
    dpt_str_release(&list);
}

void dpt_proto_doubles(struct dpt_str *s, int field, const double *values, size_t n)
{
    dpt_proto_head(s, field, n * sizeof *values);
    for (size_t i = 0; i < n; i++)
        add_little(s, bits_of(values[i]), 8);
}
