"""Reads TensorBoard's event files from their description: TFRecords with CRC-32C, Protocol Buffers. No TensorFlow."""
import struct


def _table():
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        yield byte


_CRC = list(_table())


def masked_crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


assert masked_crc32c(b"123456789") == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF  # RFC 3720's check value


def records(path):
    """The data of each record; all bytes of the file belong to one."""
    with open(path, "rb") as file:
        data = file.read()
    found, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        assert struct.unpack_from("<I", data, at + 8)[0] == masked_crc32c(data[at:at + 8]), f"length at byte {at}"
        body = data[at + 12:at + 12 + length]
        assert len(body) == length, f"record at byte {at} is cut"
        assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked_crc32c(body), f"record at byte {at}"
        found.append(body)
        at += 16 + length
    return found


def _varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at


def fields(data):
    """A message as {field number: [values]}; what has a length stays bytes."""
    found, at = {}, 0
    while at < len(data):
        tag, at = _varint(data, at)
        wire = tag & 7
        if wire == 0:
            value, at = _varint(data, at)
        elif wire == 2:
            length, at = _varint(data, at)
            value, at = data[at:at + length], at + length
            assert len(value) == length
        else:
            form = {1: "<d", 5: "<f"}[wire]
            (value,) = struct.unpack_from(form, data, at)
            at += struct.calcsize(form)
        found.setdefault(tag >> 3, []).append(value)
    return found


def doubles(data):
    return list(struct.unpack(f"<{len(data) // 8}d", data))


def json_value(data):
    """google.protobuf.Value, of those kinds that a job has."""
    (field, (value,)), = fields(data).items()
    return {2: float, 3: lambda text: text.decode(), 4: bool}[field](value)


class Events:
    """What TensorBoard shows: {tag: {step: value}}. A restart takes back what came from its step on."""

    def __init__(self, path):
        self.scalars, self.histograms, self.texts, self.hparams = {}, {}, {}, []
        self.restarts, self.repeated = [], []
        self.count = 0
        for record in records(path):
            self._add(fields(record))
            self.count += 1

    def _add(self, event):
        wall, step = event[1][0], event.get(2, [0])[0]
        assert 1.6e9 < wall < 1e10
        if self.count == 0:
            assert event[3] == [b"brain.Event:2"]
        for log in event.get(7, []):
            assert fields(log)[1] == [1]  # START
            self.restarts.append(step)
            for values in (*self.scalars.values(), *self.histograms.values(), *self.texts.values()):
                for later in [s for s in values if s >= step]:
                    del values[later]
        for summary in event.get(5, []):
            for value in fields(summary)[1]:
                self._add_value(step, fields(value))

    def _add_value(self, step, value):
        tag = value[1][0].decode()
        plugin = None
        if 9 in value:
            plugin = fields(fields(value[9][0])[1][0])
        if 2 in value:
            self._put(self.scalars, tag, step, value[2][0])
        elif 5 in value:
            self._put(self.histograms, tag, step, fields(value[5][0]))
        elif plugin[1] == [b"text"]:
            tensor = fields(value[8][0])
            assert tensor[1] == [7]
            self._put(self.texts, tag, step, tensor[8][0].decode())
        else:
            assert plugin[1] == [b"hparams"] and fields(value[8][0])[1] == [1]
            self.hparams.append((tag, fields(plugin[2][0])))

    def _put(self, where, tag, step, value):
        if step in where.setdefault(tag, {}):
            self.repeated.append((tag, step))
        where[tag][step] = value

    def session(self):
        """The hyper-parameters that the run began with."""
        starts = [data for tag, data in self.hparams if tag == "_hparams_/session_start_info"]
        entries = [fields(e) for e in fields(starts[0][3][0])[1]]
        return {e[1][0].decode(): json_value(e[2][0]) for e in entries}

    def outcomes(self):
        return [fields(data[4][0])[1][0] for tag, data in self.hparams if tag == "_hparams_/session_end_info"]
