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
from itertools import repeat
from operator import gt
from typing import TYPE_CHECKING

from gpusync_lint.catalogue import foreign
from gpusync_lint.domain.lattice import CPU_TENSOR, UNKNOWN, Device, Kind, Value, widened
from gpusync_lint.inference import call_targets, loop_carried
from gpusync_lint.inference.annotations import Annotations
from gpusync_lint.inference.entry_state import bind, entry
from gpusync_lint.inference.statements import Interpreter
from gpusync_lint.project.symbols import CallSite, ClassInfo, FileInfo, FunctionInfo, binding
from gpusync_lint.syntax.blocks import blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpusync_lint.inference.entry_state import Parameter, Signature
    from gpusync_lint.inference.expressions import Expressions
    from gpusync_lint.inference.named_barriers import Named
    from gpusync_lint.project.resolution import Project

_PASSES = 3
"""How often what has become stale is gone through in the second round, at most."""
_MAX_CALL_DEPTH = 12
_FAR = 6
"""For how many calls one counts of a function that lies beside a part of a project."""
_MAX_RUNS = 6
_SMALL = 8
_MAX_VARIANTS = 16
_DEFAULT_DEVICE = re.compile(r"set_default_device\(|set_default_tensor_type\(.*cuda")
_TEST_FILE = re.compile(r"(^|/)(test_[^/]*|[^/]*_test|conftest)\.py$")
_SIMPLE = frozenset({ast.Assign, ast.Return, ast.Expr, ast.AugAssign, ast.AnnAssign, ast.Raise, ast.Pass, ast.Assert})
_PREPARING = (
    "Transform", "Sampler", "Collator", "Collate", "Tokenizer", "TokenizerFast", "FeatureExtractor",
    "FeatureExtractionMixin", "ImageProcessor", "ImageProcessorFast", "ImageProcessingMixin", "VideoProcessor",
    "ProcessorMixin",
)  # fmt: skip
"""How the names of classes end that make batches on the host."""
_WITH_ATTRIBUTES = frozenset({Kind.MODULE, Kind.INSTANCE, Kind.RECORDS, Kind.CLASS})
_RECORD_BASES = ("Dataset", "IterableDataset", "VisionDataset", "DataModule", "InMemoryDataset")


class Inference:
    """The abstract interpretation of a project, and its answers."""

    def __init__(self, project: Project, named: Named) -> None:
        self.project = project
        self.named = named
        self.annotations = Annotations(project)
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
        self._methods: dict[tuple[int, str], FunctionInfo | None] = {}
        self._instances: dict[tuple[int, Device | None], Value] = {}
        """By class, and for modules the device that is assumed: instances as their own methods see them."""
        self._named: dict[int, dict[str, Value | None]] = {}
        self.signatures: dict[int, Signature] = {}
        self._project_lineage: dict[int, tuple[ClassInfo, ...]] = {}
        self._records: dict[int, bool] = {}
        self._preparing_classes: dict[int, bool] = {}
        self._candidates: dict[tuple[str, str], list[FunctionInfo]] = {}
        self._called_by: dict[int, list[FunctionInfo]] | None = None
        self.clock = 0
        """Counts the changes of what functions read."""
        self._changed: dict[object, int] = {}
        """When something that functions read changed last; the keys are those in `FunctionInfo.reads`."""
        self._changes: list[object] = []
        """The keys of all changes in their order: one for each tick of the clock."""
        self._bound: dict[int, int] = {}
        """When what call sites pass to a function changed last."""
        self._appeared: dict[str, int] = {}
        """When a class got an attribute of a name last."""
        self._fresh: dict[int, int] = {}
        """When a function was last seen to have read nothing that has changed since."""

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
                    self.note_bound(fn)

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
        self._fresh.pop(id(fn), None)
        self._assumed_before.pop(id(fn), None)
        before = fn.returns
        depth = 1 if fn.file.definitions is None else _FAR
        self._depth += depth
        try:
            fn.entered = entry(self, fn)
            Interpreter(self, fn).run(fn.entered)
        except RecursionError:  # nested too deeply to follow; nothing is known of it
            fn.returns = fn.returns or UNKNOWN
        finally:
            self._depth -= depth
            fn.busy = False
        if fn.returns != before:
            self.note_change(id(fn))
        if fn.is_module and fn is not fn.file.body:
            scope = fn.file.body.scope
            self.note_scope(fn.file.body, {label: scope[label] for label in fn.scope if label in scope}, fn.scope)
            scope.update(fn.scope)

    def _need(self, file: FileInfo) -> None:
        """What the body of a file binds is asked for."""
        if file.called_only and file.definitions is None and not file.body.runs:
            self.interpret(file.body)

    def named_in(self, file: FileInfo) -> dict[str, Value | None]:
        """What a file binds names to by import, `def` or `class`, for those that were asked for."""
        return self._named.setdefault(id(file), {})

    def global_name(self, file: FileInfo, label: str) -> Value | None:
        """What the body of a file binds a name to; of a file around, only what binds that name is interpreted."""
        scope = file.body.scope
        if label not in scope and file.definitions is not None:
            piece = binding(file, label)
            if piece is not None and not piece.runs:
                self.interpret(piece)
        return scope.get(label)

    # what has been read, and what has changed since

    def note_change(self, key: object) -> None:
        """Something that functions read is not what it was."""
        self.clock += 1
        self._changed[key] = self.clock
        self._changes.append(key)

    def note_bound(self, fn: FunctionInfo) -> None:
        """What call sites pass to a function is not what it was."""
        self.clock += 1
        self._changes.append(None)
        self._bound[id(fn)] = self.clock

    def note_attribute(self, cls: ClassInfo, label: str, new: bool) -> None:
        """An attribute of instances holds something else, or is `new`."""
        self.note_change((id(cls), label))
        if new:
            self._appeared[label] = self.clock

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
        if fn.runs == 0 or self._is_called_with_more(fn):
            return True
        before = self._assumed_before.get(id(fn))
        if before is not None and before is not self.assumed_device(fn):
            return True
        if self._has_read_what_changed(fn):
            return True
        appeared = self._appeared
        return any(
            appeared.get(label, 0) > fn.seen and self.project.attribute(cls, label) is not None
            for cls, label in fn.missed.values()
        )

    def _has_read_what_changed(self, fn: FunctionInfo) -> bool:
        """Whether something that the last run of a function read has changed since; nothing is looked at twice."""
        reads = fn.reads
        since = self._fresh.get(id(fn), 0)
        untouched = self.clock - since < len(reads) and reads.keys().isdisjoint(self._changes[since:])
        # A loop in Python costs twice as much.
        if not untouched and any(map(gt, map(self._changed.get, reads, repeat(0)), reads.values())):
            return True
        self._fresh[id(fn)] = self.clock
        return False

    def _is_called_with_more(self, fn: FunctionInfo) -> bool:
        """Whether the parameters of a function hold something else than when it ran last."""
        return self._bound.get(id(fn), 0) > fn.seen and entry(self, fn) != fn.entered

    def attribute(self, reader: FunctionInfo, cls: ClassInfo, label: str) -> Value | None:
        """What an attribute of instances holds, inherited ones included; None when never seen."""
        line = self._project_lineage.get(id(cls))
        if line is None:
            line = tuple(base for base in self.project.lineage(cls) if isinstance(base, ClassInfo))
            self._project_lineage[id(cls)] = line
        for base in line:
            if label not in base.attributes and base.file.called_only:
                self._need_attribute(base, label)
            value = base.attributes.get(label)
            if value is not None:
                reader.reads.setdefault((id(base), label), self.clock)
                return value
        reader.missed[id(cls), label] = (cls, label)
        return None

    def member(self, reader: FunctionInfo, file: FileInfo, label: str) -> Value:
        """What a module of the project holds under a name."""
        reader.reads.setdefault((id(file.body), label), self.clock)
        self._need(file)
        if file.definitions is not None and self.project.named(file, label) is None:
            self.global_name(file, label)
        return self.project.member(file, label)

    def _need_attribute(self, cls: ClassInfo, label: str) -> None:
        """What instances of a class hold under a name is asked for: the methods that mention it are interpreted."""
        self._need(cls.file)
        piece = cls.file.pieces.get(cls.name)
        if piece is not None and not piece.runs:
            self.interpret(piece)
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

    def keeps_parameters(self, fn: FunctionInfo) -> bool:
        """Whether what a function says of its parameters is what it said in an earlier round; it then is kept."""
        assert fn.parameters is not None
        _, found, read, device = fn.parameters
        changed = self._changed
        if any(changed.get(key, 0) > when for key, when in read.items()):
            return False
        if device is not None and self.assumed_device(fn) is not device:
            return False
        fn.parameters = (self.round, found, read, device)
        return True

    def asking(self, fn: FunctionInfo, reading: Callable[[], list[Parameter]]) -> tuple[list[Parameter], Device | None]:
        """What is read of a function, and the device that is assumed for it, where that was asked for on the way."""
        before = self._assumed.pop(id(fn), None)
        found = reading()
        asked = self._assumed.get(id(fn))
        if before is not None:
            self._assumed[id(fn)] = before
        return found, asked

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
        known = self._preparing_classes.get(id(fn.cls))
        if known is None:
            known = self._preparing_classes[id(fn.cls)] = self.is_records(fn.cls) or any(
                (base if isinstance(base, str) else base.name).rpartition(".")[2].endswith(_PREPARING)
                for base in self.project.lineage(fn.cls)
            )
        return known

    def default_device(self, file: FileInfo) -> bool:
        """Whether new tensors are made on the GPU without being told so."""
        known = self._defaults.get(id(file))
        if known is None:
            # Of a file around, what stands in definitions that were not read has no say.
            text = file.text if file.definitions is None else file.definitions.frame
            known = self._defaults[id(file)] = bool(_DEFAULT_DEVICE.search(text))
        return known

    # functions

    def method(self, cls: ClassInfo, label: str) -> FunctionInfo | None:
        """A method by name, inherited ones included."""
        key = (id(cls), label)
        if key in self._methods:
            return self._methods[key]
        found = self._methods[key] = self.project.method(cls, label)
        return found

    def candidates(self, path: str | None, label: str) -> list[FunctionInfo]:
        """The methods that a call of something unknown may mean."""
        key = ((path or "").rpartition(".")[2], label)
        known = self._candidates.get(key)
        if known is None:
            known = self._candidates[key] = call_targets.candidates(self.project, *key)
        return known

    def instance(self, method: FunctionInfo) -> Value:
        """An instance of the class of a method, as the method itself sees it."""
        cls = method.cls
        if method.kind == "class":
            return Value(Kind.CLASS, ref=cls)
        device: Device | None = None
        if cls is not None and self.project.is_module_class(cls):
            device = self.assumed_device(method)
        made = self._instances.get((id(cls), device))
        if made is None:
            if device is not None:
                made = Value(Kind.MODULE, device, ref=cls)
            else:
                made = Value(Kind.RECORDS if cls is not None and self.is_records(cls) else Kind.INSTANCE, ref=cls)
            self._instances[id(cls), device] = made
        return made

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
        if result.kind is not Kind.HOST and self._is_small(fn):
            result = self._for_this_call(fn, tuple(args), kwargs, result)
        declared = fn.node.returns
        if result.kind is Kind.UNKNOWN and declared is not None:
            return self.annotations.of(self, caller.fn, declared)
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
                        fn.wrapper = fn.wrapper or foreign.wrappers().get(value.ref, "")
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
            if any(base in foreign.traced_bases() for base in bases):
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
            fn.small = not fn.is_module and fn.name != "__init__" and _counts_at_most(fn.node.body, _SMALL)
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
        changed, bound = self._changed.get(id(fn), 0), self._bound.get(id(fn), 0)
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
            self._changed[id(fn)], self._bound[id(fn)] = changed, bound
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
            known = self._read_first[id(loop)] = loop_carried.read_first(loop)
        return known

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
        elif self.is_records(cls):
            made = Value(Kind.RECORDS, ref=cls)
        elif any(isinstance(base, str) and base.startswith("torch.optim") for base in self.project.lineage(cls)):
            made = Value(Kind.OPTIMIZER)
        elif any(isinstance(base, str) and base.endswith("DataLoader") for base in self.project.lineage(cls)):
            made = caller.loader("", list(args), kwargs)  # type: ignore[attr-defined]
        else:
            made = Value(Kind.INSTANCE, ref=cls)
        init = self.method(cls, "__init__")
        if init is not None:
            self.call(caller, init, [made, *args], kwargs, [])
        else:
            fields = [item.target.id for item in cls.node.body if _is_field(item)]  # type: ignore[attr-defined]
            for label, value in [*zip(fields, args, strict=False), *kwargs.items()]:
                if label in fields:
                    self.set_attribute(made, label, value)
        return made

    def is_records(self, cls: ClassInfo) -> bool:
        """Whether instances are collections of host objects of a library: datasets."""
        known = self._records.get(id(cls))
        if known is None:
            known = self._records[id(cls)] = any(
                isinstance(base, str) and base.rpartition(".")[2] in _RECORD_BASES for base in self.project.lineage(cls)
            )
        return known

    def assign_attribute(self, caller: Expressions, target: ast.expr, value: Value) -> None:
        """`object.name = value`, where the object's class is known."""
        if isinstance(target, ast.Attribute):
            owner = caller.values.get(id(target.value))
            if owner is None:
                owner = caller.eval(target.value)
            self.set_attribute(owner, target.attr, value)

    def set_attribute(self, owner: Value, label: str, value: Value) -> None:
        """Let a class learn what one of its attributes may hold."""
        cls = owner.ref
        if cls.__class__ is not ClassInfo or owner.kind not in _WITH_ATTRIBUTES:
            return
        if owner.kind is Kind.MODULE and value.kind is Kind.MODULE and value.device is Device.CPU:
            value = value._replace(device=self.assumed_device(cls.file.body))  # a submodule goes where its parent goes
        old = cls.attributes.get(label)
        if old is None or value.kind is not Kind.UNKNOWN or old.kind is Kind.UNKNOWN:
            new = value if old is None else widened(old, value)
            if new is not old and new != old:
                cls.attributes[label] = new
                self.note_attribute(cls, label, old is None)


def _counts_at_most(body: list[ast.stmt], most: int) -> bool:
    """Whether a block holds at most so many statements, and none that repeats or defines something."""
    if len(body) > most:
        return False
    count, stack = 0, list(body)
    while stack:
        count += 1
        statement = stack.pop()
        if count > most or isinstance(statement, (ast.For, ast.While, ast.FunctionDef, ast.ClassDef)):
            return False
        if statement.__class__ not in _SIMPLE:
            for block in blocks(statement):
                stack += block
    return True


def is_test_file(file: FileInfo) -> bool:
    """Whether a file holds tests, going by the names that pytest collects."""
    return _TEST_FILE.search(file.path) is not None


def _is_field(item: ast.stmt) -> bool:
    return isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
