"""A decoder of 7e9 parameters whose data file is a hole: what planning it takes, none of its weights read.

    python -m benchmarks.decoder [--layers 32] [--folder DIR]
    python -m benchmarks.decoder --write FILE [--layers 17] [--width 2048] [--length 512] [--int8] [--tied]

The model has the form that torch's default exporter gives a Llama: every tensor of more than a kilobyte lies in
``decoder.onnx.data``, causal mask and rotary tables among them. That file is sparse: 28 GB that take no room. The
commands run as a user runs them; time, the largest resident set of any of their processes, and blocks written are the
system's figures (``wait4``). With ``--write`` there are random weights in the data file, to be trained; with
``--int8`` its matrices are integers of 8 bits behind DequantizeLinear, with a scale for each output; with
``--tied`` the last layer is the table of words, transposed.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

WORDS = 32000
HEAD = 128
"""Width of a head."""
_OUTSIDE = 1024
"""Bytes from which torch's exporter keeps a tensor outside."""


@dataclass
class Decoder:
    """A graph in the making, and the layout of its data file.

    Attributes:
        width: of the residual stream, in heads of 128.
        length: tokens.
        int8: whether matrices are integers.
        tied: whether the last layer is the table of words.
    """

    width: int = 4096
    length: int = 1024
    int8: bool = False
    tied: bool = False
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    tensors: list[onnx.TensorProto] = field(default_factory=list)
    bytes: int = 0
    parameters: int = 0

    @property
    def inner(self) -> int:
        """Width within the gated product."""
        return self.width * 23 // 8

    def matrix(self, name: str, *shape: int) -> str:
        """Add a matrix of the data file, and what makes floats of it if it is one of integers."""
        if not self.int8:
            return self.outside(name, *shape)
        scales = self.outside(f"{name}_scale", shape[1], trained=False)
        quantised = self.outside(f"{name}_quantized", *shape, kind=TensorProto.INT8)
        return self.add("DequantizeLinear", quantised, scales, axis=1)

    def outside(self, name: str, *shape: int, kind: int = TensorProto.FLOAT, trained: bool = True) -> str:
        """Add a tensor of the data file."""
        size = math.prod(shape) * helper.tensor_dtype_to_np_dtype(kind).itemsize
        tensor = TensorProto(name=name, data_type=kind, dims=shape, data_location=TensorProto.EXTERNAL)
        for key, value in (("location", ""), ("offset", self.bytes), ("length", size)):
            tensor.external_data.add(key=key, value=str(value))
        self.tensors.append(tensor)
        self.bytes += size
        self.parameters += math.prod(shape) * trained
        return name

    def inside(self, name: str, kind: int, *numbers: float, scalar: bool = False) -> str:
        """Add a small constant."""
        self.tensors.append(helper.make_tensor(name, kind, [] if scalar else [len(numbers)], numbers))
        return name

    def add(self, op_type: str, *inputs: str, **attributes: object) -> str:
        """Add a node; its result is called as torch's exporter would."""
        name = f"val_{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(op_type, inputs, [name], name=f"node_{op_type}_{len(self.nodes)}", **attributes)
        )
        return name


def norm(made: Decoder, x: str, path: str) -> str:
    """Root-mean-square normalisation, as it is exported."""
    mean = made.add("ReduceMean", made.add("Pow", x, "two"), "last", keepdims=1)
    scaled = made.add("Mul", x, made.add("Reciprocal", made.add("Sqrt", made.add("Add", mean, "epsilon"))))
    return made.add("Mul", made.outside(f"{path}.weight", made.width), scaled)


def rotated(made: Decoder, x: str) -> str:
    """Rotary positions."""
    halves = [made.add("Slice", x, "zero", "half", "axis"), made.add("Slice", x, "half", "end", "axis")]
    turned = made.add("Concat", made.add("Neg", halves[1]), halves[0], axis=-1)
    return made.add("Add", made.add("Mul", x, "cos"), made.add("Mul", turned, "sin"))


def layer(made: Decoder, x: str, path: str) -> str:
    """Attention and the gated product."""
    width, inner = made.width, made.inner
    y = norm(made, x, f"{path}.input_layernorm")
    heads = {}
    for part in "qkv":
        product = made.add("MatMul", y, made.matrix(f"{path}.self_attn.{part}_proj.weight", width, width))
        heads[part] = made.add("Transpose", made.add("Reshape", product, "split"), perm=[0, 2, 1, 3])
    query, key = rotated(made, heads["q"]), rotated(made, heads["k"])
    scores = made.add("Mul", made.add("MatMul", query, made.add("Transpose", key, perm=[0, 1, 3, 2])), "scale")
    weights = made.add("Softmax", made.add("Where", "mask", scores, "low"), axis=-1)
    joined = made.add(
        "Reshape", made.add("Transpose", made.add("MatMul", weights, heads["v"]), perm=[0, 2, 1, 3]), "join"
    )
    x = made.add("Add", x, made.add("MatMul", joined, made.matrix(f"{path}.self_attn.o_proj.weight", width, width)))
    y = norm(made, x, f"{path}.post_attention_layernorm")
    gate = made.add("MatMul", y, made.matrix(f"{path}.mlp.gate_proj.weight", width, inner))
    up = made.add("MatMul", y, made.matrix(f"{path}.mlp.up_proj.weight", width, inner))
    product = made.add("Mul", made.add("Mul", gate, made.add("Sigmoid", gate)), up)
    return made.add("Add", x, made.add("MatMul", product, made.matrix(f"{path}.mlp.down_proj.weight", inner, width)))


def write(path: Path, layers: int, made: Decoder) -> Path:
    """Write the model and its data file, which is a hole."""
    width, length = made.width, made.length
    heads = width // HEAD
    integers = {"last": [-1], "zero": [0], "half": [HEAD // 2], "end": [2**62], "axis": [3]}
    for name, numbers in integers.items():
        made.inside(name, TensorProto.INT64, *numbers)
    made.inside("split", TensorProto.INT64, 0, 0, heads, HEAD)
    made.inside("join", TensorProto.INT64, 0, 0, width)
    for name, number in {"two": 2.0, "epsilon": 1e-5, "scale": HEAD**-0.5, "low": -3.4e38}.items():
        made.inside(name, TensorProto.FLOAT, number, scalar=True)
    made.outside("mask", length, length, kind=TensorProto.BOOL, trained=False)
    for name in ("cos", "sin"):
        made.outside(name, length, HEAD, trained=False)
    table = made.outside("model.embed_tokens.weight", WORDS, width)
    x = made.add("Gather", table, "input_ids")
    for index in range(layers):
        x = layer(made, x, f"model.layers.{index}")
    x = norm(made, x, "model.norm")
    head = made.add("Transpose", table, perm=[1, 0]) if made.tied else made.matrix("lm_head.weight", width, WORDS)
    logits = made.add("MatMul", x, head)
    made.nodes[-1].output[0] = "logits" if logits else ""
    for tensor in made.tensors:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = f"{path.name}.data"
    graph = helper.make_graph(
        made.nodes,
        "decoder",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", length])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", length, WORDS])],
        made.tensors,
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10, producer_name="pytorch"
    )
    path.write_bytes(model.SerializeToString())
    with path.with_name(f"{path.name}.data").open("wb") as data:
        data.truncate(made.bytes)
    return path


def fill(path: Path, made: Decoder) -> None:
    """Put numbers into the data file: weights that keep activations of a size, a causal mask, rotary tables."""
    rng = np.random.default_rng(0)
    turn = np.outer(np.arange(made.length), 1e4 ** -(np.arange(0, HEAD, 2) / HEAD))
    known = {
        "mask": np.tril(np.ones((made.length, made.length), bool)),
        "cos": np.tile(np.cos(turn), 2).astype(np.float32),
        "sin": np.tile(np.sin(turn), 2).astype(np.float32),
    }
    with path.with_name(f"{path.name}.data").open("r+b") as data:
        for tensor in made.tensors:
            place = {entry.key: entry.value for entry in tensor.external_data}
            if not place:
                continue
            shape, name = tuple(tensor.dims), tensor.name
            if name in known:
                values = known[name]
            elif name.endswith("_scale"):
                values = np.full(shape, made.width**-0.5 / 74, np.float32)
            elif tensor.data_type == TensorProto.INT8:
                values = rng.integers(-127, 128, shape, np.int8)
            elif len(shape) == 1:
                values = np.ones(shape, np.float32)
            else:
                values = rng.standard_normal(shape, np.float32) * np.float32(made.width**-0.5)
            data.seek(int(place["offset"]))
            data.write(values.tobytes())


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def ran(*arguments: str) -> None:
    """Run a command of ckplan and say what it took."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "ckplan", *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = process.stdout.read().splitlines()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    _say(
        f"{arguments[0]}: exit {process.returncode}, {time.perf_counter() - start:.0f} s, processor "
        f"{usage.ru_utime + usage.ru_stime:.0f} s, resident {usage.ru_maxrss / 1e3:.0f} MB, "
        f"written {usage.ru_oublock * 512 / 1e6:.0f} MB"
    )
    _say("\n".join(f"  {line}" for line in lines[:12]))


def main() -> None:
    """Write the model, and run the commands on it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--int8", action="store_true")
    parser.add_argument("--tied", action="store_true")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    made = Decoder(options.width, options.length, options.int8, options.tied)
    if options.write is not None:
        fill(write(options.write, options.layers, made), made)
        _say(f"{options.write}: {made.parameters / 1e6:.0f}e6 parameters")
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        path = write(Path(name) / "decoder.onnx", options.layers, made)
        data = path.with_name("decoder.onnx.data").stat()
        _say(
            f"{made.parameters / 1e9:.2f}e9 parameters, {len(made.nodes)} nodes, data file {data.st_size / 1e9:.1f} GB "
            f"of which {data.st_blocks * 512 / 1e6:.0f} MB exist"
        )
        ran("analyze", str(path), "--dim", "batch=1")
        ran("rewrite", str(path), "-o", str(path.with_name("planned.onnx")), "--strategy", "memory", "--dim", "batch=1")
        for file in path.parent.iterdir():
            _say(f"{file.name}: {file.stat().st_blocks * 512 / 1e6:.1f} MB on disk")


if __name__ == "__main__":
    main()
