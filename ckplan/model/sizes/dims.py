"""Give every dimension of every graph input a number: from the user, or from a documented default.

A dimension that the file leaves open is bound, in this order, by a shape or dimension that the user gave, by another
input's dimension of the same name, by the weight of a layer that reads the input (`ckplan.model.sizes.told_sizes`), by
evaluating its expression (``past + 1``), or by a default:

====================================================================  =====
a dimension called batch, or a leading dimension of any other name      8
a dimension called channel, or axis 1 of an image in NCHW               3
a dimension called height or width, or axes 2, 3 of an image          224
everything else (sequence lengths, features)                           64
====================================================================  =====

A nameless axis 1 between two known ones (layers, ?, size) beside an input with an open batch is that batch: a state.

Where the last two are not enough to go by, `ckplan.model.sizes.default_sizes` says what is tried instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ckplan.arguments import check_number, check_table, shown
from ckplan.display import did_you_mean, shortened
from ckplan.errors import ModelError, UsageError
from ckplan.model.sizes.expressions import evaluate
from ckplan.model.sizes.told_sizes import told_by_weights
from ckplan.operators.matching import is_op

DEFAULT_BATCH = 8
DEFAULT_LENGTH = 64
DEFAULT_CHANNELS = 3
DEFAULT_PIXELS = 224

_ANONYMOUS = frozenset({"", "?", "*", "-1", "0", "None", "none", "unk", "unknown"})


@dataclass(frozen=True)
class Defaults:
    """Sizes for dimensions of which nothing is known: batches, heights and widths of images, and all others."""

    batch: int = DEFAULT_BATCH
    pixels: int = DEFAULT_PIXELS
    length: int = DEFAULT_LENGTH


@dataclass(frozen=True)
class Binding:
    """What `bind` did.

    Attributes:
        notes: one line for each default and each overridden static dimension.
        reference: input name -> its shape with the file's own numbers where the user overrode them; empty when
            nothing static was overridden. Needed to find numbers of the old size baked into the graph.
        old_batch, new_batch: the leading dimension that was overridden, equal when none was.
        sizes: dimension name -> its size.
        batches, pixels, lengths: whether a batch, a height or width, or another size is a default.
    """

    notes: tuple[str, ...]
    reference: Mapping[str, tuple[int, ...]]
    old_batch: int = 1
    new_batch: int = 1
    sizes: Mapping[str, int] = field(default_factory=dict)
    batches: bool = False
    pixels: bool = False
    lengths: bool = False


def bind(
    graph: ir.Graph,
    dims: Mapping[str, int],
    shapes: Mapping[str, Sequence[int]],
    defaults: Defaults = Defaults(),
    originals: Sequence[ir.Value] = (),
) -> Binding:
    """Make the shape of every tensor input of `graph` static, in place.

    Args:
        graph: the main graph; inputs that are also initializers must be gone.
        dims: dimension name -> size, for names that stand in the file.
        shapes: input name -> shape, which may also override static dimensions.
        defaults: sizes where there is nothing to go by.
        originals: the inputs themselves, whose readers tell sizes, where `graph` holds copies of them.

    Raises:
        UsageError: a name is not in the model, a rank differs, or two sizes are asked of one dimension.
        ModelError: an input's rank is unknown and no shape was given.
    """
    check_table("`dims`", dims)
    inputs = [value for value in graph.inputs if isinstance(value.type, ir.TensorType) or value.type is None]
    declared = _with_states({_name(value): _declared(value) for value in inputs}, shapes)
    _check_names(declared, dims, shapes)
    sizes = _symbol_sizes(declared, dims, shapes)
    notes = _take_from_weights(originals or inputs, declared, sizes, shapes)
    reference: dict[str, tuple[int, ...]] = {}
    batches: set[tuple[int, int]] = set()
    chosen: set[str] = set()
    for value in inputs:
        name = _name(value)
        shape = declared[name]
        if shape is None:
            if name not in shapes:
                raise ModelError(f"the rank of input '{name}' is unknown", f"give its shape: --shape {name}=...")
            value.shape = ir.Shape(list(shapes[name]))
            continue
        original, final = [], []
        for axis, size in enumerate(shape):
            if isinstance(size, int):
                number = int(shapes[name][axis]) if name in shapes else size
                if number != size:
                    notes.append(f"input '{name}': dimension {axis} is {number} instead of the file's {size}")
                    if axis == 0:
                        batches.add((size, number))
                original.append(size)
            else:
                number, note = _resolve(value, axis, size, shape, sizes, shapes.get(name), defaults, chosen)
                notes.extend([note] if note else [])
                original.append(number)
            final.append(number)
        value.shape = ir.Shape(final)
        reference[name] = tuple(original)
    old, new = batches.pop() if len(batches) == 1 else (1, 1)
    if old != new:
        _follow(inputs, shapes, declared, old, new, notes)
    changed = any(reference.get(_name(v)) not in (None, tuple(v.shape or ())) for v in inputs)
    kinds = (kind in chosen for kind in ("batch", "pixels", "length"))
    return Binding(tuple(notes), reference if changed else {}, old, new, sizes, *kinds)


def _declared(value: ir.Value) -> tuple[int | str, ...] | None:
    """The shape in the file: numbers, names or expressions; "" for a dimension without a usable name."""
    if value.shape is None:
        return None
    result: list[int | str] = []
    for dim in value.shape:
        if isinstance(dim, int):
            result.append(dim if dim > 0 else "")
        else:
            text = (dim.value or "").strip()
            result.append("" if text in _ANONYMOUS else text)
    return tuple(result)


def _with_states(
    declared: Mapping[str, tuple[int | str, ...] | None], given: Mapping[str, Sequence[int]]
) -> dict[str, tuple[int | str, ...] | None]:
    """Name the nameless batch of recurrent states as that of the input beside them, or both `batch`.

    Args:
        declared: input name -> its shape in the file, as of `_declared`.
        given: input name -> the shape that the user gave; these inputs stay as they are.
    """
    shapes = dict(declared)
    led = [name for name, shape in declared.items() if shape and isinstance(shape[0], str)]
    symbols = {shape[0] for name in led if (shape := declared[name])}
    states = [name for name, shape in declared.items() if name not in given and shape and _is_state(shape)]
    known = {axis for shape in declared.values() for axis in shape or () if isinstance(axis, str)}
    if not states or len(symbols) != 1 or (symbols == {""} and (len(led) > 1 or "batch" in known)):
        return shapes
    batch = symbols.pop() or "batch"
    for name, axis in [*((name, 0) for name in led), *((name, 1) for name in states)]:
        shape = declared[name] or ()
        shapes[name] = (*shape[:axis], batch, *shape[axis + 1 :])
    return shapes


def _take_from_weights(
    inputs: Sequence[ir.Value],
    declared: dict[str, tuple[int | str, ...] | None],
    sizes: dict[str, int],
    given: Mapping[str, Sequence[int]],
) -> list[str]:
    """Give open dimensions the sizes that weights tell.

    Args:
        inputs: inputs of the graph, with their readers.
        declared: input name -> its shape in the file, as of `_declared`; nameless dimensions become numbers in it.
        sizes: sizes by name of the dimension that are known already; gets those of named ones.
        given: input name -> the shape that the user gave; these inputs stay as they are.

    Returns:
        Notes, one for each size.
    """
    notes = []
    for value in inputs:
        name = _name(value)
        shape = declared.get(name)
        if shape is None or name in given or not any(isinstance(size, str) for size in shape[1:]):
            continue
        for axis, (size, weight) in told_by_weights(value, len(shape)).items():
            symbol = shape[axis]
            if symbol == "":
                shape = declared[name] = (*shape[:axis], size, *shape[axis + 1 :])
                notes.append(f"input '{name}': dimension {axis} is {size}, as '{weight}' tells")
            elif isinstance(symbol, str) and symbol not in sizes and evaluate(symbol, sizes) is None:
                sizes[symbol] = size
                notes.append(f"dimension '{symbol}' is {size}, as '{weight}' tells")
    return notes


def _is_state(shape: tuple[int | str, ...]) -> bool:
    """Whether a shape may be that of a state of a recurrent network, with a nameless batch."""
    return len(shape) == 3 and shape[1] == "" and isinstance(shape[0], int) and isinstance(shape[2], int)


def _check_names(
    declared: Mapping[str, tuple[int | str, ...] | None],
    dims: Mapping[str, int],
    shapes: Mapping[str, Sequence[int]],
) -> None:
    for name, given in shapes.items():
        if name not in declared:
            raise UsageError(f"the model has no input '{name}'", _nearest(name, declared, "its inputs are"))
        if not isinstance(given, Iterable):
            raise UsageError(f"the shape of input '{name}' cannot be {shown(given)}", "give a list of sizes")
        for size in given:
            check_number(f"a size in the shape {list(given)} of input '{name}'", size, whole=True)
    known = [axis for shape in declared.values() if shape for axis in shape if isinstance(axis, str)]
    for name in dims:
        if name not in known and not any(re.search(rf"\b{re.escape(name)}\b", text) for text in known):
            raise UsageError(f"the model has no dimension '{name}'", _nearest(name, known, "its dimensions are"))


def _symbol_sizes(
    declared: Mapping[str, tuple[int | str, ...] | None],
    dims: Mapping[str, int],
    shapes: Mapping[str, Sequence[int]],
) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for name, size in dims.items():
        check_number(f"dimension '{name}'", size, whole=True)
        sizes[name] = int(size)
    for name, given in shapes.items():
        shape = declared[name]
        if shape is None:
            continue
        if len(shape) != len(given):
            raise UsageError(
                f"input '{name}' has {len(shape)} dimensions, the shape given has {len(given)}",
                f"the file says ({', '.join(str(s) or '?' for s in shape)})",
            )
        for symbol, size in zip(shape, given, strict=True):
            if isinstance(symbol, str) and symbol and sizes.setdefault(symbol, int(size)) != size:
                raise UsageError(
                    f"dimension '{symbol}' is asked to be both {sizes[symbol]} and {size}", "give one size for it"
                )
    return sizes


def _resolve(
    value: ir.Value,
    axis: int,
    symbol: str,
    shape: tuple[int | str, ...],
    sizes: dict[str, int],
    given: Sequence[int] | None,
    defaults: Defaults,
    chosen: set[str],
) -> tuple[int, str]:
    if given is not None:
        return int(given[axis]), ""
    if symbol and symbol in sizes:
        return sizes[symbol], ""
    size = None if symbol.isidentifier() else evaluate(symbol, sizes)
    why = f"from '{symbol}'"
    if size is None:
        kind, why = _default(value, axis, symbol, shape), "by default"
        size = kind if isinstance(kind, int) else getattr(defaults, kind)
        chosen.update({kind} if isinstance(kind, str) else ())
    if symbol:
        sizes[symbol] = size
    label = f"dimension '{symbol}'" if symbol else f"input '{value.name}': dimension {axis}"
    return size, f"{label} is {size} {why}"


def _default(value: ir.Value, axis: int, symbol: str, shape: tuple[int | str, ...]) -> int | str:
    """The default of an open dimension, or which of the `Defaults` it is."""
    word = symbol.lower()
    if re.search(r"batch|^(n|b|bs)$", word):
        return "batch"
    if re.search(r"height|width|^(h|w)$", word):
        return "pixels"
    if "past" in word:
        return 0  # training is on prompts: no keys and values were computed before
    if re.search(r"seq|len|time|token|frame|^t$", word):
        return "length"
    if axis == 0:
        return "batch"
    if len(shape) == 4:
        channels_last = shape[3] in (1, 3, 4) and shape[1] not in (1, 3, 4)
        if axis == 1 and not channels_last:
            return _convolution_channels(value) or DEFAULT_CHANNELS
        if axis == 3 and channels_last:
            return DEFAULT_CHANNELS
        return "pixels"
    if "channel" in word or word == "c":
        return _convolution_channels(value) or DEFAULT_CHANNELS
    return "length"


def _convolution_channels(value: ir.Value) -> int | None:
    """How many channels the convolution that reads this input expects."""
    for node in value.consumers():
        if is_op(node, "Conv") and node.inputs[1] is not None:
            weight = node.inputs[1]
            shape = weight.const_value.shape if weight.const_value is not None else weight.shape
            if shape is not None and len(shape) > 1 and isinstance(shape[1], int):
                return shape[1] * node.attributes.get_int("group", 1)
    return None


def _follow(
    inputs: Sequence[ir.Value],
    shapes: Mapping[str, Sequence[int]],
    declared: Mapping[str, tuple[int | str, ...] | None],
    old: int,
    new: int,
    notes: list[str],
) -> None:
    """The other inputs with the same static leading dimension are of the same batch."""
    for value in inputs:
        name = _name(value)
        shape = declared[name]
        if name not in shapes and value.shape is not None and shape and len(shape) > 1 and shape[0] == old:
            value.shape = ir.Shape([new, *list(value.shape)[1:]])
            notes.append(f"input '{name}': dimension 0 is {new} instead of the file's {old}, as in the other inputs")


def _name(value: ir.Value) -> str:
    return value.name or ""


def _nearest(name: str, candidates: Mapping[str, object] | Sequence[str], otherwise: str) -> str:
    names = sorted({candidate for candidate in candidates if candidate})
    if near := did_you_mean(name, names, most=3):
        return near
    if not names:
        return "it has none; use --shape input=..."
    return f"{otherwise} " + shortened([f"'{n}'" for n in names], 8)
