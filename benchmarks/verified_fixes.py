"""Verify the linter's fixes in public training scripts, and in the examples, on the simulated device or a GPU.

    python benchmarks/verified_fixes.py CHECKOUTS OUT [--only NAME ...] [--timeout SECONDS] [--device cuda]

CHECKOUTS holds the folders truth1 and truth2, which hold the repositories of the two script truths. Each script is
copied with made-up data to a temporary folder, and ``gpusync lint --fix --unsafe-fixes --verify`` runs there. The
scripts are not changed, but for two sizes in that of x-transformers. The command is ``verified_program.py``: it
replaces what is missing around a script as the truth factory does (``truth/stubs.py``), seeds it, stops it after a
few steps, and prints the sum of its weights. So scripts that do not seed themselves repeat themselves, and results
are compared with all digits. OUT gets the result of each script (NAME.json and NAME.log) and ``summary.md``. Run it
in the environment ``base`` of ``truth/make.py``.
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
TRUTH = HERE / "truth"
sys.path.append(str(TRUTH))
EXAMPLES = "examples of this project"
PROGRAM = HERE / "verified_program.py"

_QUIET = {
    "HF_HUB_OFFLINE": "1",
    "MPLBACKEND": "Agg",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",  # compiled code has no lines of its own
    "WANDB_MODE": "disabled",
}


@dataclass(frozen=True)
class Case:
    """A script: where it is, how it is run there, and what it needs."""

    folder: str
    """Below CHECKOUTS. It is copied; the script runs in it."""
    command: str
    """The script with its arguments; only the script's own folder is on the import path."""
    data: str = ""
    """Data sets to make up: ``KIND:FOLDER ...`` with kinds of ``truth/data.py``."""
    make: Make | None = None
    """Makes up other data in the folder."""
    before: str = ""
    """Python to run first."""
    lint: str = "."
    steps: int = 12
    """Steps after which the script is stopped."""
    mask: str = ""
    """What differs from run to run in its output."""


_IMAGES = "import stubs; stubs.vision_data()"
_ONE_RANK = "import stubs; stubs.one_rank(); "


def _enwik8(folder: Path) -> None:
    import gzip
    import random

    chance = random.Random(0)
    (folder / "data").mkdir(exist_ok=True)
    with gzip.open(folder / "data" / "enwik8.gz", "wb") as file:
        file.write(bytes(chance.choices(range(32, 127), k=200_000)))
    text = (folder / "train_enwik8.py").read_text(encoding="utf-8")
    # The sizes of the splits are constants of the script.
    text = text.replace("int(95e6)", "160_000").replace("int(90e6)", "120_000")
    (folder / "train_enwik8.py").write_text(text, encoding="utf-8")


def _corpus(folder: Path) -> None:
    import data

    data.texts(folder / "data")


def _blender(folder: Path) -> None:
    """A synthetic scene for nerf-pytorch: a few views of noise."""
    import math

    import numpy as np
    from PIL import Image

    scene = folder / "scene"
    scene.mkdir()
    chance = np.random.default_rng(0)
    for part, number in (("train", 6), ("val", 2), ("test", 2)):
        frames = []
        for index in range(number):
            name = f"{part}{index}"
            Image.fromarray(chance.integers(0, 256, (32, 32, 4), dtype=np.uint8)).save(scene / f"{name}.png")
            angle = 2 * math.pi * index / number
            pose = [
                [math.cos(angle), 0, math.sin(angle), 4 * math.sin(angle)],
                [0, 1, 0, 0.5],
                [-math.sin(angle), 0, math.cos(angle), 4 * math.cos(angle)],
                [0, 0, 0, 1],
            ]
            frames.append({"file_path": name, "transform_matrix": pose})
        (scene / f"transforms_{part}.json").write_text(json.dumps({"camera_angle_x": 0.7, "frames": frames}))


def _coco(folder: Path) -> None:
    import data

    data.coco(folder / "coco")
    for part in ("train2017", "val2017"):
        (folder / "coco" / "images" / part).rename(folder / "coco" / part)


def _pets(folder: Path) -> None:
    import numpy as np
    from PIL import Image

    (folder / "pets").mkdir()
    chance = np.random.default_rng(0)
    for number in range(24):
        name = f"{'abc'[number % 3]}_{number}.jpg"
        Image.fromarray(chance.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(folder / "pets" / name)


CASES = {
    "conv_net": Case(f"{EXAMPLES}/conv_net", "train_slow.py --epochs 2 --images 256"),
    "char_gpt": Case(f"{EXAMPLES}/char_gpt", "train_slow.py --steps 6 --batch-size 8"),
    "deferred_read": Case(f"{EXAMPLES}/deferred_read", "train_deferred.py --steps 20"),
    "cleanrl_ppo": Case(
        "truth1/cleanrl",
        "cleanrl/ppo.py --total-timesteps 512 --num-steps 64",
        lint="cleanrl/ppo.py",
        steps=40,
        before="import sys; sys.path.append('.')",
    ),
    "ex_dcgan": Case(
        "truth1/examples/dcgan",
        "main.py --dataset fake --niter 1 --workers 0 --outf . --accel --manualSeed 1 --batchSize 4 --ngf 8 --ndf 8",
        steps=6,
    ),
    "ex_gat": Case("truth1/examples/gat", "main.py --epochs 4 --val-every 2", make=scripts._citations),
    "ex_gcn": Case(
        "truth1/examples/gcn",
        "main.py --epochs 6 --val-every 2",
        make=scripts._citations,
        before=scripts._MADE_UP_DOWNLOAD,
    ),
    "ex_imagenet": Case(
        "truth1/examples/imagenet",
        "main.py images -a resnet18 --epochs 1 -p 2 -b 4 -j 0 --gpu 0 --seed 1",
        data="image_folder:images",
        steps=6,
    ),
    "ex_imagenet_eval": Case(
        "truth1/examples/imagenet",
        "main.py images -a resnet18 -e -p 2 -b 4 -j 0 --gpu 0 --seed 1",
        data="image_folder:images",
    ),
    "ex_mnist": Case(
        "truth1/examples/mnist",
        "main.py --epochs 1 --log-interval 2 --batch-size 16 --test-batch-size 8",
        before=_IMAGES,
    ),
    "ex_mnist_ff": Case(
        "truth1/examples/mnist_forward_forward",
        "main.py --epochs 3 --train_size 96 --test_size 32 --log-interval 1",
        before=_IMAGES,
    ),
    "ex_mnist_rnn": Case(
        "truth1/examples/mnist_rnn",
        "main.py --epochs 1 --log-interval 2 --accel --batch-size 16 --test-batch-size 8",
        before=_IMAGES,
    ),
    "ex_siamese": Case(
        "truth1/examples/siamese_network",
        "main.py --epochs 1 --log-interval 2 --batch-size 16 --test-batch-size 8",
        before=_IMAGES,
    ),
    "ex_vae": Case("truth1/examples/vae", "main.py --epochs 1 --log-interval 2 --batch-size 16", before=_IMAGES),
    "ex_wlm_lstm": Case(
        "truth1/examples/word_language_model",
        "main.py --model LSTM --epochs 1 --log-interval 10 --accel --dry-run",
        make=scripts._words,
    ),
    "ex_wlm_transformer": Case(
        "truth1/examples/word_language_model",
        "main.py --model Transformer --epochs 1 --log-interval 2 --accel --use-optimizer "
        "--lr 0.001 --emsize 16 --nhid 16 --batch_size 64",
        make=scripts._words,
    ),
    "mingpt_adder": Case(
        "truth1/minGPT",
        "projects/adder/adder.py --trainer.max_iters=6 --trainer.num_workers=0 --data.ndigit=1 "
        "--model.model_type=gpt-nano",
        before="import sys; sys.path.append('.')",
    ),
    "mingpt_chargpt": Case(
        "truth1/minGPT",
        "projects/chargpt/chargpt.py --trainer.max_iters=6 --trainer.num_workers=0 --model.model_type=gpt-nano",
        make=scripts._text,
        before="import sys; sys.path.append('.')",
        steps=6,
    ),
    "nanogpt": Case(
        "truth1/nanoGPT",
        "train.py --dataset=synth --compile=False --log_interval=2 --gradient_accumulation_steps=2 --max_iters=4 "
        "--eval_interval=2 --eval_iters=2 --batch_size=2 --block_size=32 --n_layer=2 --n_head=2 --n_embd=64",
        make=scripts._tokens,
    ),
    "pyg_gcn": Case(
        "truth1/pytorch_geometric/examples",
        "gcn.py --epochs 6",
        make=lambda folder: scripts._planetoid(folder / "gcn"),
        before="import torch_geometric.datasets as sets; known = sets.Planetoid; "
        "sets.Planetoid = lambda path, *args, **options: known('data/Planetoid', *args, **options)",
        lint="gcn.py",
    ),
    "pytorch_cifar": Case(
        "truth1/pytorch-cifar",
        "main.py",
        before=scripts._MADE_UP_CIFAR + _IMAGES + "; stubs.batches_of(4)",
        lint="main.py",
        steps=3,
        mask=r"Step: .* Tot: [^|]*",
    ),
    "unet": Case(
        "truth1/Pytorch-UNet", "train.py --epochs 1 --batch-size 2 --scale 0.5", make=scripts._pictures, steps=4
    ),
    "accelerate_cv": Case(
        "truth2/accelerate/examples",
        "cv_example.py --data_dir pets",
        make=_pets,
        before="import timm, stubs; stubs.no_weights(); create = timm.create_model; "
        "timm.create_model = lambda name, pretrained=False, **options: create('resnet10t', **options); "
        "stubs.batches_of(2)",
        lint="cv_example.py",
        steps=3,
    ),
    "cleanrl_dqn": Case(
        "truth2/cleanrl",
        "cleanrl/dqn.py --total-timesteps 300 --learning-starts 100 --target-network-frequency 50",
        lint="cleanrl/dqn.py",
        before="import sys; sys.path.append('.')",
        steps=20,
    ),
    "cleanrl_sac": Case(
        "truth2/cleanrl",
        "cleanrl/sac_continuous_action.py --env-id Pendulum-v1 --total-timesteps 200 --learning-starts 100 "
        "--buffer-size 500 --batch-size 16",
        lint="cleanrl/sac_continuous_action.py",
        before="import sys; sys.path.append('.')",
        steps=20,
    ),
    "detr": Case(
        "truth2/detr",
        "main.py --coco_path coco --batch_size 1 --epochs 1 --num_workers 0 --output_dir made --backbone resnet18 "
        "--enc_layers 1 --dec_layers 1 --dim_feedforward 32 --hidden_dim 32 --nheads 2 --num_queries 5",
        make=_coco,
        before="import os, stubs; os.makedirs('made', exist_ok=True); stubs.no_weights(); stubs.old_numpy()",
        steps=4,
    ),
    "dino": Case(
        "truth2/dino",
        "main_dino.py --arch vit_tiny --data_path images/train --output_dir . --patch_size 32 "
        "--batch_size_per_gpu 1 --epochs 2 "
        "--warmup_epochs 1 --num_workers 0 --local_crops_number 2 --out_dim 64 --saveckp_freq 1",
        data="image_folder:images",
        before=_ONE_RANK + "import torch; torch.hub.list = lambda *_, **__: []",
        steps=2,
    ),
    "dlrm": Case(
        "truth2/dlrm",
        "dlrm_s_pytorch.py --arch-sparse-feature-size=16 --arch-mlp-bot=13-64-16 --arch-mlp-top=64-32-1 "
        "--arch-embedding-size=1000-500-100-50 --data-generation=random --mini-batch-size=64 --num-batches=10 "
        "--print-freq=2 --test-freq=5 --nepochs=1 --loss-function=bce --use-gpu",
        before="import stubs; stubs.modules('onnx'); stubs.old_numpy()",
        lint="dlrm_s_pytorch.py",
    ),
    "gan_acgan": Case(
        "truth2/PyTorch-GAN/implementations/acgan",
        "acgan.py --n_epochs 1 --sample_interval 10 --n_cpu 0 --batch_size 16",
        before=_IMAGES,
    ),
    "gan_wgan_gp": Case(
        "truth2/PyTorch-GAN/implementations/wgan_gp",
        "wgan_gp.py --n_epochs 1 --sample_interval 1000 --n_cpu 0 --batch_size 16",
        before=_IMAGES,
    ),
    "improved_diffusion": Case(
        "truth2/improved-diffusion",
        "scripts/image_train.py --data_dir images --image_size 32 --num_res_blocks 1 --diffusion_steps 50 "
        "--log_interval 2 --save_interval 50 --schedule_sampler loss-second-moment --learn_sigma True "
        "--batch_size 2 --num_channels 32 --lr_anneal_steps 4",
        data="images:images",
        before="import sys; sys.path.append('.'); import stubs; stubs.one_rank(True); stubs.old_numpy()",
        steps=4,
    ),
    "nerf": Case(
        "truth2/nerf-pytorch",
        "run_nerf.py --expname x --basedir logs --datadir scene --dataset_type blender --white_bkgd --use_viewdirs "
        "--N_samples 8 --no_reload --i_print 2 --i_testset 1000 --i_video 1000000 --i_weights 1000 --testskip 1 "
        "--precrop_iters 2 --N_rand 64 --N_importance 8 --no_batching --netwidth 16 --netwidth_fine 16",
        make=_blender,
        before="import stubs; stubs.old_numpy()",
        steps=8,
    ),
    "pyg_mutag_gin": Case(
        "truth2/pytorch_geometric/examples",
        "mutag_gin.py --epochs 2 --batch_size 8",
        before="import torch_geometric.datasets as sets; sets.TUDataset = lambda path, name: "
        "sets.FakeDataset(24, avg_num_nodes=12, num_channels=7, num_classes=2)",
        lint="mutag_gin.py",
    ),
    "pyg_topk_pool": Case(
        "truth2/pytorch_geometric/examples",
        "proteins_topk_pool.py",
        before="import torch_geometric.datasets as sets; sets.TUDataset = lambda path, name: "
        "sets.FakeDataset(40, avg_num_nodes=12, num_channels=7, num_classes=2)",
        lint="proteins_topk_pool.py",
    ),
    "supcon": Case(
        "truth2/SupContrast",
        "main_supcon.py --batch_size 4 --epochs 1 --num_workers 0 --print_freq 3 --model resnet18 --save_freq 1",
        before="import stubs; stubs.vision_data(24, 8); stubs.modules('tensorboard_logger')",
        steps=4,
        mask=r"[BD]T [\d.]+ \([\d.]+\)",
    ),
    "timm_train": Case(
        "truth2/pytorch-image-models",
        "train.py --data-dir images --train-split train --val-split val --model resnet10t --num-classes 4 --epochs 1 "
        "--workers 0 --log-interval 3 --output out --model-ema --mixup 0.2 --img-size 32 --cooldown-epochs 0 "
        "--warmup-epochs 0 --sched cosine --opt adamw --lr 1e-3 --clip-grad 1.0 -b 4",
        data="image_folder:images",
        lint="train.py",
        steps=6,
    ),
    "tut_birnn": Case(
        "truth2/pytorch-tutorial/tutorials/02-intermediate/bidirectional_recurrent_neural_network",
        "main.py",
        before=_IMAGES + "; stubs.batches_of(16)",
    ),
    "tut_gan": Case(
        "truth2/pytorch-tutorial/tutorials/03-advanced/generative_adversarial_network",
        "main.py",
        before="import stubs; stubs.vision_data(400)" + "; stubs.batches_of(100)",
    ),
    "tut_lm": Case(
        "truth2/pytorch-tutorial/tutorials/02-intermediate/language_model", "main.py", make=_corpus, steps=6
    ),
    "tut_resnet": Case(
        "truth2/pytorch-tutorial/tutorials/02-intermediate/deep_residual_network",
        "main.py",
        before=_IMAGES + "; stubs.batches_of(8)",
    ),
    "x_transformers": Case(
        "truth2/x-transformers",
        "train_enwik8.py --num_batches=4 --validate_every=2 --generate_length=4 --seq_len=32 --batch_size=2",
        make=_enwik8,
        lint="train_enwik8.py",
        steps=4,
    ),
}
"""Of the two truths are missing: hf_trainer and lightning_trainer, which are not in a repository; yolov5,
which needs ultralytics; airbench94_muon,
airbench96, build_nanogpt, ddpm and modded_nanogpt, whose fixed sizes take a CPU more than minutes a step;
attention_is_all, mae_finetune and mae_pretrain, which need versions of torchtext and timm that do not run with this
torch."""


def verify(case: Case, checkouts: Path, out: Path, name: str, timeout: int, device: str) -> dict[str, Any] | str:
    """Verify one script; its JSON, or why there is none."""
    import record

    source = HERE.parent / "examples" / case.folder.partition("/")[2]
    if not case.folder.startswith(EXAMPLES):
        source = checkouts / case.folder
    (out / f"{name}.json").unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "project" / "here"
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns(".git"))
        if case.make is not None:
            case.make(folder)
        here = os.getcwd()
        os.chdir(folder)
        record.make_data(case.data.split())
        os.chdir(here)
        script, *arguments = case.command.split()
        job = {"truth": str(TRUTH), "script": script, "args": arguments, "before": case.before, "steps": case.steps}
        shutil.copyfile(PROGRAM, folder / PROGRAM.name)
        (folder / PROGRAM.name).with_suffix(".json").write_text(json.dumps(job))
        options = ["--fix", "--unsafe-fixes", "--verify", PROGRAM.name, "--verify-device", device]
        options += ["--verify-timeout", str(timeout), "--output-format", "json", "-o", str(out / f"{name}.json")]
        options += [f"--verify-mask={case.mask}"] if case.mask else []
        paths = [str(HERE.parent), str(HERE.parent / "lint"), os.environ.get("PYTHONPATH")]
        environment = {
            **os.environ,
            **_QUIET,
            "HOME": temporary,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }
        with (out / f"{name}.log").open("w") as log:
            subprocess.run(
                [sys.executable, "-P", "-m", "pytest_gpusync", "lint", "--no-cache", *options, case.lint],
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
            )
    if (out / f"{name}.json").exists():
        found: dict[str, Any] = json.loads((out / f"{name}.json").read_text(encoding="utf-8"))
        del found["patch"]  # code of others
        (out / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        return found
    lines = (out / f"{name}.log").read_text(encoding="utf-8").splitlines()
    return lines[-1].removeprefix("gpusync lint: error: --verify: ") if lines else "no output"


def summary(out: Path, results: dict[str, dict[str, Any] | str], device: str) -> str:
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
    parser.add_argument("--device", choices=("cuda", "simulated"), default="simulated", help="where the scripts run")
    parser.add_argument("--timeout", type=int, default=120, help="seconds of each run (120)")
    options = parser.parse_args()
    out = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[str, Any] | str] = {}
    for name in options.only:
        results[name] = verify(CASES[name], options.checkouts.absolute(), out, name, options.timeout, options.device)
        (out / "summary.md").write_text(summary(out, results, options.device), encoding="utf-8")
        print(name, "not verified" if isinstance(results[name], str) else "verified", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
