"""From a test case to a gradient case: floats become parameters, a random projection of the outputs the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ckplan.autodiff.registry import lookup
from tests.node_cases.cases import FLOATS, Case, is_float_type
from tests.node_cases.functions import Function, agree, by_onnxruntime, by_reference, known_to_runtime
from tests.node_cases.retype import in_type, retyped

LOSS = "projection_of_outputs"

_HUGE = 1e8

_WHERE = 9
"""The operator set that Where came with."""

_SETTINGS = {("QuantizeLinear", 1), ("DequantizeLinear", 1), ("Upsample", 1)}
"""Inputs that are not trained with a model, of operators without a rule of their own."""


class Unusable(Exception):
    """Raised for a case that cannot be made a gradient case; says why."""


class NoFloats(Unusable):
    """Raised for a case that has no float to differentiate, or by none; an empty list of tensors has none."""


@dataclass(frozen=True)
class Prepared:
    """A gradient case.

    Attributes:
        model: every input is an initializer; the only output is the loss. In the widest type the operators allow.
        parameters: the floating inputs, by name, in float64.
        hyperparameters: names of those among the parameters that are only read where a rule promises no gradient.
        function: computes the loss from the parameters, in float64 if it can.
        exact: whether it does so in float64.
        how: who computes the function: ``reference`` or ``onnxruntime``.
        in_runtime: a function from the model in its own types by onnxruntime, to ask where the two are of two minds.
    """

    model: onnx.ModelProto
    parameters: dict[str, np.ndarray]
    hyperparameters: frozenset[str]
    function: Function
    exact: bool
    how: str
    in_runtime: Callable[[], Function]


def prepare(case: Case) -> Prepared:
    """Make a gradient case.

    Raises:
        NoFloats: there is nothing to differentiate.
        Unusable: nobody can compute the forward model as onnx expects it.
    """
    flat = _with_tensors_only(case)
    feeds = dict(zip([value.name for value in flat.model.graph.input], flat.inputs, strict=True))
    feeds = {name: _finite(value) for name, value in feeds.items()}
    finite = all(_is_finite(value) for value in flat.inputs)
    wide = known_to_runtime(retyped(flat.model, TensorProto.DOUBLE))
    doubles = {name: in_type(value, TensorProto.DOUBLE) for name, value in feeds.items()}
    how, exact, outputs = _forward(case, flat, wide, feeds, doubles, finite)
    weighed = _with_loss(wide if exact else flat.model, outputs)
    weights = {t.name: numpy_helper.to_array(t) for t in flat.model.graph.initializer if t.data_type in FLOATS}
    parameters = {name: array for name, array in doubles.items() if _is_float(array)}
    parameters.update({name: in_type(array, TensorProto.DOUBLE) for name, array in weights.items()})
    if not parameters:
        raise NoFloats
    kind = _widest(flat.model)
    typed = known_to_runtime(_with_loss(retyped(flat.model, kind) if kind else flat.model, outputs))
    loss = _loss_of(weighed, doubles if exact else feeds, how)
    return Prepared(
        _closed(typed, {name: in_type(value, kind) if kind else value for name, value in feeds.items()}),
        parameters,
        frozenset(name for name in parameters if _only_fixed(flat.model, name)),
        loss,
        exact,
        how,
        lambda: _loss_of(_with_loss(flat.model, outputs), feeds, "onnxruntime"),
    )


_FLOATS = frozenset(helper.tensor_dtype_to_np_dtype(kind) for kind in FLOATS)


def _is_float(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype in _FLOATS


def _is_finite(value: Any) -> bool:
    return not _is_float(value) or bool(_ordinary(value).all())


def _ordinary(value: np.ndarray) -> np.ndarray:
    """Where an array is neither infinite nor NaN nor what uninitialised memory looks like."""
    wide = value.astype(np.float64)
    with np.errstate(all="ignore"):
        return np.isfinite(wide) & (np.abs(wide) < _HUGE) & ((wide == 0) | (np.abs(wide) > 1 / _HUGE**2))


def _finite(value: Any) -> Any:
    """Put ordinary numbers in the place of others, near which nothing has a slope."""
    if _is_finite(value):
        return value
    filler = np.random.default_rng(5).uniform(-2, 2, value.shape)
    return np.where(_ordinary(value), value, filler).astype(value.dtype)


def _forward(
    case: Case,
    flat: Case,
    wide: onnx.ModelProto,
    feeds: Mapping[str, Any],
    doubles: Mapping[str, Any],
    finite: bool,
) -> tuple[str, bool, list[Any]]:
    """Find who computes the model as onnx expects it; return also whether in float64, and the outputs."""
    narrow = any(tensor.type.tensor_type.elem_type in (TensorProto.FLOAT16, TensorProto.BFLOAT16)
                 for tensor in (*flat.model.graph.input, *flat.model.graph.output))  # fmt: skip
    rtol, atol = (2e-2, 1e-2) if narrow else (1e-3, 1e-4)
    problems = []
    for how, make, model, given, exact in (
        ("reference", by_reference, wide, doubles, True),
        ("onnxruntime", by_onnxruntime, wide, doubles, True),
        ("reference", by_reference, flat.model, feeds, False),
        ("onnxruntime", by_onnxruntime, flat.model, feeds, False),
    ):
        try:
            function = make(model)
            outputs = function(given)
            if exact and not all(_is_double(output) for output in outputs):
                problems.append(f"{how}: not in float64")
                continue
            if finite and not agree(outputs, flat.outputs, rtol, atol):
                problems.append(f"{how}: not what onnx expects")
                continue
            if not agree(function(given), outputs, 0.0, 0.0):
                raise Unusable("random: two runs differ")
        except Unusable:
            raise
        except Exception as error:  # each of them has its own kinds
            problems.append(f"{how}: {' '.join(str(error).split())[:80] or type(error).__name__}")
            continue
        return how, exact, outputs
    raise Unusable("nobody computes the forward model as expected (" + "; ".join(dict.fromkeys(problems)) + ")")


def _is_double(output: Any) -> bool:
    if isinstance(output, list):
        return all(_is_double(item) for item in output)
    return output is None or np.asarray(output).dtype.kind != "f" or np.asarray(output).dtype == np.float64


def _widest(model: onnx.ModelProto) -> int:
    """The widest element type in which the model is valid; 0 if only as it is."""
    for kind in (TensorProto.DOUBLE, TensorProto.FLOAT):
        try:
            copy = retyped(model, kind)
            onnx.checker.check_model(copy)
            onnx.shape_inference.infer_shapes(copy, check_type=True, strict_mode=True)
        except Exception:  # the checker and inference have kinds of their own
            continue
        return kind
    return 0


def _with_tensors_only(case: Case) -> Case:
    """Take sequences and optionals apart at the borders of the graph, name what has no name, fix the sizes."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.ir_version = min(model.ir_version, 10)
    graph = model.graph
    if not any(entry.domain in ("", "ai.onnx") for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid("", 21))
    own = {tensor.name for tensor in graph.initializer}
    fed = [value for value in graph.input if value.name not in own]
    nodes: list[onnx.NodeProto] = []
    inputs: list[onnx.ValueInfoProto] = []
    arrays: list[Any] = []
    for value, given in zip(fed, case.inputs, strict=True):
        if value.type.HasField("tensor_type"):
            array = np.asarray(given)
            kind = value.type.tensor_type.elem_type
            inputs.append(helper.make_tensor_value_info(value.name, kind, array.shape))
            arrays.append(array)
            continue
        optional = value.type.HasField("optional_type")
        inner = value.type.optional_type.elem_type if optional else value.type
        if given is None:
            nodes.append(helper.make_node("Optional", [], [value.name], type=inner))
            continue
        listed = given if isinstance(given, list) else [given]
        names = [f"{value.name}_item{index}" for index in range(len(listed))]
        for name, item in zip(names, listed, strict=True):
            array = np.asarray(item)
            inputs.append(
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            )
            arrays.append(array)
        made = names[0] if names else ""
        if inner.HasField("sequence_type"):
            made = f"{value.name}_list" if optional else value.name
            if names:
                nodes.append(helper.make_node("SequenceConstruct", names, [made]))
            else:
                element = inner.sequence_type.elem_type.tensor_type.elem_type
                nodes.append(helper.make_node("SequenceEmpty", [], [made], dtype=element))
        if optional:
            nodes.append(helper.make_node("Optional", [made], [value.name]))
    kept = [*nodes, *graph.node]
    del graph.node[:]
    graph.node.extend(kept)
    del graph.input[:]
    graph.input.extend(inputs)
    return Case(case.name, case.kind, model, arrays, case.outputs)


def _with_loss(model: onnx.ModelProto, outputs: Sequence[Any]) -> onnx.ModelProto:
    """Append the sum of all floating outputs, each multiplied by fixed random numbers, as the only output."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    version = max(entry.version for entry in copy.opset_import if entry.domain in ("", "ai.onnx"))
    rng = np.random.default_rng(1)
    parts: list[str] = []
    kinds: list[int] = []

    def weigh(name: str, array: np.ndarray, kind: int) -> None:
        weight = rng.uniform(0.5, 1.5, array.shape) * rng.choice([-1.0, 1.0], array.shape)
        tensor = numpy_helper.from_array(weight.astype(helper.tensor_dtype_to_np_dtype(kind)), f"weight_of_{name}")
        # In a Constant, so that it is no parameter even where every initializer is one.
        graph.node.append(helper.make_node("Constant", [], [tensor.name], value=tensor))
        source, finite = name, ~np.isinf(array.astype(np.float64))
        if not finite.all() and version >= _WHERE:  # such as what a mask hides: it is infinite whatever the inputs are
            none = np.zeros((), helper.tensor_dtype_to_np_dtype(kind))
            for key, value in (("finite", finite), ("none", none)):
                given = numpy_helper.from_array(value, f"{key}_of_{name}")
                graph.node.append(helper.make_node("Constant", [], [given.name], value=given))
            source = f"kept_{name}"
            graph.node.append(helper.make_node("Where", [f"finite_of_{name}", name, f"none_of_{name}"], [source]))
        graph.node.append(helper.make_node("Mul", [source, tensor.name], [f"weighed_{name}"]))
        graph.node.append(helper.make_node("ReduceSum", [f"weighed_{name}"], [f"part_{name}"], keepdims=0))
        parts.append(f"part_{name}")
        kinds.append(kind)

    for value, output in zip(list(graph.output), outputs, strict=True):
        if not is_float_type(value.type) or output is None:
            continue
        name, kind = value.name, value.type
        if kind.HasField("optional_type"):
            graph.node.append(helper.make_node("OptionalGetElement", [name], [f"{name}_there"]))
            name, kind = f"{name}_there", kind.optional_type.elem_type
        if kind.HasField("sequence_type"):
            element = kind.sequence_type.elem_type.tensor_type.elem_type
            for index, item in enumerate(output):
                place = numpy_helper.from_array(np.asarray(index), f"{name}_{index}_place")
                graph.node.append(helper.make_node("Constant", [], [place.name], value=place))
                graph.node.append(helper.make_node("SequenceAt", [name, place.name], [f"{name}_{index}"]))
                weigh(f"{name}_{index}", np.asarray(item), element)
        else:
            weigh(name, np.asarray(output), kind.tensor_type.elem_type)
    if not parts:
        raise NoFloats
    widest = max(kinds, key=lambda kind: helper.tensor_dtype_to_np_dtype(kind).itemsize)
    for index, kind in enumerate(kinds):
        if kind != widest:
            graph.node.append(helper.make_node("Cast", [parts[index]], [f"{parts[index]}_cast"], to=widest))
            parts[index] += "_cast"
    graph.node.append(helper.make_node("Sum", parts, [LOSS]))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info(LOSS, widest, []))
    return copy


def _loss_of(model: onnx.ModelProto, fed: Mapping[str, Any], how: str) -> Function:
    """The loss as a function of the parameters, given by name in float64; a weight may be among them."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    types = {value.name: value.type.tensor_type.elem_type for value in copy.graph.input}
    for tensor in copy.graph.initializer:
        if tensor.data_type in FLOATS:
            types[tensor.name] = tensor.data_type
            copy.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    function = by_reference(copy) if how == "reference" else by_onnxruntime(copy)

    def loss(parameters: Mapping[str, Any]) -> list[Any]:
        moved = {name: in_type(array, types[name]) for name, array in parameters.items()}
        return function({**fed, **moved})

    return loss


def _closed(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> onnx.ModelProto:
    """Copy a model with its inputs turned to initializers."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.graph.initializer.extend(_to_tensor(array, name) for name, array in feeds.items())
    del copy.graph.input[:]
    return copy


def _to_tensor(array: np.ndarray, name: str) -> TensorProto:
    if array.dtype.kind in "OUS":
        return helper.make_tensor(name, TensorProto.STRING, array.shape, [str(item).encode() for item in array.flat])
    return numpy_helper.from_array(array, name)


def _only_fixed(model: onnx.ModelProto, name: str) -> bool:
    """Say whether a value is read only where a parameter gets no gradient, such as the limits of a Clip."""
    readers = [(node, index) for node in model.graph.node for index, read in enumerate(node.input) if read == name]
    for node, index in readers:
        if (node.op_type, index) in _SETTINGS:
            continue
        entry = lookup(node.op_type, onnx.defs.onnx_opset_version(), node.domain)
        if entry is None or index not in entry.fixed | entry.settings:
            return False
    return bool(readers)
