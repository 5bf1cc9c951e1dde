"""The computation graphs of Kusumoto et al., "A Graph Theoretic Framework of Recomputation Algorithms" (NeurIPS 2019).

The text format of github.com/pfnet-research/recompute: Chainer functions, forward and backward, with what each
backward function reads of the forward pass. First line ``#variables #functions``; a line ``id bytes name`` for each
variable (``_`` an activation, a number an input, ``/…`` a parameter); then the functions, first all forward ones,
then their backward ones in the same order, which need not be one in which they can run. A function is
``forward`` or ``backward``, ``#inputs #outputs``, a line ``id role`` for each input, a line ``id`` for each output,
the type, and its attributes as JSON. The role ``gradient`` means the variable's gradient, every other role its value;
the outputs of a backward function are gradients.

How it becomes a `Problem`:

- Costs are the reference's: a convolution (forward or backward, a deconvolution is not one) 10, anything else 1.
- One forward op a function. All may be recomputed, random ones too, as the reference does.
- A backward function that makes the gradients of several activations becomes one op for each of these, as the
  reference runs it piecewise; its cost is split evenly. The last piece also makes the gradients of parameters.
- A gradient to which several functions contribute is summed in place, one after the other.
- Gradients of parameters and inputs are outputs of the file, the loss too: they are outside of
  ``Timeline.peak_activations``, in which all activations and their gradients are counted from the op
  that makes them to their last reader, as the reference's own evaluation does. The gradient of
  the loss is given from outside. What a backward function is listed to read must be alive when it runs, even where
  it needs only the shape (Add, Concat).
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ckplan.errors import ModelError
from ckplan.planner.instances.topological import depth_first_order
from ckplan.planner.problem import Kind, Op, Problem, Tensor

_HEAVY = ("Convolution", "Deconvolution", "Linear")


@dataclass(frozen=True, slots=True)
class _Function:
    backward: bool
    inputs: tuple[tuple[int, bool], ...]  # variable, whether its gradient is meant
    outputs: tuple[int, ...]
    kind: str
    rank: int

    @property
    def cost(self) -> float:
        return 10.0 if self.kind.startswith("Conv") else 1.0


def parse_kusumoto(text: str) -> Problem:
    """Read a graph; see the module for what is made of it.

    Raises:
        ModelError: the text is not of this format; the message names the line.
    """
    sizes, names, functions = _Reader(text).read()
    forward = [function for function in functions if not function.backward]
    backward = [function for function in functions if function.backward]
    if len(forward) != len(backward):
        raise ModelError(f"{len(forward)} forward and {len(backward)} backward functions do not pair up")
    made_by = {variable: index for index, function in enumerate(forward) for variable in function.outputs}
    before = [[made_by[v] for v, _ in function.inputs if v in made_by] for function in forward]
    order = depth_first_order(before, [function.rank for function in forward])
    read = {variable for function in forward for variable, _ in function.inputs}

    tensors = [
        Tensor(
            f"v{variable}"
            if names[variable] == "_"
            else f"input{names[variable]}"
            if names[variable].isdigit()
            else names[variable],
            sizes[variable],
            Kind.PARAMETER
            if names[variable].startswith("/")
            else Kind.INPUT
            if variable not in made_by
            else Kind.ACTIVATION
            if variable in read
            else Kind.OUTPUT,
        )
        for variable in range(len(sizes))
    ]
    ops = [
        Op(
            f"{forward[index].kind}_{index}",
            tuple(variable for variable, _ in forward[index].inputs),
            forward[index].outputs,
            forward[index].cost,
            heavy=forward[index].kind.startswith(_HEAVY),
        )
        for index in order
    ]
    gradients = _Gradients(tensors)
    for index in reversed(order):
        ops.extend(gradients.ops(backward[index], f"{backward[index].kind}_{index}/grad", set(made_by)))
    return Problem(tuple(ops), tuple(tensors))


class _Gradients:
    """Makes the backward ops and their tensors, in the order of the backward pass."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self.tensors = tensors
        self.latest: dict[int, int] = {}  # variable -> tensor that holds the sum of its gradients so far

    def ops(self, function: _Function, name: str, activations: set[int]) -> list[Op]:
        reads = tuple(self._gradient(variable) if of else variable for variable, of in function.inputs)
        targets = [variable for variable in dict.fromkeys(function.outputs) if variable in activations]
        rest = [variable for variable in dict.fromkeys(function.outputs) if variable not in activations]
        pieces = [[target] for target in targets] or [[]]
        pieces[-1] = pieces[-1] + rest
        made = []
        for number, piece in enumerate(pieces):
            inputs, outputs, inplace = list(reads), [], {}
            for variable in piece:
                kind = Kind.ACTIVATION if variable in activations else Kind.OUTPUT
                before = self.latest.get(variable)
                suffix = f"/grad{len(self.tensors)}" if before is not None else "/grad"
                self.tensors.append(
                    Tensor(f"{self.tensors[variable].name}{suffix}", self.tensors[variable].bytes, kind)
                )
                tensor = len(self.tensors) - 1
                if before is not None:
                    inputs.append(before)
                    inplace[tensor] = (before,)
                    if self.tensors[before].kind is Kind.OUTPUT:
                        # Only the complete sum is returned.
                        partial = self.tensors[before]
                        self.tensors[before] = Tensor(partial.name, partial.bytes)
                self.latest[variable] = tensor
                outputs.append(tensor)
            part = name if len(pieces) == 1 else f"{name}/{number}"
            made.append(
                Op(
                    part,
                    tuple(inputs),
                    tuple(outputs),
                    function.cost / len(pieces),
                    backward=True,
                    heavy=function.kind.startswith(_HEAVY),
                    inplace=inplace,
                )
            )
        return made

    def _gradient(self, variable: int) -> int:
        if variable not in self.latest:
            tensor = self.tensors[variable]
            self.tensors.append(Tensor(f"{tensor.name}/grad", tensor.bytes, Kind.INPUT))
            self.latest[variable] = len(self.tensors) - 1
        return self.latest[variable]


class _Reader:
    """Reads the lines one by one and knows where it is."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self.at = 0

    def read(self) -> tuple[list[int], list[str], list[_Function]]:
        try:
            variables, functions = self._integers(2)
            sizes, names = [0] * variables, ["_"] * variables
            for _ in range(variables):
                number, size, name = self._line().split(maxsplit=2)
                sizes[self._below(int(number), variables)], names[int(number)] = int(size), name
            found = [self._function(variables) for _ in range(functions)]
            if any(line.strip() for line in self.lines[self.at :]):
                raise ValueError("more lines than announced")
        except (ValueError, KeyError, IndexError) as error:
            raise ModelError(f"line {min(self.at, len(self.lines))}: not a computation graph ({error})") from error
        return sizes, names, found

    def _function(self, variables: int) -> _Function:
        phase = self._line().strip()
        if phase not in ("forward", "backward"):
            raise ValueError(f"{phase!r} is neither forward nor backward")
        reads, makes = self._integers(2)
        inputs = []
        for _ in range(reads):
            number, role = self._line().split()
            inputs.append((self._below(int(number), variables), role == "gradient"))
        outputs = tuple(self._below(self._integers(1)[0], variables) for _ in range(makes))
        kind = self._line().strip()
        attributes = json.loads(self._line())
        return _Function(phase == "backward", tuple(inputs), outputs, kind, int(attributes.get("rank", 0)))

    def _line(self) -> str:
        self.at += 1
        return self.lines[self.at - 1]

    def _integers(self, count: int) -> list[int]:
        numbers = [int(word) for word in self._line().split()]
        if len(numbers) != count:
            raise ValueError(f"{count} numbers expected")
        return numbers

    @staticmethod
    def _below(number: int, limit: int) -> int:
        if not 0 <= number < limit:
            raise ValueError(f"there is no variable {number}")
        return number
