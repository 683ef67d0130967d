"""What calls give back: project functions, modules, and methods of tensors and of the rest."""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import TYPE_CHECKING

from gpusync_lint.catalogue import foreign
from gpusync_lint.domain import torch_api
from gpusync_lint.domain.lattice import (
    ARRAY,
    GPU_TENSOR,
    HOST,
    MOVED,
    UNKNOWN,
    Device,
    Kind,
    Value,
    any_tensor,
    dict_of,
    element,
    foreign_value,
    join,
    join_all,
    list_of,
    lookup,
    tensor_like,
    tuple_of,
    with_device,
)
from gpusync_lint.domain.tensor_ops import combine, is_gpu_string
from gpusync_lint.inference.expressions import EVALUATORS
from gpusync_lint.inference.library_calls import Functions
from gpusync_lint.project import framework_callbacks
from gpusync_lint.syntax.names import dotted_path

if TYPE_CHECKING:
    from collections.abc import Callable

Args = list[Value]
Kwargs = dict[str, Value]

_SIGNS = frozenset({"step", "backward", "zero_grad", "manual_backward", "apply_gradients", "generate"})
_NEVER_MOVED = (Kind.HOST, Kind.FUNCTION, Kind.NAME, Kind.ARRAY, Kind.FOREIGN)
_MAY_BE_MOVED = frozenset(
    {Kind.TENSOR, Kind.UNKNOWN, Kind.RECORDS, Kind.MOVED, Kind.TUPLE, Kind.LIST, Kind.DICT}
)  # fmt: skip
"""What holds data that a move copies; a module is moved once."""
_MOST_IN_TABLE = 8
_SEVERAL = (
    torch_api.ALWAYS_WITH_INDICES
    | torch_api.WITH_INDICES
    | torch_api.SPLITTERS
    | torch_api.TUPLES
    | {"unique", "unique_consecutive", "nonzero"}
)
"""Methods that may give more than one tensor."""
_SAME_DIMENSIONS = torch_api.KEEPS_BOOL | {"float", "long", "int", "double", "half", "abs", "exp", "log", "sqrt"}
_ELEMENTWISE = frozenset({"add", "sub", "mul", "div", "add_", "sub_", "mul_", "div_", "clamp", "clamp_", "neg"})
_SHOWING = ("add_", "log_", "set_post")
_TELLING = torch_api.TORCH_ONLY_METHODS | torch_api.LOGGERS | {
    "type", "item", "numpy", "log_prob", "entropy", "rsample", "format",
}  # fmt: skip
_RECURRENT = frozenset({"LSTM", "GRU", "RNN", "LSTMCell"})


class Calls(Functions):
    """Adds the meaning of calls to the expressions."""

    def call(self, node: ast.Call) -> Value:
        """Evaluate a call: its parts, the signs of a step that it gives, and its result."""
        func = node.func
        receiver: Value | None = None
        label = ""
        if func.__class__ is ast.Attribute:
            label = func.attr
            receiver, path = self.with_path(func.value)
            if receiver.kind is Kind.TENSOR:
                callee = UNKNOWN
            else:
                callee = self.attribute(func, receiver, f"{path}.{label}" if path else None)
                if callee.kind:
                    self.values[id(func)] = callee
        else:
            callee = self.eval(func)
        args: Args = []
        starred = False
        for arg in node.args:
            args.append(self.eval(arg))
            starred = starred or arg.__class__ is ast.Starred
        if starred:
            args = _expand_stars(self, node)
        kwargs: Kwargs = {}
        for keyword in node.keywords:
            value = self.eval(keyword.value)
            if keyword.arg is not None:
                kwargs[keyword.arg] = value
            elif value.kind is Kind.DICT:
                kwargs.update({k: v for k, v in value.items or () if k not in kwargs})
            elif value.kind is Kind.TENSOR:  # a batch that is a dictionary of tensors
                kwargs.setdefault("**", value)
        if receiver is not None:
            assert isinstance(func, ast.Attribute)
            if label in _SIGNS:
                self._mark_method(func, receiver, args)
            elif label == "add_event_handler" and len(args) > 1:
                self._handed_over(args[1], framework_callbacks.event(node.args[0]))
            kind = callee.kind
            if (kind is not Kind.FUNCTION and kind is not Kind.CLASS and kind is not Kind.NAME) or (
                receiver.kind is Kind.DICT
            ):
                result = self._method(node, func, receiver, callee, args, kwargs)
                if result is not None:
                    return result
                if kind is Kind.UNKNOWN and receiver.kind is Kind.UNKNOWN:
                    return self._by_method_name(func, args, kwargs)
        elif func.__class__ is ast.Subscript and callee.kind is Kind.UNKNOWN:
            table = self.values.get(id(func.value), UNKNOWN)
            return self._from_table(node, table, args, kwargs)
        return self.call_value(node, callee, args, kwargs)

    def _by_method_name(self, func: ast.Attribute, args: Args, kwargs: Kwargs) -> Value:
        """Call a method of something unknown: the project's, where its name says which one is meant."""
        results = []
        for method in self.inference.candidates(dotted_path(func.value), func.attr):
            receiver = self.inference.instance(method)
            results.append(self.inference.call(self, method, [receiver, *args], kwargs, []))
        if not results:
            self.unexplained(args, kwargs)
        return join_all(results)

    def _from_table(self, node: ast.Call, table: Value, args: Args, kwargs: Kwargs) -> Value:
        """Call what is looked up in a dictionary of functions, modules or classes: each of them may be meant."""
        found = [item for _, item in table.items or ()] if table.kind is Kind.DICT else []
        found = [item for item in found if item.kind in (Kind.FUNCTION, Kind.CLASS, Kind.MODULE, Kind.LAMBDA)]
        return join_all([self.call_value(node, item, args, kwargs) for item in found[:_MOST_IN_TABLE]])

    def call_value(self, node: ast.Call, callee: Value, args: Args, kwargs: Kwargs) -> Value:
        """Call a value that is not a method of a known kind."""
        kind = callee.kind
        if kind is Kind.NAME and isinstance(callee.ref, str):
            return self.external(node, callee.ref, args, kwargs)
        if kind is Kind.FUNCTION:
            wrapper = self.inference.wrapper(callee.ref)
            if wrapper:
                return self._call_foreign(wrapper)
            bound = [callee.const, *args] if isinstance(callee.const, Value) else args
            return self.inference.call(self, callee.ref, bound, kwargs, [])
        if kind is Kind.CLASS:
            return self.inference.instantiate(self, callee.ref, args, kwargs)
        if kind is Kind.FOREIGN:
            return self._call_foreign(callee.ref)
        if kind is Kind.LAMBDA:
            return self.call_lambda(callee, args)
        if kind is Kind.MODULE:
            return self._call_module(callee, args, kwargs)
        if kind is Kind.INSTANCE:
            method = self.inference.method(callee.ref, "__call__")
            if method is not None:
                return self.inference.call(self, method, [callee, *args], kwargs, [])
            if isinstance(node.func, ast.Name) and node.func.id == "self":  # a part of modules that make it callable
                return self._call_module(Value(Kind.MODULE, self.assumed()), args, kwargs)
        if kind is Kind.MOVED:
            self.mark("weak")
            return GPU_TENSOR._replace(sure=False)
        self.unexplained(args, kwargs)
        return UNKNOWN

    def _call_foreign(self, sort: str) -> Value:
        """Call a value of another framework: a compiled function, a model, a kernel with its grid."""
        described = foreign.table()[sort]
        if described.sign:
            self.mark(described.sign)
        return foreign_value(described.call)

    def _foreign_method(
        self, func: ast.Attribute, receiver: Value, callee: Value, args: Args, kwargs: Kwargs
    ) -> Value | None:
        sort = foreign.table()[receiver.ref]
        if func.attr in sort.host_methods:
            return HOST
        if sort.sign and not sort.call:
            self.mark(sort.sign)
        return foreign_value(sort.methods.get(func.attr, sort.attribute))

    def _inside_module(self) -> bool:
        return self.fn.cls is not None and self.inference.project.is_module_class(self.fn.cls)

    def _mark_method(self, func: ast.Attribute, receiver: Value, args: Args) -> None:
        attr = func.attr
        stepping = attr == "step" and receiver.kind in (Kind.OPTIMIZER, Kind.SCALER)
        if stepping or attr in ("backward", "zero_grad", "manual_backward", "apply_gradients"):
            self.mark("strong")
        elif attr == "step" and receiver.kind in (Kind.UNKNOWN, Kind.INSTANCE):
            words = (dotted_path(func.value) or "").lower()
            if "opt" in words or "scaler" in words:
                self.mark("strong")
            elif "env" in words and args:
                self.mark("weak")
        elif attr == "generate" and receiver.kind is Kind.MODULE:
            self.mark("weak")

    # methods

    def _method(
        self, node: ast.Call, func: ast.Attribute, receiver: Value, callee: Value, args: Args, kwargs: Kwargs
    ) -> Value | None:
        """A method of a value; None when the receiver's kind says nothing about it."""
        attr, kind = func.attr, receiver.kind
        if attr in ("to", "cuda", "cpu", "xpu") and kind not in _NEVER_MOVED:
            return self._move(func, receiver, args, kwargs)
        handler = _METHODS.get(kind)
        if handler is not None:
            return handler(self, func, receiver, callee, args, kwargs)
        if kind is Kind.INSTANCE:
            return None
        if (kind is Kind.UNKNOWN or kind is Kind.MOVED) and _tells(attr):
            if attr in torch_api.TORCH_ONLY_METHODS:
                device = Device.GPU if kind is Kind.MOVED else self.assumed()
                return Value(Kind.TENSOR, device, sure=False)
            if attr == "type" and args and tensor_type_of(args[0]):
                return self._as_type(Value(Kind.TENSOR, sure=False), args)
            if attr == "item":
                return HOST
            if attr == "numpy":
                return ARRAY
            if attr in ("log_prob", "entropy", "rsample"):
                return Value(Kind.TENSOR, self.assumed(), sure=False)
            if attr == "format" or attr in torch_api.LOGGERS or attr.startswith(_SHOWING):
                return HOST if attr == "format" else UNKNOWN
        return None

    def _move(self, func: ast.Attribute, receiver: Value, args: Args, kwargs: Kwargs) -> Value:
        """`.to(...)`, `.cuda()`, `.cpu()` on anything."""
        kind = receiver.kind
        target = self._target(func.attr, args, kwargs)
        if kind is Kind.TENSOR:
            boolean = receiver.boolean
            dtypes = [value for value in (*args, *kwargs.values()) if value.kind is Kind.DTYPE]
            if dtypes:
                boolean = dtypes[0].boolean
            device = receiver.device if target is None else target
            same = target is None
            return receiver._replace(device=device, boolean=boolean, pinned=receiver.pinned and same)
        if target is None:
            return receiver
        if kind in (Kind.TUPLE, Kind.LIST, Kind.DICT):
            return with_device(receiver, target)
        path = dotted_path(func.value)
        if kind is Kind.MODULE:
            moved = receiver._replace(device=target)
            if receiver.ref is not None and not isinstance(receiver.ref, str) and target is not Device.CPU:
                self.inference.note_moved(receiver.ref)
            if path is not None:  # a module is moved in place
                self.env.set(path, moved)
                self.inference.assign_attribute(self, func.value, moved)
            return moved
        if kind in (Kind.INSTANCE, Kind.OPTIMIZER, Kind.SCALER):
            return receiver
        if kind in (Kind.UNKNOWN, Kind.RECORDS, Kind.MOVED):
            return UNKNOWN if target is Device.CPU else MOVED
        return UNKNOWN

    def _target(self, attr: str, args: Args, kwargs: Kwargs) -> Device | None:
        """The device that a move goes to; None for a change of dtype or layout only."""
        if attr == "cpu":
            return Device.CPU
        if attr in ("cuda", "xpu"):
            return Device.GPU
        candidates = [kwargs["device"]] if "device" in kwargs else args[:1]
        for value in candidates:
            device = self.device_of(value)
            if device is not None:
                return device
            if value.kind is Kind.TENSOR:
                return value.device
            if (
                value.kind in (Kind.UNKNOWN, Kind.MOVED, Kind.HOST)
                and value.const is None
                and len(args) + len(kwargs) > 0
            ):
                return self.assumed() if value.kind is not Kind.HOST else Device.GPU
        return None

    def device_of(self, value: Value) -> Device | None:
        """The device that a value names; None when it names none."""
        if value.kind is Kind.DEVICE:
            return value.device
        if isinstance(value.const, str):
            if value.const.startswith("cpu"):
                return Device.CPU
            if is_gpu_string(value.const) or value.const in ("auto", "mps"):
                return Device.GPU
        if value.kind is Kind.HOST and isinstance(value.const, int) and not isinstance(value.const, bool):
            return Device.GPU
        return None

    def _tensor_method(self, func: ast.Attribute, receiver: Value, callee: Value, args: Args, kwargs: Kwargs) -> Value:
        return self.tensor_call(func.attr, receiver, args, kwargs)

    def tensor_call(self, attr: str, receiver: Value, args: Args, kwargs: Kwargs) -> Value:
        """The result of a tensor method, or of the function of the same name in torch."""
        if attr == "numpy":
            return ARRAY
        if attr in torch_api.HOST_METHODS:
            return list_of(HOST) if attr == "tolist" else HOST
        if attr in ("new_tensor", "new_zeros", "new_ones", "new_full", "new_empty"):
            return receiver._replace(zero_dim=None, pinned=False)
        if attr == "pin_memory":
            return receiver._replace(pinned=True)
        if attr == "type":
            return self._as_type(receiver, args) if args else HOST
        if attr in ("copy_", "index_put_", "masked_fill_", "index_fill_", "scatter_"):
            return receiver
        base = receiver
        if attr not in torch_api.RESHAPERS:
            for other in (*args, *kwargs.values()) if kwargs else args:
                if other.kind is Kind.TENSOR:
                    base = combine(base, other)
        dims = bool(args) or "dim" in kwargs or "axis" in kwargs
        boolean = attr in torch_api.BOOL_PRODUCERS or (
            receiver.boolean and (attr in torch_api.KEEPS_BOOL or attr in ("max", "min"))
        )
        zero: bool | None = None
        if attr in torch_api.REDUCTIONS:
            zero = not dims
        elif attr in _SAME_DIMENSIONS:
            zero = receiver.zero_dim
        elif attr in _ELEMENTWISE:
            zero = base.zero_dim
        sure = base.sure or attr in torch_api.TORCH_ONLY_METHODS
        result = tensor_like(base, sure, zero, boolean, False)
        if attr not in _SEVERAL:
            return result
        int_dim = (bool(args) and args[0].kind is Kind.HOST) or "dim" in kwargs
        if attr in torch_api.ALWAYS_WITH_INDICES or (attr in torch_api.WITH_INDICES and int_dim):
            return tuple_of([result._replace(zero_dim=None), result._replace(zero_dim=None, boolean=False)])
        if attr in torch_api.SPLITTERS:
            return list_of(result)
        if attr in ("unique", "unique_consecutive") and (kwargs or len(args) > 1):
            return list_of(result)
        if attr == "nonzero" and kwargs.get("as_tuple"):
            return list_of(result)
        return list_of(result) if attr in torch_api.TUPLES else result

    def _as_type(self, receiver: Value, args: Args) -> Value:
        """`x.type(torch.cuda.FloatTensor)`: a move and a change of dtype in one."""
        where = tensor_type_of(args[0])
        device = Device.GPU if where == "cuda" else Device.CPU if where == "cpu" else receiver.device
        return receiver._replace(device=device, pinned=False, boolean=_is_boolean_type(args[0]))

    def _module_method(
        self, func: ast.Attribute, receiver: Value, callee: Value, args: Args, kwargs: Kwargs
    ) -> Value | None:
        attr = func.attr
        if callee.kind is Kind.FUNCTION:
            return None
        if isinstance(receiver.ref, str) and self.inference.named.gives_tensor(f"{receiver.ref}.{attr}"):
            return Value(Kind.TENSOR, self.module_device(receiver))
        if callee.kind is Kind.MODULE:  # a submodule
            return self._call_module(callee, args, kwargs)
        if attr in (
            "train",
            "eval",
            "half",
            "float",
            "bfloat16",
            "double",
            "requires_grad_",
            "type",
            "to_empty",
            "compile",
        ):
            return receiver
        if attr in ("parameters", "buffers"):
            return list_of(Value(Kind.TENSOR, self.module_device(receiver)))
        if attr in ("named_parameters", "named_buffers"):
            return list_of(tuple_of([HOST, Value(Kind.TENSOR, self.module_device(receiver))]))
        if attr in ("modules", "children"):
            return list_of(Value(Kind.MODULE, receiver.device))
        if attr in ("named_modules", "named_children"):
            return list_of(tuple_of([HOST, Value(Kind.MODULE, receiver.device)]))
        if attr in ("state_dict",):
            return dict_of((), Value(Kind.TENSOR, self.module_device(receiver)))
        if attr in ("register_buffer",) and len(args) > 1 and isinstance(args[0].const, str):
            device = self.assumed()
            self.inference.set_attribute(receiver, args[0].const, with_device(args[1], device))
            return HOST
        if attr in ("generate",):
            return Value(Kind.TENSOR, self.module_device(receiver))
        if attr in ("load_state_dict", "zero_grad", "add_module", "apply", "register_parameter", "save_pretrained"):
            return UNKNOWN
        if attr == "log" and any_tensor(args, {}):
            return UNKNOWN
        if attr in ("forward", "__call__"):
            return self._call_module(receiver, args, kwargs)
        # Another method of a module from outside: it computes with what it is given.
        if any(value.kind is Kind.TENSOR for value in args):
            return Value(Kind.TENSOR, self.module_device(receiver), sure=False)
        return UNKNOWN

    def module_device(self, module: Value) -> Device:
        """Where a module's parameters are: where this instance went, or where some instance of its class went."""
        if module.device is Device.CPU and module.ref is not None and not isinstance(module.ref, str):
            return self.assumed() if self.inference.moved(self.fn, module.ref) else Device.CPU
        return module.device

    def _call_module(self, module: Value, args: Args, kwargs: Kwargs) -> Value:
        self.mark("layer" if self._inside_module() and module.ref is not self.fn.cls else "weak")
        device = self.module_device(module)
        if module.ref is not None and not isinstance(module.ref, str):
            forward = self.inference.method(module.ref, "forward")
            if forward is not None:
                result = self.inference.call(self, forward, [module, *args], kwargs, [])
                if device is Device.CPU:
                    return with_device(result, Device.CPU)
                if result.kind is not Kind.UNKNOWN:
                    return with_device(result, device) if device is Device.GPU else result
        dotted = module.ref if isinstance(module.ref, str) else ""
        given = [value for value in (*args, *kwargs.values()) if value.kind is Kind.TENSOR]
        last = dotted.rpartition(".")[2]
        if last.endswith("Loss"):
            where = max((value.device for value in given), default=self.assumed())
            return Value(Kind.TENSOR, where, zero_dim=module.const != "none" or None)
        if device is Device.CPU:  # a module without weights takes the device of its input
            device = max((value.device for value in given), default=Device.CPU)
        elif given:
            device = max(device, *(value.device for value in given))
        output = Value(Kind.TENSOR, device, sure=bool(dotted.startswith("torch.nn")))
        if last in _RECURRENT or last == "MultiheadAttention":
            hidden = tuple_of([output, output]) if last == "LSTM" else output
            return tuple_of([output, hidden])
        return output

    def _optimizer_method(
        self, func: ast.Attribute, receiver: Value, callee: Value, args: Args, kwargs: Kwargs
    ) -> Value | None:
        if receiver.kind is Kind.SCALER:
            if func.attr == "scale" and args:
                return args[0]
            if func.attr == "get_scale":
                return HOST
        if func.attr in ("step", "update_parameters") and args and args[0].kind is Kind.FUNCTION:
            return self.inference.call(self, args[0].ref, [], {}, [])  # a closure that computes the loss
        return UNKNOWN

    def _collection_method(
        self, func: ast.Attribute, receiver: Value, callee: Value, args: Args, kwargs: Kwargs
    ) -> Value | None:
        attr, kind = func.attr, receiver.kind
        if kind is Kind.DICT:
            if attr == "items":
                return list_of(tuple_of([HOST, join_all([v for _, v in receiver.items or ()] + _some(receiver.elem))]))
            if attr == "values":
                return list_of(join_all([v for _, v in receiver.items or ()] + _some(receiver.elem)))
            if attr in ("get", "pop", "setdefault"):
                return lookup(receiver, args[0].const) if args else UNKNOWN
            return receiver if attr == "copy" else HOST
        grown: Value | None = None
        if attr in ("append", "add", "appendleft") and args:
            grown = args[0]
        elif attr == "insert" and len(args) > 1:
            grown = args[1]
        elif attr == "extend" and args:
            grown = element(args[0])
        if grown is not None:
            old = receiver.elem if kind is Kind.LIST else element(receiver)
            wider = list_of(grown if old is None else join(old, grown))
            path = dotted_path(func.value)
            if path is not None and wider != receiver:
                self.env.set(path, wider)
                self.inference.assign_attribute(self, func.value, wider)
            return HOST
        if attr in ("pop", "popleft"):
            return element(receiver)
        return receiver if attr == "copy" else HOST

    def _distribution_method(
        self, func: ast.Attribute, receiver: Value, callee: Value, args: Args, kwargs: Kwargs
    ) -> Value | None:
        return Value(Kind.TENSOR, receiver.device)

    def _array_method(
        self, func: ast.Attribute, receiver: Value, callee: Value, args: Args, kwargs: Kwargs
    ) -> Value | None:
        if func.attr in ("item", "tolist"):
            return HOST
        return ARRAY

    def _host_method(
        self, func: ast.Attribute, receiver: Value, callee: Value, args: Args, kwargs: Kwargs
    ) -> Value | None:
        return HOST

    def _loader_method(
        self, func: ast.Attribute, receiver: Value, callee: Value, args: Args, kwargs: Kwargs
    ) -> Value | None:
        if func.attr in ("next", "__next__"):
            return self.next_batch(receiver)
        return receiver if func.attr == "__iter__" else UNKNOWN


@lru_cache(20_000)
def _tells(attr: str) -> bool:
    """Whether the name of a method says something of what it is called on, or gives back."""
    return attr in _TELLING or attr.startswith(_SHOWING)


def tensor_type_of(value: Value) -> str:
    """Where a legacy tensor type, given by name or as a string, puts a tensor: `cpu` or `cuda`; empty for others."""
    return torch_api.tensor_type(value.ref if value.kind is Kind.NAME else value.const)


def _is_boolean_type(value: Value) -> bool:
    if value.kind is Kind.NAME:
        return isinstance(value.ref, str) and value.ref.endswith("BoolTensor")
    return value.kind is Kind.DTYPE and value.boolean


def _expand_stars(interpreter: Calls, node: ast.Call) -> Args:
    args: Args = []
    for arg in node.args:
        if not isinstance(arg, ast.Starred):
            args.append(interpreter.values.get(id(arg), UNKNOWN))
            continue
        value = interpreter.values.get(id(arg.value), UNKNOWN)
        if value.kind is Kind.TUPLE:
            args.extend(value.items or ())
        else:
            args.append(element(value))
    return args


def _some(value: Value | None) -> list[Value]:
    return [] if value is None else [value]


_METHODS: dict[Kind, Callable[..., Value | None]] = {
    Kind.TENSOR: Calls._tensor_method,
    Kind.MODULE: Calls._module_method,
    Kind.OPTIMIZER: Calls._optimizer_method,
    Kind.SCALER: Calls._optimizer_method,
    Kind.SCHEDULER: Calls._optimizer_method,
    Kind.LIST: Calls._collection_method,
    Kind.TUPLE: Calls._collection_method,
    Kind.DICT: Calls._collection_method,
    Kind.DISTRIBUTION: Calls._distribution_method,
    Kind.ARRAY: Calls._array_method,
    Kind.HOST: Calls._host_method,
    Kind.LOADER: Calls._loader_method,
    Kind.FOREIGN: Calls._foreign_method,
}
EVALUATORS[ast.Call] = Calls.call
