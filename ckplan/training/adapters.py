"""Low-rank adapters apart from their model: in PEFT's files, merged into weights, or beside quantised ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.lora import Layer, Lora, insert, linear_layers
from ckplan.display import reason_of
from ckplan.errors import ModelError, UsageError
from ckplan.isolation.arrays import Array
from ckplan.model.constants import hoist
from ckplan.model.files.read import read
from ckplan.model.files.saving import write_text
from ckplan.model.torch_files.default_exporter import read_signature
from ckplan.model.torch_files.old_exporter import separate_merged
from ckplan.model.torch_files.ties import join_transposed
from ckplan.training.checkpoint import read_tensors, write_tensors

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_PARTS = (".lora_A.weight", ".lora_B.weight")
_OTHER_FORMS = ("use_dora", "use_rslora", "alpha_pattern", "rank_pattern", "modules_to_save")


def is_adapter(name: str) -> bool:
    """Whether a parameter of this name is a part of an adapter."""
    return name.endswith(_PARTS)


def write_adapter(folder: Path, values: Mapping[str, Array], lora: Lora, *, force: bool = False) -> None:
    """Write adapters as PEFT does.

    Args:
        folder: made if it is not there.
        values: parameters by name; those that belong to no adapter are passed over.
        lora: what the adapters are.
        force: whether an adapter that is there may be overwritten.

    Raises:
        UsageError: there is one, or there are no adapters among the values.
        EnvironmentUnavailableError: no space left, or no permission.
    """
    held = {name: array for name, array in values.items() if is_adapter(name)}
    if not held:
        raise UsageError("the weights hold no adapters", "train some with --lora")
    if (folder / CONFIG).exists() and not force:
        raise UsageError(f"{folder / CONFIG} exists", "pass --force to overwrite it")
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": None,
        "task_type": None,
        "r": lora.rank,
        "lora_alpha": lora.scale * lora.rank,
        "lora_dropout": 0.0,
        "target_modules": sorted({name.removesuffix(_PARTS[0]) for name in held if name.endswith(_PARTS[0])}),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    write_tensors(folder / TENSORS, {_PREFIX + name: array for name, array in held.items()}, {"format": "pt"})
    write_text(json.dumps(config, indent=2) + "\n", folder / CONFIG, force=True)


def read_adapter(folder: Path) -> tuple[dict[str, Array], Lora]:
    """Read adapters that `write_adapter` or PEFT wrote: their parameters, and what they are.

    Raises:
        ModelError: a file is missing or damaged, or the adapters are of another kind.
    """
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8-sig"))
        if config["peft_type"] != "LORA":
            raise ValueError(f"peft_type {config['peft_type']}")
        if other := [name for name in _OTHER_FORMS if config.get(name)]:
            raise ValueError(f"{other[0]} is set")
        lora = Lora(rank=int(config["r"]), alpha=float(config["lora_alpha"]))
    except OSError as error:
        raise ModelError(f"{folder / CONFIG} cannot be read: {error.strerror or error}", "check the path") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(
            f"{folder / CONFIG} is damaged or of another kind of adapter ({reason_of(error)})", "use a LoRA adapter"
        ) from None
    tensors, _ = read_tensors(folder / TENSORS)
    values = {name.removeprefix(_PREFIX): array for name, array in tensors.items()}
    if foreign := [name for name in values if not is_adapter(name)]:
        raise ModelError(
            f"{folder / TENSORS} holds '{foreign[0]}', which is not part of an adapter", "use a LoRA adapter"
        )
    return values, lora


def merged(source: Path, values: Mapping[str, Array], lora: Lora) -> tuple[dict[str, Array], dict[str, Layer]]:
    """What becomes of the weights of a model with adapters.

    Args:
        source: the model that the adapters are for.
        values: parameters of adapters and other trained weights, by name.
        lora: what the adapters are.

    Returns:
        The new weights by name, adapters added to them; and by weight the layers that an adapter has to be inserted
        at, since their weights are quantised.

    Raises:
        UsageError: the adapters are of another model.
        ModelError: the model cannot be read.
    """
    model = read(source)
    hoist(model)
    read_signature(model)
    separate_merged(model)
    join_transposed(model)
    new = {name: array for name, array in values.items() if not is_adapter(name)}
    left: dict[str, Layer] = {}
    used: set[str] = set()
    for layer in linear_layers(model.graph):
        first, second = (values.get(name) for name in layer.names)
        name = str(layer.weight.name)
        if first is None or second is None or name in new or name in left:
            continue
        inputs, outputs = layer.sizes
        if first.shape[1:] != (inputs,) or second.shape != (outputs, len(first)):
            raise UsageError(
                f"the adapter is of another model: layer '{layer.module}' has {inputs} inputs and {outputs} outputs, "
                f"and A {list(first.shape)}, B {list(second.shape)}",
                "give the model that it was trained on",
            )
        used.update(layer.names)
        if not layer.is_float:
            left[name] = layer
            continue
        product = lora.scale * (second.astype(np.float64) @ first.astype(np.float64))
        old = layer.weight.const_value
        assert old is not None  # its size is known from it
        new[name] = old.numpy().astype(np.float64) + (product if layer.rows else product.T)
    if lost := [name for name in values if is_adapter(name) and name not in used]:
        raise UsageError(
            f"the adapter is of another model: {source} has no linear layer '{lost[0].rpartition('.lora_')[0]}'",
            "give the model that it was trained on",
        )
    return new, left


def insert_adapters(model: ir.Model, weights: Mapping[str, Layer], values: Mapping[str, Array], lora: Lora) -> None:
    """Insert adapters beside quantised weights, in place.

    Args:
        model: as it is in its file.
        weights: the layers by weight, as `merged` gives them.
        values: parameters of adapters by name.
        lora: what they are.

    Raises:
        UsageError: a weight stands in a place where its layer cannot be found.
    """
    found = list(linear_layers(model.graph))
    for name, known in weights.items():
        at = [replace(layer, module=known.module) for layer in found if layer.weight.name == name]
        if not at:
            raise UsageError(f"'{name}' cannot get an adapter", "keep the adapter apart with --adapter")
        for layer in at:
            insert(model.graph, layer, values, lora.scale)
