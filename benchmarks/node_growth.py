"""How many nodes the training graph of a convolutional network has, by those of its file: each takes time to open.

    python -m benchmarks.node_growth [FILES] [--only resnet50] [--where]

Each sample network in four forms: *bare*, the convolutions without bias and without normalisation behind them, as
exporters write untrained weights; with *biases*, what is left of a folded normalisation; with the *norm* in inference
form in the file; and in *training* form. Then the committed samples, and files that are named. Nodes are those of the
graph and, each once, of the bodies in it; initializers are none. Peaks are those of `ckplan analyze`, without a plan
and by strategy `memory`. `--where` says which forward operators the nodes of the backward pass belong to.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

import ckplan.model
from ckplan.autodiff import build_training_graph
from ckplan.pipeline import StepOptions, open_step
from ckplan.planner.strategies import parse_strategy
from ckplan.units import format_bytes
from sample_models.catalogue import BUILDERS

NETWORKS = ("resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3", "unet")
BATCH = 8
SAMPLES = Path(__file__).resolve().parent.parent / "sample_models"


@dataclass(frozen=True)
class Case:
    """A file and how it is trained.

    Attributes:
        name: of the row.
        make: gives the model or the path to it.
        training: whether normalisations take the statistics of the batch.
    """

    name: str
    make: Callable[[], onnx.ModelProto | Path]
    training: bool = False


def folded(name: str, *, biases: bool) -> onnx.ModelProto:
    """A sample network without normalisations, as exporters fold them into the convolutions before them.

    Args:
        name: of its builder.
        biases: whether the convolutions get one each.
    """
    model = BUILDERS[name](batch=BATCH)
    graph = model.graph
    channels = {tensor.name: tensor.dims[0] for tensor in graph.initializer if tensor.dims}
    makers = {name: node for node in graph.node for name in node.output}
    norms = [node for node in graph.node if node.op_type == "BatchNormalization"]
    for norm in norms:
        conv = makers[norm.input[0]]
        assert conv.op_type == "Conv"
        if biases and len(conv.input) < 3:
            bias = numpy_helper.from_array(np.full(channels[conv.input[1]], 0.01, np.float32), f"{conv.name}/bias")
            graph.initializer.append(bias)
            conv.input.append(bias.name)
        conv.output[0] = norm.output[0]
        graph.node.remove(norm)
    read = {name for node in graph.node for name in node.input}
    for tensor in [tensor for tensor in graph.initializer if tensor.name not in read]:
        graph.initializer.remove(tensor)
    return model


def cases(files: list[Path]) -> Iterator[Case]:
    """All rows, those of named files last."""
    for name in NETWORKS:
        yield Case(f"{name}, bare", partial(folded, name, biases=False))
        yield Case(f"{name}, biases", partial(folded, name, biases=True))
        yield Case(f"{name}, norm", partial(BUILDERS[name], batch=BATCH))
        yield Case(f"{name}, training", partial(BUILDERS[name], batch=BATCH, training=True), training=True)
    for name in ("resnet_tiny", "mobilenet_tiny", "densenet_tiny", "unet_tiny"):
        yield Case(name, partial(Path, SAMPLES / f"{name}.onnx"))
        yield Case(f"{name}, training", partial(Path, SAMPLES / f"{name}.onnx"), training=True)
    for path in files:
        yield Case(path.stem, partial(Path, path))


def row(case: Case, folder: Path, where: bool) -> str:
    """Count the nodes of a case and simulate its step; return a row of the table."""
    made = case.make()
    path = made if isinstance(made, Path) else folder / "forward.onnx"
    if not isinstance(made, Path):
        onnx.save(made, path)
    before = len(onnx.load(path, load_external_data=False).graph.node)
    step = open_step(str(path), StepOptions(training={"training": True} if case.training else {}))
    graph, plain = step.ordered.graph, step.baseline
    after = sum(1 for _ in graph.all_nodes())
    lowest = parse_strategy("memory").solve(step.problem).predicted
    peaks = (plain.peak_activations, plain.peak_total, lowest.peak_activations)
    nodes = [f"{after:,} of {before:,}", f"{after / before:.1f}", f"{len(graph) / before:.1f}"]
    cells = [case.name, *nodes, *map(format_bytes, peaks)]
    return f"| {' | '.join(cells)} |" + ("\n" + belonging(path, case.training) if where else "")


def belonging(path: Path, training: bool) -> str:
    """Say how many nodes of the backward pass belong to forward nodes of each operator, on average."""
    found: dict[str, list[int]] = {}
    operators: Counter[str] = Counter()

    def note(node: ir.Node, made: Sequence[ir.Node]) -> None:
        found.setdefault(node.op_type, []).append(len(made))
        operators.update(each.op_type for each in made)

    build_training_graph(ckplan.model.load(path, training=training).model, training=training, callbacks=[note])
    lines = [f"    {name}: {len(counts)} x {sum(counts) / len(counts):.1f}" for name, counts in found.items()]
    return "\n".join([*lines, "    " + ", ".join(f"{name} {count}" for name, count in operators.most_common(12))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="other forward files")
    parser.add_argument("--only", default="", help="only rows whose name contains this")
    parser.add_argument("--where", action="store_true", help="which forward operators the nodes belong to")
    arguments = parser.parse_args()
    heads = [
        "network",
        "nodes",
        "times",
        "outside of bodies",
        "peak of activations",
        "in total",
        "activations by `memory`",
    ]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(arguments.files):
            if arguments.only in case.name:
                print(row(case, Path(folder), arguments.where), flush=True)


if __name__ == "__main__":
    main()
