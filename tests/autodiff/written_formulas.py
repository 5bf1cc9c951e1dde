"""Formulas written out between two products: their training graphs, and what is left of them in the forward pass."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ckplan.autodiff import TrainingGraph, build_training_graph
from tests.autodiff.gradcheck import Array, onnxruntime_run, parse, reference, values


def between_products(
    nodes: str,
    fed: Sequence[int],
    width: int,
    arrays: Mapping[str, Array],
    dtype: str = "double",
    outputs: str = "",
    **options: Any,
) -> TrainingGraph:
    """The training graph of a product, some nodes from h to y, and another product.

    Args:
        nodes: in onnx's text form.
        fed: shape of the input ``x``.
        width: columns of h and y.
        arrays: initializers; those that the nodes do not read are left out.
        dtype: of all that is floating.
        outputs: beside the loss, each with a comma behind it.
        options: of the training graph.
    """
    kind = np.float32 if dtype == "float" else np.float64
    own = {"w": values(fed[-1], width), "right": values(width, 2, seed=2)}
    read = set(re.findall(r"[\w/]+", nodes))
    used = own | {name: array for name, array in arrays.items() if name in read}
    model = parse(
        f"g ({dtype}[{','.join(map(str, fed))}] x) => ({outputs} {dtype} loss) {{ h = MatMul(x, w) {nodes} "
        "out = MatMul(y, right) squares = Mul(out, out) loss = ReduceSum<keepdims = 0>(squares) }",
        **{name: array if array.dtype == np.int64 else np.asarray(array, kind) for name, array in used.items()},
    )
    return build_training_graph(model, **{"loss": "loss", **options})


def forward_operators(training: TrainingGraph) -> Counter[str]:
    """How many nodes of each operator the forward pass has."""
    return Counter(n.op_type for n in training.model.graph if n.metadata_props["pkg.ckplan.phase"] == "forward")


def results_of(
    joined: TrainingGraph, written: TrainingGraph, single: TrainingGraph, fed: Sequence[int]
) -> dict[str, tuple[Array, Array, Array]]:
    """Each output of a formula as one node in double precision, as it was written, and in single precision."""
    feeds = {"x": values(*fed, seed=8)}
    found, expected = reference(joined.model, feeds), reference(written.model, feeds)
    rough = onnxruntime_run(single.model, {"x": feeds["x"].astype(np.float32)})
    return {name: (array, expected[name], rough[name]) for name, array in found.items()}
