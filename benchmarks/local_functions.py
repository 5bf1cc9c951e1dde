"""What becomes of a training file whose nodes are gathered in local functions: fewer nodes, and the same ones to open.

    python -m benchmarks.local_functions [--only resnet18] [--nodes 12] [--runs 9]

Sample networks in training form as `ckplan grad` writes them, beside the same file with each so many nodes in a row as
one call of a function; bodies that are alike are one function. Opening is the least processor time on one thread, in
turns in one process; activations are those that onnxruntime's counters tell, outputs are compared to the bit.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
from onnx import helper

import ckplan
from benchmarks.node_growth import BATCH, NETWORKS
from benchmarks.session_opening import opening
from ckplan.model import save
from ckplan.pipeline import StepOptions, open_step
from ckplan.units import format_bytes
from sample_models.catalogue import BUILDERS

DOMAIN = "gathered"


def gathered(model: onnx.ModelProto, nodes: int) -> onnx.ModelProto:
    """The same model, each so many nodes in a row as a call of a local function; those with nested graphs stay.

    Args:
        model: any model.
        nodes: how many to a call, at most.
    """
    parts = list(_runs(model.graph.node, nodes))
    readers: dict[str, set[int]] = {}
    for call, part in enumerate(parts):
        for name in (name for node in part for name in _read_by(node)):
            readers.setdefault(name, set()).add(call)
    returned = {value.name for value in model.graph.output}
    functions: dict[bytes, onnx.FunctionProto] = {}
    calls = []
    for call, part in enumerate(parts):
        if _nested(part[0]):
            calls.append(part[0])
            continue
        made = [name for node in part for name in node.output if name]
        read = list(dict.fromkeys(name for node in part for name in node.input if name and name not in set(made)))
        given = [name for name in made if name in returned or readers.get(name, set()) - {call}]
        short = {name: f"value_{number}" for number, name in enumerate([*read, *made])} | {"": ""}
        body = [
            helper.make_node(node.op_type, [short[n] for n in node.input], [short[n] for n in node.output])
            for node in part
        ]
        for copy, node in zip(body, part, strict=True):
            copy.domain = node.domain
            copy.attribute.extend(node.attribute)
        sides = [short[name] for name in read], [short[name] for name in given]
        key = b"".join(node.SerializeToString() for node in body) + repr(sides).encode()
        if key not in functions:
            name = f"function_{len(functions)}"
            functions[key] = helper.make_function(DOMAIN, name, *sides, body, list(model.opset_import))
        calls.append(helper.make_node(functions[key].name, read, given, domain=DOMAIN))
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    result.graph.node.extend(calls)
    result.functions.extend(functions.values())
    result.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return result


def _nested(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The graphs that a node has."""
    return [attribute.g for attribute in node.attribute if attribute.HasField("g")]


def _read_by(node: onnx.NodeProto) -> Iterator[str]:
    """Names that a node reads, those in its graphs included."""
    yield from node.input
    for graph in _nested(node):
        for inner in graph.node:
            yield from _read_by(inner)


def _runs(source: Iterable[onnx.NodeProto], most: int) -> Iterator[list[onnx.NodeProto]]:
    """Nodes in a row, so many at most; one with nested graphs stands alone."""
    run: list[onnx.NodeProto] = []
    for node in source:
        if run and (_nested(node) or _nested(run[0]) or len(run) == most):
            yield run
            run = []
        run.append(node)
    if run:
        yield run


def row(name: str, nodes: int, runs: int, folder: Path) -> str:
    """Measure a network; return a row of the table."""
    forward, plain, twin = (folder / f"{part}.onnx" for part in ("forward", "plain", "twin"))
    onnx.save(BUILDERS[name](batch=BATCH, training=True), forward)
    save(open_step(str(forward), StepOptions(training={"training": True})).ordered, plain, force=True)
    model = onnx.load(plain)
    made = gathered(model, nodes)
    onnx.save(made, twin)
    seconds = opening({"plain": plain, "twin": twin}, runs)
    compared = ckplan.verify(plain, twin)
    peaks = [format_bytes(side.peak_activations or 0) for side in (compared.base, compared.new)]
    before = len(onnx.load(forward, load_external_data=False).graph.node)
    cells = [
        name,
        f"{len(model.graph.node):,} of {before}",
        f"{len(made.graph.node):,} and {len(made.functions)} functions",
        f"{seconds['twin'] / seconds['plain']:.2f}",
        " -> ".join(peaks),
        "equal" if compared.numerics.bitwise_equal else "differ",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only networks whose name contains this")
    parser.add_argument("--nodes", type=int, default=12, help="nodes to a call")
    parser.add_argument("--runs", type=int, default=9)
    arguments = parser.parse_args()
    heads = ["network", "nodes", "in functions", "opening", "activations", "outputs"]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for name in NETWORKS:
        if arguments.only in name:
            with tempfile.TemporaryDirectory() as folder:
                print(row(name, arguments.nodes, arguments.runs, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
