"""``ckplan.export`` writes products of sorted rows with their experts' matrices, which torch's exporter does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

import ckplan
from tests.model.torch_modules import assert_like_torch, gradients_by, quiet_torch

__all__ = ["quiet_torch"]
torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
nn = torch.nn
functional = torch.nn.functional

FALLBACK = "transformers::grouped_mm_fallback"
"""What transformers 5 computes experts by where torch's operator does not take their type."""


def _loop(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    begins = [0, *ends.tolist()]
    return torch.cat([rows[begin:end] @ of for begin, end, of in zip(begins, begins[1:], matrices, strict=False)])


@pytest.fixture(scope="module", autouse=True)
def registered():
    """The operator of transformers, under its name, where that package has not brought it along."""
    if not hasattr(torch.ops.transformers, "grouped_mm_fallback"):

        @torch.library.custom_op(FALLBACK, mutates_args=())
        def fallback(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
            return _loop(input, weight, offs)

        fallback.register_fake(lambda input, weight, offs: input.new_empty(input.shape[0], weight.shape[2]))


class Experts(nn.Module):
    """A mixture that sorts its tokens by expert, as those of transformers 5 do."""

    def __init__(self, experts: int, asked: int, turned: bool) -> None:
        super().__init__()
        self.router = nn.Linear(6, experts, bias=False)
        self.up = nn.Parameter(torch.randn((experts, 10, 6) if turned else (experts, 6, 10)) / 2)
        self.down = nn.Parameter(torch.randn(experts, 5, 6) / 2)
        self.bias = nn.Parameter(torch.randn(experts, 6) / 2)
        self.asked, self.turned = asked, turned

    def forward(self, x):
        grouped = torch.ops.transformers.grouped_mm_fallback if torch.compiler.is_exporting() else _loop
        tokens = x.reshape(-1, 6)
        chances, experts = self.router(tokens).softmax(-1).topk(self.asked, -1)
        expert, order = torch.sort(experts.reshape(-1))
        counts = torch.histc(expert.float(), bins=len(self.up), min=0, max=len(self.up) - 1)
        ends = torch.cumsum(counts, 0, dtype=torch.int32)
        up = self.up.transpose(-2, -1) if self.turned else self.up
        gate, made = grouped(tokens[order // self.asked], up, ends).chunk(2, -1)
        made = grouped(functional.silu(gate) * made, self.down, ends) + self.bias[expert]
        made = made * chances.reshape(-1)[order][:, None]
        back = torch.empty_like(order)
        back[order] = torch.arange(order.shape[0])
        return made[back].reshape(tokens.shape[0], self.asked, 6).sum(1).reshape(x.shape)


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize(
    ("experts", "asked", "tokens", "turned"),
    [(4, 2, 16, False), (4, 2, 16, True), (5, 1, 3, True), (3, 3, 4, False), (2, 1, 9, False), (16, 2, 5, True)],
)
def test_experts_have_torchs_gradients(
    tmp_path: Path, experts: int, asked: int, tokens: int, turned: bool, free: bool
) -> None:
    """Among them experts that no token asks for, which are most of sixteen."""
    torch.manual_seed(experts * tokens)
    module, x = Experts(experts, asked, turned), torch.randn(2, tokens, 6)
    path = ckplan.export(
        module, (x,), tmp_path / "net.onnx", input_names=["x"],
        dynamic_shapes=({1: torch.export.Dim("tokens")},) if free else None,
    )  # fmt: skip
    model = ckplan.load(path, dims={"tokens": tokens} if free else None).model
    training = ckplan.build_training_graph(model, loss="sum-of-squares")
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(2, tokens, 6)
        module.zero_grad()
        module(x).square().sum().backward()
        expected = {name: parameter.grad.numpy() for name, parameter in module.named_parameters()}
        assert_like_torch(gradients_by(training, {"x": x.numpy()}), expected)


def test_a_plan_of_experts_has_the_same_bits(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x = nn.Sequential(*[Experts(4, 2, True) for _ in range(3)]), torch.randn(2, 16, 6)
    path = ckplan.export(module, (x,), tmp_path / "net.onnx", input_names=["x"])
    step = ckplan.open_model(path, loss="sum-of-squares")
    ckplan.rewrite(step, strategy="memory", output=tmp_path / "step.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "step.onnx"))
    plain = gradients_by(step.training, {"x": x.numpy()})
    planned = session.run([step.training.gradients[name] for name in plain], {"x": x.numpy()})
    for (name, gradient), repeated in zip(plain.items(), planned, strict=True):
        assert np.array_equal(repeated, gradient), name


def test_weights_are_read_as_they_lie(tmp_path: Path) -> None:
    """Nothing turns the weights of all experts where each block of rows turns those of its own."""
    path = ckplan.export(Experts(4, 2, True), (torch.randn(2, 16, 6),), tmp_path / "net.onnx")
    graph = ckplan.load(path).model.graph
    assert {node.op_type for node in graph.initializers["up"].consumers()} == {"Gather"}


def test_torchs_own_operator_is_written(tmp_path: Path) -> None:
    """It takes bfloat16 where it is traced; rows of the groups 0, 1 and 2, of which the second has none."""

    class Grouped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrices = nn.Parameter(torch.randn(3, 8, 16, dtype=torch.bfloat16))

        def forward(self, x, ends):
            return functional.grouped_mm(x.bfloat16(), self.matrices, offs=ends).float()

    torch.manual_seed(0)
    module, x, ends = Grouped(), torch.randn(7, 8), torch.tensor([2, 2, 7], dtype=torch.int32)
    path = ckplan.export(module, (x, ends), tmp_path / "net.onnx", input_names=["x", "ends"])
    (found,) = ReferenceEvaluator(onnx.load(path)).run(None, {"x": x.numpy(), "ends": ends.numpy()})
    expected = module(x, ends).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=2**-7, atol=2**-7)


def test_grouped_products_of_another_form_are_refused(tmp_path: Path) -> None:
    class Weights(nn.Module):
        def forward(self, x, y, ends):
            return functional.grouped_mm(x.bfloat16().t(), y.bfloat16(), offs=ends).float()

    args = torch.randn(32, 16), torch.randn(32, 16), torch.tensor([16, 32], dtype=torch.int32)
    with pytest.raises(ckplan.CkplanError, match="a matrix for each of their groups"):
        ckplan.export(Weights(), args, tmp_path / "net.onnx")
