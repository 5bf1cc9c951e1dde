"""A training step on a GPU: without a plan, planned by `memory`, and in torch eager, one after the other.

    python -m benchmarks.gpu [NAMES] [--device cuda] [--steps 10] [--kernels]

Files are run in onnxruntime with default options, inputs and outputs bound to the device, each in a process of its own.
Milliseconds are the least of the steps, by the wall clock; memory is what the process takes, as the driver (NVML) has
it, CUDA's context included, or what torch has reserved. ``--kernels`` also runs the step without a plan with
CUDA_LAUNCH_BLOCKING=1 and prints which operators take the time, and which of them run on the CPU. Needs a GPU, torch
with CUDA, torchvision, transformers and nvidia-ml-py; ``--device cpu`` tries the files out without.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.forward_files import add_cross_entropy, set_batch
from benchmarks.kernel_times import kernel_times
from ckplan.meter.memory import nvml
from ckplan.meter.running.session import open_session
from sample_models.catalogue import BUILDERS
from sample_models.feeds import random_feeds

WARM_UP = 4
"""Steps before those that count; kernels are chosen in the first, and memory patterns hold from the second."""


@dataclass(frozen=True)
class Case:
    """A network at a size.

    Attributes:
        build: makes the forward model.
        batch: batch size.
        training: whether it has batch normalisation, in training mode.
    """

    build: Callable[[], onnx.ModelProto]
    batch: int
    training: bool = False


CASES = {
    "gpt2": Case(BUILDERS["gpt"], 8),
    "resnet50": Case(partial(BUILDERS["resnet50"], training=True), 64, training=True),
    "vit_b_16": Case(BUILDERS["vit"], 64),
    "mobilenet_v2": Case(partial(BUILDERS["mobilenet_v2"], training=True), 64, training=True),
}


def prepare(name: str, folder: Path, device: str) -> None:
    """Write the step without a plan, the planned one, both for a device's kernels, and what they are fed."""
    case = CASES[name]
    model = case.build()
    set_batch(model, case.batch)
    if model.graph.output[0].type.tensor_type.shape.dim:
        add_cross_entropy(model)
    forward = folder / "forward.onnx"
    onnx.save(model, forward)
    np.savez(folder / "feeds.npz", **random_feeds(model, batch=case.batch))  # type: ignore[arg-type]
    mode = ["--training"] * case.training
    for command, out in ((["grad"], "step"), (["rewrite", "--strategy", "memory"], "memory")):
        words = [*command, str(forward), "-o", str(folder / f"{out}.onnx"), "-q", "--device", device, *mode]
        subprocess.run([sys.executable, "-m", "ckplan", *words], check=True, stdout=subprocess.DEVNULL)


def least(step: Callable[[], object], steps: int) -> float:
    """Milliseconds of the fastest of some steps, after the warm-up."""
    times = []
    for _ in range(WARM_UP + steps):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times[WARM_UP:])


def run_file(path: Path, device: str, steps: int, kernels: bool) -> dict[str, Any]:
    """Run a file; in this process, which is to do nothing else."""
    import onnxruntime as ort

    gpu, why = nvml.meter() if device == "cuda" else (None, "")
    if why:
        raise SystemExit(why)
    session, _ = open_session(str(path), device, profile=path.with_suffix("") if kernels else None)
    binding = session.io_binding()
    for name, array in np.load(path.with_name("feeds.npz")).items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, device, 0))
    for output in session.get_outputs():
        binding.bind_output(output.name, device)

    def step() -> None:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    found: dict[str, Any] = {"milliseconds": least(step, steps)}
    found["bytes"] = nvml.settled(gpu).used() if gpu else 0
    if kernels:
        found["kernels"] = kernel_times(session.end_profiling(), WARM_UP + steps)
    return found


def run_torch(name: str, steps: int) -> dict[str, Any]:
    """The same network in torch eager, matrix products in TF32 as they are in onnxruntime."""
    import torch
    from torch.nn import functional

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    batch = CASES[name].batch
    torch.set_default_device("cuda")
    if name == "gpt2":
        import transformers

        config = transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
        network: Any = transformers.GPT2LMHeadModel(config).train()
        fed, labels = (torch.randint(0, config.vocab_size, (batch, config.n_positions)) for _ in range(2))

        def loss() -> torch.Tensor:
            return functional.cross_entropy(network(fed).logits.flatten(0, 1), labels.flatten())

    else:
        import torchvision

        network = getattr(torchvision.models, name)().train()
        fed, labels = torch.randn(batch, 3, 224, 224), torch.randint(0, 1000, (batch,))

        def loss() -> torch.Tensor:
            return functional.cross_entropy(network(fed), labels)

    parameters = list(network.parameters())

    def step() -> None:
        torch.autograd.grad(loss(), parameters)
        torch.cuda.synchronize()

    return {"milliseconds": least(step, steps), "bytes": torch.cuda.max_memory_reserved()}


def apart(*words: str, **environment: str) -> dict[str, Any]:
    """Do a part of the work in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.gpu", *words]
    done = subprocess.run(command, env=os.environ | environment, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(CASES), metavar="NAMES")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--torch", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.torch:
        print(json.dumps(run_torch(chosen.torch, chosen.steps)))
        return
    if chosen.file:
        print(json.dumps(run_file(chosen.file, chosen.device, chosen.steps, chosen.kernels)))
        return
    common = ["--device", chosen.device, "--steps", str(chosen.steps)]
    for name in chosen.names:
        with tempfile.TemporaryDirectory() as folder:
            prepare(name, Path(folder), chosen.device)
            rows = {kind: apart("--file", f"{folder}/{kind}.onnx", *common) for kind in ("step", "memory")}
            if chosen.device == "cuda":
                rows["torch eager"] = apart("--torch", name, *common)
            for kind, row in rows.items():
                print(f"{name}, {kind}: {row['milliseconds']:.1f} ms, {row['bytes'] / 2**20:,.0f} MiB", flush=True)
            if chosen.kernels:
                blocking = apart("--file", f"{folder}/step.onnx", *common, "--kernels", CUDA_LAUNCH_BLOCKING="1")
                for operator, took, number in blocking["kernels"]:
                    print(f"    {operator} x {number}: {took:.2f} ms")


if __name__ == "__main__":
    main()
