"""Which models there are, and which small ones stand in the repository."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import onnx

from sample_models.bert import bert
from sample_models.chains import mlp, tanh_chain
from sample_models.densenet import densenet, densenet121
from sample_models.gpt import gpt
from sample_models.lstm import lstm
from sample_models.mobilenet_v2 import mobilenet_v2
from sample_models.mobilenet_v3 import mobilenet_v3
from sample_models.resnet import resnet18, resnet50
from sample_models.unet import unet
from sample_models.vgg import vgg16
from sample_models.vit import vit

Builder = Callable[..., onnx.ModelProto]

BUILDERS: Mapping[str, Builder] = MappingProxyType(
    {
        builder.__name__: builder
        for builder in (
            tanh_chain,
            mlp,
            resnet18,
            resnet50,
            vgg16,
            mobilenet_v2,
            mobilenet_v3,
            densenet121,
            densenet,
            unet,
            gpt,
            bert,
            vit,
            lstm,
        )
    }
)
"""Every builder by the name that the command line takes; all arguments are keywords with defaults."""

SMALL: Mapping[str, Callable[[], onnx.ModelProto]] = MappingProxyType(
    {
        "mlp": lambda: mlp(width=128, features=64),
        "tanh_chain": lambda: tanh_chain(width=64),
        "resnet_tiny": lambda: resnet18(image=64, width=8, classes=10),
        "mobilenet_tiny": lambda: mobilenet_v2(image=64, percent=25, head=128, classes=10),
        "densenet_tiny": lambda: densenet(image=64, growth=8, blocks=(3, 4, 4, 3), classes=10),
        "unet_tiny": lambda: unet(image=64, width=4, channels=1),
        "gpt_tiny": lambda: gpt(layers=6, width=64, heads=4, vocabulary=256, sequence=64),
        "bert_tiny": lambda: bert(layers=4, width=64, heads=4, vocabulary=512, sequence=32),
    }
)
"""How each committed ``<name>.onnx`` is made; under two megabytes each."""
