"""Which tensors of a model a pattern names: parameters, else inputs, else activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import onnx_ir as ir

from ckplan.autodiff.composites import known_outputs
from ckplan.autodiff.reading import is_floating
from ckplan.display import did_you_mean
from ckplan.errors import UsageError
from ckplan.keys import STANDS_FOR


@dataclass(frozen=True)
class Tensors:
    """The floating-point tensors of a forward graph that a user can name.

    Attributes:
        parameters: initializers, in the order of the file.
        inputs: graph inputs.
        activations: what the nodes of the main graph make.
        unread: names of parameters of the file that no output depends on.
        ruled_out: those among them that outputs depend on where inputs are not set.
    """

    parameters: tuple[ir.Value, ...]
    inputs: tuple[ir.Value, ...]
    activations: tuple[ir.Value, ...]
    unread: tuple[str, ...] = ()
    ruled_out: tuple[str, ...] = ()


def floating_tensors(graph: ir.Graph, unread: Sequence[str] = (), ruled_out: Sequence[str] = ()) -> Tensors:
    """Collect the floating-point tensors of a graph.

    Args:
        graph: the forward graph.
        unread: names of parameters of the file that no output depends on.
        ruled_out: see `Tensors`.
    """
    parameters = tuple(value for value in graph.initializers.values() if is_floating(value))
    inputs = tuple(value for value in graph.inputs if is_floating(value) and not value.is_initializer())
    made = (value for node in graph for value in known_outputs(node))
    activations = tuple(value for value in made if value.name and is_floating(value))
    return Tensors(parameters, inputs, activations, tuple(unread), tuple(ruled_out))


def names_of(value: ir.Value) -> tuple[str, ...]:
    """Return the name of a tensor, and that of the parameter of the module that it stands for, if any."""
    stands_for = value.metadata_props.get(STANDS_FOR)
    return (str(value.name), stands_for) if stands_for else (str(value.name),)


def matching(option: str, pattern: str, tensors: Tensors) -> list[ir.Value]:
    """Return the tensors that a pattern names.

    A pattern that matches parameters means those only: activations often bear the name of the layer as well, and to
    freeze a layer is not to cut off everything before it. The same holds between inputs and activations. An initializer
    that an exporter computed of a parameter, such as its transpose, has that one's name as well.

    Args:
        option: the option that the pattern was given with, for the error.
        pattern: a name, or a pattern as in a shell.
        tensors: what can be named.

    Raises:
        UsageError: it matches nothing.
    """
    for group in (tensors.parameters, tensors.inputs, tensors.activations):
        found = [value for value in group if pattern in names_of(value)]
        found = found or [value for value in group if any(fnmatchcase(name, pattern) for name in names_of(value))]
        if found:
            return found
    if unread := next((name for name in tensors.unread if name == pattern or fnmatchcase(name, pattern)), None):
        problem = f"`{option} {pattern}` names '{unread}', which no output of the model depends on"
        if unread in tensors.ruled_out:
            raise UsageError(f"{problem} as `--set` sets its inputs", "leave one of the two out, or set another number")
        raise UsageError(problem, "leave it out: such a parameter gets no gradient")
    groups = (tensors.parameters, tensors.inputs, tensors.activations)
    names = [name for group in groups for value in group for name in names_of(value)]
    listed = ", ".join(f"`{name}`" for name in names[:3])
    kinds = "parameter, input or activation" if tensors.parameters else "input or activation"
    raise UsageError(
        f"`{option} {pattern}` matches no floating-point {kinds}",
        did_you_mean(pattern.strip("*"), names, most=3) or f"there are, for example, {listed}",
    )


def matching_any(option: str, patterns: Sequence[str], tensors: Tensors) -> list[ir.Value]:
    """Return the tensors that any of several patterns names, each once; see :func:`matching`.

    Raises:
        UsageError: a pattern matches nothing.
    """
    return list(dict.fromkeys(value for pattern in patterns for value in matching(option, pattern, tensors)))
