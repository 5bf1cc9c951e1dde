"""Operators that ``ckplan.export`` writes in place of torch's exporter compute what torch does, gradients included."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import ckplan
from tests.model.torch_modules import assert_like_torch, gradients_by, quiet_torch

__all__ = ["quiet_torch"]
torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
nn = torch.nn
functional = torch.nn.functional


class Smoothed(nn.Module):
    """A cross-entropy with label smoothing behind a linear layer, over places of a batch or over samples."""

    def __init__(self, places: bool, **options) -> None:
        super().__init__()
        self.head, self.places, self.options = nn.Linear(4, 9), places, options
        self.register_buffer("classes", torch.linspace(0.5, 1.5, 9))

    def forward(self, x, labels):
        scores = self.head(x)
        weight = self.classes if self.options.get("weighted") else None
        options = {name: value for name, value in self.options.items() if name != "weighted"}
        scores = scores.transpose(1, 2) if self.places else scores.flatten(0, 1)
        labels = labels if self.places else labels.flatten()
        return functional.cross_entropy(scores, labels, weight, **options).mean()


@pytest.mark.parametrize("chunks", ["off", "loss=3"])
@pytest.mark.parametrize(
    "options",
    [
        {"label_smoothing": 0.1},
        {"label_smoothing": 0.2, "ignore_index": 4, "weighted": True},
        {"label_smoothing": 0.1, "reduction": "sum", "weighted": True},
        {"label_smoothing": 0.1, "reduction": "none", "ignore_index": 4},
        {"ignore_index": 4},
    ],
)
@pytest.mark.parametrize("places", [False, True])
def test_label_smoothing_is_not_lost(tmp_path: Path, options: dict[str, object], places: bool, chunks: str) -> None:
    torch.manual_seed(0)
    module = Smoothed(places, **options)
    x, labels = torch.randn(2, 3, 4), torch.tensor([[1, 4, 2], [8, 0, 4]])
    path = ckplan.export(module, (x, labels), tmp_path / "net.onnx", input_names=["x", "labels"])
    if places and "label_smoothing" in options:
        chunks = "off"  # its softmax is over the axis in the middle
    training = ckplan.build_training_graph(ckplan.load(path).model, chunks=chunks)
    expected = module.double()(x.double(), labels)
    expected.backward()
    found = gradients_by(training, {"x": x.numpy(), "labels": labels.numpy()})
    assert_like_torch(found, {name: p.grad.numpy() for name, p in module.named_parameters()})


class Expected(nn.Module):
    """A cross-entropy with probabilities of classes, along the last axis or the one in the middle."""

    def __init__(self, **options) -> None:
        super().__init__()
        self.head, self.options = nn.Linear(4, 9), options

    def forward(self, x, target):
        weight = torch.linspace(0.5, 1.5, 9, dtype=x.dtype) if self.options.get("weighted") else None
        options = {name: value for name, value in self.options.items() if name != "weighted"}
        scores, target = self.head(x), target.softmax(-1)
        if options.get("reduction") == "none":
            scores, target = scores.transpose(1, 2), target.transpose(1, 2)
        else:
            scores, target = scores.flatten(0, 1), target.flatten(0, 1)
        return functional.cross_entropy(scores, target, weight, **options).sum()


@pytest.mark.parametrize(
    "options",
    [{}, {"label_smoothing": 0.2, "weighted": True}, {"reduction": "sum"}, {"reduction": "none", "weighted": True}],
)
def test_a_cross_entropy_of_probabilities_is_one(tmp_path: Path, options: dict[str, object]) -> None:
    torch.manual_seed(0)
    module, x, target = Expected(**options), torch.randn(2, 3, 4), torch.randn(2, 3, 9)
    path = ckplan.export(module, (x, target), tmp_path / "net.onnx", input_names=["x", "target"])
    training = ckplan.build_training_graph(ckplan.load(path).model)
    module.double()(x.double(), target.double()).backward()
    found = gradients_by(training, {"x": x.numpy(), "target": target.numpy()})
    assert_like_torch(found, {name: p.grad.numpy() for name, p in module.named_parameters()})


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("probabilities", [False, True])
def test_label_smoothing_is_in_the_type_of_the_scores(
    tmp_path: Path, probabilities: bool, weighted: bool, dtype: str
) -> None:
    torch.manual_seed(0)
    options = {"label_smoothing": 0.1, "weighted": weighted}
    module = Expected(**options) if probabilities else Smoothed(False, **options)
    module, kind = module.to(getattr(torch, dtype)), getattr(torch, dtype)
    x = torch.randn(2, 3, 4, dtype=kind)
    target = torch.randn(2, 3, 9, dtype=kind) if probabilities else torch.tensor([[1, 4, 2], [8, 0, 4]])
    path = ckplan.export(module, (x, target), tmp_path / "net.onnx", input_names=["x", "target"])
    training = ckplan.build_training_graph(ckplan.load(path).model)
    if dtype == "float64":
        module(x, target).backward()
        found = gradients_by(training, {"x": x.numpy(), "target": target.numpy()})
        for name, parameter in module.named_parameters():
            np.testing.assert_allclose(found[name], parameter.grad.numpy(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("options", [{}, {"padding_idx": 2}, {"include_last_offset": True}])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings_have_gradients(tmp_path: Path, mode: str, options: dict[str, object]) -> None:
    """One bag is empty, and one holds nothing but padding where there is some."""
    torch.manual_seed(0)
    bags = nn.EmbeddingBag(7, 4, mode=mode, **options)
    ids, offsets = torch.tensor([3, 1, 2, 2, 5, 3]), torch.tensor([0, 2, 2, 4, 6])
    path = ckplan.export(bags, (ids, offsets), tmp_path / "net.onnx", input_names=["ids", "offsets"])
    training = ckplan.build_training_graph(ckplan.load(path).model, loss="sum-of-squares")
    bags.double()(ids, offsets).square().sum().backward()
    found = gradients_by(training, {"ids": ids.numpy(), "offsets": offsets.numpy()})
    assert_like_torch(found, {"weight": bags.weight.grad.numpy()})


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings_run_as_they_were_exported(tmp_path: Path, mode: str) -> None:
    bags = nn.EmbeddingBag(7, 4, mode=mode, padding_idx=2)
    ids, offsets = torch.tensor([3, 1, 2, 2, 5, 3]), torch.tensor([0, 2, 2, 4, 6])
    path = ckplan.export(bags, (ids, offsets), tmp_path / "net.onnx", input_names=["ids", "offsets"])
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"ids": ids.numpy(), "offsets": offsets.numpy()})
    np.testing.assert_allclose(found, bags(ids, offsets).detach().numpy(), atol=1e-6)


class WithFixedBags(nn.Module):
    """Bags whose indices are buffers, with weights of samples or with a padding that is counted from the end."""

    def __init__(self, padding: int | None) -> None:
        super().__init__()
        self.table, self.padding = nn.Parameter(torch.randn(7, 4)), padding
        self.weights = nn.Parameter(torch.rand(5)) if padding is None else None
        self.register_buffer("ids", torch.tensor([5, 1, 6, 5, 6]))
        self.register_buffer("offsets", torch.tensor([0, 3]))

    def forward(self, x):
        options = {"mode": "sum", "per_sample_weights": self.weights, "padding_idx": self.padding}
        return x * functional.embedding_bag(self.ids, self.table, self.offsets, **options)


@pytest.mark.parametrize("padding", [None, -1, -2])
def test_bags_of_indices_that_are_buffers(tmp_path: Path, padding: int | None) -> None:
    torch.manual_seed(0)
    module, x = WithFixedBags(padding), torch.randn(2, 4)
    path = ckplan.export(module, (x,), tmp_path / "net.onnx", input_names=["x"])
    training = ckplan.build_training_graph(ckplan.load(path).model, loss="sum-of-squares")
    module(x).square().sum().backward()
    expected = {name: parameter.grad.numpy() for name, parameter in module.named_parameters()}
    assert_like_torch(gradients_by(training, {"x": x.numpy()}), expected)


def test_samples_weigh_in_a_bag_of_embeddings(tmp_path: Path) -> None:
    torch.manual_seed(0)
    bags, ids, weights = nn.EmbeddingBag(7, 4, mode="sum"), torch.tensor([[3, 1], [2, 3]]), torch.rand(2, 2)
    kwargs = {"per_sample_weights": weights}
    path = ckplan.export(bags, (ids,), tmp_path / "net.onnx", kwargs=kwargs, input_names=["ids", "weights"])
    training = ckplan.build_training_graph(ckplan.load(path).model, loss="sum-of-squares")
    bags.double()(ids, per_sample_weights=weights.double()).square().sum().backward()
    found = gradients_by(training, {"ids": ids.numpy(), "weights": weights.numpy()})
    assert_like_torch(found, {"weight": bags.weight.grad.numpy()})


class Averaged(nn.Module):
    """What the edges of a graph bring to its nodes, on average."""

    def __init__(self, with_own: bool) -> None:
        super().__init__()
        self.own, self.other, self.with_own = nn.Linear(4, 3), nn.Linear(4, 3), with_own

    def forward(self, x, edges):
        brought = self.other(x)[edges[0]]
        to = edges[1].unsqueeze(1).expand_as(brought)
        return self.own(x).scatter_reduce(0, to, brought, "mean", include_self=self.with_own).square().sum()


@pytest.mark.parametrize("with_own", [False, True])
def test_means_over_edges_are_not_lost(tmp_path: Path, with_own: bool) -> None:
    torch.manual_seed(0)
    module, x, edges = Averaged(with_own), torch.randn(5, 4), torch.tensor([[0, 1, 2, 3, 4, 1], [0, 0, 0, 2, 2, 3]])
    path = ckplan.export(module, (x, edges), tmp_path / "net.onnx", input_names=["x", "edges"])
    forward = ckplan.load(path)
    assert not any("mean" in note for note in forward.notes)
    module.double()(x.double(), edges).backward()
    found = gradients_by(ckplan.build_training_graph(forward.model), {"x": x.numpy(), "edges": edges.numpy()})
    assert_like_torch(found, {name: p.grad.numpy() for name, p in module.named_parameters()})


@pytest.mark.parametrize("rank", [2, 3])
def test_the_divisor_of_an_average_is_not_lost(tmp_path: Path, rank: int) -> None:
    torch.manual_seed(0)
    convolution, average = (nn.Conv2d, nn.AvgPool2d) if rank == 2 else (nn.Conv3d, nn.AvgPool3d)
    module = nn.Sequential(convolution(1, 2, 1), average(3, 2, 1, count_include_pad=False, divisor_override=5))
    x = torch.randn(2, 1, *[5] * rank)
    path = ckplan.export(module, (x,), tmp_path / "net.onnx", input_names=["x"])
    forward = ckplan.load(path)
    assert not any("divisor_override" in note for note in forward.notes)
    module.double()(x.double()).square().sum().backward()
    found = gradients_by(ckplan.build_training_graph(forward.model, loss="sum-of-squares"), {"x": x.numpy()})
    assert_like_torch(found, {name: p.grad.numpy() for name, p in module.named_parameters()})


class Squeezed(nn.Module):
    """Axes of size 1 go, and longer ones stay."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x):
        hidden = self.layer(x)
        return hidden.squeeze(1) + hidden.squeeze(0).squeeze((0, 1)) + hidden.sum().squeeze(0)


@pytest.mark.parametrize("free", [False, True])
def test_a_squeeze_leaves_axes_that_are_longer_than_one(tmp_path: Path, free: bool) -> None:
    x = torch.randn(3, 4)
    shapes = ({0: torch.export.Dim("rows", max=64)},) if free else None
    path = ckplan.export(module := Squeezed(), (x,), tmp_path / "net.onnx", dynamic_shapes=shapes)
    session = onnxruntime.InferenceSession(path)
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(found, module(x).detach().numpy(), rtol=1e-5)


class Distances(nn.Module):
    """Distances of points from a layer to others, one of them at none from its own."""

    def __init__(self, norm: float, mode: str) -> None:
        super().__init__()
        self.head, self.norm, self.mode = nn.Linear(4, 3), norm, mode

    def forward(self, x):
        points = self.head(x)
        others = torch.cat([points[:, :2], points.flip(1) + 1], 1)
        return torch.cdist(points, others, self.norm, self.mode).square().sum() + points.sum()


@pytest.mark.parametrize("points", [5, 30])
@pytest.mark.parametrize("mode", ["use_mm_for_euclid_dist_if_necessary", "donot_use_mm_for_euclid_dist"])
@pytest.mark.parametrize("norm", [1.0, 2.0, float("inf")])
def test_distances_are_written(tmp_path: Path, norm: float, mode: str, points: int) -> None:
    torch.manual_seed(0)
    module, x = Distances(norm, mode), torch.randn(2, points, 4)
    path = ckplan.export(module, (x,), tmp_path / "net.onnx", input_names=["x"])
    training = ckplan.build_training_graph(ckplan.load(path).model)
    module.double()(x.double()).backward()
    found = gradients_by(training, {"x": x.numpy()})
    assert_like_torch(found, {name: p.grad.numpy() for name, p in module.named_parameters()})


def test_distances_by_another_norm_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ckplan.CkplanError, match="distances by the norm of 3"):
        ckplan.export(Distances(3.0, "donot_use_mm_for_euclid_dist"), (torch.randn(2, 5, 4),), tmp_path / "net.onnx")


class RunningProducts(nn.Module):
    """How much light is left behind each sample of a ray, as radiance fields have it; some of it stops all."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.head, self.axis = nn.Linear(4, 3), axis

    def forward(self, x):
        left = self.head(x) * (x[..., :1] > -0.5)
        return (torch.cumprod(left, self.axis) * x[..., :3]).sum()


@pytest.mark.parametrize("samples", [1, 6, 8])
@pytest.mark.parametrize("axis", [1, -1, -2])
def test_running_products_are_written(tmp_path: Path, axis: int, samples: int) -> None:
    torch.manual_seed(0)
    module, x = RunningProducts(axis), torch.randn(2, samples, 4)
    path = ckplan.export(module, (x,), tmp_path / "net.onnx", input_names=["x"])
    training = ckplan.build_training_graph(ckplan.load(path).model)
    module.double()(x.double()).backward()
    found = gradients_by(training, {"x": x.numpy()})
    assert_like_torch(found, {name: p.grad.numpy() for name, p in module.named_parameters()})
