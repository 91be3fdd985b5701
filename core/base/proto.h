/*
 * proto: writes Protocol Buffers, byte for byte as they lie in files.
 *
 * Four kinds of fields are all that there is: whole numbers, 4 bytes, 8 bytes, and bytes of some
 * length, which are texts, packed lists and messages alike. A message is written into a string of
 * its own and then added to its parent. Fields with numbers as in the format's .proto file; those
 * of one message come in any order. See "Encoding" in the Protocol Buffers documentation.
 *
 *     dpt_proto_text(&node, 4, "Relu");               string op_type = 4;
 *     dpt_proto_message(&graph, 1, &node);            repeated NodeProto node = 1;
 */
#ifndef DPT_BASE_PROTO_H
#define DPT_BASE_PROTO_H

#include <stddef.h>
#include <stdint.h>

#include "core/base/str.h"

/* int32, int64, uint32, uint64, enum, bool. */
void dpt_proto_int(struct dpt_str *s, int field, int64_t value);
/* float; double, also where it is not finite. */
void dpt_proto_float(struct dpt_str *s, int field, float value);
void dpt_proto_double(struct dpt_str *s, int field, double value);
/* bytes; string. */
void dpt_proto_bytes(struct dpt_str *s, int field, const void *bytes, size_t n);
void dpt_proto_text(struct dpt_str *s, int field, const char *text);
/* Adds the message that was built in `message`, and empties `message` for the next one. Where
 * building it failed, `s` fails too. */
void dpt_proto_message(struct dpt_str *s, int field, struct dpt_str *message);
/* Packed lists (proto3's repeated numbers; accepted by all readers of proto2). */
void dpt_proto_ints(struct dpt_str *s, int field, const int64_t *values, size_t n);
void dpt_proto_doubles(struct dpt_str *s, int field, const double *values, size_t n);

/* Writes only the header of a field of n bytes; the caller writes the bytes. */
void dpt_proto_head(struct dpt_str *s, int field, uint64_t n);

#endif
