"""Compare the memory of a training run on a GPU with the memory that the simulated device says it took.

    python benchmarks/simulated_memory.py record {gpt,conv} --device {cuda,simulated} OUT.json [--steps 30]
    python benchmarks/simulated_memory.py compare GPU.json SIMULATED.json

``record`` trains an example (``examples/char_gpt`` or ``examples/conv_net``, ``train_fast.py``) and notes after each
optimizer step the bytes allocated and reserved, and the peak since the step before. The last step but one is traced:
every allocation and free. At the end, on a GPU, the workspaces that cuBLAS keeps are given back, and how much that was
is noted. ``compare`` sets the two side by side, the workspaces taken off, and lists by name what only one of them
allocated in the traced step: on a GPU, the workspaces that libraries use within one operator.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from collections import Counter
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

_EXAMPLES = Path(__file__).parents[1] / "examples"
_FOLDERS = {"gpt": "char_gpt", "conv": "conv_net"}
_STEPS_PER_EPOCH = 8
"""Of the convolutional example with its defaults: 512 images in batches of 64."""
_LIBRARIES = ("cublas", "cudnn", "cub::", "workspace", "thrust")
_ALLOCATIONS = ("alloc", "segment_alloc")


def record(example: str, device: str, steps: int, output: Path) -> None:
    if device == "simulated":
        from pytest_gpusync.simulated import switch_on

        switch_on()
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    rows: list[dict[str, int]] = []
    trace: list[list[Any]] = []

    def after_step(*_: Any) -> None:
        if len(rows) >= steps:
            return
        rows.append(
            {
                "allocated": torch.cuda.memory_allocated(),
                "reserved": torch.cuda.memory_reserved(),
                "peak": torch.cuda.max_memory_allocated(),
            }
        )
        torch.cuda.reset_peak_memory_stats()
        if len(rows) == steps - 1:
            _trace_on(torch, device)
        elif len(rows) == steps:
            trace.extend(_events(torch))
            torch.cuda.memory._record_memory_history(enabled=None)

    sys.path.insert(0, str(_EXAMPLES / _FOLDERS[example]))
    from train_fast import train

    hook = register_optimizer_step_post_hook(after_step)
    with contextlib.redirect_stdout(io.StringIO()):
        if example == "gpt":
            train(steps, "cuda")
        else:
            train(-(-steps // _STEPS_PER_EPOCH), "cuda")
    hook.remove()
    before = torch.cuda.memory_allocated()
    if device == "cuda":
        torch._C._cuda_clearCublasWorkspaces()
    document = {
        "example": example,
        "device": device,
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(0),
        "steps": rows,
        "workspaces": before - torch.cuda.memory_allocated(),
        "trace": trace,
    }
    output.write_text(json.dumps(document, indent=1), encoding="utf-8")


def _trace_on(torch: Any, device: str) -> None:
    if device == "cuda":
        torch.cuda.memory._record_memory_history(enabled="all", context="alloc", stacks="all", max_entries=100_000)
    else:
        torch.cuda.memory._record_memory_history()


def _events(torch: Any) -> list[list[Any]]:
    """[action, bytes, who asked] of each allocation and free."""
    [events] = torch.cuda.memory._snapshot()["device_traces"][:1]
    return [[event["action"], event["size"], _asker(event.get("frames") or ())] for event in events]


def _asker(frames: Any) -> str:
    """The innermost function of a library, otherwise of ATen's kernels, by the names of the C++ frames."""
    names = [str(frame.get("name", "")) for frame in frames]
    for wanted in (_LIBRARIES, ("at::native::",)):
        for name in names:
            if any(part in name.lower() for part in wanted):
                return name.split("(")[0][:120]
    return ""


def compare(gpu: dict[str, Any], simulated: dict[str, Any]) -> None:
    print(f"{gpu['example']}: {gpu['gpu']}, torch {gpu['torch']}, beside torch {simulated['torch']}, simulated")
    workspaces = gpu["workspaces"]
    print(f"cuBLAS workspaces that the GPU keeps: {workspaces:,} bytes, taken off below")
    print(f"{'step':>4} {'what':<10} {'GPU':>15} {'simulated':>15} {'difference':>12}")
    equal: Counter[str] = Counter()
    for number, (there, here) in enumerate(zip(gpu["steps"], simulated["steps"], strict=True)):
        for what in ("allocated", "peak", "reserved"):
            expected = there[what] - (workspaces if what != "reserved" else 0)
            equal[what] += expected == here[what]
            if expected != here[what]:
                print(f"{number:>4} {what:<10} {expected:>15,} {here[what]:>15,} {here[what] - expected:>+12,}")
    total = len(gpu["steps"])
    print(", ".join(f"{what} equal in {equal[what]} of {total} steps" for what in ("allocated", "peak", "reserved")))
    _compare_traces(gpu["trace"], simulated["trace"])


def _compare_traces(gpu: list[list[Any]], simulated: list[list[Any]]) -> None:
    there = [event for event in gpu if event[0] in _ALLOCATIONS]
    here = [event for event in simulated if event[0] in _ALLOCATIONS]
    matcher = SequenceMatcher(None, [event[1] for event in there], [event[1] for event in here], autojunk=False)
    only: Counter[tuple[str, int, str]] = Counter()
    same = 0
    for kind, first, last, begin, end in matcher.get_opcodes():
        if kind == "equal":
            same += last - first
            continue
        only.update(("GPU", event[1], event[2]) for event in there[first:last])
        only.update(("simulated", event[1], event[2]) for event in here[begin:end])
    print(f"allocations of the traced step: {same} the same on both; only one side made these:")
    for (side, nbytes, asker), times in only.most_common():
        print(f"  {side:<10} {times:>4} x {nbytes:>12,} bytes  {asker}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="train an example and note its memory")
    recording.add_argument("example", choices=sorted(_FOLDERS))
    recording.add_argument("output", type=Path, metavar="OUT.json")
    recording.add_argument("--device", choices=("cuda", "simulated"), required=True)
    recording.add_argument("--steps", type=int, default=30)
    comparing = commands.add_parser("compare", help="set a GPU's record beside the simulated device's")
    comparing.add_argument("gpu", type=Path)
    comparing.add_argument("simulated", type=Path)
    options = parser.parse_args()
    if options.command == "record":
        record(options.example, options.device, options.steps, options.output)
    else:
        compare(*(json.loads(path.read_text(encoding="utf-8")) for path in (options.gpu, options.simulated)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
