"""Verify the linter's fixes in public training scripts, and in the examples, on the simulated device or a GPU.

    python benchmarks/verified_fixes.py CHECKOUTS OUT [--only NAME ...] [--timeout SECONDS] [--device cuda]

CHECKOUTS holds the folders truth1 and truth2, which hold the repositories of the two script truths. Each script is
copied with made-up data to a temporary folder, and ``gpusync lint --fix --unsafe-fixes --verify`` runs there with
fewer steps
than on the GPU. Where a script reads ``../data``, that path is changed to ``data``; nothing else is. OUT gets the
result of each script (NAME.json and NAME.log) and ``summary.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import simulated_scripts_all as scripts

if TYPE_CHECKING:
    from simulated_scripts_all import Make

HERE = Path(__file__).resolve().parent
EXAMPLES = "examples of this project"


@dataclass(frozen=True)
class Case:
    """A script: where it is, how it is run there, and what data it needs."""

    folder: str
    command: str
    data: Make | None = None
    lint: str = "."


def _images_in(folder: Path) -> None:
    scripts._images(folder / "data", 512, 128)


CASES = {
    "conv_net": Case(f"{EXAMPLES}/conv_net", "train_slow.py --epochs 2 --images 256"),
    "char_gpt": Case(f"{EXAMPLES}/char_gpt", "train_slow.py --steps 6 --batch-size 8"),
    "deferred_read": Case(f"{EXAMPLES}/deferred_read", "train_deferred.py --steps 20"),
    "cleanrl_ppo": Case("truth1/cleanrl", "cleanrl/ppo.py --total-timesteps 512 --num-steps 64", lint="cleanrl/ppo.py"),
    "ex_dcgan": Case(
        "truth1/examples/dcgan",
        "main.py --dataset fake --niter 1 --workers 0 --outf . --accel --manualSeed 1 --dry-run --batchSize 8",
    ),
    "ex_gat": Case("truth1/examples/gat", "main.py --epochs 4 --val-every 2", scripts._citations),
    "ex_imagenet": Case(
        "truth1/examples/imagenet",
        "main.py --dummy -a resnet18 --epochs 1 -p 5 -b 64 -j 0 --gpu 0 --seed 1",
    ),
    "ex_mnist": Case("truth1/examples/mnist", "main.py --epochs 1 --log-interval 2", _images_in),
    "ex_mnist_ff": Case(
        "truth1/examples/mnist_forward_forward",
        "main.py --epochs 3 --train_size 500 --test_size 100 --log-interval 1",
        scripts._images_below,
    ),
    "ex_mnist_rnn": Case("truth1/examples/mnist_rnn", "main.py --epochs 1 --log-interval 2 --accel", _images_in),
    "ex_siamese": Case("truth1/examples/siamese_network", "main.py --epochs 1 --log-interval 2 --dry-run", _images_in),
    "ex_vae": Case("truth1/examples/vae", "main.py --epochs 1 --log-interval 2", _images_in),
    "ex_wlm_lstm": Case(
        "truth1/examples/word_language_model",
        "main.py --model LSTM --epochs 1 --log-interval 10 --accel --dry-run",
        scripts._words,
    ),
    "mingpt_adder": Case(
        "truth1/minGPT",
        "python projects/adder/adder.py --trainer.max_iters=6 --trainer.num_workers=0 --data.ndigit=1 "
        "--model.model_type=gpt-nano",
    ),
    "nanogpt": Case(
        "truth1/nanoGPT",
        "train.py --dataset=synth --compile=False --log_interval=2 --gradient_accumulation_steps=2 --max_iters=4 "
        "--eval_interval=2 --eval_iters=2 --batch_size=2 --block_size=32 --n_layer=2 --n_head=2 --n_embd=64",
        scripts._tokens,
    ),
    "unet": Case("truth1/Pytorch-UNet", "train.py --epochs 1 --batch-size 2 --scale 0.5", scripts._pictures),
    "cleanrl_dqn": Case(
        "truth2/cleanrl",
        "cleanrl/dqn.py --total-timesteps 300 --learning-starts 100 --target-network-frequency 50",
        lint="cleanrl/dqn.py",
    ),
    "dlrm": Case(
        "truth2/dlrm",
        "dlrm_s_pytorch.py --arch-sparse-feature-size=16 --arch-mlp-bot=13-64-16 --arch-mlp-top=64-32-1 "
        "--arch-embedding-size=1000-500-100-50 --data-generation=random --mini-batch-size=64 --num-batches=10 "
        "--print-freq=2 --test-freq=5 --nepochs=1 --loss-function=bce --use-gpu",
    ),
    "gan_wgan_gp": Case(
        "truth2/PyTorch-GAN/implementations/wgan_gp",
        "wgan_gp.py --n_epochs 1 --sample_interval 1000 --n_cpu 0 --batch_size 512",
    ),
}


def verify(case: Case, checkouts: Path, out: Path, name: str, timeout: int, device: str) -> dict[str, Any] | str:
    """Verify one script; its JSON, or why there is none."""
    source = HERE.parent / "examples" / case.folder.partition("/")[2]
    if not case.folder.startswith(EXAMPLES):
        source = checkouts / case.folder
    (out / f"{name}.json").unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "project"
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns(".git", "data" if case.data else ".git"))
        if case.data is not None:
            (folder / "data").mkdir(exist_ok=True)
            case.data(folder)
            script = folder / case.command.removeprefix("python ").split()[0]
            text = script.read_text(encoding="utf-8")
            script.write_text(text.replace("../data", "data"), encoding="utf-8")
        options = ["--fix", "--unsafe-fixes", "--verify", case.command, "--verify-device", device]
        options += ["--verify-timeout", str(timeout), "--output-format", "json", "-o", str(out / f"{name}.json")]
        folders = [
            str(HERE.parent),
            str(HERE.parent / "lint"),
            str(folder),
            *filter(None, [os.environ.get("PYTHONPATH")]),
        ]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "WANDB_MODE": "disabled"}
        with (out / f"{name}.log").open("w") as log:
            subprocess.run(
                [sys.executable, "-P", "-m", "pytest_gpusync", "lint", *options, case.lint],
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
            )
    if (out / f"{name}.json").exists():
        found: dict[str, Any] = json.loads((out / f"{name}.json").read_text(encoding="utf-8"))
        return found
    lines = (out / f"{name}.log").read_text(encoding="utf-8").splitlines()
    return lines[-1].removeprefix("gpusync lint: error: --verify: ") if lines else "no output"


def summary(results: dict[str, dict[str, Any] | str], device: str) -> str:
    """A table of the scripts, and the fixes that were refused."""
    rows = [
        "| script | fixes | not reached | tried | kept | refused | syncs before | after | runs |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    details: list[str] = []
    total: Counter[str] = Counter()
    for name, found in results.items():
        if isinstance(found, str):
            details.append(f"- {name}: not verified: {found}")
            continue
        fixes = found["fixes"]
        kept, tried = sum(fix["kept"] for fix in fixes), sum(fix["tried"] for fix in fixes)
        numbers = [len(fixes), len(fixes) - tried, tried, kept, tried - kept]
        numbers += [found["syncs"]["before"], found["syncs"]["after"], found["runs"]]
        rows.append(f"| {name} | {' | '.join(map(str, numbers))} |")
        total.update(fixes=len(fixes), tried=tried, kept=kept, scripts=1)
        for fix in fixes:
            if fix["tried"]:
                result = "kept" if fix["kept"] else f"refused: {fix['reason']}"
                counts = f"{fix['syncs']['before']} -> {fix['syncs']['after']}"
                details.append(
                    f"- {name}: {fix['path']}:{fix['line']} {fix['code']} ({fix['title']}): {counts}, {result}"
                )
    head = f"{total['scripts']} scripts: {total['fixes']} fixes, {total['tried']} tried, {total['kept']} kept."
    return "\n".join([f"# Verified fixes on the device {device}", "", head, "", *rows, "", *details, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", type=Path, metavar="CHECKOUTS")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    parser.add_argument("--timeout", type=int, default=120, help="seconds of each run (120)")
    parser.add_argument("--device", choices=("cuda", "simulated"), default="simulated", help="where the scripts run")
    options = parser.parse_args()
    out = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[str, Any] | str] = {}
    for name in options.only:
        results[name] = verify(CASES[name], options.checkouts.absolute(), out, name, options.timeout, options.device)
        (out / "summary.md").write_text(summary(results, options.device), encoding="utf-8")
        print(name, "not verified" if isinstance(results[name], str) else "verified", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
