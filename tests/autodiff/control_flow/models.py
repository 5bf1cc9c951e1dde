"""Recurrences and branches in onnx's text form, and a checker that brings them into normal form first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx.parser
import onnx.reference.op_run
import onnx_ir as ir

from ckplan.autodiff import TrainingGraph, build_training_graph
from ckplan.model import normalise
from tests.autodiff import gradcheck

Array = np.ndarray


class Scan(onnx.reference.op_run.OpRun):
    """Scan with all axes and directions, which onnx's own evaluator does not have."""

    op_domain = ""

    def need_context(self) -> bool:
        """The body reads values around it."""
        return True

    def _run(  # type: ignore[no-untyped-def]
        self, *args, context=None, body=None, num_scan_inputs=None, scan_input_axes=None, scan_input_directions=None,
        scan_output_axes=None, scan_output_directions=None, attributes=None, bindings=None,
    ):  # fmt: skip
        split = len(args) - num_scan_inputs
        states, sequences = list(args[:split]), args[split:]
        in_axes = scan_input_axes or [0] * num_scan_inputs
        in_back = scan_input_directions or [0] * num_scan_inputs
        steps = sequences[0].shape[in_axes[0]]
        made: list[list[Array]] = [[] for _ in self.body.output_names[split:]]
        for step in range(steps):
            rows = [
                np.take(s, steps - 1 - step if back else step, axis=axis)
                for s, axis, back in zip(sequences, in_axes, in_back, strict=True)
            ]
            feeds = {**(context or {}), **dict(zip(self.body.input_names, [*states, *rows], strict=True))}
            results = self._run_body(feeds, bindings=bindings)
            states = results[:split]
            for rows_made, result in zip(made, results[split:], strict=True):
                rows_made.append(result)
        out_axes = scan_output_axes or [0] * len(made)
        out_back = scan_output_directions or [0] * len(made)
        stacked = [
            np.stack(rows[::-1] if back else rows, axis=axis)
            for rows, axis, back in zip(made, out_axes, out_back, strict=True)
        ]
        return (*states, *stacked)


class Loop(onnx.reference.op_run.OpRun):
    """Loop; onnx's own evaluator joins scan outputs along their first axis and fails without iterations."""

    op_domain = ""

    def need_context(self) -> bool:
        """The body reads values around it."""
        return True

    def _run(self, most, condition, *initial, context=None, body=None, attributes=None, bindings=None):  # type: ignore[no-untyped-def]
        states, trip = list(initial), 0
        made: list[list[Array]] = [[] for _ in self.body.output_names[1 + len(states) :]]
        goes_on = condition is None or bool(condition)
        while goes_on and (most is None or trip < int(np.asarray(most).reshape(()))):
            values = [np.array(trip, dtype=np.int64), np.array(True), *states]
            feeds = {**(context or {}), **dict(zip(self.body.input_names, values, strict=True))}
            results = self._run_body(feeds, bindings=bindings)
            goes_on, states = bool(results[0]), results[1 : 1 + len(states)]
            for rows, result in zip(made, results[1 + len(states) :], strict=True):
                rows.append(result)
            trip += 1
        return (*states, *(np.stack(rows) if rows else np.zeros((0,)) for rows in made))


def evaluator(model: onnx.ModelProto) -> onnx.reference.ReferenceEvaluator:
    """The reference evaluator with every form of Scan and Loop."""
    better = [gradcheck.Erf, gradcheck.GatherElements, gradcheck.Gelu, gradcheck.Pad]
    return onnx.reference.ReferenceEvaluator(model, new_ops=[*better, Loop, Scan])


def run(model: ir.Model | onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, Array]:
    """Evaluate a model; outputs by name."""
    proto = ir.to_proto(model) if isinstance(model, ir.Model) else model
    results = evaluator(proto).run(None, feeds)
    return dict(zip([o.name for o in proto.graph.output], results, strict=True))


def parse(text: str, **initializers: Array) -> onnx.ModelProto:
    """Read a model in onnx's text form; ``text`` starts at the graph's name."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in initializers.items())
    return model


def training_graph(model: onnx.ModelProto, wrt: Sequence[str] = (), **options: object) -> TrainingGraph:
    """Load a model as a user would and differentiate its scalar output."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    forward = normalise(ir.from_proto(copy))
    return build_training_graph(forward.model, wrt=wrt, **options)  # type: ignore[arg-type]


def single(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a float64 model to float32, bodies included."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    _to_single(copy.graph)
    return copy


def _to_single(graph: onnx.GraphProto) -> None:
    for tensor in graph.initializer:
        if tensor.data_type == onnx.TensorProto.DOUBLE:
            array = onnx.numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    for info in (*graph.input, *graph.output, *graph.value_info):
        if info.type.tensor_type.elem_type == onnx.TensorProto.DOUBLE:
            info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == onnx.TensorProto.DOUBLE:
                attribute.i = onnx.TensorProto.FLOAT
            if attribute.HasField("g"):
                _to_single(attribute.g)


def check(
    model: onnx.ModelProto, feeds: dict[str, Array] | None = None, wrt: Sequence[str] = (), **options: object
) -> tuple[TrainingGraph, dict[str, Array]]:
    """Check the gradients of a float64 model by finite differences and its float32 form in onnxruntime.

    Returns:
        The training graph in float64 and its gradients by name of the parameter.
    """
    feeds = feeds or {}
    training = training_graph(model, wrt, **options)
    proto = ir.to_proto(training.model)
    onnx.checker.check_model(proto)
    got = run(proto, feeds)
    start = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    session = evaluator(proto)
    rng = np.random.default_rng(2)
    gradients = {name: got[gradient] for name, gradient in training.gradients.items()}
    for name, gradient in gradients.items():
        assert gradient.shape == start[name].shape
        direction = rng.uniform(0.5, 1.0, gradient.shape) * rng.choice([-1.0, 1.0], gradient.shape)

        def along(t: float, name: str = name, direction: Array = direction) -> float:
            return float(session.run([training.loss], {**feeds, name: start[name] + t * direction})[0].reshape(()))

        size = float(np.abs(gradient * direction).sum()) + 1.0
        np.testing.assert_allclose(
            float((gradient * direction).sum()), gradcheck.slope(along, 2e-4), atol=1e-7 * size, rtol=0, err_msg=name
        )
    ran = training_graph(single(model), wrt, **options)
    assert set(ran.gradients) == set(gradients)
    found = gradcheck.onnxruntime_run(
        ran.model, {k: v.astype(np.float32) if v.dtype == np.float64 else v for k, v in feeds.items()}
    )
    for name, gradient in gradients.items():
        scale = float(np.abs(gradient).max(initial=0.0)) + 1e-3
        np.testing.assert_allclose(found[ran.gradients[name]], gradient, rtol=0, atol=3e-5 * scale, err_msg=name)
    return training, gradients
