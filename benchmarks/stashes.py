"""Smaller stashes without loss: what there is to win, what it costs to pack them, and what plans gain by it.

    python -m benchmarks.stashes held [NAMES]
    python -m benchmarks.stashes kernels
    python -m benchmarks.stashes plans [NAMES] [--goals budget=40% strategy=memory] [--forms off auto]

`held`: of what lies in memory at the peak without a plan, at the knee and by `memory`, the share that is bools, whole
numbers, and what the forward pass made by a Cast, a Transpose, a Neg or a LeakyRelu and keeps: what other forms than
recomputation could make smaller. `kernels`: processor time of packing a mask, of taking it apart, and of drawing it a
second time, as a ratio of a Relu of as many elements. `plans`: networks with Dropout, masks as bytes and in bits; see
`benchmarks.chunks` for the columns. Networks of transformers and of torch need these packages.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import ckplan
from benchmarks.chunks import HEAD, rows
from benchmarks.exports import network_of
from ckplan.errors import InfeasibleError
from ckplan.runtime.occupancy import Occupancy, Role
from sample_models.light_models import light_model

_SAMPLES = Path(__file__).resolve().parent.parent / "sample_models"

_ELEMENTS = 1 << 22

_INVERTIBLE = ("Transpose", "Neg", "LeakyRelu")

_HEADER = '<ir_version: 10, opset_import: ["": 21]> g '

_KERNELS = {
    "Relu": ("float[N] x", "float[N] y", "y = Relu(x)"),
    "pack": (
        "bool[N] x",
        "uint8[1,P] y",
        "u = Cast<to=2>(x) v = Reshape(u, planes) s = MatMulInteger(row, v) y = Cast<to=2>(s)",
    ),
    "take apart": ("uint8[1,P] x", "bool[8,P] y", "u = BitwiseAnd(x, column) y = Cast<to=9>(u)"),
    "draw": (
        "float[N] x",
        "bool[N] y",
        "u = RandomUniformLike<dtype=1, seed=5.0>(x) y = GreaterOrEqual(u, ratio)",
    ),
}
"""Input, output and nodes of each, as :mod:`ckplan.autodiff.pieces.packed_masks` emits them."""


def kernels(repeats: int = 20) -> Iterator[str]:
    """A row for each kernel: processor time on one thread as a ratio of a Relu's, the least of several."""
    powers = np.left_shift(1, np.arange(8)).astype(np.uint8)
    constants = {
        "row": powers[None],
        "column": powers[:, None],
        "planes": np.asarray([8, -1]),
        "ratio": np.float32(0.1),
    }
    rng = np.random.default_rng(0)
    found: dict[str, float] = {}
    for name, (read, made, nodes) in _KERNELS.items():
        text = f"{_HEADER} ({read}) => ({made}) {{ {nodes} }}"
        model = onnx.parser.parse_model(text.replace("[N]", f"[{_ELEMENTS}]").replace(",P]", f",{_ELEMENTS // 8}]"))
        used = {value for node in model.graph.node for value in node.input}
        arrays = [onnx.numpy_helper.from_array(np.asarray(a), k) for k, a in constants.items() if k in used]
        model.graph.initializer.extend(arrays)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        (given,) = session.get_inputs()
        x = (rng.random(given.shape) * 256).astype(
            onnx.helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type)
        )
        found[name] = min(_seconds(session, {"x": x}) for _ in range(repeats))
        yield f"{name:>12} {found[name] / found['Relu']:6.2f}"


def _seconds(session: onnxruntime.InferenceSession, feeds: Mapping[str, np.ndarray]) -> float:
    start = time.process_time()
    session.run(None, feeds)
    return time.process_time() - start


def _sample(name: str, **options: Any) -> Callable[[Path], tuple[Any, dict[str, Any]]]:
    return lambda folder: (_SAMPLES / f"{name}.onnx", {"dims": {"batch": 16}, **options})


def _light(name: str, data: str, batch: int) -> Callable[[Path], tuple[Any, dict[str, Any]]]:
    return lambda folder: (light_model(f"light_{name}"), {"shapes": {data: (batch, 3, 224, 224)}})


def _in_training(network: Callable[[], tuple[Any, Any]]) -> Callable[[Path], tuple[Any, dict[str, Any]]]:
    def make(folder: Path) -> tuple[Any, dict[str, Any]]:
        module, example = network()
        return ckplan.export(module.train(), (example,), folder / "network.onnx", force=True), {"training": True}

    return make


def _layers(batch: int = 1024, width: int = 256, layers: int = 16) -> tuple[Any, Any]:
    """Linear layers, each with a Relu and a Dropout."""
    import torch

    torch.manual_seed(0)
    parts = [(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Dropout(0.5)) for _ in range(layers)]
    return torch.nn.Sequential(*(part for group in parts for part in group)), torch.randn(batch, width)


def _gpt(batch: int = 2, layers: int = 12) -> tuple[Any, Any]:
    """GPT-2 with its Dropout, 256 tokens of 256 features."""
    import torch
    import transformers

    from benchmarks.exports import _only

    torch.manual_seed(0)
    sizes = {"vocab_size": 2000, "n_layer": layers, "n_embd": 256, "n_head": 8, "n_positions": 256}
    config = transformers.GPT2Config(**sizes, use_cache=False)
    config._attn_implementation = "eager"
    network = transformers.GPT2LMHeadModel(config)
    return _only(network, "logits"), torch.randint(0, 2000, (batch, 256))


NETWORKS: Mapping[str, Callable[[Path], tuple[Any, dict[str, Any]]]] = {
    "layers": _in_training(_layers),
    "bert": _in_training(lambda: network_of("bert", 4)),
    "gpt2": _in_training(_gpt),
}
"""Networks with Dropout: what makes a file in a folder, and the options that it is planned with."""

MODELS: Mapping[str, Callable[[Path], tuple[Any, dict[str, Any]]]] = {
    "resnet_tiny": _sample("resnet_tiny"),
    "resnet_tiny --training": _sample("resnet_tiny", training=True),
    "mobilenet_tiny": _sample("mobilenet_tiny"),
    "mobilenet_tiny --training": _sample("mobilenet_tiny", training=True),
    "unet_tiny": _sample("unet_tiny"),
    "gpt_tiny": _sample("gpt_tiny"),
    "light_resnet50": _light("resnet50", "gpu_0/data_0", 8),
    "light_vgg19": _light("vgg19", "data_0", 4),
    **NETWORKS,
}
"""What `held` looks at: the same, and networks with max pooling, Clip and residual connections."""


def held(model: Any, options: dict[str, Any]) -> Iterator[str]:
    """A row for each plan of a model: its peak, and the shares of it that could be kept in a smaller form."""
    step = ckplan.open_model(model, **options)
    yield _shares("no plan", step.occupancy)
    for strategy in ("auto", "memory"):
        yield _shares(strategy, ckplan.rewrite(step, strategy=strategy).occupancy)


def _shares(plan: str, occupancy: Occupancy) -> str:
    at, peak = occupancy.timeline.peak_step, occupancy.timeline.peak_activations
    taken: Counter[str] = Counter()
    for _, buffer in occupancy.alive(at):
        span = buffer.at(at)
        kind = "bool" if span.dtype == "bool" else "int" if "int" in span.dtype else ""
        if not kind and span.role is Role.KEPT:
            kind = "cast" if span.op_type == "Cast" else "invertible" if span.op_type in _INVERTIBLE else ""
        taken[kind] += buffer.bytes
    shares = " ".join(f"{100 * taken[kind] / peak:9.1f} %" for kind in ("bool", "int", "cast", "invertible"))
    return f"{plan:>10} {peak / 2**20:8.1f} MiB {shares}"


def plans(model: Any, options: dict[str, Any], goals: list[str], forms: list[str], repeats: int) -> Iterator[str]:
    """Rows of a network for each goal."""
    for text in goals:
        name, _, value = text.partition("=")
        yield f"{text}"
        try:
            yield from rows(model, forms, repeats, options, {name: value})
        except InfeasibleError as error:
            yield error.message


def main() -> None:
    """Print the rows of what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("held", "kernels", "plans"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--goals", nargs="+", default=["strategy=memory"])
    parser.add_argument("--forms", nargs="+", default=["off", "auto"])
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    if chosen.what == "kernels":
        for row in kernels():
            print(row, flush=True)
        return
    models = MODELS if chosen.what == "held" else NETWORKS
    print(
        HEAD
        if chosen.what == "plans"
        else f"{'plan':>10} {'peak':>12} {'bool':>11} {'int':>11} {'cast':>11} invertible"
    )
    for name in chosen.names or models:
        print(name, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            model, options = models[name](Path(folder))
            told = held(model, options)
            if chosen.what == "plans":
                told = plans(model, options, chosen.goals, chosen.forms, chosen.repeats)
            for row in told:
                print(row, flush=True)


if __name__ == "__main__":
    main()
