"""``ckplan.export`` inserts, picks and expands axes of complex tensors, as rotations of positions do."""

from __future__ import annotations

from pathlib import Path

import pytest

import ckplan
from tests.model.torch_modules import assert_like_torch, gradients_by, quiet_torch

__all__ = ["quiet_torch"]
torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
nn = torch.nn

VIEWS = {
    "an axis more": lambda turns: turns.unsqueeze(1),
    "an axis more, from the end": lambda turns: turns.unsqueeze(-2),
    "an index": lambda turns: turns[:, None, :].expand(-1, 3, -1)[:, 1].unsqueeze(1),
    "an index from the end": lambda turns: turns[..., None].expand(4, 3, 2).select(-1, 1).unsqueeze(1),
    "heads": lambda turns: turns[:, None, :].expand(4, 5, 3),
}


class Rotated(nn.Module):
    """Heads [4 places, 5, 6] whose pairs of numbers are turned by learnt angles, and weighed, so that squares tell."""

    def __init__(self, view: str) -> None:
        super().__init__()
        self.head, self.angles, self.view = nn.Linear(3, 30), nn.Parameter(torch.randn(4, 3)), VIEWS[view]

    def forward(self, x):
        pairs = torch.view_as_complex(self.head(x).reshape(4, 5, 3, 2))
        turns = torch.polar(torch.ones_like(self.angles), self.angles)
        return torch.view_as_real(pairs * self.view(turns)).flatten(1) * torch.arange(30)


@pytest.mark.parametrize("view", VIEWS)
def test_views_of_complex_tensors_have_torchs_gradients(tmp_path: Path, view: str) -> None:
    torch.manual_seed(0)
    module, x = Rotated(view), torch.randn(4, 3)
    path = ckplan.export(module, (x,), tmp_path / "net.onnx", input_names=["x"])
    training = ckplan.build_training_graph(ckplan.load(path).model, loss="sum-of-squares")
    module(x).square().sum().backward()
    expected = {name: parameter.grad.numpy() for name, parameter in module.named_parameters()}
    assert_like_torch(gradients_by(training, {"x": x.numpy()}), expected)
