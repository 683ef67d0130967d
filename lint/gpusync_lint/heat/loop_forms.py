"""What a loop repeats, as far as its header shows: epochs, steps, data, or the parts of one step."""

from __future__ import annotations

import ast
import re

from gpusync_lint.domain.training_idioms import LOADER_NAMES
from gpusync_lint.model.placement import LoopForm
from gpusync_lint.syntax.names import dotted_path

Loop = ast.For | ast.AsyncFor | ast.While

_EPOCHS = re.compile(r"(^|_)(epochs?|trials?|folds?|seeds?|repeats?|experiments?|runs?|restarts?)(_|$)|epochs?$")
_STEPS = re.compile(r"(^|_)(steps?|iters?|iterations?|it|timesteps?|frames?|updates?)(_|$)|steps?$|iters?$")
_DATA = re.compile(
    r"(^|_)(data|dataset|loader|dataloader|batches|batch|minibatch(es)?|samples?|examples|sentences|images)(_|$)"
)
_PART = re.compile(
    r"critic|generator|discriminator|(^|_)(d|g|gen|dis|disc|n_d|n_g)_(iters?|steps|updates)|(^|_)(inner|micro|accum)"
    r"|accumulat|(gradient|grad)_steps|updates?_(per|times|freq)|(num|n)_(grad|critic)|(^|_)utd"
    r"|(^|_)(params?|parameters|layers?|blocks?|stages?|modules?|models|nets?|networks?|agents?|actors?|heads?|losses"
    r"|optimizers?|opts?|optims?|schedulers?|scales?|levels?|groups?|replicas?|workers?|tasks?)$"
)
_PART_METHODS = frozenset(
    {"parameters", "named_parameters", "modules", "named_modules", "children", "named_children", "buffers"}
)
_WRAPPERS = frozenset({"enumerate", "tqdm", "trange", "list", "iter", "zip", "reversed", "sorted", "track", "islice"})
_DISPLAYS = (ast.Tuple, ast.List, ast.Set)
_FEW = 10
"""The largest constant number of iterations that can be the parts of one step."""
_HANDFUL = 5
"""The largest constant number of iterations that is no loop of steps where nothing trains."""


def form_of(loop: Loop) -> LoopForm | None:
    """What a loop repeats, as far as its header shows; None if it shows nothing."""
    if isinstance(loop, ast.While):
        return _by_names(list(_names(loop.test)))
    target, iterable = list(_names(loop.target)), _unwrapped(loop.iter)
    form = _by_names(target)
    if form is LoopForm.EPOCHS or (form is LoopForm.STEPS and not _is_range(iterable)):
        return form
    if _is_range(iterable):
        return _form_of_range(iterable) or form
    if isinstance(iterable, _DISPLAYS):
        return _form_of_listed(iterable.elts)
    if _lists_combinations(iterable):
        return LoopForm.CASES
    if isinstance(iterable, ast.Call) and getattr(iterable.func, "attr", "") in _PART_METHODS:
        return LoopForm.PART
    words = list(_names(iterable))
    if any(_PART.search(word) for word in words):
        return LoopForm.PART
    if any(_DATA.search(word) or word.endswith(LOADER_NAMES) for word in words + target):
        return LoopForm.DATA
    return _by_names(words)


def _form_of_listed(elements: list[ast.expr]) -> LoopForm:
    """What a loop over listed elements repeats: `for dtype in (torch.float, torch.double)`."""
    if not elements:
        return LoopForm.PART
    if all(map(_is_case, elements)):
        return LoopForm.CASES
    is_handful = len(elements) <= _HANDFUL and not any(isinstance(one, ast.Starred) for one in elements)
    return LoopForm.HANDFUL if is_handful else LoopForm.PART


def _is_case(node: ast.expr) -> bool:
    """Whether an element of a list is a setting: a text, a truth value, `torch.double`."""
    if isinstance(node, ast.Constant):
        return not isinstance(node.value, (int, float)) or isinstance(node.value, bool)
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch"


def _form_of_range(call: ast.expr) -> LoopForm | None:
    assert isinstance(call, ast.Call)
    if len(call.args) == 3:  # `range(0, len(data), batch_size)`
        return LoopForm.DATA
    if all(isinstance(arg, ast.Constant) for arg in call.args):
        values = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, int)]
        most = max(values, default=_FEW + 1)
        return None if most > _FEW else LoopForm.PART if most > _HANDFUL else LoopForm.HANDFUL
    words = [word for arg in call.args for word in _names(arg)]
    if any(map(_PART.search, words)):
        return LoopForm.PART
    form = _by_names(words)
    if form is not LoopForm.EPOCHS and any("batches" in word or word == "len" for word in words):
        return LoopForm.DATA
    return form


def _by_names(words: list[str]) -> LoopForm | None:
    if any(map(_EPOCHS.search, words)):
        return LoopForm.EPOCHS
    return LoopForm.STEPS if any(map(_STEPS.search, words)) else None


def _unwrapped(node: ast.expr) -> ast.expr:
    """The iterable without `enumerate`, `tqdm` and the like around it."""
    while isinstance(node, ast.Call) and node.args:
        called = (dotted_path(node.func) or "").rpartition(".")[2]
        if called not in _WRAPPERS or called == "trange":
            break
        node = node.args[0]
    return node


def _lists_combinations(node: ast.expr) -> bool:
    """Whether an iterable is the combinations of values that are listed: `itertools.product((1, 2), (True, False))`."""
    if not isinstance(node, ast.Call) or (dotted_path(node.func) or "").rpartition(".")[2] != "product":
        return False
    return bool(node.args) and all(isinstance(arg, _DISPLAYS) for arg in node.args)


def _is_range(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and (dotted_path(node.func) or "").rpartition(".")[2] in ("range", "trange")


def _names(node: ast.AST) -> list[str]:
    """The last words of the names in an expression, in lower case."""
    found: list[str] = []
    for one in ast.walk(node):
        if isinstance(one, ast.Name):
            found.append(one.id.lower())
        elif isinstance(one, ast.Attribute):
            found.append(one.attr.lower())
    return [word for word in found if word not in ("range", "trange")]
