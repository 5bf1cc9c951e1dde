"""Weights of classes in losses that torch's old exporter wrote out."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ckplan.keys import FROZEN
from ckplan.model.torch_files.loss_weights import freeze_loss_weights
from tests.model.models import normal, parse

CROSS_ENTROPY = """
    p = Sigmoid(x) log_p = Log(p) q = Sub(one, p) log_q = Log(q) no = Sub(one, t)
    a = Mul(t, log_p) b = Mul(a, "{scope}pos_weight") c = Mul(no, log_q) d = Add(b, c) {tail}
"""


def test_other_sums_of_logarithms_have_weights() -> None:
    """Factors that are no answer and its opposite may be trained, as those of a mixture."""
    nodes = (
        "log_p = Log(x) a = Mul(p, log_p) log_t = Log(t) b = Mul(q, log_t) c = Add(a, b) n = Neg(c) y = ReduceMean(n)"
    )
    graph = f"g (float[2,4] x, float[2,4] t) => (float[] y) {{ {nodes} }}"
    proto = parse(f'<ir_version: 10, opset_import: ["": 21]> {graph}', {"p": normal(0, 4), "q": normal(1, 4)})
    proto.producer_name = "pytorch"
    model = ir.from_proto(proto)
    freeze_loss_weights(model)
    assert not any(FROZEN in value.metadata_props for value in model.graph.initializers.values())


@pytest.mark.parametrize(
    ("scope", "tail", "frozen"),
    [
        ("loss.", 'n = Neg(d) e = Mul("loss.weight", n) y = ReduceMean(e)', {"loss.weight", "loss.pos_weight"}),
        ("", 'n = Neg(d) e = Mul("weight", n) y = ReduceMean(e)', {"weight", "pos_weight"}),
        ("loss.", 'n = Neg(d) e = Mul("gate.weight", n) y = ReduceMean(e)', {"loss.pos_weight"}),
        ("", 'n = Neg(d) e = Mul("classes", n) y = ReduceMean(e)', {"classes", "pos_weight"}),
        ("loss.", 'n = Neg(d) e = Mul("loss.classes", n) y = ReduceMean(e)', {"loss.classes", "loss.pos_weight"}),
        ("loss.", 'n = Neg(d) e = Mul("classes", n) y = ReduceMean(e)', {"loss.pos_weight"}),
        ("loss.", 'e = Mul("loss.weight", d) y = ReduceMean(e)', set()),
        ("loss.", 'n = Neg(d) e = Mul("loss.weight", n) f = Mul(x, "loss.weight") g = Add(e, f) y = ReduceMean(g)',
         {"loss.pos_weight"}),
    ],
    ids=["a module", "the outermost", "of another", "of any name", "of any name in a module", "of an outer one",
         "no loss", "read elsewhere"],
)  # fmt: skip
def test_they_are_not_trained(scope: str, tail: str, frozen: set[str]) -> None:
    nodes = CROSS_ENTROPY.format(scope=scope, tail=tail)
    named = ("loss.weight", "weight", "gate.weight", "classes", "loss.classes", f"{scope}pos_weight")
    arrays = {name: np.abs(normal(0, 4)) for name in named}
    graph = f"g (float[2,4] x, float[2,4] t) => (float[] y) {{ {nodes} }}"
    proto = parse(f'<ir_version: 10, opset_import: ["": 21]> {graph}', arrays | {"one": np.ones((), np.float32)})
    for node in proto.graph.node:
        node.name = f"/loss/{node.op_type}" if scope else f"/{node.op_type}"
    proto.producer_name = "pytorch"
    model = ir.from_proto(proto)
    freeze_loss_weights(model)
    assert {name for name, value in model.graph.initializers.items() if FROZEN in value.metadata_props} == frozen
