"""Recurrent nodes with all their options, as models with a loss, and what their gradients have to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from ckplan.autodiff import TrainingGraph, build_training_graph
from tests.autodiff.gradcheck import Array, infer, onnxruntime_run, slope
from tests.autodiff.recurrent_reference import GATES, recurrent

_STEP = 1e-6
"""Of finite differences: small, because of the kinks of some activations."""


@dataclass(frozen=True)
class Case:
    """A recurrent node.

    Attributes:
        op_type: LSTM, GRU or RNN.
        attributes: of the node.
        optional: which optional inputs it has: some of ``b``, ``h``, ``c``, ``p``.
        lengths: of the sequences; None if all are whole.
        outputs: which of its outputs exist and go into the loss.
        sizes: steps, batch, features, hidden.
    """

    op_type: str
    attributes: dict[str, Any] = field(default_factory=dict)
    optional: str = "bh"
    lengths: Sequence[int] | None = None
    outputs: Sequence[int] = (0, 1)
    sizes: tuple[int, int, int, int] = (5, 3, 2, 4)

    def inputs(self, seed: int = 0) -> list[Array | None]:
        """The node's eight inputs, in double precision, of an LSTM's order."""
        steps, batch, features, hidden = self.sizes
        count = 2 if self.attributes.get("direction") == "bidirectional" else 1
        gates = GATES[self.op_type]
        rng = np.random.default_rng(seed)
        first = self.attributes.get("layout", 0)

        def draw(*shape: int, size: float = 1.0) -> Array:
            return rng.uniform(-size, size, shape)

        state = (batch, count, hidden) if first else (count, batch, hidden)
        return [
            draw(*((batch, steps) if first else (steps, batch)), features),
            draw(count, gates * hidden, features),
            draw(count, gates * hidden, hidden, size=0.7),
            draw(count, 2 * gates * hidden) if "b" in self.optional else None,
            None if self.lengths is None else np.asarray(self.lengths, np.int32),
            draw(*state) if "h" in self.optional else None,
            draw(*state) if "c" in self.optional and self.op_type == "LSTM" else None,
            draw(count, 3 * hidden) if "p" in self.optional and self.op_type == "LSTM" else None,
        ]

    def weights(self) -> list[Array | None]:
        """What each output is weighed with in the loss; None where it does not exist."""
        rng = np.random.default_rng(7)
        results = recurrent(self.op_type, *self.inputs(), **self.attributes)
        return [rng.uniform(-1, 1, y.shape) if k in self.outputs else None for k, y in enumerate(results)]

    def loss(self, inputs: Sequence[Array | None]) -> float:
        """The loss by the numpy reference."""
        results = recurrent(self.op_type, *inputs, **self.attributes)
        return float(sum((y * w).sum() for y, w in zip(results, self.weights(), strict=True) if w is not None))

    def model(self, dtype: type[np.floating[Any]] = np.float64) -> onnx.ModelProto:
        """A model without inputs whose parameters are p0, p1, ... and whose output is ``loss``."""
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        arrays = {f"p{k}": a for k, a in enumerate(self.inputs()) if a is not None}
        names = [f"p{k}" if f"p{k}" in arrays else "" for k in range(8 if self.op_type == "LSTM" else 6)]
        weights = {f"w{k}": w for k, w in enumerate(self.weights()) if w is not None}
        results = [f"y{k}" if k in self.outputs else "" for k in range(max(self.outputs) + 1)]
        hidden = self.sizes[3]
        nodes = [helper.make_node(self.op_type, names, results, name="node", hidden_size=hidden, **self.attributes)]
        for k in self.outputs:
            nodes.append(helper.make_node("Mul", [f"y{k}", f"w{k}"], [f"m{k}"]))
            nodes.append(helper.make_node("ReduceSum", [f"m{k}"], [f"s{k}"], keepdims=0))
        nodes.append(helper.make_node("Sum", [f"s{k}" for k in self.outputs], ["loss"]))
        graph = helper.make_graph(
            nodes,
            "g",
            [],
            [helper.make_tensor_value_info("loss", kind, [])],
            [
                numpy_helper.from_array(a.astype(dtype) if a.dtype.kind == "f" else a, name)
                for name, a in {**arrays, **weights}.items()
            ],
            value_info=[
                helper.make_tensor_value_info(f"y{k}", kind, w.shape)
                for k, w in enumerate(self.weights())
                if w is not None
            ],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def training_graph(case: Case, dtype: type[np.floating[Any]] = np.float64) -> TrainingGraph:
    """The training graph of a case with regard to all its floating inputs."""
    return build_training_graph(infer(case.model(dtype)), loss="loss", wrt=["p*"])


def gradients(case: Case, dtype: type[np.floating[Any]] = np.float64) -> dict[str, Array]:
    """The gradients of a case, run by onnxruntime."""
    training = training_graph(case, dtype)
    got = onnxruntime_run(training.model)
    np.testing.assert_allclose(got[training.loss], case.loss(case.inputs()), rtol=1e-9 if dtype is np.float64 else 1e-4)
    return {name: got[gradient] for name, gradient in training.gradients.items()}


def check(case: Case, rtol: float = 2e-6) -> dict[str, Array]:
    """Compare a case's gradients with finite differences of the numpy reference; return them."""
    inputs = case.inputs()
    found = gradients(case)
    assert set(found) == {f"p{k}" for k, a in enumerate(inputs) if a is not None and a.dtype.kind == "f"}
    rng = np.random.default_rng(3)
    for name, gradient in found.items():
        index = int(name[1:])
        start = inputs[index]
        assert start is not None
        assert gradient.shape == start.shape
        direction = rng.uniform(0.5, 1.0, start.shape) * rng.choice([-1.0, 1.0], start.shape)

        def along(t: float, index: int = index, start: Array = start, direction: Array = direction) -> float:
            return case.loss([*inputs[:index], start + t * direction, *inputs[index + 1 :]])

        size = float(np.abs(gradient * direction).sum()) + 1e-3
        np.testing.assert_allclose(
            float((gradient * direction).sum()), slope(along, _STEP), rtol=0, atol=rtol * size, err_msg=name
        )
    return found


def fused(case: Case) -> dict[str, Array] | None:
    """What onnxruntime's own kernel makes of a case in single precision; None where it has none for it."""
    if case.attributes.get("layout", 0):
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    model = case.model(np.float32)
    model.graph.output.extend(helper.make_tensor_value_info(f"y{k}", TensorProto.FLOAT, None) for k in case.outputs)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {}), strict=True))
