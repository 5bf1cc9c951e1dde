"""What torch's exporters looked up in a parameter beforehand is looked up in the step again, as equal numbers show.

A window transformer adds a bias for each pair of positions, looked up in a table of relative ones. The exporters write
what was looked up, each number of the table again and again. Trained as it is, equal distances would come to differ.
Among freely trained numbers of single precision hardly two are equal, so each that is repeated is one. Of zeros that
cannot be seen: a note says so.
"""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir

from ckplan import keys
from ckplan.display import shortened
from ckplan.model.structure import is_unstructured
from ckplan.model.torch_files.exporter_metadata import folded_from, is_looked_up_name
from ckplan.model.torch_files.functions import Array, Function, Operation, add_parameter, compute
from ckplan.model.torch_files.old_exporter import COMPUTED, LAYERS

_BY_TOOLS = re.compile(r"(.*/)?Gather(Elements|ND)?(_\d+)?_output_0")
"""How its old one calls what a lookup makes: an initializer is called so where a tool made the lookup beforehand."""
_FEWEST = 32
"""How many numbers there are at least."""
_OFTEN = 2
"""How often a number stands there at least, on average."""
_HALF_BITS = 16
"""How many bits of a number of single precision one of bfloat16 lacks."""


def join_looked_up(model: ir.Model) -> tuple[str, ...]:
    """Hold each number of what was looked up once, and look it up, in place.

    Weights of layers are left alone where no name tells of it: those that were rounded once have equal numbers, too.

    Returns:
        Notes.
    """
    if model.producer_name != "pytorch":
        return ()
    graph = model.graph
    found: list[str] = []
    untold: list[str] = []
    of_zeros: list[str] = []
    for value in list(graph.initializers.values()):
        stands_for = value.metadata_props.get(keys.STANDS_FOR)
        computed = bool(stands_for) if stands_for is not None else _is_computed(value)
        readers = {node.op_type for node in value.consumers()}
        told = bool(stands_for) and any(map(is_looked_up_name, (str(value.name), *folded_from(value))))
        may_be = told or readers.isdisjoint(LAYERS)
        if not computed or not readers or not may_be or value.is_graph_output():
            continue
        tensor = value.const_value
        if told and _is_zero(tensor):
            of_zeros.append(f"'{value.name}' of '{stands_for}'")
        if tensor is None or tensor.dtype != ir.DataType.FLOAT or tensor.size < _FEWEST or not is_unstructured(value):
            continue
        array = np.asarray(tensor.numpy())
        numbers, places = np.unique(array, return_inverse=True)
        if len(numbers) * _OFTEN > array.size or 0 in numbers or _was_rounded(numbers):
            continue
        found.append(f"'{value.name}' ({len(numbers)} numbers for {array.size} places)")
        untold += [f"'{value.name}'"] * (stands_for is None)
        look_up = Operation("Gather", "xi", {"axis": 0})
        constants = {"i": places.reshape(array.shape).astype(np.int64)}
        function = Function("index", lambda x: x, (look_up,), constants=constants)
        compute(graph, value, add_parameter(graph, value, "table", numbers), function)
    notes = []
    if found:
        notes.append(
            f"{len(found)} tensor(s) that torch's exporter looked up in a parameter are looked up in the step again: "
            f"{shortened(found, 3)}"
        )
    if untold:
        notes.append(
            f"of which parameters torch's exporter computed {len(untold)} looked-up tensor(s) the file does not say "
            f"({shortened(untold, 3)}): the gradient of one that is read elsewhere as well lacks that part; "
            "ckplan.export keeps the parameters"
        )
    if of_zeros:
        notes.append(
            f"{len(of_zeros)} tensor(s) of zeros were looked up in a parameter ({shortened(of_zeros, 3)}): places that "
            "share one of its numbers are trained apart, as zeros do not tell them; ckplan.export keeps the parameter"
        )
    return tuple(notes)


def _is_computed(value: ir.Value) -> bool:
    """Whether torch's old exporter, or a tool that went over its file, computed an initializer."""
    return any(pattern.fullmatch(str(value.name)) for pattern in (COMPUTED, _BY_TOOLS))


def _is_zero(tensor: ir.TensorProtocol | None) -> bool:
    return tensor is not None and not tensor.numpy().any()


def _was_rounded(numbers: Array) -> bool:
    """Whether numbers are of half precision, or multiples of a step: then equal ones show nothing."""
    with np.errstate(over="ignore"):
        halves = numbers.astype(np.float16).astype(numbers.dtype)
    truncated = numbers.view(np.uint32) & ((1 << _HALF_BITS) - 1)
    steps = np.diff(numbers)
    counts = steps / steps.min() if len(steps) else steps
    in_steps = bool((np.abs(counts - np.round(counts)) <= 1e-2).all())
    return np.array_equal(halves, numbers) or not truncated.any() or in_steps
