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
from pathlib import Path
from typing import Any

import torch

TABLE = Path(__file__).parents[1] / "lint" / "gpusync_lint" / "catalogue" / "torch_signatures.json"

NAMESPACES: tuple[tuple[str, Any, str], ...] = (
    ("torch", torch, ""),
    ("torch.nn.functional", torch.nn.functional, ""),
    ("torch.linalg", torch.linalg, "linalg_"),
    ("torch.special", torch.special, "special_"),
    ("torch.fft", torch.fft, "fft_"),
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

`d` is one number or several, `o` anything else.
"""
_EVERYWHERE = frozenset(
    {"dtype", "layout", "device", "pin_memory", "requires_grad", "memory_format", "generator", "out"}
)
"""Keywords of any signature that are left out."""


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


def renamed(function: Any, found: list[str], is_method: bool) -> list[str]:
    """The signatures under the argument names of a function written in Python; empty if they do not correspond."""
    try:
        names = list(inspect.signature(function).parameters)[is_method:]
    except (TypeError, ValueError):
        return []
    rows = []
    for written in found:
        codes = [part.partition(":")[2] for part in written.partition("|")[0].split()]
        if len(codes) <= len(names):
            rows.append(" ".join(f"{name}:{one}" for name, one in zip(names, codes, strict=False)))
    return list(dict.fromkeys(rows))


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
            if name.startswith("_") or name in _NO_OPERATOR or operator not in schemas or not callable(function):
                continue
            is_method = owner is torch.Tensor
            rows = signatures(schemas[operator], is_method)
            if not isinstance(function, BUILTIN):
                rows = renamed(function, rows, is_method)
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
