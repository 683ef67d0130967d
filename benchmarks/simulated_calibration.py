"""Check or renew the simulated device's calibration on a GPU.

    python benchmarks/simulated_calibration.py [--json OUT.json]

``pytest_gpusync/simulated/kernels/calibration.toml`` says how often operators make the host wait inside their own CUDA
code. For each of them this runs a call on the GPU, twice to warm up and once counted by CUPTI, and prints what the file
says beside what was counted, and the lines of ``[source]`` for a file that holds these figures. Without a GPU it counts
on the simulated device, which shows only that the calls reach their operators.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pytest_gpusync import record
from pytest_gpusync.simulated import simulated_cuda
from pytest_gpusync.simulated.kernels import calibration

Call = Callable[[], object]


def calls() -> dict[str, Call]:
    """A call for each entry of the file, by the first operator that the entry names."""
    device = "cuda"
    x = torch.randn(64, 64, device=device)
    same = x.clone()
    v = torch.randn(1000, device=device)
    whole = torch.randint(0, 10, (1000,), device=device)
    mask = v > 0
    square = torch.randn(256, 256, device=device)
    positive = square @ square.T + 256 * torch.eye(256, device=device)
    right = torch.randn(256, 4, device=device)
    duplicated = torch.sparse_coo_tensor(
        torch.zeros(2, 3, dtype=torch.long, device=device), torch.ones(3, device=device), (4, 4)
    )
    dense = torch.randn(4, 4, device=device)
    probabilities = torch.randn(50, 4, 20, device=device).log_softmax(2)
    targets = torch.randint(1, 20, (4, 10), device=device)
    lengths, target_lengths = [50] * 4, [10] * 4
    counts = torch.ones(10, dtype=torch.long, device=device)
    found: dict[str, Call] = {
        "aten::nonzero": lambda: mask.nonzero(),
        "aten::masked_select": lambda: v.masked_select(mask),
        "aten::_unique2": lambda: v.unique(),
        "aten::unique_dim": lambda: x.unique(dim=0),
        "aten::equal": lambda: x.equal(same),
        "aten::bincount": lambda: whole.bincount(),
        "aten::histc": lambda: v.histc(10),
        "aten::repeat_interleave.Tensor": lambda: torch.repeat_interleave(counts),
        "aten::normal.Tensor_Tensor": lambda: torch.normal(v, v.abs()),
        "aten::normal.Tensor_Tensor_out": lambda: torch.normal(v, v.abs(), out=torch.empty_like(v)),
        "aten::_ctc_loss": lambda: torch._ctc_loss(probabilities, targets, lengths, target_lengths),
        "aten::_linalg_svd": lambda: torch.linalg.svd(square),
        "aten::_linalg_eigh": lambda: torch.linalg.eigh(positive),
        "aten::linalg_eig": lambda: torch.linalg.eig(square),
        "aten::linalg_lstsq": lambda: torch.linalg.lstsq(positive, right),
        "aten::linalg_matrix_exp": lambda: torch.linalg.matrix_exp(square / 256),
        "aten::_to_sparse": lambda: x.to_sparse(),
        "aten::_to_sparse_csr": lambda: x.to_sparse_csr(),
        "aten::_coalesce": lambda: duplicated.coalesce(),
        "sparse aten::mm": lambda: torch.mm(duplicated, dense),
    }
    try:
        import torchvision
    except ImportError:
        return found
    boxes = torch.rand(50, 4, device=device)
    boxes[:, 2:] += boxes[:, :2]
    scores = torch.rand(50, device=device)
    found["torchvision::nms"] = lambda: torchvision.ops.nms(boxes, scores, 0.5)
    return found


def counted(call: Call) -> dict[str, int]:
    """Syncs by kind of the third execution."""
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    with record() as region:
        call()
    kinds: dict[str, int] = {}
    for sync in region.result().all_syncs:
        kinds[sync.kind] = kinds.get(sync.kind, 0) + 1
    return kinds


def _compare(document: dict[str, Any]) -> None:
    first_names: dict[tuple[str, ...], calibration.Entry] = {
        entry.names: entry for entry in calibration.entries().values()
    }
    made = calls()
    print(f"{'operator':36}{'file':>10}{'counted':>24}  evidence in the file")
    for names, entry in first_names.items():
        call = made.get(names[0])
        if call is None:
            print(f"{names[0]:36}{'':>10}{'no call here':>24}  {entry.evidence}")
            continue
        kinds = counted(call)
        said = f"{entry.counted_by or entry.syncs}{'+' if entry.at_least else ''}"
        shown = ", ".join(f"{kind} {number}" for kind, number in kinds.items()) or "none"
        print(f"{names[0]:36}{said:>10}{shown:>24}  {entry.evidence}")
        document["operators"][names[0]] = kinds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write what was counted to this file")
    options = parser.parse_args()
    document: dict[str, Any] = {"torch": torch.__version__, "operators": {}}
    if torch.cuda.is_available():
        document |= {"gpu": torch.cuda.get_device_name(0), "cuda": torch.version.cuda}
        _compare(document)
        print(f'\n[source]\ngpu = "{document["gpu"]}"\ncuda = "{document["cuda"]}"\ntorch = "{document["torch"]}"')
    else:
        print("no GPU: counting on the simulated device", file=sys.stderr)
        with simulated_cuda():
            _compare(document)
    if options.json:
        options.json.write_text(json.dumps(document, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
