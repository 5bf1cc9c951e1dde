"""Parameters that torch's old exporter merged because nothing has trained them yet, or folded into others.

It writes initializers of equal values once: of an untrained network, the biases of all layers (zero) and the scales of
all norms (one) of the same size, and where layers begin as copies of one (``torch.nn.TransformerEncoder``, a target
network), everything. Each of the others is an Identity of the one, under its own name. Removed as all identities are,
it would leave one parameter, and the layers would stay equal for ever.

A parameter that is read twice in the module has no such Identity, unless the exporter turned its values first: then the
products bear numbers for names, and the modules that read them tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set

import onnx_ir as ir

from ckplan.display import shortened
from ckplan.model.constants import copy_initializer
from ckplan.model.inference.infer import is_vector
from ckplan.model.literals import is_numbered
from ckplan.model.structure import has_one_value, is_unstructured
from ckplan.model.torch_files.exporter_metadata import module_of
from ckplan.operators.matching import is_op

_PATH = re.compile(r"\w+(\.\w+)*")
"""How it calls parameters and buffers: attributes of modules, those of a list by their number."""
COMPUTED = re.compile(r"onnx::\w+_(\d+)")
"""How it calls what it computed of others, and weights that it turned."""
LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm", "GRU", "LSTM", "MatMul", "RNN"})
"""Operators whose operands are weights of layers."""
_READ_AS_THEY_ARE = frozenset({"Conv", "ConvTranspose"})
"""Those that read a weight as the module has it."""
_WITH_BIAS = _READ_AS_THEY_ARE | {"Gemm"}
"""Those whose third operand is a bias, as the module has it."""
_BIASES = ("bias", "in_proj_bias")
"""How torch's modules call the biases of their linear layers."""
_INDEX = re.compile(r"(?<![^.])\d+(?=[./]|$)")


def folded_notes(model: ir.Model) -> tuple[str, ...]:
    """Say which weights and biases of layers the exporter computed of parameters that are not in the file as such.

    A BatchNormalization that was folded into a convolution leaves a weight and a bias with numbers for names. Biases,
    other weights of convolutions, and those that a Gemm transposes itself have a number only where they were computed.
    The weight of a MatMul has one in any linear layer, where it was turned.
    """
    if model.producer_name != "pytorch":
        return ()
    products: list[ir.Value | None] = []
    computed: list[ir.Value | None] = []
    for node in model.graph:
        if not is_op(node, LAYERS):
            continue
        weight, bias = (_is_computed(value) for value in (*node.inputs, None)[1:3])
        if weight and bias and node.op_type == "Conv":
            products.append(node.inputs[1])
            continue
        turned = node.op_type not in _READ_AS_THEY_ARE and not node.attributes.get_int("transB", 0)
        if weight and (not turned or (node.op_type == "MatMul" and not _is_linear(node))):
            computed.append(node.inputs[1])
        if bias and node.op_type in _WITH_BIAS:
            computed.append(node.inputs[2])
    notes = []
    if products:
        notes.append(products_note(products))
    if computed:
        notes.append(
            f"{len(set(computed))} weight(s) of layers ({_listed(computed)}) may be what torch's exporter computed of "
            "parameters, and the file does not say of which: the gradient of one that is read elsewhere as well lacks "
            "that part; ckplan.export keeps the parameters"
        )
    return tuple(notes)


def products_note(weights: Sequence[ir.Value | None], by: str = "torch's exporter") -> str:
    """Say which weights of convolutions are not those of the module, and what folded something into them."""
    return (
        f"{len(weights)} weight(s) of convolutions ({_listed(weights)}) are products: {by} folded a "
        "BatchNormalization into each, so that the parameters of both are not in the file as such; ckplan.export "
        "keeps them"
    )


def _listed(values: Iterable[ir.Value | None]) -> str:
    return shortened([f"'{value.name}'" for value in dict.fromkeys(values) if value is not None], 3)


def _is_computed(value: ir.Value | None) -> bool:
    """Whether the exporter made up the name of an initializer, or of one that it merged with another."""
    copied = None if value is None else value.producer()
    source = copied.inputs[0] if copied is not None and copied.op_type == "Identity" else value
    return _is_weight(source) and COMPUTED.fullmatch(str(value and value.name)) is not None


def _is_linear(product: ir.Node) -> bool:
    """Whether a MatMul is that of a linear layer or of attention: its bias is, or its module has no other nodes.

    Where nodes bear no paths of modules, nothing speaks against it.
    """
    if not str(product.name).startswith("/"):
        return True
    scope = scope_of(product)
    biases = {f"{scope}.{leaf}".lstrip(".") for leaf in _BIASES}
    added = [value for node in product.outputs[0].consumers() if node.op_type == "Add" for value in node.inputs]
    if any(value is not None and value.name in biases for value in added):
        return True
    beside = {node.op_type for node in product.graph or () if scope_of(node) == scope}
    return beside <= {"Add", "Constant", "MatMul"}


def separate_merged(model: ir.Model) -> tuple[str, ...]:
    """Make an initializer of each Identity of a merged parameter, in place.

    A table of embeddings stays one with what has its values: transformers copies it for the old exporter, which it
    hands no parameter twice. Tables of one value throughout, such as those of zeros that bias an attention, it does not
    copy.

    Returns:
        Notes.
    """
    if model.producer_name != "pytorch":
        return ()
    graph = model.graph
    copies = [node for node in graph if is_op(node, "Identity") and _is_weight(node.inputs[0])]
    named = [
        node
        for node in copies
        if _PATH.fullmatch(str(node.outputs[0].name))
        and not is_numbered(str(node.outputs[0].name))
        and (not any(map(_is_looked_up, (*node.inputs, *node.outputs))) or _has_one_value(node.inputs[0]))
    ]
    alike = {
        (module_of(str(node.inputs[0].name)), module_of(str(node.outputs[0].name)))
        for node in named
        if node.inputs[0] is not None and is_unstructured(node.inputs[0])
    }
    others = {module_of(str(value.name)) for value in graph.initializers.values()}
    turned = [node for node in copies if node not in named and _are_of_copies(node, alike, others)]
    if len(turned) <= _shared(graph, copies):
        turned = []
    separated = [node for node in (*named, *turned) if not node.outputs[0].is_graph_output()]
    for node in separated:
        _make_initializer(graph, node)
    if not separated:
        return ()
    return (f"{len(separated)} tensor(s) that torch's exporter merged with others of equal values are apart again",)


def _is_weight(value: ir.Value | None) -> bool:
    """Whether a value is a floating-point initializer."""
    tensor = None if value is None or not value.is_initializer() else value.const_value
    return tensor is not None and tensor.dtype.is_floating_point()


def _has_one_value(value: ir.Value | None) -> bool:
    return value is not None and value.const_value is not None and has_one_value(value.const_value)


def _is_looked_up(value: ir.Value | None) -> bool:
    return value is not None and any(use.node.op_type == "Gather" and use.idx == 0 for use in value.uses())


def _are_of_copies(node: ir.Node, copies: Set[tuple[str, str]], others: Set[str]) -> bool:
    """Whether a turned weight and its Identity are read in modules of which one began as a copy of the other.

    What one module reads twice, or two that share a weight, is one. Weights of one value throughout, as one of an
    adapter of low rank is at first, begin alike in any two modules.

    Args:
        node: the Identity.
        copies: pairs of modules of which parameters that were not turned show it; of two that stand in one list it is
            taken for granted.
        others: modules that have a parameter of their own values, so that they are no copies.
    """
    one, other = node.inputs[0], node.outputs[0]
    if one is None or not (COMPUTED.fullmatch(str(one.name)) and COMPUTED.fullmatch(str(other.name))):
        return False
    as_vector = is_vector(one)
    pairs = {(first, second) for first in _readers(one, as_vector) for second in _readers(other, as_vector)}
    listed = {
        (first, second)
        for first, second in pairs
        if first != second
        and (_has_one_value(one) or (second not in others and _INDEX.sub("", first) == _INDEX.sub("", second)))
    }
    return not copies.isdisjoint(pairs) or bool(listed)


def _shared(graph: ir.Graph, copies: Sequence[ir.Node]) -> int:
    """How many tensors more the exporter computed than there are parameters to compute them of, at least.

    It numbers inputs, parameters and what nodes make, and then once more what it computed. A number that belongs to
    nothing in the file is that of a parameter that is gone, or of a node that is.

    Args:
        graph: of the old exporter.
        copies: its nodes that were no nodes when the numbers were given.
    """
    values = {*graph.initializers.values(), *(node.outputs[0] for node in copies)}
    numbers = [int(found[1]) for value in values if (found := COMPUTED.fullmatch(str(value.name)))]
    made = [output for node in graph if node not in copies for output in node.outputs if output.name]
    known = len({*graph.inputs, *values}) - len(numbers) + len(made)
    return 2 * len(numbers) + known - min(numbers) if numbers else 0


def _readers(value: ir.Value, as_vector: bool) -> set[str]:
    """The modules in which a value is read as weights, biases and scales are, not as masks and tables of positions."""
    return {
        scope_of(use.node)
        for use in value.uses()
        if (use.node.op_type in LAYERS and use.idx) or (use.node.op_type in ("Add", "Mul") and as_vector)
    }


def scope_of(node: ir.Node) -> str:
    """The path of the module in which a node was made: of ``/net/net.1/self_attn/MatMul`` it is net.1.self_attn."""
    path: list[str] = []
    for part in str(node.name).split("/")[1:-1]:
        if path and part.startswith(f"{path[-1]}."):
            path.pop()
        path.append(part)
    return ".".join(path)


def _make_initializer(graph: ir.Graph, node: ir.Node) -> None:
    value, output = node.inputs[0], node.outputs[0]
    assert value is not None
    output.replace_all_uses_with(copy_initializer(graph, value, str(output.name)))
    graph.remove(node, safe=True)
