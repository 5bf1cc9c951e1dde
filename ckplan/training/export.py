"""Trained weights back into the model that they came from, each in the form that it has there.

A file may hold a weight more than once: exporters write a transposed copy beside a tied one, and a copy for each use of
a layer. And it may hold one tensor for several weights, where equal values were merged: those come apart.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import NameFixPass

from ckplan.arguments import check_table, path_of
from ckplan.autodiff.lora import Layer, Lora
from ckplan.errors import UsageError
from ckplan.isolation.arrays import Array
from ckplan.model.files.read import read
from ckplan.model.files.saving import save
from ckplan.model.files.weights import scratch_folder
from ckplan.model.normal_form.function_constants import share_constants
from ckplan.model.normal_form.linear_models import write_linear_models
from ckplan.model.normal_form.statistics import STATISTICS, separate_from_scales
from ckplan.model.structure import are_equal, structure_of
from ckplan.model.torch_files.constrained import keep_forms
from ckplan.model.torch_files.default_exporter import read_signature
from ckplan.model.torch_files.looked_up import join_looked_up
from ckplan.model.torch_files.old_exporter import separate_merged
from ckplan.model.torch_files.repeats import join_repeated
from ckplan.model.torch_files.ties import has_made_up_name
from ckplan.model.torch_files.unfold import unfold
from ckplan.model.validity import check_calls
from ckplan.operators.matching import is_op
from ckplan.training.adapters import insert_adapters, merged
from ckplan.training.data import array_given

_CONSTANTS = ("Constant", "ConstantOfShape")


def export_weights(
    source: str | os.PathLike[str],
    weights: Mapping[str, Array],
    output: str | os.PathLike[str],
    *,
    lora: Lora | None = None,
    force: bool = False,
) -> tuple[str, ...]:
    """Write a model with trained weights.

    Adapters are merged into the weights that they are for, and inserted beside those that are quantised.

    Args:
        source: the model that the step was made from.
        weights: by their names in the step.
        output: the file to write. Weights that lie in a data file of ``source`` lie in one again.
        lora: what the adapters among the weights are.
        force: whether it may be overwritten.

    Returns:
        Notes: where the weights lie, if not in the file.

    Raises:
        ModelError: the model cannot be read.
        UsageError: the weights are of another model, or the file exists.
        EnvironmentUnavailableError: no permission, or no space left.
    """
    file = path_of("the model", source)
    check_table("the table of weights", weights)
    weights = {name: array_given(f"weight '{name}'", array) for name, array in weights.items()}
    left: Mapping[str, Layer] = {}
    whole = weights
    if lora is not None:
        whole, left = merged(file, weights, lora)
    model = with_weights(file, whole)
    if lora is not None and left:
        insert_adapters(model, left, weights, lora)
    with scratch_folder(model) as folder:
        _move_out(model, folder / "weights.data")
        return save(model, output, force=force)


_OF_FUNCTIONS = (
    "; if it is that one, the weight is a constant of a local function that is called once: inline functions first "
    "(onnx.inliner.inline_local_functions), and make the step from that"
)


def with_weights(source: Path, weights: Mapping[str, Array]) -> ir.Model:
    """A model as it is in its file, with other weights; see `export_weights`.

    Raises:
        ModelError: the file cannot be read.
        UsageError: the weights are of another model.
    """
    model = read(source)
    write_linear_models(model)
    if read_signature(model):  # what came apart are copies, names and all
        NameFixPass()(model)
    join_repeated(model)
    unfold(model)  # what was computed of the old values
    keep_forms(model)
    join_looked_up(model)
    separate_from_scales(model)
    names = {name for name, _, _ in _holders(model)}
    if not weights.keys() <= names:
        separate_merged(model)
        separate_statistics(model.graph, weights)
        check_calls(model)
        share_constants(model)
        names = {name for name, _, _ in _holders(model)}
    if lacking := [name for name in weights if name not in names]:
        raise UsageError(
            f"the weights are of another model: {len(lacking)} of {len(weights)} are not in {source}, such as "
            f"'{lacking[0]}'",
            "give the model that the step was made from" + (_OF_FUNCTIONS if model.functions else ""),
        )
    copies = dict(_copies(model, weights))
    for name, holder, tensor in list(_holders(model)):
        array = weights.get(name)
        if array is None and name in copies:
            origin, flipped = copies[name]
            array = _matrix(weights[origin]).T if flipped else weights[origin]
            array = array if tensor is None else array.reshape(tensor.shape.numpy())
        if array is None:
            continue
        if tensor is not None and tuple(tensor.shape.numpy()) != array.shape:
            raise UsageError(
                f"the weights are of another model: '{name}' has shape {list(array.shape)}, and "
                f"{list(tensor.shape.numpy())} in {source}",
                "give the model that the step was made from",
            )
        if array.dtype.kind == "c":
            raise UsageError(f"weight '{name}' is of complex numbers", "give real ones, as a checkpoint has")
        _set(holder, array, tensor)
    return model


def _holders(model: ir.Model) -> Iterator[tuple[str, ir.Value | ir.Node, ir.TensorProtocol | None]]:
    """What holds a tensor that can be trained: name, initializer or node, and the tensor, if it is written out."""
    for graph in model.graphs():
        for name, value in graph.initializers.items():
            if value.const_value is not None:
                yield name, value, value.const_value
        for node in list(graph):
            if is_op(node, _CONSTANTS):
                attribute = node.attributes.get("value")
                held = node.op_type == "Constant" and attribute is not None
                yield str(node.outputs[0].name), node, attribute.as_tensor() if held and attribute else None


def _copies(model: ir.Model, weights: Mapping[str, Array]) -> Iterator[tuple[str, tuple[str, bool]]]:
    """Tensors that an exporter made up a name for and that hold what a weight holds: that, and whether transposed."""
    trained: dict[tuple[int, ...], list[tuple[str, Array]]] = {}
    for name, _, tensor in _holders(model):
        if name in weights and tensor is not None and structure_of(tensor) is None:
            array = _matrix(np.asarray(tensor.numpy()))
            trained.setdefault(array.shape, []).append((name, array))
    for name, _, tensor in _holders(model):
        if name in weights or tensor is None or not has_made_up_name(name) or not tensor.dtype.is_floating_point():
            continue
        array = _matrix(np.asarray(tensor.numpy()))
        for flipped in (False, True) if array.ndim == 2 else (False,):
            turned = array.T if flipped else array
            for origin, other in trained.get(turned.shape, ()):
                if array.ndim and are_equal(ir.Tensor(turned), ir.Tensor(other)):
                    yield name, (origin, flipped)


def _matrix(array: Array) -> Array:
    """An array without axes of one element behind the second one, as those of a kernel."""
    behind = array.shape[2:]
    return array.reshape(array.shape[:2]) if behind and set(behind) == {1} else array


def _set(holder: ir.Value | ir.Node, array: Array, tensor: ir.TensorProtocol | None) -> None:
    """Put an array in the place of what is held, in the type and the kind of place of that."""
    dtype = ir.DataType.from_numpy(array.dtype) if tensor is None else tensor.dtype
    name = str(holder.name if isinstance(holder, ir.Value) else holder.outputs[0].name)
    made = ir.Tensor(np.array(array.astype(dtype.numpy(), copy=False), order="C"), dtype=dtype, name=name)
    if isinstance(holder, ir.Value):
        holder.meta[_OUTSIDE] = isinstance(tensor, ir.ExternalTensor)
        holder.const_value = made
        return
    node = ir.node("Constant", [], {"value": made}, name=holder.name)
    graph, old, new = holder.graph, holder.outputs[0], node.outputs[0]
    assert isinstance(graph, ir.Graph)
    new.type, new.shape = ir.TensorType(dtype), ir.Shape(array.shape)
    graph.insert_before(holder, node)
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.remove(holder, safe=True)
    new.name = name


_OUTSIDE = "ckplan.outside"
"""Whether an initializer lay in a data file, among what is noted of its value."""


def _move_out(model: ir.Model, path: Path) -> None:
    """Write the new weights of those that lay in a data file into one, and let the model refer to it, in place."""
    outside = [value for graph in model.graphs() for value in graph.initializers.values() if value.meta.get(_OUTSIDE)]
    if not outside:
        return
    with path.open("wb") as stream:
        for value in outside:
            tensor = value.const_value
            assert tensor is not None
            start = stream.tell()
            stream.write(tensor.tobytes())
            value.const_value = ir.ExternalTensor(
                path,
                start,
                stream.tell() - start,
                tensor.dtype,
                shape=ir.Shape(tensor.shape.numpy()),
                name=str(value.name),
            )


def separate_statistics(graph: ir.Graph, weights: Collection[str]) -> None:
    """Give BatchNormalizations running statistics of their own, where training did."""
    for node in graph:
        if node.op_type != "BatchNormalization":
            continue
        for index, kind in STATISTICS.items():
            shared, name = node.inputs[index], f"{node.name}/{kind}"
            if name in weights and shared is not None and name not in graph.initializers:
                own = ir.Value(name=name, type=shared.type, shape=shared.shape, const_value=shared.const_value)
                graph.register_initializer(own)
                node.replace_input_with(index, own)
