"""GS711: waits for the GPU in coroutines that share their event loop with other tasks."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.rules.base.context import Report, Rule, RuleContext
from gpusync_lint.syntax.traversal import walk_block

if TYPE_CHECKING:
    from collections.abc import Iterator

_GATHERED = "import asyncio\nasync def run():\n    await asyncio.gather(*(infer(x) for _ in range(4)))\n"


_READ = "def read(y):\n    return y.cpu()\n"


class WaitInCoroutine(Rule):
    """The first wait of a coroutine that was started as a task, or that handles requests.

    The call of a function of the project that waits counts as one. What is passed to a thread, as in
    `asyncio.to_thread(wait, x)`, is not called by the coroutine.
    """

    nodes = (ast.AsyncFunctionDef,)
    barriers = ("wait-in-coroutine",)
    after_others = True
    VALID: ClassVar = (
        f"async def infer(x):\n    return model(x)\n{_GATHERED}",
        f"{_READ}{_GATHERED}async def infer(x):\n    return await asyncio.to_thread(read, model(x))",
        "import asyncio\nasync def alone():\n    return model(x).cpu()\nasyncio.run(alone())",
    )
    INVALID: ClassVar = (
        f"async def infer(x):\n    return model(x).cpu()\n{_GATHERED}",
        f"async def infer(x):\n    y = model(x)\n    torch.cuda.synchronize()\n    return y\n{_GATHERED}",
        f"{_READ}async def infer(x):\n    return read(model(x))\n{_GATHERED}",
        "import fastapi\napp = fastapi.FastAPI()\n@app.post('/')\nasync def handle():\n    return model(x).tolist()",
    )

    def check(self, node: ast.AsyncFunctionDef, context: RuleContext) -> Iterator[Report]:
        """Judge a coroutine."""
        fn = context.function.nested.get(node)
        if fn is None or not context.tasks.is_shared(fn):
            return
        waits = [report.node for report in context.waits_in(fn)]
        for inner in walk_block(node.body):
            if isinstance(inner, ast.Call) and context.calls_what_waits(inner):
                waits.append(inner)
        if waits:
            first = min(waits, key=lambda one: (one.lineno, one.col_offset))
            yield Report("wait-in-coroutine", first, Confidence.MEDIUM, function=fn, heat=Heat.STEP)
