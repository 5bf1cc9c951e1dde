"""From gradients to a whole step: a file that maps (parameters, state, batch) to (new parameters, new state, loss)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Set
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ckplan import keys
from ckplan.arguments import check_kind, is_number, shown
from ckplan.autodiff.builder import Builder
from ckplan.autodiff.optimizers.base import Optimizer
from ckplan.autodiff.optimizers.clipping import clip_factor
from ckplan.autodiff.optimizers.rows import FACTOR, largest_tables, update_rows
from ckplan.autodiff.reading import dtype_of, shape_of
from ckplan.autodiff.record import TrainingGraph
from ckplan.errors import UsageError
from ckplan.model.node_reads import made_by_name, reads

Scalars = dict[str, ir.Value]


def add_optimizer(
    training: TrainingGraph, optimizer: Optimizer, clip_norm: float | None = None, *, by_rows: bool = False
) -> TrainingGraph:
    """Complete a training graph to a whole step.

    Each parameter is updated as soon as its gradient is there, so that the gradient dies at once; with ``clip_norm``
    all gradients are held until the last one is known. Nodes that read a parameter stand before its update, so that the
    new value may be written over the old one (see :mod:`ckplan.writer.updates`). Parameters, the number of steps and
    the learning rate are initializers and graph inputs at once: a loop feeds what has changed. States are inputs alone,
    zero at first: a default of theirs would be held beside them. Parameters of half precision are updated in float32,
    and their states are float32.

    Args:
        training: a training graph whose gradients are outputs; not changed.
        optimizer: how to get new parameters.
        clip_norm: if all gradients together have a larger norm, they are scaled down to this one.
        by_rows: update large tables row by row; see `ckplan.autodiff.optimizers.rows`.

    Returns:
        A graph that outputs, in place of the gradients, ``<parameter>_new`` and ``<parameter>_<state>_new`` and, if
        the optimizer counts steps, ``step_new``. Its ``updates`` say which input takes which output.

    Raises:
        UsageError: ``clip_norm`` is not a positive number, the graph makes new parameters already, it has no gradient
            of a parameter, or one of the two is of another kind.
    """
    check_kind("the training graph", training, TrainingGraph, "make one with `ckplan.build_training_graph`")
    check_kind("the optimizer", optimizer, Optimizer, "make one with `ckplan.parse_optimizer`")
    if clip_norm is not None and not (is_number(clip_norm) and clip_norm > 0 and math.isfinite(clip_norm)):
        raise UsageError(f"`--clip-norm` is {shown(clip_norm)}", "give a positive number")
    if keys.OPTIMIZER in training.model.metadata_props:
        raise UsageError("the graph makes new parameters already", "start from the forward model")
    if not training.gradients:
        raise UsageError(f"optimizer `{optimizer.name}` has no parameter to update", "name parameters with --wrt")
    model = training.model.clone()
    graph = model.graph
    op = Builder(graph, graph.opset_imports)
    made = {str(value.name): value for value in graph.inputs}  # an update that stands alone gets its gradients fed
    made |= made_by_name(graph)
    gradients = {graph.initializers[name]: made[gradient] for name, gradient in training.gradients.items()}
    ready = _ready(graph, gradients)
    order = sorted(gradients, key=lambda parameter: ready[parameter])
    following = [*graph, None]
    behind = {parameter: following[ready[parameter] + 1] for parameter in order}
    last = behind[order[-1]]
    updates: dict[ir.Value, ir.Value] = {}
    states: list[ir.Value] = []
    largest = largest_tables(gradients) if by_rows else None
    with op.scope("optimizer", before=behind[order[0]] if clip_norm is None else last):
        scalars, rate = _scalars(op, optimizer, {_work(parameter) for parameter in gradients}, updates)
        if clip_norm is not None:
            _clip(op, scalars, list(gradients.values()), clip_norm)
    for parameter in order:
        with op.scope(f"{parameter.name}/update", before=behind[parameter] if clip_norm is None else last):
            made_of = scalars[_work(parameter)]
            states += _update(op, optimizer, parameter, gradients[parameter], made_of, updates, largest)
    _return_instead(op, set(gradients.values()), updates)
    named = {**training.updates, **{str(old.name): str(new.name) for old, new in updates.items()}}
    model.metadata_props.pop(keys.GRADIENTS, None)
    model.metadata_props[keys.UPDATES] = json.dumps(named)
    model.metadata_props[keys.STATES] = json.dumps([str(state.name) for state in states])
    model.metadata_props[keys.LEARNING_RATE] = str(rate.name)
    model.metadata_props[keys.OPTIMIZER] = str(optimizer)
    clipped = "" if clip_norm is None else f" from gradients clipped to a norm of {clip_norm:g}"
    default = f"the input '{rate.name}' is {optimizer.learning_rate:g} by default"
    notes = (*training.notes, f"{optimizer} makes the new parameters{clipped}; {default}")
    return replace(training, model=model, updates=named, notes=notes)


def _return_instead(op: Builder, dropped: Set[ir.Value], updates: Mapping[ir.Value, ir.Value]) -> None:
    """Let a step return new values in the place of gradients, and take the old ones.

    Args:
        op: builder of the step.
        dropped: the gradients; their makers go as well where the update reads some rows alone.
        updates: new value by old one, in the order of the outputs.
    """
    graph = op.graph
    outputs = [value for value in graph.outputs if value not in dropped]
    graph.outputs.clear()
    graph.outputs.extend(outputs)
    makers = [node for value in dropped if not value.uses() and (node := value.producer()) is not None]
    graph.remove(makers, safe=True)
    inputs = set(graph.inputs)
    for old, new in updates.items():
        new.name = op.unique_name(f"{old.name}_new")
        graph.outputs.append(new)
        if old not in inputs:
            graph.inputs.append(old)


def _ready(graph: ir.Graph, gradients: Mapping[ir.Value, ir.Value]) -> dict[ir.Value, int]:
    """Return for each parameter the place of the node behind which it may be updated; -1 if there need not be any.

    Its gradient is made then, and whatever reads it has run: nodes that read what is made of parameters and constants
    alone are among them, for onnxruntime may let them read the parameter itself, as a product does that a Transpose is
    fused into.
    """
    maker = {gradient: parameter for parameter, gradient in gradients.items()}
    found = dict.fromkeys(gradients, -1)
    roots: dict[ir.Value, frozenset[ir.Value]] = {parameter: frozenset([parameter]) for parameter in gradients}
    for place, node in enumerate(graph):
        read = reads(node)
        told = frozenset[ir.Value]().union(*(roots[value] for value in read if value in roots))
        found.update(dict.fromkeys(told, place))
        found.update({maker[value]: place for value in node.outputs if value in maker})
        if told and all(value in roots or value.is_initializer() for value in read):
            roots.update(dict.fromkeys(node.outputs, told))
    return found


def _work(parameter: ir.Value) -> ir.DataType:
    """Return the type in which a parameter is updated."""
    assert parameter.dtype is not None
    return ir.DataType.FLOAT if dtype_of(parameter).itemsize < 4 else parameter.dtype


def _scalars(
    op: Builder, optimizer: Optimizer, dtypes: set[ir.DataType], updates: dict[ir.Value, ir.Value]
) -> tuple[dict[ir.DataType, Scalars], ir.Value]:
    """Emit what all updates share, in each type that is needed; return it and the input of the learning rate."""
    single = ir.DataType.DOUBLE not in dtypes
    rate = _input(op, "learning_rate", np.asarray(optimizer.learning_rate, np.float32 if single else np.float64))
    op.graph.inputs.append(rate)
    step = None
    if optimizer.counts:
        count = _input(op, "step", np.asarray(0, np.int64))
        updates[count] = op.Add(count, np.asarray(1, np.int64))
        step = op.Cast(updates[count], to=ir.DataType.DOUBLE)
    shared = optimizer.scalars(op, op.cast(rate, ir.DataType.DOUBLE), step)
    cast = {dtype: {name: op.cast(value, dtype) for name, value in shared.items()} for dtype in dtypes}
    return cast, rate


def _clip(op: Builder, scalars: dict[ir.DataType, Scalars], gradients: list[ir.Value], norm: float) -> None:
    """Add the factor that clips to the scalars."""
    factor = clip_factor(op, [op.cast(gradient, _work(gradient)) for gradient in gradients], norm)
    for dtype, named in scalars.items():
        named[FACTOR] = op.cast(factor, dtype)


def _update(
    op: Builder,
    optimizer: Optimizer,
    parameter: ir.Value,
    gradient: ir.Value,
    scalars: Scalars,
    updates: dict[ir.Value, ir.Value],
    largest: Set[ir.Value] | None,
) -> list[ir.Value]:
    """Emit the update of one parameter; the pairs of old and new values go to ``updates``, its states are returned.

    Large tables are updated row by row, and with a whole gradient the ``largest``; none if that is None.
    """
    assert parameter.dtype is not None
    dtype = _work(parameter)
    states = [
        ir.Value(
            name=op.unique_name(f"{parameter.name}_{state}"),
            type=ir.TensorType(dtype),
            shape=ir.Shape(shape_of(parameter)),
        )
        for state in optimizer.states
    ]
    wide, slope = op.cast(parameter, dtype), op.cast(gradient, dtype)
    made = None
    if largest is not None and wide is parameter:
        made = update_rows(op, optimizer, parameter, slope, states, scalars, largest)
    if made is None:
        slope = op.Mul(slope, scalars[FACTOR]) if FACTOR in scalars else slope
        made = optimizer.update(op, wide, slope, states, scalars)
    new, new_states = made
    updates[parameter] = op.cast(new, parameter.dtype)
    updates.update(zip(states, new_states, strict=True))
    return states


def _input(op: Builder, name: str, default: np.ndarray) -> ir.Value:
    """Make an initializer of its own name: an input with a default."""
    value = ir.Value(
        name=op.unique_name(name),
        type=ir.TensorType(ir.DataType.from_numpy(default.dtype)),
        shape=ir.Shape(default.shape),
    )
    value.const_value = ir.Tensor(default, name=value.name)
    op.graph.register_initializer(value)
    return value
