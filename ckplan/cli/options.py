"""Options that several commands share, as decorators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click

from ckplan.cli.terminal import completion
from ckplan.cli.terminal.help import section, stack
from ckplan.cli.terminal.streams import Settings
from ckplan.cli.values import (
    OUTPUT,
    PATH,
    read_budget,
    read_chunks,
    read_dims,
    read_memory,
    read_numbers,
    read_open_dims,
    read_reports,
    read_shapes,
    read_share,
)
from ckplan.errors import UsageError


def _gathered(function: Callable[..., Any]) -> Callable[..., Any]:
    """A command that gets its options about the step as one value, ``asked``."""

    @wraps(function)
    def command(*arguments: Any, **options: Any) -> Any:
        from ckplan.pipeline import StepOptions

        own = {name: options.pop(name) for name in STEP if name in options}
        return function(*arguments, asked=StepOptions.of(**own), **options)

    return command


def _aimed(function: Callable[..., Any]) -> Callable[..., Any]:
    """A command that gets its options about the plan as two values, ``strategy`` and ``goal``."""

    @wraps(function)
    def command(*arguments: Any, strategy: str, **options: Any) -> Any:
        from ckplan.pipeline import Goal
        from ckplan.planner.strategies import parse_strategy

        own = {name: options.pop(name) for name in _GOAL if name in options}
        goal = Goal.of(**own)
        return function(*arguments, strategy=goal.asked_of(parse_strategy(strategy)), goal=goal, **options)

    return command


def _set(ctx: click.Context, param: click.Parameter, value: bool, *, name: str) -> None:
    if value:
        settings = ctx.ensure_object(Settings)
        setattr(settings, name, True)
        if settings.quiet and settings.verbose:
            raise UsageError("`--quiet` leaves out what `--verbose` asks for", "give one of them")


def _limit_runs(ctx: click.Context, param: click.Parameter, seconds: float | None) -> None:
    if seconds is not None:
        from ckplan.meter import run_limit

        ctx.with_resource(run_limit(seconds))


def _use_custom_ops(ctx: click.Context, param: click.Parameter, libraries: Sequence[Path]) -> None:
    if libraries:
        from ckplan.operators.sessions import use_custom_ops

        for library in libraries:
            use_custom_ops(library)


_DEVICE = "Where files run, if they are run; with cuda, they are made for its kernels."
_DIM = "Size of a named dimension, such as batch=8. Repeatable."

model_argument = click.argument("model", type=PATH)

force_option = click.option("-f", "--force", is_flag=True, help="Overwrite files that exist.")

output_options = stack(
    click.option("-o", "--output", required=True, type=OUTPUT, metavar="OUT", help="Where to write."), force_option
)

copy_option = click.option(
    "--copy-weights", is_flag=True,
    help="Copy weights that lie beside MODEL. Default: OUT reads the same data file, or shares its bytes.",
)  # fmt: skip

html_option = click.option(
    "--html", "page", type=OUTPUT, metavar="OUT.html", help="Also write a report for a browser: one file, offline."
)

html_options = stack(html_option, force_option)

picture_options = stack(
    click.option("-o", "--output", type=OUTPUT, metavar="OUT", help="Where to write."), force_option
)

talk_options = section(
    "Messages",
    click.option(
        "-q", "--quiet", is_flag=True, expose_value=False, callback=partial(_set, name="quiet"),
        help="No notes and no progress on stderr.",
    ),
    click.option(
        "--no-color", is_flag=True, expose_value=False, callback=partial(_set, name="no_color"),
        help="No colour; NO_COLOR in the environment does the same.",
    ),
    click.option(
        "--debug", is_flag=True, expose_value=False, is_eager=True, callback=partial(_set, name="debug"),
        help="Show the traceback of an error.",
    ),
)  # fmt: skip

verbose_option = section("Messages", click.option(
    "-v", "--verbose", is_flag=True, expose_value=False, callback=partial(_set, name="verbose"),
    help="Give reasons on stderr: what was tried, what was refused and why, what cannot be recomputed.",
))  # fmt: skip

json_option = section("Messages", click.option("--json", "as_json", is_flag=True, help="Print JSON with exact bytes."))

custom_ops_option = section(
    "Kernels",
    click.option(
        "--custom-ops", multiple=True, type=PATH, metavar="LIBRARY", expose_value=False, callback=_use_custom_ops,
        help="Shared library with onnxruntime kernels of operators that it does not know itself. Repeatable.",
    ),
)  # fmt: skip

report_option = section(
    "Messages",
    click.option(
        "--report", "reports", multiple=True, metavar="FORMAT=OUT", callback=read_reports,
        help="Also write the answer to a file: as text, markdown, junit, github, or in a format that a package adds. "
        "Repeatable.",
    ),
)  # fmt: skip

shape_options = stack(section(
    "Sizes",
    click.option(
        "--dim", "dims", multiple=True, metavar="NAME=N", callback=read_dims,
        help=_DIM,
    ),
    click.option(
        "--shape", "shapes", multiple=True, metavar="INPUT=N,N,...", callback=read_shapes,
        help="Shape of an input, such as x=8,3,224,224. Repeatable.",
    ),
), custom_ops_option)  # fmt: skip

set_option = section(
    "Sizes",
    click.option(
        "--set", multiple=True, metavar="INPUT=VALUE", callback=read_numbers,
        help="Set an input to a number, or to numbers with commas, such as sr=16000; branches that this rules out are "
        "removed. Repeatable.",
    ),
)  # fmt: skip

_objective_options = section(
    "What is differentiated",
    click.option(
        "--loss", multiple=True, metavar="LOSS",
        help="What to minimise: an output, or cross-entropy, mse, sum, mean or sum-of-squares of the first output, or "
        "of another (mse:OUTPUT). Several are summed. Default: chosen, and named in a note.",
    ),
    click.option(
        "--wrt", multiple=True, metavar="PATTERN",
        help="Differentiate only by parameters that match, such as 'layer4.*'. A pattern that matches no parameter "
        "selects inputs, or else activations. Repeatable.",
    ),
    click.option(
        "--no-grad", multiple=True, metavar="PATTERN",
        help="Leave out parameters that match. A pattern that matches none selects inputs or activations, and "
        "gradients stop there. Repeatable.",
    ),
    click.option(
        "--params", metavar="FILE",
        help="Differentiate by the parameters that FILE names: a list, one name a line, or a safetensors, npz or "
        "state-dict file with their values.",
    ),
    click.option(
        "--retain-grad", multiple=True, metavar="PATTERN",
        help="Also output the gradients of inputs or activations that match. Repeatable.",
    ),
    click.option(
        "--grad-ys", multiple=True, metavar="TENSOR",
        help="Differentiate this tensor, of any shape, from a gradient fed as input TENSOR_given_grad. Repeatable.",
    ),
    click.option(
        "--unused", type=click.Choice(["absent", "zero"]), default="absent", show_default=True,
        help="The gradient of a parameter that the loss does not depend on.",
    ),
    click.option(
        "--accumulation", type=click.Choice(["auto", "eager", "lazy"]), default="auto", show_default=True,
        help="Sum the gradients of a value with several readers as they come (eager), all at the end (lazy), or in the "
        "way that takes less memory.",
    ),
    click.option(
        "--loss-scale", metavar="S",
        help="Multiply gradients by S in the backward pass and divide them by it at its end, in float32; 'input' makes "
        "S an input, loss_scale.",
    ),
)  # fmt: skip

optimizer_options = stack(
    click.option(
        "--optimizer", metavar="NAME[:FIELD=VALUE,...]", shell_complete=completion.optimizers,
        help="Make new parameters of the gradients: sgd, momentum, adam or adamw, with options such as "
        "adamw:weight_decay=0.01,beta2=0.95. In a file, the learning rate is the input learning_rate.",
    ),
    click.option(
        "--clip-norm", type=float, metavar="NORM",
        help="Scale all gradients down by one factor if their joint norm is larger than this.",
    ),
)  # fmt: skip

_training_step_options = section(
    "Training",
    click.option(
        "--training", is_flag=True,
        help="Use the training forms of BatchNormalization (statistics of the batch; new running statistics are "
        "outputs) and Dropout (a mask is drawn).",
    ),
    optimizer_options,
    click.option(
        "--lora", metavar="FIELD=VALUE,...",
        help="Freeze the model and train low-rank adapters of its linear layers: rank=8, alpha=16, "
        "targets=q_proj;v_proj (names or patterns; default: all).",
    ),
    click.option(
        "--straight-through", is_flag=True,
        help="Pass gradients through QuantizeLinear/DequantizeLinear pairs and Round as if they were not there.",
    ),
    click.option(
        "--time-checkpoints", metavar="N|sqrt", callback=read_chunks,
        help="Cut each loop or recurrent layer into N chunks of steps, keep the states between them, and recompute a "
        "chunk in the backward pass; 'sqrt': about the root of the number of steps.",
    ),
    click.option(
        "--store", multiple=True, metavar="PATTERN",
        help="Keep these values of each step of a loop instead of recomputing them; 'none': only carried states. "
        "Default: also what is expensive. Repeatable.",
    ),
    click.option(
        "--chunks", metavar="auto|off|N|KIND=N,...", default="off", show_default=True,
        help="Run regions in pieces, so that what is large inside them never exists whole: a loss head's logits "
        "(loss=16; loss=16x2 for less memory and more compute), the scores of attention (attention=8), what works "
        "token by token between attentions (tokens=8), or all that works sample by sample (batch=4); masks=8 keeps "
        "masks of Dropout in bits. A number alone is for losses and attentions; 'auto' lets the plan decide.",
    ),
)  # fmt: skip

training_options = stack(_objective_options, _training_step_options)

inference_option = section("What is differentiated", click.option(
    "--inference", is_flag=True,
    help="Plan MODEL as it is, without loss and gradients: a model that is only run, or any other graph.",
))  # fmt: skip


def _names(*decorators: Callable[[Any], Any]) -> frozenset[str]:
    """The names of the options that decorators add."""

    def bare() -> None: ...

    return frozenset(option.name for option in stack(*decorators)(bare).__click_params__)


STEP = _names(inference_option, shape_options, set_option, training_options)
"""The options about the step, which a command gets as one value."""

step_options = stack(_gathered, inference_option, shape_options, set_option, training_options)

training_step_options = stack(_gathered, shape_options, set_option, training_options)

budget_option = click.option(
    "--budget", metavar="SIZE|PERCENT", callback=read_budget,
    help="Peak of activations not to exceed, such as 512MiB, or 40% of what the step takes without a plan.",
)  # fmt: skip

of_option = section("Plan", click.option(
    "--of", type=click.Choice(["activations", "arena", "total"]), default="activations", show_default=True,
    help="What the budget is of: activations; what onnxruntime's arena holds after a few runs with default options, "
    "outputs included; or all that a process with the file holds: parameters and state as well.",
))  # fmt: skip

strategy_option = click.option(
    "--strategy", default="auto", show_default=True, metavar="NAME[:FIELD=VALUE,...]",
    shell_complete=completion.strategies, help="How to plan; `ckplan strategies` lists them.",
)  # fmt: skip

strategies_option = click.option(
    "--strategy", "strategies", multiple=True, metavar="NAME[:FIELD=VALUE,...]", shell_complete=completion.strategies,
    help="Strategy to try. Repeatable. Default: all but `exact` and `search`.",
)  # fmt: skip

time_limit_option = click.option(
    "--time-limit", "seconds", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
    help="How long to search for a plan, and for fit: for the size; a file that is being written then is finished. "
    "Ctrl-C ends the search as well, with the best plan so far.",
)  # fmt: skip

overhead_option = click.option(
    "--overhead", metavar="PERCENT", callback=read_share,
    help="Extra compute that the plan may cost, such as 10%. Without a budget: the lowest peak for that. "
    "What nodes cost, --cost says; fit and artifacts go by shapes.",
)  # fmt: skip

_GOAL = ("budget", "overhead", "seconds", "of")
"""What `Goal.of` takes, as the options are called."""

planning_options = stack(
    _aimed, section("Plan", strategy_option, budget_option, overhead_option, time_limit_option)
)  # fmt: skip

limit_options = stack(_aimed, section(
    "Plan",
    click.option(
        "--memory", required=True, metavar="SIZE", callback=read_memory,
        help="Memory that a process may take, such as 8GiB: parameters, state, activations, and what onnxruntime adds.",
    ),
    overhead_option,
    time_limit_option,
), strategy_option)  # fmt: skip

open_step_options = stack(
    _gathered,
    section(
        "Sizes",
        click.option(
            "--dim", "sizes", multiple=True, metavar="NAME=?|NAME=N", callback=read_open_dims,
            help=_DIM,
        ),
    ),
    custom_ops_option,
    set_option,
    training_options,
)  # fmt: skip

plan_file_option = click.option(
    "--plan", "plan_file", type=PATH, metavar="PLAN",
    help="Use this plan, made by `ckplan plan`, instead of a strategy.",
)  # fmt: skip

device_option = section(
    "Runs",
    click.option(
        "--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True,
        help=_DEVICE,
    ),
    click.option(
        "--run-limit", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", expose_value=False,
        callback=_limit_runs, help="Give up when loading a file, or one run of it, takes longer. Default: 600.",
    ),
)  # fmt: skip

kernels_option = section("Kernels", click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True,
    help=_DEVICE,
))  # fmt: skip

seed_option = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True,
    help="Seed of what is random: inputs, or the order of samples.",
)  # fmt: skip

cost_option = section("Plan", click.option(
    "--cost", type=click.Choice(["flops", "calibrated", "measured", "clock"]),
    help="What a node costs: from its shapes, from times of its kernels on this machine's CPU, or from a profiled run "
    "on the device; times are kept in the user's cache. clock: from shapes, and files are timed and planned again "
    "until a step costs the --overhead. Default: calibrated for --overhead, else flops.",
))  # fmt: skip

run_options = section(
    "Runs",
    device_option,
    click.option(
        "--inputs", type=PATH, metavar="NPZ", help="Arrays to feed, by input name. Default: random, from the seed."
    ),
    seed_option,
)  # fmt: skip
