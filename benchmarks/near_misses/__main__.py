"""Gradients of networks with one to three things in them changed, beside torch's in float64.

    python -m benchmarks.near_misses [--networks gpt2 swin gpt_tiny] [--first 0] [--cases 500] [--keep DIR]

Many rules look for a form: an exporter's GELU, a mask behind a softmax, a loss over a linear layer. A change takes
something of the form away, and mostly leaves a network that runs. Its gradients are to be those of what it computes
then: of the changed file's own operators, by torch in float64. The file that `memory` plans for it has to be equal to
the bit. Networks are sample models and those of `benchmarks.architectures`, in batches of two; a case is a number, and
``--first N --cases 1`` runs one again. Ends with 1 if any case is apart.

Needs torch, and transformers for what it exports.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnx.version_converter
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

import ckplan
from benchmarks.forward_files import set_batch
from benchmarks.near_misses.changes import change, kinds_of
from ckplan.errors import CkplanError
from tests.oracles.torch_oracle import torch_gradients

SAMPLES = Path(__file__).resolve().parent.parent.parent / "sample_models"
NETWORKS = (
    *("gpt_tiny", "bert_tiny", "unet_tiny", "mobilenet_tiny"),
    *("gpt2", "bert", "llama", "gemma2", "vit", "opt, old exporter"),
)
"""Those that are tried if none are named."""
_OPSET = 21
"""The oldest operator set that the oracle runs."""
_BATCH = 2
_IDS = 3, 20
"""Token ids that are fed: none stands for padding, whose row gets no gradient."""
_APART = 1e-3
"""Relative distance of a gradient, or of the loss, that is looked at."""
_ILL_CONDITIONED = 20
"""By how much such a distance has to exceed that of torch's own gradients in float32."""

_FROZEN = 0.2
"""In how many cases parameters are frozen, and how many of them then."""

Arrays = dict[str, np.ndarray[Any, Any]]


@cache
def network(name: str) -> onnx.ModelProto:
    """A network as a file has it, its Constant nodes as initializers, with sizes of its own."""
    sample = SAMPLES / f"{name}.onnx"
    if sample.exists():
        model = onnx.load(sample)
        set_batch(model, _BATCH)
    else:
        from benchmarks.architectures import ARCHITECTURES, build, example

        with tempfile.TemporaryDirectory() as folder:
            path, architecture = Path(folder) / "model.onnx", ARCHITECTURES[name]
            given = example(architecture)[:_BATCH]
            torch.onnx.export(build(architecture), (given,), path, dynamo=architecture.dynamo, verbose=False)
            model = onnx.load(path)
    model = onnx.inliner.inline_local_functions(model)
    if all(entry.version < _OPSET for entry in model.opset_import if not entry.domain):
        model = onnx.version_converter.convert_version(model, _OPSET)
    for node in [node for node in model.graph.node if node.op_type == "Constant" and node.attribute[0].name == "value"]:
        node.attribute[0].t.name = node.output[0]
        model.graph.initializer.append(node.attribute[0].t)
        model.graph.node.remove(node)
    del model.graph.value_info[:]
    return model


def run(model: onnx.ModelProto | Path, feeds: Arrays, outputs: list[str] | None = None) -> list[np.ndarray[Any, Any]]:
    """The outputs of a model in onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return list(session.run(outputs, feeds))


def try_case(number: int, names: list[str], folder: Path) -> tuple[str, str]:
    """Try one case.

    Args:
        number: of the case; gives the network and the changes.
        names: of networks.
        folder: where ``forward.onnx`` is written.

    Returns:
        what became of it, in a word or two, and what was done and seen.
    """
    random, name = Random(number), names[number % len(names)]
    model = onnx.ModelProto()
    model.CopyFrom(network(name))
    done = [name]
    try:
        for _ in range(random.choice([1, 1, 2, 3])):
            done.append(change(model, random) or "")
        onnx.checker.check_model(model)
        feeds = _feeds(model, number)
        (result, *_) = run(model, feeds)
    except Exception:  # most of what a change can break breaks here, in one of three libraries
        return "does not run", "; ".join(done)
    if result.dtype != np.float32 or not np.isfinite(result).all() or np.abs(result).max() > 1e4:
        return "no finite output", "; ".join(done)
    path = folder / "forward.onnx"
    onnx.save(model, path)
    outcome, seen = _judged(model, path, feeds, result.shape, random)
    return outcome, "; ".join([*done, seen])


def _feeds(model: onnx.ModelProto, seed: int) -> Arrays:
    random, kinds = np.random.default_rng(seed), kinds_of(model)
    listed = {tensor.name for tensor in model.graph.initializer}
    feeds: Arrays = {}
    for name in (value.name for value in model.graph.input if value.name not in listed):
        element, shape = kinds[name]
        made = random.standard_normal(shape) if element == TensorProto.FLOAT else random.integers(*_IDS, shape)
        feeds[name] = made.astype(helper.tensor_dtype_to_np_dtype(element))
    return feeds


def _judged(
    model: onnx.ModelProto, path: Path, feeds: Arrays, shape: tuple[int, ...], random: Random
) -> tuple[str, str]:
    """What became of a changed network that runs, and what was seen."""
    feeds = {**feeds, "target": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    plain, planned = path.with_name("plain.onnx"), path.with_name("planned.onnx")
    try:
        step = ckplan.open_model(path, loss="mse")
        if random.random() < _FROZEN:
            some = [name for name in step.training.gradients if random.random() < _FROZEN]
            step = ckplan.open_model(path, loss="mse", no_grad=some)
        ckplan.save(step.ordered, plain, force=True)
        ckplan.rewrite(step, strategy="memory", output=planned, force=True)
    except CkplanError as error:
        return "refused", str(error)
    names = list(step.training.gradients)
    wanted = [step.training.loss, *step.training.gradients.values()]
    found, again = run(plain, feeds, wanted), run(planned, feeds, wanted)
    if any(one.tobytes() != other.tobytes() for one, other in zip(found, again, strict=True)):
        return "other bits", "the planned file"
    judge = _with_loss(model, shape)
    told = [name for name in names if name in {tensor.name for tensor in judge.graph.initializer}]
    try:
        loss, exact = _expected(judge, feeds, told, torch.float64)
        _, rounded = _expected(judge, feeds, told, torch.float32)
    except (NotImplementedError, RuntimeError) as error:
        return "not judged", str(error)
    if not all(np.isfinite(slope).all() for slope in exact.values()):
        return "no finite gradient", ""
    (own,) = run(judge, feeds)
    if abs(found[0] - own) > _APART * abs(own):
        return "apart", f"a loss of {found[0]} in place of {own}"
    gradients = dict(zip(names, found[1:], strict=True))
    whole = float(np.sqrt(sum(np.sum(slope**2) for slope in exact.values())))
    distances = {name: _distance(gradients[name], exact[name], whole) for name in told}
    limit = _ILL_CONDITIONED * max((_distance(rounded[name], exact[name], whole) for name in told), default=0.0)
    worst = max(told, key=lambda name: distances[name], default=None)
    if worst is not None and distances[worst] > max(_APART, limit):
        return "apart", f"{worst} by {distances[worst]:.1e}, the loss is {loss}"
    return "compared", ""


def _with_loss(model: onnx.ModelProto, shape: tuple[int, ...]) -> onnx.ModelProto:
    """The model with the mean squared error of its first output as its only one, ``judged``."""
    judge = onnx.ModelProto()
    judge.CopyFrom(model)
    output = judge.graph.output[0].name
    judge.graph.input.append(helper.make_tensor_value_info("target", TensorProto.FLOAT, shape))
    judge.graph.node.append(helper.make_node("Sub", [output, "target"], ["judged_error"]))
    judge.graph.node.append(helper.make_node("Mul", ["judged_error", "judged_error"], ["judged_square"]))
    judge.graph.node.append(helper.make_node("ReduceMean", ["judged_square"], ["judged"], keepdims=0))
    del judge.graph.output[:]
    judge.graph.output.append(helper.make_tensor_value_info("judged", TensorProto.FLOAT, ()))
    return judge


def _expected(
    judge: onnx.ModelProto, feeds: Arrays, names: list[str], dtype: torch.dtype
) -> tuple[float, Mapping[str, np.ndarray[Any, Any]]]:
    """The loss and its gradients by torch; where a file holds a matrix transposed as well, the sum over both."""
    arrays = {t.name: numpy_helper.to_array(t) for t in judge.graph.initializer if t.data_type == TensorProto.FLOAT}
    tied = [
        (other, name)
        for name in names
        for other, array in arrays.items()
        if other not in names and array.ndim == 2 and np.array_equal(array.T, arrays[name])
    ]
    loss, found = torch_gradients(judge, feeds, "judged", [*names, *(other for other, _ in tied)], dtype)
    for other, name in tied:
        found[name] = found[name] + found[other].T
    return loss, {name: found[name].astype(np.float64) for name in names}


def _distance(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], whole: float) -> float:
    """Relative, in L2; gradients of less than a ten thousandth of all of them count as that."""
    return float(np.linalg.norm(found - expected) / max(np.linalg.norm(expected), 1e-4 * whole, 1e-30))


def main() -> int:
    """Try the cases that are asked for; 1 if any is apart."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--keep", type=Path, help="a folder for the files of cases that are apart")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    outcomes: Counter[str] = Counter()
    for name in options.networks:
        network(name)
    for number in range(options.first, options.first + options.cases):
        with tempfile.TemporaryDirectory() as folder:
            try:
                outcome, seen = try_case(number, list(options.networks), Path(folder))
            except Exception:
                outcome, seen = "broken", traceback.format_exc()
            outcomes[outcome] += 1
            if outcome in ("apart", "broken", "other bits", "refused"):
                print(f"{number} {outcome}: {seen}", flush=True)
            if outcome in ("apart", "broken", "other bits") and options.keep is not None:
                options.keep.mkdir(exist_ok=True)
                shutil.copy(Path(folder) / "forward.onnx", options.keep / f"{number}.onnx")
    print(", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common()))
    return int(any(outcomes[bad] for bad in ("apart", "broken", "other bits")))


if __name__ == "__main__":
    sys.exit(main())
