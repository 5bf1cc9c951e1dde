"""How long onnxruntime takes to open a planned file, beside the file without a plan.

    python -m benchmarks.session_opening [MODELS] [--plans 50% 40% memory] [--batch 64] [--runs 25]

What a user waits for before the first step: reading the file, optimising, making the kernels and the allocation plan.
Files are opened in turns in one process, on one thread; a figure is the least processor time of all its turns, and a
ratio is one of two such figures. Nodes stand beside it, for they are what the time goes by.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import onnx_ir as ir
import onnxruntime as ort

import ckplan
from ckplan.errors import InfeasibleError
from ckplan.model import save
from ckplan.pipeline import StepOptions, open_step

ROOT = Path(__file__).resolve().parent.parent
MODELS = [
    ROOT / "examples" / "digits" / "digits.onnx",
    *(ROOT / "sample_models" / f"{name}.onnx" for name in ("gpt_tiny", "bert_tiny", "unet_tiny", "mobilenet_tiny")),
]
PLANS = ["50%", "40%", "memory"]


def files(model: Path, batch: int, plans: list[str], folder: Path) -> dict[str, Path]:
    """The file without a plan and one for each plan, by its name: a budget or a strategy."""
    step = open_step(model, StepOptions.of(dims={"batch": batch}))
    made = {"none": folder / "none.onnx"}
    save(step.ordered, made["none"], force=True)
    for plan in plans:
        chosen = {"budget": plan} if plan.endswith("%") else {"strategy": plan}
        path = folder / f"{plan.rstrip('%')}.onnx"
        try:
            ckplan.rewrite(step, output=path, force=True, **chosen)
            made[plan] = path
        except InfeasibleError as refusal:
            print(f"| {model.stem} | {plan} | refused: {refusal} | | |", flush=True)
    return made


def opening(paths: dict[str, Path], runs: int) -> dict[str, float]:
    """Least seconds of processor time to open each file."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    least = dict.fromkeys(paths, float("inf"))
    for _ in range(runs):
        for name, path in paths.items():
            start = time.process_time()
            session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            least[name] = min(least[name], time.process_time() - start)
            del session
    return least


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, default=MODELS)
    parser.add_argument("--plans", nargs="+", default=PLANS)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--runs", type=int, default=25)
    arguments = parser.parse_args()
    print("| model | plan | nodes | ms | to none |\n|---|---|---|---|---|")
    for model in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            paths = files(model, arguments.batch, arguments.plans, Path(folder))
            least = opening(paths, arguments.runs)
            for name, path in paths.items():
                ratio = least[name] / least["none"]
                nodes = len(ir.load(path).graph)
                print(f"| {model.stem} | {name} | {nodes} | {least[name] * 1e3:.1f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
