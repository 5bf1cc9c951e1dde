"""Low-rank adapters: a linear layer stays as it is, and what it computes gets a product of two thin matrices added.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2022: ``y = W x + (alpha / r) B A x`` with A of r rows
and B of r columns. Only A and B are trained. A begins with random numbers and B with zeros, as in PEFT, and both have
PEFT's names and shapes. The weight W may be quantised: nothing but what reads it needs to know.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from ckplan import keys
from ckplan.arguments import check_factor, check_number
from ckplan.choices import parse_choice
from ckplan.errors import ModelError, UsageError
from ckplan.keys import STANDS_FOR
from ckplan.operators.matching import is_op

_VIEWS = ("Transpose", "Identity", "Cast", "DequantizeLinear")
"""What may stand between a weight and the product that reads it."""
_SUFFIX = re.compile(r"\.(weight|kernel)(_\w+)?$|_(quantized|scale|Q4|Q8)$")


@dataclass(frozen=True)
class Lora:
    """What adapters to insert.

    Attributes:
        rank: rows of A and columns of B.
        alpha: their product is multiplied by alpha / rank; 0 stands for the rank, so that the factor is 1.
        targets: names or patterns of layers or of their last part, such as q_proj; none stands for all linear layers.
        seed: of the numbers that A begins with.
    """

    name: ClassVar[str] = "lora"

    rank: int = 8
    alpha: float = 0.0
    targets: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        check_factor("option `alpha` of `--lora`", self.alpha)
        for option, least in (("rank", 1), ("seed", 0)):
            check_number(f"option `{option}` of `--lora`", getattr(self, option), least, whole=True)

    @property
    def scale(self) -> float:
        """The factor of an adapter's product."""
        return self.alpha / self.rank if self.alpha else 1.0

    def wants(self, module: str, weight: str) -> bool:
        """Whether a layer is a target, as PEFT's ``target_modules`` has it: by its whole name or its end."""
        names = (module, weight, module.rpartition(".")[2])
        return not self.targets or any(
            fnmatchcase(name, pattern) or module.endswith(f".{pattern}") for pattern in self.targets for name in names
        )

    def to_json(self) -> str:
        """The form in which a file's metadata hold it."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Lora:
        """From ``rank=8,targets=q_proj;v_proj``, or from what `to_json` gives.

        Raises:
            UsageError: there is no such option.
        """
        if isinstance(text, str) and text.startswith("{"):
            held = json.loads(text)
            return cls(**{**held, "targets": tuple(held["targets"])})
        return parse_choice(f"lora:{text}", (cls,), "adapter")


@dataclass(frozen=True)
class Layer:
    """A product of activations with a weight.

    Attributes:
        node: a MatMul, Gemm or MatMulNBits.
        weight: the initializer that holds the weight, quantised or not.
        module: the name of the layer: that of the weight, without its ending.
        rows: whether a row of the weight belongs to an output, as in torch, and not to an input.
        sizes: number of inputs and of outputs.
        is_float: whether the weight is a floating-point matrix that an adapter can be merged into.
    """

    node: ir.Node
    weight: ir.Value
    module: str
    rows: bool
    sizes: tuple[int, int]
    is_float: bool

    @property
    def names(self) -> tuple[str, str]:
        """What the parameters A and B of its adapter are called."""
        return f"{self.module}.lora_A.weight", f"{self.module}.lora_B.weight"


def linear_layers(graph: ir.Graph) -> Iterator[Layer]:
    """Find the products of activations with matrices of the file, in the order of the graph."""
    for node in graph:
        if node.op_type == "MatMulNBits":
            weight = node.inputs[1]
            if weight is not None and weight.is_initializer():
                sizes = node.attributes["K"].as_int(), node.attributes["N"].as_int()
                yield Layer(node, weight, module_of(weight), True, sizes, False)
        elif is_op(node, ("MatMul", "Gemm")):
            flag = node.attributes.get("transA")
            if flag is None or not flag.as_int():
                yield from _behind(node)


def _behind(node: ir.Node) -> Iterator[Layer]:
    """The layer of a MatMul or Gemm, if its second operand is a matrix of the file."""
    value, flag = node.inputs[1], node.attributes.get("transB")
    rows = flag is not None and bool(flag.as_int())
    while value is not None and (producer := value.producer()) is not None:
        if not is_op(producer, _VIEWS):
            return
        rows ^= producer.op_type == "Transpose"
        value = producer.inputs[0]
    left = node.inputs[0]
    if value is None or not value.is_initializer() or left is None or left.is_initializer():
        return
    shape = tuple(value.const_value.shape.numpy()) if value.const_value is not None else ()
    if len(shape) == 2:
        sizes = (shape[1], shape[0]) if rows else (shape[0], shape[1])
        floating = value.dtype is not None and value.dtype.is_floating_point() and value.dtype.itemsize >= 2
        yield Layer(node, value, module_of(value), rows, sizes, floating)


def module_of(weight: ir.Value) -> str:
    """The name of the layer that a weight belongs to, in the words of the program that was exported where known."""
    return _SUFFIX.sub("", weight.metadata_props.get(STANDS_FOR) or str(weight.name))


def add_adapters(model: ir.Model, lora: Lora) -> tuple[str, ...]:
    """Insert adapters into a forward model, in place.

    Args:
        model: in normal form.
        lora: which.

    Returns:
        The names of their parameters: those to be trained.

    Raises:
        UsageError: a target matches no layer, or the rank is larger than a layer.
        ModelError: the model has no linear layer.
    """
    layers = list(linear_layers(model.graph))
    chosen = [layer for layer in layers if lora.wants(layer.module, str(layer.weight.name))]
    if not layers:
        raise ModelError("no node of the model multiplies by a matrix of the file", "`--lora` is for linear layers")
    for pattern in lora.targets:
        alone = Lora(targets=(pattern,))
        if not any(alone.wants(layer.module, str(layer.weight.name)) for layer in layers):
            near = ", ".join(f"`{layer.module}`" for layer in layers[:3])
            raise UsageError(f"`--lora targets={pattern}` matches no linear layer", f"there are, for example, {near}")
    names: dict[str, None] = {}
    for layer in chosen:
        if lora.rank > min(layer.sizes):
            raise UsageError(
                f"`--lora rank={lora.rank}` is more than layer '{layer.module}' of {layer.sizes[0]} inputs and "
                f"{layer.sizes[1]} outputs has",
                "give a smaller rank, or name other targets",
            )
        insert(model.graph, layer, first_values(layer, lora), lora.scale)
        names.update(dict.fromkeys(layer.names))
    model.metadata_props[keys.LORA] = lora.to_json()
    return tuple(names)


def first_values(layer: Layer, lora: Lora) -> dict[str, np.ndarray]:
    """What an adapter begins with: A uniform within 1 / sqrt(inputs), as PEFT has it, and B zero."""
    inputs, outputs = layer.sizes
    first, second = layer.names
    rng = np.random.default_rng([lora.seed, zlib.crc32(first.encode())])
    bound = 1 / math.sqrt(inputs)
    return {first: rng.uniform(-bound, bound, (lora.rank, inputs)), second: np.zeros((outputs, lora.rank))}


def insert(graph: ir.Graph, layer: Layer, values: Mapping[str, np.ndarray], scale: float) -> None:
    """Add an adapter's product to what a layer computes.

    Args:
        graph: that of the layer; shapes need not be known.
        layer: one of it. Layers of one weight share an adapter.
        values: A and B by name; used where the graph does not hold them yet.
        scale: factor of the product.
    """
    node, y = layer.node, layer.node.outputs[0]
    x = node.inputs[0]
    assert x is not None
    dtype = y.dtype or x.dtype or ir.DataType.FLOAT
    first, second = (_parameter(graph, name, values, dtype) for name in layer.names)
    leading = None if y.shape is None else list(y.shape)[:-1]
    rank = first.shape[0] if first.shape is not None else None
    made: list[ir.Node] = []

    def emit(op_type: str, inputs: Sequence[ir.Value], shape: Sequence[Any] | None, **attributes: Any) -> ir.Value:
        made.append(ir.node(op_type, inputs, attributes, name=f"{node.name or layer.module}/lora/{len(made)}"))
        value = made[-1].outputs[0]
        value.name, value.type = f"{y.name}/lora/{len(made)}", ir.TensorType(dtype)
        value.shape = None if shape is None else ir.Shape(shape)
        return value

    thin = None if leading is None else [*leading, rank]
    h = emit("MatMul", [x, emit("Transpose", [first], [layer.sizes[0], rank], perm=[1, 0])], thin)
    if scale != 1:
        factor = ir.Value(name=f"{y.name}/lora/scale", type=ir.TensorType(dtype), shape=ir.Shape([]))
        factor.const_value = ir.Tensor(np.asarray(scale, dtype.numpy()), name=factor.name)
        factor.metadata_props[keys.CONSTANT] = "lora"
        graph.register_initializer(factor)
        h = emit("Mul", [h, factor], thin)
    whole = None if y.shape is None else list(y.shape)
    product = emit("MatMul", [h, emit("Transpose", [second], [rank, layer.sizes[1]], perm=[1, 0])], whole)
    total = emit("Add", [y, product], whole)
    last = made[-1]
    y.replace_all_uses_with(total, replace_graph_outputs=True)
    last.replace_input_with(0, y)
    if total.is_graph_output():
        total.name, y.name = y.name, f"{y.name}/base"
    graph.insert_after(node, made)


def _parameter(graph: ir.Graph, name: str, values: Mapping[str, np.ndarray], dtype: ir.DataType) -> ir.Value:
    if name not in graph.initializers:
        array = np.asarray(values[name]).astype(dtype.numpy())
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(array.shape))
        value.const_value = ir.Tensor(array, dtype=dtype, name=name)
        graph.register_initializer(value)
    return graph.initializers[name]
