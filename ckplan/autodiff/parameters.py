"""Which initializers are trained."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import onnx_ir as ir

from ckplan.autodiff.builder import Builder, is_floating, shape_of
from ckplan.autodiff.paths import Composites, differentiable_inputs, entry_of
from ckplan.errors import ModelError, UsageError
from ckplan.model import is_constant


@dataclass(frozen=True)
class Selection:
    """The parameters to differentiate by, in the order of the file, and what was decided about others."""

    parameters: tuple[ir.Value, ...]
    notes: tuple[str, ...]


def floating_initializers(graph: ir.Graph) -> list[ir.Value]:
    """Return the initializers that could be parameters, in the order of the file."""
    return [value for value in graph.initializers.values() if is_floating(value)]


def select_parameters(
    op: Builder, floating: Sequence[ir.Value], wrt: Sequence[str], no_grad: Sequence[str], composites: Composites
) -> Selection:
    """Choose the floating-point initializers that a node can pass a gradient to.

    What the loader marked as a constant and initializers of rank 0 are taken for literals of the formula (an epsilon, a
    scale, a mask), unless ``wrt`` asks for them.

    Args:
        op: builder of the forward graph.
        floating: the model's own floating-point initializers.
        wrt: patterns (as in a shell) of the names to differentiate by; none means all.
        no_grad: patterns of names to leave out.
        composites: groups of nodes that are differentiated as one.

    Raises:
        ModelError: the model has no floating-point initializer that a gradient could reach.
        UsageError: a pattern matches nothing, or nothing is left.
    """
    if not floating:
        raise ModelError(
            "the model has no floating-point parameters, so there is nothing to train",
            "take the model as it was before quantisation, or export it with its weights",
        )
    for option, patterns in (("--wrt", wrt), ("--no-grad", no_grad)):
        for pattern in patterns:
            _check_pattern(option, pattern, [str(value.name) for value in floating])
    readers: set[ir.Value] = set()
    for node in op.graph:
        readers |= differentiable_inputs(node, entry_of(node, op.opset_imports), composites)
    chosen: list[ir.Value] = []
    notes: list[str] = []
    literals: list[str] = []
    for value in floating:
        name = str(value.name)
        if any(fnmatchcase(name, pattern) for pattern in no_grad):
            continue
        if wrt and not any(fnmatchcase(name, pattern) for pattern in wrt):
            continue
        if value not in readers:
            if wrt and value.uses():
                notes.append(f"'{name}' gets no gradient: what reads it does not pass one on")
            continue
        if not wrt and (is_constant(value) or not shape_of(value)):
            literals.append(name)
            continue
        chosen.append(value)
    if literals:
        notes.append(
            f"{len(literals)} constant(s) are not trained ({shortened(literals)}); "
            "name them with --wrt if they should be"
        )
    if not chosen:
        if wrt or no_grad:
            raise UsageError("no parameter is left to train", "loosen --wrt or --no-grad")
        raise ModelError(
            "no node of the model reads a floating-point parameter in a way that can be differentiated",
            "see `ckplan ops` for the operators that have gradients",
        )
    return Selection(tuple(chosen), tuple(notes))


def shortened(names: Sequence[str], most: int = 5) -> str:
    """List names for people, the first few of them."""
    return ", ".join(f"'{name}'" for name in names[:most]) + (", ..." if len(names) > most else "")


def _check_pattern(option: str, pattern: str, names: Sequence[str]) -> None:
    if any(fnmatchcase(name, pattern) for name in names):
        return
    near = difflib.get_close_matches(pattern.strip("*"), names, n=3, cutoff=0.4)
    listed = near or list(names[:3])
    raise UsageError(
        f"`{option} {pattern}` matches no floating-point initializer",
        f"{'near it are' if near else 'there are, for example,'} {', '.join(f'`{name}`' for name in listed)}",
    )
