"""The answers about plans as documents: analyze, pareto, plan, rewrite, and what a plan does block by block."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ckplan.report.document import (
    ALL,
    Cell,
    Columns,
    Document,
    Fact,
    Facts,
    Line,
    MemoryChart,
    Row,
    Section,
    Table,
    counted,
    name,
    number,
    saving,
    shape_cell,
    share,
    size,
    table_of,
)
from ckplan.report.frontier_chart import SEVERAL
from ckplan.report.plot import Mark, plot_of
from ckplan.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from ckplan.answers.analysis import Analysis, Offer, TensorFacts
    from ckplan.answers.findings import Block, Chosen
    from ckplan.answers.pareto import Pareto
    from ckplan.autodiff import TrainingGraph
    from ckplan.planner import Plan, Timeline
    from ckplan.runtime.pools.footprint import Footprint

_BLOCKS = 8
"""Kinds of blocks that are listed; the others are summed."""


def gradients(training: TrainingGraph, output: Path) -> Document:
    """One line: what `ckplan grad` wrote."""
    gradients = len(training.gradients.keys() - training.updates.keys()) + len(training.retained)
    made = [counted(gradients, "gradient")] if gradients else []
    made += [counted(len(training.updates), "new value")] if training.updates else []
    return Document(f"{output}: loss '{training.loss}' and {' and '.join(made)}", ())


def rewritten(
    output: Path,
    plan: Plan,
    base: Timeline,
    planned: Timeline,
    kept: Chosen | None = None,
    in_pieces: bool = False,
    held: tuple[str, int, int] | None = None,
) -> Document:
    """What a plan saves, as the simulator has it, and what it does block by block.

    Args:
        output: the file.
        plan: the plan.
        base: memory over the step without a plan.
        planned: memory over the step of the file.
        kept: what the plan does block by block, if that is to be told.
        in_pieces: whether the plan has chosen to run regions in pieces.
        held: who holds what the budget was of, if that was more than activations; bytes without and with the plan.
    """
    peak, by = planned.peak_activations, "pieces and order" if in_pieces else "order"
    change = saving(base.peak_activations, peak, plan.order_peak if plan.recomputed else peak, by)
    whole = "" if held is None else f"{held[0]} {saving(*held[1:])}, "
    title = f"{output}: {whole}predicted activations {change}, compute {100 * plan.overhead:+.1f} %"
    return Document(title, () if kept is None else blocks(kept))


def blocks(found: Chosen) -> tuple[Section, ...]:
    """The layers, if there are any, and the groups of nodes."""
    return tuple(
        Section(
            f"{what}: kept for the backward pass and recomputed by `{found.plan.strategy}`", (_blocks(rows, header),)
        )
        for what, header, rows in (("Repeated layers", "layer", found.layers), ("Groups", "nodes", found.blocks))
        if any(block.decisions for block in rows)
    )


def _blocks(found: Sequence[Block], what: str) -> Table:
    rows = [Row((Cell(block.name), number(block.count, f"x {block.count:,}"), *_figures([block]))) for block in found]
    shown, left = rows[:_BLOCKS], found[_BLOCKS:]
    if left:
        count = sum(block.count for block in left)
        shown.append(Row((Cell("others"), number(count, f"x {count:,}"), *_figures(left))))
    return Table((what, "", "kept", "recomputed", "extra time"), tuple(shown))


def _figures(found: Sequence[Block]) -> tuple[Cell, Cell, Cell]:
    kept, recomputed = sum(block.kept for block in found), sum(block.recomputed for block in found)
    seconds = sum(block.seconds for block in found)
    return size(kept or None), size(recomputed or None), number(seconds, format_seconds(seconds) if seconds else "-")


def analysis(title: str, found: Analysis, kept: Chosen | None = None) -> Document:
    """Where the memory of a step goes, and what each strategy would save."""
    base, contents = found.base, found.contents
    trained = bool(contents.loss)
    forward, backward = contents.forward, contents.backward
    tensors, values = contents.trained
    phases = f": {forward:,} forward, {backward:,} backward" if backward else ""
    # The file has nodes besides that order the others, and the chart has a step for each.
    run = (
        f"; {len(base.steps):,} run, with those that order them"
        if trained and len(base.steps) > forward + backward
        else ""
    )
    facts = [Fact("nodes", f"{forward + backward:,}{phases}{run}"), Fact("opset", str(found.opset))]
    if trained:
        facts.append(Fact("trained", f"{counted(tensors, 'parameter')}, {counted(values, 'value')}"))
        facts.append(Fact("loss", contents.loss))
    end = "loss" if trained else "outputs"
    peak = base.steps[base.peak_step].op if base.steps else ""
    whole = base.peak_activations
    largest = sorted(found.bottlenecks, key=lambda tensor: -tensor.bytes)
    refused = [Line(f"{offer.strategy}: {offer.reason}") for offer in found.offers if offer.plan is None]
    sections = (
        Section(title, (Facts(tuple(facts)),)),
        Section(
            f"What a process holds that runs the {'training step' if trained else 'model'}, without a plan",
            (footprint(found.footprint, f"at the peak, in {peak}", trained),),
        ),
        Section("Activations over the step", (MemoryChart(base),)),
        Section(f"Alive at the peak ({len(found.at_peak):,})", (tensors_table(found.at_peak, whole),)),
        Section(
            f"Bottlenecks, through which all paths to the {end} pass ({len(found.bottlenecks):,})",
            (tensors_table(largest, whole) if largest else Line("none"),),
        ),
        Section(
            f"What a plan would give (no plan can go below {format_bytes(found.lower_bound)} of activations)",
            (offers(found.offers, whole), *refused),
        ),
    )
    return Document("", (*sections, *(() if kept is None else blocks(kept))))


def footprint(found: Footprint, activations: str, trained: bool) -> Table:
    """What a process holds, in parts; ``activations`` says what is to be said of those."""
    parts = [
        ("parameters", found.parameters, "with constants"),
        ("copies", found.copies, "of what is fed, in the file"),
        ("state", found.state, "of the optimizer"),
        ("inputs", found.inputs, ""),
        ("session", found.session, "onnxruntime's own objects and pages of its library"),
        ("outputs", found.returned, "gradients or new values that are returned" if trained else ""),
        ("activations", found.activations, activations),
        ("arena, upkeep", found.arena + found.upkeep, "what onnxruntime keeps beyond, after a few runs"),
    ]
    told = [part for part in parts if part[1] or part[0] not in ("copies", "state")]
    rows = [Row((Cell(name), size(count), Cell(remark))) for name, count, remark in told]
    return Table(("", "bytes", ""), (*rows, Row((Cell("total"), size(found.total), Cell("")), "bold")), top=9)


def tensors_table(tensors: Sequence[TensorFacts], whole: int) -> Table:
    """Tensors of an analysis."""
    columns: Columns[TensorFacts] = {
        "bytes": lambda tensor: size(tensor.bytes),
        "share": lambda tensor: share(tensor.bytes, whole),
        "shape": lambda tensor: shape_cell(tensor.shape),
        "made by": lambda tensor: Cell(tensor.op_type),
        "tensor": lambda tensor: name(tensor.name),
    }
    return table_of(tensors, columns, sorted_by=0)


def offers(found: Sequence[Offer], whole: int) -> Table:
    """What each strategy would give."""
    columns: Columns[Plan] = {
        "strategy": lambda plan: Cell(plan.strategy),
        "activations": lambda plan: size(plan.predicted.peak_activations),
        "saved": lambda plan: share(whole - plan.predicted.peak_activations, whole),
        "overhead": lambda plan: share(plan.overhead),
    }
    return table_of([offer.plan for offer in found if offer.plan is not None], columns, top=ALL)


def pareto(title: str, found: Pareto) -> Document:
    """The picture, the frontier, and every strategy's plan."""
    plot = plot_of(found)
    whole = found.base.peak_activations
    text = (
        f"{format_bytes(whole)} of activations without a plan; no plan can go below {format_bytes(found.lower_bound)}"
    )
    legend = Line(f"● frontier, a letter: a strategy, {SEVERAL}: several, ┄ lower bound", "dim")
    sections = [
        Section(title, (Line(text),)),
        Section("Peak of activations against overhead", (plot, legend)),
        Section("Frontier", (frontier(found),)),
    ]
    if found.offers:
        refused = [Line(f"{made.strategy}: {made.reason}") for made in found.offers if made.plan is None]
        sections.append(Section("What each strategy would give", (_strategies(found, plot.marks), *refused)))
    return Document("", tuple(sections))


def frontier(found: Pareto) -> Table:
    """The plans on the frontier."""
    whole, knee = found.base.peak_activations, found.points[found.knee] if len(found.points) > 2 else None
    columns: Columns[Plan] = {
        "activations": lambda plan: size(plan.predicted.peak_activations),
        "saved": lambda plan: share(whole - plan.predicted.peak_activations, whole),
        "overhead": lambda plan: share(plan.overhead),
        "repeats": lambda plan: number(plan.recomputed),
        "found by": lambda plan: Cell(plan.strategy),
        "": lambda plan: Cell("knee" if plan is knee else ""),
    }
    return table_of(found.points, columns, top=ALL)


def _strategies(found: Pareto, marks: tuple[Mark, ...]) -> Table:
    whole = found.base.peak_activations
    columns: Columns[Mark] = {
        "": lambda mark: Cell(mark.letter),
        "strategy": lambda mark: Cell(mark.strategy),
        "activations": lambda mark: size(mark.peak),
        "saved": lambda mark: share(whole - mark.peak, whole),
        "overhead": lambda mark: share(mark.overhead),
        "dearer than the frontier by": lambda mark: _behind(mark, found),
    }
    return table_of(marks, columns, top=ALL)


def _behind(mark: Mark, found: Pareto) -> Cell:
    """How much less overhead the frontier has at a strategy's peak."""
    cheapest = min((p.overhead for p in found.points if p.predicted.peak_activations <= mark.peak), default=None)
    if cheapest is None or mark.overhead - cheapest < 5e-4:
        return Cell("-")
    return share(mark.overhead - cheapest)
