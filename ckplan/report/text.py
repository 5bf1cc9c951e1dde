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

from ckplan.plan import Kind
from ckplan.report.chart import Chart
from ckplan.units import format_bytes

if TYPE_CHECKING:
    from ckplan.analysis import Analysis, Offer, TensorFacts
    from ckplan.autodiff import TrainingGraph
    from ckplan.plan import Plan, Timeline

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
    return Text(f"{output}: loss '{training.loss}' and {counted(len(training.gradients), 'gradient')}")


def rewritten(output: Path, plan: Plan, base: Timeline, planned: Timeline) -> RenderableType:
    """What the plan saves, as the simulator has it."""
    before, after = base.peak_activations, planned.peak_activations
    change = f"{percent(1 - after / before)} less" if before else "nothing to save"
    return Text.assemble(
        f"{output}: activations peak ",
        (f"{format_bytes(before)} -> {format_bytes(after)}", "bold"),
        f" predicted ({change}), {counted(plan.recomputed, 'node')} recomputed, {percent(plan.overhead)} more compute",
    )


def analysis(path: Path, found: Analysis) -> RenderableType:
    """The whole answer of ``ckplan analyze``."""
    base, sizes = found.base, found.bytes
    facts = Table.grid(padding=(0, 2))
    forward, backward = found.nodes
    tensors, values = found.parameters
    facts.add_row("nodes", Text(f"{forward + backward:,}: {forward:,} forward, {backward:,} backward"))
    facts.add_row("opset", Text(str(found.opset)))
    facts.add_row("trained", Text(f"{counted(tensors, 'parameter')}, {counted(values, 'value')}"))
    facts.add_row("loss", Text(found.loss))
    memory = Table.grid(padding=(0, 2))
    memory.add_column()
    memory.add_column(justify="right")
    peak = base.steps[base.peak_step].op if base.steps else ""
    memory.add_row("parameters", format_bytes(sizes[Kind.PARAMETER]), "with constants")
    memory.add_row("inputs", format_bytes(sizes[Kind.INPUT]))
    memory.add_row("gradients", format_bytes(sizes[Kind.OUTPUT]), "outputs of the step, with the loss")
    memory.add_row("activations", format_bytes(base.peak_activations), Text(f"at the peak, in {peak}"))
    memory.add_row("total", format_bytes(base.peak_total), "at the most")
    return page(
        section(str(path), facts),
        section("Memory of one training step, without a plan", memory),
        section("Activations over the step", Chart(base)),
        section(f"Alive at the peak{_of(found.at_peak)}", _tensors(found.at_peak, base.peak_activations)),
        section(
            f"Bottlenecks, through which all paths to the loss pass{_of(found.bottlenecks)}",
            _tensors(sorted(found.bottlenecks, key=lambda tensor: -tensor.bytes), base.peak_activations)
            if found.bottlenecks
            else "none",
        ),
        section(
            f"What a plan would give (no plan can go below {format_bytes(found.lower_bound)} of activations)",
            _offers(found.offers, base),
        ),
    )


def _of(tensors: Sequence[TensorFacts]) -> str:
    return f" (the largest {_TOP} of {len(tensors)})" if len(tensors) > _TOP else f" ({len(tensors)})"


def _tensors(tensors: Sequence[TensorFacts], whole: int) -> Table:
    rows = table("bytes", "share", "shape", "tensor, made by", numbers=("bytes", "share"))
    for tensor in tensors[:_TOP]:
        name = Text(tensor.name)
        name.append(f"\n{tensor.producer}", style="dim")
        share = percent(tensor.bytes / whole) if whole else ""
        rows.add_row(format_bytes(tensor.bytes), share, shape_text(tensor.shape), name)
    return rows


def _offers(offers: Sequence[Offer], base: Timeline) -> Table:
    headers = ("activations", "saved", "overhead", "total")
    rows = table("strategy", *headers, numbers=headers)
    whole = base.peak_activations
    for offer in offers:
        if offer.plan is None:
            rows.add_row(Text(offer.strategy), Text("-"), "", "", "")
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
