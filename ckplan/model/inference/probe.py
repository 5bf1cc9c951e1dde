"""What inference cannot tell is learnt by running the model once in onnxruntime."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set

import onnx_ir as ir

from ckplan.display import shortened
from ckplan.errors import EnvironmentUnavailableError, ModelError
from ckplan.keys import DATA_SIZED, NOT_EXPANDED
from ckplan.model.bodies import ends_by
from ckplan.model.contrib.expand import give_back
from ckplan.model.half import loading_advice
from ckplan.model.inference.execute import execute, random_inputs
from ckplan.model.inference.infer import is_known
from ckplan.model.node_reads import made_by_name, reads
from ckplan.model.normal_form.declared import is_own
from ckplan.operators.matching import is_op
from ckplan.operators.sessions import clean
from ckplan.operators.table import REDUCTIONS

_COUNTING = frozenset({"Compress", "NonMaxSuppression", "NonZero", "Unique"})
"""Operators whose results are as many as the data say."""
_SIZES = {
    **dict.fromkeys(("AffineGrid", "CenterCropPad", "OneHot", "Squeeze", "Unsqueeze", *REDUCTIONS), (1,)),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "DFT": (1, 2),
    "Expand": (1,),
    "MaxUnpool": (2,),
    "Pad": (1, 3),
    "Reshape": (1,),
    "Resize": (2, 3),
    "STFT": (1, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Tile": (1,),
    "TopK": (1,),
}
"""The inputs of operators that say how large a result is, or along which axes."""


def unknown_values(graph: ir.Graph) -> list[ir.Value]:
    """Tensors of the main graph whose type or shape is not known; sequences, maps and optionals are left out."""
    return [
        output
        for node in graph
        for output in node.outputs
        if output.name and not is_known(output) and (output.type is None or isinstance(output.type, ir.TensorType))
    ]


def learn(model: ir.Model) -> tuple[str, ...]:
    """Fill in every type and shape still unknown from one run with seeded inputs (floats normal, integers 0 or 1).

    Values that another run would give another size bear the node that counts, under `DATA_SIZED` in their metadata.
    Only shapes leave the session, not the tensors, unless a tensor's element type is unknown too.

    Args:
        model: inputs with static shapes; its outputs' types are updated in place.

    Returns:
        Notes; empty when nothing was unknown.

    Raises:
        ModelError: onnxruntime cannot run the model, so that shapes remain unknown; or they are numbers that are fed;
            or they depend on an input that is no tensor.
        EnvironmentUnavailableError: onnxruntime is not installed.
    """
    unknown = unknown_values(model.graph)
    if not unknown:
        return ()
    for value in unknown:
        _refuse_fed_range(value.producer())
    for value in model.graph.inputs:
        if isinstance(value.type, ir.SequenceType | ir.OptionalType):
            raise ModelError(
                f"input '{value.name}' is not a tensor but a sequence or an optional, so nothing tells the shape of "
                f"'{unknown[0].name}' or of {len(unknown) - 1} other value(s)",
                "export the model with tensors as inputs",
            )
    counting = _mark_data_sized(model.graph, set(unknown))
    decided = f"how many results {len(counting)} node(s) have ({shortened(counting, 3)})"
    reason = ""
    own = next((node for node in model.graph.all_nodes() if is_own(node)), None)
    try:
        _learn(model, unknown)
    except EnvironmentUnavailableError:
        raise
    except Exception as error:  # onnxruntime has its own exception classes for each status code
        reason = clean(str(error))[:300]
    left = unknown_values(model.graph)
    if left:
        producer = left[0].producer()
        if producer is not None:
            _blame_operator(producer)
        name = f"{producer.op_type} '{producer.name}'" if producer is not None else f"'{left[0].name}'"
        on, advice = "", "give input shapes that the model accepts with --shape"
        if counting:
            on = " on random numbers, which decide sizes here"
            advice = f"export the model in a form in which data decide no sizes: here they decide {decided}"
        advice = loading_advice(reason, model) or advice
        if own is not None:
            advice = f"give the library of the kernels of {own.domain} with --custom-ops"
        raise ModelError(
            f"the shape of {len(left)} value(s) is unknown, first the output of {name}, and onnxruntime cannot run the "
            f"model{on} ({reason or 'no shape came back'})",
            advice,
        )
    notes = [f"the shapes of {len(unknown)} value(s) come from a run in onnxruntime, first '{unknown[0].name}'"]
    if counting:
        notes.append(
            f"the data decide {decided}: sizes are "
            "those of a run on random numbers, and the file is right only for data that give the same"
        )
    return tuple(notes)


def _mark_data_sized(graph: ir.Graph, unknown: Set[ir.Value]) -> list[str]:
    """Note at each value of unknown shape which node counts its elements in the data, if one does.

    Returns:
        Such nodes of which a result has an unknown shape.
    """
    counting: list[str] = []
    counted: dict[ir.Value, str] = {}  # values of such sizes, and whole numbers that follow from their sizes
    from_data = {value for value in graph.inputs if not value.is_initializer()}
    for node in graph:
        if not from_data.isdisjoint(reads(node)) and not is_op(node, ("Shape", "Size")):
            from_data.update(node.outputs)
        named = f"{node.op_type} '{node.name}'"
        is_unknown = not unknown.isdisjoint(node.outputs)
        is_sized = is_unknown and _is_sized_by(node, from_data)
        if is_sized or (is_unknown and is_op(node, _COUNTING)):
            counting.append(named)
        if is_sized or _counts(node):
            source = named
        else:
            found = next((counted[value] for value in node.inputs if value in counted), None)
            if found is None:
                continue
            source = found
        for output in node.outputs:
            if output in unknown:
                output.metadata_props[DATA_SIZED] = counted[output] = source
            elif output.dtype is not None and output.dtype.is_integer():
                counted[output] = source
    return counting


def _is_sized_by(node: ir.Node, values: Collection[ir.Value]) -> bool:
    """Whether some values say how large a result of a node is: how many tokens an expert gets, when a Loop ends."""
    if is_op(node, "Loop"):
        return ends_by(node, values)
    sizes = () if node.domain else _SIZES.get(node.op_type, ())
    return any(node.inputs[index] in values for index in sizes if index < len(node.inputs))


def _counts(node: ir.Node) -> bool:
    """Whether a node has as many results as the data say; a Compress by a constant has not."""
    if not is_op(node, _COUNTING):
        return False
    return node.op_type != "Compress" or node.inputs[1] is None or not node.inputs[1].is_initializer()


def _refuse_fed_range(node: ir.Node | None) -> None:
    """Raise for a Range whose numbers are fed: a run would size it by random numbers, and fail with others."""
    if not is_op(node, "Range"):
        return
    fed = sorted({name for value in node.inputs for name in _fed(value)})
    if fed:
        listed = " and ".join(f"'{name}'" for name in fed)
        raise ModelError(
            f"Range '{node.name}' has a length that depends on {listed} when it runs, and a plan needs fixed sizes",
            f"fix what decides: {' '.join(f'--set {name}=VALUE' for name in fed)}",
        )


def _fed(value: ir.Value | None) -> set[str]:
    """Name the graph inputs whose values, not only their shapes, a value is computed from."""
    found, seen, left = set(), set(), [value]
    while left:
        at = left.pop()
        if at is None or at in seen:
            continue
        seen.add(at)
        if at.is_graph_input():
            found.add(str(at.name))
        maker = at.producer()
        if maker is not None and maker.op_type not in ("Shape", "Size"):
            left.extend(maker.inputs)
    return found


def _blame_operator(node: ir.Node) -> None:
    """Raise for a node that nothing can tell the shape of because of what it is."""
    what = f"{node.op_type} '{node.name}'"
    reason = node.metadata_props.get(NOT_EXPANDED)
    if reason is not None:
        raise ModelError(f"{what} of {node.domain} is not supported: {reason}")
    if is_own(node):
        raise ModelError(
            f"the output of {what} has no shape: the file declares none for the sizes asked for, and neither ONNX nor "
            f"onnxruntime defines operators of domain '{node.domain}'",
            "export the model with the shapes of its values, or give the library of the operator's kernels with "
            "--custom-ops",
        )


def _learn(model: ir.Model, unknown: Sequence[ir.Value]) -> None:
    probe = model.clone()
    give_back(probe)
    graph = probe.graph
    values = made_by_name(graph)
    graph.outputs.clear()
    untyped = [value for value in unknown if value.dtype is None]
    graph.outputs.extend(values[str(value.name)] for value in untyped)
    names = []
    for index, original in enumerate(unknown):
        name = f"pkg.ckplan.shape_{index}"
        shape = ir.node("Shape", inputs=[values[str(original.name)]], name=name)
        shape.outputs[0].name, shape.outputs[0].dtype = name, ir.DataType.INT64
        graph.append(shape)
        graph.outputs.append(shape.outputs[0])
        names.append(name)
    for value in values.values():
        if not is_known(value):
            value.shape = None
    shapes, types = execute(probe, random_inputs(model), names)
    for value in untyped:
        dtype = types.get(value.name or "")
        if dtype is not None:
            value.dtype = dtype
    for value, shape_array in zip(unknown, shapes, strict=True):
        value.shape = ir.Shape([int(size) for size in shape_array])
