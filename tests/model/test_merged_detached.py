"""What torch's optimiser merged although the module detaches what one of two terms reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import ckplan
from ckplan.model.torch_files.detached import detached_inputs
from ckplan.model.torch_files.exporter_metadata import LINE
from tests.model.models import normal
from tests.model.torch_files import exported, loaded

NODES = "mm = MatMul(x, a.weight) tanh = Tanh(mm) sub = Sub(tanh, mm) mul = Mul(sub, sub) y = Add(mul, mul)"
MERGED = "merged values that are equal but for what the module detaches ('mul_1' with 'mul')"


def file_with(sub: str, add: str, users: int = 1) -> onnx.ModelProto:
    """A file of a square of a difference, of which the last line reads the square twice.

    Args:
        sub: what the line of the difference reads.
        add: what the last line reads.
        users: how many lines of the program read the difference.
    """
    lines = [
        "aten.mm](args = (%x, %p_a_weight))",
        "aten.tanh](args = (%mm,))",
        f"aten.sub](args = ({sub}))",
        "aten.mul](args = (%sub, %sub))",
        f"aten.add](args = ({add}))",
    ]
    model = exported(NODES, {"a.weight": normal(0, 4, 4)}, {"p_a_weight": ("PARAMETER", "a.weight")}, lines)
    for node in model.graph.node:
        (line,) = [entry for entry in node.metadata_props if entry.key == LINE]
        line.value = line.value.replace("%made", f"%{node.output[0]}")
        if node.output[0] == "sub":
            line.value = line.value.replace("num_users=1", f"num_users={users}")
    return model


def test_terms_that_differ_in_what_is_detached_are_named() -> None:
    _, notes = loaded(file_with("%tanh, %detach", "%mul, %mul_1"))
    assert MERGED in notes
    assert "ckplan.export keeps them apart" in notes


@pytest.mark.parametrize(
    ("sub", "add", "users"),
    [
        pytest.param("%tanh, %mm", "%mul, %mul_1", 1, id="nothing is detached"),
        pytest.param("%tanh, %detach", "%mul, %mul", 1, id="nothing was merged"),
        pytest.param("%tanh, %detach", "%mul, %mul_1", 2, id="merged behind what both share"),
        pytest.param("%tanh, %detach", "%mul, %sin", 1, id="another operation"),
    ],
)
def test_others_are_not(sub: str, add: str, users: int) -> None:
    assert "equal but for what the module detaches" not in loaded(file_with(sub, add, users))[1]


def with_another(sub: str, add: str, last: str = "%detach_2") -> onnx.ModelProto:
    """The same file, behind which something else is detached."""
    model = file_with(sub, add)
    model.graph.node[-1].output[0] = "add"
    (line,) = [entry for entry in model.graph.node[-1].metadata_props if entry.key == LINE]
    line.value = line.value.replace("%y", "%add")
    model.graph.node.append(onnx.helper.make_node("Add", ["add", "mm"], ["y"]))
    value = f"%y : [num_users=1] = call_function[target=aten.add](args = (%add, {last}))"
    model.graph.node[-1].metadata_props.add(key=LINE, value=value)
    return model


@pytest.mark.parametrize(
    ("sub", "sides"), [("%tanh, %detach", [[1], [0]]), ("%detach, %mm", [[0], [1]])], ids=["second side", "first side"]
)
def test_of_two_terms_of_a_difference_each_detaches_another_side(sub: str, sides: list[list[int]]) -> None:
    model, notes = loaded(with_another(sub, "%mul, %mul_1"))
    assert "apart again, each with another side detached: 'mul_1' with 'mul'" in notes
    assert MERGED not in notes
    assert [detached_inputs(node) for node in model.graph if node.op_type == "Sub"] == sides
    (total,) = [node for node in model.graph if [value.name for value in node.inputs] == ["mul", "mul_1"]]
    assert total.op_type == "Add"


@pytest.mark.parametrize(
    ("add", "last"), [("%mul, %mul_1", "%detach_1"), ("%mul, %mul_1", "%mm"), ("%mul_1, %mul_2", "%detach_2")],
    ids=["all numbers are there", "the last one may be gone", "two are gone"],
)  # fmt: skip
def test_terms_of_which_it_cannot_be_known_stay_as_they_are(add: str, last: str) -> None:
    model, notes = loaded(with_another("%tanh, %detach", add, last))
    assert "equal but for what the module detaches" in notes
    assert sum(node.op_type == "Sub" for node in model.graph) == 1


@pytest.mark.filterwarnings("ignore")  # torch's own
@pytest.mark.parametrize("codebook_first", [True, False])
def test_both_terms_of_a_vector_quantiser_train(codebook_first: bool, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")

    class Quantiser(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = torch.nn.Linear(6, 4), torch.nn.Linear(4, 6)
            self.codes = torch.nn.Embedding(9, 4)

        def forward(self, x):
            z = self.encoder(x)
            q = self.codes((z[:, None] - self.codes.weight).square().sum(-1).argmin(1))
            mse = torch.nn.functional.mse_loss
            if codebook_first:
                terms = mse(q, z.detach()) + 0.25 * mse(q.detach(), z)
            else:
                terms = 0.25 * mse(q.detach(), z) + mse(q, z.detach())
            return terms + mse(self.decoder(z + (q - z).detach()), x)

    torch.manual_seed(0)
    module, x = Quantiser().eval(), torch.randn(5, 6)
    torch.onnx.export(module, (x,), tmp_path / "vq.onnx", dynamo=True, verbose=False)
    step = ckplan.open_model(tmp_path / "vq.onnx")
    assert any("apart again, each with another side" in note for note in step.notes)
    module(x).backward()
    session = onnxruntime.InferenceSession(ir.to_proto(step.model).SerializeToString())
    found = session.run(list(step.training.gradients.values()), {"x": x.numpy()})
    expected = dict(module.named_parameters())
    for name, gradient in zip(step.training.gradients, found, strict=True):
        np.testing.assert_allclose(gradient, expected.pop(name).grad.numpy(), rtol=1e-4, atol=1e-6)
    assert not expected
