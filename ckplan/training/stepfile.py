"""What a training loop has to know of a file that `ckplan rewrite` or `ckplan grad` wrote; the file says it itself."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx import ModelProto

from ckplan import keys
from ckplan.arguments import path_of
from ckplan.autodiff.lora import Lora
from ckplan.errors import ModelError
from ckplan.isolation.arrays import Array
from ckplan.meter.facts import initial_states
from ckplan.meter.ranges import upper_bound
from ckplan.model.files.external import in_one_folder
from ckplan.model.files.metadata import finite, listed_names
from ckplan.model.files.read import read
from ckplan.model.half import loading_advice
from ckplan.model.inference.infer import static_shape
from ckplan.operators.sessions import clean, open_session

_SEEDS = 1 << 24
"""Some seeds are float32 attributes: whole numbers below this are exact."""
_WRITE_ONE = "write one with `ckplan rewrite MODEL -o STEP --optimizer adam`"


@dataclass(frozen=True)
class Spec:
    """What an input takes.

    Attributes:
        shape: the sizes of its axes.
        dtype: the type of its elements.
        below: of an input of integers: the number that they have to stay below, and what says so, if anything does.
        is_label: whether all of them are labels of a loss, which have to lie between 0 and ``below``.
        ignored: the label that does not count, if there is one.
        is_weighted: whether the loss is a mean by weights of their classes.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    below: tuple[int, str] | None = None
    is_label: bool = False
    ignored: int | None = None
    is_weighted: bool = False

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class StepFile:
    """A step file, read.

    Attributes:
        path: where it lies.
        model: what is in it; tensors in data files are not read.
        inputs: what a batch consists of: inputs that are neither parameters nor state, the number of samples first.
        loss: name of the loss.
        updates: name of the output with the new value by name of the input that takes it in the next step.
        parameters: names of the trained parameters.
        gradients: name of the gradient by name of the parameter; empty where the file makes the update itself.
        learning_rate: name of the input; empty where the file makes no update.
        loss_scale: name of the input; empty if the scale is fixed or there is none.
        is_random: whether the file draws numbers, for Dropout.
    """

    path: Path
    model: ir.Model
    inputs: Mapping[str, Spec]
    loss: str
    updates: Mapping[str, str]
    parameters: tuple[str, ...]
    gradients: Mapping[str, str]
    learning_rate: str
    loss_scale: str
    is_random: bool

    @property
    def batch(self) -> int:
        """Samples in a batch."""
        return next((spec.shape[0] for spec in self.inputs.values() if spec.shape), 1)

    @property
    def weights(self) -> tuple[str, ...]:
        """What a step changes of the model itself: its parameters and running statistics, and no optimizer's state."""
        states = set(initial_states(self.model))
        changed = (name for name in self.updates if name not in states and name not in self.parameters)
        inputs = {str(value.name): value.dtype for value in self.model.graph.inputs}
        return (*self.parameters, *(name for name in changed if inputs[name] not in (None, ir.DataType.INT64)))

    @property
    def is_in_place(self) -> bool:
        """Whether new values may be written over the old ones."""
        return self.model.metadata_props.get(keys.IN_PLACE) == "true"

    @property
    def optimizer(self) -> str:
        """The optimizer in the file, with its options; empty where the file makes no update."""
        return self.model.metadata_props.get(keys.OPTIMIZER, "")

    @property
    def lora(self) -> Lora | None:
        """The adapters that are trained, if there are any."""
        text = self.model.metadata_props.get(keys.LORA)
        return None if text is None else Lora.of(text)

    def initial(self, name: str) -> Array:
        """The first value of a parameter, a state or the learning rate, as an array of its own: states begin with zero.

        Raises:
            ModelError: the file holds none.
        """
        value = self.model.graph.initializers.get(name)
        if value is None and name in initial_states(self.model):
            spec = _spec(next(value for value in self.model.graph.inputs if value.name == name), self.path)
            return np.zeros(spec.shape, spec.dtype)
        if value is None or value.const_value is None:
            raise ModelError(f"{self.path} holds no value of '{name}'", "write the file again")
        array = np.array(value.const_value.numpy())
        if isinstance(value.const_value, ir.ExternalTensor):
            value.const_value.release()  # its pages of the data file would be held beside the array
        return array

    def without_graph(self) -> StepFile:
        """The same without nodes and weights, which the session holds as well: no first values can be asked for.

        Nothing of what was read may stay: the smallest tensor keeps the memory of the whole file.
        """
        ends = ([_copy(value) for value in values] for values in (self.model.graph.inputs, self.model.graph.outputs))
        graph = ir.Graph(*ends, nodes=())
        about = dict(self.model.metadata_props)
        return replace(self, model=ir.Model(graph, ir_version=self.model.ir_version, metadata_props=about))

    def open(self, drawn: int = 0) -> Any:
        """Open an onnxruntime session.

        Args:
            drawn: steps that were made before. A new session begins to draw as the last one did: for masks that do not
                come again, the seeds of the nodes are changed with this number.

        Raises:
            ModelError: onnxruntime does not load the file.
        """
        if not (drawn and self.is_random):
            return session_of(str(self.path))
        model = read(self.path)
        for node in model.graph.all_nodes():
            seed = node.attributes.get("seed")
            if seed is not None:
                mixed = zlib.crc32(f"{seed.value}/{drawn}".encode()) % _SEEDS
                kind = ir.AttrInt64 if seed.type == ir.AttributeType.INT else ir.AttrFloat32
                node.attributes["seed"] = kind("seed", mixed)
        folder = in_one_folder(model)
        return session_of(ir.to_proto(model).SerializeToString(), folder)


def session_of(source: str | bytes, weights: str = "") -> Any:
    """A session of a file or of a serialised model, whose data files lie in the folder ``weights``.

    Raises:
        ModelError: onnxruntime does not load it.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what it says of an error comes as an exception, too, and names are raw in the log
    if weights:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", weights)
    try:
        return open_session(source, options)
    except Exception as error:  # onnxruntime's exceptions have no base class of their own
        reason = clean(str(error))[:300]
        what = source if isinstance(source, str) else "the model"
        model = read(Path(source)) if isinstance(source, str) else ir.from_proto(ModelProto.FromString(source))
        advice = loading_advice(reason, model) or "write the file again"
        raise ModelError(f"onnxruntime does not load {what} ({reason})", advice) from error


def read_step(path: str | os.PathLike[str]) -> StepFile:
    """Read what a step file says of itself.

    Raises:
        ModelError: the file is missing or damaged, or no step file.
    """
    file = path_of("the step", path)
    model = read(file)
    about = model.metadata_props
    loss = about.get(keys.LOSS)
    if loss is None:
        raise ModelError(f"{file} has no gradients", _WRITE_ONE)
    updates, gradients = (_names(about, key, file) for key in (keys.UPDATES, keys.GRADIENTS))
    parameters = listed_names(about, keys.PARAMETERS)
    rate, scale = about.get(keys.LEARNING_RATE, ""), about.get(keys.LOSS_SCALE, "")
    fed = {str(value.name): value for value in model.graph.inputs}
    made = {str(value.name): value for value in model.graph.outputs}
    _check(file, "output", made, [loss, *gradients.values(), *updates.values()])
    _check(file, "input", fed, [*gradients, *updates])
    if scale not in fed:
        scale = ""
    held = model.graph.initializers.keys() | updates.keys() | {rate, scale}
    if lacking := [name for name in parameters if name in fed and name not in held]:
        raise ModelError(
            f"{file} is for a loop that feeds the parameters: it holds no values of theirs, such as '{lacking[0]}'",
            f"the files of `ckplan artifacts` are; {_WRITE_ONE}",
        )
    batch = {name: _spec(value, file, model) for name, value in fed.items() if name not in held}
    draws = any("seed" in node.attributes for node in model.graph.all_nodes())
    return StepFile(file, model, batch, loss, updates, parameters, gradients, rate, scale, draws)


def _check(file: Path, kind: str, known: Mapping[str, ir.Value], named: Iterable[str]) -> None:
    """Raises ModelError for a name in the metadata that no input or output has, or one without a type."""
    for name in named:
        if name not in known or known[name].dtype is None:
            raise ModelError(
                f"the metadata of {file} name an {kind} '{name}', which it does not have", "write the file again"
            )


def _names(about: Mapping[str, str], key: str, file: Path) -> dict[str, str]:
    try:
        found = json.loads(about.get(key, "{}"))
        return {str(name): str(other) for name, other in found.items()}
    except (ValueError, AttributeError, RecursionError):
        raise ModelError(f"the metadata entry `{key}` of {file} is damaged", "write the file again") from None


def _copy(value: ir.Value) -> ir.Value:
    shape = None if value.shape is None else ir.Shape(value.shape.dims)
    return ir.Value(name=value.name, type=value.type, shape=shape)


def _spec(value: ir.Value, file: Path, model: ir.Model | None = None) -> Spec:
    shape = static_shape(value)
    if shape is None or value.dtype is None:
        raise ModelError(f"input '{value.name}' of {file} has no fixed shape", _WRITE_ONE)
    dtype = np.dtype(value.dtype.numpy())
    if model is None or dtype.kind not in "iu" or not value.uses():
        return Spec(shape, dtype)
    about = value.metadata_props
    below, ignored = upper_bound(model, value), about.get(keys.IGNORED_LABEL)
    number, is_weighted = finite(ignored), about.get(keys.CLASS_WEIGHTS) == "true"
    is_label = below is not None and ignored is not None
    return Spec(shape, dtype, below, is_label, None if number is None else int(number), is_weighted)
