"""What all optimizers have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ckplan.arguments import check_factor
from ckplan.autodiff.builder import Builder
from ckplan.choices import spell
from ckplan.errors import UsageError


@dataclass(frozen=True)
class Optimizer(ABC):
    """A way to get new parameters from gradients. Subclasses are frozen dataclasses whose fields are their options.

    Attributes:
        learning_rate: default of the input of that name.
        weight_decay: what is added to a gradient as a multiple of its parameter, for a penalty on their squares.
    """

    name: ClassVar[str]
    """The name on the command line."""
    states: ClassVar[tuple[str, ...]] = ()
    """What is remembered of each parameter from step to step, zero at first."""
    counts: ClassVar[bool] = False
    """Whether the number of the step matters."""

    learning_rate: float = 0.001
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        self.check_least("learning_rate", "weight_decay")

    def check_least(self, *options: str) -> None:
        """See that options are finite in single precision and at least 0.

        Raises:
            UsageError: one is not.
        """
        for option in options:
            check_factor(f"option `{option}` of optimizer `{self.name}`", getattr(self, option))

    def check(self, option: str, holds: bool, range_: str) -> None:
        """Hold an option to its range.

        Raises:
            UsageError: it is out of range.
        """
        if not holds:
            raise UsageError(
                f"option `{option}` of optimizer `{self.name}` is {getattr(self, option)}", f"give {range_}"
            )

    def scalars(self, op: Builder, rate: ir.Value, step: ir.Value | None) -> dict[str, ir.Value]:
        """Emit what the updates of all parameters share.

        Args:
            op: the builder.
            rate: the learning rate, float64.
            step: number of this step, from 1, float64; None unless the optimizer counts.

        Returns:
            float64 scalars by name; :meth:`update` gets them in the type of its parameter.
        """
        return {"rate": rate}

    @abstractmethod
    def update(
        self,
        op: Builder,
        parameter: ir.Value,
        gradient: ir.Value,
        states: Sequence[ir.Value],
        scalars: Mapping[str, ir.Value],
    ) -> tuple[ir.Value, tuple[ir.Value, ...]]:
        """Emit the new value of a parameter and of its states.

        onnxruntime's elementwise kernels write to new memory, so temporaries of the parameter's size are few.

        Args:
            op: the builder.
            parameter: the parameter.
            gradient: its gradient, in its shape and type.
            states: one value for each of ``self.states``, in that shape and type.
            scalars: see :meth:`scalars`.
        """

    def decayed(self, op: Builder, parameter: ir.Value, gradient: ir.Value) -> ir.Value:
        """Add the slope of the penalty on the parameter's square to its gradient."""
        if not self.weight_decay:
            return gradient
        return op.Add(gradient, op.Mul(parameter, self.weight_decay))

    def __str__(self) -> str:
        """The optimizer as one writes it on the command line, options that differ from their default included."""
        return spell(self)
