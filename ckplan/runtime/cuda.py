"""onnxruntime's CUDA execution provider under default session options.

Plans for it are made without a GPU: what onnxruntime makes of the graph is asked of the CPU's session. Kernels differ
from the CPU's in what they overwrite, as the provider's sources register them (``MayInplace``). With that, the promise
for a GPT-2 of 124e6 parameters is what the counters of an H100 told, 3,621 MB. The promise for the CPU is 1,570 MB
less: on CUDA a Softmax takes a buffer of its own for the logits.
"""

from __future__ import annotations

from dataclasses import replace

from ckplan.runtime.cpu import CPU
from ckplan.runtime.kernels import overwritable_on_cuda
from ckplan.runtime.runtime import Runtime

CUDA: Runtime = replace(CPU, name="cuda", overwritten=overwritable_on_cuda)
"""The runtime of plans that are asked for with ``--device cuda``."""
