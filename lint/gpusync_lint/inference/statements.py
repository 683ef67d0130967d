"""Runs one function abstractly: statements in order, branches joined, loops twice so that what they carry is known."""

from __future__ import annotations

import ast
import re
from bisect import bisect_left
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gpusync_lint.domain import torch_api
from gpusync_lint.domain.environment import Environment
from gpusync_lint.domain.lattice import (
    ARRAY,
    CPU_TENSOR,
    HOST,
    UNKNOWN,
    Device,
    Kind,
    Value,
    dict_of,
    element,
    join,
    list_of,
)
from gpusync_lint.domain.tensor_ops import combine
from gpusync_lint.inference.calls import Calls
from gpusync_lint.project.symbols import FunctionInfo, Trace
from gpusync_lint.syntax.names import dotted_path
from gpusync_lint.syntax.traversal import children

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusync_lint.inference.fixpoint import Inference

_Loop = ast.For | ast.AsyncFor | ast.While

_LOADER_WORDS = ("loader", "batches", "dataiter", "data_iter", "dl")
_MAX_CARRY = 2
_BACKWARD = ("backward", "manual_backward")
_EVIDENCE = re.compile(rf"\.[\s\\]*(?:{'|'.join(sorted(torch_api.MODULE_EVIDENCE | set(_BACKWARD)))})[\s\\]*\(")
_HOST_TYPES = frozenset({"int", "float", "str", "bool", "bytes", "complex", "Number", "Integral", "Real", "Path"})
_NO_EVIDENCE: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
_NARROWING = (ast.Call, ast.UnaryOp, ast.BoolOp)
"""Conditions that may say what something is."""
_TENSOR_TYPES = frozenset({"Tensor", "Parameter", "FloatTensor", "LongTensor"})


class Interpreter(Calls):
    """One abstract run of a function."""

    def __init__(self, inference: Inference, fn: FunctionInfo) -> None:
        self.inference = inference
        self.fn = fn
        self.named = inference.named_in(fn.file)
        self.values = {}
        self.repeated = 0
        self.placed: list[Device] = []
        self.backward_names, self.module_names = evidence(fn)
        self._carried: dict[int, dict[str, Value]] = {}
        self._returns: Value | None = None
        self._loops: list[ast.stmt] = []
        self.lambdas = []
        self._grew = False

    def run(self, start: dict[str, Value]) -> None:
        """Interpret the function, given what its parameters hold; its trace, scope and result are replaced."""
        body = self.fn.node.body
        for attempt in range(_MAX_CARRY):
            self.env = Environment(dict(start))
            self.names = self.env.values
            self.fn.trace = Trace()
            self._returns = None
            self._grew = False
            if isinstance(self.fn.node, ast.Module):
                for statement in body:
                    with suppress(RecursionError):  # nested too deeply to follow; the next ones are not
                        self._block([statement])
            else:
                self._block(body)
            if self.fn.nested or self.fn.is_module:
                self.inference.note_scope(self.fn, self.fn.scope, self.env.values)
            self.fn.scope = self.env.values
            if not self._grew or attempt + 1 == _MAX_CARRY:
                break
        self.fn.values = self.values
        self.fn.returns = self._returns if self._returns is not None else HOST

    def returned(self, value: Value) -> None:
        """Note what the function gives back."""
        self._returns = value if self._returns is None else join(self._returns, value)

    def hands_out_batches(self) -> bool:
        """Whether the statement stands in a loop over a data loader."""
        return any(id(loop) in self.fn.trace.batch_loops for loop in self._loops)

    # statements

    def _block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self.statement = statement
            _STATEMENTS[statement.__class__](self, statement)

    def _expr(self, node: ast.Expr) -> None:
        if node.value.__class__ is not ast.Constant:  # a docstring
            self.eval(node.value)

    def _assign(self, node: ast.Assign) -> None:
        value = self.eval(node.value)
        for target in node.targets:
            if target.__class__ is ast.Name:
                self.env.set_name(target.id, value)
                self.values[id(target)] = value
            else:
                self.bind(target, value)

    def _ann_assign(self, node: ast.AnnAssign) -> None:
        declared = self.inference.annotations.of(self.inference, self.fn, node.annotation)
        if node.value is not None:
            value = self.eval(node.value)
            self.bind(node.target, declared if value.kind is Kind.UNKNOWN else value)
        elif declared.kind:
            self.bind(node.target, declared)

    def _aug_assign(self, node: ast.AugAssign) -> None:
        target = node.target
        old = self.eval(target)
        value = self.eval(node.value)
        if Kind.TENSOR in (old.kind, value.kind):
            result = combine(old, value)
            if old.kind is Kind.TENSOR:  # in place: the tensor stays where it is
                result = result._replace(device=old.device)
        elif old.kind is Kind.LIST and value.kind in (Kind.LIST, Kind.TUPLE):
            result = join(old, list_of(element(value)))
        elif Kind.FOREIGN in (old.kind, value.kind):
            result = old if old.kind is Kind.FOREIGN else value
        elif ARRAY in (old, value):
            result = ARRAY
        else:
            result = old if old.kind is value.kind else join(old, value)
        self.bind(target, result)

    def bind(self, target: ast.expr, value: Value) -> None:
        """Assign a value to a target of any form."""
        kind = type(target)
        if kind is ast.Name:
            self.env.set_name(target.id, value)  # type: ignore[attr-defined]
            self.values[id(target)] = value
        elif kind is ast.Tuple or kind is ast.List:
            self._unpack(target.elts, value)  # type: ignore[attr-defined]
        elif kind is ast.Attribute:
            owner, path = self.with_path(target.value)  # type: ignore[attr-defined]
            if path is not None:
                self.env.set(f"{path}.{target.attr}", value)  # type: ignore[attr-defined]
            known = self.values.get(id(target.value), owner)  # type: ignore[attr-defined]
            self.inference.set_attribute(known, target.attr, value)  # type: ignore[attr-defined]
        elif kind is ast.Starred:
            self.bind(target.value, list_of(element(value)))  # type: ignore[attr-defined]
        elif kind is ast.Subscript:
            self._store(target, value)  # type: ignore[arg-type]

    def _unpack(self, targets: list[ast.expr], value: Value) -> None:
        items = value.items if value.kind is Kind.TUPLE else None
        starred = any(isinstance(target, ast.Starred) for target in targets)
        if items is not None and len(items) == len(targets) and not starred:
            for target, item in zip(targets, items, strict=True):
                self.bind(target, item)
            return
        each = element(value) if value.kind is not Kind.MOVED else value
        for target in targets:
            self.bind(target, each)

    def _store(self, target: ast.Subscript, value: Value) -> None:
        base = self.eval(target.value)
        index = self.eval(target.slice)
        path = dotted_path(target.value)
        if path is None:
            return
        if base.kind is Kind.DICT:
            pairs = base.items or ()
            if isinstance(index.const, str) and len(pairs) < 64:
                kept = tuple(pair for pair in pairs if pair[0] != index.const)
                wider = dict_of((*kept, (index.const, value)), base.elem)
            else:
                wider = dict_of(pairs, value if base.elem is None else join(base.elem, value))
            self.env.set(path, wider)
            self.inference.assign_attribute(self, target.value, wider)
        elif base.kind is Kind.LIST:
            wider = list_of(value if base.elem is None else join(base.elem, value))
            if wider != base:
                self.env.set(path, wider)
        elif base.kind is Kind.UNKNOWN and isinstance(index.const, str):
            self.env.set(f"{path}.[{index.const}]", value)

    def _return(self, node: ast.Return) -> None:
        self.returned(self.eval(node.value) if node.value is not None else HOST)

    def _if(self, node: ast.If) -> None:
        test = self.eval(node.test)
        if test.kind is Kind.FLAG:
            alive, dead = (node.body, node.orelse) if test.const else (node.orelse, node.body)
            self.fn.trace.dead.update(id(statement) for statement in dead)
            self._block(alive)
            if alive and isinstance(alive[-1], ast.Raise):
                for path in _on_host(node.test, alive is node.orelse):
                    self._put_on_host(path)
            return
        env = self.env
        mark = env.mark()
        narrows = node.test.__class__ in _NARROWING
        if narrows:
            self._narrow(node.test, True)
        self._block(node.body)
        body = env.rollback(mark)
        if narrows:
            self._narrow(node.test, False)
        if node.orelse:
            self._block(node.orelse)
        orelse = env.rollback(mark)
        if not body and not orelse:
            return
        ends_body, ends_orelse = _leaves(node.body), _leaves(node.orelse)
        if ends_body and not ends_orelse:
            env.merge([orelse], exhaustive=True)
        elif ends_orelse and not ends_body:
            env.merge([body], exhaustive=True)
        else:
            env.merge([body, orelse], exhaustive=True)

    def _narrow(self, test: ast.expr, holds: bool) -> None:
        """What `isinstance(x, float)` says about `x` in the branch where it holds, or where it does not."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            self._narrow(test.operand, not holds)
        elif isinstance(test, ast.BoolOp):
            if isinstance(test.op, ast.And) is holds:
                for operand in test.values:
                    self._narrow(operand, holds)
        elif isinstance(test, ast.Call) and isinstance(test.func, ast.Name) and len(test.args) == 2:
            path = dotted_path(test.args[0])
            if test.func.id != "isinstance" or path is None:
                return
            classes = test.args[1].elts if isinstance(test.args[1], ast.Tuple) else [test.args[1]]
            labels = {(dotted_path(item) or "").rpartition(".")[2] for item in classes}
            old = self.values.get(id(test.args[0]), UNKNOWN)
            if labels <= _HOST_TYPES and holds and old.kind in (Kind.TENSOR, Kind.UNKNOWN):
                self.env.set(path, HOST)
            elif labels <= _TENSOR_TYPES:
                if holds and old.kind is Kind.UNKNOWN:
                    self.env.set(path, Value(Kind.TENSOR, self.assumed()))
                elif not holds and old.kind is Kind.TENSOR:
                    self.env.set(path, UNKNOWN)

    def _put_on_host(self, path: str) -> None:
        """The code goes on only where a tensor lies on the host."""
        value = self.env.get(path)
        if value is not None and value.kind is Kind.TENSOR:
            self.env.set(path, value._replace(device=Device.CPU, sure=True))

    def _loop_head(self, node: _Loop) -> int:
        carried = self._carried.get(id(node))
        if carried:
            for path, value in carried.items():
                old = self.env.get(path)
                self.env.set(path, value if old is None else join(old, value))
        self._loops.append(node)
        return self.env.mark()

    def _loop_tail(self, node: _Loop, mark: int) -> None:
        self._loops.pop()
        after = {path: value for path, value in self.env.changes(mark).items() if value.kind}
        changed = self.env.rollback(mark)
        self._carried[id(node)] = after
        if not self._grew:
            self._grew = any(self._matters(node, path, value) for path, value in after.items())
        self.env.merge([changed], exhaustive=False)

    def _matters(self, node: _Loop, path: str, value: Value) -> bool:
        """Whether the next turn of a loop sees something else than this one did, now that this one has bound a name."""
        old = self.env.get(path)
        if old is not None and (old == value or join(old, value) == old):
            return False
        return "." in path or path in self.inference.read_first(node)

    def _for(self, node: ast.For | ast.AsyncFor) -> None:
        iterable = self.iterated(self.eval(node.iter), node.iter)
        if _iterates_batches(iterable):
            self.fn.trace.batch_loops.add(id(node))
        mark = self._loop_head(node)
        self.bind(node.target, element(iterable))
        self._block(node.body)
        self._loop_tail(node, mark)
        self._block(node.orelse)

    def iterated(self, value: Value, node: ast.expr) -> Value:
        """By convention, what is called a loader gives batches of host tensors."""
        if value.kind is Kind.UNKNOWN:
            path = (dotted_path(node) or "").lower()
            if path.endswith(_LOADER_WORDS):
                loader = Value(Kind.LOADER, elem=CPU_TENSOR._replace(sure=False))
                self.values[id(node)] = loader
                return loader
        if value.kind is Kind.INSTANCE:
            method = self.inference.method(value.ref, "__iter__")
            if method is not None:
                return self.inference.call(self, method, [value], {}, [])
        return value

    def _while(self, node: ast.While) -> None:
        mark = self._loop_head(node)
        self.statement = node
        self.eval(node.test)
        self._block(node.body)
        self._loop_tail(node, mark)
        self._block(node.orelse)

    def _with(self, node: ast.With | ast.AsyncWith) -> None:
        around = len(self.placed)
        for item in node.items:
            value = self.eval(item.context_expr)
            if value.kind is Kind.DEVICE:
                self.placed.append(value.device)
                if value.device >= Device.ASSUMED:
                    self.inference.note_built_on_device()
            if item.optional_vars is not None:
                self.bind(item.optional_vars, value)
        self._block(node.body)
        del self.placed[around:]

    def _try(self, node: Any) -> None:
        self._block(node.body)
        branches = []
        for handler in node.handlers:
            mark = self.env.mark()
            if handler.name:
                self.env.set(handler.name, HOST)
            self._block(handler.body)
            changed = self.env.rollback(mark)
            if not _leaves(handler.body):
                branches.append(changed)
        self.env.merge(branches, exhaustive=False)
        self._block(node.orelse)
        self._block(node.finalbody)

    def _assert(self, node: ast.Assert) -> None:
        self.eval(node.test)
        self._narrow(node.test, True)
        for path in _on_host(node.test, True):
            self._put_on_host(path)
        if node.msg is not None:
            self.eval(node.msg)

    def _raise(self, node: ast.Raise) -> None:
        if node.exc is not None:
            self.eval(node.exc)

    def _delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.env.set(target.id, UNKNOWN)

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            label = alias.asname or alias.name.partition(".")[0]
            self._bind_import(label, alias.name if alias.asname else label)

    def _import_from(self, node: ast.ImportFrom) -> None:
        base = "." * node.level + (node.module or "")
        joint = "" if not base or base.endswith(".") else "."
        for alias in node.names:
            if alias.name != "*":
                self._bind_import(alias.asname or alias.name, f"{base}{joint}{alias.name}")

    def _bind_import(self, label: str, dotted: str) -> None:
        if self.fn.is_module and label not in self.names:
            return  # it is looked up where it is used
        self.env.set(label, self.inference.project.resolve(self.fn.file, dotted))

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        info = self.fn.nested.get(id(node))
        if info is not None and info.cls is None:
            self.env.set(node.name, Value(Kind.FUNCTION, ref=info))

    def _class(self, node: ast.ClassDef) -> None:
        info = self.fn.file.classes.get(node.name)
        if info is None or info.node is not node:
            return
        self.env.set(node.name, Value(Kind.CLASS, ref=info))
        for statement in node.body:
            if isinstance(statement, (ast.Assign, ast.AnnAssign)):
                self.statement = statement
                self._class_attribute(info, statement)

    def _class_attribute(self, info: Any, statement: ast.Assign | ast.AnnAssign) -> None:
        if isinstance(statement, ast.AnnAssign):
            targets: list[ast.expr] = [statement.target]
            declared = self.inference.annotations.of(self.inference, self.fn, statement.annotation)
            value = self.eval(statement.value) if statement.value is not None else UNKNOWN
            value = declared if declared.kind else value
        else:
            targets, value = statement.targets, self.eval(statement.value)
        for target in targets:
            if isinstance(target, ast.Name) and value.kind not in (Kind.UNKNOWN, Kind.NONE):
                old = info.attributes.get(target.id)
                info.attributes[target.id] = value
                if old != value:
                    self.inference.note_attribute(info, target.id, old is None)

    def _match(self, node: Any) -> None:
        branches = []
        for case in node.cases:
            mark = self.env.mark()
            if case.guard is not None:
                self.statement = node
                self.eval(case.guard)
            self._block(case.body)
            branches.append(self.env.rollback(mark))
        self.env.merge(branches, exhaustive=False)

    def _global(self, node: ast.Global) -> None:
        for label in node.names:
            self.fn.reads.setdefault((id(self.fn.file.body), label), self.inference.clock)
            value = self.inference.global_name(self.fn.file, label)
            if value is not None:
                self.env.set(label, value)

    def _skip(self, node: ast.stmt) -> None:
        """`pass`, `break`, `continue`, and statements of a newer Python."""


class _Statements(dict[type, "Callable[[Any, Any], None]"]):
    def __missing__(self, key: type) -> Callable[[Any, Any], None]:
        return Interpreter._skip


_STATEMENTS = _Statements(
    {
        ast.Expr: Interpreter._expr,
        ast.Assign: Interpreter._assign,
        ast.AnnAssign: Interpreter._ann_assign,
        ast.AugAssign: Interpreter._aug_assign,
        ast.Return: Interpreter._return,
        ast.If: Interpreter._if,
        ast.For: Interpreter._for,
        ast.AsyncFor: Interpreter._for,
        ast.While: Interpreter._while,
        ast.With: Interpreter._with,
        ast.AsyncWith: Interpreter._with,
        ast.Try: Interpreter._try,
        ast.Assert: Interpreter._assert,
        ast.Raise: Interpreter._raise,
        ast.Delete: Interpreter._delete,
        ast.Import: Interpreter._import,
        ast.ImportFrom: Interpreter._import_from,
        ast.FunctionDef: Interpreter._function,
        ast.AsyncFunctionDef: Interpreter._function,
        ast.ClassDef: Interpreter._class,
        ast.Match: Interpreter._match,
        ast.Global: Interpreter._global,
    }
)
if hasattr(ast, "TryStar"):
    _STATEMENTS[ast.TryStar] = Interpreter._try


def evidence(fn: FunctionInfo) -> tuple[frozenset[str], frozenset[str]]:
    """Paths on which the function calls `.backward()`, and paths on which it calls what only modules have."""
    if fn.evidence is None:
        backward: set[str] = set()
        modules: set[str] = set()
        # The words are looked for in the text first: few functions hold one, and walking all of them costs more.
        stack: list[ast.AST] = list(fn.node.body) if _holds_evidence(fn) else []
        while stack:
            node = stack.pop()
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and fn.is_module:
                continue
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                attr = node.func.attr
                if attr in torch_api.MODULE_EVIDENCE:
                    path = dotted_path(node.func.value)
                    if path is not None:
                        modules.add(path)
                elif attr in _BACKWARD:
                    path = dotted_path(backward_of(node))
                    if path is not None:
                        backward.add(path)
            stack += children(node)
        fn.evidence = (frozenset(backward), frozenset(modules)) if backward or modules else _NO_EVIDENCE
    return fn.evidence


def _on_host(test: ast.expr, holds: bool) -> list[str]:
    """Paths of what lies on the host where a condition holds, or where it does not: `assert x.device.type == "cpu"`."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _on_host(test.operand, not holds)
    if isinstance(test, ast.BoolOp):
        return [path for item in test.values for path in _on_host(item, holds)] if _all_tell(test.op, holds) else []
    owner: ast.expr | None = None
    if isinstance(test, ast.Attribute) and test.attr in ("is_cuda", "is_cpu"):
        owner = test.value if (test.attr == "is_cpu") is holds else None
    elif isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.Eq, ast.NotEq)):
        named = test.comparators[0]
        left = test.left.value if isinstance(test.left, ast.Attribute) and test.left.attr == "type" else test.left
        if isinstance(named, ast.Call) and named.args:  # `torch.device("cpu")`
            named = named.args[0]
        says_cpu = isinstance(named, ast.Constant) and named.value == "cpu"
        if says_cpu and isinstance(left, ast.Attribute) and left.attr == "device":
            owner = left.value if isinstance(test.ops[0], ast.Eq) is holds else None
    path = dotted_path(owner) if owner is not None else None
    return [path] if path is not None else []


def _all_tell(operator: ast.boolop, holds: bool) -> bool:
    """Whether each operand of `and` or `or` is decided by the whole."""
    return isinstance(operator, ast.And) is holds


def _holds_evidence(fn: FunctionInfo) -> bool:
    file = fn.file
    if file.evidence_lines is None:
        file.evidence_lines = lines = []
        place, line = 0, 1
        for match in _EVIDENCE.finditer(file.text):
            line += file.text.count("\n", place, match.start())
            place = match.start()
            lines.append(line)
    if isinstance(fn.node, ast.Module):
        return bool(file.evidence_lines)
    first = bisect_left(file.evidence_lines, fn.node.lineno)
    return first < len(file.evidence_lines) and file.evidence_lines[first] <= (fn.node.end_lineno or fn.node.lineno)


def backward_of(node: ast.Call) -> ast.expr:
    """What a call of `backward` goes back from: `loss` in each form that says so.

    `loss.backward()`, `scaler.scale(loss).backward()`, `accelerator.backward(loss)`, `self.manual_backward(loss)`.
    """
    func = node.func
    assert isinstance(func, ast.Attribute)
    receiver = func.value
    if node.args and (func.attr == "manual_backward" or _engine(receiver)):
        return node.args[0]
    if isinstance(receiver, ast.Call) and receiver.args and getattr(receiver.func, "attr", "") == "scale":
        return receiver.args[0]
    return receiver


def _engine(node: ast.expr) -> bool:
    """Whether the object runs the backward pass for others."""
    return (dotted_path(node) or "").rpartition(".")[2].endswith(("accelerator", "fabric", "engine", "strategy"))


def _iterates_batches(value: Value) -> bool:
    if value.kind is Kind.LOADER:
        return True
    if value.kind is Kind.LIST and value.elem is not None and value.elem.kind is Kind.TUPLE:
        return any(item.kind is Kind.TENSOR and item.device == 0 and not item.sure for item in value.elem.items or ())
    return False


def _leaves(body: list[ast.stmt]) -> bool:
    """Whether a block never falls through to what follows it in the function."""
    return bool(body) and isinstance(body[-1], (ast.Return, ast.Raise))
