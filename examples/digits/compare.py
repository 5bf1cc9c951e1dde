"""The same training in torch, beside: same weights to begin with, same batches, same optimizer.

With the file that :mod:`examples.digits.train` tells how to make::

    python -m examples.digits.compare step.onnx
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from examples.digits.data import Batch, batches, digits
from examples.digits.network import twin
from examples.digits.train import accuracy, train


def train_in_torch(data: Iterable[Batch], learning_rate: float) -> tuple[list[float], torch.nn.Module]:
    """Train for one step per batch with Adam; returns the losses and the network."""
    network = twin().train()
    optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)
    losses = []
    for images, labels in data:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(torch.from_numpy(images)), torch.from_numpy(labels))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, network


def accuracy_in_torch(network: torch.nn.Module) -> float:
    """Share of the test images that the network gets right."""
    images, labels = digits()[1]
    with torch.no_grad():
        return float((network.eval()(torch.from_numpy(images)).argmax(dim=1).numpy() == labels).mean())


if __name__ == "__main__":
    epochs, rate = 20, 0.002
    ours, values = train(Path(sys.argv[1]), batches(epochs), rate)
    theirs, network = train_in_torch(batches(epochs), rate)
    print("epoch  onnxruntime   torch")
    for epoch, (mine, other) in enumerate(np.stack([ours, theirs], 1).reshape(epochs, -1, 2).mean(1), start=1):
        print(f"{epoch:5}  {mine:11.5f}  {other:7.5f}")
    gap = np.abs(np.array(ours) - theirs)
    print(f"largest difference between the losses of a step: {gap.max():.2e}, in the first epoch {gap[:25].max():.2e}")
    print(f"accuracy: onnxruntime {accuracy(values):.4f}, torch {accuracy_in_torch(network):.4f}")
