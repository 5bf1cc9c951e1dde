"""Steps of language models as torch exports them by default, with a form of attention and without it.

    python -m benchmarks.attention_forms guards|hidden [NAMES] [--tokens 256 1024] [--rounds 12]

`guards`: torch's exporters put a Where behind the softmax of each attention that has a mask, which
`ckplan.autodiff.attention.softmax_guards` takes away. `hidden`: queries go in blocks, which leave out the keys that a
causal mask hides from them (`ckplan.autodiff.attention.shown_keys`). Networks of transformers of two layers, 128 wide,
four heads, a batch of two; BERT and Llama with a mask for padding as an input. MiB of activations as promised, without
a plan and by `memory`, before and since; processor time of a step without a plan on one thread, the least of all rounds
in turns, as a ratio to that before.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import ckplan.model
from benchmarks.frontier import file_step
from ckplan.autodiff import forward_forms
from ckplan.isolation.arrays import save_arrays
from ckplan.meter.facts import read_model
from ckplan.meter.inputs import make_inputs
from ckplan.pipeline import Goal, StepOptions, open_step, rewrite
from ckplan.planner.strategies import parse_strategy

_SIZES = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 128, "intermediate_size": 256}
NETWORKS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "bert": ("BertConfig", "BertModel", _SIZES),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {"n_embd": 128, "n_head": 4, "n_layer": 2, "use_cache": False}),
    "llama": ("LlamaConfig", "LlamaForCausalLM", {**_SIZES, "use_cache": False}),
}
"""By name: the classes of configuration and model in transformers, and options."""
OLD = frozenset({"llama"})
"""Those that torch's old exporter writes as well."""
FORMS: Mapping[str, tuple[str, object]] = {
    "guards": ("drop_softmax_guards", frozenset()),
    "hidden": ("leave_out_hidden_keys", {}),
}
"""By name: what makes the form, and what it returns where there is nothing to be done."""


def network_of(name: str, tokens: int) -> tuple[Any, tuple[Any, ...]]:
    """A network in evaluation mode, and ids for it, with a mask of its tokens where that is its second argument."""
    import torch
    import transformers

    config, model, options = NETWORKS[name]
    positions = "n_positions" if name == "gpt2" else "max_position_embeddings"
    made = getattr(transformers, config)(vocab_size=100, **{positions: tokens}, **options)
    ids = torch.zeros(2, tokens, dtype=torch.long)
    return getattr(transformers, model)(made).eval(), (ids,) if name == "gpt2" else (ids, torch.ones_like(ids))


def export(name: str, tokens: int, dynamo: bool, path: Path) -> None:
    """Write a network by torch's default exporter, or by the old one."""
    import torch

    network, given = network_of(name, tokens)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = ["ids", "mask"][: len(given)]
        torch.onnx.export(network, given, path, input_names=names, dynamo=dynamo, verbose=False)


def measured(path: Path, folder: Path) -> tuple[int, int, Callable[[], object]]:
    """Bytes of activations without a plan and by `memory`, and a function that runs a step without a plan."""
    step = open_step(path, StepOptions.of(loss="mse"))
    planned = rewrite(step, parse_strategy("memory"), Goal())
    plain = folder / "plain.onnx"
    folder.mkdir()
    ckplan.model.save(step.ordered, plain)
    save_arrays(plain.with_suffix(".inputs"), make_inputs(read_model(plain)).arrays)
    return planned.before.peak_activations, planned.after.peak_activations, file_step(plain)


def row(form: str, path: Path, folder: Path, rounds: int) -> str:
    """A file without a form and with it beside each other, as cells of a table."""
    function, nothing = FORMS[form]
    with mock.patch.object(forward_forms, function, return_value=nothing):
        before = measured(path, folder / "before")
    since = measured(path, folder / "since")
    seconds: list[list[float]] = [[], []]
    for _ in range(rounds):
        for side, (*_, step) in enumerate((before, since)):
            start = time.process_time()
            step()
            seconds[side].append(time.process_time() - start)
    mib = [f"{count / 2**20:.1f}" for count in (before[0], since[0], before[1], since[1])]
    return " | ".join([*mib, f"{min(seconds[1]) / min(seconds[0]):.2f}"])


def rows(form: str, names: list[str], lengths: list[int], rounds: int) -> Iterator[str]:
    """The table, line by line."""
    yield "| network | exporter | tokens | before | since | `memory`, before | since | time |"
    yield "|---" * 8 + "|"
    for name in names:
        for exporter in ("default", "old") if name in OLD else ("default",):
            for tokens in lengths:
                with tempfile.TemporaryDirectory() as temporary:
                    path = Path(temporary) / "model.onnx"
                    export(name, tokens, exporter == "default", path)
                    yield f"| {name} | {exporter} | {tokens} | {row(form, path, Path(temporary), rounds)} |"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("form", choices=FORMS)
    parser.add_argument("names", nargs="*", default=list(NETWORKS))
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--rounds", type=int, default=12)
    chosen = parser.parse_args()
    for text in rows(chosen.form, chosen.names, chosen.tokens, chosen.rounds):
        print(text, flush=True)


if __name__ == "__main__":
    main()
