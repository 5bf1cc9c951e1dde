"""Compare files: two models, a model and a baseline, two results, or the models of a configuration."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ckplan.arguments import check_kind, check_table, path_of
from ckplan.comparison.files import Sides, is_json, read_snapshots
from ckplan.comparison.judging import Check, Comparison, Limits, judge
from ckplan.comparison.settings import Settings, unknown
from ckplan.comparison.snapshot import Fingerprint, Snapshot
from ckplan.comparison.taking import fingerprint_of, take, versions
from ckplan.errors import CkplanError, ModelError, UsageError
from ckplan.isolation.collecting import fewer_collections
from ckplan.model.files.read import read
from ckplan.pipeline.options import spell_options
from ckplan.pipeline.step import Progress

_RAISE_LIMIT = "to accept it, raise --max-regression"


@dataclass(frozen=True)
class Target:
    """A model to check.

    Attributes:
        name: what it is called in baselines and reports.
        path: its file.
        options: settings that were asked for, by name; see `Settings.of`.
        limits: what it must keep to.
    """

    name: str
    path: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class How:
    """How to compare.

    Attributes:
        device: where to run the models as well; None does not run them.
        accepting: whether what is compared becomes the new baseline: then nothing that has grown is held against it,
            and a base that does not fit is none.
        progress: called with what is being done, in words.
    """

    device: str | None = None
    accepting: bool = False
    progress: Progress = lambda doing: None


@fewer_collections()
def compare_files(
    base: str | os.PathLike[str] | None,
    head: str | os.PathLike[str],
    options: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    how: How | None = None,
) -> Comparison:
    """Compare two files, each a model, a baseline or a result; or judge a model by its budget alone.

    Where one of them is a baseline, its settings count for the model too, as far as no others are given.

    Args:
        base: the older side; None if there is none.
        head: the newer side.
        options: settings that were asked for, by name; see `Settings.of`.
        limits: what the newer side must keep to; by default it must not take more than the base.
        how: whether to run the models, and whether to accept what they take.

    Raises:
        ModelError: a file cannot be read, or is of another model than the other.
        UsageError: an option does not fit, or an argument is of another kind.
    """
    older, newer = None if base is None else path_of("the base", base), path_of("the head", head)
    options = {} if options is None else options
    limits = Limits() if limits is None else limits
    how = How() if how is None else how
    check_table("`options`", options)
    check_kind("`limits`", limits, Limits, "make them with `ckplan.Limits`")
    check_kind("`how`", how, How, "make it with `ckplan.comparison.How`")
    options = _options(options, limits)
    if older is not None and is_json(older):
        bases = _base_sides(older, how)
        if is_json(newer):
            return _compare_sides(older, bases, newer, read_snapshots(newer), options, limits)
        return _against_baseline(older, bases, Target(newer.stem, newer, options, limits), how)
    if is_json(newer):
        if older is None:
            raise UsageError(f"'{newer}' is not a model, and there is nothing to compare it with", "name two files")
        heads = read_snapshots(newer)
        name = _entry(newer, heads, older.stem)
        settings = _settings(heads[name].settings, options)
        before, notes = take(older, settings, device=how.device, progress=how.progress)
        notes += _fit(str(older), before, str(newer), heads[name])
        return Comparison((judge(name, str(newer), before, heads[name], limits),), notes, _RAISE_LIMIT)
    settings, paths = Settings.of(**options), [path for path in (older, newer) if path is not None]
    sides = [take(path, settings, device=how.device, progress=how.progress) for path in paths]
    notes = tuple(dict.fromkeys(note for _, said in sides for note in said))
    reference = sides[0][0] if older is not None else None
    check = judge(newer.stem, str(newer), reference, sides[-1][0], _limits(limits, how))
    return Comparison((check,), notes, _RAISE_LIMIT)


def compare_targets(targets: Sequence[Target], baseline: Path | None, command: str, how: How) -> Comparison:
    """Check the models of a configuration against their entries in a baseline.

    A model that cannot be checked does not keep the others from being checked.

    Args:
        targets: the models.
        baseline: file with their baselines; None judges by budgets alone.
        command: the command that compares these models, as remedies name it.
        how: whether to run the models, and whether to accept what they take.

    Raises:
        ModelError: the baseline cannot be read.
    """
    sides: Sides = {}
    saving = "" if baseline is None else f"{command} --save-baseline {shlex.quote(str(baseline))}"
    if baseline is not None and not baseline.exists() and not how.accepting:
        raise ModelError(f"there is no file '{baseline}'", f"make the baseline: `{saving}`")
    if baseline is not None and baseline.exists():
        sides = _base_sides(baseline, how)
    checks, notes = [], list(dict.fromkeys(note for side in sides.values() for note in _aged(baseline, side, how)))
    for target in targets:
        try:
            check, said = _checked(target, sides.get(target.name), baseline, how)
        except CkplanError as error:
            check, said = Check(target.name, str(target.path), None, None, target.limits, error=error), ()
        checks.append(check)
        notes += [f"{target.name}: {note}" for note in said]
    left = [name for name in sides if name not in {target.name for target in targets}]
    if left and baseline is not None:
        notes.append(f"'{baseline}' holds what no model of the configuration asks for: {', '.join(left)}")
    return Comparison(tuple(checks), tuple(notes), f"to accept it: `{saving} --force`" if saving else "")


def _checked(target: Target, base: Snapshot | None, baseline: Path | None, how: How) -> tuple[Check, tuple[str, ...]]:
    if baseline is not None and base is None and not how.accepting:
        raise ModelError(f"baseline '{baseline}' has no model '{target.name}'", "save it again")
    settings = Settings.of(**_options(target.options, target.limits))
    if base is not None and base.fingerprint is not None:
        # Before the work: what does not fit need not be planned, and the settings of another model fail oddly.
        mark = fingerprint_of(read(target.path))
        if not how.accepting:
            _check_model(str(baseline), base.fingerprint, str(target.path), mark)
        base = base if base.fingerprint.same_model(mark) else None
    head, notes = take(target.path, settings, device=how.device, progress=how.progress)
    return judge(target.name, str(target.path), base, head, _limits(target.limits, how)), notes


def _against_baseline(path: Path, bases: Sides, target: Target, how: How) -> Comparison:
    files = " ".join([shlex.join((str(path), str(target.path))), spell_options(target.options)]).rstrip()
    accept = f"to accept it: `ckplan compare {files} --save-baseline {shlex.quote(str(path))} --force`"
    name = target.name if how.accepting and target.name not in bases and len(bases) != 1 else None
    name = name or _entry(path, bases, target.name)
    base = bases.get(name)
    settings = _settings(base.settings if base is not None else None, target.options)
    check, notes = _checked(replace(target, name=name, options=settings.options()), base, path, how)
    if base is not None and base.settings == settings and not target.options and settings != Settings():
        notes = (f"settings are the baseline's: {settings}", *notes)
    if base is not None:
        notes = (*_aged(path, base, how), *notes)
    others = {other: side for other, side in bases.items() if other != name}
    return Comparison((check,), notes, accept, others)


def _compare_sides(
    base: Path, bases: Sides, head: Path, heads: Sides, options: Mapping[str, Any], limits: Limits
) -> Comparison:
    if asked := [name for name in options if name != "budget"]:
        raise UsageError(
            f"both files are results, which are compared as they are, without {', '.join(asked)}", "leave it out"
        )
    if len(bases) == len(heads) == 1:
        bases = dict(zip(heads, bases.values(), strict=True))  # whatever they are called
    names = [name for name in heads if name in bases]
    if not names:
        raise ModelError(
            f"'{base}' ({', '.join(bases)}) and '{head}' ({', '.join(heads)}) have no model in common",
            "compare results of the same models",
        )
    checks: list[Check] = []
    notes: list[str] = []
    for name in names:
        notes += _fit(str(base), bases[name], str(head), heads[name])
        checks.append(judge(name, str(head), bases[name], heads[name], limits))
    if len(names) > 1 and (odd := sorted({*bases, *heads} - set(names))):
        notes.append(f"only one of the files has {', '.join(odd)}")
    return Comparison(tuple(checks), tuple(dict.fromkeys(notes)), _RAISE_LIMIT)


def _base_sides(path: Path, how: How) -> Sides:
    """What a baseline holds; one that cannot be read is none where a new one is written."""
    try:
        return read_snapshots(path)
    except ModelError:
        if how.accepting and path.exists():
            return {}
        raise


def _entry(path: Path, sides: Sides, name: str) -> str:
    """Which entry of a file a model is compared with: its only one, or the one of that name."""
    if name in sides:
        return name
    if len(sides) == 1:
        return next(iter(sides))
    raise ModelError(f"'{path}' has no model '{name}'", unknown(name, sides))


def _options(options: Mapping[str, Any], limits: Limits) -> Mapping[str, Any]:
    """The settings of a model: the budget that it is held against is what its plan is to keep to."""
    return options if limits.budget is None else {**options, "budget": limits.budget}


def _settings(stored: Settings | None, options: Mapping[str, Any]) -> Settings:
    """Settings of a baseline, with those that were asked for in their place."""
    return Settings.of(**{**(stored.options() if stored is not None else {}), **options})


def _limits(asked: Limits, how: How) -> Limits:
    """The limits that count: where what has grown is accepted, none against growth."""
    return replace(asked, max_regression=None, warn_regression=None) if how.accepting else asked


def _fit(older: str, base: Snapshot, newer: str, head: Snapshot) -> tuple[str, ...]:
    """What must be known of two sides to compare them. Raises ModelError for two of other models."""
    _check_model(older, base.fingerprint, newer, head.fingerprint)
    return _other_versions(older, base, f"'{newer}' with", (head.ckplan, head.onnxruntime))


def _check_model(older: str, base: Fingerprint | None, newer: str, head: Fingerprint | None) -> None:
    """Raises ModelError for a side that is of another model, as far as that is known."""
    if base is not None and head is not None and not base.same_model(head):
        raise ModelError(
            f"'{older}' is of model {base}, '{newer}' of model {head}",
            "compare a model with a baseline of its own; if it is the same one, save the baseline again",
        )


def _aged(baseline: Path | None, base: Snapshot, how: How) -> tuple[str, ...]:
    """A note for a baseline of other versions than these, unless it is about to be replaced."""
    return () if how.accepting else _other_versions(str(baseline), base, "this is", versions())


def _other_versions(older: str, base: Snapshot, newer: str, made: tuple[str, str]) -> tuple[str, ...]:
    """A note for a side that other versions of ckplan or onnxruntime made.

    It is compared all the same: an upgrade that takes more memory is what a check is there to show.
    """
    programs = zip(("ckplan", "onnxruntime"), (base.ckplan, base.onnxruntime), made, strict=True)
    return tuple(
        f"'{older}' was made with {program} {old}, {newer} {program} {new}; what differs may come from that"
        for program, old, new in programs
        if old and new and _planner(program, old) != _planner(program, new)
    )


def _planner(program: str, version: str) -> list[str]:
    """The part of a version that counts: patches of onnxruntime leave its planner alone."""
    return version.split(".")[:2] if program == "onnxruntime" else [version]
