"""Optimizers: how new parameters are made from gradients, by name.

An optimizer is a frozen dataclass: its fields are its options, its ``update`` emits the update of one parameter.
"""

from __future__ import annotations

from ckplan.autodiff.optimizers.adam import Adam
from ckplan.autodiff.optimizers.adamw import AdamW
from ckplan.autodiff.optimizers.base import Optimizer
from ckplan.autodiff.optimizers.momentum import Momentum
from ckplan.autodiff.optimizers.sgd import Sgd
from ckplan.autodiff.optimizers.training_step import add_optimizer
from ckplan.choices import parse_choice

OPTIMIZERS: tuple[type[Optimizer], ...] = (Sgd, Momentum, Adam, AdamW)
"""Every optimizer; the tests hold each of them to torch's."""

__all__ = ["OPTIMIZERS", "Optimizer", "add_optimizer", "parse_optimizer"]


def parse_optimizer(text: str) -> Optimizer:
    """Make an optimizer from ``name`` or ``name:field=value,field=value``.

    Raises:
        UsageError: no such optimizer or field, or the value does not fit the field.
    """
    return parse_choice(text, OPTIMIZERS, "optimizer")
