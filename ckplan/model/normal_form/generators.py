"""Seeds for nodes that draw random numbers: two files of one model, planned and not, draw the same.

A node without one takes what the session has at hand when it makes the node's kernel, and a plan has its nodes in
another order. With one, each run draws anew, and a new session begins as the last one did.
"""

from __future__ import annotations

import zlib

import onnx_ir as ir

from ckplan.display import shortened
from ckplan.model.nested_graphs import all_nodes, graphs_in

_SEEDED = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
"""ONNX's operators that draw, but for Dropout, whose training form is another (`ckplan.autodiff.training_mode`)."""

NEWEST_GENERATORS = 21
"""The newest operator set in which onnxruntime 1.31 has kernels of these operators; of Dropout it has newer ones."""

_SEEDS = 1 << 24
"""Some seeds are float32 attributes: whole numbers below this are exact."""


def is_generator(node: ir.Node) -> bool:
    """Whether a node is one of ONNX's that draw, a Dropout apart."""
    return node.op_type in _SEEDED and not node.domain


def seed_of(name: str) -> int:
    """A seed that depends on a name: engines whose seeds are neighbours begin alike, numbers in a row will not do."""
    return zlib.crc32(name.encode()) % _SEEDS


def give_seeds(model: ir.Model) -> list[str]:
    """Give a seed to each node that draws and has none, in place, bodies included; a note if there were any."""
    seeded = []
    for node in model.graph.all_nodes():
        if is_generator(node) and "seed" not in node.attributes:
            node.attributes.add(ir.AttrFloat32("seed", float(seed_of(str(node.name)))))
            seeded.append(str(node.name))
    told = f"{len(seeded)} node(s) that draw random numbers get a seed, so that all files draw alike"
    return [f"{told}: {shortened(seeded)}"] if seeded else []


def seed_anew(node: ir.Node) -> None:
    """Give what draws in the bodies of a copy other seeds, in place: with those of the original it draws the same."""
    for inner in (inner for graph in graphs_in(node) for inner in all_nodes(graph)):
        if "seed" in inner.attributes:
            whole = inner.attributes["seed"].type == ir.AttributeType.INT
            seed = seed_of(f"{inner.name}/anew")
            inner.attributes.add(ir.AttrInt64("seed", seed) if whole else ir.AttrFloat32("seed", float(seed)))
