"""What an expression holds, given what names hold."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

from gpusync_lint.catalogue import foreign
from gpusync_lint.domain import torch_api
from gpusync_lint.domain.external_names import member
from gpusync_lint.domain.lattice import (
    ARRAY,
    ARRAY_ELEMENT,
    CONSTANTS,
    GPU_ABSENT,
    GPU_DEVICE,
    GPU_PRESENT,
    GPU_TENSOR,
    HOST,
    NONE,
    UNKNOWN,
    Device,
    Kind,
    Value,
    dict_of,
    element,
    foreign_value,
    host,
    join,
    join_all,
    list_of,
    lookup,
    name,
    tensor,
    tuple_of,
)
from gpusync_lint.domain.tensor_ops import (
    HOST_BATCH_ATTRIBUTES,
    HOST_BATCH_NAMES,
    combine,
    device_comparison,
    is_gpu_string,
    tensor_attribute,
)
from gpusync_lint.syntax.names import dotted_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusync_lint.domain.environment import Environment
    from gpusync_lint.inference.fixpoint import Inference
    from gpusync_lint.project.symbols import FunctionInfo

_SWITCHES = {
    **dict.fromkeys(
        ("cuda", "use_cuda", "use_gpu", "gpu", "is_cuda", "on_gpu", "cuda_available", "has_cuda"), GPU_PRESENT
    ),
    **dict.fromkeys(
        ("no_cuda", "no_gpu", "use_cpu", "cpu_only", "force_cpu", "is_cpu", "on_cpu", "no_accel"), GPU_ABSENT
    ),
}
"""Names that say whether a GPU is there, or is to be used."""
_KEPT_ON_HOST = re.compile(r"(?<!is)(?<!on)(?<!use)(?<!to)(?<!no)(?<!force)_cpu$")
"""Names of tensors that people keep on the host on purpose, beside one on the device; not those of switches."""
_BUILTINS = frozenset(
    {
        "abs", "all", "any", "bool", "bytes", "callable", "chr", "complex", "dict", "dir", "divmod",
        "enumerate", "filter", "float", "format", "frozenset", "getattr", "hasattr", "hash", "hex", "id",
        "input", "int", "isinstance", "issubclass", "iter", "len", "list", "map", "max", "min", "next",
        "object", "open", "ord", "pow", "print", "range", "repr", "reversed", "round", "set", "setattr",
        "slice", "sorted", "str", "sum", "super", "tuple", "type", "vars", "zip",
    }
)  # fmt: skip
_BUILTIN_VALUES = {label: name(f"builtins.{label}") for label in _BUILTINS}
_BOTH_HOST = (Kind.HOST, Kind.HOST)
_UNKNOWN, _MOVED, _TENSOR = Kind.UNKNOWN, Kind.MOVED, Kind.TENSOR  # asked for by the million


class Expressions:
    """Evaluates expressions in the environment of one function. `Interpreter` adds the statements."""

    env: Environment
    fn: FunctionInfo
    inference: Inference
    named: dict[str, Value | None]
    """What the file binds names to by import, `def` or `class`, for those that were asked for."""
    names: dict[str, Value]
    """What names and dotted paths hold here: the values of `env`."""
    values: dict[int, Value]
    """What is known of expressions, by their `id`."""
    statement: ast.stmt
    repeated: int
    placed: list[Device]
    """The devices of the `with device:` blocks around the statement."""
    backward_names: frozenset[str]
    module_names: frozenset[str]
    lambdas: list[ast.Lambda]
    """The lambdas that are being called."""

    def call(self, node: ast.Call) -> Value:
        """What a call gives back; in `Calls`."""
        raise NotImplementedError

    def bind(self, target: ast.expr, value: Value) -> None:
        """Assign to a target; in `Interpreter`."""
        raise NotImplementedError

    def eval(self, node: ast.expr) -> Value:
        """What an expression holds; remembered for the rules when anything is known."""
        kind = node.__class__
        if kind is ast.Name:  # half of all expressions
            label: str = node.id  # type: ignore[attr-defined]
            value = self.names.get(label) or self._outer_name(label)
            known = value.kind
            if known is _TENSOR or known is _UNKNOWN or known is _MOVED:
                value = self._by_name(label, label, value)
                if not value.kind:
                    return value
        elif kind is ast.Attribute:
            base, path = self.with_path(node.value)  # type: ignore[attr-defined]
            if path is not None:
                path = f"{path}.{node.attr}"  # type: ignore[attr-defined]
            value = self.attribute(node, base, path)  # type: ignore[arg-type]
            if not value.kind:
                return value
        elif kind is ast.Constant:
            const = node.value  # type: ignore[attr-defined]
            value = NONE if const is None else CONSTANTS.get((const.__class__, const)) or host(const)
        else:
            value = EVALUATORS[kind](self, node)
            if not value.kind:
                return value
        self.values[id(node)] = value
        return value

    def with_path(self, node: ast.expr) -> tuple[Value, str | None]:
        """`eval`, and the `dotted_path` of the expression, for one walk along a chain of attributes."""
        kind = node.__class__
        path: str | None = None
        if kind is ast.Name:
            path = node.id  # type: ignore[attr-defined]
            value = self.names.get(path) or self._outer_name(path)
            known = value.kind
            if known is _TENSOR or known is _UNKNOWN or known is _MOVED:
                value = self._by_name(path, path, value)
        elif kind is ast.Attribute:
            base, path = self.with_path(node.value)  # type: ignore[attr-defined]
            if path is not None:
                path = f"{path}.{node.attr}"  # type: ignore[attr-defined]
            value = self.attribute(node, base, path)  # type: ignore[arg-type]
        else:
            return self.eval(node), path
        if value.kind:
            self.values[id(node)] = value
        return value, path

    def assumed(self) -> Device:
        """Where tensors of conventional training code lie."""
        return self.inference.assumed_device(self.fn)

    # names and attributes

    def _outer_name(self, label: str) -> Value:
        fn = self.fn
        body = fn.file.body
        outer = fn.outer
        reads, now = fn.reads, self.inference.clock
        while outer is not None and outer.name != "<module>":
            reads.setdefault((id(outer), label), now)
            found = outer.scope.get(label)
            if found is not None:
                return found
            outer = outer.outer
        reads.setdefault((id(body), label), now)
        found = body.scope.get(label)
        if found is None:
            if label in self.named:
                found = self.named[label]
            else:
                found = self.named[label] = self.inference.project.named(fn.file, label)
            if found is None and fn.file.definitions is not None:
                found = self.inference.global_name(fn.file, label)
            if found is None:
                return _BUILTIN_VALUES.get(label, UNKNOWN)
        return found

    def _by_name(self, path: str, last: str, value: Value) -> Value:
        """What a name or path holds that is a tensor, moved or unknown; `last` is the last word of the path."""
        if last[-4:] == "_cpu" and _KEPT_ON_HOST.search(last):
            return _on_host(value)
        if value.kind is _TENSOR:
            return self._confirmed(path, value) if self.backward_names else value
        if path in self.backward_names:
            return tensor(Device.GPU if value.kind is _MOVED else self.assumed(), zero_dim=True)
        if path in self.module_names:
            return Value(Kind.MODULE, Device.GPU if value.kind is _MOVED else self.assumed())
        if value.kind is _UNKNOWN:
            if last == "device":
                return Value(Kind.DEVICE, self.assumed())
            return _SWITCHES.get(last, value)
        return value

    def _confirmed(self, path: str, value: Value) -> Value:
        """A tensor on which ``backward()`` is called is one for sure, and of one element."""
        if value.kind is Kind.TENSOR and path in self.backward_names:
            return value._replace(sure=True, zero_dim=True)
        return value

    def attribute(self, node: ast.Attribute, base: Value, path: str | None) -> Value:
        """What an attribute holds, given the object, which is not evaluated again, and its own dotted path."""
        attr = node.attr
        if path is not None:
            value = self.names.get(path)
            if value is not None and value.kind:
                return value
        value = self.attribute_of(base, attr)
        kind = value.kind
        if kind is _TENSOR or kind is _UNKNOWN or kind is _MOVED:
            if path is not None:
                return self._by_name(path, attr, value)
            if attr[-4:] == "_cpu" and _KEPT_ON_HOST.search(attr):
                return _on_host(value)
        return value

    def attribute_of(self, base: Value, attr: str) -> Value:
        """What an attribute of a value holds."""
        kind = base.kind
        if kind is _UNKNOWN or kind is Kind.HOST:
            return HOST if kind else UNKNOWN
        if kind is Kind.NAME:
            return self._member(base, attr)
        if kind is _TENSOR:
            return tensor_attribute(base, attr)
        if (
            (kind is Kind.MODULE or kind is Kind.INSTANCE or kind is Kind.RECORDS)
            and base.ref is not None
            and not isinstance(base.ref, str)
        ):
            return self._instance_attribute(base, attr)
        if kind is Kind.MODULE:
            if attr in ("weight", "bias"):
                return Value(Kind.TENSOR, base.device)
            if attr == "module":
                return base
            return Value(Kind.DEVICE, base.device) if attr == "device" else UNKNOWN
        if kind is Kind.CLASS:
            method = self.inference.method(base.ref, attr)
            if method is not None:
                return Value(Kind.FUNCTION, ref=method, const=None if method.kind == "static" else base)
            return self.inference.attribute(self.fn, base.ref, attr) or UNKNOWN
        if kind is Kind.MOVED:
            if attr.startswith(HOST_BATCH_ATTRIBUTES) or attr in HOST_BATCH_NAMES:
                return HOST
            if attr == "device":
                return GPU_DEVICE
            return Value(Kind.TENSOR, Device.GPU, sure=False, boolean=attr == "mask" or attr.endswith("_mask"))
        if kind is Kind.FOREIGN:
            sort = foreign.table()[base.ref]
            return HOST if attr in sort.host_attributes else foreign_value(sort.methods.get(attr, sort.attribute))
        if kind is Kind.DEVICE:
            return HOST
        if kind is Kind.TUPLE and attr in ("values", "indices") and len(base.items or ()) == 2:  # of `x.max(dim)`
            return lookup(base, 0 if attr == "values" else 1)
        if kind is Kind.ARRAY:
            return HOST if attr in ("shape", "dtype", "size", "ndim") else ARRAY
        if kind is Kind.DISTRIBUTION and attr in (
            "mean",
            "loc",
            "scale",
            "probs",
            "logits",
            "stddev",
            "variance",
            "mode",
        ):
            return Value(Kind.TENSOR, base.device)
        return UNKNOWN

    def _member(self, base: Value, attr: str) -> Value:
        ref = base.ref
        if ref.__class__ is not str:
            return self.inference.member(self.fn, ref, attr)
        return member(ref, attr)

    def _instance_attribute(self, base: Value, attr: str) -> Value:
        method = self.inference.method(base.ref, attr)
        if method is not None:
            if method.kind == "property":
                return self.inference.call(self, method, [base], {}, [])
            return Value(Kind.FUNCTION, ref=method, const=None if method.kind == "static" else base)
        found = self.inference.attribute(self.fn, base.ref, attr)
        if found is None:
            if base.kind is Kind.MODULE and attr == "module":
                return base
            if attr == "device":
                return Value(Kind.DEVICE, max(base.device, self.assumed()))
            part = torch_api.PARTS.get(attr, "")
            inherits = part and "torch.nn.Transformer" in self.inference.project.lineage(base.ref)
            return Value(Kind.MODULE, base.device, ref=part) if inherits else UNKNOWN
        if base.kind is Kind.MODULE and found.kind is Kind.MODULE and found.device is Device.CPU:
            return found._replace(device=base.device)  # made in a mixin, moved with the module that holds it
        return found

    # operators

    def _binary(self, node: ast.BinOp) -> Value:
        left, right = self.eval(node.left), self.eval(node.right)
        op = node.op.__class__
        if op is ast.Mod and _is_string(node.left, left):
            return HOST
        kinds = (left.kind, right.kind)
        if kinds == _BOTH_HOST:
            return HOST
        if Kind.TENSOR in kinds:
            value = combine(left, right)
            bitwise = op in (ast.BitAnd, ast.BitOr, ast.BitXor)
            boolean = bitwise and left.boolean and right.boolean
            return tensor(value.device, left.sure and right.sure, value.zero_dim, boolean)
        if Kind.FOREIGN in kinds:
            return foreign_value(foreign.table()[(left if left.kind is Kind.FOREIGN else right).ref].result)
        if left.kind is Kind.ARRAY or right.kind is Kind.ARRAY:
            numbers = all(value.kind is Kind.HOST or value == ARRAY_ELEMENT for value in (left, right))
            return ARRAY_ELEMENT if numbers else ARRAY
        if op is ast.Add and left.kind in (Kind.LIST, Kind.TUPLE) and right.kind in (Kind.LIST, Kind.TUPLE):
            return (
                join(left, right)
                if left.kind is right.kind is Kind.LIST
                else list_of(join(element(left), element(right)))
            )
        if op is ast.Mult and left.kind is Kind.LIST:
            return left
        if left.kind in (Kind.HOST, Kind.FLAG) and right.kind in (Kind.HOST, Kind.FLAG):
            return HOST
        if Kind.MOVED in kinds:
            return tensor(Device.GPU, sure=False)
        return UNKNOWN

    def _bool_op(self, node: ast.BoolOp) -> Value:
        values = [self.eval(item) for item in node.values]
        flags = [value.const for value in values if value.kind is Kind.FLAG]
        if isinstance(node.op, ast.And):
            if False in flags:
                return GPU_ABSENT
            if flags and all(value.kind in (Kind.FLAG, Kind.UNKNOWN, Kind.HOST) for value in values):
                return GPU_PRESENT
        elif True in flags:
            return GPU_PRESENT
        elif flags and len(flags) == len(values):
            return GPU_ABSENT
        return join_all(values)

    def _unary(self, node: ast.UnaryOp) -> Value:
        if isinstance(node.op, ast.Not):
            value = self.eval(node.operand)
            if value.kind is Kind.FLAG:
                return GPU_ABSENT if value.const else GPU_PRESENT
            return HOST
        value = self.eval(node.operand)
        if isinstance(node.op, ast.Invert) and value.kind is Kind.TENSOR:
            return value._replace(boolean=True)  # of the tensors that people invert, nearly all are masks
        if isinstance(node.op, ast.USub) and isinstance(value.const, (int, float)):
            return host(-value.const)
        return value

    def _compare(self, node: ast.Compare) -> Value:
        values = [self.eval(node.left)]
        for item in node.comparators:
            values.append(self.eval(item))
        op = node.ops[0].__class__
        if op is ast.Is or op is ast.IsNot:
            return host(op is ast.Is) if values[1].kind is Kind.NONE and self._is_off(node.left) else HOST
        if len(values) == 2:
            flag = device_comparison(op, values[0], values[1])
            if flag is not None:
                return flag
        if any(isinstance(value.const, str) for value in values):
            return HOST  # whatever is compared with a string is one
        tensors = [value for value in values if value.kind is Kind.TENSOR]
        if op in (ast.In, ast.NotIn):
            return HOST
        if tensors:
            result = combine(values[0], values[1]) if len(values) == 2 else join_all(tensors)
            return result._replace(boolean=True, sure=all(value.sure for value in tensors))
        for value in values:
            if value.kind is Kind.FOREIGN:
                return foreign_value(foreign.table()[value.ref].result)
        if Kind.ARRAY in (values[0].kind, values[1].kind):
            return ARRAY
        if Kind.MOVED in (values[0].kind, values[1].kind):
            return Value(Kind.TENSOR, Device.GPU, sure=False, boolean=True)
        return HOST if all(value.kind in (Kind.HOST, Kind.NONE, Kind.FLAG) for value in values) else UNKNOWN

    def _is_off(self, node: ast.expr) -> bool:
        """Whether this is a setting that is None unless someone says otherwise."""
        if not isinstance(node, ast.Attribute):
            return False
        owner = self.values.get(id(node.value), UNKNOWN)
        settings = owner.kind is Kind.INSTANCE and owner.ref is not None
        return settings and self.inference.project.off_by_default(owner.ref, node.attr)

    def _if_exp(self, node: ast.IfExp) -> Value:
        test = self.eval(node.test)
        body, orelse = self.eval(node.body), self.eval(node.orelse)
        if test.kind is Kind.FLAG:
            taken, other = (body, orelse) if test.const else (orelse, body)
            if isinstance(taken.const, bool) and isinstance(other.const, bool) and taken.const is not other.const:
                return GPU_PRESENT if taken.const else GPU_ABSENT  # `True if torch.cuda.is_available() else False`
            return taken
        strings = (body.const, orelse.const)
        if all(isinstance(text, str) for text in strings) and any(is_gpu_string(text) for text in strings):
            return body if is_gpu_string(body.const) else orelse
        return join(body, orelse)

    # containers

    def _tuple(self, node: ast.Tuple) -> Value:
        return tuple_of([self.eval(item) for item in node.elts])

    def _list(self, node: ast.List | ast.Set) -> Value:
        values = [self.eval(item) for item in node.elts]
        return list_of(join_all(values) if values else None)

    def _dict(self, node: ast.Dict) -> Value:
        pairs: list[tuple[str, Value]] = []
        rest: Value | None = None
        for key, item in zip(node.keys, node.values, strict=True):
            value = self.eval(item)
            if key is None:
                if value.kind is Kind.DICT:
                    pairs.extend(value.items or ())
                continue
            label = self.eval(key).const
            if isinstance(label, str) and len(pairs) < 64:
                pairs.append((label, value))
            else:
                rest = value if rest is None else join(rest, value)
        return dict_of(tuple(pairs), rest)

    def _starred(self, node: ast.Starred) -> Value:
        return element(self.eval(node.value))

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Value:
        with_targets = self._generators(node.generators)
        value = self.eval(node.elt)
        self._leave(with_targets)
        return list_of(value)

    def _dict_comp(self, node: ast.DictComp) -> Value:
        with_targets = self._generators(node.generators)
        self.eval(node.key)
        value = self.eval(node.value)
        self._leave(with_targets)
        return dict_of((), value)

    def _generators(self, generators: list[ast.comprehension]) -> int:
        mark = self.env.mark()
        self.repeated += 1
        for generator in generators:
            self.bind(generator.target, element(self.iterated(self.eval(generator.iter), generator.iter)))
            for condition in generator.ifs:
                self.eval(condition)
        return mark

    def iterated(self, value: Value, node: ast.expr) -> Value:
        """What a loop runs over; a hook for conventions about unknown iterables."""
        return value

    def _leave(self, mark: int) -> None:
        self.repeated -= 1
        self.env.rollback(mark)

    def _subscript(self, node: ast.Subscript) -> Value:
        base = self.eval(node.value)
        index = self.eval(node.slice)
        path = _constant_path(node)
        if path is not None:
            known = self.env.get(path)
            if known is not None:
                return known
        kind = base.kind
        if kind is Kind.TENSOR:
            return self.index_tensor(base, index, node.slice)
        if kind in (Kind.LIST, Kind.TUPLE):
            return base if isinstance(node.slice, ast.Slice) else lookup(base, index.const)
        if kind is Kind.DICT:
            return lookup(base, index.const)
        if kind is Kind.FOREIGN or kind is Kind.FUNCTION:
            sort = base.ref if kind is Kind.FOREIGN else self.inference.wrapper(base.ref)
            return foreign_value(foreign.table()[sort].item) if sort else UNKNOWN
        if kind is Kind.MOVED:
            return GPU_TENSOR._replace(sure=False) if isinstance(index.const, str) else base
        if kind is Kind.RECORDS:
            return Value(Kind.RECORDS)
        if kind is Kind.MODULE:
            return Value(Kind.MODULE, base.device)
        if kind in (Kind.ARRAY, Kind.HOST):
            return element(base) if kind is Kind.ARRAY and not isinstance(node.slice, ast.Slice) else Value(kind)
        return UNKNOWN

    def index_tensor(self, base: Value, index: Value, node: ast.expr) -> Value:
        """A tensor read by an index."""
        if isinstance(index.const, str):  # a batch that is a dictionary
            return base
        if index.kind is Kind.TENSOR and index.zero_dim is None and not isinstance(node, ast.Tuple):
            return base._replace(zero_dim=None, pinned=False, sure=base.sure)
        return base._replace(zero_dim=None, pinned=False)

    def _slice(self, node: ast.Slice) -> Value:
        for bound in (node.lower, node.upper, node.step):
            if bound is not None:
                self.eval(bound)
        return HOST

    # the rest

    def _joined(self, node: ast.JoinedStr) -> Value:
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                self.eval(part)
        return HOST

    def _formatted(self, node: ast.FormattedValue) -> Value:
        self.eval(node.value)
        if node.format_spec is not None:
            self.eval(node.format_spec)
        return HOST

    def _lambda(self, node: ast.Lambda) -> Value:
        mark = self.env.mark()
        for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            self.env.set(arg.arg, UNKNOWN)
        self.eval(node.body)
        self.env.rollback(mark)
        return Value(Kind.LAMBDA, ref=(node, self.fn))

    def call_lambda(self, callee: Value, args: list[Value]) -> Value:
        """What a lambda gives back for these arguments, where the names around it can be seen."""
        node, fn = callee.ref
        if not (fn is self.fn or (fn.is_module and fn.file is self.fn.file)) or node in self.lambdas:
            return UNKNOWN
        self.lambdas.append(node)
        mark = self.env.mark()
        for position, arg in enumerate((*node.args.posonlyargs, *node.args.args)):
            self.env.set(arg.arg, args[position] if position < len(args) else UNKNOWN)
        value = self.eval(node.body)
        self.env.rollback(mark)
        self.lambdas.pop()
        return value

    def _named(self, node: ast.NamedExpr) -> Value:
        value = self.eval(node.value)
        self.bind(node.target, value)
        return value

    def _await(self, node: ast.Await) -> Value:
        return self.eval(node.value)

    def _yield_from(self, node: ast.YieldFrom) -> Value:
        value = self.iterated(self.eval(node.value), node.value)
        self.returned(value if value.kind is Kind.LOADER else list_of(element(value)))
        return UNKNOWN

    def _yield(self, node: ast.Yield) -> Value:
        if node.value is not None:
            value = self.eval(node.value)
            self.returned(Value(Kind.LOADER, Device.CPU, elem=value) if self.hands_out_batches() else list_of(value))
        return UNKNOWN

    def hands_out_batches(self) -> bool:
        """Whether the statement stands in a loop over a data loader; in `Interpreter`."""
        raise NotImplementedError

    def returned(self, value: Value) -> None:
        """Note what the function gives back; in `Interpreter`."""
        raise NotImplementedError

    def _nothing(self, node: ast.expr) -> Value:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.eval(child)
        return UNKNOWN


class _Evaluators(dict[type, "Callable[[Any, Any], Value]"]):
    """Expression types that a newer Python adds are unknown, their parts are still looked at."""

    def __missing__(self, key: type) -> Callable[[Any, Any], Value]:
        return Expressions._nothing


EVALUATORS = _Evaluators(
    {
        ast.BinOp: Expressions._binary,
        ast.BoolOp: Expressions._bool_op,
        ast.UnaryOp: Expressions._unary,
        ast.Compare: Expressions._compare,
        ast.IfExp: Expressions._if_exp,
        ast.Tuple: Expressions._tuple,
        ast.List: Expressions._list,
        ast.Set: Expressions._list,
        ast.Dict: Expressions._dict,
        ast.Starred: Expressions._starred,
        ast.ListComp: Expressions._comprehension,
        ast.SetComp: Expressions._comprehension,
        ast.GeneratorExp: Expressions._comprehension,
        ast.DictComp: Expressions._dict_comp,
        ast.Subscript: Expressions._subscript,
        ast.Slice: Expressions._slice,
        ast.JoinedStr: Expressions._joined,
        ast.FormattedValue: Expressions._formatted,
        ast.Lambda: Expressions._lambda,
        ast.NamedExpr: Expressions._named,
        ast.Await: Expressions._await,
        ast.YieldFrom: Expressions._yield_from,
        ast.Yield: Expressions._yield,
    }
)


def _on_host(value: Value) -> Value:
    """A value whose name says that it lies on the host, where nothing surer is known."""
    assumed = value.kind is Kind.TENSOR and value.device is not Device.GPU
    return Value(Kind.TENSOR, Device.CPU, sure=False) if assumed or value.kind is Kind.UNKNOWN else value


def _is_string(node: ast.expr, value: Value) -> bool:
    return isinstance(value.const, str) or isinstance(node, ast.JoinedStr)


def _constant_path(node: ast.Subscript) -> str | None:
    if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        base = dotted_path(node.value)
        return f"{base}.[{node.slice.value}]" if base else None
    return None
