"""What an operator's implementation in torch is given, and the table of all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Value = torch.Tensor | None
Result = torch.Tensor | tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Call:
    """One node about to run.

    Args:
        inputs: its inputs; None where one is left out.
        attributes: those that are set; strings are bytes.
        outputs: how many outputs the node names.
        dtype: of all floating-point tensors.
        given: values of its outputs that are known beforehand, None for all others.
    """

    inputs: list[Value]
    attributes: dict[str, Any]
    outputs: int
    dtype: torch.dtype
    given: list[Value]

    def __getitem__(self, index: int) -> torch.Tensor:
        """An input that must be there."""
        value = self.inputs[index]
        assert value is not None, f"input {index} is missing"
        return value

    def optional(self, index: int) -> Value:
        """An input that may be left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def integers(self, index: int) -> list[int] | None:
        """A one-dimensional integer input as a list, None if left out."""
        value = self.optional(index)
        return None if value is None else [int(item) for item in value.reshape(-1)]

    def text(self, name: str, default: str) -> str:
        """A string attribute."""
        value = self.attributes.get(name, default.encode())
        return str(value.decode())

    def number(self, name: str, default: float) -> float:
        """A floating-point attribute."""
        return float(self.attributes.get(name, default))

    def get(self, name: str, default: Any = None) -> Any:
        """Any other attribute."""
        return self.attributes.get(name, default)


Operator = Callable[[Call], Result]
OPERATORS: dict[str, Operator] = {}


def operator(*op_types: str) -> Callable[[Operator], Operator]:
    """Register a function as the implementation of operators of the default domain."""

    def register(function: Operator) -> Operator:
        for op_type in op_types:
            assert op_type not in OPERATORS, op_type
            OPERATORS[op_type] = function
        return function

    return register
