"""Results for programs: plain data with exact bytes and a schema version."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckplan.autodiff.coverage import counts
from ckplan.meter.types import jsonable
from ckplan.report import SCHEMA, docs

if TYPE_CHECKING:
    from ckplan.answers.analysis import Analysis, Offer
    from ckplan.answers.explanation import Explanation
    from ckplan.answers.findings import Block, Chosen
    from ckplan.answers.fit import Fit
    from ckplan.answers.pareto import Pareto
    from ckplan.autodiff import TrainingGraph
    from ckplan.autodiff.coverage import Coverage
    from ckplan.bundle.manifest import Artifacts
    from ckplan.comparison import Check, Comparison
    from ckplan.meter import Bisection, Measurement, Verification
    from ckplan.meter.checkup import Finding
    from ckplan.pipeline import Planned
    from ckplan.planner import Plan, Timeline
    from ckplan.planner.strategies import Strategy
    from ckplan.training.trainer import Epoch

Json = dict[str, Any]


def _report(command: str, **content: Any) -> Json:
    return {"schema": SCHEMA, "command": command, **content}


def gradients(training: TrainingGraph, output: Path, notes: Sequence[str]) -> Json:
    """What ``ckplan grad`` wrote."""
    return _report("grad", output=str(output), **_training(training, notes))


def _training(training: TrainingGraph, notes: Sequence[str]) -> Json:
    return {
        "loss": {"name": training.loss, "description": training.description},
        # A gradient whose parameter is updated is no output.
        "gradients": {name: grad for name, grad in training.gradients.items() if name not in training.updates},
        "updates": dict(training.updates),
        "retained": dict(training.retained),
        "loss_scale": training.loss_scale,
        "notes": list(notes),
    }


def rewritten(
    made: Planned, output: Path, notes: Sequence[str], found: Verification | None, kept: Chosen | None = None
) -> Json:
    """What ``ckplan rewrite`` wrote, and what came out when it ran; of an inference graph there is no training."""
    return _report(
        "rewrite",
        **({"notes": list(notes)} if made.step.training is None else _training(made.step.training, notes)),
        footprint={"base": made.step.reference.footprint.to_json(), "planned": made.footprint.to_json()},
        blocks=blocks(kept),
        **_planned(made, output, found),
    )


def _planned(made: Planned, output: Path, verification: Verification | None) -> Json:
    return {
        "output": str(output),
        "base": _peaks(made.before),
        "planned": _peaks(made.after),
        "plan": made.plan.to_json(),
        "timing": made.timing and made.timing.to_json(),
        "verification": verification and verification.to_json(),
    }


def trained(epochs: Sequence[Epoch], checkpoint: Path | None, notes: Sequence[str]) -> Json:
    """What ``ckplan train`` came to."""
    last = checkpoint and str(checkpoint)
    return _report("train", epochs=jsonable(list(epochs)), checkpoint=last, notes=list(notes))


def exported(output: Path, source: str, weights: Sequence[str], notes: Sequence[str]) -> Json:
    """What ``ckplan export-weights`` wrote."""
    return _report("export-weights", output=str(output), source=source, weights=list(weights), notes=list(notes))


def reported(made: Planned, output: Path, notes: Sequence[str], verification: Verification | None) -> Json:
    """What the page shows that ``ckplan report`` wrote."""
    return _report("report", notes=list(notes), **_planned(made, output, verification))


def verification(found: Verification) -> Json:
    """What ``ckplan verify`` measured."""
    return _report("verify", **found.to_json())


def measurement(found: Measurement, limits: Bisection | None = None) -> Json:
    """What ``ckplan measure`` measured."""
    return _report("measure", **found.to_json(), bisection=limits and limits.to_json())


def _peaks(timeline: Timeline) -> Json:
    return {"peak_activations": timeline.peak_activations, "peak_total": timeline.peak_total}


def analysis(path: Path, found: Analysis, notes: Sequence[str], kept: Chosen | None = None) -> Json:
    """The whole answer of ``ckplan analyze``, the timeline of the step without a plan included."""
    contents = found.contents
    return _report(
        "analyze",
        model=str(path),
        nodes={"forward": contents.forward, "backward": contents.backward},
        opset=found.opset,
        trained=dict(zip(("parameters", "values"), contents.trained, strict=True)),
        loss=contents.loss,
        notes=list(notes),
        bytes={kind.value: count for kind, count in contents.bytes.items()},
        footprint=found.footprint.to_json(),
        base={**_peaks(found.base), "peak_step": found.base.peak_step, "timeline": found.base.to_json()},
        at_peak=jsonable(found.at_peak),
        bottlenecks=jsonable(found.bottlenecks),
        lower_bound=found.lower_bound,
        strategies=[_offer(offer) for offer in found.offers],
        blocks=blocks(kept),
    )


def _offer(offer: Offer) -> Json:
    if offer.plan is None:
        return {"strategy": offer.strategy, "reason": offer.reason}
    return {"strategy": offer.strategy, **_figures(offer.plan)}


def _figures(plan: Plan) -> Json:
    return {**_peaks(plan.predicted), "overhead": plan.overhead, "recomputed": plan.recomputed}


def pareto(path: Path, picture: Path | None, found: Pareto, notes: Sequence[str]) -> Json:
    """The whole answer of ``ckplan pareto``."""
    return _report(
        "pareto",
        model=str(path),
        picture=picture and str(picture),
        notes=list(notes),
        interrupted=found.interrupted,
        base=_peaks(found.base),
        lower_bound=found.lower_bound,
        frontier=[{"found_by": plan.strategy, **_figures(plan)} for plan in found.points],
        knee=found.knee,
        strategies=[_offer(offer) for offer in found.offers],
    )


def fit(path: Path, output: Path | None, found: Fit) -> Json:
    """The whole answer of ``ckplan fit``: what was tried, and the plan of the largest size that fits."""
    return _report(
        "fit",
        model=str(path),
        output=output and str(output),
        dimension=found.dimension,
        memory=found.memory,
        size=found.largest.size,
        notes=[*found.planned.step.notes, *found.remarks],
        sizes=[
            {
                "size": one.size,
                "fits": one.fits,
                "without_a_plan": one.plain or None,
                "footprint": one.footprint and one.footprint.to_json(),
                "overhead": one.overhead if one.fits else None,
                "reason": one.reason,
                "least": one.least,
            }
            for one in found.sizes
        ],
        plan=found.planned.plan.to_json(),
    )


def strategies(kinds: Sequence[type[Strategy]]) -> Json:
    """Each strategy with its options and their defaults."""
    told = [
        {"name": kind.name, "doc": "\n\n".join(docs.paragraphs(kind)), "options": jsonable(docs.options(kind))}
        for kind in kinds
    ]
    return _report("strategies", strategies=told)


def operators(standard: Sequence[Coverage], microsoft: Sequence[Coverage]) -> Json:
    """How each operator is differentiated or why it is not, and how many there are of each kind."""
    operators = [
        {"op": one.op_type, "domain": domain, "since": one.since, "kind": one.kind.value, "remark": one.remark}
        for domain, found in (("", standard), ("com.microsoft", microsoft))
        for one in found
    ]
    numbers = {kind.value: count for kind, count in counts(standard).items()}
    return _report("ops", counts=numbers, operators=operators)


def blocks(found: Chosen | None) -> Json | None:
    """What a plan does block by block, with the names of the tensors."""
    if found is None:
        return None
    return {
        "strategy": found.plan.strategy,
        "layers": [_block(block) for block in found.layers],
        "groups": [_block(block) for block in found.blocks],
    }


def _block(found: Block) -> Json:
    tensors: dict[str, list[str]] = {"kept": [], "recomputed": []}
    for decision in found.decisions:
        tensors["recomputed" if decision.times else "kept"].append(decision.tensor)
    sums = {"kept": found.kept, "recomputed": found.recomputed, "extra_seconds": found.seconds}
    return {"name": found.name, "count": found.count, **sums, "tensors": tensors}


def explanation(found: Explanation, notes: Sequence[str]) -> Json:
    """What a plan does with a tensor, and why."""
    block = None if found.block is None else {"name": found.block[0], "count": found.block[1]}
    return _report("explain", **{**jsonable(found), "block": block, "notes": list(notes)})


def artifacts(made: Artifacts, notes: Sequence[str]) -> Json:
    """The manifest of what ``ckplan artifacts`` wrote or checked, and where it lies."""
    return _report("artifacts", folder=str(made.folder), manifest=dict(made.manifest), notes=list(notes))


def checkup(found: Sequence[Finding]) -> Json:
    """What ``ckplan doctor`` looked at."""
    return _report("doctor", checks=jsonable(list(found)))


def comparison(found: Comparison) -> Json:
    """What ``ckplan compare`` found; `ckplan compare` reads it again as a side."""
    return _report(
        "compare",
        level=found.level.value,
        notes=list(found.notes),
        accept=found.accept,
        checks=[_check(check) for check in found.checks],
    )


def _check(check: Check) -> Json:
    return {
        "name": check.name,
        "source": check.source,
        "level": check.level.value,
        "error": None if check.error is None else str(check.error),
        "findings": [{**jsonable(finding), "level": finding.level.value} for finding in check.findings],
        "limit": check.limit,
        "limits": jsonable(check.limits),
        "growth": [
            {**jsonable(one.alive), "bytes": one.after, "before": one.before, "change": one.change}
            for one in check.growth
        ],
        "dropped": dict(check.dropped or {}),
        **{name: side and side.to_json() for name, side in (("base", check.base), ("head", check.head))},
    }
