"""The one helper of all builders: collects nodes and weights under scoped names and makes the model of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from sample_models.random_weights import generator, uniform

OPSET = 21
IR_VERSION = 10


class GraphBuilder:
    """Builds one forward graph, node by node, with names such as a PyTorch export gives.

    A node made in the scopes ``layer1``, ``0``, ``conv1`` is called ``/layer1/0/conv1/Conv``, its output
    ``/layer1/0/conv1/Conv_output_0``, and a parameter made there ``layer1.0.conv1.weight``.

    Args:
        name: the graph's name.
        batch: the batch size, or None for a symbolic dimension called ``batch``.
        seed: of the random weights.
    """

    def __init__(self, name: str, *, batch: int | None = None, seed: int = 0) -> None:
        self.batch: int | str = "batch" if batch is None else batch
        self._name = name
        self._random = generator(seed)
        self._scopes: list[str] = []
        self._used: Counter[str] = Counter()
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    @contextmanager
    def scope(self, name: str | int) -> Iterator[None]:
        """Put what is made inside under ``name``."""
        self._scopes.append(str(name))
        try:
            yield
        finally:
            self._scopes.pop()

    def input(self, name: str, shape: Sequence[int | str], dtype: int = TensorProto.FLOAT) -> str:
        """Declare a graph input and return its name."""
        self._inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, value: str, name: str, shape: Sequence[int | str], dtype: int = TensorProto.FLOAT) -> None:
        """Make ``value`` a graph output and call it ``name``."""
        for node in self._nodes:
            for names in (node.input, node.output):
                for position, present in enumerate(names):
                    if present == value:
                        names[position] = name
        self._outputs.append(helper.make_tensor_value_info(name, dtype, shape))

    def node(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output and return the output's name."""
        return self.nodes(op_type, *inputs, outputs=1, **attributes)[0]

    def nodes(self, op_type: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        """Add a node with several outputs and return their names."""
        stem = "/" + "/".join([*self._scopes, op_type])
        count = self._used[stem]
        self._used[stem] += 1
        name = f"{stem}_{count}" if count else stem
        results = [f"{name}_output_{index}" for index in range(outputs)]
        self._nodes.append(helper.make_node(op_type, inputs, results, name=name, **attributes))
        return results

    def parameter(self, name: str, values: NDArray[np.float32]) -> str:
        """Add an initializer under the present scopes and return its full name."""
        full_name = ".".join([*self._scopes, name])
        if full_name in self._initializers:
            raise ValueError(f"there is already a parameter `{full_name}`")
        self._initializers[full_name] = numpy_helper.from_array(values, full_name)
        return full_name

    def constant(self, values: Sequence[int] | int | float | NDArray[np.generic], name: str = "") -> str:
        """Add an initializer that is no parameter, once per content if it has no name: int64, or float32 for a float.

        Arrays keep their dtype.
        """
        array = values if isinstance(values, np.ndarray) else np.array(values)
        if not isinstance(values, np.ndarray):
            array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
        label = name or "constant_" + "_".join([str(array.dtype), *map(str, array.shape), "of", *map(str, array.flat)])
        self._initializers.setdefault(label, numpy_helper.from_array(array, label))
        return label

    def uniform(self, shape: Sequence[int], deviation: float, mean: float = 0.0) -> NDArray[np.float32]:
        """Draw float32 numbers of the given standard deviation, uniform around ``mean``."""
        return uniform(self._random, shape, deviation, mean)

    def model(self) -> onnx.ModelProto:
        """Return the finished model."""
        graph = helper.make_graph(
            self._nodes, self._name, self._inputs, self._outputs, list(self._initializers.values())
        )
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="sample_models")
