"""Random programs for the linter: from a small grammar of training code, and by mutation of other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

NAMES = ["x", "y", "loss", "model", "opt", "loader", "step", "self", "torch", "f0", "f1", "C0", "item", "é", "_"]
CALLS = """
{}.item() | {}.cpu() | {}.cuda() | {}.to('cuda', non_blocking=True) | {}.tolist() | float({}) | print({}) | model({})
torch.tensor([{}]).cuda() | {}.nonzero() | torch.cuda.synchronize() | {}.backward() | opt.step() | {}.append({})
f0({}) | f1({}, *{}, **{}) | C0().m({}) | super().m({}) | getattr({}, 'item')() | (lambda v: {})({}) | [{} for v in {}]
{'a': {}, **{}} | ({}, {}) | {}[{}] | ({} if {} else {}) | ({} > {}) | ({} and {}) | (not {}) | (-{}) | f'{{}}'
(w := {}) | time.time() - {}
""".replace("\n", " | ").split(" | ")[1:-1]
STATEMENTS = """
import torch | from torch import nn | from a import * | import time | del x | pass | assert {}, {} | x = {} | x += {}
x, *y = {} | x: {} = {} | self.a.b = {} | x['k'] = {} | {} | loss.item()  # gpusync: allow[GS201] wanted
loss.item()  # gpusync: allow-file[GS2] x | x.item(); y = x.item() | raise {} | loss.backward(); opt.step()
""".replace("\n", " | ").split(" | ")[1:-1]
HEADERS = """
for v in {}: | while {}: | if {}: | with torch.no_grad(): | with {} as w: | def f0(x, *a, k={}, **b): | class C1(C0):
async def f1(x: {}) -> {}: | class C0(C1, nn.Module): | for v in range({}): | for x in loader: | def m(self, x):
""".replace("\n", " | ").split(" | ")[1:-1]
JUNK = [
    *"\0\r\x0c\ufeff\u2028\ud800'()[]{}\\#\n\t;:=~*@?é𝒳ﬁ", '"""', "import ", "lambda: ", "not ", "...", "9" * 50,
    "0x", "1e999", "t'{x}'", "type X = ", "%%time\n", "!ls\n", "async ", "await ", " " * 9, "gpusync:",
    "else:\n", "return x\n",
]  # fmt: skip


def generated(rng: random.Random) -> str:
    """A program of the grammar. Most are valid."""
    lines = ["import torch", "from torch import nn", "model = nn.Linear(3, 3).cuda()", *_block(rng, 0)]
    return "\n".join(lines) + rng.choice(["\n", ""])


def _block(rng: random.Random, depth: int) -> list[str]:
    lines = []
    for _ in range(rng.randrange(1, 6)):
        if depth < 4 and rng.random() < 0.35:
            lines += [_filled(rng, rng.choice(HEADERS)), *_block(rng, depth + 1)]
            if rng.random() < 0.2:
                lines += [
                    "try:",
                    *_block(rng, depth + 1),
                    rng.choice(["except E:", "finally:"]),
                    *_block(rng, depth + 1),
                ]
            if rng.random() < 0.2:
                lines += [f"if {_expression(rng, 2)}:", *_block(rng, depth + 1), "else:", *_block(rng, depth + 1)]
        else:
            lines.append(_filled(rng, rng.choice(STATEMENTS)))
    return [f"    {line}" for line in lines] if depth else lines


def _filled(rng: random.Random, template: str, depth: int = 0) -> str:
    first, *parts = template.split("{}")
    return first + "".join(_expression(rng, depth + 1) + part for part in parts)


def _expression(rng: random.Random, depth: int) -> str:
    if depth > 3 or rng.random() < 0.4:
        return rng.choice([*NAMES, "1", "'s'", "None", "True"])
    return _filled(rng, rng.choice(CALLS), depth)


def mutated(rng: random.Random, text: str, other: str) -> str:
    """A program with parts that are removed, doubled, moved, taken from another one, or junk."""
    for _ in range(rng.randrange(1, 6)):
        start = rng.randrange(len(text) + 1)
        end = min(len(text), start + rng.choice([0, 1, 3, 20, 200]))
        begin = rng.randrange(len(other) + 1)
        piece = rng.choice(
            ["", rng.choice(JUNK), rng.choice(JUNK) * rng.choice([2, 30, 300]), text[start:end] * 2,
             other[begin : begin + rng.choice([1, 30, 300])]]
        )  # fmt: skip
        text = text[:start] + piece + text[end:]
    return text
