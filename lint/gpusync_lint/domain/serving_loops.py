"""Loops that are recognized by their form: generation of tokens, denoising, and serving of requests.

The model that such a loop calls is often a parameter or an attribute of which nothing is known. Their form is known:

    while True:                                             # tokens: what was sampled is passed to the next call
        logits = model(ids)
        token = torch.multinomial(softmax(logits), 1)
        ids = torch.cat([ids, token], dim=1)

    for i, t in enumerate(timesteps):                       # denoising: the sample of the step before, at a timestep
        noise = model(latents, t)
        latents = scheduler.step(noise, t, latents)[0]

    for i in range(len(sigmas) - 1):                        # a sampler: the same, by a schedule of noise levels
        denoised = model(x, sigmas[i])
        x = x + (x - denoised) / sigmas[i] * (sigmas[i + 1] - sigmas[i])

    while True:                                             # requests: an endless loop that waits for work
        request = await queue.get()
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from gpusync_lint.model.units import Unit
from gpusync_lint.syntax.blocks import blocks
from gpusync_lint.syntax.names import dotted_path
from gpusync_lint.syntax.traversal import walk_block

if TYPE_CHECKING:
    from collections.abc import Iterator

Loop = ast.For | ast.AsyncFor | ast.While
_CALLED_STEP = re.compile(r"\.step\s*\(")
_INDICES = re.compile(r"range\s*\(\s*len\s*\(")
_ENDLESS = re.compile(r"while\s+(?:True|1)\s*:")
"""What the text of a function contains if it has a loop of one of the kinds. They begin with text, which is fast."""
_SAMPLING = frozenset({"multinomial", "argmax"})
_JOINING = frozenset({"cat", "concat", "concatenate", "hstack", "column_stack"})
_TAKING = frozenset(
    {"get", "get_nowait", "recv", "recv_multipart", "recv_pyobj", "recv_json", "receive", "accept", "poll"}
)
"""Methods of queues, sockets and connections that wait for work."""
_SOURCES = re.compile(r"queue|sock|conn|pipe|inbox|request|poller|channel|(^|[._])(q|rx)$", re.I)
"""Names of what such methods are called on. `get` alone is a method of dicts."""


class Words(NamedTuple):
    """Which words a text contains, of those without which no loop is recognized."""

    sampling: bool
    """Words of loops that generate tokens."""
    schedules: bool
    """Words of loops over timesteps or noise levels."""
    endless: bool
    """Endless loops."""


class Schedule(NamedTuple):
    """The timesteps or noise levels of a denoising loop."""

    name: str
    """The name that holds them, or in a loop over timesteps the current one."""
    is_element: bool
    """Whether it is the current timestep."""


@lru_cache(maxsize=64)
def words_of_file(text: str) -> Words:
    """The words in the text of a file. It is asked for several times, for the functions of some files in turn."""
    return _words(text)


def _words(text: str) -> Words:
    return Words(
        "multinomial" in text or "argmax" in text,
        _CALLED_STEP.search(text) is not None or _INDICES.search(text) is not None,
        _ENDLESS.search(text) is not None,
    )


def units(body: list[ast.stmt], text: str, *, is_async: bool) -> dict[Loop, Unit]:
    """The loops of a function that are recognized, and what each of them repeats.

    Args:
        body: the function.
        text: its source, which is searched first.
        is_async: whether it is a coroutine.
    """
    words = _words(text)
    found: dict[Loop, Unit] = {}
    for loop in _loops(body) if any(words) else ():
        if words.sampling and _generates_tokens(loop):
            found[loop] = Unit.TOKEN
        elif words.schedules and isinstance(loop, ast.For) and schedule_of(loop) is not None:
            found[loop] = Unit.TIMESTEP
        elif words.endless and _serves(loop, is_async):
            found[loop] = Unit.REQUEST
    return found


def _loops(body: list[ast.stmt]) -> Iterator[Loop]:
    stack = list(body)
    while stack:
        statement = stack.pop()
        if isinstance(statement, (ast.For, ast.AsyncFor, ast.While)):
            yield statement
        if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for block in blocks(statement):
                stack += block


def schedule_of(loop: ast.For) -> Schedule | None:
    """The timesteps or noise levels of a denoising loop; None for any other loop."""
    timestep = _timestep_of(loop)
    if timestep is not None:
        return Schedule(timestep, is_element=True)
    levels = _noise_levels_of(loop)
    return None if levels is None else Schedule(levels, is_element=False)


def _timestep_of(loop: ast.For) -> str | None:
    """The name of the timestep of a denoising loop: `t` in `scheduler.step(noise, t, sample)`; None for other loops."""
    target = loop.target
    if isinstance(target, ast.Tuple) and len(target.elts) == 2:
        target = target.elts[1]
    if not isinstance(target, ast.Name):
        return None
    for node in walk_block(loop.body):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "step":
            keywords = {word.arg: word.value for word in node.keywords}
            given = node.args[1] if len(node.args) > 1 else keywords.get("timestep")
            has_sample = len(node.args) > 2 or "sample" in keywords
            if has_sample and isinstance(given, ast.Name) and given.id == target.id:
                return target.id
    return None


def _noise_levels_of(loop: ast.For) -> str | None:
    """The name of the noise levels of a sampler: `sigmas` in `model(x, sigmas[i])`; None for other loops.

    The loop counts over their length, and the first argument of the call is the sample, which the loop binds anew.
    """
    if not isinstance(loop.target, ast.Name):
        return None
    counter = loop.target.id
    counted = {
        node.args[0].id
        for node in ast.walk(loop.iter)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "len"
        and node.args
        and isinstance(node.args[0], ast.Name)
    }
    if not counted:
        return None
    bound = {
        node.id for node in walk_block(loop.body) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    for node in walk_block(loop.body):
        if not isinstance(node, ast.Call) or len(node.args) < 2:
            continue
        sample = node.args[0]
        if isinstance(sample, ast.Name) and sample.id in bound:
            for part in ast.walk(node.args[1]):
                if (
                    isinstance(part, ast.Subscript)
                    and isinstance(part.value, ast.Name)
                    and part.value.id in counted
                    and any(isinstance(one, ast.Name) and one.id == counter for one in ast.walk(part.slice))
                ):
                    return part.value.id
    return None


def _generates_tokens(loop: Loop) -> bool:
    """Whether what is sampled in an iteration is an argument of a call in the next one."""
    if not any(_is_sampling(node) for node in walk_block(loop.body)):
        return False
    statements = [node for node in walk_block(loop.body) if isinstance(node, (ast.Assign, ast.AnnAssign))]
    statements.sort(key=lambda statement: statement.lineno)
    first_bound: dict[str, int] = {}
    sampled: set[str] = set()
    for _ in range(2):  # `ids` may get the token in a statement above that which samples
        for statement in statements:
            value = statement.value
            if value is None or not (_is_sampled(value, sampled)):
                continue
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                path = dotted_path(target)
                if path is not None:
                    sampled.add(path)
                    first_bound[path] = min(first_bound.get(path, target.lineno), target.lineno)
    test = [loop.test] if isinstance(loop, ast.While) else []
    calls = [node for node in walk_block(loop.body) if isinstance(node, ast.Call)]
    calls += [node for one in test for node in ast.walk(one) if isinstance(node, ast.Call)]
    return any(
        dotted_path(argument) in sampled and argument.lineno <= first_bound[dotted_path(argument) or ""]
        for node in calls
        if _last_name(node.func) not in _JOINING and not _is_sampling(node)
        for argument in (*node.args, *(word.value for word in node.keywords))
    )


def _is_sampling(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _last_name(node.func) in _SAMPLING


def _is_sampled(node: ast.expr, sampled: set[str]) -> bool:
    """Whether an expression is what was sampled: reshaped, indexed, or joined to what there was before."""
    while True:
        if _is_sampling(node) or dotted_path(node) in sampled:
            return True
        if isinstance(node, (ast.Subscript, ast.Attribute)):
            node = node.value
        elif isinstance(node, (ast.BinOp)):  # `tokens * unfinished + pad * (1 - unfinished)`
            return _is_sampled(node.left, sampled) or _is_sampled(node.right, sampled)
        elif isinstance(node, ast.Call):
            if _last_name(node.func) in _JOINING | {"where"}:
                parts = [
                    one for arg in node.args for one in (arg.elts if isinstance(arg, (ast.List, ast.Tuple)) else [arg])
                ]
                return any(_is_sampled(part, sampled) for part in parts)
            if not isinstance(node.func, ast.Attribute):
                return False
            node = node.func.value  # a method of the token: `token.unsqueeze(0)`
        else:
            return False


def _serves(loop: Loop, is_async: bool) -> bool:
    """Whether a loop is endless and waits for work: a coroutine that awaits, or a read of a queue or a socket."""
    if not isinstance(loop, ast.While) or not isinstance(loop.test, ast.Constant) or not loop.test.value:
        return False
    for node in walk_block(loop.body):
        if is_async and isinstance(node, ast.Await):
            return True
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _TAKING
            and _SOURCES.search(dotted_path(node.func.value) or "")
        ):
            return True
    return False


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
