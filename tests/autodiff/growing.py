"""A model that grows node by node, and where the decisions about it come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import onnx
from onnx import helper, numpy_helper

Shape = tuple[int, ...]
Item = TypeVar("Item")

OPSET = 23

MOST = 96
"""Elements of the largest tensor."""

SHAPES: list[Shape] = [(2, 3), (3,), (2, 1), (1, 3), (), (2, 3, 4), (1, 4, 5), (2, 4, 3, 4), (1, 2, 4, 3), (4, 4)]
"""Shapes that parameters have."""


class Source(Protocol):
    """Where the decisions come from."""

    def integer(self, low: int, high: int) -> int:
        """A whole number between two, both included."""

    def pick(self, items: Sequence[Item]) -> Item:
        """One of several."""


@dataclass
class Seeded:
    """Decisions from a seed.

    Args:
        seed: the same seed makes the same model.
    """

    seed: int

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def integer(self, low: int, high: int) -> int:
        return int(self._random.integers(low, high + 1))

    def pick(self, items: Sequence[Item]) -> Item:
        return items[self.integer(0, len(items) - 1)]


class Growing:
    """A model that grows node by node.

    Args:
        source: where the decisions come from.
        shapes: shapes that parameters have.
        most: elements of the largest tensor.
    """

    def __init__(self, source: Source, shapes: Sequence[Shape] = SHAPES, most: int = MOST) -> None:
        self.source = source
        self.shapes = shapes
        self.most = most
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.known: list[tuple[str, Shape]] = []
        self.parameters = 0
        self._random = np.random.default_rng(source.integer(0, 2**16))

    # -- values ----------------------------------------------------------------------------------------------------

    def parameter(self, shape: Shape) -> str:
        """Add a parameter with numbers between -1 and 1; it may be read again later."""
        name = f"p{self.parameters}"
        self.parameters += 1
        self.initializers.append(numpy_helper.from_array(self._random.uniform(-1, 1, shape), name))
        self.known.append((name, shape))
        return name

    def constant(self, array: np.ndarray | Sequence[int]) -> str:
        name = f"c{len(self.initializers)}"
        data = array if isinstance(array, np.ndarray) else np.asarray(array, dtype=np.int64)
        self.initializers.append(numpy_helper.from_array(data, name))
        return name

    def any(self, fits: Callable[[Shape], bool] = lambda shape: True) -> tuple[str, Shape]:
        """A value known so far whose shape fits; a new parameter if there is none."""
        found = [item for item in self.known[-12:] if fits(item[1])] or [item for item in self.known if fits(item[1])]
        return self.source.pick(found) if found else self.made(fits)

    def made(self, fits: Callable[[Shape], bool]) -> tuple[str, Shape]:
        shape = next(shape for shape in self.shapes if fits(shape))
        return self.parameter(shape), shape

    def weight(self, shape: Shape) -> str:
        """A parameter of exactly this shape: one that is there, so that it is shared, or a new one."""
        found = [name for name, known in self.known if known == shape and name.startswith("p")]
        return self.source.pick(found) if found and self.source.integer(0, 2) else self.parameter(shape)

    # -- nodes -----------------------------------------------------------------------------------------------------

    def emit(self, op_type: str, inputs: Sequence[str], shape: Shape | None, **attributes: Any) -> str:
        """Add a node of one output, which can be read from now on if its shape is given."""
        name = f"v{len(self.nodes)}"
        attributes = {key: value for key, value in attributes.items() if value is not None}
        self.nodes.append(helper.make_node(op_type, list(inputs), [name], name=f"{op_type}_{name}", **attributes))
        if shape is not None:
            self.known.append((name, shape))
        return name

    def calm(self, name: str, shape: Shape) -> None:
        """Bring values that may have grown back between -1 and 1."""
        self.emit("Tanh", [name], shape)

    def axes_of(self, shape: Shape) -> list[int]:
        """Some axes, at least one, some of them negative."""
        rank = len(shape)
        chosen = [axis for axis in range(rank) if self.source.integer(0, 1)] or [self.source.integer(0, rank - 1)]
        return [axis - rank if self.source.integer(0, 1) else axis for axis in chosen]

    def axis_of(self, shape: Shape) -> int:
        return self.source.integer(-len(shape), len(shape) - 1)
