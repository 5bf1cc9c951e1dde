"""The files that mutants are made of: small models of many kinds, and what ckplan writes and reads besides."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper
from onnx_ir import from_proto

from benchmarks.fuzz.damaged.parts import (
    WEIGHT,
    constant,
    loop,
    lstm,
    model,
    nested,
    node,
    value,
)
from benchmarks.fuzz.forked import run_forked
from ckplan.planner.instances import problem_to_json
from ckplan.runtime.problem_of import problem_of
from tests.planner.networks import small_unet

KEPT_COSTS = "costs.json"
"""What the cache of measured costs holds of the chain."""
KEPT_AS = "costs.name"
"""How the cache calls it."""


def models() -> dict[str, onnx.ModelProto]:
    """Valid models by name: layers, convolution, recurrence, control flow, functions, shape arithmetic."""
    go = node("Identity", ["go"], ["go_on"])
    return {
        "chain": _chain(),
        "convolution": _convolution(),
        "recurrence": lstm([constant("w", np.ones((1, 16, 8))), constant("r", np.ones((1, 16, 4)))], hidden_size=4),
        "loop": loop(3, [go, node("Tanh", ["state"], ["next"])]),
        "branches": nested(2),
        "function": _function(),
        "shapes": _shapes(),
        "attention": _attention(),
        "dropout": _dropout(),
    }


def _chain() -> onnx.ModelProto:
    nodes, weights, name = [], [], "x"
    for layer in range(3):
        weights.append(constant(f"w{layer}", np.random.default_rng(layer).normal(size=(8, 8)) / 3))
        nodes += [node("MatMul", [name, f"w{layer}"], [f"m{layer}"]), node("Tanh", [f"m{layer}"], [f"t{layer}"])]
        nodes[-2].name, nodes[-1].name, name = f"product{layer}", f"tanh{layer}", f"t{layer}"
    return model(nodes, weights, [value("x", "batch", 8)], [value(name, "batch", 8)])


def _convolution() -> onnx.ModelProto:
    constants = [
        constant("w", np.random.default_rng(0).normal(size=(4, 2, 3, 3)) / 4),
        *(constant(name, np.ones(4)) for name in ("s", "b", "m", "v")),
    ]
    nodes = [
        node("Conv", ["x", "w"], ["c"], group=2, pads=[1, 1, 1, 1], strides=[1, 1]),
        node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]),
        node("Relu", ["n"], ["r"]),
        node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", ["p"], ["g"]),
        node("Flatten", ["g"], ["y"], axis=1),
    ]
    return model(nodes, constants, [value("x", 2, 4, 8, 8)], [value("y", 2, 4)])


def _function() -> onnx.ModelProto:
    nodes = [node("MatMul", ["x", "w"], ["h"]), helper.make_node("F", ["h"], ["y"], "call", domain="own")]
    made = model(nodes, [WEIGHT])
    made.opset_import.append(helper.make_opsetid("own", 1))
    inner = [node("Tanh", ["a"], ["t"]), node("Mul", ["t", "a"], ["b"])]
    made.functions.append(helper.make_function("own", "F", ["a"], ["b"], inner, list(made.opset_import)))
    return made


def _shapes() -> onnx.ModelProto:
    constants = [WEIGHT, constant("zero", [0], np.int64), constant("tail", [2, -1], np.int64)]
    nodes = [
        node("MatMul", ["x", "w"], ["h"]),
        node("Shape", ["h"], ["s"]),
        node("Gather", ["s", "zero"], ["n"]),
        node("Concat", ["n", "tail"], ["target"], axis=0),
        node("Reshape", ["h", "target"], ["r"]),
        node("Split", ["r"], ["a", "b"], axis=1, num_outputs=2),
        node("Add", ["a", "b"], ["y"]),
    ]
    return model(nodes, constants, [value("x", "n", 8)], [value("y", "n", 1, 4)])


def _attention() -> onnx.ModelProto:
    constants = [*(constant(f"w{name}", np.eye(8) / 2) for name in "qkv"), constant("scale", 0.35)]
    nodes = [
        *(node("MatMul", ["x", f"w{name}"], [name]) for name in "qkv"),
        node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["scores"]),
        node("Mul", ["scores", "scale"], ["scaled"]),
        node("Softmax", ["scaled"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["y"]),
    ]
    for number, made in enumerate(nodes):
        made.name = f"n{number}"
    return model(nodes, constants, [value("x", "batch", "time", 8)], [value("y", "batch", "time", 8)])


def _dropout() -> onnx.ModelProto:
    constants = [WEIGHT, constant("ratio", 0.5), constant("training", True, np.bool_), constant("i", [1, 0], np.int64)]
    nodes = [
        node("Gather", ["x", "i"], ["g"], axis=0),
        node("MatMul", ["g", "w"], ["h"]),
        node("Dropout", ["h", "ratio", "training"], ["d"]),
        node("ReduceSum", ["d"], ["y"], keepdims=0),
    ]
    return model(nodes, constants, [value("x", 4, 8)], [value("y")])


def write_seeds(folder: Path) -> None:
    """Write the models, one with external data, and what commands make of the chain: a plan, a baseline, files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, made in models().items():
        onnx.save(made, folder / f"{name}.onnx")
    onnx.save(
        _chain(), folder / "external.onnx", save_as_external_data=True, location="external.data", size_threshold=0
    )
    (folder / "ckplan.toml").write_text(_CONFIGURATION)
    (folder / "pyproject.toml").write_text(_SHARED_CONFIGURATION)
    problem = problem_of(from_proto(onnx.load(folder / "recurrence.onnx")))
    (folder / "instance.json").write_text(json.dumps(problem_to_json(problem)))
    (folder / "instance.txt").write_text(small_unet().text())
    (folder / "graph.json").write_text(json.dumps(_GRAPH))
    np.savez(folder / "inputs.npz", x=np.ones((8, 8), np.float32))
    (folder / "names.txt").write_text("w0\nw1  # a remark\n")
    (folder / "names.json").write_text('["w0", "w2"]')
    header = json.dumps({"w1": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "names.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    for arguments in _MADE:
        outcome = run_forked(arguments, folder)
        if outcome.code:
            raise RuntimeError(f"ckplan {' '.join(arguments)} fails: {outcome.stderr}")
        if "--json" in arguments:
            (folder / _SAID[arguments[0]]).write_text(outcome.stdout)
    (kept,) = (folder / "cache" / "ckplan").iterdir()
    shutil.copy(kept, folder / KEPT_COSTS)
    (folder / KEPT_AS).write_text(kept.name)
    for name in ("stdout.txt", "stderr.txt"):
        (folder / name).unlink()
    for place in ("temporary", "cache"):
        shutil.rmtree(folder / place, ignore_errors=True)


def write_loop_seeds(folder: Path) -> None:
    """Write a model, its step, data for it, and a checkpoint of a loop around it; and graphs of numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(_chain(), folder / "chain.onnx")
    arrays = {name: np.random.default_rng(seed).normal(size=(16, 8)) for seed, name in enumerate(("x", "target"))}
    np.savez(folder / "data.npz", **{name: array.astype(np.float32) for name, array in arrays.items()})
    problem = problem_of(from_proto(_chain()))
    (folder / "instance.json").write_text(json.dumps(problem_to_json(problem)))
    (folder / "instance.txt").write_text(small_unet().text())
    (folder / "graph.json").write_text(json.dumps(_GRAPH))
    for arguments in _LOOPED:
        outcome = run_forked(arguments, folder)
        if outcome.code:
            raise RuntimeError(f"ckplan {' '.join(arguments)} fails: {outcome.stderr}")
    (made,) = (folder / "trained").iterdir()
    if made.relative_to(folder).as_posix() != CHECKPOINT:
        raise RuntimeError(f"a checkpoint is called {made.name}")
    for name in ("stdout.txt", "stderr.txt"):
        (folder / name).unlink()
    for place in ("temporary", "cache"):
        shutil.rmtree(folder / place, ignore_errors=True)


CHECKPOINT = "trained/step-00000002.safetensors"
"""What the loop writes after its two updates."""
_LOOPED: Sequence[Sequence[str]] = (
    ("grad", "chain.onnx", "-o", "step.onnx"),
    ("train", "step.onnx", "--data", "data.npz", "--checkpoints", "trained", "--optimizer", "sgd"),
)

_CONFIGURATION = """baseline = "baseline.json"
max-regression = "5%"

[models.chain]
path = "chain.onnx"
dims = { batch = 8 }
strategy = ["none", "sqrt"]
budget = "150%"
"""

_SHARED_CONFIGURATION = """[tool.ckplan]
baseline = "baseline.json"
[tool.ckplan.models.chain]
path = "chain.onnx"
dims = { batch = 8 }
"""

_MADE: Sequence[Sequence[str]] = (
    ("plan", "chain.onnx", "-o", "plan.json", "--strategy", "sqrt"),
    ("grad", "chain.onnx", "-o", "grad.onnx"),
    ("rewrite", "chain.onnx", "-o", "planned.onnx", "--strategy", "sqrt"),
    ("compare", "chain.onnx", "chain.onnx", "--save-baseline", "baseline.json"),
    ("analyze", "chain.onnx", "--json"),
    ("rewrite", "chain.onnx", "-o", "again.onnx", "--strategy", "memory", "--cost", "measured", "--json"),
    ("measure", "planned.onnx", "--device", "cpu", "--runs", "1", "--json"),
)
_SAID = {"analyze": "analyzed.json", "rewrite": "rewritten.json", "measure": "measured.json"}
_GRAPH = {
    "nodes": [{"id": n, "name": f"n{n}", "cost_ram": 64, "cost_cpu": 1.0, "backward": n > 3} for n in range(8)],
    "links": [
        *({"source": n, "target": n + 1} for n in range(7)),
        *({"source": 3 - n, "target": 4 + n} for n in range(4)),
    ],
}
