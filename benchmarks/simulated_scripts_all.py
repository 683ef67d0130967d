"""Run public training scripts on the simulated device and set each beside what a GPU did.

    python benchmarks/simulated_scripts_all.py TRUTH.json CHECKOUTS OUT [--only NAME ...] [--limit SECONDS]

CHECKOUTS holds the repositories that TRUTH.json names, each in a folder of its name. The scripts and their arguments
are those of TRUTH.json; they are not modified. Their data sets are made up: random images, texts and graphs in the
files that the scripts look for, small, since counts are compared per execution of a line. A script runs in a process of
its own under ``benchmarks/simulated_scripts.py``, and at most SECONDS long (60). OUT gets a table for each of them, and
``summary.txt``.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import simulated_scripts

Make = Callable[[Path], None]
"""Makes up the data of a script in the folder that it runs in."""


@dataclass(frozen=True)
class Script:
    """Where a script stands within CHECKOUTS, where it runs, and what it needs there."""

    path: str
    folder: str
    data: Make | None = None
    before: str = ""
    """Python to run first."""


def _images(folder: Path, train: int = 1500, test: int = 500) -> None:
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    random_bytes = np.random.default_rng(0)
    for name, number in (("train", train), ("t10k", test)):
        pixels = random_bytes.integers(0, 256, (number, 28, 28), dtype=np.uint8)
        labels = random_bytes.integers(0, 10, number, dtype=np.uint8)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, number, 28, 28) + pixels.tobytes())
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, number) + labels.tobytes())


def _images_beside(folder: Path) -> None:
    _images(folder.parent / "data")


def _images_below(folder: Path) -> None:
    _images(folder / "data", 60_000, 10_000)


def _citations(folder: Path, papers: int = 2708, words: int = 50, links: int = 5429) -> None:
    """As many papers as Cora has: the scripts take rows of these numbers for training and testing."""
    chance = random.Random(0)
    cora = folder / "cora"
    cora.mkdir(exist_ok=True)
    kinds = ["Theory", "Rule_Learning", "Case_Based", "Neural_Networks", "Genetic_Algorithms", "Other", "Methods"]
    with (cora / "cora.content").open("w") as file:
        for paper in range(papers):
            row = " ".join(str(int(chance.random() < 0.01)) for _ in range(words))
            file.write(f"{paper} {row} {chance.choice(kinds)}\n")
    with (cora / "cora.cites").open("w") as file:
        for _ in range(links):
            file.write(f"{chance.randrange(papers)} {chance.randrange(papers)}\n")


def _planetoid(folder: Path, papers: int = 2708, words: int = 200, kinds: int = 7) -> None:
    import scipy.sparse

    raw = folder.parent / "data" / "Planetoid" / "Cora" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(0)
    labels = np.eye(kinds, dtype=np.int32)[chance.integers(0, kinds, papers)]
    features = scipy.sparse.random(papers, words, 0.05, format="csr", dtype=np.float32, random_state=0)
    graph = {paper: list(map(int, chance.integers(0, papers, 4))) for paper in range(papers)}
    known = papers - 1000
    parts = {
        "x": features[:140],
        "tx": features[known:],
        "allx": features[:known],
        "y": labels[:140],
        "ty": labels[known:],
        "ally": labels[:known],
        "graph": graph,
    }
    for name, part in parts.items():
        (raw / f"ind.cora.{name}").write_bytes(pickle.dumps(part))
    (raw / "ind.cora.test.index").write_text("\n".join(map(str, range(known, papers))) + "\n")


def _tokens(folder: Path) -> None:
    data = folder / "data" / "synth"
    data.mkdir(exist_ok=True)
    for name in ("train", "val"):
        np.random.default_rng(0).integers(0, 50_000, 20_000, dtype=np.uint16).tofile(data / f"{name}.bin")


def _text(folder: Path) -> None:
    chance = random.Random(0)
    (folder / "input.txt").write_text("".join(chance.choice("O God, abc!\n") for _ in range(20_000)))


def _words(folder: Path) -> None:
    """The text of the repository where it is there, else words in its place."""
    data = folder / "data" / "wikitext-2"
    data.mkdir(parents=True, exist_ok=True)
    chance = random.Random(0)
    for name, lines in (("train", 400), ("valid", 60), ("test", 60)):
        text = "\n".join(" ".join(f"w{chance.randrange(500)}" for _ in range(30)) for _ in range(lines))
        (data / f"{name}.txt").write_text(text + "\n")


def _pictures(folder: Path) -> None:
    from PIL import Image

    chance = np.random.default_rng(0)
    for kind in ("imgs", "masks"):
        (folder / "data" / kind).mkdir(parents=True, exist_ok=True)
    for number in range(12):
        picture = chance.integers(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(picture).save(folder / "data" / "imgs" / f"{number}.png")
        Image.fromarray((picture[:, :, 0] > 128).astype(np.uint8)).save(folder / "data" / "masks" / f"{number}.png")


_MADE_UP_CIFAR = """
import io, os, torchvision
os.popen = lambda *_: io.StringIO("24 80")
class CIFAR10(torchvision.datasets.FakeData):
    def __init__(self, root, train, download, transform):
        super().__init__(96 if train else 200, (3, 32, 32), 10, transform)
torchvision.datasets.CIFAR10 = CIFAR10
"""
"""torchvision checks the sums of the real files; the script asks how wide its terminal is."""

_MADE_UP_DOWNLOAD = """
import io, requests, tarfile
def get(url, **options):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.add("cora")
    packed.seek(0)
    class Answer:
        raw = packed
        __enter__ = lambda self: self
        __exit__ = lambda *_: None
    return Answer()
requests.get = get
"""
"""One script downloads its graph each time."""

SCRIPTS = {
    "cleanrl_ppo": Script("cleanrl/cleanrl/ppo.py", "cleanrl"),
    "ex_dcgan": Script("examples/dcgan/main.py", "examples/dcgan"),
    "ex_gat": Script("examples/gat/main.py", "examples/gat", _citations),
    "ex_gcn": Script("examples/gcn/main.py", "examples/gcn", _citations, _MADE_UP_DOWNLOAD),
    "ex_imagenet": Script("examples/imagenet/main.py", "examples/imagenet"),
    "ex_imagenet_eval": Script("examples/imagenet/main.py", "examples/imagenet"),
    "ex_mnist": Script("examples/mnist/main.py", "examples/mnist", _images_beside),
    "ex_mnist_ff": Script("examples/mnist_forward_forward/main.py", "examples/mnist_forward_forward", _images_below),
    "ex_mnist_rnn": Script("examples/mnist_rnn/main.py", "examples/mnist_rnn", _images_beside),
    "ex_siamese": Script("examples/siamese_network/main.py", "examples/siamese_network", _images_beside),
    "ex_vae": Script("examples/vae/main.py", "examples/vae", _images_beside),
    "ex_wlm_lstm": Script("examples/word_language_model/main.py", "examples/word_language_model", _words),
    "ex_wlm_transformer": Script("examples/word_language_model/main.py", "examples/word_language_model", _words),
    "mingpt_adder": Script("minGPT/projects/adder/adder.py", "minGPT"),
    "mingpt_chargpt": Script("minGPT/projects/chargpt/chargpt.py", "minGPT", _text),
    "nanogpt": Script("nanoGPT/train.py", "nanoGPT", _tokens),
    "pyg_gcn": Script("pytorch_geometric/examples/gcn.py", "pytorch_geometric/examples", _planetoid),
    "pytorch_cifar": Script("pytorch-cifar/main.py", "pytorch-cifar", before=_MADE_UP_CIFAR),
    "unet": Script("Pytorch-UNet/train.py", "Pytorch-UNet", _pictures),
}


def run(name: str, script: Script, arguments: list[str], checkouts: Path, out: Path, limit: int) -> str | None:
    """Run one script; returns why it left nothing to compare, if so."""
    folder = checkouts / script.folder
    if script.data is not None:
        script.data(folder)
    here = Path(__file__).parent
    command = [
        "count",
        str(out / f"{name}-executed.json"),
        "--device",
        "simulated",
        "--limit",
        str(limit),
        "--json",
        str(out / f"{name}.json"),
        str(checkouts / script.path),
        *arguments,
    ]
    source = (
        f"import sys; sys.argv[1:] = {command!r}{script.before}\nimport simulated_scripts\nsimulated_scripts.main()"
    )
    path = os.pathsep.join([str(folder), str(here), str(here.parent), str(here.parent / "lint")])
    environment = {**os.environ, "PYTHONPATH": path, "WANDB_MODE": "disabled"}
    with (out / f"{name}.log").open("w") as log:
        try:
            subprocess.run(
                [sys.executable, "-c", source],
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                timeout=limit + 240,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "did not come to an end"
    lines = (out / f"{name}.log").read_text(errors="replace").splitlines()
    if not ((out / f"{name}.json").exists() and (out / f"{name}-executed.json").exists()):
        return lines[-1] if lines else "left no output"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("truth", type=Path, metavar="TRUTH.json")
    parser.add_argument("checkouts", type=Path, metavar="CHECKOUTS")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--only", nargs="+", choices=sorted(SCRIPTS), default=sorted(SCRIPTS), metavar="NAME")
    parser.add_argument("--compare-only", action="store_true", help="run nothing: compare what is in OUT from before")
    parser.add_argument("--limit", type=int, default=60, help="seconds that a script may run (60)")
    options = parser.parse_args()
    out = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    truth = json.loads(options.truth.read_text(encoding="utf-8"))["scripts"]
    total: Counter[str] = Counter()
    summary = []
    for name in options.only:
        arguments = [argument.replace(f"{name}/", "") for argument in truth[name]["argv"]]
        problem = None
        if not options.compare_only:
            problem = run(name, SCRIPTS[name], arguments, options.checkouts.absolute(), out, options.limit)
        if problem is not None:
            summary.append(f"{name:20} not comparable: {problem[:150]}")
            print(summary[-1], flush=True)
            continue
        measured, executed = (json.loads((out / f"{name}{kind}.json").read_text()) for kind in ("", "-executed"))
        rows = simulated_scripts.compare(truth[name], measured, executed)
        tally = Counter(row[-2] for row in rows[1:])
        total.update(tally)
        with (out / f"{name}.txt").open("w") as file:
            file.writelines("  ".join(row).rstrip() + "\n" for row in rows)
        summary.append(f"{name:20} {', '.join(f'{outcome} {number}' for outcome, number in sorted(tally.items()))}")
        print(summary[-1], flush=True)
        summary += [f"    {'  '.join(row)}".rstrip() for row in rows[1:] if row[-2] != "equal"]
    compared = sum(number for outcome, number in total.items() if outcome != "not reached")
    summary.append(
        f"lines reached in both: {compared}, equal {total['equal']} ({100 * total['equal'] / compared:.1f} %)"
    )
    print(summary[-1])
    (out / "summary.txt").write_text("\n".join(summary) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
