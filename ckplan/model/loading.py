"""Read a model and bring it into the one form that the rest of ckplan works on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from ckplan import keys
from ckplan.arguments import check_flag
from ckplan.errors import ModelError
from ckplan.model.cleanup import drop_no_ops, tidy
from ckplan.model.constants import hoist
from ckplan.model.contrib import adopt, expand_nested
from ckplan.model.files.own_files import forget_training
from ckplan.model.files.read import read
from ckplan.model.fixing import Fixed, deciding_input, fix, shapes_of, spell_fixed
from ckplan.model.generated_names import rename_generated
from ckplan.model.half import bfloat16_advice
from ckplan.model.inference.fold import Sweep, sweep
from ckplan.model.inference.infer import static_shape
from ckplan.model.inference.probe import learn, unknown_values
from ckplan.model.masks.masked import without_masks
from ckplan.model.normal_form.auto_pads import write_pads
from ckplan.model.normal_form.declared import declare, declared_shapes
from ckplan.model.normal_form.empty_axes import drop_empty_axes
from ckplan.model.normal_form.flags import write_flags
from ckplan.model.normal_form.generators import give_seeds
from ckplan.model.normal_form.linear_models import write_linear_models
from ckplan.model.normal_form.maps import score_notes
from ckplan.model.normal_form.opset import EXPORT_AGAIN, MINIMUM_OPSET, lift
from ckplan.model.normal_form.sparse import sparse_notes
from ckplan.model.normal_form.statistics import separate_from_scales
from ckplan.model.normal_form.tensorflow_operators import write_tensorflow_operators
from ckplan.model.normal_form.vectors import make_columns
from ckplan.model.sizes.default_sizes import SizesError, branch_hint, check_sizes, tries
from ckplan.model.sizes.dims import Binding, Defaults, bind
from ckplan.model.sizes.rebatch import Rebatch
from ckplan.model.sizes.rebatch_check import check_rebatched
from ckplan.model.torch_files.passes import PASSES
from ckplan.model.unread import note_unread
from ckplan.model.validity import check_size, sort

_OF_EXPORTERS: tuple[Callable[[ir.Model], Iterable[str]], ...] = (
    write_linear_models,
    write_tensorflow_operators,
    *PASSES,
    separate_from_scales,
    sparse_notes,
    score_notes,
)
"""What brings forms that one exporter writes into those of all, in place, in this order; each returns notes."""

_EXPORT_SQUEEZED = "torch leaves an axis longer than 1 where its exporter takes it away: export it with ckplan.export"
"""What to do where torch's default exporter wrote a Squeeze that no runtime loads (``aten_squeeze_dim``)."""

_INVALID = (
    "has inconsistent type",
    "has unsupported type",
    "Unrecognized attribute",
    "has input size",
    "has output size",
    "TypeInferenceError",
)
"""What inference says of nodes that no shapes would make valid."""


@dataclass(frozen=True)
class ForwardModel:
    """A forward model in normal form.

    Attributes:
        model: opset >= 21, IR version >= 10, no initializer among the inputs, constants folded, no local functions but
            those that have a gradient rule of their own;
            every node of the main graph has a unique name, every tensor a type and a static shape.
        path: where it was read from.
        notes: defaults that were chosen, sizes that were rebound, where shapes came from; one line each.
    """

    model: ir.Model
    path: Path
    notes: tuple[str, ...]


def load(
    path: str | os.PathLike[str],
    *,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    training: bool = False,
    fixed: Fixed | None = None,
) -> ForwardModel:
    """Read an ONNX file and normalise it.

    Weights in external data files are mapped, not read. Sizes that the file leaves open and nobody gives get a
    default (see `ckplan.model.sizes.dims`). A training graph that ckplan wrote is read as a model whose outputs are the
    loss and its gradients.

    Args:
        path: the ONNX file.
        dims: dimension name -> size.
        shapes: input name -> shape; may override static sizes, and what the old batch was baked into follows.
        training: whether the model is to be put into training form: Dropout is kept then.
        fixed: input name -> the number, or numbers, that it is fixed at; branches that it rules out fall away.

    Raises:
        ModelError: the file cannot be read, converted or shaped.
        UsageError: `dims`, `shapes` or `fixed` do not fit the model, or `training` is no truth value.
        EnvironmentUnavailableError: shapes have to be learnt by a run and onnxruntime is not installed.
    """
    check_flag("`training`", training)
    return normalise(read(path), Path(path), dims=dims, shapes=shapes, training=training, fixed=fixed)


def normalise(
    model: ir.Model,
    path: Path = Path("model.onnx"),
    *,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    training: bool = False,
    fixed: Fixed | None = None,
) -> ForwardModel:
    """Like `load`, for a model in memory.

    Args:
        model: is consumed.
        path: what messages call it.
        dims: see `load`.
        shapes: see `load`.
        training: see `load`.
        fixed: see `load`.

    Raises:
        ModelError: the model cannot be converted or shaped.
        UsageError: `dims`, `shapes` or `fixed` do not fit it.
        EnvironmentUnavailableError: shapes have to be learnt by a run and onnxruntime is not installed.
    """
    sizes = {} if dims is None else dims, shapes_of(model.graph, fixed, shapes)
    open_sizes = _open_sizes(model, *sizes)
    attempts = list(tries(open_sizes.batches, open_sizes.pixels, open_sizes.lengths))
    if len(attempts) == 1:
        try:
            return _normalised(model, path, *sizes, training, fixed or {}, attempts[0])
        except SizesError as error:
            if any(sizes) or open_sizes.notes or "--shape" not in error.hint:
                raise
            # All sizes are the file's own.
            squeezed = model.producer_name == "pytorch" and error.message.startswith("Squeeze ")
            raise ModelError(error.message, _EXPORT_SQUEEZED if squeezed else EXPORT_AGAIN) from error
    model.graph.sort()
    failures: list[SizesError] = []
    for defaults in attempts:
        try:
            return _normalised(model.clone(), path, *sizes, training, fixed or {}, defaults)
        except SizesError as error:
            failures.append(error)
    raise failures[0]


def _open_sizes(model: ir.Model, dims: Mapping[str, int], shapes: Mapping[str, Sequence[int]]) -> Binding:
    """What binding the inputs of a model would choose, without doing it."""
    listed = set(model.graph.initializers.values())
    fed = [value for value in model.graph.inputs if value not in listed]
    copies = [ir.Value(name=value.name, shape=value.shape, type=value.type) for value in fed]
    return bind(ir.Graph(copies, (), nodes=()), dims, shapes, originals=fed)


def _normalised(
    model: ir.Model,
    path: Path,
    dims: Mapping[str, int],
    shapes: Mapping[str, Sequence[int]],
    training: bool,
    fixed: Fixed,
    defaults: Defaults,
) -> ForwardModel:
    notes = list(forget_training(model))
    note_unread(model)
    hoist(model)
    for rewrite in _OF_EXPORTERS:
        notes.extend(rewrite(model))
    adopt(model)
    rename_generated(model.graph)
    declared = declared_shapes(model)
    binding = bind(model.graph, dims, shapes, defaults)
    for value in model.graph.inputs:
        check_size(value.name or "", static_shape(value) or ())
    notes.extend([*binding.notes, *fix(model.graph, fixed)])
    _forget_shapes(model)
    old_opset = model.graph.opset_imports.get("", MINIMUM_OPSET)
    model, lift_notes = lift(model)
    write_flags(model)
    write_pads(model)
    if fixed:
        model.metadata_props[keys.SET] = spell_fixed(fixed)
    _forget_shapes(model)  # those that the converter inferred, too
    hoist(model)
    drop_empty_axes(model)
    sort(model.graph)
    tidy(model)

    reference, shapes_before = _at_own_size(model, binding)
    if reference is None:  # else they are those of the file's own sizes
        declare(model, declared, binding.sizes)
    repair = Rebatch(binding.old_batch, binding.new_batch, shapes_before)
    state = sweep(model, repair)
    note_unread(model)
    expanded = state.expanded
    removed = drop_no_ops(model, state, reshapes=old_opset < MINIMUM_OPSET, dropouts=not training)
    notes.extend([*lift_notes, *removed])
    if unknown_values(model.graph):
        model, masked_notes = without_masks(model)
        notes.extend(masked_notes)
        _infer_whole(model)
        nested = expand_nested(model)
        if nested:
            _infer_whole(model)
        state = sweep(model, repair)
        expanded = [*expanded, *nested, *state.expanded]
    notes.extend(_changes(repair.changed, expanded))
    tidy(model)
    try:
        notes.extend(learn(model))
    except ModelError as error:
        check_sizes(model.graph)
        raise _blame(error, state, model) from error
    check_sizes(model.graph)
    make_columns(model)
    notes.extend(give_seeds(model))
    if reference is not None and not repair.certain:
        check_rebatched(reference, model, repair)
        notes.append("checked by a run: the rebatched model computes what the file's own batch does")
    if len(model.graph) == 0:
        raise ModelError(f"{path}: nothing is left to compute, the outputs do not depend on the inputs")
    return ForwardModel(model, path, tuple(notes))


def _changes(rebound: Sequence[str], expanded: Sequence[str]) -> list[str]:
    """Notes on constants that follow the batch, and on operators of onnxruntime's that were written out."""
    notes = []
    if rebound:
        listed = "; ".join(rebound[:3]) + ("; ..." if len(rebound) > 3 else "")
        notes.append(f"{len(rebound)} constant(s) rebound to the new batch: {listed}")
    if expanded:
        kinds = ", ".join(sorted(set(expanded)))
        notes.append(f"{len(expanded)} node(s) of com.microsoft written in standard operators: {kinds}")
    return notes


def _forget_shapes(model: ir.Model) -> None:
    """Shapes noted in the file hold for the file's own sizes, and some exporters get them wrong: infer them anew."""
    for graph in (model.graph, *model.graph.subgraphs()):
        for node in graph:
            for output in node.outputs:
                if not isinstance(output.type, ir.SequenceType | ir.OptionalType):
                    output.shape = None


def _at_own_size(model: ir.Model, binding: Binding) -> tuple[ir.Model | None, dict[str, tuple[int, ...]]]:
    """The model at the file's own input sizes, and its shapes by value name; nothing when no size was overridden."""
    if not binding.reference:
        return None, {}
    clone = model.clone()
    for value in clone.graph.inputs:
        shape = binding.reference.get(value.name or "")
        if shape is not None:
            value.shape = ir.Shape(shape)
    values = [*clone.graph.inputs, *(output for node in clone.graph for output in node.outputs)]
    values.extend(clone.graph.initializers.values())
    names = [value.name or "" for value in values]
    sweep(clone)
    shapes = {name: static_shape(value) for name, value in zip(names, values, strict=True)}
    return clone, {name: shape for name, shape in shapes.items() if name and shape is not None}


def _infer_whole(model: ir.Model) -> None:
    """Whole-graph inference sees into nested graphs and local functions, which inference by node does not."""
    from onnx_ir.passes.common import ShapeInferencePass

    if model.functions or any(True for _ in model.graph.subgraphs()):
        ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)


def _blame(error: ModelError, state: Sweep, model: ir.Model) -> ModelError:
    """Name the node where inference first failed: the reason that onnxruntime gives often lies further down."""
    for node, problem in state.problems.items():
        if node.graph is not None:
            reason = problem.split(") ", 1)[-1][:200]
            if any(words in problem for words in _INVALID):
                hint = bfloat16_advice(reason) if "bfloat16" in reason else EXPORT_AGAIN
                return ModelError(f"the file is not valid: {node.op_type} '{node.name}', {reason}", hint)
            if node.graph is not model.graph and (decides := deciding_input(model.graph, node)):
                problem = f"{node.op_type} '{node.name}' in a branch does not fit its inputs ({reason})"
                return SizesError(problem, branch_hint(decides))
            return SizesError(f"{node.op_type} '{node.name}' does not fit its inputs ({reason})", error.hint)
    return error
