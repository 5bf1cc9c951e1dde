"""Which initializers of rank 0 are trained by default."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ckplan.model.constants import mark_constant
from ckplan.model.literals import is_literal, is_numbered, names_a_weight


@pytest.mark.parametrize(
    "name",
    [
        "logit_scale", "clip.logit_scale", "temperature", "alpha", "blocks.0.gamma_1", "model.gate", "tau",
        "module.encoder.layers.3.skip.0", "net/temperature/ReadVariableOp:0", "logit_bias", "scale/read",
        "sigma2", "prelu.weight", "1.scale", "0.parametrizations.weight.original0",
    ],
)  # fmt: skip
def test_names_of_weights(name: str) -> None:
    assert names_a_weight(name)


@pytest.mark.parametrize(
    "name",
    [
        "onnx::Mul_12", "12", "_v_9", "Const__7", "const_fold_opt__5", "/layer/Constant_output_0", "val_3", "half",
        "model/tf.math.multiply/Mul/y:0", "epsilon", "two", "c", "layer.eps", "scalar", "x", "ln.epsilon", "p0",
        "ckplan/constant_0", "attention_scale", "scale", "value_scale", "loss_weight_of_mask", "0.5", "1.eps",
    ],
)  # fmt: skip
def test_names_of_literals(name: str) -> None:
    assert not names_a_weight(name)


@pytest.mark.parametrize("name", ["/layer/Constant_output_0", "/Expand_output_0", "/a/b.1/MatMul_3_output_0"])
def test_what_a_node_of_the_old_exporter_makes_has_no_name_of_its_own(name: str) -> None:
    """Tools compute it beforehand, and leave an initializer of that name."""
    assert is_numbered(name)
    assert not is_numbered(name.removesuffix("_0"))


def test_only_the_rank_and_the_mark_decide_otherwise() -> None:
    def initializer(*shape: int) -> ir.Value:
        data = np.ones(shape, np.float32)
        return ir.Value(name="onnx::Mul_1", shape=ir.Shape(shape), const_value=ir.Tensor(data))

    assert is_literal(initializer())
    assert not is_literal(initializer(1))
    marked = initializer(3)
    mark_constant(marked, "test")
    assert is_literal(marked)
