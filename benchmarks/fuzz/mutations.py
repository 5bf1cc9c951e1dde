"""Ways to damage files: letter by letter, and by what the file means."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from ckplan import keys

EVIL = "\n::error file=x::pwned\r\n##[error]\x1b]0;pwned\x07\x1b[31m\u009b\u202e[/bold]<script>"
"""A name that tries the terminal, the CI's log and the page."""

NUMBERS = (0, -1, 1, 2, 3, 7, -7, 1 << 31, (1 << 31) - 1, 1 << 40, 1 << 62, -(1 << 62), (1 << 63) - 1, -(1 << 63))
TEXTS = ("", EVIL, "\0", "1e999", "NaN", "../../etc/passwd", "é" * 300, "9" * 400, "-" * 2000, "a" * 70_000)
VALUES: tuple[Any, ...] = (None, True, [], {}, [[]], {"a": [None]}, float("inf"), float("nan"), 0.5, *NUMBERS, *TEXTS)


def mutant(name: str, content: bytes, rng: random.Random) -> bytes:
    """A damaged copy of a file.

    Args:
        name: its name, whose ending says what it holds.
        content: its bytes.
        rng: where the damage comes from.
    """
    if rng.random() < 0.2:
        return _letters(content, rng)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if name.endswith(".onnx"):
            content = _model(content, rng)
        elif name.endswith(".json"):
            content = _json(content, rng)
        elif name.endswith(".toml"):
            content = _toml(content, rng)
        else:
            content = _letters(content, rng)
    return content


def _letters(content: bytes, rng: random.Random) -> bytes:
    """Bits flipped, pieces cut out, doubled, or put in the place of others."""
    made = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        if not made:
            break
        at, length = rng.randrange(len(made)), rng.choice((1, 1, 4, 16, 256))
        match rng.randrange(6):
            case 0:
                made[at] ^= 1 << rng.randrange(8)
            case 1:
                made[at] = rng.choice((0, 1, 127, 128, 255))
            case 2:
                del made[at : at + length]
            case 3:
                made[at:at] = made[at : at + length] * rng.choice((1, 2, 50))
            case 4:
                made[at : at + length] = rng.randbytes(length)
            case 5:
                del made[at:]
    return bytes(made)


def _json(content: bytes, rng: random.Random) -> bytes:
    """One value, anywhere in the tree, replaced, removed or doubled."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        return _letters(content, rng)
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        for key, inner in (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        ):
            places.append((value, key))
            walk(inner)

    walk(data)
    if not places or rng.random() < 0.03:
        return json.dumps(rng.choice(VALUES)).encode("utf-8", "surrogatepass")
    holder, key = rng.choice(places)
    match rng.randrange(4):
        case 0 | 1:
            holder[key] = rng.choice(VALUES)
        case 2:
            del holder[key]
        case 3 if isinstance(holder, list):
            holder[key:key] = [holder[key]] * rng.choice((1, 2, 2000))
        case _:
            holder[key] = [[holder[key]]]
    text = json.dumps(data)
    if rng.random() < 0.03:
        text = text.replace("{", '{"a":' + "[" * 5000, 1)
    return text.encode("utf-8", "surrogatepass")


def _toml(content: bytes, rng: random.Random) -> bytes:
    """One word or value replaced by another."""
    text = content.decode("utf-8", "replace")
    words = list(re.finditer(r'"[^"]*"|[\w.%-]+', text))
    if not words:
        return content
    word = rng.choice(words)
    other = rng.choice((json.dumps(rng.choice(TEXTS)), str(rng.choice(NUMBERS)), "[]", "{}", "nan", "inf", "true", ""))
    return (text[: word.start()] + other + text[word.end() :]).encode("utf-8", "replace")


def _model(content: bytes, rng: random.Random) -> bytes:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except DecodeError:
        return _letters(content, rng)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        graphs = _graphs(proto.graph)
        try:
            rng.choice(_CHANGES)(proto, rng.choice(graphs), rng)
        except (IndexError, ValueError):  # there is no such thing in this graph, or protobuf does not hold the value
            continue
    return proto.SerializeToString()


def _graphs(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    """A graph and all that are nested in it."""
    found = [graph]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found += _graphs(attribute.g)
    return found


def _attribute(proto: onnx.ModelProto, graph: onnx.GraphProto, rng: random.Random) -> None:
    attribute = rng.choice(rng.choice([node for node in graph.node if node.attribute]).attribute)
    match rng.randrange(5):
        case 0:
            attribute.i = rng.choice(NUMBERS)
        case 1 if attribute.ints:
            attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(NUMBERS)
        case 2:
            attribute.ints.extend([rng.choice(NUMBERS)] * rng.choice((1, 5)))
        case 3:
            attribute.type = rng.choice((0, 1, 2, 3, 4, 5, 7, 99))
        case _:
            attribute.name = rng.choice(("axis", "to", "group", EVIL, ""))


def _new_attribute(proto: onnx.ModelProto, graph: onnx.GraphProto, rng: random.Random) -> None:
    name = rng.choice(("axis", "axes", "to", "group", "pads", "strides", "keepdims", "perm", "epsilon", "alpha"))
    made: Any = rng.choice((rng.choice(NUMBERS), [rng.choice(NUMBERS)] * 2, 1e38, EVIL))
    rng.choice(graph.node).attribute.append(onnx.helper.make_attribute(name, made))


def _drop_attributes(proto: onnx.ModelProto, graph: onnx.GraphProto, rng: random.Random) -> None:
    del rng.choice([node for node in graph.node if node.attribute]).attribute[:]


def _operator(proto: onnx.ModelProto, graph: onnx.GraphProto, rng: random.Random) -> None:
    node = rng.choice(graph.node)
    schemas = onnx.defs.get_all_schemas()
    node.op_type = rng.choice((rng.choice(schemas).name, rng.choice(schemas).name, EVIL, ""))
    if rng.random() < 0.1:
        node.domain = rng.choice(("com.microsoft", "ai.onnx.ml", EVIL, "pkg.ckplan"))


def _wiring(proto: onnx.ModelProto, graph: onnx.GraphProto, rng: random.Random) -> None:
    names = [*(name for node in graph.node for name in node.output), *(tensor.name for tensor in graph.initializer), ""]
    node = rng.choice([node for node in graph.node if node.input])
    node.input[rng.randrange(len(node.input))] = rng.choice(names)


def _inputs(proto: onnx.ModelProto, graph: onnx.GraphProto, rng: random.Random) -> None:
    node = rng.choice(graph.node)
    ends = rng.choice((node.input, node.output))
    if rng.random() < 0.5:
        del ends[rng.randrange(len(ends)) :]
    else:
        ends.extend([rng.choice((*ends, "more"))] * rng.choice((1, 30)))


def _nodes(proto: onnx.ModelProto, graph: onnx.GraphProto, rng: random.Random) -> None:
    match rng.randrange(3):
        case 0:
            del graph.node[rng.randrange(len(graph.node))]
        case 1:
            graph.node.append(rng.choice(graph.node))
        case _:
            nodes = list(graph.node)
            rng.shuffle(nodes)
            del graph.node[:]
            graph.node.extend(nodes)


def _dims(proto: onnx.ModelProto, graph: onnx.GraphProto, rng: random.Random) -> None:
    tensor = rng.choice(graph.initializer)
    if rng.random() < 0.5 and tensor.dims:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(NUMBERS)
    else:
        tensor.dims.append(rng.choice(NUMBERS))


def _data(proto: onnx.ModelProto, graph: onnx.GraphProto, rng: random.Random) -> None:
    tensor = rng.choice(graph.initializer)
    match rng.randrange(4):
        case 0:
            tensor.raw_data = _letters(tensor.raw_data, rng)
        case 1:
            tensor.data_type = rng.randrange(30)
        case 2:
            tensor.int64_data.extend([rng.choice(NUMBERS)])
        case _:
            tensor.raw_data = rng.randbytes(len(tensor.raw_data))


def _size(proto: onnx.ModelProto, graph: onnx.GraphProto, rng: random.Random) -> None:
    shape = rng.choice((*graph.input, *graph.output)).type.tensor_type.shape
    dim = rng.choice(shape.dim) if shape.dim and rng.random() < 0.8 else shape.dim.add()
    if rng.random() < 0.5:
        dim.dim_value = rng.choice(NUMBERS)
    else:
        dim.dim_param = rng.choice((*TEXTS, "+".join(["1"] * 30_000), "batch*2", "1/0", "batch-9"))


def _type(proto: onnx.ModelProto, graph: onnx.GraphProto, rng: random.Random) -> None:
    ends = rng.choice((*graph.input, *graph.output))
    if rng.random() < 0.3:
        ends.ClearField("type")
    else:
        ends.type.tensor_type.elem_type = rng.randrange(30)


def _ends(proto: onnx.ModelProto, graph: onnx.GraphProto, rng: random.Random) -> None:
    ends = rng.choice((graph.input, graph.output))
    if rng.random() < 0.5:
        del ends[rng.randrange(len(ends))]
    else:
        ends.append(rng.choice((*graph.input, *graph.output)))


def _names(proto: onnx.ModelProto, graph: onnx.GraphProto, rng: random.Random) -> None:
    """All names of a graph get the same hostile beginning, so that it stays valid."""

    def renamed(names: Any) -> None:
        names[:] = [EVIL + name if name else name for name in names]

    for graph in _graphs(proto.graph):
        for node in graph.node:
            node.name = EVIL + node.name
            for ends in (node.input, node.output):
                renamed(ends)
        for named in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
            named.name = EVIL + named.name


def _versions(proto: onnx.ModelProto, graph: onnx.GraphProto, rng: random.Random) -> None:
    match rng.randrange(4):
        case 0:
            proto.ir_version = rng.choice(NUMBERS)
        case 1:
            rng.choice(proto.opset_import).version = rng.choice((*range(30), *NUMBERS))
        case 2:
            del proto.opset_import[:]
        case _:
            proto.opset_import.add(domain=rng.choice(("", EVIL)), version=rng.choice(NUMBERS))


def _metadata(proto: onnx.ModelProto, graph: onnx.GraphProto, rng: random.Random) -> None:
    properties = rng.choice((proto.metadata_props, *(node.metadata_props for node in graph.node)))
    if properties and rng.random() < 0.7:
        entry = rng.choice(properties)
        entry.value = rng.choice((*TEXTS, _json(entry.value.encode(), rng).decode("utf-8", "replace")))
    else:
        nodes = [node.name for node in graph.node]
        told = (*TEXTS, "{}", "[]", "[1]", "5", "[" * 5000, "control", "recompute", *nodes)
        properties.add(key=rng.choice(_KEYS), value=rng.choice(told))


def _alike(proto: onnx.ModelProto, graph: onnx.GraphProto, rng: random.Random) -> None:
    """Another operator of as many inputs, so that most of what is made stays valid and gets far."""
    node = rng.choice([node for node in graph.node if node.op_type in _UNARY or node.op_type in _BINARY])
    node.op_type = rng.choice(_UNARY if node.op_type in _UNARY else _BINARY)


def _extremes(proto: onnx.ModelProto, graph: onnx.GraphProto, rng: random.Random) -> None:
    """Numbers at the ends of what a float can be, in a weight that stays as long as it is."""
    tensor = rng.choice([tensor for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT])
    array = np.frombuffer(tensor.raw_data, np.float32).copy()
    array[rng.randrange(len(array)) :: rng.choice((1, 3, len(array)))] = rng.choice(_FLOATS)
    tensor.raw_data = array.tobytes()


def _same_names(proto: onnx.ModelProto, graph: onnx.GraphProto, rng: random.Random) -> None:
    """Nodes may bear one name, or none."""
    name = rng.choice(("", "same", rng.choice(graph.node).name, EVIL))
    for node in rng.sample(list(graph.node), rng.randrange(1, len(graph.node) + 1)):
        node.name = name


def _outputs(proto: onnx.ModelProto, graph: onnx.GraphProto, rng: random.Random) -> None:
    """Any value can be an output of the model."""
    value = rng.choice(rng.choice(graph.node).output)
    graph.output.append(onnx.helper.make_tensor_value_info(value, rng.choice((1, 7)), None))


def _external(proto: onnx.ModelProto, graph: onnx.GraphProto, rng: random.Random) -> None:
    tensor = rng.choice(graph.initializer)
    if tensor.external_data and rng.random() < 0.8:
        entry = rng.choice(tensor.external_data)
        entry.value = rng.choice((*TEXTS, *map(str, NUMBERS), ".", "/dev/zero", "/dev/stdin"))
    else:
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key=rng.choice(("location", "offset", "length")), value=str(rng.choice(NUMBERS)))


_KEYS = [key for name, key in vars(keys).items() if name.isupper() and isinstance(key, str) and key != keys.PREFIX]
_UNARY = ("Tanh", "Relu", "Sigmoid", "Identity", "Abs", "Exp", "Log", "Sqrt", "Reciprocal", "Neg", "Softplus", "Floor")
_UNARY += ("Softmax", "Not", "Shape", "NonZero", "Dropout", "Erf", "Gelu", "Sign", "Round", "IsNaN", "Flatten")
_BINARY = ("MatMul", "Add", "Mul", "Sub", "Div", "Pow", "Max", "PRelu", "Mod", "Less", "Gemm", "Expand", "Reshape")
_FLOATS = (0.0, -0.0, 1e-45, 3.4e38, -3.4e38, float("inf"), float("-inf"), float("nan"), 1e30)

_CHANGES: tuple[Callable[[onnx.ModelProto, onnx.GraphProto, random.Random], None], ...] = (
    _attribute,
    _new_attribute,
    _drop_attributes,
    _operator,
    _operator,
    _wiring,
    _inputs,
    _nodes,
    _dims,
    _data,
    _size,
    _type,
    _ends,
    _names,
    _versions,
    _metadata,
    _external,
    _alike,
    _alike,
    _alike,
    _extremes,
    _same_names,
    _outputs,
)
