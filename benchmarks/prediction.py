"""Predicted against measured activation peaks: sample models, the light_* models of onnx, exports of transformers.

    python -m benchmarks.prediction [--only gpt_tiny light_resnet50 bert] [--batch 2] [--results build/prediction.jsonl]

Of each network at each batch size four training files are made: the baseline (strategy `none`) and three plans. What
is predicted is what the file's metadata say; the counter is onnxruntime's own, under default session options; the heap
is the second meter (memray, arena off). Every network runs in a process of its own. Results are appended to a file of
JSON lines as they come, and what stands there is not measured again, so that a run can be interrupted and goes on;
`--table` prints the table of a file and measures nothing, `--again` measures anew.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import onnx

from benchmarks.exports import EXPORTS, export
from benchmarks.files import Reference, peaks
from ckplan.errors import CkplanError, InfeasibleError
from ckplan.model import save
from ckplan.pipeline import Goal, Step, StepOptions, open_step, rewrite
from ckplan.planner.strategies import parse_strategy
from sample_models.catalogue import BUILDERS
from sample_models.light_models import NAMES as LIGHT_NAMES
from sample_models.light_models import light_model

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "prediction.jsonl"
STRATEGIES = ("none", "sqrt", "memory", "auto:steps=0")
SHARE = 0.6
"""The budget of `auto`, as a ratio of the baseline's peak; where there is no such plan, it gives the knee."""
TIME_LIMIT = 1800
"""Seconds for all files of one network at one batch size."""


@dataclass(frozen=True)
class Network:
    """A forward model at some sizes.

    Attributes:
        group: where it comes from.
        path: makes the file for a batch size in a folder.
        batches: the sizes to measure.
        symbolic: whether the file leaves the batch open, under the name ``batch``.
        images: whether the batch is set by the shape of the image input, 224x224.
    """

    group: str
    path: Callable[[int, Path], Path]
    batches: tuple[int, ...]
    symbolic: bool = False
    images: bool = False


def _committed(name: str) -> Network:
    # Some MiB of activations each.
    batch = {"mlp": 2048, "tanh_chain": 2048}.get(name, 32)
    return Network("sample", lambda batch, folder: ROOT / "sample_models" / f"{name}.onnx", (batch,), symbolic=True)


def _built(name: str, batch: int, **options: int) -> Network:
    def path(batch: int, folder: Path) -> Path:
        onnx.save(BUILDERS[name](**options), folder / "forward.onnx")
        return folder / "forward.onnx"

    return Network("sample", path, (batch,), symbolic=True)


def _light(name: str) -> Network:
    def path(batch: int, folder: Path) -> Path:
        onnx.save(light_model(name), folder / "forward.onnx")
        return folder / "forward.onnx"

    return Network("light", path, (1, 2), images=True)


NETWORKS: Mapping[str, Network] = {
    **{path.stem: _committed(path.stem) for path in sorted((ROOT / "sample_models").glob("*.onnx"))},
    "vgg16": _built("vgg16", 4, image=64),
    "mobilenet_v3": _built("mobilenet_v3", 8, image=96),
    "vit_sample": _built("vit", 4, image=96, layers=4, width=128, heads=4),
    "lstm": _built("lstm", 16, layers=2, width=128, vocabulary=512, sequence=64),
    **{name: _light(name) for name in LIGHT_NAMES},
    **{
        name: Network("export", partial(lambda name, batch, folder: export(name, batch), name), (4,))
        for name in EXPORTS
    },
}


def measured(name: str, batch: int) -> Iterator[dict[str, Any]]:
    """A result for each strategy on one network."""
    network = NETWORKS[name]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        try:
            path = network.path(batch, folder)
            shapes = {image_input(path): (batch, 3, 224, 224)} if network.images else {}
            dims = {"batch": batch} if network.symbolic else {}
            step = open_step(path, StepOptions.of(dims=dims, shapes=shapes))
            reference = Reference(step.ordered)
        except CkplanError as error:
            for strategy in STRATEGIES:
                yield {"strategy": strategy, "failure": str(error)}
            return
        for strategy in STRATEGIES:
            try:
                yield {"strategy": strategy, **_measured(step, strategy, reference, folder / "planned.onnx")}
            except CkplanError as error:
                yield {"strategy": strategy, "failure": str(error)}


def _measured(step: Step, strategy: str, reference: Reference, path: Path) -> dict[str, Any]:
    solver, note = parse_strategy(strategy), ""
    try:
        planned = rewrite(step, solver, Goal(share=SHARE) if strategy.startswith("auto") else Goal())
    except InfeasibleError:
        planned, note = rewrite(step, solver), "knee"
    save(planned.model, path, force=True)
    found = peaks(path, cut=True)
    error = found["predicted"] / found["counter"] - 1
    planned_peak = planned.plan.predicted.peak_activations
    return {**found, "planned": planned_peak, "error": error, "differ": reference.differing(path), "note": note}


def image_input(path: Path) -> str:
    """The name of a file's first input that has no initializer."""
    graph = onnx.load(path, load_external_data=False).graph
    initializers = {tensor.name for tensor in graph.initializer}
    return str(next(value.name for value in graph.input if value.name not in initializers))


def table(results: Iterable[Mapping[str, Any]]) -> list[str]:
    """The results as lines of Markdown, with a summary: sizes in MiB, errors of the prediction in percent."""
    results = list(results)
    lines = ["| network | batch | strategy | planned | predicted | counter | heap | error % | bits |", "|---" * 9 + "|"]
    for result in results:
        head = f"| {result['network']} | {result['batch']} | {label(result)} "
        if "failure" in result:
            lines.append(f"{head}| {result['failure']} ||||||")
            continue
        sizes = (result["planned"], result["predicted"], result["counter"], result["heap"])
        figures = " | ".join("-" if size is None else f"{size / 2**20:.2f}" for size in sizes)
        bits = f"{len(result['differ'])} differ" if result["differ"] else "equal"
        lines.append(f"{head}| {figures} | {100 * result['error'] + 0.0:.2f} | {bits} |")
    errors = [abs(result["error"]) for result in results if "error" in result]
    if errors:
        failed = len(results) - len(errors)
        worst = max((result for result in results if "error" in result), key=lambda result: abs(result["error"]))
        networks = len({result["network"] for result in results if "error" in result})
        lines += [
            "",
            f"{len(errors)} files of {networks} networks: median error {100 * statistics.median(errors):.3f} %, "
            f"worst {100 * max(errors):.2f} % ({worst['network']}, batch {worst['batch']}, {label(worst)}); "
            f"{sum(error <= 0.005 for error in errors)} within 0.5 %, "
            f"{sum(error <= 0.02 for error in errors)} within 2 %; {failed} failed.",
        ]
    return lines


def label(result: Mapping[str, Any]) -> str:
    """The strategy as the table calls it."""
    name = str(result["strategy"]).split(":")[0]
    return name if name != "auto" else "auto, knee" if result.get("note") else f"auto, {SHARE:.0%}"


def _key(result: Mapping[str, Any]) -> tuple[int, int, int]:
    known = list(NETWORKS)
    return known.index(result["network"]), result["batch"], STRATEGIES.index(result["strategy"])


def read(path: Path) -> list[dict[str, Any]]:
    """The results in a file, the last one of each case, in the order of the table."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = [result for line in lines if (result := json.loads(line))["network"] in NETWORKS]
    return [result for _, result in sorted({_key(result): result for result in found}.items())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=list(NETWORKS), metavar="NETWORK")
    parser.add_argument("--batch", type=int, help="in place of each network's own sizes")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--again", action="store_true", help="measure what has a result, too")
    parser.add_argument("--table", action="store_true", help="print the table of the results only")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        (name,) = arguments.only
        for result in measured(name, arguments.batch):
            print(json.dumps({"network": name, "batch": arguments.batch, **result}), flush=True)
        return
    done = set() if arguments.again else {(r["network"], r["batch"]) for r in read(arguments.results)}
    wanted = [
        (name, batch)
        for name in arguments.only
        for batch in ((arguments.batch,) if arguments.batch else NETWORKS[name].batches)
    ]
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    for name, batch in wanted:
        if arguments.table or (name, batch) in done:
            continue
        command = [sys.executable, "-m", "benchmarks.prediction", "--child", "--only", name, "--batch", str(batch)]
        try:
            child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIME_LIMIT)
            lines, trouble = child.stdout.splitlines(), child.stderr.splitlines()[-1:] if child.returncode else []
        except subprocess.TimeoutExpired as error:
            lines, trouble = str((error.stdout or b"").decode()).splitlines(), [f"not done within {TIME_LIMIT} s"]
        results = [json.loads(line) for line in lines if line.startswith("{")]
        known = {result["strategy"] for result in results}
        results += [
            {"network": name, "batch": batch, "strategy": strategy, "failure": " ".join(trouble) or "no result"}
            for strategy in STRATEGIES
            if strategy not in known
        ]
        with arguments.results.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(result) + "\n" for result in results)
        print("\n".join(table(results)[2:]), file=sys.stderr, flush=True)
    chosen = set(wanted)
    print(
        "\n".join(table(result for result in read(arguments.results) if (result["network"], result["batch"]) in chosen))
    )


if __name__ == "__main__":
    main()
