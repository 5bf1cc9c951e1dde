"""``ckplan.export``: a torch module becomes a file whose parameters bear torch's names."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import ckplan
from ckplan.errors import EnvironmentUnavailableError, ModelError, UsageError
from ckplan.model.torch_files import export
from tests.model.torch_modules import assert_like_torch, gradients_by, quiet_torch

__all__ = ["quiet_torch"]

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
nn = torch.nn
functional = torch.nn.functional


class Awkward(nn.Module):
    """What torch's exporter does not leave alone: equal biases, tied, normed and split weights, tables."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.first, self.second = nn.LayerNorm(8), nn.LayerNorm(8)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.groups = nn.GroupNorm(2, 8)
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.frozen = nn.Parameter(torch.randn(8), requires_grad=False)
        self.head = nn.Linear(8, 11)
        self.head.weight = self.table.weight
        nn.init.zeros_(self.head.bias)
        positions = torch.arange(6.0)[:, None] * 10.0 ** (-torch.arange(8) / 8)
        self.register_buffer("angles", torch.cos(positions))

    def forward(self, ids):
        length = ids.shape[1]
        value = self.first(self.table(ids)) * self.angles[:length] + self.frozen
        mask = torch.triu(torch.full((length, length), -3.4e38, dtype=value.dtype), 1)
        value = value + self.attention(value, value, value, attn_mask=mask)[0]
        value = self.second(self.normed(value)) @ torch.eye(8, dtype=value.dtype)
        return self.head(self.groups(value.transpose(1, 2)).transpose(1, 2) * self.scale)


IDS = torch.tensor([[1, 5, 2, 9, 0, 3], [4, 4, 10, 7, 8, 6]])


def gradients_of(module, *args) -> dict[str, np.ndarray]:
    """By torch, of the mean of squares of the output, in float64."""
    module = module.double()
    loss = (module(*args) ** 2).sum()
    loss.backward()
    found = {name: p.grad.numpy() for name, p in module.named_parameters() if p.grad is not None}
    module.float().zero_grad()
    return found


def test_gradients_have_torchs_names_and_values(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Awkward().eval()
    path = ckplan.export(module, (IDS,), tmp_path / "net.onnx", input_names=["ids"])
    assert path == tmp_path / "net.onnx"
    training = ckplan.build_training_graph(ckplan.load(path).model, loss="sum-of-squares")
    assert_like_torch(gradients_by(training, {"ids": IDS.numpy()}), gradients_of(module, IDS))
    (note,) = [note for note in training.notes if "are not trained" in note]
    assert "'frozen': requires_grad is False in torch" in note
    assert "'angles': a buffer of the module" in note
    assert not [note for note in training.notes if "may be constants" in note]


class Side(nn.Module):
    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.tokens, self.layer = table, nn.Linear(8, 8)

    def forward(self, ids):
        return torch.tanh(self.layer(self.tokens(ids)))


class Sides(nn.Module):
    """One table under three names, as that of a BART is, read in the modules of two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Embedding(11, 8)
        self.encoder, self.decoder = Side(self.shared), Side(self.shared)

    def forward(self, ids):
        return self.encoder(ids) * self.decoder(ids.flip(1))


def test_a_table_that_modules_share_stays_one(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Sides()
    path = ckplan.export(module, (IDS,), tmp_path / "net.onnx", input_names=["ids"])
    training = ckplan.build_training_graph(ckplan.load(path).model, loss="sum-of-squares")
    assert_like_torch(gradients_by(training, {"ids": IDS.numpy()}), gradients_of(module, IDS))


@pytest.mark.parametrize("old", [False, True])
def test_files_of_torch_itself_train_what_they_hold(tmp_path: Path, old: bool) -> None:
    """Merged biases and tied tables are those of the module; what the file lacks is named."""
    torch.manual_seed(0)
    module = Awkward().eval()
    for bias in (module.first.bias, module.second.bias, module.attention.in_proj_bias):
        assert not bias.any()  # equal, so that the exporter merges them
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of itself
        torch.onnx.export(
            module,
            (IDS,),
            tmp_path / "net.onnx",
            dynamo=not old,
            external_data=False,
            input_names=["ids"],
            verbose=False,
        )
    forward = ckplan.load(tmp_path / "net.onnx")
    training = ckplan.build_training_graph(forward.model, loss="sum-of-squares")
    found, expected = gradients_by(training, {"ids": IDS.numpy()}), gradients_of(module, IDS)
    assert "angles" not in found or old
    norms = [f"{norm}.{leaf}" for norm in ("first", "second") for leaf in ("weight", "bias")]
    for name in norms:
        np.testing.assert_allclose(found[name], expected[name], atol=1e-4, err_msg=name)
    tables = [gradient for gradient in found.values() if gradient.shape in ((11, 8), (8, 11))]
    assert len(tables) == 1
    np.testing.assert_allclose(tables[0], expected["table.weight"], atol=1e-4)
    if not old:
        assert "parameter(s) of the torch module are not in the file as such" in " ".join(forward.notes)


class Trained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.drop = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.norm(self.layer(x)))


def test_the_mode_of_the_module_is_kept(tmp_path: Path) -> None:
    module = Trained()
    batch = torch.export.Dim("batch")
    path = ckplan.export(module, (torch.randn(3, 4),), tmp_path / "net.onnx", dynamic_shapes=({0: batch},))
    assert module.training
    step = ckplan.open_model(path, dims={"batch": 5}, training=True)
    assert step.training is not None
    assert sorted(step.training.gradients) == ["layer.bias", "layer.weight", "norm.bias", "norm.weight"]
    assert sorted(step.training.updates) == ["norm.running_mean", "norm.running_var"]
    notes = " ".join(step.notes)
    assert "1 Dropout node(s) drop" in notes
    assert "1 BatchNormalization node(s) were in training mode in torch" in notes


@pytest.mark.filterwarnings("ignore")  # torch's own
@pytest.mark.parametrize("folded", [False, True])
def test_a_normalisation_that_torch_folded_takes_no_statistics_of_the_batch(tmp_path: Path, folded: bool) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).train()
    torch.onnx.export(module, (torch.randn(2, 3, 8, 8),), tmp_path / "net.onnx", verbose=False, optimize=folded)
    notes = " ".join(ckplan.open_model(tmp_path / "net.onnx", loss="mse").notes)
    assert ("--training takes the statistics of the batch" in notes) is not folded
    assert ("were in training mode in torch, whose exporter folded their inference form" in notes) is folded


def test_one_line_from_a_module_to_a_training_file(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    ckplan.rewrite(
        ckplan.export(network, (torch.zeros(32, 8),), tmp_path / "net.onnx"),
        loss="cross-entropy",
        output=tmp_path / "step.onnx",
    )
    assert (tmp_path / "step.onnx").exists()


class Refused(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Stopped(nn.Module):
    """A straight-through estimate, and a target that is computed without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        hidden = self.first(x)
        hidden = hidden + (torch.round(hidden) - hidden).detach()
        with torch.no_grad():
            target = self.second(hidden)
            other = torch.sigmoid(hidden)
        return (self.second(hidden * other) - target) ** 2


@pytest.mark.parametrize("free", [False, True])
def test_gradients_stop_where_the_module_stops_them(tmp_path: Path, free: bool) -> None:
    torch.manual_seed(0)
    module, x = Stopped(), torch.randn(3, 4)
    shapes = ({0: torch.export.Dim("rows", max=64)},) if free else None
    path = ckplan.export(module, (x,), tmp_path / "net.onnx", dynamic_shapes=shapes)
    step = ckplan.open_model(path, loss="sum", dims={"rows": 3} if free else {})
    module(x).sum().backward()
    session = onnxruntime.InferenceSession(ir.to_proto(step.model).SerializeToString())
    gradients = step.training.gradients
    assert set(gradients) == {"first.weight", "first.bias", "second.weight", "second.bias"}
    found = session.run(list(gradients.values()), {session.get_inputs()[0].name: x.numpy()})
    for name, value in zip(gradients, found, strict=True):
        np.testing.assert_allclose(value, module.get_parameter(name).grad.numpy(), rtol=1e-5, atol=1e-6)


class Blocks(nn.Module):
    """Two layers, of which one is read without gradients, or under autocast; the other way as well, if asked for."""

    def __init__(self, block: str) -> None:
        super().__init__()
        self.first, self.second, self.block = nn.Linear(4, 4), nn.Linear(4, 4), block

    def forward(self, x):
        hidden = self.first(x) if self.block == "inner" else None
        with torch.autocast("cpu", enabled=False) if self.block == "autocast" else torch.no_grad():
            read = torch.tanh(x if self.block == "data" else self.first(x) if hidden is None else hidden)
        return self.second(read + x) + (self.first(x) if self.block == "both" else 0)


@pytest.mark.parametrize(("block", "count"), [("outer", 1), ("inner", 1), ("both", 1), ("autocast", 0), ("data", 0)])
def test_a_note_names_what_torch_may_compute_without_gradients(tmp_path: Path, block: str, count: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(Blocks(block), (torch.randn(3, 4),), tmp_path / "net.onnx", dynamo=True, verbose=False)
    forward = ckplan.load(tmp_path / "net.onnx")
    assert sum("may compute 'tanh' without gradients" in note for note in forward.notes) == count
    assert not any("another gradient" in note for note in forward.notes)
    assert sum("without gradients" in note for note in forward.notes) == count
    if block == "outer":
        training = ckplan.build_training_graph(forward.model, loss="sum", no_grad=["tanh"])
        assert set(training.gradients) == {"second.weight", "second.bias"}


def test_the_note_stands_where_torch_cannot_trace_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its exporter knows other ways, which leave nothing of a block without gradients; nor are paths left."""
    monkeypatch.setattr(export, "program_of", lambda *_: None)
    path = ckplan.export(Blocks("outer"), (torch.randn(3, 4),), tmp_path / "net.onnx")
    assert any("may compute 'tanh' without gradients" in note for note in ckplan.load(path).notes)
    assert str(Path(__file__).parent) not in str(onnx.load(path))


class Reversed(torch.autograd.Function):
    """Values as they are, and their gradient backwards."""

    @staticmethod
    def forward(_, x):
        return x.view_as(x)

    @staticmethod
    def backward(_, gradient):
        return -gradient


class Bounded(Reversed):
    @staticmethod
    def forward(_, x):
        return torch.sqrt(x)


class Apart(nn.Module):
    """A layer, and behind it a function with a gradient of its own."""

    def __init__(self, is_bounded: bool) -> None:
        super().__init__()
        self.layer, self.is_bounded = nn.Linear(4, 4), is_bounded

    def forward(self, x):
        hidden = self.layer(x) ** 2 + 1
        if self.is_bounded:
            return Bounded.apply(hidden)
        return Reversed.apply(hidden)


@pytest.mark.parametrize(("is_bounded", "own"), [(False, True), (True, True), (True, False)])
def test_a_note_names_functions_with_a_gradient_of_their_own(tmp_path: Path, is_bounded: bool, own: bool) -> None:
    path, module, given = tmp_path / "net.onnx", Apart(is_bounded), (torch.randn(3, 4),)
    if own:
        ckplan.export(module, given, path)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(module, given, path, dynamo=True, verbose=False)
    (note,) = [note for note in ckplan.load(path).notes if "another gradient" in note]
    assert f" for {'Bounded' if is_bounded else 'Reversed'} (torch" in note


def test_what_torch_cannot_export_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"^torch cannot export Refused: .*") as caught:
        ckplan.export(Refused(), (torch.zeros(3),), tmp_path / "net.onnx")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_text("mine")
    with pytest.raises(UsageError, match="exists"):
        ckplan.export(nn.Linear(2, 2), (torch.zeros(1, 2),), tmp_path / "net.onnx")
    ckplan.export(nn.Linear(2, 2), (torch.zeros(1, 2),), tmp_path / "net.onnx", force=True)


@pytest.mark.parametrize(
    ("args", "options", "said"),
    [
        (torch.zeros(1, 2), {}, "the tuple of example arguments is tensor([[0., 0.]]); give a tuple, such as (x,)"),
        ((torch.zeros(1, 2),), {"input_names": "x"}, "`input_names` is 'x'; give a list of names"),
        ((torch.zeros(1, 2),), {"kwargs": [1]}, "keyword arguments is [1]; give a table: values by name"),
    ],
)
def test_example_arguments_of_another_kind_are_named(
    args: Any, options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """Of a batch of one, torch would take its only sample for the argument."""
    with pytest.raises(UsageError) as caught:
        ckplan.export(nn.Linear(2, 2), args, tmp_path / "net.onnx", **options)
    assert said in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_what_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(EnvironmentUnavailableError, match="onnxscript"):
        ckplan.export(nn.Linear(2, 2), (torch.zeros(1, 2),), tmp_path / "net.onnx")
