"""Write which methods of a class of a library the library calls in every step, for the linter.

    pip download --no-deps --dest WHEELS transformers trl pytorch-lightning stable-baselines3 gymnasium \
        diffusers pytorch-ignite accelerate
    python benchmarks/library_callbacks.py WHEELS

People override these methods (`compute_loss` of a `Trainer`, `_on_step` of a callback), so what they contain runs in
every step, although no call of them is in the project. The libraries are read, from their wheels, and never imported.

The entries below name the functions in which a library runs its steps. From there the calls are followed: of methods on
`self`, of methods on attributes that hold an object of another class (`self.callback_handler.on_step_end()`), and of
methods whose name is passed as a string (`call_hook(trainer, "on_before_backward")`). A block that runs every so many
steps only is not followed. Run it again with each release of a library; the release is written beside its methods.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import zipfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef
TABLE = Path(__file__).parents[1] / "lint" / "gpusync_lint" / "catalogue" / "library_callbacks.json"


@dataclass(frozen=True)
class Entry:
    """A function in which a library runs its steps."""

    cls: str
    method: str
    in_loop: bool = False
    """Whether only its innermost loops are the steps, and not the whole function."""
    in_outer_loop: bool = False
    """Whether only its outermost loops are the steps. The loops in them run over the parts of a step."""

    @property
    def is_step(self) -> bool:
        """Whether the whole function is a step."""
        return not self.in_loop and not self.in_outer_loop

    def steps(self, node: Function) -> list[ast.stmt]:
        """The statements of the function that run in every step."""
        if self.is_step:
            return node.body
        loops = _innermost_loops(node) if self.in_loop else _outermost_loops(node)
        return [one for loop in loops for one in loop.body]


@dataclass(frozen=True)
class Library:
    """How a library calls what people override."""

    package: str
    files: tuple[str, ...]
    """The beginnings of the paths of the files that are read."""
    entries: tuple[Entry, ...]
    overridden: tuple[str, ...]
    """The classes that people derive from."""
    receivers: dict[str, str] = field(default_factory=dict)
    """By the name of an attribute or a variable, the class of the object that it holds."""
    named: tuple[str, ...] = ()
    """The classes whose methods are called by a name that is passed as a string."""


_TRAINER = (
    Entry("Trainer", "_run_epoch", in_outer_loop=True),
    Entry("Trainer", "evaluation_loop", in_outer_loop=True),
    Entry("Trainer", "training_step"),
    Entry("Trainer", "compute_loss"),
    Entry("Trainer", "prediction_step"),
)
_TRL = (
    "CPOTrainer", "DPOTrainer", "GKDTrainer", "GRPOTrainer", "KTOTrainer", "ORPOTrainer", "OnlineDPOTrainer",
    "RLOOTrainer", "RewardTrainer", "SFTTrainer",
)  # fmt: skip
_STEPS_OF_TRAINER = ("training_step", "compute_loss", "prediction_step")
LIBRARIES = (
    Library(
        "transformers",
        ("transformers/trainer",),
        _TRAINER,
        ("Trainer", "TrainerCallback"),
        {"callback_handler": "TrainerCallback"},
    ),
    Library(
        "trl",
        ("trl/trainer/", "trl/experimental/"),
        tuple(Entry(cls, method) for cls in _TRL for method in _STEPS_OF_TRAINER),
        _TRL,
    ),
    Library(
        "pytorch_lightning",
        ("pytorch_lightning/",),
        (
            Entry("_TrainingEpochLoop", "advance"),
            Entry("_EvaluationLoop", "_evaluation_step"),
            Entry("_PredictionLoop", "_predict_step"),
            Entry("_AutomaticOptimization", "run"),
            Entry("Precision", "pre_backward"),
            Entry("Precision", "post_backward"),
            Entry("Precision", "optimizer_step"),
            Entry("Precision", "_clip_gradients"),
            Entry("Precision", "_after_closure"),
            Entry("_AutomaticOptimization", "_optimizer_zero_grad"),
            Entry("_AutomaticOptimization", "_on_before_zero_grad"),
            Entry("_AutomaticOptimization", "_training_step"),
            Entry("_AutomaticOptimization", "_make_backward_fn"),
            Entry("LightningModule", "_apply_batch_transfer_handler"),
            Entry("LightningModule", "_on_before_batch_transfer"),
        ),
        ("LightningModule", "Callback"),
        named=("LightningModule", "Callback"),
    ),
    Library(
        "stable_baselines3",
        ("stable_baselines3/",),
        (
            Entry("OnPolicyAlgorithm", "learn", in_loop=True),
            Entry("OnPolicyAlgorithm", "collect_rollouts", in_outer_loop=True),
            Entry("OffPolicyAlgorithm", "learn", in_loop=True),
            Entry("OffPolicyAlgorithm", "collect_rollouts", in_outer_loop=True),
            *(Entry(cls, "train") for cls in ("A2C", "PPO", "DQN", "DDPG", "SAC", "TD3")),
            Entry("BasePolicy", "predict"),
            Entry("VecEnv", "step"),
            Entry("BaseCallback", "on_step"),
        ),
        (
            "BaseAlgorithm", "OnPolicyAlgorithm", "OffPolicyAlgorithm", "BasePolicy", "BaseBuffer", "BaseCallback",
            "VecEnv",
        ),
        {
            "policy": "BasePolicy", "rollout_buffer": "BaseBuffer", "replay_buffer": "BaseBuffer",
            "callback": "BaseCallback", "env": "VecEnv", "venv": "VecEnv",
        },
    ),
    Library(
        "gymnasium",
        ("gymnasium/",),
        tuple(
            Entry(cls, "step")
            for cls in ("Env", "Wrapper", "ObservationWrapper", "ActionWrapper", "RewardWrapper", "VectorEnv")
        ),
        ("Env", "Wrapper", "ObservationWrapper", "ActionWrapper", "RewardWrapper", "VectorEnv"),
    ),
    Library(
        "diffusers",
        ("diffusers/schedulers/", "diffusers/pipelines/stable_diffusion/pipeline_stable_diffusion.py"),
        (Entry("StableDiffusionPipeline", "__call__", in_loop=True),),
        ("SchedulerMixin",),
        {"scheduler": "SchedulerMixin"},
    ),
    Library(
        "pytorch_ignite",
        ("ignite/",),
        (
            Entry("Metric", "iteration_completed"),
            Entry("RunningAverage", "iteration_completed"),
            Entry("BaseHandler", "__call__"),
            Entry("BaseOutputHandler", "__call__"),
        ),
        ("Metric", "BaseHandler", "BaseOutputHandler"),
    ),
    Library(
        "accelerate",
        ("accelerate/",),
        tuple(Entry("Accelerator", method) for method in ("backward", "log", "gather_for_metrics", "clip_grad_norm_")),
        ("Accelerator", "GeneralTracker"),
        {"tracker": "GeneralTracker"},
    ),
)  # fmt: skip


@dataclass(eq=False)
class Class:
    """A class of a library."""

    name: str
    bases: tuple[str, ...]
    methods: dict[str, Function]


class Classes:
    """The classes of a package, by name."""

    def __init__(self, trees: Iterable[ast.Module]) -> None:
        self._by_name: dict[str, list[Class]] = defaultdict(list)
        self._children: dict[str, set[str]] = defaultdict(set)
        self.ones: set[str] = set()
        """The names of fields that are 1 by default."""
        for tree in trees:
            for node in ast.walk(tree):
                if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Constant) and node.value.value == 1:
                    self.ones.add(_last_name(node.target))
                if isinstance(node, ast.ClassDef):
                    bases = tuple(_last_name(base) for base in node.bases)
                    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
                    methods = {one.name: one for one in node.body if isinstance(one, functions)}
                    self._by_name[node.name].append(Class(node.name, bases, methods))
                    for base in bases:
                        self._children[base].add(node.name)

    def derived(self, name: str) -> set[str]:
        """The names of a class and of all classes derived from it."""
        return _reachable(name, lambda one: self._children.get(one, ()))

    def ancestors(self, name: str) -> set[str]:
        """The names of a class and of its bases, as far as they are in the package."""
        return _reachable(name, lambda one: [base for cls in self._by_name.get(one, ()) for base in cls.bases])

    def implementations(self, name: str, method: str) -> list[Function]:
        """The definitions of a method in a class and its bases."""
        return self._definitions(self.ancestors(name), method)

    def has(self, name: str, method: str) -> bool:
        """Whether a class, one of its bases or a class derived from it defines a method."""
        return bool(self._definitions(self.ancestors(name) | self.derived(name), method))

    def _definitions(self, names: set[str], method: str) -> list[Function]:
        return [
            cls.methods[method]
            for name in sorted(names)
            for cls in self._by_name.get(name, ())
            if method in cls.methods
        ]


def _reachable(name: str, follow: Callable[[str], Iterable[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [name]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += follow(one)
    return found


def per_step(library: Library, trees: Iterable[ast.Module]) -> dict[str, Any]:
    """The methods that a library calls in every step, by the class that people derive from."""
    classes = Classes(trees)
    found: dict[str, set[str]] = defaultdict(set)
    waiting = list(library.entries)
    for entry in waiting:
        if entry.is_step:
            found[entry.cls].add(entry.method)
    while waiting:
        entry = waiting.pop()
        for node in classes.implementations(entry.cls, entry.method):
            for owner, called in _calls(entry.steps(node), entry.cls, library, classes):
                if called not in found[owner] and classes.has(owner, called):
                    found[owner].add(called)
                    waiting.append(Entry(owner, called))
    kept: dict[str, list[str]] = {}
    for cls in library.overridden:
        inherited = {method for one in classes.ancestors(cls) for method in found[one]}
        kept[cls] = sorted(method for method in inherited if not method.startswith("__") or method == "__call__")
    derived: dict[str, str] = {}
    for cls in library.overridden:  # the nearest of these bases comes last
        derived |= {name: cls for name in sorted(classes.derived(cls)) if name not in library.overridden}
    return {"classes": kept, "derived": dict(sorted(derived.items()))}


def _calls(body: list[ast.stmt], cls: str, library: Library, classes: Classes) -> Iterator[tuple[str, str]]:
    """The classes and names of the methods that statements call, apart from blocks that run seldom."""
    stack: list[ast.AST] = list(body)
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.If, ast.IfExp)) and _is_rare(node.test, classes):
            stack += node.orelse if isinstance(node, ast.If) else [node.orelse]
            continue
        if isinstance(node, (ast.ClassDef, ast.Raise)):
            continue
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            receiver = node.func.value
            if isinstance(receiver, ast.Name) and receiver.id == "self":
                yield cls, node.func.attr
            elif _last_name(receiver) in library.receivers:
                yield library.receivers[_last_name(receiver)], node.func.attr
        for text in _hook_names(node):
            yield from ((owner, text) for owner in library.named if classes.has(owner, text))
        stack += ast.iter_child_nodes(node)


def _hook_names(node: ast.AST) -> list[str]:
    """The strings that a statement uses as names of hooks: `call_hook("on_step")`, `hook_name = "on_step"`."""
    if isinstance(node, ast.Call) and "hook" in _last_name(node.func):
        parts: list[ast.AST] = list(node.args)
    elif isinstance(node, ast.Assign) and "hook" in _last_name(node.targets[0]):
        parts = list(ast.walk(node.value))
    else:
        return []
    return [one.value for one in parts if isinstance(one, ast.Constant) and isinstance(one.value, str)]


def _innermost_loops(node: ast.AST) -> list[ast.For | ast.While]:
    """The loops in a function that call a method and have no such loop inside."""
    loops = [one for one in ast.walk(node) if isinstance(one, (ast.For, ast.While)) and _has_method_call(one)]
    outer = {one for one in loops for other in ast.walk(one) if other is not one and other in loops}
    return [one for one in loops if one not in outer]


def _outermost_loops(node: ast.AST) -> list[ast.For | ast.While]:
    """The loops in a function that call a method and are inside of no such loop."""
    loops = [one for one in ast.walk(node) if isinstance(one, (ast.For, ast.While)) and _has_method_call(one)]
    inner = {other for one in loops for other in ast.walk(one) if other is not one}
    return [one for one in loops if one not in inner]


def _has_method_call(loop: ast.AST) -> bool:
    return any(
        isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and ast.unparse(one.func).startswith("self.")
        for one in ast.walk(loop)
    )


def _is_rare(test: ast.expr, classes: Classes) -> bool:
    """Whether a condition holds in few steps: `step % self.log_interval == 0`, `control.should_save`.

    Not `step % config.frequency == 0`, if the field `frequency` of a class of the library is 1 by default.
    """
    return any(
        (isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mod) and _last_name(one.right) not in classes.ones)
        or (isinstance(one, ast.expr) and "should_" in _last_name(one))
        for one in ast.walk(test)
    )


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Subscript):  # `Env[Observation, Action]`
        node = node.value
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def read_wheel(path: Path, files: tuple[str, ...]) -> list[ast.Module]:
    """Modules of a wheel, parsed."""
    with zipfile.ZipFile(path) as wheel:
        names = sorted(name for name in wheel.namelist() if name.endswith(".py") and name.startswith(files))
        return [ast.parse(wheel.read(name)) for name in names]


def main() -> int:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("wheels", type=Path, metavar="WHEELS", help="a folder with a wheel of each library")
    folder = parser.parse_args().wheels
    table = {}
    for library in LIBRARIES:
        wheels = sorted(folder.glob(f"{library.package}-*.whl"))
        if len(wheels) != 1:
            print(f"{folder} has {len(wheels)} wheels of {library.package}; download one", file=sys.stderr)
            return 2
        release = wheels[0].name.split("-")[1]
        table[library.package] = {"release": release, **per_step(library, read_wheel(wheels[0], library.files))}
    TABLE.write_text(json.dumps(table, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
