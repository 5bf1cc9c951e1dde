"""Steps with new values written over the old ones, held against the same steps with memory of their own for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ckplan import keys
from ckplan.isolation.arrays import Array, load_arrays
from ckplan.meter.memory.plain import same_bits
from ckplan.meter.running.child import Channel
from ckplan.meter.running.process import run_job
from ckplan.meter.running.session import as_array, as_ort_values, open_session
from ckplan.model.files.metadata import told

if TYPE_CHECKING:
    import onnx_ir as ir

STEPS = 3
"""Steps of each kind: the first one shows what is written too early, the later ones what follows from it."""


@dataclass(frozen=True, slots=True)
class InPlace:
    """What became of the values of a file that were updated in place.

    Attributes:
        steps: how many steps ran.
        values: number of parameters, states and statistics.
        differing: names of those that were not the same to the bit in the end, as when each had memory of its own; the
            loss of a step is among them.
    """

    steps: int
    values: int
    differing: tuple[str, ...]


def compared_in_place(model: ir.Model, request: Mapping[str, Any]) -> InPlace | None:
    """Run a file both ways in a process of its own; None if it does not say that its updates may be made in place.

    Args:
        model: the file.
        request: what every job needs to know; see `ckplan.meter.measurement.request_for`.

    Raises:
        CkplanError: it does not run.
    """
    if model.metadata_props.get(keys.IN_PLACE) != "true" or request["device"] != "cpu":
        return None
    inputs, outputs = ({str(value.name) for value in values} for values in (model.graph.inputs, model.graph.outputs))
    named = told(model.metadata_props, keys.UPDATES)
    updates = {old: str(new) for old, new in named.items() if old in inputs and str(new) in outputs}
    asked = {"updates": updates, "loss": model.metadata_props.get(keys.LOSS, "")}
    found = run_job("ckplan.meter.numbers.in_place", {**request, **asked})
    return InPlace(STEPS, len(updates), tuple(found["differing"]))


def job(channel: Channel) -> dict[str, Any]:
    """In the child: names of the values that differ."""
    from ckplan.meter.facts import read_model

    request = channel.request
    channel.progress("the loading (steps in place)")
    model = read_model(Path(request["path"]))
    feed = dict(load_arrays(Path(request["inputs"])))
    before = {name: np.array(feed[name]) for name in request["updates"] if name in feed}
    for name in request["updates"]:
        tensor = model.graph.initializers[name].const_value if name not in before else None
        if tensor is not None:
            before[name] = np.array(tensor.numpy())
    apart, together = (_trained(channel, feed, before, in_place=in_place) for in_place in (False, True))
    return {"differing": [name for name, array in apart.items() if not same_bits(array, together[name])]}


def _trained(
    channel: Channel, feed: Mapping[str, Array], before: Mapping[str, Array], *, in_place: bool
) -> dict[str, Array]:
    """The values after some steps, and the loss of each; random operators draw the same in every new session."""
    import onnxruntime as ort

    request = channel.request
    session, _ = open_session(request["path"], request["device"], threads=request["threads"])
    updates, loss = request["updates"], request["loss"]
    outputs = {output.name for output in session.get_outputs()}
    others = [name for name in outputs if name not in updates.values()]
    given = as_ort_values({name: array for name, array in feed.items() if name not in updates})
    current = as_ort_values({name: np.array(array) for name, array in before.items()})
    found: dict[str, Array] = {}
    for step in range(1, STEPS + 1):
        channel.progress(f"step {step} of {STEPS} {'in place' if in_place else 'with memory of its own'}")
        spare = current
        if not in_place:
            spare = {
                name: ort.OrtValue.ortvalue_from_shape_and_type(value.shape(), value.element_type())
                for name, value in current.items()
            }
        binding = session.io_binding()
        for name, value in {**given, **current}.items():
            binding.bind_ortvalue_input(name, value)
        for name, value in spare.items():
            binding.bind_ortvalue_output(updates[name], value)
        for name in others:
            binding.bind_output(name)
        session.run_with_iobinding(binding)
        made = dict(zip([*(updates[name] for name in spare), *others], binding.get_outputs(), strict=True))
        if loss in made and (array := as_array(made[loss])) is not None:
            found[f"{loss} of step {step}"] = np.array(array)
        current = spare
    found.update({name: np.array(as_array(value)) for name, value in current.items()})
    return found
