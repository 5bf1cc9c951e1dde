"""What gradients are asked for: parameters, graph inputs and activations."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

import onnx_ir as ir

from ckplan.autodiff.breaks import listed
from ckplan.autodiff.builder import Builder
from ckplan.autodiff.paths import differentiable_inputs, entry_of
from ckplan.autodiff.quantisation import is_quantised
from ckplan.autodiff.reading import shape_of, size_of
from ckplan.autodiff.selection.evidence import (
    is_computed,
    is_folded_by_a_tool,
    is_folded_by_tensorflow,
    is_number_computed,
    judge,
    may_be_merged,
)
from ckplan.autodiff.selection.names import Tensors, matching_any, names_of
from ckplan.autodiff.selection.uses import Use
from ckplan.display import shortened
from ckplan.errors import ModelError, UsageError
from ckplan.keys import CONSTANT
from ckplan.model import is_literal
from ckplan.model.constants import is_constant
from ckplan.model.contrib import EXPANSION
from ckplan.model.files.own_files import ORIGIN
from ckplan.model.node_reads import needed_nodes, reads
from ckplan.model.normal_form.opset import CONVERTED
from ckplan.model.torch_files.ties import twin_notes
from ckplan.operators.matching import is_op

_CLASSICAL = "ai.onnx.ml"
"""The domain of decision trees, scalers and the like."""

_STEPS = ("Ceil", "Floor", "Round", "Sign")
"""What makes whole numbers, or signs, of weights."""

_ADAPTER = ".lora_"
"""What the names of PEFT's low-rank adapters hold."""

_WRAPPED = ".base_layer."
"""What the names of weights hold that PEFT put adapters beside."""


@dataclass(frozen=True)
class Request:
    """What the caller's patterns name; see :func:`ckplan.build_training_graph`.

    Attributes:
        all_parameters: no pattern narrows the choice of parameters.
        parameters: initializers to differentiate by, if not all of them.
        others: graph inputs and activations to differentiate by.
        frozen: initializers to leave out.
        detached: graph inputs and activations at which gradients stop.
        listed: parameters that a list names, which may name what has no gradient as well.
        notes: what was decided on the way and may surprise.
    """

    all_parameters: bool
    parameters: tuple[ir.Value, ...]
    others: tuple[ir.Value, ...]
    frozen: frozenset[ir.Value]
    detached: tuple[ir.Value, ...]
    listed: frozenset[ir.Value] = frozenset()
    notes: tuple[str, ...] = ()

    def sought(self, tensors: Tensors) -> list[ir.Value]:
        """Return the initializers that are asked for, whether or not they can be trained."""
        sought = tensors.parameters if self.all_parameters else self.parameters
        return [value for value in sought if value not in self.frozen]


@dataclass(frozen=True)
class Selection:
    """The parameters to differentiate by, in the order of the file, and what was decided about others.

    Attributes:
        parameters: initializers that a node can pass a gradient to.
        idle: initializers that were asked for and that no node passes a gradient to.
        notes: what was decided on the way and may surprise.
    """

    parameters: tuple[ir.Value, ...]
    idle: tuple[ir.Value, ...]
    notes: tuple[str, ...]


def request_of(
    tensors: Tensors,
    wrt: Sequence[str],
    no_grad: Sequence[str],
    retain_grad: Sequence[str],
    params: Sequence[str] = (),
) -> Request:
    """Find out what the patterns name.

    Args:
        tensors: what can be named.
        wrt: patterns of what to differentiate by; none means all parameters.
        no_grad: patterns of parameters to leave out, and of inputs and activations to stop at.
        retain_grad: patterns of inputs and activations to differentiate by besides.
        params: names of the parameters to differentiate by, if they are not found out.

    Raises:
        UsageError: a pattern matches nothing, no parameter is named, or both say what to differentiate by.
    """
    if params and wrt:
        raise UsageError("`--params` and `--wrt` both say what to differentiate by", "leave out one of them")
    initializers = set(tensors.parameters)
    stopped = matching_any("--no-grad", no_grad, tensors)
    detached = [value for value in stopped if value not in initializers]
    asked = matching_any("--wrt", wrt, tensors)
    # What is detached has no gradient of its own, as a frozen parameter has none.
    inner = Tensors((), tensors.inputs, tensors.activations)
    others = [value for value in asked if value not in initializers]
    others += matching_any("--retain-grad", retain_grad, inner)
    listed, notes = _listed(tensors, params) if params else ((), ())
    return Request(
        all_parameters=not wrt and not params,
        parameters=(*(value for value in asked if value in initializers), *listed),
        others=tuple(value for value in dict.fromkeys(others) if value not in detached),
        frozen=frozenset(value for value in stopped if value in initializers),
        detached=tuple(detached),
        listed=frozenset(listed),
        notes=notes,
    )


def _without_parameters(graph: ir.Graph) -> ModelError:
    """Say of a model that has no floating-point initializers what it may be instead, and what to do."""
    what = "the model has no floating-point parameters, so there is nothing to train"
    learnt = next((node for node in graph if node.domain == _CLASSICAL), None)
    if learnt is not None:
        return ModelError(
            f"{what}: {learnt.op_type} '{learnt.name}' ({_CLASSICAL}) holds its numbers as attributes",
            "such a model is fitted by the library that made it",
        )
    hint = "export it with its weights, or name an input with --wrt"
    integers = any(value.dtype is not None and value.dtype.is_integer() for value in graph.initializers.values())
    if integers or any(is_quantised(node) for node in graph):
        hint = f"take the model as it was before quantisation, or {hint}"
    return ModelError(what, hint)


def _listed(tensors: Tensors, names: Sequence[str]) -> tuple[tuple[ir.Value, ...], tuple[str, ...]]:
    """Return the initializers that a list names, and a note on those it names that are not there.

    An initializer may stand for a parameter of another name, or be of a module that was wrapped for the export: then
    its name has one attribute more at its beginning.
    """
    wanted = set(names)
    found: dict[str, list[ir.Value]] = {}
    for value in tensors.parameters:
        name = str(value.name)
        for known in (*names_of(value), name.partition(".")[2]):
            if known in wanted:
                found.setdefault(known, []).append(value)
                break
    if not found:
        near = ", ".join(f"`{value.name}`" for value in tensors.parameters[:3])
        raise UsageError(
            f"`--params` names none of the model's {len(tensors.parameters)} floating-point initializers",
            f"there are, for example, {near}",
        )
    lacking = [repr(name) for name in dict.fromkeys(names) if name not in found]
    notes = (f"{len(lacking)} name(s) of --params are not in the model: {shortened(lacking)}",) if lacking else ()
    return tuple(value for values in found.values() for value in values), notes


@dataclass
class _Evidence:
    """What initializers are taken for that nobody named, and what is to be said of them.

    Attributes:
        doubtful: trained, and may be constants.
        merged: trained, and may be several of equal numbers.
        computed: trained, and computed of parameters that the file does not name.
        numbers: a few numbers computed of parameters, not trained.
        constants: not trained: each with the reason.
    """

    doubtful: list[str] = field(default_factory=list)
    merged: list[str] = field(default_factory=list)
    computed: list[str] = field(default_factory=list)
    numbers: list[str] = field(default_factory=list)
    constants: dict[ir.Value, str] = field(default_factory=dict)

    def is_trained(self, value: ir.Value, uses: Set[Use], *, is_read: bool) -> bool:
        """Judge an initializer, and remember what is to be said of it.

        Args:
            value: the initializer.
            uses: how the model as it was read uses it.
            is_read: whether a result depends on it; else nothing is trained, which is said of it elsewhere.
        """
        verdict = judge(value, uses)
        said = f"'{value.name}': {verdict.why}" if verdict.why else f"'{value.name}'"
        if not verdict.trained:
            if is_number_computed(value):
                self.numbers.append(f"'{value.name}'")
            elif value.metadata_props.get(CONSTANT) not in (ORIGIN, EXPANSION, CONVERTED):  # need no mention
                self.constants[value] = said
            return False
        if is_read and not verdict.certain:
            self.doubtful.append(said)
        if is_read and may_be_merged(value, uses):
            self.merged.append(f"'{value.name}' of {len(set(value.consumers()))}")
        if is_read and is_computed(value, uses):
            self.computed.append(f"'{value.name}'")
        return True

    def notes(self) -> list[str]:
        """Name the initializers that may not be what they are taken for, and those that are taken for constants."""
        notes = []
        if self.doubtful:
            notes.append(
                f"{len(self.doubtful)} tensor(s) are trained that may be constants ({shortened(self.doubtful)}); "
                "leave them out with --no-grad if they are, or name all parameters with --params"
            )
        if self.merged:
            notes.append(
                f"{len(self.merged)} parameter(s) of equal numbers are read by several layers "
                f"({shortened(self.merged)}): where a tool merged what nothing has trained yet, hand in the file as it "
                "was before"
            )
        if self.computed:
            notes.append(
                f"{len(self.computed)} tensor(s) are trained that torch's exporter computed of parameters "
                f"({shortened(self.computed)}), and the file does not say of which: the gradient of one that is read "
                "elsewhere as well lacks that part; ckplan.export keeps the parameters"
            )
        if self.numbers:
            notes.append(
                f"{len(self.numbers)} tensor(s) of a few numbers are not trained ({shortened(self.numbers)}): torch's "
                "exporter computed them of parameters or buffers, and the file does not say of which; the gradient of "
                "a parameter lacks that part, and ckplan.export keeps it"
            )
        # Nobody expects a number to be trained that a node of the file writes out.
        told = [value for value in self.constants if not (is_constant(value) and size_of(value) == 1)]
        if told:
            # Scalars are seldom meant to be trained: what else is left out comes first.
            named = [self.constants[value] for value in sorted(told, key=lambda value: not shape_of(value))]
            notes.append(
                f"{len(told)} constant(s) are not trained ({shortened(named)}); name them with --wrt if they should be"
            )
        return notes


def select_parameters(
    op: Builder,
    candidates: Collection[ir.Value],
    request: Request,
    uses: Mapping[ir.Value, Set[Use]],
    before: Collection[str],
    results: Iterable[ir.Value],
) -> Selection:
    """Choose the floating-point initializers that a node can pass a gradient to.

    Constants of the program (an epsilon, a mask, a table of sines; see :mod:`ckplan.autodiff.selection.evidence`) are
    left out, unless they are asked for.

    Args:
        op: builder of the forward graph.
        candidates: the model's own floating-point initializers.
        request: what the caller asked for.
        uses: how the model as it was read uses them.
        before: names of the parameters of the training graph that is differentiated again; they are no constants.
        results: the losses, and other tensors from which gradients go back.

    Raises:
        ModelError: the model has no floating-point initializer that a gradient could reach.
        UsageError: nothing is left.
    """
    if request.all_parameters and not candidates and not request.others:
        raise _without_parameters(op.graph)
    readers: set[ir.Value] = set()
    for node in op.graph:
        readers |= differentiable_inputs(node, entry_of(node, op.opset_imports))
    reached = {value for node in needed_nodes(op.graph, results) for value in reads(node)}
    asked = set(request.parameters)
    chosen: list[ir.Value] = []
    idle: list[ir.Value] = []
    evidence = _Evidence()
    for value in candidates:
        if value in request.frozen or not (request.all_parameters or value in asked):
            continue
        if value not in readers:
            # A constant of a formula that has become one node is read no more, and is no parameter all the same.
            unused = not value.uses() and not is_literal(value)
            unused &= not uses.get(value) or judge(value, uses[value]).trained
            if unused or value in asked - request.listed:
                idle.append(value)
        elif (
            not request.all_parameters
            or value.name in before
            or evidence.is_trained(value, uses.get(value, set()), is_read=value in reached)
        ):
            chosen.append(value)
    if not chosen and not request.others:
        raise _nothing_left(candidates, request, [*evidence.numbers, *evidence.constants.values()])
    notes = [*evidence.notes(), *twin_notes(chosen)]
    if request.all_parameters:
        notes += [*_folded_notes(chosen), *_adapter_notes(chosen)]
    return Selection(tuple(chosen), tuple(idle), tuple(notes))


def _folded_notes(chosen: Sequence[ir.Value]) -> list[str]:
    """Say what is trained in place of the variables that it was computed of."""
    folded = [f"'{value.name}'" for value in chosen if is_folded_by_tensorflow(value)]
    by_tools = [f"'{value.name}'" for value in chosen if is_folded_by_a_tool(value)]
    notes = []
    if folded:
        notes.append(
            f"{len(folded)} tensor(s) are trained that TensorFlow or tf2onnx computed of variables or constants "
            f"({shortened(folded)}): these are not the gradients of the variables; leave out constants with --no-grad"
        )
    if by_tools:
        notes.append(
            f"{len(by_tools)} tensor(s) are trained that a tool computed of parameters or constants "
            f"({shortened(by_tools)}), as their names tell: hand in the file as it was before, or leave them out with "
            "--no-grad"
        )
    return notes


def _adapter_notes(chosen: Sequence[ir.Value]) -> list[str]:
    """Say that what low-rank adapters of PEFT's stand beside is trained as well: no file tells what was frozen."""
    adapters = [value for value in chosen if any(_ADAPTER in name for name in names_of(value))]
    wrapped = any(_WRAPPED in name for value in chosen for name in names_of(value))
    beside = len(chosen) - len(adapters)
    if not (adapters or wrapped) or not beside:
        return []
    why = "as no file tells what was frozen"
    if not adapters:
        return [f"all parameters of a model of PEFT's are trained, {why}: ckplan.export leaves out what is"]
    way = f"--wrt '*{_ADAPTER}*' trains the adapters alone, and ckplan.export leaves out what is frozen"
    return [f"{beside} parameter(s) beside low-rank adapters of PEFT's are trained, too, {why}: {way}"]


def _nothing_left(
    candidates: Collection[ir.Value], request: Request, constants: Sequence[str]
) -> ModelError | UsageError:
    """Say why there is nothing to train: because of the model, or because of what was asked for."""
    left = [value for value in candidates if value not in request.frozen]
    if constants and len(constants) == len(left):
        return ModelError(
            f"the model has no parameters to train, only constants ({shortened(constants)})",
            "name with --wrt what should be trained",
        )
    readers_of = dict.fromkeys(use.node for value in left for use in value.uses())
    if not request.all_parameters or request.frozen:
        readers_of = {node: None for node in readers_of if not set(request.parameters).isdisjoint(node.inputs)}
        cause = f": no gradient passes {listed(list(readers_of))}" if readers_of else ""
        return UsageError(f"no parameter is left to train{cause}", "loosen --wrt or --no-grad")
    hint = "see `ckplan ops` for the operators that have gradients"
    if any(map(is_quantised, readers_of)):
        hint = f"take the model as it was before quantisation, or {hint}"
    elif readers_of and all(is_op(node, _STEPS) for node in readers_of):
        # A binarised weight: exporters leave out of `w + (w.sign() - w).detach()` all but the sign.
        hint = "if gradients are to pass, write x + (f(x) - x).detach() in torch and export it with ckplan.export"
    return ModelError(
        "no node of the model reads a floating-point parameter in a way that can be differentiated"
        + (f": no gradient passes {listed(list(readers_of))}" if readers_of else ""),
        hint,
    )
