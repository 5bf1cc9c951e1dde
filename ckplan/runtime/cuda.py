"""onnxruntime's CUDA execution provider under default session options.

Planned for without one: what onnxruntime makes of the graph is asked of the CPU's session, and kernels differ from the
CPU's in what they overwrite, as the provider's sources register them (``MayInplace``). By that the promises for a GPT-2
of 124e6 parameters on an H100 are what its counters told, 3,621 MB, where those for the CPU are 1,570 MB lower: its
logits once more, for the Softmax.
"""

from __future__ import annotations

from dataclasses import replace

from ckplan.runtime.cpu import CPU
from ckplan.runtime.kernels import overwritable_on_cuda
from ckplan.runtime.runtime import Runtime

CUDA: Runtime = replace(CPU, name="cuda", overwritten=overwritable_on_cuda)
"""The runtime of plans that are asked for with ``--device cuda``."""
