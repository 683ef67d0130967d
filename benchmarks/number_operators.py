"""Hold the linter against the simulated device on every operator of torch that takes a number.

    python benchmarks/number_operators.py [--every N] [--only TEXT] [--list OUTCOME]... [--json OUT]

For each public function of torch, torch.nn.functional, torch.linalg, torch.special, torch.fft, torch.nn.init and
torch.nn.utils, and each method of a tensor, that takes a number, a bool or a list of numbers, by torch's schemas or by
the annotations of a function written in Python: programs for each such argument, in which a device tensor is passed as
that number. It is a 0-dimensional tensor (by name, and by position), or one of one element, and for lists also an item
of the list. Arguments that torch accepts for the others are found by trying: the call has to work on the CPU. A program
is

    agree     the linter and the simulated device say the same
    missed    the host waits, and the linter has no warning
    false     the linter warns, and the host does not wait
    refused   torch raises

``--every N`` takes each N-th operator, and ``--list missed`` lists programs of an outcome.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import json
import re
import sys
import warnings
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from linter_agreement import OUTCOMES, PRELUDE, Outcome, Program, compare
from torch_signatures import BUILTIN, NAMESPACES, annotation, implementation

from pytest_gpusync.simulated import simulated_cuda

if TYPE_CHECKING:
    from collections.abc import Iterator

_TENSORS = (
    "torch.rand(4, 4, device=dev)",
    "torch.rand(4, device=dev)",
    "torch.zeros(4, dtype=torch.long, device=dev)",
    "torch.rand(2, 4, 4, device=dev)",
    "torch.rand(2, 4, 4, 4, device=dev)",
    "torch.ones(4, 4, dtype=torch.long, device=dev)",
    "torch.ones(4, 4, dtype=torch.bool, device=dev)",
    "torch.rand(4, 4, 1, 1, device=dev)",
    "torch.rand(2, 4, 4, 4, 4, device=dev)",
    "torch.rand((), device=dev)",
    "torch.ones(4, 4, dtype=torch.complex64, device=dev)",
    "torch.rand(4, 4, device=dev).to_sparse()",
)
_CANDIDATES = {
    "tensor": _TENSORS,
    "tensor?": ("None", *_TENSORS),
    "int": ("1", "0", "2", "4"),
    "float": ("0.5", "1.0"),
    "number": ("0.5", "1"),
    "bool": ("False", "True"),
    "str": ("'mean'", "'sum'", "'amax'", "'reflect'"),
    "tensors": ("[torch.rand(4, 4, device=dev), torch.rand(4, 4, device=dev)]",),
    "list": (
        "[1]",
        "[1, 1]",
        "[0]",
        "[4]",
        "[2, 2]",
        "[4, 4]",
        "[1, 1, 1]",
        "[1, 1, 1, 1]",
        "[0, 1]",
        "[16]",
        "[2, 2, 4]",
    ),
}
_BY_NAME = {"dtype": ("torch.float32",), "parameters": ("list(model.parameters())",)}
"""Candidates for parameters of these names. The gradients of parameters are what some functions look at."""
_TYPES = {
    "Tensor": "tensor",
    "List[Tensor]": "tensors",
    "Tensor | List[Tensor]": "tensors",
    "Union[Tensor, Iterable[Tensor]]": "tensors",
    "str": "str",
    "int": "int",
    "SymInt": "int",
    "float": "float",
    "number": "number",
    "Scalar": "number",
    "bool": "bool",
    "List[int]": "list",
    "List[float]": "list",
    "int or List[int]": "list",
    "int | List[int]": "list",
}
NUMBERS = frozenset({"int", "float", "number", "bool", "list"})
_SETTINGS = frozenset({"dtype", "layout", "memory_format", "device", "generator", "out", "pin_memory", "requires_grad"})
_MOST_TRIES = 1500
_FILES = frozenset({"from_file", "compile", "cond", "while_loop", "vmap"})
"""Not operators on tensors."""


class Parameter(NamedTuple):
    """A parameter of an operator."""

    name: str
    type: str
    """A key of `_CANDIDATES`, or `other`."""
    default: str | None
    """Its source; None if the parameter is required."""
    keyword_only: bool = False


def operators() -> Iterator[tuple[str, list[list[Parameter]]]]:
    """The dotted name of each function and method, with its signatures that take a number."""
    schemas = defaultdict(list)
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, name = schema.name.partition("::")
        if namespace == "aten":
            schemas[name].append(schema)
    for dotted, owner, prefix in NAMESPACES:
        is_method = owner is torch.Tensor
        for name in sorted(dir(owner)):
            function = getattr(owner, name, None)
            if name.startswith("_") or name in _FILES or not callable(function) or inspect.isclass(function):
                continue
            if not inspect.getdoc(function):
                continue  # internal: `torch.mkldnn_convolution`
            if isinstance(function, BUILTIN):
                operator = name if prefix and name.startswith(prefix) else prefix + name
                found = [one for schema in schemas[operator] if (one := _of_schema(schema, is_method))]
            else:
                found = _annotated(function, is_method)
            found = [one for one in found if any(parameter.type in NUMBERS for parameter in one)]
            if found:
                yield f"{dotted}.{name}", found


def _of_schema(schema: Any, is_method: bool) -> list[Parameter]:
    arguments = list(schema.arguments)
    written = [str(argument.type) for argument in arguments]
    if any(argument.name == "out" for argument in arguments) or any("Dimname" in each for each in written):
        return []
    makes = any("Tensor" in str(one.type) for one in schema.returns) or "Tensor" in "".join(written)
    if not makes or (is_method and written[:1] != ["Tensor"]):
        return []
    return [
        Parameter(
            argument.name,
            _type(argument.name, each),
            repr(argument.default_value) if argument.has_default_value() else None,
            argument.kwarg_only,
        )
        for argument, each in zip(arguments, written, strict=True)
    ]


def _annotated(function: Any, is_method: bool) -> list[list[Parameter]]:
    """The one signature of a function written in Python, if its module is torch's and its parameters are annotated."""
    try:
        parameters = list(inspect.signature(implementation(function)).parameters.values())
    except (TypeError, ValueError):
        return []
    if not str(getattr(function, "__module__", "")).startswith("torch") or not parameters:
        return []
    found = []
    for place, one in enumerate(parameters):
        if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD) and not one.name.startswith("_"):
            default = None if one.default is one.empty else repr(one.default)
            written = "Tensor" if is_method and place == 0 else annotation(one)
            found.append(Parameter(one.name, _type(one.name, written), default, one.kind is one.KEYWORD_ONLY))
    return [found]


def _type(name: str, written: str) -> str:
    if name in _SETTINGS:
        return "other"
    plain = re.sub(r"^Optional\[(.*)\]$", r"\1", written)
    found = _TYPES.get(plain, "other")
    return "tensor?" if found == "tensor" and plain != written else found


def call(dotted: str, parameters: list[Parameter], given: dict[str, str], by_position: int = 0) -> str:
    """A call with these arguments: the required ones and the first `by_position` by position, the others by name."""
    first, named = [], []
    for place, one in enumerate(parameters):
        if (one.default is None or place < by_position) and not one.keyword_only:
            first.append(given.get(one.name, one.default or ""))
        elif one.name in given:
            named.append(f"{one.name}={given[one.name]}")
    if dotted.startswith("torch.Tensor."):
        return f"{first[0]}.{dotted[len('torch.Tensor.') :]}({', '.join(first[1:] + named)})"
    return f"{dotted}({', '.join(first + named)})"


def _works(source: str, names: dict[str, Any]) -> bool:
    try:
        exec(source, dict(names))
    except Exception:
        return False
    return True


def arguments(dotted: str, parameters: list[Parameter], names: dict[str, Any]) -> dict[str, str] | None:
    """Sources of the required arguments with which a call works on the CPU; None if none was found."""
    required = [one for one in parameters if one.default is None]
    # Some calls need one of several optional arguments: `x.clamp(max=1)`.
    optional = [one for one in parameters if one.default == "None" and one.type in ("int", "float", "number", "list")]
    for added in ([], *([one] for one in optional)):
        wanted = [*required, *added]
        choices = [_BY_NAME.get(one.name) or _CANDIDATES.get(one.type, ()) for one in wanted]
        for chosen in itertools.islice(itertools.product(*choices), _MOST_TRIES):
            given = {one.name: source for one, source in zip(wanted, chosen, strict=True)}
            if _works(f"y = {call(dotted, parameters, given)}", names):
                return given
    return None


def _numbers(one: Parameter, given: dict[str, str]) -> tuple[str, ...]:
    """Values to try for a parameter, as source."""
    if one.name in given:
        return (given[one.name],)
    default = () if one.default in (None, "None", "[]", "()") else (one.default,)
    return (*default, *_CANDIDATES[one.type])


def programs(dotted: str, parameters: list[Parameter], names: dict[str, Any]) -> list[Program]:
    """A program for each number that an operator takes, and each form in which a device tensor can be passed for it."""
    given = arguments(dotted, parameters, names)
    if given is None:
        return []
    setup = ""
    for place, one in enumerate(parameters):
        if one.type in ("tensor", "tensor?") and given.get(one.name, "None") != "None":
            setup += f"t{place} = {given[one.name]}\n"
            given[one.name] = f"t{place}"
    scope = dict(names)
    exec(setup, scope)
    found = []
    for place, one in enumerate(parameters):
        if one.type not in NUMBERS:
            continue
        for number in _numbers(one, given):
            if _works(f"y = {call(dotted, parameters, {**given, one.name: number})}", scope):
                found += _with_tensor(dotted, parameters, given, place, eval(number), setup)
                break
    return found


def _with_tensor(
    dotted: str, parameters: list[Parameter], given: dict[str, str], place: int, number: Any, setup: str
) -> Iterator[Program]:
    """Programs that pass a tensor for the number at one place."""
    one = parameters[place]
    several = isinstance(number, (list, tuple))
    first, *rest = number if several else [number]
    calls = [(call(dotted, parameters, {**given, one.name: "n"}), data) for data in (first, [first])]
    if one.type == "list":
        written = ", ".join(["n", *map(repr, rest)])
        calls.append((call(dotted, parameters, {**given, one.name: f"[{written}]"}), first))
        if several and one.default is None and place == len(parameters) - 1:  # `x.view(n, 4)`
            calls.append((call(dotted, parameters, {**given, one.name: written}), first))
    if one.default is not None and not one.keyword_only:
        calls.append((call(dotted, parameters, {**given, one.name: "n"}, by_position=place + 1), first))
    for written, data in calls:
        yield Program(f"y = {written}", f"{setup}n = torch.tensor({data}, device=dev)\n")


def all_programs(every: int = 1, only: str = "") -> tuple[list[Program], list[str]]:
    """The programs, and the operators for which no valid call was found."""
    names: dict[str, Any] = {}
    exec(PRELUDE.replace('"cuda"', '"cpu"'), names)
    found: dict[Program, None] = {}
    without = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for dotted, signatures in itertools.islice(operators(), 0, None, every):
            if only in dotted:
                made = [program for each in signatures for program in programs(dotted, each, names)]
                found.update(dict.fromkeys(made))
                without += [] if made else [dotted]
    return list(found), without


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--only", default="", help="operators whose dotted name contains this text")
    parser.add_argument("--list", action="append", choices=OUTCOMES, default=[], help="list the programs of an outcome")
    parser.add_argument("--json", type=Path, help="write the outcomes to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen, without = all_programs(options.every, options.only)
    with simulated_cuda():
        outcomes = compare(chosen)
    tally = Counter(one.verdict for one in outcomes)
    print(f"torch {torch.__version__}, python {sys.version.split()[0]}: {len(chosen)} programs")
    print(", ".join(f"{verdict} {tally[verdict]}" for verdict in OUTCOMES))
    print(f"no valid call found for {len(without)} operators: {' '.join(without)}")
    for one in outcomes:
        if one.verdict in options.list:
            print(f"{one.verdict:8} {one.program.statement:70} {one.reason}")
    if options.json:
        options.json.write_text(json.dumps([_row(one) for one in outcomes], indent=1), encoding="utf-8")
    return 0


def _row(one: Outcome) -> dict[str, str]:
    return {
        "statement": one.program.statement,
        "setup": one.program.setup,
        "verdict": one.verdict,
        "reason": one.reason,
    }


if __name__ == "__main__":
    sys.exit(main())
