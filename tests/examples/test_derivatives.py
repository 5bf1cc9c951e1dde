"""The page on derivatives at inference, run, and held against torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from docs.examples import run_page

torch = pytest.importorskip("torch", reason="torch is not installed, and the page is held against it")

PAGE = Path(__file__).parents[2] / "docs" / "derivatives.md"
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page was run; what it computed lies there."""
    folder = tmp_path_factory.mktemp("page")
    for _, _, code, output in run_page(PAGE.read_text(encoding="utf-8"), folder):
        assert code == 0, output
    return folder


def network():
    from examples.digits.network import twin

    return twin().eval()


def test_forces(folder: Path) -> None:
    found = np.load(folder / "forces.npz")
    positions = torch.from_numpy(found["positions"]).requires_grad_()
    inverse = 1 / torch.nn.functional.pdist(positions).pow(2)
    energy = 4 * (inverse**6 - inverse**3).sum()
    energy.backward()
    np.testing.assert_allclose(found["energy"], energy.item(), **CLOSE)
    assert positions.grad is not None
    np.testing.assert_allclose(found["forces"], -positions.grad.numpy(), **CLOSE)
    assert np.abs(found["forces"]).max() > 0.1


def test_grad_cam(folder: Path) -> None:
    found = np.load(folder / "cam.npz")
    net = network()
    kept = []
    net.relu2.register_forward_hook(lambda module, inputs, output: kept.append(output))
    scores = net(torch.from_numpy(found["image"]))
    (slope,) = torch.autograd.grad(scores[0, 3], kept)
    cam = (slope.mean(dim=(2, 3), keepdim=True) * kept[0]).sum(dim=1).relu()
    np.testing.assert_allclose(found["cam"], cam.detach().numpy(), **CLOSE)
    assert found["cam"].max() > 1e-3


def test_guidance(folder: Path) -> None:
    found = np.load(folder / "guided.npz")
    net, images = network(), torch.from_numpy(found["begin"])
    labels = torch.from_numpy(found["labels"])
    for expected in found["losses"]:
        images.requires_grad_()
        loss = torch.nn.functional.cross_entropy(net(images), labels)
        np.testing.assert_allclose(expected, loss.item(), **CLOSE)
        (slope,) = torch.autograd.grad(loss, images)
        images = images.detach() - 0.5 * slope
    np.testing.assert_allclose(found["images"], images.numpy(), **CLOSE)
    assert np.abs(found["images"] - found["begin"]).max() > 1e-3
