"""A writer killed at random moments: what is there afterwards is the old model or the new one, with its data.

``python -m benchmarks.fuzz.kills --kills 200``
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from ckplan.isolation.folders import temporary_folder
from ckplan.model.files.saving import save

TENSORS, ELEMENTS = 6, 1 << 18


def model_of(number: int) -> ir.Model:
    """A model whose every weight is one number throughout, so that a mixture of two would show."""
    value = helper.make_tensor_value_info
    weights = [numpy_helper.from_array(np.full(ELEMENTS, number, np.float32), f"w{i}") for i in range(TENSORS)]
    nodes = [helper.make_node("Sum", ["x", *(weight.name for weight in weights)], ["y"], "sum")]
    ends = [value(name, TensorProto.FLOAT, [ELEMENTS]) for name in "xy"]
    graph = helper.make_graph(nodes, f"g{number}", ends[:1], ends[1:], weights)
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))


def external(number: int, folder: Path) -> ir.Model:
    """The same with its weights in a data file of another folder, so that saving has to write one."""
    place = folder / f"source{number}"
    place.mkdir(exist_ok=True)
    if not (place / "m.onnx").exists():
        ir.save(model_of(number), place / "m.onnx", external_data="m.data")
    return ir.load(place / "m.onnx")


def number_in(path: Path) -> int:
    """Which model is in a file.

    Raises:
        ValueError: it is a mixture.
    """
    proto = onnx.load(path)
    numbers = {float(n) for weight in proto.graph.initializer for n in np.unique(numpy_helper.to_array(weight))}
    if len(numbers) != 1 or proto.graph.name != f"g{int(next(iter(numbers)))}":
        raise ValueError(f"{proto.graph.name} with weights {sorted(numbers)}")
    return int(next(iter(numbers)))


def killed(folder: Path, kills: int, seed: int = 0) -> dict[str, object]:
    """Write over a model, and kill the writer, so many times.

    Returns:
        How often the writer had ended, the old and the new model were there, and what was torn or left behind.
    """
    rng = random.Random(seed)
    target = folder / "place" / "model.onnx"
    target.parent.mkdir()
    sources = [external(number, folder) for number in (0, 1)]
    before = time.monotonic()
    save(sources[0], target, copy_weights=True)
    whole = time.monotonic() - before
    found: Counter[str] = Counter()
    torn = []
    for attempt in range(kills):
        old = number_in(target)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                save(sources[1 - old], target, force=True, copy_weights=True)
                code = 0
            finally:
                os._exit(code)
        time.sleep(rng.uniform(0, 1.5 * whole))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        found["ended before"] += status == 0
        # The machine may be busier than it was: few moments are to lie behind the end, and all before it to be met.
        whole *= 1 / 1.1 if status == 0 else 1.02
        try:
            found["old" if number_in(target) == old else "new"] += 1
        except Exception as error:  # whatever a torn file does to its reader
            torn.append(f"{attempt}: {error}")
            save(sources[0], target, force=True, copy_weights=True)
    with temporary_folder(target.parent):
        pass
    names = sorted(file.name for file in target.parent.iterdir())
    return {"kills": kills, "found": found, "torn": torn, "files": names}


def main() -> int:
    """Print what was found; 1 if anything was torn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = killed(Path(folder), options.kills)
    print(json.dumps(found, indent=1))
    return int(bool(found["torn"]))


if __name__ == "__main__":
    sys.exit(main())
