"""Results for people, on 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ckplan.planner import Kind
from ckplan.report.chart import Chart
from ckplan.units import format_bytes

if TYPE_CHECKING:
    from ckplan.answers.analysis import Analysis, Offer, TensorFacts
    from ckplan.autodiff import TrainingGraph
    from ckplan.planner import Plan, Timeline

_TOP = 10


def table(*headers: str, numbers: Sequence[str] = ()) -> Table:
    """A table whose columns named in ``numbers`` are aligned to the right and never folded."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for header in headers:
        right = header in numbers
        made.add_column(header, justify="right" if right else "left", no_wrap=right, overflow="fold")
    return made


def section(title: str, *content: RenderableType) -> Group:
    """A heading and what stands under it."""
    return Group(Text(title, style="bold"), *(Padding(part, (0, 0, 0, 2)) for part in content))


def page(*sections: RenderableType) -> Group:
    """Sections with a blank line between them."""
    return Group(*[part for content in sections for part in ("", content)][1:])


def percent(ratio: float) -> str:
    """``0.256`` as ``25.6 %``."""
    return f"{100 * ratio:.1f} %"


def shape_text(shape: Sequence[int]) -> str:
    """``(8, 3)`` as ``8x3``."""
    return "x".join(map(str, shape)) or "scalar"


def counted(count: int, noun: str) -> str:
    """``3 nodes``, ``1 node``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def gradients(training: TrainingGraph, output: Path) -> RenderableType:
    """One line: what was written."""
    gradients = len(training.gradients.keys() - training.updates.keys()) + len(training.retained)
    made = [counted(gradients, "gradient")] if gradients else []
    made += [counted(len(training.updates), "new value")] if training.updates else []
    return line(f"{output}: loss '{training.loss}' and {' and '.join(made)}")


def rewritten(output: Path, plan: Plan, base: Timeline, planned: Timeline) -> RenderableType:
    """One line: what the plan saves, as the simulator has it."""
    ordered = planned.peak_activations if not plan.recomputed else plan.order_peak
    change = saving(base.peak_activations, planned.peak_activations, ordered)
    return line(f"{output}: predicted activations {change}, compute {100 * plan.overhead:+.1f} %")


def saving(before: int, after: int, ordered: int | None = None) -> str:
    """``4.0 MiB -> 1.0 MiB (-75.0 %: order -25.0 %, recomputation -50.0 %)``.

    Args:
        before: bytes without a plan.
        after: bytes with it.
        ordered: bytes in the best order without recomputation, if that is known. What is not above ``before`` and not
            below ``after`` is a part of the saving.
    """
    shares = ""
    if before and ordered is not None:
        between = min(before, max(after, ordered))
        parts = (("order", between - before), ("recomputation", after - between))
        shares = ": " + ", ".join(f"{what} {100 * change / before:+.1f} %" for what, change in parts)
    change = f" ({100 * (after / before - 1):+.1f} %{shares})" if before else ""
    return f"{format_bytes(before)} -> {format_bytes(after)}{change}"


def line(text: str) -> Text:
    """One line of output, however narrow the terminal."""
    return Text(text, style="bold", no_wrap=True, overflow="ignore")


def analysis(path: Path, found: Analysis) -> RenderableType:
    """The whole answer of ``ckplan analyze``."""
    base, sizes = found.base, found.bytes
    facts = Table.grid(padding=(0, 2))
    trained = bool(found.loss)
    forward, backward = found.nodes
    tensors, values = found.parameters
    phases = f": {forward:,} forward, {backward:,} backward" if backward else ""
    facts.add_row("nodes", Text(f"{forward + backward:,}{phases}"))
    facts.add_row("opset", Text(str(found.opset)))
    if trained:
        facts.add_row("trained", Text(f"{counted(tensors, 'parameter')}, {counted(values, 'value')}"))
        facts.add_row("loss", Text(found.loss))
    end = "loss" if trained else "outputs"
    memory = Table.grid(padding=(0, 2))
    memory.add_column()
    memory.add_column(justify="right")
    peak = base.steps[base.peak_step].op if base.steps else ""
    memory.add_row("parameters", format_bytes(sizes[Kind.PARAMETER]), "with constants")
    memory.add_row("inputs", format_bytes(sizes[Kind.INPUT]))
    memory.add_row("outputs", format_bytes(sizes[Kind.OUTPUT]), *(["gradients or new values, with the loss"] * trained))
    memory.add_row("activations", format_bytes(base.peak_activations), Text(f"at the peak, in {ending(peak)}"))
    memory.add_row("total", format_bytes(base.peak_total), "at the most")
    return page(
        section(str(path), facts),
        section(f"Memory of one {'training step' if trained else 'run'}, without a plan", memory),
        section("Activations over the step", Chart(base)),
        section(f"Alive at the peak{_of(found.at_peak)}", _tensors(found.at_peak, base.peak_activations)),
        section(
            f"Bottlenecks, through which all paths to the {end} pass{_of(found.bottlenecks)}",
            _tensors(found.bottlenecks, base.peak_activations) if found.bottlenecks else "none",
        ),
        section(
            f"What a plan would give (no plan can go below {format_bytes(found.lower_bound)} of activations)",
            _offers(found.offers, base),
            *(Text(f"{offer.strategy}: {offer.reason}") for offer in found.offers if offer.plan is None),
        ),
    )


def _of(tensors: Sequence[TensorFacts]) -> str:
    return f" (the largest {_TOP} of {len(tensors)})" if len(tensors) > _TOP else f" ({len(tensors)})"


def _tensors(tensors: Sequence[TensorFacts], whole: int) -> Table:
    rows = table("bytes", "share", "shape", "made by", "tensor", numbers=("bytes", "share"))
    for tensor in sorted(tensors, key=lambda tensor: -tensor.bytes)[:_TOP]:
        share = percent(tensor.bytes / whole) if whole else ""
        size = format_bytes(tensor.bytes)
        rows.add_row(size, share, shape_text(tensor.shape), tensor.op_type, Text(ending(tensor.name)))
    return rows


def ending(name: str, width: int = 34) -> str:
    """The end of a long name, which tells more than its beginning; JSON has all of it."""
    return name if len(name) <= width else f"…{name[1 - width :]}"


def _offers(offers: Sequence[Offer], base: Timeline) -> Table:
    headers = ("activations", "saved", "overhead", "total")
    rows = table("strategy", *headers, numbers=headers)
    whole = base.peak_activations
    for offer in offers:
        if offer.plan is None:
            continue
        after = offer.plan.predicted
        rows.add_row(
            Text(offer.strategy),
            format_bytes(after.peak_activations),
            percent(1 - after.peak_activations / whole) if whole else "",
            percent(offer.plan.overhead),
            format_bytes(after.peak_total),
        )
    return rows
