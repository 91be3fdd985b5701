"""Files of weights, read and written here by what their formats' documents say, and ONNX models computed with numpy."""
import json
import math
import struct

import numpy as np


# --- safetensors -------------------------------------------------------------------------------------------------------

SAFE_TYPES = {"F32": "<f4", "F64": "<f8", "F16": "<f2", "I64": "<i8", "U8": "|u1", "BOOL": "|b1"}


def read_safetensors(path):
    """({name: array}, metadata)"""
    data = open(path, "rb").read()
    length = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8 : 8 + length])
    body = data[8 + length :]
    metadata = head.pop("__metadata__", {})
    arrays = {}
    for name, entry in head.items():
        begin, end = entry["data_offsets"]
        arrays[name] = np.frombuffer(body[begin:end], SAFE_TYPES[entry["dtype"]]).reshape(entry["shape"])
    assert sum(a.nbytes for a in arrays.values()) == len(body)
    return arrays, metadata


def bfloat16(array):
    """Its upper halves, rounded to nearest: exact where the lower half is zero."""
    return (np.ascontiguousarray(array, "<f4").view("<u4") >> 16).astype("<u2")


def safetensors_bytes(arrays, types=None, sort=True, head=None):
    """As safetensors.save has it: sorted by name. types: {name: "BF16"} for arrays that hold its bits."""
    entries, body = {}, b""
    for name in sorted(arrays) if sort else arrays:
        array = np.asarray(arrays[name], order="C")
        kind = (types or {}).get(name) or {v: k for k, v in SAFE_TYPES.items()}[array.dtype.str]
        entries[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [len(body), len(body) + array.nbytes]}
        body += array.tobytes()
    text = json.dumps({**(head or {}), **entries}).encode()
    return struct.pack("<Q", len(text)) + text + body


def write_safetensors(path, arrays, **options):
    with open(path, "wb") as file:
        file.write(safetensors_bytes(arrays, **options))
    return str(path)


# --- Protocol Buffers --------------------------------------------------------------------------------------------------


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at


def fields(data):
    """{field number: [values]}; a message or text is its bytes."""
    found, at = {}, 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == 0:
            value, at = varint(data, at)
        elif tag & 7 == 2:
            length, at = varint(data, at)
            assert at + length <= len(data)
            value, at = data[at : at + length], at + length
        else:
            size = {1: 8, 5: 4}[tag & 7]
            value, at = struct.unpack("<d" if size == 8 else "<f", data[at : at + size])[0], at + size
        found.setdefault(tag >> 3, []).append(value)
    return found


def packed(values):
    """Whole numbers, packed or one a field."""
    numbers = []
    for value in values:
        if isinstance(value, int):
            numbers.append(value)
            continue
        at = 0
        while at < len(value):
            number, at = varint(value, at)
            numbers.append(number)
    return [n - (1 << 64) if n >> 63 else n for n in numbers]


# --- ONNX --------------------------------------------------------------------------------------------------------------


class Onnx:
    """What onnx.proto3 calls ModelProto."""

    def __init__(self, path):
        model = fields(open(path, "rb").read())
        graph = fields(model[7][0])
        self.ir_version = model[1][0]
        self.opset = fields(model[8][0])[2][0]
        self.properties = {e[1][0].decode(): e[2][0].decode() for e in map(fields, model[14])}
        self.tensors, self.constants = {}, {}
        for tensor in map(fields, graph[5]):
            kind = {1: "<f4", 7: "<i8"}[tensor[2][0]]
            to = self.tensors if kind == "<f4" else self.constants
            to[tensor[8][0].decode()] = np.frombuffer(tensor[9][0], kind).reshape(packed(tensor.get(1, [])))
        self.nodes = [self.node(fields(n)) for n in graph[1]]
        self.inputs = [self.value(fields(v)) for v in graph[11]]
        self.outputs = [self.value(fields(v)) for v in graph[12]]

    @staticmethod
    def node(n):
        attributes = {}
        for a in map(fields, n.get(5, [])):
            value = {1: lambda: a[2][0], 2: lambda: packed(a[3])[0], 3: lambda: a[4][0].decode(), 7: lambda: packed(a[8])}[a[20][0]]()
            attributes[a[1][0].decode()] = value
        return n[4][0].decode(), [i.decode() for i in n[1]], n[2][0].decode(), attributes

    @staticmethod
    def value(v):
        tensor = fields(fields(v[2][0])[1][0])
        assert tensor[1] == [1]
        dims = [fields(d) for d in fields(tensor[2][0])[1]]
        return v[1][0].decode(), [d[2][0].decode() if 2 in d else d[1][0] for d in dims]

    def run(self, x):
        """In double precision."""
        values = {name: t.astype(float) for name, t in self.tensors.items()} | self.constants
        values["input"] = np.asarray(x, float)
        for kind, inputs, output, attributes in self.nodes:
            values[output] = OPERATORS[kind](*(values[i] if i else None for i in inputs), **attributes)
        return values[self.outputs[0][0]]


def windows(x, kernel_shape, strides, pads, dilations=(1, 1), fill=0.0):
    """[n, c, h, w, kh, kw]"""
    x = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])), constant_values=fill)
    reach = [d * (k - 1) + 1 for k, d in zip(kernel_shape, dilations)]
    view = np.lib.stride_tricks.sliding_window_view(x, reach, axis=(2, 3))
    return view[:, :, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]]


def conv(x, weight, bias=None, *, kernel_shape, strides, pads, dilations, group):
    assert list(weight.shape[2:]) == kernel_shape
    view = windows(x, kernel_shape, strides, pads, dilations)
    out = [np.einsum("nchwij,ocij->nohw", v, w)
           for v, w in zip(np.split(view, group, axis=1), np.split(weight, group, axis=0))]
    out = np.concatenate(out, axis=1)
    return out if bias is None else out + bias[:, None, None]


def gemm(x, weight, bias=0.0, *, transB):
    assert transB == 1
    return x @ weight.T + bias


def maxpool(x, **window):
    return windows(x, **window, fill=-np.inf).max(axis=(4, 5))


def avgpool(x, *, count_include_pad, **window):
    assert count_include_pad == 1
    return windows(x, **window).mean(axis=(4, 5))


def layernorm(x, weight, bias, *, axis, epsilon):
    axes = tuple(range(axis, x.ndim))
    assert weight.shape == x.shape[axis:]
    mean = x.mean(axis=axes, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(axis=axes, keepdims=True) + epsilon) * weight + bias


def instancenorm(x, scale, bias, *, epsilon):
    shape = (1, -1) + (1,) * (x.ndim - 2)
    axes = tuple(range(2, x.ndim))
    normal = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)
    return normal * scale.reshape(shape) + bias.reshape(shape)


def reshape(x, shape):
    return x.reshape([x.shape[k] if n == 0 else n for k, n in enumerate(shape)])


def prelu(x, slope):
    assert np.broadcast_shapes(x.shape, slope.shape) == x.shape
    return np.where(x < 0, slope * x, x)


def resize(x, roi, scales, mode="nearest"):
    """What Resize does where nothing else is said: half pixels; nearest: halves down."""
    assert roi is None and mode in ("nearest", "linear")
    for axis, scale in enumerate(scales):
        size = x.shape[axis]
        at = (np.arange(int(size * scale)) + 0.5) / scale - 0.5
        if mode == "nearest":
            x = x.take(np.ceil(at - 0.5).astype(int), axis)
            continue
        low = np.floor(at).astype(int)
        share = (at - low).reshape(-1, *(1,) * (x.ndim - axis - 1))
        x = x.take(low.clip(0, size - 1), axis) * (1 - share) + x.take((low + 1).clip(0, size - 1), axis) * share
    return x


def batchnorm(x, weight, bias, mean, variance, *, epsilon, momentum):
    assert 0 <= momentum <= 1
    weight, bias, mean, variance = (t.reshape(-1, *(1,) * (x.ndim - 2)) for t in (weight, bias, mean, variance))
    return (x - mean) / np.sqrt(variance + epsilon) * weight + bias


def softmax(x, *, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


OPERATORS = {
    "BatchNormalization": batchnorm,
    "Conv": conv,
    "Gemm": gemm,
    "MaxPool": maxpool,
    "AveragePool": avgpool,
    "GlobalAveragePool": lambda x: x.mean(axis=(2, 3), keepdims=True),
    "Flatten": lambda x, axis: x.reshape(len(x), -1),
    "LayerNormalization": layernorm,
    "InstanceNormalization": instancenorm,
    "Reshape": reshape,
    "PRelu": prelu,
    "Resize": resize,
    "MatMul": np.matmul,
    "Relu": lambda x: np.maximum(x, 0),
    "LeakyRelu": lambda x, alpha: np.where(x < 0, alpha * x, x),
    "Elu": lambda x, alpha: np.where(x < 0, alpha * np.expm1(x), x),
    "HardSwish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "Clip": np.clip,
    "Softplus": lambda x: np.logaddexp(x, 0),
    "Exp": np.exp,
    "Tanh": np.tanh,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Erf": np.vectorize(math.erf),
    "Add": np.add,
    "Mul": np.multiply,
    "Div": np.divide,
    "Sub": np.subtract,
    "Softmax": softmax,
    "Concat": lambda a, b, axis: np.concatenate((a, b), axis=axis),
}
