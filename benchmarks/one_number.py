"""One number for one question: the peak without a plan, as every command and the meter tell it.

    python -m benchmarks.one_number [--only gpt_tiny light_resnet50 bert] [--results build/one_number.jsonl]

For each network, the peak of activations without a plan as `ckplan analyze` prints it, as `ckplan grad` writes it into
its file's metadata, as `ckplan rewrite` and `ckplan compare` set their plans against it, and as onnxruntime's counters
measure it on the file that `grad` wrote. All are to be equal to the byte. Results are appended as they come; what
stands there is not measured again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import onnx

from benchmarks.prediction import NETWORKS, ROOT, image_input

RESULTS = ROOT / "build" / "one_number.jsonl"
TIME_LIMIT = 900
"""Seconds for one network."""


def ckplan(*words: object) -> dict[str, Any]:
    """What a command prints with ``--json``.

    Raises:
        RuntimeError: it failed; the text is its last line.
    """
    command = [sys.executable, "-m", "ckplan", *map(str, words), "--json", "--quiet"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIME_LIMIT)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def numbers(name: str) -> dict[str, int]:
    """The peak of activations without a plan, by who tells it."""
    network = NETWORKS[name]
    batch = network.batches[0]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        path = network.path(batch, folder)
        sizes = ["--dim", f"batch={batch}"] if network.symbolic else []
        sizes += ["--shape", f"{image_input(path)}={batch},3,224,224"] if network.images else []
        plain, planned, baseline = folder / "plain.onnx", folder / "planned.onnx", folder / "baseline.json"
        ckplan("grad", path, "-o", plain, *sizes)
        metadata = {entry.key: entry.value for entry in onnx.load(plain, load_external_data=False).metadata_props}
        quick = ("--strategy", "memory")
        ckplan("compare", path, *sizes, *quick, "--save-baseline", baseline)
        stored = next(iter(json.loads(baseline.read_text(encoding="utf-8"))["models"].values()))
        measured = ckplan("measure", plain, "--runs", 1)
        return {
            "analyze": ckplan("analyze", path, *sizes, "--strategy", "none")["base"]["peak_activations"],
            "grad": int(metadata["pkg.ckplan.predicted_peak_activations"]),
            "rewrite": ckplan("rewrite", path, "-o", planned, *sizes, *quick)["base"]["peak_activations"],
            "compare": stored["unplanned"],
            "measure": measured["counters"]["peak_activations"],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=list(NETWORKS), metavar="NETWORK")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    lines = arguments.results.read_text(encoding="utf-8").splitlines() if arguments.results.exists() else []
    found: dict[str, Any] = {line["network"]: line for line in map(json.loads, lines)}
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    for name in arguments.only:
        if name not in found:
            try:
                found[name] = {"network": name, "peaks": numbers(name)}
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                found[name] = {"network": name, "failure": str(error)}
            with arguments.results.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(found[name]) + "\n")
        peaks = found[name].get("peaks")
        said = found[name].get("failure") or ("one number" if len(set(peaks.values())) == 1 else peaks)
        print(f"{name}: {said}", flush=True)
    told = [found[name]["peaks"] for name in arguments.only if "peaks" in found[name]]
    same = sum(len(set(peaks.values())) == 1 for peaks in told)
    print(f"{same} of {len(told)} networks have one number; {len(arguments.only) - len(told)} could not be asked")


if __name__ == "__main__":
    main()
