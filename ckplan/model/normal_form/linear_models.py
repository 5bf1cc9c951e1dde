"""Linear models of ai.onnx.ml, as skl2onnx writes those of scikit-learn, in operators of ONNX, so that they train.

LinearRegressor and LinearClassifier hold their coefficients as attributes. Here these are initializers
``NODE/coefficients``, ``[features, results]``, and ``NODE/intercepts``. A Scaler in front is fitted, not trained, an
ArrayFeatureExtractor takes columns as a Gather does, an Imputer chooses as a Where does, a Binarizer compares, and a
Normalizer behind is one of ONNX's. What has no counterpart there stays as it is, and is refused later where something
before it trains.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan.keys import STANDS_FOR
from ckplan.model.constants import add_constant, add_initializer, unused_name
from ckplan.model.torch_files.detached import mark

_DOMAIN = "ai.onnx.ml"
_ACTIVATIONS: dict[str, tuple[str, dict[str, int]] | None] = {
    "NONE": None,
    "LOGISTIC": ("Sigmoid", {}),
    "SOFTMAX": ("Softmax", {"axis": 1}),
}
"""What is made of the results, by the names in ai.onnx.ml."""
_NORMS = {"L1": 1, "L2": 2}
_KINDS = {
    "ArgMax": ir.DataType.INT64,
    "Equal": ir.DataType.BOOL,
    "Greater": ir.DataType.BOOL,
    "IsNaN": ir.DataType.BOOL,
    "Reshape": ir.DataType.INT64,
}
"""What nodes make that is not in single precision; Gather makes what it reads."""
_OPSET = 13
"""Of a model that imports none of ONNX's."""


def write_linear_models(model: ir.Model) -> tuple[str, ...]:
    """Write linear models in operators of ONNX, in place.

    Returns:
        Notes.
    """
    graph = model.graph
    written = []
    for node in list(graph):
        results = _WRITERS[node.op_type](graph, node) if node.domain == _DOMAIN and node.op_type in _WRITERS else None
        if results is None:
            continue
        for output, result in zip(node.outputs, results, strict=True):
            name = output.name
            ir.convenience.replace_all_uses_with(output, result, replace_graph_outputs=True)
            output.name, result.name = None, name
        graph.remove(node, safe=True)
        if "ai.onnx" not in graph.opset_imports:
            graph.opset_imports.setdefault("", _OPSET)
        written += [f"{node.op_type} '{node.name}'"] if node.op_type.startswith("Linear") else []
    if not written:
        return ()
    return (f"{', '.join(written)}: written in operators of ONNX, and the coefficients are parameters",)


def _regressor(graph: ir.Graph, node: ir.Node) -> list[ir.Value] | None:
    made = _linear(graph, node, node.attributes.get_int("targets", 1))
    return None if made is None else [made[1]]


def _classifier(graph: ir.Graph, node: ir.Node) -> list[ir.Value] | None:
    """The label of the largest score, and the scores."""
    integers, texts = node.attributes.get("classlabels_ints"), node.attributes.get("classlabels_strings")
    labels: ir.TensorProtocol | None = None
    if integers is not None:
        labels = ir.tensor(np.array(integers.as_ints(), np.int64))
    elif texts is not None:
        labels = ir.StringTensor([text.encode() for text in texts.as_strings()], shape=ir.Shape([len(texts.value)]))
    made = None if labels is None else _linear(graph, node, labels.size)
    if made is None or labels is None:
        return None
    names = add_initializer(graph, unused_name(graph, f"{_name(node)}/labels"), labels)
    best = _put(graph, node, "ArgMax", [made[0]], {"axis": 1, "keepdims": 0})
    return [_put(graph, node, "Gather", [names, best]), made[1]]


def _linear(graph: ir.Graph, node: ir.Node, results: int) -> tuple[ir.Value, ir.Value] | None:
    """Products with coefficients, plus intercepts: as they are, and what is made of them; None if that is not known."""
    coefficients = np.array(node.attributes.get_floats("coefficients", ()), np.float32)
    intercepts = np.array(node.attributes.get_floats("intercepts", ()), np.float32)
    after = node.attributes.get_string("post_transform", "NONE")
    whole = results > 0 and coefficients.size > 0 and coefficients.size % results == 0
    if not whole or intercepts.size not in (0, results) or after not in _ACTIVATIONS:
        return None
    # Of one row for two classes, the other class is made by rules of its own.
    weight = _parameter(graph, node, "coefficients", np.ascontiguousarray(coefficients.reshape(results, -1).T))
    raw = _put(graph, node, "MatMul", [_floats(graph, node), weight])
    if intercepts.size:
        raw = _put(graph, node, "Add", [raw, _parameter(graph, node, "intercepts", intercepts)])
    activation = _ACTIVATIONS[after]
    return raw, raw if activation is None else _put(graph, node, activation[0], [raw], activation[1])


def _scaler(graph: ir.Graph, node: ir.Node) -> list[ir.Value] | None:
    offset, scale = (np.array(node.attributes.get_floats(name, ()), np.float32) for name in ("offset", "scale"))
    if not offset.size or not scale.size:
        return None
    shift, factor = (
        add_constant(graph, f"{_name(node)}/{n}", a, "fitted") for n, a in (("offset", offset), ("scale", scale))
    )
    return [_put(graph, node, "Mul", [_put(graph, node, "Sub", [_floats(graph, node), shift]), factor])]


def _normalizer(graph: ir.Graph, node: ir.Node) -> list[ir.Value] | None:
    """Division by a norm of each row; probabilities of a Softmax have one already."""
    norm = node.attributes.get_string("norm", "MAX")
    read = node.inputs[0]
    if norm not in _NORMS or read is None:
        return None
    made = read.producer()
    if norm == "L1" and made is not None and made.op_type == "Softmax":
        return [_put(graph, node, "Identity", [read])]
    return [_put(graph, node, "LpNormalization", [_floats(graph, node)], {"axis": 1, "p": _NORMS[norm]})]


def _extractor(graph: ir.Graph, node: ir.Node) -> list[ir.Value] | None:
    """Some columns, by their numbers; of a vector onnxruntime makes a matrix of one row, which is left to it."""
    read, columns = node.inputs
    if read is None or columns is None or (read.shape is not None and len(read.shape) == 1):
        return None
    flat = _put(graph, node, "Reshape", [columns, add_constant(graph, f"{_name(node)}/flat", np.array([-1]), "shape")])
    return [_put(graph, node, "Gather", [read, flat], {"axis": -1})]


def _imputer(graph: ir.Graph, node: ir.Node) -> list[ir.Value] | None:
    """A number in the place of each that is missing, one for all or one a column; of whole numbers it is left.

    It is fitted, as a Scaler is, and no gradient goes through it: behind NaN there would be none but NaN.
    """
    imputed = np.array(node.attributes.get_floats("imputed_value_floats", ()), np.float32)
    if not imputed.size:
        return None
    read = _floats(graph, node)
    replaced = np.array(node.attributes.get_float("replaced_value_float", 0.0), np.float32)
    if np.isnan(replaced):
        missing = _put(graph, node, "IsNaN", [read])
    else:
        missing = _put(graph, node, "Equal", [read, add_constant(graph, f"{_name(node)}/replaced", replaced, "fitted")])
    filling = add_constant(
        graph, f"{_name(node)}/imputed", imputed if imputed.size > 1 else imputed.reshape(()), "fitted"
    )
    chosen = _put(graph, node, "Where", [missing, filling, read])
    maker = chosen.producer()
    assert maker is not None
    mark(maker, [2])  # what is missing there has no gradient, nor has what it was made of
    return [chosen]


def _binarizer(graph: ir.Graph, node: ir.Node) -> list[ir.Value]:
    """One where a number is above the threshold, else zero: steps, through which no gradient goes."""
    threshold = np.array(node.attributes.get_float("threshold", 0.0), np.float32)
    level = add_constant(graph, f"{_name(node)}/threshold", threshold, "fitted")
    above = _put(graph, node, "Greater", [_floats(graph, node), level])
    return [_put(graph, node, "Cast", [above], {"to": int(ir.DataType.FLOAT)})]


_WRITERS = {
    "ArrayFeatureExtractor": _extractor,
    "Binarizer": _binarizer,
    "Imputer": _imputer,
    "LinearClassifier": _classifier,
    "LinearRegressor": _regressor,
    "Normalizer": _normalizer,
    "Scaler": _scaler,
}
"""What is written in operators of ONNX, by its name in ai.onnx.ml: each gives the results, or None to leave a node."""


def _name(node: ir.Node) -> str:
    return node.name or node.op_type


def _floats(graph: ir.Graph, node: ir.Node) -> ir.Value:
    """What a node reads, in single precision: it takes integers and doubles as well."""
    read = node.inputs[0]
    assert read is not None
    if read.dtype == ir.DataType.FLOAT:
        return read
    return _put(graph, node, "Cast", [read], {"to": int(ir.DataType.FLOAT)})


def _parameter(graph: ir.Graph, node: ir.Node, title: str, array: np.ndarray) -> ir.Value:
    name = unused_name(graph, f"{_name(node)}/{title}")
    value = add_initializer(graph, name, ir.tensor(array, name=name))
    value.metadata_props[STANDS_FOR] = name
    return value


def _put(
    graph: ir.Graph, before: ir.Node, op_type: str, inputs: list[ir.Value], attributes: dict[str, int] | None = None
) -> ir.Value:
    """Put a node before another one and return what it makes, in single precision but for places and labels."""
    node = ir.node(op_type, inputs, attributes or {}, name=f"{_name(before)}/{op_type}")
    result = node.outputs[0]
    result.name = unused_name(graph, f"{_name(before)}/{op_type}_out")
    kind = inputs[0].dtype if op_type == "Gather" else _KINDS.get(op_type, ir.DataType.FLOAT)
    result.type = None if kind is None else ir.TensorType(kind)
    graph.insert_before(before, node)
    return result
