"""The record of a training graph: what each of its outputs is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from ckplan.autodiff.pieces.regions import Region


@dataclass(frozen=True)
class TrainingGraph:
    """A model that computes a loss and its gradients.

    Attributes:
        model: outputs the loss (of several losses their sum, then each), then the tensors whose gradients are given,
            then the gradients of the parameters in their order, then those of inputs and activations, then new running
            statistics; with an optimizer, see :func:`ckplan.autodiff.optimizers.add_optimizer`. The parameters
            are initializers and graph inputs at once, so that onnxruntime does not take them for constants and a
            caller may feed new ones.
        loss: name of the loss; without a loss, of the first tensor whose gradient is given.
        gradients: name of the gradient by name of the parameter.
        description: what the loss is, for people.
        notes: what was decided on the way and may surprise.
        updates: name of the output with the new value by name of the input that takes it in the next step: running
            statistics, and with an optimizer parameters and states.
        retained: name of the gradient by name of the graph input or activation.
        loss_scale: the factor in the backward pass, or the name of the input that holds it; empty without scaling.
        regions: what runs in pieces, or could.
    """

    model: ir.Model
    loss: str
    gradients: dict[str, str]
    description: str
    notes: tuple[str, ...] = ()
    updates: dict[str, str] = field(default_factory=dict)
    retained: dict[str, str] = field(default_factory=dict)
    loss_scale: str = ""
    regions: tuple[Region, ...] = ()

    @classmethod
    def of_outputs(
        cls,
        model: ir.Model,
        *,
        results: int,
        parameters: Iterable[ir.Value],
        retained: Iterable[str],
        updated: Iterable[ir.Value],
        **known: Any,
    ) -> TrainingGraph:
        """The record of a finished graph, by the order of its outputs.

        Args:
            model: as above, without an optimizer.
            results: how many outputs are losses and what is kept beside them.
            parameters: that have a gradient.
            retained: names of the other tensors that have one.
            updated: running statistics that have a new value.
            known: the other fields.
        """
        names = [str(value.name) for value in model.graph.outputs]
        outputs = iter(names[results:])
        return cls(
            model,
            loss=names[0],
            gradients={str(parameter.name): next(outputs) for parameter in parameters},
            retained={name: next(outputs) for name in retained},
            updates={str(old.name): next(outputs) for old in updated},
            **known,
        )
