"""Build the page: python -m examples.page.build OUT [--runtime DIR].

OUT gets all that it needs but onnxruntime-web, which it loads from jsDelivr; with --runtime, the `dist` folder of that
package, it gets that too and needs no other server. To look at it: python -m http.server --directory OUT.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Mapping
from pathlib import Path

import ckplan
from examples.digits.train import FORWARD
from examples.loops.batches import write_batches

HERE = Path(__file__).parent
LOOPS = HERE.parent / "loops"
BATCH, PLAN = 1500, {"strategy": "memory"}
REMOTE = "https://cdn.jsdelivr.net/npm/onnxruntime-web@1.30.0/dist/"
RUNTIME = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")


def build(out: Path, runtime: Path | None = None, batch: int = BATCH, plan: Mapping[str, str] = PLAN) -> None:
    """Write the page into a folder that is not there yet.

    Args:
        out: the folder.
        runtime: the folder ``dist`` of the package onnxruntime-web.
        batch: images in a step. Of a small one, the memory is below what WebAssembly begins with.
        plan: how to plan. What the page shows is what onnxruntime's arena takes, in leaps.
    """
    out.mkdir(parents=True)
    options = {"dims": {"batch": batch}, "loss": "cross-entropy", "training": True, "optimizer": "adam"}
    ckplan.artifacts(FORWARD, out / "plain", **options)
    ckplan.artifacts(FORWARD, out / "planned", **plan, **options)
    write_batches(out / "batches.safetensors", batch)
    for file in (*HERE.glob("*.css"), *HERE.glob("*.mjs"), LOOPS / "train.mjs", LOOPS / "safetensors.mjs"):
        shutil.copy(file, out)
    for name in RUNTIME if runtime is not None else ():
        assert runtime is not None
        (out / "runtime").mkdir(exist_ok=True)
        shutil.copy(runtime / name, out / "runtime")
    page = (HERE / "index.html").read_text(encoding="utf-8")
    place = REMOTE if runtime is None else "./runtime/"
    (out / "index.html").write_text(page.replace("RUNTIME", place), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--runtime", type=Path)
    given = parser.parse_args()
    build(given.out, given.runtime)
    print(f"python -m http.server --directory {given.out}")
