"""One of the processes; needs torch for its all-reduce over gloo, and nothing else of it.

python -m examples.data_parallel.worker DIR BATCHES STEPS OUT --rank R --workers N --meet FILE [--patience SECONDS]
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import onnxruntime
import torch
import torch.distributed

from examples.loops.safetensors import tensors, write

Arrays = dict[str, np.ndarray]


def run(session: onnxruntime.InferenceSession, values: Arrays, updates: dict[str, str]) -> None:
    """Run a file on what it asks for; what it makes goes to where the next one looks for it."""
    made = session.run(None, {value.name: values[value.name] for value in session.get_inputs()})
    values |= zip((updates.get(value.name, value.name) for value in session.get_outputs()), made, strict=True)


def average(values: Arrays, names: list[str], workers: int) -> None:
    """Replace arrays by their mean over all workers, in one all-reduce."""
    flat = torch.from_numpy(np.concatenate([values[name].reshape(-1) for name in names]))
    torch.distributed.all_reduce(flat)
    parts = np.split((flat / workers).numpy(), np.cumsum([values[name].size for name in names])[:-1])
    values |= {name: part.reshape(values[name].shape) for name, part in zip(names, parts, strict=True)}


def train(folder: Path, batches: Arrays, steps: int, rank: int, workers: int) -> Arrays:
    """Train on this worker's share of each batch; returns parameters, statistics and state by name."""
    manifest = json.loads((folder / "manifest.json").read_text())
    training, update = (onnxruntime.InferenceSession(folder / f"{kind}.onnx") for kind in ("training", "update"))
    values = {state["name"]: np.zeros(state["shape"], state["dtype"]) for state in manifest["states"]}
    values |= tensors((folder / "checkpoint.safetensors").read_bytes())
    kept = [*values]
    # The loss is a mean over the batch, so that the mean of the shares' gradients is the gradient of the whole; what
    # a share learns besides, running statistics, is averaged as well.
    shared = [manifest["updates"].get(value.name, value.name) for value in training.get_outputs()]
    for step in range(steps):
        values |= {name: np.array_split(array[step % len(array)], workers)[rank] for name, array in batches.items()}
        run(training, values, manifest["updates"])
        average(values, shared, workers)
        run(update, values, manifest["updates"])
        if rank == 0:
            print(float(values[manifest["loss"]]), flush=True)
    return {name: values[name] for name in kept}


def main() -> None:
    """Meet the others, train, and let the first worker write what was learnt."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("batches", type=Path)
    parser.add_argument("steps", type=int)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--meet", type=Path, required=True, help="a file that is not there yet, where workers meet")
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a worker")
    given = parser.parse_args()
    try:
        torch.distributed.init_process_group(
            "gloo",
            init_method=given.meet.absolute().as_uri(),
            rank=given.rank,
            world_size=given.workers,
            timeout=timedelta(seconds=given.patience),
        )
        batches = tensors(given.batches.read_bytes())
        learnt = train(given.folder, batches, given.steps, given.rank, given.workers)
    except torch.distributed.DistError:
        sys.exit(f"worker {given.rank}: a worker did not answer within {given.patience:g} s")
    except RuntimeError as error:  # what gloo raises
        reason = str(error).splitlines()[0]
        sys.exit(f"worker {given.rank}: a worker went away or did not answer within {given.patience:g} s ({reason})")
    finally:
        # A thread of gloo's that still holds a tensor while Python shuts down ends the process by an abort.
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    if given.rank == 0:
        write(learnt, given.out)


if __name__ == "__main__":
    main()
