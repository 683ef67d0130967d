"""What names hold, across the files of a project.

One abstract interpretation on `ast` serves both storeys: it tells the screen which functions hold something a rule may
object to, and it answers the rules' questions about single expressions. Functions are interpreted when they are called,
with what their call sites pass, joined; the whole project is gone through twice, so that what a later file tells
(attributes, arguments) reaches the earlier ones. The second time only those functions run again that read something
which has changed since. Nothing is interpreted more than a fixed number of times.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from gpusync_lint import carried, sorts
from gpusync_lint.expressions import dotted_path
from gpusync_lint.interpreter import Interpreter
from gpusync_lint.parameters import bind, entry
from gpusync_lint.project import is_module_name
from gpusync_lint.summaries import CallSite, ClassInfo, FileInfo, FunctionInfo, blocks
from gpusync_lint.values import (
    ARRAY,
    CPU_TENSOR,
    HOST,
    NONE,
    UNKNOWN,
    Device,
    Kind,
    Value,
    dict_of,
    foreign,
    join,
    list_of,
    tuple_of,
    widened,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusync_lint.expressions import Expressions
    from gpusync_lint.named import Named
    from gpusync_lint.project import Project

_PASSES = 3
"""How often what has become stale is gone through in the second round, at most."""
_MAX_CALL_DEPTH = 12
_MAX_RUNS = 6
_SMALL = 8
_MAX_VARIANTS = 16
_DEFAULT_DEVICE = re.compile(r"set_default_device\(|set_default_tensor_type\(.*cuda")
_TEST_FILE = re.compile(r"(^|/)(test_[^/]*|[^/]*_test|conftest)\.py$")
_PREPARING = (
    "Transform", "Sampler", "Collator", "Collate", "Tokenizer", "TokenizerFast", "FeatureExtractor",
    "FeatureExtractionMixin", "ImageProcessor", "ImageProcessorFast", "ImageProcessingMixin", "VideoProcessor",
    "ProcessorMixin",
)  # fmt: skip
"""How the names of classes end that make batches on the host."""
_RECORD_BASES = ("Dataset", "IterableDataset", "VisionDataset", "DataModule", "InMemoryDataset")


class Inference:
    """The abstract interpretation of a project, and its answers."""

    def __init__(
        self, project: Project, barrier_methods: frozenset[str], barrier_functions: frozenset[str], named: Named
    ) -> None:
        self.project = project
        self.barrier_methods = barrier_methods
        self.barrier_functions = barrier_functions
        self.named = named
        self._built_on_device = False
        self.round = 0
        self._depth = 0
        self._defaults: dict[int, bool] = {}
        self._results: dict[tuple[object, ...], Value] = {}
        self._variants: dict[int, int] = {}
        self._assumed: dict[int, Device] = {}
        self._assumed_before: dict[int, Device] = {}
        self._preparing: dict[int, bool] = {}
        self._loop_names: dict[int, frozenset[str]] = {}
        self._read_first: dict[int, frozenset[str]] = {}
        self._called_by: dict[int, list[FunctionInfo]] | None = None
        self.clock = 0
        """Counts the changes of what functions read."""
        self._changed: dict[object, int] = {}
        """When something that functions read changed last; the keys are those in `FunctionInfo.reads`."""

    def run(self) -> None:
        """Interpret every file that has to do with a framework, and what it calls."""
        files = [file for file in self.project.files if self.project.relevant(file)]
        self._begin(1)
        self._interpret_all(files)
        self._begin(2)
        self._set_preparing_aside(files)
        for _ in range(_PASSES):
            if not self._interpret_stale():
                break
            self._forget_results()
        for file in self.project.files:  # what could not run again when its arguments grew, at their last
            for fn in file.all_functions:
                if fn.runs and self._is_called_with_more(fn):
                    self.interpret(fn)
        self._called_by = None

    def _begin(self, number: int) -> None:
        """Begin a round: what was concluded from calls before is concluded anew."""
        self.round = number
        self._assumed_before, self._assumed = self._assumed, {}
        self._preparing.clear()
        self._forget_results()

    def _interpret_all(self, files: list[FileInfo]) -> None:
        for file in files:
            self.interpret(file.body)
        for file in files:
            for fn in file.all_functions:
                if not fn.runs:
                    self.interpret(fn)

    def _interpret_stale(self) -> bool:
        """Interpret again what read something that has changed since; whether there was any."""
        files = list(self.project.files)  # more may be read on the way
        most = self.round * _MAX_RUNS
        found = False
        for fn in [*(file.body for file in files), *(fn for file in files for fn in file.all_functions)]:
            if 0 < fn.runs < most and self._stale(fn):
                found = True
                self.interpret(fn)
                if self._is_small(fn):  # what it gives back for some arguments may be new
                    self.note_change(id(fn))
        return found

    def _forget_results(self) -> None:
        self._results.clear()
        self._variants.clear()

    def _set_preparing_aside(self, files: list[FileInfo]) -> None:
        """Now that calls are known, what only prepares data forgets what was assumed of its arguments."""
        self._called_by = None
        for file in files:
            for fn in file.all_functions:
                if fn.bound and self._callers().get(id(fn)) and self.prepares_data(fn):
                    fn.bound.clear()
                    self.note_change(("bound", id(fn)))

    def interpret(self, fn: FunctionInfo) -> None:
        """Run one function, unless it is running already."""
        if fn.busy:
            return
        if fn.file.called_only and not fn.is_module:
            self._need(fn.file)
        fn.busy = True
        fn.runs += 1
        fn.seen = self.clock
        fn.reads, fn.missed = {}, {}
        self._assumed_before.pop(id(fn), None)
        before = fn.returns
        self._depth += 1
        try:
            fn.entered = entry(self, fn)
            Interpreter(self, fn).run(fn.entered)
        except RecursionError:  # nested too deeply to follow; nothing is known of it
            fn.returns = fn.returns or UNKNOWN
        finally:
            self._depth -= 1
            fn.busy = False
        if fn.returns != before:
            self.note_change(id(fn))

    def _need(self, file: FileInfo) -> None:
        """What the body of a file binds is asked for."""
        if file.called_only and not file.body.runs:
            self.interpret(file.body)

    # what has been read, and what has changed since

    def note_change(self, key: object) -> None:
        """Something that functions read is not what it was."""
        self.clock += 1
        self._changed[key] = self.clock

    def note_scope(self, fn: FunctionInfo, old: dict[str, Value], new: dict[str, Value]) -> None:
        """The names of a function, or of a module, are bound anew."""
        for label, value in new.items():
            known = old.get(label)
            if known is not value and known != value:
                self.note_change((id(fn), label))
        for label in old.keys() - new.keys():
            self.note_change((id(fn), label))

    def _stale(self, fn: FunctionInfo) -> bool:
        """Whether something that the last run of a function read has changed since."""
        changed = self._changed
        if fn.runs == 0 or self._is_called_with_more(fn):
            return True
        before = self._assumed_before.get(id(fn))
        if before is not None and before is not self.assumed_device(fn):
            return True
        if any(changed.get(key, 0) > read for key, read in fn.reads.items()):
            return True
        return any(self.project.attribute(cls, label) is not None for cls, label in fn.missed.values())

    def _is_called_with_more(self, fn: FunctionInfo) -> bool:
        """Whether the parameters of a function hold something else than when it ran last."""
        return self._changed.get(("bound", id(fn)), 0) > fn.seen and entry(self, fn) != fn.entered

    def attribute(self, reader: FunctionInfo, cls: ClassInfo, label: str) -> Value | None:
        """What an attribute of instances holds, inherited ones included; None when never seen."""
        for base in self.project.lineage(cls):
            if isinstance(base, ClassInfo):
                if base.file.called_only and label not in base.attributes:
                    self._need_attribute(base, label)
                if label in base.attributes:
                    reader.reads.setdefault((id(base), label), self.clock)
                    return base.attributes[label]
        reader.missed[id(cls), label] = (cls, label)
        return None

    def member(self, reader: FunctionInfo, file: FileInfo, label: str) -> Value:
        """What a module of the project holds under a name."""
        reader.reads.setdefault((id(file.body), label), self.clock)
        self._need(file)
        return self.project.member(file, label)

    def _need_attribute(self, cls: ClassInfo, label: str) -> None:
        """What instances of a class hold under a name is asked for: the methods that mention it are interpreted."""
        self._need(cls.file)
        if self._depth >= _MAX_CALL_DEPTH:
            return
        for method in cls.mentioning(label):
            if not method.runs:
                self.interpret(method)

    def moved(self, reader: FunctionInfo, cls: ClassInfo) -> bool:
        """Whether some instance of a class was moved to a device."""
        reader.reads.setdefault(("moved", id(cls)), self.clock)
        return cls.moved

    def built_on_device(self, reader: FunctionInfo) -> bool:
        """Whether some block of the project makes what it makes on a device: `with device:`."""
        reader.reads.setdefault("built", self.clock)
        return self._built_on_device

    def note_built_on_device(self) -> None:
        """There is such a block."""
        if not self._built_on_device:
            self._built_on_device = True
            self.note_change("built")

    def note_moved(self, cls: ClassInfo) -> None:
        """An instance of a class was moved to a device."""
        if not cls.moved:
            cls.moved = True
            self.note_change(("moved", id(cls)))

    # devices

    def assumed_device(self, fn: FunctionInfo) -> Device:
        """Where the tensors of a function lie, if its code is conventional: on the device, where one is used at all.

        Of what prepares data, and of tests, nothing is assumed.
        """
        known = self._assumed.get(id(fn))
        if known is None:
            aside = self.prepares_data(fn) or is_test_file(fn.file)
            used = self.project.uses_device(fn.file) and not aside
            known = self._assumed[id(fn)] = Device.ASSUMED if used else Device.UNKNOWN
        return known

    def prepares_data(self, fn: FunctionInfo) -> bool:
        """Whether a function prepares batches on the host, by itself or because only such functions call it."""
        known = self._preparing.get(id(fn))
        if known is None:
            self._preparing[id(fn)] = False  # in a cycle of calls, those from outside decide
            callers = self._callers().get(id(fn)) if self.round > 1 else None
            known = self._prepares_itself(fn) or (
                bool(callers) and all(self.prepares_data(caller) for caller in callers or ())
            )
            self._preparing[id(fn)] = known
        return known

    def _prepares_itself(self, fn: FunctionInfo) -> bool:
        if fn.name.startswith("collate") or fn.name == "__getitem__":
            return True
        if fn.cls is None:
            return fn.outer is not None and not fn.outer.is_module and self.prepares_data(fn.outer)
        if fn.name.startswith("post_process"):  # reads what a model gave
            return False
        return self._is_records(fn.cls) or any(
            (base if isinstance(base, str) else base.name).rpartition(".")[2].endswith(_PREPARING)
            for base in self.project.lineage(fn.cls)
        )

    def default_device(self, file: FileInfo) -> bool:
        """Whether new tensors are made on the GPU without being told so."""
        known = self._defaults.get(id(file))
        if known is None:
            known = self._defaults[id(file)] = bool(_DEFAULT_DEVICE.search(file.text))
        return known

    # functions

    def instance(self, method: FunctionInfo) -> Value:
        """An instance of the class of a method, as the method itself sees it."""
        return self._self_value(method, method.cls is not None and self.project.is_module_class(method.cls))

    def _self_value(self, fn: FunctionInfo, module_class: bool) -> Value:
        if fn.kind == "class":
            return Value(Kind.CLASS, ref=fn.cls)
        if module_class:
            return Value(Kind.MODULE, self.assumed_device(fn), ref=fn.cls)
        kind = Kind.RECORDS if fn.cls is not None and self._is_records(fn.cls) else Kind.INSTANCE
        return Value(kind, ref=fn.cls)

    def call(
        self, caller: Expressions, fn: FunctionInfo, args: Sequence[Value], kwargs: dict[str, Value], extra: list[Value]
    ) -> Value:
        """Call a project function: its parameters learn what is passed, the caller learns what comes back."""
        caller.fn.trace.calls.append(CallSite(fn, caller.statement, caller.repeated > 0))
        grew = bind(self, fn, list(args), kwargs)
        if isinstance(fn.node, ast.Module):
            return UNKNOWN
        fresh = fn.returns is None
        if self._depth < _MAX_CALL_DEPTH and (fresh or self._is_due(fn, grew)):
            self.interpret(fn)
        caller.fn.reads.setdefault(id(fn), self.clock)
        result = fn.returns if fn.returns is not None else UNKNOWN
        if self._is_small(fn) and result.kind is not Kind.HOST:
            result = self._for_this_call(fn, tuple(args), kwargs, result)
        declared = fn.node.returns
        if result.kind is Kind.UNKNOWN and declared is not None:
            return self.annotated(caller, declared)
        return result

    def _is_due(self, fn: FunctionInfo, grew: bool) -> bool:
        """Whether to run a called function again before its result is used."""
        if fn.runs >= self.round * _MAX_RUNS:
            return False
        if self.round > 1 and not fn.busy and self._stale(fn):
            return True
        return grew and entry(self, fn) != fn.entered

    def wrapper(self, fn: FunctionInfo) -> str:
        """The sort that a decorator of another framework makes of a function; empty for none."""
        if fn.wrapper is None:
            fn.wrapper = ""
            for decorator in getattr(fn.node, "decorator_list", ()):
                parts = [decorator]
                if isinstance(decorator, ast.Call):  # `@partial(jax.jit, ...)`, `@tf.function(...)`
                    parts = [decorator.func, *decorator.args[:1]]
                for part in parts:
                    value = self.project.static(fn.file, part)
                    if value.kind is Kind.NAME and isinstance(value.ref, str):
                        fn.wrapper = fn.wrapper or sorts.wrappers().get(value.ref, "")
            fn.traced = fn.traced or bool(fn.wrapper)
        return fn.wrapper

    def traced(self, fn: FunctionInfo) -> bool:
        """Whether another framework traces a function: by itself, in a class of its own, or through all its callers."""
        if fn.is_module:
            return False
        if self.wrapper(fn) or fn.traced or (fn.outer is not None and self.traced(fn.outer)):
            return True
        if fn.cls is not None:
            bases = [base for base in self.project.lineage(fn.cls) if isinstance(base, str)]
            if any(base in sorts.traced_bases() for base in bases):
                return True
        callers = self._callers().get(id(fn))
        if not callers:
            return False
        fn.traced = True  # in a cycle of calls, those from outside decide
        fn.traced = all(self.traced(caller) for caller in callers)
        return fn.traced

    def _callers(self) -> dict[int, list[FunctionInfo]]:
        if self._called_by is None:
            self._called_by = {}
            for file in self.project.files:
                for fn in file.all_functions:
                    for site in fn.trace.calls:
                        if site.callee is not fn:
                            self._called_by.setdefault(id(site.callee), []).append(fn)
        return self._called_by

    def _is_small(self, fn: FunctionInfo) -> bool:
        if fn.small is None:
            node = fn.node
            count, stack = 0, list(node.body)
            while stack and count <= _SMALL:
                count += 1
                statement = stack.pop()
                loop = isinstance(statement, (ast.For, ast.While, ast.FunctionDef, ast.ClassDef))
                if loop:
                    count = _SMALL + 1
                for block in blocks(statement):
                    stack.extend(block)
            fn.small = count <= _SMALL and not fn.is_module and fn.name != "__init__"
        return fn.small

    def _for_this_call(
        self, fn: FunctionInfo, args: tuple[Value, ...], kwargs: dict[str, Value], joined: Value
    ) -> Value:
        """What a short helper gives back for exactly these arguments, not for those of all its callers together."""
        key = (id(fn), args, tuple(kwargs.items()))
        known = self._results.get(key)
        if known is not None:
            return known
        used = self._variants.get(id(fn), 0)
        if used >= _MAX_VARIANTS or fn.busy or self._depth >= _MAX_CALL_DEPTH:
            return joined
        kept = (fn.bound, fn.trace, fn.values, fn.returns, fn.scope, fn.runs, fn.seen, fn.entered)
        reads, missed = fn.reads, fn.missed
        changed = [(key, self._changed.get(key, 0)) for key in (id(fn), ("bound", id(fn)))]
        fn.bound = {}
        bind(self, fn, list(args), kwargs)
        result = joined
        try:
            if entry(self, fn) != fn.entered:
                self._variants[id(fn)] = used + 1
                self.interpret(fn)
                result = fn.returns if fn.returns is not None else joined
        finally:
            fn.bound, fn.trace, fn.values, fn.returns, fn.scope, fn.runs, fn.seen, fn.entered = kept
            fn.reads, fn.missed = {**fn.reads, **reads}, {**fn.missed, **missed}
            self._changed.update(changed)
        self._results[key] = result
        return result

    def handed_batches(self, fn: FunctionInfo) -> None:
        """A function `update(engine, batch)` is called with what a loader hands out."""
        bind(self, fn, [UNKNOWN, CPU_TENSOR._replace(sure=False)], {})

    def loop_names(self, fn: FunctionInfo) -> frozenset[str]:
        """Names that a `for`, or a comprehension, of a function binds."""
        known = self._loop_names.get(id(fn))
        if known is None:
            names: set[str] = set()
            stack: list[ast.AST] = list(fn.node.body)
            while stack:
                node = stack.pop()
                if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
                    names.update(item.id for item in ast.walk(node.target) if isinstance(item, ast.Name))
                stack.extend(ast.iter_child_nodes(node))
            known = self._loop_names[id(fn)] = frozenset(names)
        return known

    def read_first(self, loop: ast.For | ast.AsyncFor | ast.While) -> frozenset[str]:
        """The names through which one turn of a loop may reach the next."""
        known = self._read_first.get(id(loop))
        if known is None:
            known = self._read_first[id(loop)] = carried.read_first(loop)
        return known

    def nested(self, fn: FunctionInfo) -> None:
        """A nested function comes into being; it is interpreted when called, or in its turn."""

    def super_of(self, caller: Expressions) -> Value:
        """What `super()` gives in a method."""
        fn: FunctionInfo | None = caller.fn
        while fn is not None and fn.cls is None:
            fn = fn.outer
        if fn is None or fn.cls is None:
            return UNKNOWN
        for base in self.project.lineage(fn.cls)[1:]:
            if isinstance(base, ClassInfo):
                kind = Kind.MODULE if self.project.is_module_class(fn.cls) else Kind.INSTANCE
                return Value(kind, self.assumed_device(fn), ref=base)
        return UNKNOWN

    # classes

    def instantiate(
        self, caller: Expressions, cls: ClassInfo, args: Sequence[Value], kwargs: dict[str, Value]
    ) -> Value:
        """Make an instance of a project class."""
        if self.project.is_module_class(cls):
            made = Value(Kind.MODULE, Device.CPU, ref=cls, items=self.named.made_of(cls, kwargs))
        elif self._is_records(cls):
            made = Value(Kind.RECORDS, ref=cls)
        elif any(isinstance(base, str) and base.startswith("torch.optim") for base in self.project.lineage(cls)):
            made = Value(Kind.OPTIMIZER)
        elif any(isinstance(base, str) and base.endswith("DataLoader") for base in self.project.lineage(cls)):
            made = caller.loader("", list(args), kwargs)  # type: ignore[attr-defined]
        else:
            made = Value(Kind.INSTANCE, ref=cls)
        init = self.project.method(cls, "__init__")
        if init is not None:
            self.call(caller, init, [made, *args], kwargs, [])
        else:
            fields = [item.target.id for item in cls.node.body if _is_field(item)]  # type: ignore[attr-defined]
            for label, value in [*zip(fields, args, strict=False), *kwargs.items()]:
                if label in fields:
                    self.set_attribute(made, label, value)
        return made

    def _is_records(self, cls: ClassInfo) -> bool:
        return any(
            isinstance(base, str) and base.rpartition(".")[2] in _RECORD_BASES for base in self.project.lineage(cls)
        )

    def assign_attribute(self, caller: Expressions, target: ast.expr, value: Value) -> None:
        """`object.name = value`, where the object's class is known."""
        if isinstance(target, ast.Attribute):
            owner = caller.values.get(id(target.value))
            if owner is None:
                owner = caller.eval(target.value)
            self.set_attribute(owner, target.attr, value)
        elif isinstance(target, ast.Name) and caller.fn.is_module:
            return

    def set_attribute(self, owner: Value, label: str, value: Value) -> None:
        """Let a class learn what one of its attributes may hold."""
        cls = owner.ref
        if not isinstance(cls, ClassInfo) or owner.kind not in (Kind.MODULE, Kind.INSTANCE, Kind.RECORDS, Kind.CLASS):
            return
        if owner.kind is Kind.MODULE and value.kind is Kind.MODULE and value.device is Device.CPU:
            value = value._replace(device=self.assumed_device(cls.file.body))  # a submodule goes where its parent goes
        old = cls.attributes.get(label)
        if old is None or value.kind is not Kind.UNKNOWN or old.kind is Kind.UNKNOWN:
            new = value if old is None else widened(old, value)
            if new is not old and new != old:
                cls.attributes[label] = new
                self.note_change((id(cls), label))

    # annotations

    def annotated(self, caller: Expressions, node: ast.expr) -> Value:
        """What a type annotation promises."""
        if isinstance(node, ast.Constant):
            if node.value is None:
                return NONE
            if not isinstance(node.value, str):
                return UNKNOWN
            try:
                node = ast.parse(node.value, mode="eval").body
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return UNKNOWN
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return join(self.annotated(caller, node.left), self.annotated(caller, node.right))
        if isinstance(node, ast.Subscript):
            return self._generic(caller, node)
        path = dotted_path(node)
        if path is None:
            return UNKNOWN
        if path in ("int", "float", "str", "bool", "bytes", "complex"):
            return HOST
        value = self._static_name(caller, path)
        if value.kind is Kind.CLASS:
            if self.project.is_module_class(value.ref):
                return Value(Kind.MODULE, self.assumed_device(caller.fn), ref=value.ref)
            return Value(Kind.RECORDS if self._is_records(value.ref) else Kind.INSTANCE, ref=value.ref)
        dotted = value.ref if value.kind is Kind.NAME and isinstance(value.ref, str) else path
        return self._outside_type(caller, dotted)

    def _outside_type(self, caller: Expressions, dotted: str) -> Value:
        last = dotted.rpartition(".")[2]
        described = sorts.types().get(dotted)
        if described is not None:
            return foreign(described)
        assumed = self.assumed_device(caller.fn)
        if last in ("Tensor", "FloatTensor", "LongTensor", "BoolTensor", "Variable") or dotted.startswith("jaxtyping"):
            return Value(Kind.TENSOR, assumed, boolean=last == "BoolTensor")
        if dotted.startswith("numpy") or last == "ndarray":
            return ARRAY
        if dotted == "torch.device":
            return Value(Kind.DEVICE, assumed)
        if last.endswith("DataLoader"):
            return caller.loader("", [], {})  # type: ignore[attr-defined, no-any-return]
        if dotted.startswith("torch.optim") and "lr_scheduler" not in dotted:
            return Value(Kind.OPTIMIZER)
        if last == "GradScaler":
            return Value(Kind.SCALER)
        return Value(Kind.MODULE, assumed, ref=None) if is_module_name(dotted) else UNKNOWN

    def _generic(self, caller: Expressions, node: ast.Subscript) -> Value:
        outer = (dotted_path(node.value) or "").rpartition(".")[2]
        inner = node.slice
        parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        if outer == "Optional":
            return self.annotated(caller, parts[0])
        if outer in ("Tuple", "tuple"):
            if len(parts) == 2 and isinstance(parts[1], ast.Constant):
                return list_of(self.annotated(caller, parts[0]))
            return tuple_of([self.annotated(caller, part) for part in parts])
        if outer in ("List", "list", "Sequence", "Iterable", "Iterator", "Set", "set"):
            return list_of(self.annotated(caller, parts[0]))
        if outer in ("Dict", "dict", "Mapping") and len(parts) == 2:
            return dict_of((), self.annotated(caller, parts[1]))
        if outer in ("Union",):
            return _join_values([self.annotated(caller, part) for part in parts])
        if outer in ("Float", "Int", "Bool", "Shaped", "Num"):
            return Value(Kind.TENSOR, self.assumed_device(caller.fn), boolean=outer == "Bool")
        if outer in ("DataLoader",):
            return caller.loader("", [], {})  # type: ignore[attr-defined, no-any-return]
        return UNKNOWN

    def _static_name(self, caller: Expressions, path: str) -> Value:
        first, *rest = path.split(".")
        value = self.project.named(caller.fn.file, first) or UNKNOWN
        for word in rest:
            if value.kind is not Kind.NAME:
                return UNKNOWN
            if isinstance(value.ref, str):
                value = Value(Kind.NAME, ref=f"{value.ref}.{word}")
            else:
                value = self.member(caller.fn, value.ref, word)
        return value


def is_test_file(file: FileInfo) -> bool:
    """Whether a file holds tests, going by the names that pytest collects."""
    return _TEST_FILE.search(file.path) is not None


def _join_values(values: Sequence[Value]) -> Value:
    result = values[0]
    for value in values[1:]:
        result = join(result, value)
    return result


def _is_field(item: ast.stmt) -> bool:
    return isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
