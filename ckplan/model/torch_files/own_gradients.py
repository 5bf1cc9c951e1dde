"""Functions of a torch module with a gradient of their own: ``torch.autograd.Function``, of which a file has nothing.

A gradient that is reversed, bounded or made up for a step is none of the operators that the function computes with.
`ckplan.export` sees which functions are called. In files of torch's default exporter the traces of nodes tell, where a
``forward`` calls the function and something is left of what it computes.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any
from unittest import mock

import onnx_ir as ir

from ckplan.display import shortened
from ckplan.keys import OWN_GRADIENTS
from ckplan.model.torch_files.exporter_metadata import TRACE

_APPLIED = re.compile(r'\b(\w+)\.apply\([^\n]*\n\s*File "[^"\n]*", line \d+, in forward\n')
"""A line that calls a function, and the frame of its forward behind it."""


@contextlib.contextmanager
def functions_called() -> Iterator[dict[str, None]]:
    """Record, while a module is traced, the names of functions with a gradient of their own; torch's own are right."""
    import torch

    found: dict[str, None] = {}
    apply = torch.autograd.Function.__dict__["apply"].__func__

    def record(function: Any, *args: Any, **kwargs: Any) -> Any:
        if function.__module__.partition(".")[0] != "torch":
            found[function.__name__] = None
        return apply(function, *args, **kwargs)

    with mock.patch.object(torch.autograd.Function, "apply", classmethod(record)):
        yield found


def own_gradient_notes(model: ir.Model) -> tuple[str, ...]:
    """Note the functions that may have another gradient in torch than here.

    Args:
        model: of any exporter.
    """
    found = dict.fromkeys(json.loads(model.metadata_props.get(OWN_GRADIENTS, "[]")))
    for node in model.graph.all_nodes():
        found |= dict.fromkeys(_APPLIED.findall(node.metadata_props.get(TRACE, "")))
    if not found:
        return ()
    return (
        f"torch may have another gradient for {shortened(list(found), 3)} (torch.autograd.Function), which is in no "
        "file: here it is that of what is computed; a module that has s + (f - s).detach() in its place has the values "
        "of f and the gradient of s",
    )
