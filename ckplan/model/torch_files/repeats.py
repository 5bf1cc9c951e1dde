"""Parameters that torch's exporter repeated, for each sample of an example or beside themselves, are one again.

Of a file whose batch is fixed, the optimiser of torch's default exporter computes beforehand what a module expands: the
class token of a vision transformer, the positions of an encoder, the states with which a recurrent layer begins, once
for each sample. Trained as they are, samples would come to differ.
"""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir

from ckplan import keys
from ckplan.display import shortened
from ckplan.model.constants import add_constant
from ckplan.model.structure import first_along, is_unstructured, repeated_axes, structure_of, without_repeats
from ckplan.model.torch_files.concatenated import is_concatenated
from ckplan.model.torch_files.exporter_metadata import folded_from, parameters_of
from ckplan.model.torch_files.functions import Function, Operation, add_parameter, compute, make_instead
from ckplan.model.torch_files.merged_initializers import is_state

_EXPANDED = re.compile(r"(expand|repeat)(_\d+)?")
_SIMPLIFIED = re.compile(r"/(.+/)?(Expand|Tile)(_\d+)?_output_0|(expand|repeat)(_\d+)?")
"""What tools call a tensor that they computed of a node that repeats."""
ROW = "_row"
"""What the name of a row ends with."""
_OF_ZEROS = re.compile(r"zeros(_\d+)?")
"""What a recurrent cell begins with for each sample, where no state is given."""
_MASK = re.compile(r"(.*[._])?mask_token")
"""What a parameter is called that is one row, put in the place of each that is masked; `group_token` may be several."""
_FEWEST = 8
"""How many numbers of no formula tell that they are one row."""


def join_repeated(model: ir.Model) -> tuple[str, ...]:
    """Hold once what stands for a parameter that was expanded or concatenated with itself, in place.

    Numbers tell along which axes. Equal ones, and few, were expanded along the batch: that is the first axis, and the
    second one of what is laid out by steps, ``[1, batch, features]``. Whether along others as well nothing tells but
    the name of a mask token. What was computed of several parameters of which one was expanded, as of the state that a
    recurrent cell begins with, was expanded, too.

    Returns:
        Notes.
    """
    graph = model.graph
    parameters = parameters_of(graph)
    joined, doubtful = [], []
    for value in list(graph.initializers.values()):
        stands_for = value.metadata_props.get(keys.STANDS_FOR)
        of_several = stands_for is None and len(parameters.intersection(folded_from(value))) > 1
        untold = not parameters and _SIMPLIFIED.fullmatch(str(value.name)) is not None
        if value.const_value is None or value.is_graph_output() or not (stands_for or of_several or untold):
            continue
        array = value.const_value.numpy()
        names = (str(value.name), *folded_from(value))
        is_expanded = (
            untold or any(map(_EXPANDED.fullmatch, names)) or (of_several and any(map(_OF_ZEROS.fullmatch, names)))
        )
        if is_expanded and (stands_for or is_unstructured(value)):
            axes = _repeated_along(value, array)
            left = len(set(repeated_axes(array)) - set(axes))
            features = int((array == array.reshape(-1)[0]).all())  # a row of equal numbers repeats one
            if stands_for and left > features:
                if _MASK.fullmatch(stands_for):
                    axes = tuple(range(array.ndim - 1))
                else:
                    doubtful.append(f"'{value.name}' of '{stands_for}'")
            if array.ndim > 1 and axes:
                joined.append(repr(_expand(graph, value, array, axes)))
        elif stands_for and is_concatenated(value) and is_unstructured(value):
            block = _block(array)
            joined += [] if block is None else [repr(_tile(graph, value, array, block))]
    notes = []
    if joined:
        notes.append(f"{len(joined)} weight(s) that torch's exporter repeated are one: {shortened(joined, 3)}")
    if doubtful:
        notes.append(
            f"{len(doubtful)} parameter(s) were expanded ({shortened(doubtful, 3)}): numbers are trained for each "
            "place, as these do not tell whether torch has some but once; ckplan.export keeps the parameter"
        )
    return tuple(notes)


def _block(array: np.ndarray) -> np.ndarray | None:
    """What an array holds several times along an axis, as often as can be; None if there is nothing."""
    for axis, size in enumerate(array.shape):
        lines = np.moveaxis(array, axis, 0)
        for length in range(1, size // 2 + 1):
            if size % length == 0 and np.array_equal(lines[length:], lines[:-length]):
                return array.take(range(length), axis)
    return None


def _repeated_along(value: ir.Value, array: np.ndarray) -> tuple[int, ...]:
    """The axes along which a row was repeated: all that its numbers show, if they tell; at most the batch's if not."""
    axes, row = repeated_axes(array), without_repeats(array)
    if row.size >= _FEWEST and structure_of(ir.Tensor(row)) is None:
        return axes
    return tuple(axis for axis in axes if axis == _batch_axis(value, array))


def _batch_axis(value: ir.Value, array: np.ndarray) -> int:
    """The axis of samples: the second one of states of recurrent layers, and of one row, as a further key is."""
    one_row = array.ndim == 3 and len(array) == 1 and is_unstructured(value)
    return int(is_state(value) or one_row)


def _expand(graph: ir.Graph, value: ir.Value, array: np.ndarray, axes: tuple[int, ...]) -> str:
    """Put one row and an Expand along some axes in the place of an initializer; return the name of the row."""
    row = add_parameter(graph, value, ROW.removeprefix("_"), first_along(array, axes))
    if keys.STANDS_FOR not in value.metadata_props:  # it is of several parameters: see `unfold`
        del row.metadata_props[keys.STANDS_FOR]
    put_expand(graph, value, row)
    return str(row.name)


def _tile(graph: ir.Graph, value: ir.Value, array: np.ndarray, block: np.ndarray) -> str:
    """Put one block and a Tile in the place of an initializer; return the name of the block."""
    once = add_parameter(graph, value, "block", block)
    times = np.array([whole // part for whole, part in zip(array.shape, block.shape, strict=True)], np.int64)
    counts = {"a": times}
    compute(graph, value, once, Function("cat", lambda x: np.tile(x, times), (Operation("Tile", "xa"),), 0, counts))
    return str(once.name)


def put_expand(graph: ir.Graph, value: ir.Value, row: ir.Value) -> None:
    """Put an Expand of a row in the place of an initializer that holds it again and again, before all other nodes."""
    name = str(value.name)
    assert value.const_value is not None  # of an initializer
    sizes = np.array(value.const_value.shape.numpy(), np.int64)
    shape = add_constant(graph, f"{name}_shape", sizes, "a shape")
    make_instead(graph, value, ir.node("Expand", [row, shape]))
