"""From a module of torch to a file whose parameters bear torch's names.

torch's exporter optimises for inference unless it is told otherwise: it merges equal tensors, drops biases of zeros and
computes with weights; and it leaves out label smoothing, the means of a `scatter_reduce` and an average's divisor. Here
nothing is folded or left out, the mode of the module (training or evaluation) stays, parameters that require no
gradient are marked, and gradients stop where the module detaches or switches them off. torch and onnxscript are
imported when they are needed.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from ckplan.arguments import check_flag, check_kind, check_table, file_to_write, names_of, path_of
from ckplan.errors import EnvironmentUnavailableError, ModelError
from ckplan.keys import FROZEN, OWN_GRADIENTS, STANDS_FOR
from ckplan.model.files.saving import check_binary, save
from ckplan.model.literals import is_numbered
from ckplan.model.structure import are_equal, structure_of
from ckplan.model.torch_files.exporter_metadata import INPUT, SIGNATURE, TRACE, operand_of
from ckplan.model.torch_files.no_grad_blocks import begin_of_block
from ckplan.model.torch_files.own_gradients import functions_called
from ckplan.model.torch_files.program import program_of
from ckplan.model.torch_files.translations import translations

if TYPE_CHECKING:
    import torch


def export(
    module: torch.nn.Module,
    args: Sequence[Any],
    path: str | os.PathLike[str],
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    force: bool = False,
) -> Path:
    """Write a torch module as an ONNX file to be trained, with torch's exporter.

    The parameters have the names that ``module.named_parameters()`` gives them, tied ones the first of theirs. Those
    that require no gradient are not trained by default. A module in training mode keeps its Dropout; its
    BatchNormalization takes part in training with ``training=True`` or ``--training``, as for any file.

    Args:
        module: what to export. It is left as it is.
        args: example arguments of its forward.
        path: the file to write.
        kwargs: example keyword arguments.
        dynamic_shapes: which sizes stay free, as ``torch.export.export`` has it.
        input_names: what to call the inputs.
        output_names: what to call the outputs.
        force: whether the file may be overwritten.

    Returns:
        The path, so that the call can stand where a model is expected:
        ``ckplan.rewrite(ckplan.export(module, (x,), "net.onnx"), output="step.onnx")``.

    Raises:
        EnvironmentUnavailableError: torch or onnxscript is not installed.
        ModelError: torch cannot export the module.
        UsageError: the file exists and `force` is not given, the path cannot be a file or ends as those of models in
            text do, or an argument is of another kind.
    """
    target = path_of("the file to write", path)
    check_flag("`force`", force)
    check_binary(target)
    file_to_write(target, force)
    check_kind("the tuple of example arguments", args, (tuple, list), "give a tuple, such as (x,)")
    if kwargs is not None:
        check_table("the table of example keyword arguments", kwargs)
    for what, names in (("`input_names`", input_names), ("`output_names`", output_names)):
        if names is not None:
            names_of(what, names)
    try:
        import onnxscript
        import torch
    except ModuleNotFoundError as error:
        raise EnvironmentUnavailableError(
            f"exporting needs {error.name}, which is not installed", "pip install torch onnxscript"
        ) from None
    del onnxscript
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        with functions_called() as functions:
            traced = program_of(module, args, kwargs, dynamic_shapes)
        try:
            program = torch.onnx.export(
                module if traced is None else traced, tuple(args), kwargs=None if kwargs is None else dict(kwargs),
                dynamo=True, optimize=False, verbose=False, dynamic_shapes=dynamic_shapes, input_names=input_names,
                output_names=output_names, custom_translation_table=translations(),
            )  # fmt: skip
        except Exception as error:  # torch raises its own kinds for each stage
            raise ModelError(
                f"torch cannot export {type(module).__name__}: {_cause(error)}", "torch.onnx.export(...) tells more"
            ) from error
    if program is None:
        raise ModelError(f"torch exported nothing of {type(module).__name__}")
    model: ir.Model = program.model
    for node in model.graph.all_nodes():
        begin = begin_of_block(node.metadata_props.pop(TRACE, ""))  # the whole has paths of this machine
        if begin and traced is None:
            node.metadata_props[TRACE] = begin
    if functions:
        model.metadata_props[OWN_GRADIENTS] = json.dumps(list(functions))
    _name_parameters(model.graph, module)
    save(model, target, force=force)
    return target


def _cause(error: BaseException) -> str:
    """The first line of what was raised first."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def _name_parameters(graph: ir.Graph, module: torch.nn.Module) -> None:
    """Give initializers the names of the parameters that they are, and mark those that require no gradient."""
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        canonical = first.setdefault(id(parameter), name)
        value = graph.initializers.get(name)
        if name != canonical:
            tied |= {name: canonical, canonical: canonical}
        if value is not None and name != canonical and canonical not in graph.initializers:
            value.name = canonical
    _list_once(graph, tied)
    for name, parameter in module.named_parameters():
        value = graph.initializers.get(name)
        if value is None:
            value = _holding(graph, parameter.detach())
            if value is None:
                continue  # nothing reads it
            value.metadata_props[STANDS_FOR] = name
        if not parameter.requires_grad:
            value.metadata_props[FROZEN] = "requires_grad is False in torch"


def _list_once(graph: ir.Graph, tied: Mapping[str, str]) -> None:
    """List a tied parameter once among what the program reads: otherwise its other names are looked for in the file.

    Args:
        graph: the exported one.
        tied: by each of its names, the one that it has.
    """
    here = {operand_of(value) for value in graph.initializers.values()}

    def listed(line: re.Match[str]) -> str:
        name, kind, target = line[1], line[2], line[3]
        if target not in tied:
            return line[0]
        return f"{name}: {kind} target='{tied[target]}'" if name in here else ""

    if SIGNATURE in graph.metadata_props:
        graph.metadata_props[SIGNATURE] = INPUT.sub(listed, graph.metadata_props[SIGNATURE])


def _holding(graph: ir.Graph, parameter: torch.Tensor) -> ir.Value | None:
    """The initializer without a name of its own that holds a parameter's values, as they are or transposed."""
    wanted = ir.Tensor(parameter.cpu().numpy()) if parameter.dtype.is_floating_point and parameter.ndim else None
    if wanted is None or structure_of(wanted) is not None:
        return None
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is None or not is_numbered(value.name or "") or tensor.dtype != wanted.dtype:
            continue
        if are_equal(tensor, wanted) or (len(tensor.shape) == 2 and are_equal(tensor, wanted, (1, 0))):
            return value
    return None
