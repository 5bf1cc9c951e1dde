"""Regions whole and in pieces: what plans of both take, measured, and what their steps cost.

    python -m benchmarks.chunks attention [--tokens 1024 2048 4096] [--heads 8] [--pieces 16]
    python -m benchmarks.chunks MODEL --dim batch=4 --budget 100MiB [--forms off auto loss=16]

The first plans a layer of causal attention by `memory`, its queries whole and in pieces; the second any model for a
goal, in several forms. A row says what was promised, what onnxruntime's counters and the heap say, the estimated
compute, and the processor time of a step on one thread as a ratio of the step without a plan: the least of several, the
files taking turns, so that what else the machine does meets all of them. A last column says how far outputs differ from
those of the step without a plan, relative to the largest element of each.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import ckplan
from ckplan.errors import InfeasibleError
from ckplan.meter.facts import read_model
from ckplan.meter.inputs import make_inputs
from ckplan.model import save

HEAD = f"{'form':>22} {'promised':>9} {'counters':>9} {'heap':>9}  compute   time  search  difference"
"""Above the rows."""

_ATTENTION = """<ir_version: 10, opset_import: ["": 21]>
attention (float[1,{tokens},{width}] x) => (float loss) {{
    qx = MatMul(x, wq)  qs = Reshape(qx, split)  q = Transpose<perm = [0, 2, 1, 3]>(qs)
    kx = MatMul(x, wk)  ks = Reshape(kx, split)  k = Transpose<perm = [0, 2, 3, 1]>(ks)
    vx = MatMul(x, wv)  vs = Reshape(vx, split)  v = Transpose<perm = [0, 2, 1, 3]>(vs)
    scores = MatMul(q, k)  scaled = Mul(scores, scale)  masked = Add(scaled, mask)
    weights = Softmax<axis = -1>(masked)  mixed = MatMul(weights, v)
    turned = Transpose<perm = [0, 2, 1, 3]>(mixed)  joined = Reshape(turned, join)  y = MatMul(joined, wo)
    loss = ReduceSumSquare<keepdims = 0>(y)
}}"""


def attention(tokens: int, heads: int, depth: int = 64) -> onnx.ModelProto:
    """One layer of causal attention, [1, tokens, heads x depth] to a loss."""
    width = heads * depth
    model = onnx.parser.parse_model(_ATTENTION.format(tokens=tokens, width=width))
    rng = np.random.default_rng(0)
    arrays = {f"w{part}": (rng.standard_normal((width, width)) / width**0.5).astype(np.float32) for part in "qkvo"}
    arrays |= {"split": np.asarray([0, 0, heads, depth]), "join": np.asarray([0, 0, width])}
    arrays |= {"scale": np.float32(depth**-0.5)}
    arrays |= {"mask": np.triu(np.full((tokens, tokens), -1e9, np.float32), 1)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items())
    return model


def rows(model: Any, forms: list[str], repeats: int, options: dict[str, Any], goal: dict[str, Any]) -> Iterator[str]:
    """A row for each form of a model."""
    step = ckplan.open_model(model, **options)
    with tempfile.TemporaryDirectory() as folder:
        files, planned, seconds = {"no plan": Path(folder) / "base.onnx"}, {}, {}
        save(step.ordered, files["no plan"])
        for form in forms:
            start = time.process_time()
            try:
                planned[form] = ckplan.rewrite(model, chunks=form, **options, **goal)
            except InfeasibleError as error:
                yield f"{form:>22} refused: {error.message}"
                continue
            seconds[form] = time.process_time() - start
            files[form] = Path(folder) / f"{len(files)}.onnx"
            save(planned[form].model, files[form])
        found = {form: ckplan.measure(file) for form, file in files.items()}
        times, apart = _run(files, repeats)
    promised = {"no plan": step.baseline.peak_activations}
    promised |= {form: made.after.peak_activations for form, made in planned.items()}
    for form in files:
        heap = found[form].heap
        memory = (promised[form], found[form].peak_activations or 0, heap.activations if heap else 0)
        sizes = " ".join(f"{count / 2**20:9.1f}" for count in memory)
        cost = planned[form].plan.cost if form in planned else step.problem.cost
        extra = f"{100 * (cost / step.problem.cost - 1):+6.1f} %"
        chosen = "".join(planned[form].chosen_form[:1]).rpartition(" ")[2] if form == "auto" else ""
        searched = f"{seconds[form]:5.0f} s" if form in seconds else "       "
        name = f"{form} ({chosen})" if chosen else form
        yield f"{name:>22} {sizes} {extra} {times[form] / times['no plan']:6.2f} {searched}  {apart.get(form, 0.0):.0e}"


def _run(files: dict[str, Path], repeats: int) -> tuple[dict[str, float], dict[str, float]]:
    """Processor time of a step of each file, and how far its outputs are from those of the first one."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    feeds = make_inputs(read_model(next(iter(files.values())))).arrays
    least: dict[str, float] = {}
    first: dict[str, np.ndarray] = {}
    apart: dict[str, float] = {}
    for repeat in range(repeats):
        for form, file in files.items():  # one session at a time: large models
            session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
            names = [output.name for output in session.get_outputs()]
            for _ in range(2):  # the second is the first in the block of later runs, whose pages the system clears
                session.run(names, feeds)
            start = time.process_time()
            outputs = dict(zip(names, session.run(names, feeds), strict=True))
            least[form] = min(least.get(form, float("inf")), time.process_time() - start)
            if repeat == 0:
                first = first or outputs
                apart[form] = max(
                    float(np.abs(outputs[name] - first[name]).max() / (np.abs(first[name]).max() or 1))
                    for name in first
                )
    return least, apart


def main() -> None:
    """Print a row for each form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a file, or `attention`")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--pieces", type=int, default=16)
    parser.add_argument("--forms", nargs="+", default=["off", "auto"])
    parser.add_argument("--dim", nargs="*", default=[])
    parser.add_argument("--no-grad", nargs="*", default=[])
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--budget")
    parser.add_argument("--overhead")
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    dims = {name: int(size) for name, _, size in (text.partition("=") for text in chosen.dim)}
    options = {"dims": dims, "no_grad": chosen.no_grad}
    goal = {"strategy": chosen.strategy, "budget": chosen.budget, "overhead": chosen.overhead}
    print(HEAD)
    if chosen.model != "attention":
        print(*rows(chosen.model, chosen.forms, chosen.repeats, options, goal), sep="\n")
        return
    for tokens in chosen.tokens:
        print(f"{tokens} tokens, {chosen.heads} heads")
        forms = ["off", f"attention={chosen.pieces}"]
        for row in rows(attention(tokens, chosen.heads), forms, chosen.repeats, {}, {"strategy": "memory"}):
            print(row)
            sys.stdout.flush()


if __name__ == "__main__":
    main()
