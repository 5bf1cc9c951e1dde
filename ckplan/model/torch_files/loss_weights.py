"""Weights of classes inside a loss that torch's old exporter wrote out in arithmetic are not trained.

``BCEWithLogitsLoss`` and ``MultiLabelSoftMarginLoss`` hold a weight for each class, and one for each positive answer,
as buffers that are called like parameters; a module that calls torch's function may call its own as it likes. They
multiply the loss, ``-(y log p + (1 - y) log(1 - p))``, or a term of it: trained, they would become zero.
"""

from __future__ import annotations

import onnx_ir as ir

from ckplan import keys
from ckplan.model.torch_files.old_exporter import scope_of
from ckplan.operators.matching import made_by

_BUFFERS = ("weight", "pos_weight")


def freeze_loss_weights(model: ir.Model) -> tuple[str, ...]:
    """Mark such weights with `keys.FROZEN`, in place.

    Returns:
        Notes: none, since what is not trained is named anyway.
    """
    if model.producer_name != "pytorch":
        return ()
    for node in model.graph:
        total = made_by(node.inputs[0], "Add") if node.op_type == "Neg" else None
        terms = [] if total is None else [_products(term) for term in total.inputs]
        if not terms or not all(map(_has_logarithm, terms)):
            continue
        products = {*terms[0], *terms[1], *(use for use in node.outputs[0].consumers() if use.op_type == "Mul")}
        scope = scope_of(node)
        names = {f"{scope}.{leaf}".lstrip(".") for leaf in _BUFFERS}
        for value in {value for product in products for value in product.inputs if value is not None}:
            of_module = str(value.name).rpartition(".")[0] == scope
            is_weight = value.name in names or (of_module and _is_of_answers(*terms))
            if value.is_initializer() and is_weight and products.issuperset(value.consumers()):
                value.metadata_props[keys.FROZEN] = "weighs the terms of a loss"
    return ()


def _products(value: ir.Value | None) -> list[ir.Node]:
    """The products that make a value, one of the other."""
    node = made_by(value, "Mul")
    return [] if node is None else [node, *(one for read in node.inputs for one in _products(read))]


def _has_logarithm(products: list[ir.Node]) -> bool:
    return any(made_by(value, "Log") is not None for product in products for value in product.inputs)


def _is_of_answers(one: list[ir.Node], other: list[ir.Node]) -> bool:
    """Whether one term is for the answer yes and the other for no: what multiplies the two are y and 1 - y."""
    factors = [{value for product in term for value in product.inputs} for term in (one, other)]
    opposed = [
        {node.inputs[1] for value in found if (node := made_by(value, "Sub")) is not None} & others
        for found, others in (factors, factors[::-1])
    ]
    return any(value is not None and not value.is_initializer() for values in opposed for value in values)
