"""What running a node costs, by the kind of its operator: arithmetic and memory traffic, from its shapes alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from ckplan.operators.matching import input_of


@dataclass(frozen=True)
class Cost:
    """Cost of running a node once.

    Attributes:
        flops: floating-point operations; a multiply-add is two, a transcendental function what it takes in
            multiply-adds on vector units.
        bytes: bytes read and written.
    """

    flops: int
    bytes: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.bytes + other.bytes)


FREE = Cost(0, 0)


# --- sizes ------------------------------------------------------------------------------------------------------------


def _shape(value: ir.Value | None) -> tuple[int, ...]:
    if value is None or value.shape is None:
        return ()
    return tuple(dim if isinstance(dim, int) else 1 for dim in value.shape)


def _elements(value: ir.Value | None) -> int:
    return math.prod(_shape(value)) if value is not None else 0


def _bytes(value: ir.Value | None) -> int:
    if value is None:
        return 0
    itemsize = value.dtype.itemsize if value.dtype is not None and value.dtype != ir.DataType.STRING else 4
    return math.ceil(_elements(value) * itemsize)


def _read(node: ir.Node) -> int:
    return sum(_bytes(value) for value in node.inputs)


def _written(node: ir.Node) -> int:
    return sum(_bytes(value) for value in node.outputs)


def _traffic(node: ir.Node) -> int:
    return _read(node) + _written(node)


# --- rules ------------------------------------------------------------------------------------------------------------

Rule = Callable[[ir.Node], Cost]


def free(node: ir.Node) -> Cost:
    """Zero-copy in onnxruntime (a view of the input), or a handful of integers on the CPU."""
    return FREE


def elementwise(node: ir.Node, each: int = 1) -> Cost:
    """Work per element of the output; all operands are read and all outputs written."""
    return Cost(each * max((_elements(value) for value in node.outputs), default=0), _traffic(node))


def per_output(each: int) -> Rule:
    """Functions of each element: ``each`` is what one takes in multiply-adds on vector units."""
    return lambda node: elementwise(node, each)


def per_input(each: int) -> Rule:
    """Reductions and normalisations: work per element of the data operand."""
    return lambda node: Cost(each * _elements(input_of(node, 0)), _traffic(node))


def moved(node: ir.Node) -> Cost:
    """Data movement that touches no more of its operand than it writes."""
    return Cost(0, 2 * _written(node))


def strided(node: ir.Node) -> Cost:
    """A transposition reads across cache lines: about twice the traffic of a copy."""
    return Cost(0, 4 * _written(node))


def gather(node: ir.Node) -> Cost:
    """Reads what it writes, and the indices."""
    return Cost(0, 2 * _written(node) + _bytes(input_of(node, 1)))


def scatter(node: ir.Node) -> Cost:
    """Copies its data operand, then writes the updates into the copy."""
    updates = input_of(node, 2)
    return Cost(_elements(updates), 2 * _written(node) + 2 * _bytes(updates) + _bytes(input_of(node, 1)))


def written_only(node: ir.Node) -> Cost:
    """Makes more than it reads."""
    return Cost(0, _written(node))


def conv(node: ir.Node) -> Cost:
    """A convolution: a multiply-add for each output element and tap."""
    weight = _shape(input_of(node, 1))
    taps = math.prod(weight[2:])
    flops = 2 * _elements(node.outputs[0]) * math.prod(weight[1:])
    traffic = _traffic(node)
    if node.attributes.get_int("group", 1) > 1 and math.prod(weight[1:2]) < 8 and not _spans(node):
        # Depthwise and thin groups have nothing to multiply by blocks: every tap is read for itself.
        traffic += taps * _bytes(node.outputs[0])
    return Cost(flops + _bias(node, 2), traffic)


def _spans(node: ir.Node) -> bool:
    """Whether the kernel of a group's one channel is as wide as the plane: its rows are a matrix as they lie."""
    data, weight, made = (_shape(value) for value in (input_of(node, 0), input_of(node, 1), node.outputs[0]))
    if len(weight) != 4 or len(data) != 4 or len(made) != 4:
        return False
    return weight[1] == 1 and weight[3] == data[3] and made[3] == 1


def conv_transpose(node: ir.Node) -> Cost:
    """A transposed convolution: a multiply-add for each input element and tap."""
    weight = _shape(input_of(node, 1))
    return Cost(2 * _elements(node.inputs[0]) * math.prod(weight[1:]) + _bias(node, 2), _traffic(node))


def _bias(node: ir.Node, index: int) -> int:
    return _elements(node.outputs[0]) if input_of(node, index) is not None else 0


def matmul(node: ir.Node) -> Cost:
    """A product of matrices, with its bias."""
    left = _shape(node.inputs[0])
    inner = left[-2] if node.attributes.get_int("transA", 0) and len(left) > 1 else (left[-1] if left else 1)
    return Cost(2 * _elements(node.outputs[0]) * inner + _bias(node, 2), _traffic(node))


def einsum(node: ir.Node) -> Cost:
    """A sum of products over all letters of the equation."""
    equation = node.attributes.get_string("equation", "").replace(" ", "")
    terms = equation.split("->")[0].split(",")
    sizes: dict[str, int] = {}
    broadcast = 1
    for term, value in zip(terms, node.inputs, strict=False):
        shape = list(_shape(value))
        if "..." in term:
            before, after = term.split("...")
            ellipsis = len(shape) - len(before) - len(after)
            broadcast = max(broadcast, math.prod(shape[len(before) : len(before) + ellipsis]))
            shape = shape[: len(before)] + shape[len(before) + ellipsis :]
        for letter, size in zip(term.replace("...", ""), shape, strict=False):
            sizes[letter] = max(sizes.get(letter, 1), size)
    # The operands are permuted and copied before they are multiplied.
    return Cost(2 * broadcast * math.prod(sizes.values()) * max(1, len(terms) - 1), 2 * _traffic(node))


def attention(node: ir.Node) -> Cost:
    """Scores, softmax, and the weighted sum, with the scores written and read in between."""
    query, key, value = (_shape(input_of(node, index)) for index in range(3))
    if len(query) == 4:
        scores = math.prod(query[:-1]) * (key[-2] if len(key) == 4 else query[-2])
        width, value_width = query[-1], value[-1] if value else query[-1]
    elif len(query) == 3:
        heads = max(1, node.attributes.get_int("q_num_heads", node.attributes.get_int("num_heads", 1)))
        length = key[1] if len(key) == 3 else query[1]
        scores = query[0] * heads * query[1] * length
        width = query[-1] // heads
        value_width = value[-1] // max(1, node.attributes.get_int("kv_num_heads", heads)) if len(value) == 3 else width
    else:
        return elementwise(node)
    flops = 2 * scores * (width + value_width) + 20 * scores
    projection = _shape(input_of(node, 1))
    if node.domain == "com.microsoft" and len(projection) == 2:  # its second input is the weight of Q, K and V together
        flops = 2 * math.prod(query) * projection[1] + 2 * query[0] * query[1] ** 2 * projection[1]
    return Cost(flops, _traffic(node) + 4 * scores * 4)


def pool(node: ir.Node) -> Cost:
    """Every element of each window is looked at."""
    attribute = node.attributes.get("kernel_shape")
    window = math.prod(attribute.as_ints()) if attribute is not None else 1
    return Cost(window * _elements(node.outputs[0]), _traffic(node))


def squares_in_window(node: ir.Node) -> Cost:
    """Squares, a sum over the window, and a power with a real exponent."""
    return Cost((2 * node.attributes.get_int("size", 5) + 100) * _elements(node.outputs[0]), 3 * _traffic(node))


def reduce(node: ir.Node) -> Cost:
    """An operation an element of the data operand."""
    return Cost(_elements(input_of(node, 0)), _bytes(input_of(node, 0)) + _written(node))


def sum_of_all(node: ir.Node) -> Cost:
    """An operation for each operand but the first."""
    return Cost(max(0, len(node.inputs) - 1) * _elements(node.outputs[0]), _traffic(node))


def resize(node: ir.Node) -> Cost:
    """As many neighbours of each output element as the mode reads."""
    mode = node.attributes.get_string("mode", "nearest")
    each = {"nearest": 1, "linear": 8, "cubic": 40}.get(mode, 8)
    return Cost(each * _elements(node.outputs[0]), _traffic(node))


def sampled(node: ir.Node) -> Cost:
    """GridSample: corners of each sample, and the cubic weights."""
    axes = len(_shape(node.outputs[0])) - 2
    taps = {"nearest": 1, "cubic": 4, "bicubic": 4}.get(node.attributes.get_string("mode", "linear"), 2)
    return Cost(2 * taps**axes * _elements(node.outputs[0]) + 20 * _elements(input_of(node, 1)), _traffic(node))


def regions(node: ir.Node) -> Cost:
    """RoiAlign: four corners of each sample; two samples along each axis if their number depends on the region."""
    samples = node.attributes.get_int("sampling_ratio", 0) or 2
    return Cost(8 * samples**2 * _elements(node.outputs[0]), _traffic(node))


def deformed(node: ir.Node) -> Cost:
    """DeformConv: columns made of four corners each, and a convolution of them."""
    # The weight tells the channels: what is ordered by a control edge has no shape in a file.
    channels = math.prod(_shape(input_of(node, 1))[1:2]) * node.attributes.get_int("group", 1)
    columns = _elements(input_of(node, 2)) // 2 * channels // max(1, node.attributes.get_int("offset_group", 1))
    product = 2 * _elements(node.outputs[0]) * math.prod(_shape(input_of(node, 1))[1:])
    return Cost(product + 10 * columns + _bias(node, 3), _traffic(node) + 8 * columns)


def fourier(node: ir.Node) -> Cost:
    """DFT and STFT: 5 n log n for each transform."""
    length = max((dim for dim in _shape(node.outputs[0])[1:-1]), default=1)
    return Cost(5 * math.ceil(math.log2(length + 1)) * _elements(node.outputs[0]), 2 * _traffic(node))


def determinant(node: ir.Node) -> Cost:
    """An LU decomposition of each matrix."""
    shape = _shape(input_of(node, 0))
    return Cost(_elements(input_of(node, 0)) * (shape[-1] if shape else 1), _traffic(node))


def top_k(node: ir.Node) -> Cost:
    """A sort."""
    elements = _elements(input_of(node, 0))
    return Cost(elements * max(1, elements.bit_length()), 2 * _traffic(node))


def recurrent(gates: int) -> Rule:
    """A recurrent layer with so many gates."""

    def cost(node: ir.Node) -> Cost:
        length, batch, features = (*_shape(input_of(node, 0)), 1, 1, 1)[:3]
        directions, _, hidden = (*_shape(input_of(node, 2)), 1, 1, 1)[:3]
        steps = length * batch * directions
        flops = 2 * steps * gates * hidden * (features + hidden) + 20 * steps * gates * hidden
        # The recurrent weights are read again in every step.
        return Cost(flops, _traffic(node) + length * _bytes(input_of(node, 2)))

    return cost
