"""The forward model: a small convolutional network in torch, exported to digits.onnx with its initial weights.

To write the file that lies beside this one (needs onnxscript)::

    python -m examples.digits.network

It is exported in inference form, as models mostly are; ``optimize=False`` only keeps the exporter from folding
BatchNormalization into the convolutions.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import nn

FORWARD = Path(__file__).with_name("digits.onnx")


def network() -> nn.Module:
    """Two blocks of convolution, normalisation, relu and pooling, and a linear layer: 6,186 parameters."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 16, 3, padding=1),
            norm1=nn.BatchNorm2d(16),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(16, 32, 3, padding=1),
            norm2=nn.BatchNorm2d(32),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flat=nn.Flatten(),
            scores=nn.Linear(128, 10),
        )
    )


def twin() -> nn.Module:
    """The network in torch with the weights that the file begins with."""
    made = network()
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(FORWARD).graph.initializer}
    state = {name: torch.from_numpy(np.array(weights[name])) for name in made.state_dict() if name in weights}
    made.load_state_dict(state | {name: v for name, v in made.state_dict().items() if name not in weights})
    return made


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.onnx.export(
        network().eval(),
        (torch.zeros(2, 1, 8, 8),),
        FORWARD,
        input_names=["image"],
        output_names=["scores"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        dynamo=True,
        optimize=False,
        external_data=False,
        verbose=False,
    )
