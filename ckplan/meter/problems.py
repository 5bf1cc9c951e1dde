"""From figures to what a user must know before trusting a file."""

from __future__ import annotations

from ckplan.display import shortened
from ckplan.meter.compared import Numerics, Verification
from ckplan.meter.types import Measurement, NonFinite, Origin


def problems_of(verification: Verification) -> tuple[str, ...]:
    """What is wrong with the new file, a sentence each, the gravest first; empty if all is well."""
    numerics = verification.numerics
    return (*_plan(verification.new), *_values(verification), *_in_place(verification), *_finiteness(numerics))


def measured_problems(found: Measurement) -> tuple[str, ...]:
    """What is wrong with one file that ran, a sentence each; empty if all is well."""
    text = tuple(
        f"output `{output.output}` holds {output.nan} NaN and {output.inf} infinities" for output in found.nonfinite
    )
    return (*_plan(found), *text)


TOLERANCE = 1.05
"""Largest ratio of a measured peak to the predicted one that passes for the same."""
SLACK = 2**19
"""Bytes above that ratio that pass as well: kernels keep small buffers per thread, and the arena rounds."""


def _plan(new: Measurement) -> tuple[str, ...]:
    recomputation = new.recomputation
    promised, measured = new.prediction.peak_activations, new.peak_activations
    kept = bool(promised and measured and measured <= promised * TOLERANCE)
    if recomputation.undone and not kept:
        return (
            f"the plan was undone: `{new.path}` holds {recomputation.in_file} recomputed nodes and onnxruntime ran "
            "none of them; an optimiser merged them with the nodes that they repeat",
        )
    if not promised or not measured or measured <= promised * TOLERANCE + SLACK:
        return ()  # whatever became of single nodes, no memory is lost
    if recomputation.merged:
        cause = (
            f"an optimiser merged {recomputation.merged} of {recomputation.in_file} recomputed nodes with those that "
            "they repeat, as happens when a graph simplifier has removed what keeps them apart"
        )
    elif new.device == "cuda":
        cause = (
            "its kernels work in place more seldom than those of the CPU, and cuDNN's take workspaces: plan with "
            "--device cuda, if it was without, and for a smaller budget"
        )
    else:
        cause = f"onnxruntime {new.onnxruntime} fuses it otherwise, or runs it in another order, than was expected"
    return (f"`{new.path}` takes {measured / promised - 1:.0%} more activations than it promises; {cause}",)


def _values(verification: Verification) -> tuple[str, ...]:
    numerics = verification.numerics
    if not numerics.compared:
        differ = numerics.only_base or numerics.only_new
        if differ:
            return ("the two files have no output in common, so nothing was compared: take files made from one model",)
        return ("neither file has an output that is a tensor, so nothing was compared",)
    found = []
    if numerics.only_base:
        found.append(f"outputs missing from the new file: {shortened(numerics.only_base)}")
    grave = [difference for difference in numerics.differences if not difference.is_rounding]
    if grave:
        first = grave[0]
        where = f"first at {list(first.first)} ({first.base} against {first.new})"
        much = f", by up to {first.max_ulp} ULP, {first.max_absolute:.3g} absolute, {first.max_relative:.3g} relative"
        what = first.problem or f"differs in {first.elements} elements, {where}{much if first.is_floating else ''}"
        rest = len(grave) - 1
        others = f"; so {'does 1 more output' if rest == 1 else f'do {rest:,} more outputs'}" if rest else ""
        sides = (verification.base, verification.new)
        wobbles = list(dict.fromkeys(f"`{side.path}`" for side in sides if not side.repeatable))
        cause = f" (values change from run to run in {' and '.join(wobbles)})" if wobbles else ""
        found.append(f"output `{first.output}` {what}{others}{cause}")
    return tuple(found)


def _in_place(verification: Verification) -> tuple[str, ...]:
    found = verification.in_place
    if found is None or not found.differing:
        return ()
    return (
        f"`{verification.new.path}` does not compute the same in place: after {found.steps} steps "
        f"{len(found.differing)} of its {found.values} values differ, the first is `{found.differing[0]}`",
    )


def _finiteness(numerics: Numerics) -> tuple[str, ...]:
    sides = (
        ("base", numerics.base_nonfinite, numerics.base_origin),
        ("new", numerics.new_nonfinite, numerics.new_origin),
    )
    return tuple(_nonfinite(side, found, origin) for side, found, origin in sides if found)


def _nonfinite(side: str, found: tuple[NonFinite, ...], origin: Origin | None) -> str:
    first = found[0]
    text = f"output `{first.output}` of the {side} file holds {first.nan} NaN and {first.inf} infinities"
    if len(found) > 1:
        text += f", and {len(found) - 1} more outputs hold some"
    return f"{text}; {describe_origin(origin)}"


def describe_origin(origin: Origin | None) -> str:
    """Where a NaN or infinity comes from, in words."""
    if origin is None:
        return "its origin does not show when values are looked at one by one"
    kind = "NaN" if origin.kind == "nan" else "infinity"
    if not origin.node and origin.op_type in ("input", "initializer"):
        return f"the {origin.op_type} `{origin.value}` holds the first {kind}, at {list(origin.element)}"
    text = f"the first {kind} comes from {_node(origin)}"
    return text if origin.cause is None else f"{text}, of an infinity that comes from {_node(origin.cause)}"


def _node(origin: Origin) -> str:
    where = " in the backward pass" if origin.backward else ""
    return f"{origin.op_type} '{origin.node}'{where} (`{origin.value}` at {list(origin.element)})"
