"""Files as people have them: sample models, the onnx package's networks, and exports of other people's networks.

    python -m benchmarks.real_files [NAMES] [--jobs 2]     make what is missing of the table, and print it
    python -m benchmarks.real_files --table                print what is there

Each file is analysed, differentiated, rewritten to half its activations and verified, each in a process of its own. All
gradients are compared with torch's in float64: of the module itself, or for the files that came without one of its
operators run one by one. What was found is kept in build/real_files, a JSON file a row; delete one to recompute it.

Needs torch, transformers and onnxscript; timm and diffusers where they can be imported. A folder of their own on
PYTHONPATH leaves the environment as it is: ``pip install --no-deps --target DIR onnxscript timm diffusers==0.35.2
torchvision==0.28.0 pillow importlib_metadata zipp``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import logging
import multiprocessing
import multiprocessing.connection
import os
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import ckplan
from ckplan.errors import CkplanError
from ckplan.keys import STANDS_FOR

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "real_files"
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
SEARCH = 2
"""Seconds to look for a plan."""
LIMIT = 600
"""Seconds for a row."""

Arrays = dict[str, np.ndarray]


def names() -> list[str]:
    """All rows, in the order of the table."""
    samples = [path.stem for path in sorted((ROOT / "sample_models").glob("*.onnx"))]
    light = [path.stem for path in sorted(LIGHT.glob("light_*.onnx"))]
    return [*architectures(), *samples, *light]


def architectures() -> list[str]:
    """The networks of other packages, without importing torch."""
    from benchmarks.architectures import ARCHITECTURES

    return list(ARCHITECTURES)


def make_row(name: str, folder: Path, plan: bool = True) -> dict[str, Any]:
    """Try one file; everything that goes wrong is in the row.

    Args:
        name: of the row.
        folder: an empty one, for what is written.
        plan: whether the file is rewritten and verified as well.
    """
    row: dict[str, Any] = {"name": name}
    started = time.monotonic()

    def stage(what: str, work: Callable[[], Any]) -> Any:
        try:
            found = work()
        except CkplanError as error:
            row.setdefault("refused", f"{what}: {error}")
        except Exception as error:
            row.setdefault("failed", f"{what}: {type(error).__name__}: {str(error).splitlines()[:1]}")
            row.setdefault("traceback", traceback.format_exc())
        else:
            return found
        finally:
            row.setdefault("stages", {})[what] = round(time.monotonic() - started, 1)
        return None

    exported = stage("export", lambda: _file(name, folder))
    if exported is None:
        return row
    path, feeds, judge, options = exported
    step = stage("analyze", lambda: ckplan.open_model(path, **options))
    if step is None:
        return row
    row["notes"] = list(step.notes)
    row["nodes"] = [len(onnx.load(path, load_external_data=False).graph.node), len(step.model.graph)]
    analysis = stage("analyze", lambda: ckplan.analyze(step, strategies=["memory"]))
    if analysis is None:
        return row
    plain = folder / "plain.onnx"
    stage("grad", lambda: ckplan.save(step.ordered, plain, force=True))
    gradients = stage("grad", lambda: _gradients(step, plain, feeds))
    if gradients is None:
        return row
    gradients["plain"] = plain
    row |= stage("judge", lambda: judge(step, gradients)) or {}
    planned = None if not plan else stage("rewrite", lambda: _rewritten(step, row, folder / "planned.onnx"))
    if planned is not None:
        verified = stage("verify", lambda: ckplan.verify(plain, folder / "planned.onnx", runs=1, heap=False))
        if verified is not None:
            row["verified"] = _verdict(planned, verified)
    row["seconds"] = round(time.monotonic() - started, 1)
    return row


def _file(name: str, folder: Path) -> tuple[Path, Arrays, Callable[..., dict[str, Any]], dict[str, Any]]:
    """A row's file, what it is fed, who judges its gradients, and the options that it takes."""
    path = {file.stem: file for file in (*(ROOT / "sample_models").glob("*.onnx"), *LIGHT.glob("*.onnx"))}.get(name)
    if path is not None:
        return path, {}, lambda step, found: _by_graph(step, found, list(found["gradients"])), {"dims": {}}
    from benchmarks.architectures import ARCHITECTURES, build, example

    architecture = ARCHITECTURES[name]
    module, given = build(architecture), example(architecture)
    path = folder / "model.onnx"
    _export(module, given, path, architecture.dynamo)
    (fed,) = (value.name for value in onnx.load(path, load_external_data=False).graph.input)
    options = {"loss": "mse", "training": architecture.training, "shapes": {fed: tuple(given.shape)}}
    made = partial(build, architecture)
    return path, {fed: given.numpy()}, lambda step, found: _by_module(step, found, made, given), options


def _export(module: Any, given: Any, path: Path, dynamo: bool) -> None:
    import torch

    if dynamo:
        free = ({0: torch.export.Dim.AUTO},)
        torch.onnx.export(module, (given,), path, dynamic_shapes=free, verbose=False)
    else:
        training = torch.onnx.TrainingMode.TRAINING if module.training else torch.onnx.TrainingMode.EVAL
        torch.onnx.export(
            module, (given,), path, dynamo=False, opset_version=17, training=training,
            input_names=["given"], dynamic_axes={"given": {0: "batch"}},
        )  # fmt: skip


def _gradients(step: Any, plain: Path, feeds: Arrays) -> dict[str, Any]:
    """The gradients that onnxruntime finds in float32, and what was fed for them."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(plain, options, providers=["CPUExecutionProvider"])
    model = step.model
    random = np.random.default_rng(0)
    fed = dict(feeds)
    for value in model.graph.inputs:
        if value.name not in fed and not value.is_initializer():
            shape = tuple(value.shape)
            if value.dtype.is_floating_point():
                fed[value.name] = random.standard_normal(shape).astype(value.dtype.numpy())
            else:
                fed[value.name] = random.integers(0, 2, shape).astype(value.dtype.numpy())
    wanted = step.training.gradients
    found = session.run(list(wanted.values()), fed)
    return {"gradients": dict(zip(wanted, found, strict=True)), "fed": fed}


def _distance(pairs: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """Relative, in L2 over all arrays."""
    error = sum(float(np.sum((found.astype(np.float64) - expected) ** 2)) for found, expected in pairs)
    size = sum(float(np.sum(np.square(expected, dtype=np.float64))) for _, expected in pairs)
    return float(np.sqrt(error / size)) if size else float(np.sqrt(error))


def _by_graph(step: Any, found: dict[str, Any], wanted: list[str]) -> dict[str, Any]:
    """Gradients against those of the file's operators in torch, in float64."""
    from tests.oracles.torch_oracle import torch_gradients

    gradients = found["gradients"]
    try:
        _, expected = torch_gradients(onnx.load(found["plain"]), found["fed"], step.training.loss, wanted)
    except NotImplementedError as error:
        return {"unjudged": wanted, "why": str(error)}
    error = _distance([(gradients[name], expected[name]) for name in wanted])
    return {"parameters": [len(gradients), len(gradients)], "error": error}


def _by_module(step: Any, found: dict[str, Any], build: Callable[[], Any], given: Any) -> dict[str, Any]:
    """Gradients against those of the module that was exported, in float64; which parameters have none.

    It is built anew: some modules keep what they computed.
    """
    import torch

    target = next(array for name, array in found["fed"].items() if name == "target")
    expected = {}
    for dtype in (torch.float32, torch.float64):
        judging = build().to(dtype)
        try:
            output = judging(given.to(dtype) if given.is_floating_point() else given)
        except RuntimeError:  # float32 written out in the module
            break
        torch.nn.functional.mse_loss(output, torch.from_numpy(target).to(output.dtype)).backward()
        slopes = {name: p.grad.numpy().copy() for name, p in judging.named_parameters() if p.grad is not None}
        if expected and not all(np.isfinite(slope).all() for slope in slopes.values()):
            break  # float32's numbers written out in the module, such as its lowest in a mask
        expected = slopes
    module = build()
    contents = {name: p.detach().numpy() for name, p in module.named_parameters()}
    buffers = {name: b.float().numpy() for name, b in module.named_buffers() if b.is_floating_point()}
    initializers = step.model.graph.initializers
    pairs, matched, strange, constants = {}, set(), [], []
    for name, gradient in found["gradients"].items():
        value = initializers[name]
        array = np.asarray(value.const_value.numpy())
        for known in (name, value.metadata_props.get(STANDS_FOR, ""), *contents):
            order = _order(contents[known], array) if known in contents else None
            if order is not None and known in expected:
                pairs[name] = (gradient, expected[known].transpose(order).reshape(array.shape))
                matched.add(known)
                break
        else:
            constant = any(_order(buffer, array) is not None for buffer in buffers.values() if buffer.size > 1)
            (constants if constant else strange).append(name)
    lacking = [name for name, gradient in expected.items() if name not in matched and gradient.any()]
    row: dict[str, Any] = {
        "parameters": [len(matched), len(expected)],
        "error": _distance(list(pairs.values())),
        "worst": max(((_distance([pair]), name) for name, pair in pairs.items()), default=None),
        "lacking": lacking,
        "computed": strange,
        "constants": constants,
    }
    if strange:
        judged = _by_graph(step, found, strange)
        row["computed_error"] = judged.get("error")
    return row


def _order(source: np.ndarray, array: np.ndarray) -> tuple[int, ...] | None:
    """The order of axes in which one array, reshaped, is another; None if it is not."""
    if source.size != array.size:
        return None
    plain = tuple(range(source.ndim))
    for order in (plain, plain[::-1], (*plain[:-2], *plain[-2:][::-1])):
        if np.array_equal(source.transpose(order).reshape(array.shape), array):
            return order
    return None


def _rewritten(step: Any, row: dict[str, Any], path: Path) -> Any:
    """Write the file at half the activations, or the smallest that there is."""
    try:
        planned = ckplan.rewrite(step, budget=0.5, seconds=SEARCH, output=path)
    except ckplan.errors.InfeasibleError as error:
        row["half"] = str(error)
        planned = ckplan.rewrite(step, strategy="memory", output=path)
    row["planned"] = planned.after.peak_activations / max(planned.before.peak_activations, 1)
    return planned


def _verdict(promised: Any, verified: Any) -> dict[str, Any]:
    """What was measured of the plain and the planned file; peaks beside what was promised."""
    numerics = verified.numerics
    return {
        "ratio": verified.activation_ratio,
        "peaks": [
            (timeline.peak_activations, _measured(measurement, timeline.peak_activations))
            for timeline, measurement in ((promised.before, verified.base), (promised.after, verified.new))
        ],
        "equal": numerics.bitwise_equal,
        "differences": [f"{d.output}: {d.max_relative:.1e}" for d in numerics.differences][:3],
    }


def _measured(measurement: Any, promised: int) -> int:
    """The peak by onnxruntime's counters; by the heap where these differ, since they miss some workspaces."""
    if measurement.peak_activations == promised:
        return promised
    heap = ckplan.measure(measurement.path).heap
    return int(measurement.peak_activations if heap is None else heap.activations)


def make_rows(wanted: list[str], folder: Path, jobs: int, plan: bool) -> None:
    """Make rows and keep them, each in a child of a process that has imported the slow packages."""
    _prepare()
    forks = multiprocessing.get_context("fork")
    running: dict[Any, tuple[str, float]] = {}
    waiting = list(wanted)
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop(0)
            child = forks.Process(target=_write_row, args=(name, folder, plan))
            child.start()
            running[child] = name, time.monotonic() + LIMIT
        multiprocessing.connection.wait([child.sentinel for child in running], timeout=1)
        for child, (name, limit) in list(running.items()):
            late = time.monotonic() > limit
            if child.is_alive() and not late:
                continue
            if child.is_alive():
                child.kill()
            child.join()
            del running[child]
            if not _place_of(name, folder).exists():
                said = f"took longer than {LIMIT} s" if late else f"exit code {child.exitcode}"
                _place_of(name, folder).write_text(json.dumps({"name": name, "failed": said}), encoding="utf-8")


def _prepare() -> None:
    """Import what takes seconds; torch's exporter imports most when it is first used."""
    import torch

    torch.set_num_threads(1)
    _without_torchvision()
    with contextlib.suppress(ImportError):
        importlib.import_module("transformers.models.llama.modeling_llama")
    with tempfile.TemporaryDirectory() as folder, _silence():
        _export(torch.nn.Linear(2, 2), torch.zeros(3, 2), Path(folder) / "model.onnx", dynamo=True)


def _without_torchvision() -> None:
    """timm and diffusers import torchvision, of which the Python part does; its operators have no kernels then."""
    import torch

    if importlib.util.find_spec("torchvision") is None:
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _KEPT.append(library)


_KEPT: list[Any] = []


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    with warnings.catch_warnings(), Path(os.devnull).open("w") as nothing, contextlib.redirect_stdout(nothing):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        yield


def _write_row(name: str, folder: Path, plan: bool) -> None:
    with tempfile.TemporaryDirectory() as place, _silence():
        row = make_row(name, Path(place), plan)
    text = json.dumps(row, indent=1, default=float)
    _place_of(name, folder).write_text(text, encoding="utf-8")


def _place_of(name: str, folder: Path) -> Path:
    return folder / f"{name.replace(' ', '_').replace(',', '')}.json"


def line(row: Mapping[str, Any]) -> str:
    """A row of the table in Markdown."""
    if "failed" in row or "refused" in row:
        said = row.get("failed") or row["refused"]
        return f"| {row['name']} | {'failed' if 'failed' in row else 'refused'}: {said.replace('|', '/')} |||||||"
    verified = row.get("verified", {})
    remarks = []
    if row.get("constants"):
        remarks.append(f"trains constants: {', '.join(row['constants'])}")
    if row.get("lacking"):
        said = any("not in the file as such" in note or "are what torch's exporter" in note for note in row["notes"])
        remarks.append(f"{len(row['lacking'])} not in the file as such{'' if said else ', unsaid'}")
    if any("may be what torch's exporter computed" in note for note in row["notes"]):
        remarks.append("a gradient may lack a part, says a note")
    if row.get("computed"):
        error = row.get("computed_error")
        remarks.append(
            f"{len(row['computed'])} computed by the exporter" + (f" ({error:.0e})" if error is not None else "")
        )
    for which, (promised, found) in zip(("plain", "planned"), verified.get("peaks", ()), strict=False):
        if promised != found:
            remarks.append(f"{which}: {promised} bytes promised, {found} measured")
    if row.get("half"):
        remarks.append("half is refused")
    if row.get("unjudged"):
        remarks.append(f"not judged: {row['why']}")
    error, ratio = row.get("error"), verified.get("ratio")
    have, all_of = row.get("parameters", ("", ""))
    cells = [
        row["name"],
        "{} / {}".format(*row["nodes"]),
        f"{have} of {all_of}",
        "" if error is None else f"{error:.0e}",
        "" if ratio is None else f"{ratio:.2f}",
        {True: "equal", False: "differ", None: ""}[verified.get("equal")],
        "; ".join(remarks),
    ]
    return f"| {' | '.join(cells)} |"


def table(folder: Path) -> str:
    """The table of what has been made."""
    rows = [json.loads(_place_of(name, folder).read_text()) for name in names() if _place_of(name, folder).exists()]
    head = "| file | nodes, of the step | parameters | gradients | half | outputs | |\n|" + "---|" * 7
    return "\n".join([head, *map(line, rows)])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--gradients-only", action="store_true", help="neither rewrite nor verify")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if not arguments.table:
        folder = arguments.folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        wanted = [name for name in arguments.names or names() if not _place_of(name, folder).exists()]
        make_rows(wanted, folder, arguments.jobs, not arguments.gradients_only)
    print(table(arguments.folder))


if __name__ == "__main__":
    main()
