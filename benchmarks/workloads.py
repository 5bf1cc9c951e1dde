"""The networks and sizes of the benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import onnx

import ckplan.model
from ckplan.autodiff import TrainingGraph, build_training_graph
from sample_models.catalogue import BUILDERS
from sample_models.light_models import light_model


@dataclass(frozen=True)
class Workload:
    """A forward model at a size.

    Attributes:
        build: makes the forward model.
        strategy: the strategy that the benchmark compares with `none`.
        dims: bindings by dimension name.
        shapes: bindings by input name.
        loss: as on the command line.
        images: the batch of 224x224 images for a model whose image input has a name of its own; 0 if none.
    """

    build: Callable[[], onnx.ModelProto]
    strategy: str = "memory"
    dims: Mapping[str, int] = field(default_factory=dict)
    loss: str | None = None
    images: int = 0

    def training_graph(self, folder: Path) -> TrainingGraph:
        """Write the forward model to a folder, load it as a user would, and differentiate it."""
        path = folder / "forward.onnx"
        model = self.build()
        onnx.save(model, path)
        shapes = {}
        if self.images:
            initializers = {tensor.name for tensor in model.graph.initializer}
            name = next(value.name for value in model.graph.input if value.name not in initializers)
            shapes[name] = (self.images, 3, 224, 224)
        return build_training_graph(ckplan.model.load(path, dims=self.dims, shapes=shapes).model, loss=self.loss)


def _light(name: str, batch: int) -> Workload:
    return Workload(partial(light_model, f"light_{name}"), images=batch)


_GPT = partial(BUILDERS["gpt"], layers=12, width=256, heads=4, vocabulary=4096, sequence=256)
_LSTM = partial(BUILDERS["lstm"], layers=2, width=256, vocabulary=1024, sequence=128)

WORKLOADS: Mapping[str, Workload] = {
    "tanh_chain": Workload(BUILDERS["tanh_chain"], "sqrt", dims={"batch": 4096}),
    "light_resnet50": _light("resnet50", 16),
    "light_densenet121": _light("densenet121", 8),
    "light_vgg19": _light("vgg19", 8),
    "light_inception_v2": _light("inception_v2", 16),
    "gpt": Workload(_GPT, dims={"batch": 8}),
    "unet": Workload(BUILDERS["unet"], dims={"batch": 4}),
    "lstm": Workload(_LSTM, dims={"batch": 32}),
}
"""What `benchmarks.memory` compares by default."""
