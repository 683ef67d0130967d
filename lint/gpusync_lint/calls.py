"""What calls give back: project functions, modules, tensor methods, torch's functions, and the rest."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint import sorts, torch_api
from gpusync_lint.expressions import Expressions, combine, dotted_path, is_gpu_string
from gpusync_lint.project import is_module_name
from gpusync_lint.values import (
    ARRAY,
    CPU_TENSOR,
    GPU_DEVICE,
    GPU_PRESENT,
    GPU_TENSOR,
    HOST,
    MOVED,
    UNKNOWN,
    Device,
    Kind,
    Value,
    dict_of,
    element,
    foreign,
    has_tensor,
    join,
    join_all,
    list_of,
    lookup,
    name,
    tuple_of,
    with_device,
)

if TYPE_CHECKING:
    from collections.abc import Callable

Args = list[Value]
Kwargs = dict[str, Value]

_READERS = frozenset({"item", "tolist", "cpu", "numpy", "synchronize", "get_scale", "__array__", "to", "cuda", "type"})
_CONVERTERS = frozenset(
    {
        "float", "int", "bool", "complex", "print", "str", "repr", "format", "range", "max", "min", "sorted",
        "any", "all", "round", "hex", "bin", "divmod", "pow",
    }
)  # fmt: skip
_WRAPPERS = frozenset({"tqdm", "trange", "track", "progress_bar", "Bar", "alive_it"})
_NEVER_MOVED = (Kind.HOST, Kind.FUNCTION, Kind.NAME, Kind.ARRAY, Kind.FOREIGN)
_RECURRENT = frozenset({"LSTM", "GRU", "RNN", "LSTMCell"})


def is_data_loader(dotted: str) -> bool:
    """Whether an outside class is a loader of batches."""
    last = dotted.rpartition(".")[2]
    return last.endswith(("DataLoader", "NeighborLoader", "NeighborSampler")) or dotted.startswith(
        "torch_geometric.loader.",
    )


class Calls(Expressions):
    """Adds the meaning of calls to the expressions."""

    def call(self, node: ast.Call) -> Value:
        """Evaluate a call: its parts, the signs of a step that it gives, and its result."""
        func = node.func
        receiver: Value | None = None
        if isinstance(func, ast.Attribute):
            receiver = self.eval(func.value)
            callee = UNKNOWN if receiver.kind is Kind.TENSOR else self.attribute(func, receiver)
            if callee.kind:
                self.inference.values[id(func)] = callee
        else:
            callee = self.eval(func)
        args = [self.eval(arg) for arg in node.args]
        if any(isinstance(arg, ast.Starred) for arg in node.args):
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
        if isinstance(func, ast.Attribute) and receiver is not None:
            self._mark_method(func, receiver, args)
            if func.attr in _READERS:
                self.hit()
            if callee.kind not in (Kind.FUNCTION, Kind.CLASS, Kind.NAME) or receiver.kind is Kind.DICT:
                result = self._method(node, func, receiver, callee, args, kwargs)
                if result is not None:
                    return result
        return self.call_value(node, callee, args, kwargs)

    def call_value(self, node: ast.Call, callee: Value, args: Args, kwargs: Kwargs) -> Value:
        """Call a value that is not a method of a known kind."""
        kind = callee.kind
        if kind is Kind.FOREIGN:
            return self._call_foreign(callee.ref)
        if kind is Kind.FUNCTION:
            wrapper = self.inference.wrapper(callee.ref)
            if wrapper:
                return self._call_foreign(wrapper)
            bound = [callee.const, *args] if isinstance(callee.const, Value) else args
            return self.inference.call(self, callee.ref, bound, kwargs, [])
        if kind is Kind.CLASS:
            return self.inference.instantiate(self, callee.ref, args, kwargs)
        if kind is Kind.NAME and isinstance(callee.ref, str):
            return self._external(node, callee.ref, args, kwargs)
        if kind is Kind.MODULE:
            return self._call_module(callee, args, kwargs)
        if kind is Kind.INSTANCE:
            method = self.inference.project.method(callee.ref, "__call__")
            if method is not None:
                return self.inference.call(self, method, [callee, *args], kwargs, [])
        if kind is Kind.MOVED:
            self.mark("weak")
            return GPU_TENSOR._replace(sure=False)
        if has_tensor(tuple_of([*args, *kwargs.values()])):
            self.hit()
        return UNKNOWN

    def _call_foreign(self, sort: str) -> Value:
        """Call a value of another framework: a compiled function, a model, a kernel with its grid."""
        self.hit()
        described = sorts.table()[sort]
        if described.sign:
            self.mark(described.sign)
        return foreign(described.call)

    def _foreign_method(
        self, func: ast.Attribute, receiver: Value, callee: Value, args: Args, kwargs: Kwargs
    ) -> Value | None:
        sort = sorts.table()[receiver.ref]
        if func.attr in sorts.barrier_methods():
            self.hit()
        if func.attr in sort.host_methods:
            return HOST
        if sort.sign and not sort.call:
            self.mark(sort.sign)
        return foreign(sort.methods.get(func.attr, sort.attribute))

    def _foreign_function(self, dotted: str, args: Args, kwargs: Kwargs) -> Value | None:
        """Call a function of another framework; None when no catalogue speaks of it."""
        if dotted in sorts.barrier_functions():
            self.hit()
        module = sorts.module_from().get(dotted)
        if module is not None:
            return name(module)
        wrapped = sorts.wrappers().get(dotted)
        if wrapped is not None or dotted.startswith(sorts.tracing_modules()):
            for value in (*args, *kwargs.values()):
                if value.kind is Kind.FUNCTION:
                    value.ref.traced = True
        if wrapped is not None:
            return foreign(wrapped)
        made = sorts.made_by(dotted)
        if made is None:
            return None
        if made.sign:
            self.mark(made.sign)
        return foreign(made.name)

    def mark(self, kind: str) -> None:
        """Note a sign of a step."""
        self.fn.trace.marks.append((kind, self.statement))

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
        if kind in (Kind.UNKNOWN, Kind.MOVED):
            if attr in torch_api.TORCH_ONLY_METHODS:
                device = Device.GPU if kind is Kind.MOVED else self.assumed()
                return Value(Kind.TENSOR, device, sure=False)
            if attr == "item":
                return HOST
            if attr == "numpy":
                return ARRAY
            if attr in ("log_prob", "entropy", "rsample"):
                return Value(Kind.TENSOR, self.assumed(), sure=False)
            if attr == "format" or attr in torch_api.LOGGERS or attr.startswith(("add_", "log_", "set_post")):
                if has_tensor(tuple_of([*args, *kwargs.values()])):
                    self.hit()
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
                receiver.ref.moved = True
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
        if attr in self.inference.barrier_methods:
            self.hit()
        if attr == "numpy":
            return ARRAY
        if attr in torch_api.HOST_METHODS:
            return list_of(HOST) if attr == "tolist" else HOST
        if attr in ("new_tensor", "new_zeros", "new_ones", "new_full", "new_empty"):
            return receiver._replace(zero_dim=None, pinned=False)
        if attr == "pin_memory":
            self.hit()
            return receiver._replace(pinned=True)
        if attr == "type" and not args:
            return HOST
        if attr in ("copy_", "index_put_", "masked_fill_", "index_fill_", "scatter_"):
            self.hit()
            return receiver
        base = receiver._replace(pinned=False)
        for other in (*args, *kwargs.values()):
            if other.kind is Kind.TENSOR:
                base = combine(base, other)
        dims = bool(args) or "dim" in kwargs or "axis" in kwargs
        boolean = attr in torch_api.BOOL_PRODUCERS or (
            receiver.boolean and (attr in torch_api.KEEPS_BOOL or attr in ("max", "min"))
        )
        zero: bool | None = None
        if attr in torch_api.REDUCTIONS:
            zero = not dims
        elif attr in torch_api.KEEPS_BOOL or attr in (
            "float",
            "long",
            "int",
            "double",
            "half",
            "abs",
            "exp",
            "log",
            "sqrt",
        ):
            zero = receiver.zero_dim
        elif attr in ("add", "sub", "mul", "div", "add_", "sub_", "mul_", "div_", "clamp", "clamp_", "neg"):
            zero = base.zero_dim
        sure = base.sure or attr in torch_api.TORCH_ONLY_METHODS
        result = base._replace(boolean=boolean, zero_dim=zero, sure=sure)
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

    def _module_method(
        self, func: ast.Attribute, receiver: Value, callee: Value, args: Args, kwargs: Kwargs
    ) -> Value | None:
        attr = func.attr
        if callee.kind is Kind.FUNCTION:
            return None
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
        if attr == "log" and has_tensor(tuple_of(args)):
            return UNKNOWN
        if attr in ("forward", "__call__"):
            return self._call_module(receiver, args, kwargs)
        # Another method of a module from outside: it computes with what it is given.
        if any(value.kind is Kind.TENSOR for value in args):
            return Value(Kind.TENSOR, self.module_device(receiver), sure=False)
        return UNKNOWN

    def module_device(self, module: Value) -> Device:
        """Where a module's parameters are: where this instance went, or where some instance of its class went."""
        if module.device is Device.CPU and getattr(module.ref, "moved", False):
            return self.assumed()
        return module.device

    def _call_module(self, module: Value, args: Args, kwargs: Kwargs) -> Value:
        self.mark("layer" if self._inside_module() and module.ref is not self.fn.cls else "weak")
        device = self.module_device(module)
        if module.ref is not None and not isinstance(module.ref, str):
            forward = self.inference.project.method(module.ref, "forward")
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
        if last == "TransformerEncoder":
            self.hit()
        if last in _RECURRENT or last == "MultiheadAttention":
            hidden = tuple_of([output, output]) if last == "LSTM" else output
            return tuple_of([output, hidden])
        return output

    def _optimizer_method(
        self, func: ast.Attribute, receiver: Value, callee: Value, args: Args, kwargs: Kwargs
    ) -> Value | None:
        if receiver.kind is Kind.SCALER:
            self.hit()
            if func.attr == "scale" and args:
                return args[0]
            if func.attr == "get_scale":
                return HOST
        if func.attr in ("step", "update_parameters"):
            self.hit()
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
            if grown.kind is Kind.TENSOR and self.backward_names:
                self.hit()
            if path is not None and wider != receiver:
                self.env.set(path, wider)
                self.inference.assign_attribute(self, func.value, wider)
            return HOST
        if attr in ("pop", "popleft"):
            return element(receiver)
        if attr in ("remove", "index", "count") and args and args[0].kind is Kind.TENSOR:
            self.hit()
        return receiver if attr == "copy" else HOST

    def _distribution_method(
        self, func: ast.Attribute, receiver: Value, callee: Value, args: Args, kwargs: Kwargs
    ) -> Value | None:
        if func.attr == "log_prob":
            self.hit()
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
        if has_tensor(tuple_of([*args, *kwargs.values()])):
            self.hit()
        return HOST

    def _loader_method(
        self, func: ast.Attribute, receiver: Value, callee: Value, args: Args, kwargs: Kwargs
    ) -> Value | None:
        return receiver if func.attr == "__iter__" else UNKNOWN

    # functions outside the project

    def _external(self, node: ast.Call, dotted: str, args: Args, kwargs: Kwargs) -> Value:
        root, _, rest = dotted.partition(".")
        if root == "builtins":
            return self._builtin(node, rest, args, kwargs)
        last = dotted.rpartition(".")[2]
        tensors = has_tensor(tuple_of([*args, *kwargs.values()]))
        if tensors and root != "torch":
            self.hit()
        if any(value.kind is Kind.FOREIGN for value in args):
            self.hit()
        if root in sorts.modules():
            result = self._foreign_function(dotted, args, kwargs)
            if result is not None:
                return result
        if dotted in torch_api.PRESENCE:
            return GPU_PRESENT
        if dotted in torch_api.ABSENCE:
            return Value(Kind.FLAG, const=False)
        if is_data_loader(dotted):
            return self.loader(dotted, args, kwargs)
        if last == "GradScaler":
            return Value(Kind.SCALER, const=kwargs.get("enabled", UNKNOWN).const)
        if root == "torch":
            return self._torch(dotted, rest, last, args, kwargs)
        if root in torch_api.HOST_MODULES:
            if root == "time" and self.assumed() >= Device.ASSUMED:
                self.hit()
            if last in ("deepcopy", "copy") and args:
                return args[0]
            if last in ("chain", "cycle", "islice"):
                return list_of(join_all([element(value) for value in args])) if args else UNKNOWN
            return list_of(None) if last == "deque" else HOST if last != "partial" else UNKNOWN
        if root in torch_api.ARRAY_MODULES:
            return ARRAY
        if last in _WRAPPERS or root == "tqdm":
            return args[0] if args else list_of(HOST)
        if (
            is_module_name(dotted)
            or last in ("create_model", "from_pretrained")
            or dotted.startswith("torchvision.models.")
        ):
            return Value(Kind.MODULE, Device.CPU, ref=dotted)
        if root == "torchvision" or (last.endswith("Dataset") and last[:1].isupper()) or ".datasets." in dotted:
            return Value(Kind.RECORDS)
        if root == "accelerate" or last == "Accelerator":
            return name("accelerate.Accelerator()")
        if dotted == "accelerate.Accelerator().prepare":
            prepared = [_prepared(value) for value in args]
            return prepared[0] if len(prepared) == 1 else tuple_of(prepared)
        if last == "get_device":
            return GPU_DEVICE
        return UNKNOWN

    def loader(self, dotted: str, args: Args, kwargs: Kwargs) -> Value:
        """A loader of batches: its tensors lie on the host, pinned when it was told to pin them."""
        pin = kwargs.get("pin_memory")
        pinned = pin is not None and (pin.const is True or pin == GPU_PRESENT)
        elem = CPU_TENSOR._replace(sure=False, pinned=pinned)
        if dotted.startswith("torch_geometric"):
            elem = Value(Kind.RECORDS, pinned=pinned)
        return Value(Kind.LOADER, Device.CPU, pinned=pinned, elem=elem)

    def _torch(self, dotted: str, rest: str, last: str, args: Args, kwargs: Kwargs) -> Value:
        if dotted in self.inference.barrier_functions or rest.startswith(("cuda.", "accelerator.", "distributed.")):
            self.hit()
        if rest == "device":
            device = self.device_of(args[0]) if args else None
            return Value(Kind.DEVICE, self.assumed() if device is None else device)
        if last in ("current_accelerator",) or dotted == "torch.cuda.current_device":
            return GPU_DEVICE
        if last == "Stream" or last == "current_stream" or last == "default_stream":
            return Value(Kind.STREAM)
        if last == "Event":
            return Value(Kind.EVENT)
        if rest.startswith(("cuda.", "backends.", "accelerator.", "version.", "random.", "autograd.set")):
            return HOST
        if rest.startswith("distributions."):
            where = max((v.device for v in (*args, *kwargs.values()) if v.kind is Kind.TENSOR), default=Device.UNKNOWN)
            self.hit()
            return Value(Kind.DISTRIBUTION, where, const=kwargs.get("validate_args", UNKNOWN).const)
        if rest.startswith("optim."):
            if last == "AveragedModel":
                return Value(Kind.SCHEDULER, ref=last)
            if "lr_scheduler" in rest:
                return Value(Kind.SCHEDULER, ref=last)
            fused = kwargs.get("fused", UNKNOWN).const
            return Value(Kind.OPTIMIZER, ref=last, const=fused) if last[:1].isupper() else UNKNOWN
        if rest.startswith("utils.data."):
            return Value(Kind.RECORDS) if last[:1].isupper() else UNKNOWN
        if last in ("Parameter", "Buffer") and args:
            return with_device(args[0], max(args[0].device, self.assumed())) if args[0].kind is Kind.TENSOR else UNKNOWN
        if last in torch_api.MODULE_FUNCTIONS and args:
            return args[0]
        if rest.startswith("nn.") and last[:1].isupper():
            reduction = kwargs.get("reduction", UNKNOWN).const
            return Value(Kind.MODULE, Device.CPU, ref=dotted, const=reduction)
        if rest.startswith(("utils.rnn", "nn.utils.rnn")):
            return self._packed(last, args)
        if rest.startswith(("nn.utils.", "nn.init.")):
            return Value(Kind.TENSOR, self.assumed(), zero_dim=True) if last.startswith("clip_grad_norm") else UNKNOWN
        if rest in torch_api.HOST_FUNCTIONS:
            if rest == "save":
                self.hit()
            return HOST
        if rest == "load" or rest == "jit.load":
            return UNKNOWN
        return self._tensor_function(rest, last, args, kwargs)

    def _packed(self, last: str, args: Args) -> Value:
        value = args[0] if args else UNKNOWN
        if last == "pad_packed_sequence":
            return tuple_of([value, CPU_TENSOR])
        return element(value) if value.kind is Kind.LIST else value

    def _tensor_function(self, rest: str, last: str, args: Args, kwargs: Kwargs) -> Value:
        if rest in torch_api.FACTORIES or last in ("FloatTensor", "LongTensor", "ByteTensor", "BoolTensor"):
            return self._factory(rest, args, kwargs)
        values = [*args, *kwargs.values()]
        flat = [element(v) if v.kind in (Kind.LIST, Kind.TUPLE) else v for v in values]
        tensors = [value for value in flat if value.kind is Kind.TENSOR]
        if not tensors:
            known = all(value.kind in (Kind.HOST, Kind.ARRAY, Kind.DTYPE, Kind.NONE) for value in flat)
            if known or not rest.replace("_", "a").replace(".", "a").isalnum() or last[:1].isupper():
                return UNKNOWN
            if (
                rest.startswith(("nn.functional.", "linalg.", "fft."))
                or last in torch_api.TORCH_ONLY_METHODS | torch_api.TENSOR_FUNCTIONS
            ):
                where = Device.GPU if any(v.kind is Kind.MOVED for v in flat) else self.assumed()
                tensors = [Value(Kind.TENSOR, where, sure=False)]
            else:
                return UNKNOWN
        first = tensors[0]
        for other in tensors[1:]:
            first = combine(first, other)._replace(boolean=first.boolean and other.boolean)
        if last in torch_api.ZERO_DIM_LOSSES:
            return Value(
                Kind.TENSOR, first.device, first.sure, zero_dim=kwargs.get("reduction", UNKNOWN).const != "none" or None
            )
        if last.endswith("_like"):
            dtype = kwargs.get("dtype", UNKNOWN)
            device = self.device_of(kwargs["device"]) if "device" in kwargs else None
            boolean = dtype.boolean if dtype.kind is Kind.DTYPE else first.boolean
            return first._replace(boolean=boolean, pinned=False, device=first.device if device is None else device)
        if last == "where" and len(args) == 1:
            self.hit()
            return list_of(first._replace(boolean=False))
        if last == "where":
            return combine(args[0], first)._replace(boolean=False)
        result = self.tensor_call(last, first, args[1:], kwargs)
        return result._replace(sure=True) if result.kind is Kind.TENSOR else result  # torch gives back tensors

    def _factory(self, rest: str, args: Args, kwargs: Kwargs) -> Value:
        device = Device.CPU
        if rest == "cuda.FloatTensor":
            device = Device.GPU
        if "device" in kwargs:
            named = self.device_of(kwargs["device"])
            unknown = kwargs["device"].kind in (Kind.UNKNOWN, Kind.HOST, Kind.MOVED)
            device = named if named is not None else self.assumed() if unknown else Device.CPU
            self.hit()
        elif self.inference.default_device(self.fn.file):
            device = Device.GPU
        if has_tensor(tuple_of(args)):
            self.hit()
        if rest in torch_api.FROM_DATA and args and args[0].on_device and "device" not in kwargs:
            device = args[0].device
        dtype = kwargs.get("dtype", UNKNOWN)
        boolean = dtype.boolean or rest == "BoolTensor"
        if rest in torch_api.FROM_DATA and args and args[0].kind is Kind.TENSOR and dtype.kind is Kind.UNKNOWN:
            boolean = args[0].boolean
        single = (
            rest in ("tensor", "scalar_tensor", "as_tensor") and bool(args) and isinstance(args[0].const, (int, float))
        )
        pinned = kwargs.get("pin_memory", UNKNOWN).const is True
        return Value(Kind.TENSOR, device, zero_dim=True if single else None, boolean=boolean, pinned=pinned)

    # builtins

    def _builtin(self, node: ast.Call, label: str, args: Args, kwargs: Kwargs) -> Value:
        if label in _CONVERTERS and has_tensor(tuple_of([*args, *kwargs.values()])):
            self.hit()
        if label == "super":
            return self.inference.super_of(self)
        first = args[0] if args else UNKNOWN
        if label in ("list", "tuple", "set", "reversed", "iter", "frozenset"):
            if label == "iter" and first.kind is Kind.LOADER:
                return first
            return list_of(element(first)) if args else list_of(None)
        if label == "sorted":
            return list_of(element(first))
        if label == "next":
            return element(first)
        if label == "dict":
            return dict_of(tuple(kwargs.items()), None) if not args else first
        if label == "enumerate":
            return list_of(tuple_of([HOST, element(self.iterated(first, node.args[0]) if node.args else first)]))
        if label == "zip":
            return list_of(tuple_of([element(value) for value in args]))
        if any(value.kind is Kind.FOREIGN for value in args):
            self.hit()
            if label in ("max", "min", "sum", "abs", "round", "pow"):
                return next(value for value in args if value.kind is Kind.FOREIGN)
        if label in ("max", "min", "sum", "abs", "round", "pow"):
            values = [element(value) if value.kind in (Kind.LIST, Kind.TUPLE) else value for value in args]
            tensors = [value for value in values if value.kind is Kind.TENSOR]
            if tensors:
                return join_all(tensors)._replace(zero_dim=None if label != "sum" else tensors[0].zero_dim)
            return ARRAY if any(value.kind is Kind.ARRAY for value in values) else HOST
        if label == "getattr" and len(node.args) >= 2 and isinstance(args[1].const, str):
            return self.attribute_of(first, args[1].const)
        if label in ("map", "filter"):
            if label == "map" and len(args) > 1:
                return list_of(self.call_value(node, first, [element(value) for value in args[1:]], {}))
            return list_of(element(args[-1])) if args else UNKNOWN
        if label in ("vars", "open", "object", "type", "slice"):
            return UNKNOWN
        return HOST


def _expand_stars(interpreter: Calls, node: ast.Call) -> Args:
    args: Args = []
    for arg in node.args:
        if not isinstance(arg, ast.Starred):
            args.append(interpreter.inference.values.get(id(arg), UNKNOWN))
            continue
        value = interpreter.inference.values.get(id(arg.value), UNKNOWN)
        if value.kind is Kind.TUPLE:
            args.extend(value.items or ())
        else:
            args.append(element(value))
    return args


def _some(value: Value | None) -> list[Value]:
    return [] if value is None else [value]


def _prepared(value: Value) -> Value:
    """What `accelerator.prepare` makes of a model, an optimizer or a loader."""
    if value.kind is Kind.MODULE:
        return value._replace(device=Device.GPU)
    if value.kind is Kind.LOADER:
        elem = with_device(value.elem, Device.GPU) if value.elem is not None else None
        return Value(Kind.LOADER, Device.GPU, elem=elem)
    return value


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
