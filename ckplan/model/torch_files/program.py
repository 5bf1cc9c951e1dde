"""A module of torch as a program in which it can be seen where gradients stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ckplan.model.torch_files.complex_views import look_as_real

if TYPE_CHECKING:
    import torch


def program_of(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any
) -> torch.export.ExportedProgram | None:
    """Trace a module; what it computes under ``torch.no_grad`` is detached in the program.

    torch's exporter puts what a block without gradients computes among everything else, and of the block nothing is
    left. A `detach` it writes down; see `ckplan.model.torch_files.detached`.

    Args:
        module: what to trace. It is left as it is.
        args: example arguments of its forward.
        kwargs: example keyword arguments.
        dynamic_shapes: which sizes stay free, as ``torch.export.export`` has it.

    Returns:
        None where the module cannot be traced this way; torch's exporter knows others.
    """
    import torch

    try:
        program = torch.export.export(
            module, tuple(args), dict(kwargs or {}), dynamic_shapes=dynamic_shapes, strict=False
        )
    except Exception:  # torch raises its own kinds for each stage
        return None
    graph = program.graph
    for block in [node for node in graph.nodes if _is_without_gradients(node)]:
        for result in list(block.users):
            with graph.inserting_after(result):
                detached = graph.call_function(torch.ops.aten.detach.default, (result,))
            detached.meta.update(result.meta)
            for user in [user for user in result.users if user is not detached]:
                user.replace_input_with(result, detached)
    look_as_real(graph)
    program.graph_module.recompile()
    return program


def _is_without_gradients(node: torch.fx.Node) -> bool:
    """Whether a node runs a block with gradients switched off."""
    return getattr(node.target, "__name__", "") == "wrap_with_set_grad_enabled" and node.args[0] is False
