"""Running two files and judging what came out; shared by `verify` and by what has a `--verify`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from ckplan.cli.terminal.streams import notes, stage
from ckplan.display import file_name
from ckplan.errors import CheckFailedError, UsageError

if TYPE_CHECKING:
    import onnx_ir as ir

    from ckplan.meter import Verification
    from ckplan.pipeline import Step


def check_inputs(step: Step, inputs: Path | None, *, with_proof: bool) -> None:
    """Fail before anything is planned or written if the files of a step will not run on these inputs.

    Raises:
        UsageError: the arrays do not fit the step, or nothing is run.
    """
    seeded = click.get_current_context().get_parameter_source("seed") is ParameterSource.COMMANDLINE
    if not with_proof and (inputs is not None or seeded):
        named = "`--seed` is that of what the files run on" if inputs is None else "`--inputs` is what the files run on"
        raise UsageError(f"{named}, and none is run", "add --verify, or leave it out")
    if inputs is not None:
        from ckplan.meter.inputs import make_inputs

        make_inputs(step.model, file=inputs)


def check_device(device: str, *, with_proof: bool) -> None:
    """Fail before anything is planned or written if files are to run on a device that is not there.

    Raises:
        EnvironmentUnavailableError: CUDA is asked for, and does not start here.
    """
    if with_proof:
        from ckplan.meter.trial import check_starts

        check_starts(device)


def check_run_limit(*, runs: bool = False, cost: str | None = None, option: str = "--verify") -> None:
    """Fail before any work is done if runs are limited where no file is run.

    Args:
        runs: whether files run.
        cost: what nodes cost; all but shapes, and what is chosen without a word, is found by running.
        option: what makes files run.

    Raises:
        UsageError: nothing runs.
    """
    limited = click.get_current_context().get_parameter_source("run_limit") is ParameterSource.COMMANDLINE
    if limited and not runs and cost in (None, "flops"):
        raise UsageError("`--run-limit` is that of what runs, and nothing is run", f"add {option}, or leave it out")


def run_both(base: Path, new: Path, *, device: str, inputs: Path | None, seed: int) -> Verification:
    """Measure two files on the same inputs; says on stderr which device ran."""
    from ckplan.meter import verify

    with stage("running both files"):
        found = verify(base, new, device=device, inputs=inputs, seed=seed)
    notes([f"ran on {found.new.device} in onnxruntime {found.new.onnxruntime}"])
    return found


def prove(step: Step, name: str, new: Path | ir.Model, *, device: str, inputs: Path | None, seed: int) -> Verification:
    """Measure a planned step beside the one without a plan, which is written for that alone.

    Args:
        step: what was planned.
        name: what the model is called.
        new: the planned step, or the file that holds it.
        device: where to run.
        inputs: what to feed; random by default.
        seed: of what is random.
    """
    from ckplan.model import save
    from ckplan.model.files.weights import scratch_folder
    from ckplan.writer.describe import promise

    with scratch_folder(step.model) as folder:
        base, planned = (folder / f"{file_name(name)} {which} a plan.onnx" for which in ("without", "with"))
        promise(step.ordered, step.baseline)
        save(step.ordered, base)
        if isinstance(new, Path):
            planned = new
        else:
            save(new, planned)
        return run_both(base, planned, device=device, inputs=inputs, seed=seed)


def check(found: Verification) -> None:
    """Fail if there is anything a user must know before trusting the new file.

    Raises:
        CheckFailedError: the first such thing, and how many there are.
    """
    if found.problems:
        more = f" (and {len(found.problems) - 1} more)" if len(found.problems) > 1 else ""
        raise CheckFailedError(found.problems[0].rstrip(".") + more)
