"""Write the signatures of torch's operators that take Python numbers, for the linter.

    python benchmarks/torch_signatures.py

A device tensor passed where an operator takes a number (`x.narrow(0, 0, length)`, `torch.arange(length)`) is read to
the host. The linter does not import torch, so it reads this table, which is made from torch's own schemas:
lint/gpusync_lint/catalogue/torch_signatures.json. Run it again with each torch release.
"""

from __future__ import annotations

import inspect
import json
import types
from collections import defaultdict
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from torch._jit_internal import boolean_dispatched

TABLE = Path(__file__).parents[1] / "lint" / "gpusync_lint" / "catalogue" / "torch_signatures.json"

NAMESPACES: tuple[tuple[str, Any, str], ...] = (
    ("torch", torch, ""),
    ("torch.nn.functional", torch.nn.functional, ""),
    ("torch.linalg", torch.linalg, "linalg_"),
    ("torch.special", torch.special, "special_"),
    ("torch.fft", torch.fft, "fft_"),
    ("torch.nn.init", torch.nn.init, ""),
    ("torch.nn.utils", torch.nn.utils, ""),
    ("torch.nn.utils.rnn", torch.nn.utils.rnn, ""),
    ("torch.Tensor", torch.Tensor, ""),
)
"""Dotted name, object, and what its functions are called in the schemas before their own name."""
BUILTIN = (types.BuiltinFunctionType, types.MethodDescriptorType)
_NO_OPERATOR = frozenset({"tensor"})
"""Functions whose namesake among the schemas is something else, of TorchScript."""
_SETTINGS = frozenset({"dtype", "layout", "memory_format", "device", "generator"})
_CODES = {
    "Tensor": "t",
    "List[Tensor]": "s",
    "List[Optional[Tensor]]": "s",
    "int": "n",
    "float": "n",
    "number": "n",
    "List[int]": "l",
    "List[float]": "l",
    "List[number]": "l",
}
"""Types of arguments: a tensor, several tensors, a number, several numbers.

`d` is one number or several, `o` anything else, `x` unknown.
"""
_EVERYWHERE = frozenset(
    {"dtype", "layout", "device", "pin_memory", "requires_grad", "memory_format", "generator", "out"}
)
"""Keywords of any signature that are left out."""
_UNREAD = {
    "constant_": frozenset({"val"}),
    "*_with_indices": frozenset({"return_indices"}),
    "embedding": frozenset({"norm_type"}),
    "embedding_bag": frozenset({"norm_type", "include_last_offset"}),
    "fuse_*_bn_weights": frozenset({"bn_eps"}),
    "gumbel_softmax": frozenset({"tau"}),
    "local_response_norm": frozenset({"alpha", "beta", "k"}),
    "normalize": frozenset({"eps"}),
    "orthogonal_": frozenset({"gain"}),
}
"""Parameters of functions written in Python that are not read, or only together with another one, by name of function.

Their tensors are computed with on the device. `number_operators.py` shows them as false.
"""
_DEPRECATED = {
    "add": "alpha:n other:t",
    "sub": "alpha:n other:t",
}
"""Signatures that torch still accepts and has no schemas for, without `self`."""


def code(argument: Any) -> str:
    """The type of an argument, in one letter."""
    if argument.name in _SETTINGS:
        return "o"
    written = str(argument.type)
    if written.startswith("Optional["):
        written = written[len("Optional[") : -1]
    found = _CODES.get(written, "o")
    return "d" if found == "l" and argument.N else found


def signatures(schemas: list[Any], is_method: bool) -> list[str]:
    """The signatures that Python can call: `self:t dim:n start:n length:n`, keyword-only arguments after `|`."""
    found = []
    for schema in schemas:
        arguments = list(schema.arguments)
        names = [argument.name for argument in arguments]
        if "out" in names or schema.overload_name.endswith("out"):
            continue
        if any("Dimname" in str(argument.type) for argument in arguments):
            continue
        if not any(code(argument) in "ts" for argument in arguments) and "dtype" not in names:
            continue  # an operator of TorchScript on numbers
        if is_method:
            if names[:1] != ["self"] or code(arguments[0]) != "t":
                continue
            del arguments[0]
        positional = " ".join(f"{one.name}:{code(one)}" for one in arguments if not one.kwarg_only)
        keywords = " ".join(
            f"{one.name}:{code(one)}" for one in arguments if one.kwarg_only and one.name not in _EVERYWHERE
        )
        written = f"{positional}|{keywords}" if keywords else positional
        if written not in found:
            found.append(written)
    return found


def of_python(function: Any, found: list[str], is_method: bool) -> list[str]:
    """The signatures of a function written in Python.

    A parameter's type is that of its annotation, or of its default, or that of the schema's argument at its place.
    """
    try:
        parameters = list(inspect.signature(implementation(function)).parameters.values())[is_method:]
    except (TypeError, ValueError):
        return []
    if any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in parameters):
        return []
    unread = next((names for pattern, names in _UNREAD.items() if fnmatch(function.__name__, pattern)), frozenset())
    rows = []
    for written in found or [""]:
        codes = [part.partition(":")[2] for part in written.partition("|")[0].split()]
        codes += ["x"] * (len(parameters) - len(codes))
        typed = [
            (one, f"{one.name}:{'x' if one.name in unread else _code_of_annotation(one) or known}")
            for one, known in zip(parameters, codes, strict=False)
            if one.name not in _EVERYWHERE and not one.name.startswith("_")
        ]
        positional = " ".join(each for one, each in typed if one.kind is not one.KEYWORD_ONLY)
        keywords = " ".join(each for one, each in typed if one.kind is one.KEYWORD_ONLY)
        rows.append(f"{positional}|{keywords}" if keywords else positional)
    return list(dict.fromkeys(rows))


def implementation(function: Any) -> Any:
    """The function that is called by one that only chooses between two (`F.max_pool2d`, by `return_indices`)."""
    return boolean_dispatched.get(function, {}).get("if_false", function)


def annotation(parameter: inspect.Parameter) -> str:
    """The annotation of a parameter as `Optional[int]` without the `Optional`, or the type of its default.

    Empty if it has neither.
    """
    given = parameter.annotation
    if given is None:
        return "int or List[int]"  # what torch's own `BroadcastingList2[int]` evaluates to
    if given is parameter.empty:
        return "" if parameter.default in (None, parameter.empty) else type(parameter.default).__name__
    written = given if isinstance(given, str) else given.__name__ if isinstance(given, type) else str(given)
    if str(given).startswith(("list[", "typing.List[")):
        written = str(given)
    written = written.replace("typing.", "").replace("torch.", "").replace("list[", "List[").replace(" | None", "")
    return written[len("Optional[") : -1] if written.startswith("Optional[") else written


def _code_of_annotation(parameter: inspect.Parameter) -> str:
    written = annotation(parameter)
    if written == "int":
        return "d"  # some take several, whatever their annotation says: `F.interpolate(x, size=(height, width))`
    if written in ("bool", "float"):
        return "n"
    return {"int or List[int]": "d", "int | List[int]": "d", "str": "o"}.get(written) or _CODES.get(written, "")


def _is_on_tensors(function: Any) -> bool:
    """Whether the first parameter of a function written in Python is a tensor or several, by its annotation."""
    try:
        parameters = list(inspect.signature(implementation(function)).parameters.values())
    except (TypeError, ValueError):
        return False
    return bool(parameters) and "Tensor" in annotation(parameters[0])


def table() -> dict[str, list[str]]:
    """The signatures of every public function and method of torch that takes a number, by dotted name."""
    schemas = defaultdict(list)
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, name = schema.name.partition("::")
        if namespace == "aten":
            schemas[name].append(schema)
    found: dict[str, list[str]] = {}
    for dotted, owner, prefix in NAMESPACES:
        for name in sorted(vars(owner) if owner is not torch.Tensor else dir(owner)):
            function = getattr(owner, name, None)
            operator = name if prefix and name.startswith(prefix) else prefix + name
            if name.startswith("_") or name in _NO_OPERATOR or not callable(function) or inspect.isclass(function):
                continue
            is_method = owner is torch.Tensor
            if operator not in schemas and not is_method and not _is_on_tensors(function):
                continue
            rows = signatures(schemas[operator], is_method)
            if (old := _DEPRECATED.get(name.rstrip("_"))) and isinstance(function, BUILTIN):
                rows.append(old if is_method else f"self:t {old}")
            if not isinstance(function, BUILTIN):
                rows = of_python(function, rows, is_method) if inspect.getdoc(function) else []
            if any(part.endswith((":n", ":l", ":d")) for row in rows for part in row.replace("|", " ").split()):
                found[f"{dotted}.{name}"] = rows
    return found


def text() -> str:
    """The table as it is stored."""
    found = table()
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found))
    return f'{{\n  "torch": "{torch.__version__.partition("+")[0]}",\n  "signatures": {{\n{rows}\n  }}\n}}\n'


if __name__ == "__main__":
    TABLE.write_text(text())
    print(f"{TABLE.name}: {len(table())} functions and methods of torch {torch.__version__}")
