"""Checks gradients of small models three ways: by finite differences, by torch, and by running them in onnxruntime.

Float64 and onnx's reference evaluator decide what is right; onnxruntime has to agree in float32.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.reference
import onnx.reference.op_run
import onnx_ir as ir
import onnxruntime
from onnx.reference.ops import op_pad

from ckplan.autodiff import TrainingGraph, build_training_graph

Array = np.ndarray
OPSET = 21

_STEP = 1e-3


class Erf(onnx.reference.op_run.OpRun):
    """The error function in the precision of its argument; onnx's own goes through float32."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.vectorize(math.erf, otypes=[x.dtype])(x),)


class Gelu(onnx.reference.op_run.OpRun):
    """The exact form and the tanh approximation, in the precision of the argument."""

    op_domain = ""

    def _run(self, x: Array, approximate: str | None = None) -> tuple[Array]:
        if approximate == "tanh":
            return (0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),)
        return (0.5 * x * (1 + np.vectorize(math.erf, otypes=[x.dtype])(x / math.sqrt(2))),)


class GatherElements(onnx.reference.op_run.OpRun):
    """Along axes of any length; onnx's own goes through `np.choose`, which takes up to 32 in numpy 1, up to 64 in 2."""

    op_domain = ""

    def _run(self, data: Array, indices: Array, axis: int = 0) -> tuple[Array]:
        part = [slice(size) for size in indices.shape]
        part[axis] = slice(None)
        return (np.take_along_axis(data[tuple(part)], indices, axis),)


class LogSoftmax(onnx.reference.op_run.OpRun):
    """Without the infinities that the logarithm of a softmax has; opset 13 and later."""

    op_domain = ""

    def _run(self, x: Array, axis: int | None = None) -> tuple[Array]:
        axis = -1 if axis is None else axis
        shifted = x - x.max(axis=axis, keepdims=True, initial=-np.inf)
        return (shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)),)


class Pad(op_pad.Pad_18):
    """With negative pads, which onnx's own does not know although the operator does."""

    op_domain = ""

    def _run(self, data: Array, pads: Array, *rest: Array, axes: Array | None = None, mode: str | None = None) -> Any:
        value, chosen = (*rest, None, None)[:2]
        axes = chosen if axes is None else axes
        axes = range(data.ndim) if axes is None else [int(axis) % data.ndim for axis in axes]
        pads = np.asarray(pads)
        before, after = pads[: len(axes)], pads[len(axes) :]
        cut = [slice(None)] * data.ndim
        for axis, first, last in zip(axes, before, after, strict=True):
            cut[axis] = slice(max(-first, 0), data.shape[axis] + min(last, 0))
        return super()._run(data[tuple(cut)], np.maximum(pads, 0), value, np.asarray(list(axes)), mode=mode)


def evaluator(model: onnx.ModelProto) -> onnx.reference.ReferenceEvaluator:
    """The reference evaluator of onnx, in float64 where the model is."""
    return onnx.reference.ReferenceEvaluator(model, new_ops=[Erf, GatherElements, Gelu, LogSoftmax, Pad])


def values(*shape: int, seed: int = 0, low: float = -2.0, high: float = 2.0) -> Array:
    """Distinct numbers in random order, none of them near zero or near another: no kink is near."""
    count = int(np.prod(shape))
    rng = np.random.default_rng([seed, *shape])
    grid = np.linspace(low, high, 2 * count + 2)[1:-1:2] if count else np.zeros(0)
    return rng.permutation(grid).reshape(shape)


def node_model(
    op_type: str, *inputs: Array | None, outputs: int = 1, opset: int = OPSET, domain: str = "", **attributes: Any
) -> onnx.ModelProto:
    """A model of one node; floating inputs are parameters p0, p1, ... and the loss weighs all floating outputs."""
    names: list[str] = []
    initializers = []
    for index, array in enumerate(inputs):
        if array is None:
            names.append("")
            continue
        array = np.asarray(array)
        kind = "p" if array.dtype.kind == "f" else "c"
        names.append(f"{kind}{index}")
        initializers.append(onnx.numpy_helper.from_array(array, names[-1]))
    results = [f"y{index}" for index in range(outputs)]
    node = onnx.helper.make_node(op_type, names, results, name="node", domain=domain, **attributes)
    return weighed([node], initializers, results, opset)


def weighed(
    nodes: Sequence[onnx.NodeProto],
    initializers: Sequence[onnx.TensorProto],
    results: Sequence[str],
    opset: int = OPSET,
) -> onnx.ModelProto:
    """Complete nodes to a model whose loss is a random combination of the floating ones among the results."""
    imports = [onnx.helper.make_opsetid("", opset)]
    graph = onnx.helper.make_graph(
        list(nodes), "g", [], [onnx.helper.make_empty_tensor_value_info(name) for name in results], list(initializers)
    )
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)
    found = evaluator(model).run(None, {})
    rng = np.random.default_rng(1)
    del graph.output[:]
    parts = []
    for name, array in zip(results, found, strict=True):
        array = np.asarray(array)
        model.graph.value_info.append(
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        )
        if array.dtype.kind != "f":
            continue
        weight = rng.uniform(0.5, 1.5, array.shape).astype(array.dtype)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, f"weight_{name}"))
        model.graph.node.append(onnx.helper.make_node("Mul", [name, f"weight_{name}"], [f"weighed_{name}"]))
        model.graph.node.append(onnx.helper.make_node("ReduceSum", [f"weighed_{name}"], [f"part_{name}"], keepdims=0))
        parts.append(f"part_{name}")
    model.graph.node.append(onnx.helper.make_node("Sum", parts, ["loss"]))
    dtype = next(np.asarray(array).dtype for array in found if np.asarray(array).dtype.kind == "f")
    del model.graph.output[:]
    model.graph.output.append(
        onnx.helper.make_tensor_value_info("loss", onnx.helper.np_dtype_to_tensor_dtype(dtype), [])
    )
    return model


def infer(model: onnx.ModelProto) -> ir.Model:
    """Read a model with shapes of all its values."""
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    return ir.from_proto(inferred)


def to_dtype(model: onnx.ModelProto, dtype: type[np.floating[Any]]) -> onnx.ModelProto:
    """Copy a float64 model to another floating type: initializers, declared types, Casts and tensors in attributes."""
    target = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        if tensor.data_type == onnx.TensorProto.DOUBLE:
            tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(dtype), tensor.name))
    for info in (*copy.graph.input, *copy.graph.output, *copy.graph.value_info):
        if info.type.tensor_type.elem_type == onnx.TensorProto.DOUBLE:
            info.type.tensor_type.elem_type = target
    for node in copy.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == onnx.TensorProto.DOUBLE:
                attribute.i = target
    return copy


def reference(model: onnx.ModelProto | ir.Model, feeds: dict[str, Array] | None = None) -> dict[str, Array]:
    """Run a model in onnx's reference evaluator; outputs by name."""
    proto = ir.to_proto(model) if isinstance(model, ir.Model) else model
    session = evaluator(proto)
    return dict(zip([o.name for o in proto.graph.output], session.run(None, feeds or {}), strict=True))


def onnxruntime_run(model: ir.Model, feeds: dict[str, Array] | None = None) -> dict[str, Array]:
    """Run a model in onnxruntime with default options; outputs by name."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds or {}), strict=True))


def slope(function: Callable[[float], float], step: float = _STEP) -> float:
    """Derivative at zero by central differences of fourth order."""
    near = function(step) - function(-step)
    far = function(2 * step) - function(-2 * step)
    return (8 * near - far) / (12 * step)


def check_finite_differences(
    model: onnx.ModelProto,
    training: TrainingGraph,
    feeds: dict[str, Array] | None = None,
    step: float = _STEP,
    rtol: float = 1e-7,
) -> dict[str, Array]:
    """Compare <gradient, v> with the loss's slope along random v, for each parameter; return the gradients."""
    feeds = feeds or {}
    got = reference(training.model, feeds)
    forward = onnx.ModelProto()
    forward.CopyFrom(model)
    session = evaluator(forward)
    start = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in forward.graph.initializer}
    loss_index = [output.name for output in forward.graph.output].index(training.loss)
    rng = np.random.default_rng(2)
    gradients = {name: got[gradient] for name, gradient in training.gradients.items()}
    for name, gradient in gradients.items():
        assert gradient.shape == start[name].shape
        assert gradient.dtype == start[name].dtype
        direction = rng.uniform(0.5, 1.0, gradient.shape) * rng.choice([-1.0, 1.0], gradient.shape)

        def along(t: float, name: str = name, direction: Array = direction) -> float:
            return float(
                session.run(None, {**feeds, name: (start[name] + t * direction).astype(start[name].dtype)})[
                    loss_index
                ].reshape(())
            )

        expected = slope(along, step)
        size = float(np.abs(gradient * direction).sum()) + 1.0
        np.testing.assert_allclose(
            float((gradient * direction).sum()), expected, atol=rtol * size, rtol=0, err_msg=name
        )
    return gradients


def torch_knows(model: onnx.ModelProto) -> bool:
    """Say whether the torch oracle can run all nodes of a model."""
    if importlib.util.find_spec("torch") is None:
        return False
    from tests.oracles.torch_oracle import OPERATORS

    return all(node.op_type in OPERATORS for node in model.graph.node)


def check_gradient(
    model: onnx.ModelProto,
    *,
    torch: bool = True,
    differences: bool = True,
    runtime: bool = True,
    wrt: Sequence[str] = ("p*",),
    idle: Sequence[str] = (),
    rtol: float = 2e-5,
    step: float = _STEP,
) -> dict[str, Array]:
    """Check the gradients of a float64 model without inputs whose output is ``loss``; return them.

    Args:
        model: initializers p0, p1, ... are the parameters.
        torch: compare with torch too, where it is installed and the oracle knows the operators.
        differences: compare with finite differences (not at kinks, where there is no derivative).
        runtime: compare float32 in onnxruntime too.
        wrt: patterns of the parameters.
        idle: parameters that are expected to get no gradient.
        rtol: tolerance of the float32 comparison, relative to the largest element.
        step: of the finite differences; less where kinks are near.
    """
    inputs_free = to_overridable(model)
    training = build_training_graph(infer(model), loss="loss", wrt=wrt)
    expected = {t.name for t in model.graph.initializer if t.name.startswith("p")} - set(idle)
    assert set(training.gradients) == expected
    onnx.checker.check_model(ir.to_proto(training.model), full_check=True)
    if differences:
        gradients = check_finite_differences(inputs_free, training, step=step)
    else:
        got = reference(training.model)
        gradients = {name: got[gradient] for name, gradient in training.gradients.items()}
    if torch and torch_knows(model):
        from tests.oracles.torch_oracle import torch_gradients

        _, theirs = torch_gradients(model, {}, "loss", list(training.gradients))
        for name, gradient in gradients.items():
            np.testing.assert_allclose(gradient, theirs[name], rtol=1e-6, atol=1e-9, err_msg=name)
    if runtime:
        single = build_training_graph(infer(to_dtype(model, np.float32)), loss="loss", wrt=wrt)
        ran = onnxruntime_run(single.model)
        for name, gradient in gradients.items():
            found = ran[single.gradients[name]]
            assert found.dtype == np.float32
            scale = float(np.abs(gradient).max(initial=0.0)) + 1e-3
            np.testing.assert_allclose(found, gradient, rtol=0, atol=rtol * scale, err_msg=name)
    return gradients


def to_overridable(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model with its initializers as inputs too, so that the evaluator accepts other values for them."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        copy.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return copy


def check_same_results(found: TrainingGraph, expected: TrainingGraph, feeds: dict[str, Array] | None = None) -> None:
    """Hold what onnxruntime computes of one training graph, in float64, against what it computes of another."""
    results, references = (onnxruntime_run(training.model, feeds) for training in (found, expected))
    assert references.keys() == results.keys()
    for name, array in references.items():
        np.testing.assert_allclose(results[name], array, rtol=1e-11, atol=1e-12, err_msg=name)


def check_close(found: dict[str, Array], expected: dict[str, Array]) -> None:
    """Require float32 outputs to agree up to the rounding of sums: to 2e-5 of the largest element of each.

    An output that is nothing beside the others, as a gradient that is zero by theory, is held against those.
    """
    assert found.keys() == expected.keys()
    largest = max(float(np.abs(array).max()) for array in expected.values())
    for name, array in expected.items():
        atol = 2e-5 * max(float(np.abs(array).max()), 1e-4 * largest)
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=atol, err_msg=name)


def check_training_graph(training: TrainingGraph, feeds: dict[str, Array] | None = None, rtol: float = 1e-7) -> float:
    """Compare the gradients of a training graph with the slopes of its own loss; return the loss."""
    proto = ir.to_proto(training.model)
    onnx.checker.check_model(proto, full_check=True)
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    del model.graph.output[1:]
    check_finite_differences(model, training, feeds, rtol=rtol)
    return float(reference(training.model, feeds)[training.loss].reshape(()))


def parse(text: str, **initializers: Array) -> ir.Model:
    """Read a model in onnx's text form, IR version 10, opset 21; ``text`` starts at the graph's name."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {OPSET}]> {text}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in initializers.items())
    return infer(model)


def check_second_derivatives(model: onnx.ModelProto, step: float = 1e-4, rtol: float = 1e-6) -> None:
    """Compare the gradient's gradient along a random direction with differences of gradients in that direction.

    Args:
        model: of float64; initializers p0, p1, ... are the parameters and ``loss`` is the output.
        step: how far the parameters are moved, to either side.
        rtol: tolerance relative to the largest element.
    """
    training = build_training_graph(infer(model), loss="loss", wrt=["p*"])
    second = build_training_graph(training.model, grad_ys=list(training.gradients.values()), unused="zero")
    rng = np.random.default_rng(3)
    start = {
        name: onnx.numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
        if (name := tensor.name) in training.gradients
    }
    along = {name: rng.uniform(0.5, 1.0, array.shape) * rng.choice([-1.0, 1.0], array.shape)
             for name, array in start.items()}  # fmt: skip
    found = reference(second.model, {f"{training.gradients[name]}_given_grad": array for name, array in along.items()})
    proto = ir.to_proto(training.model)

    def gradients(distance: float) -> dict[str, Array]:
        return reference(proto, {name: start[name] + distance * along[name] for name in start})

    ends = gradients(step), gradients(-step)
    for name, gradient in training.gradients.items():
        expected = (ends[0][gradient] - ends[1][gradient]) / (2 * step)
        size = float(np.abs(expected).max(initial=0)) + float(np.abs(ends[0][gradient]).max(initial=0))
        np.testing.assert_allclose(found[second.gradients[name]], expected, rtol=0, atol=rtol * size, err_msg=name)
