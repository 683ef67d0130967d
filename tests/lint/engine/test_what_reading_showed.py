"""Findings of public code that were wrong or too hot when they were read, reduced to a few lines, beside true ones."""

from __future__ import annotations

import textwrap

import pytest
from gpusync_lint.model.levels import Heat

TRAINING = """
import torch
from torch.utils.data import DataLoader
device = torch.device("cuda")
model = torch.nn.Linear(4, 4).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""

SILENT = {
    "a number, where a tensor is used in the other branch": """
        def rotate(x, offsets, size):
            if isinstance(offsets, torch.Tensor):
                offsets = offsets.contiguous()
            else:
                assert offsets + x.shape[0] <= size
            return x
        for x in [model.weight]:
            rotate(x, unknown.offsets, unknown.size).sum().backward()
        """,
    "arithmetic with what was copied to the host": """
        def epe(flow, truth):
            return torch.sum((model(flow).cpu() - truth) ** 2, dim=0).max().item()
        for flow, truth in []:
            model(flow).sum().backward()
            print(epe(flow, truth))
        """,
    "a copy to the host of what an unknown call returns": """
        import unknown
        for flow in []:
            model(flow).sum().backward()
            error = (unknown.unpad(flow).cpu() - unknown.truth).abs().mean()
            print(error.item())
        """,
    "an object of the project that a module calls": """
        class Update:
            def __call__(self, loss, parameters):
                metrics = {}
                metrics[str(loss.dim())] = loss.shape
                loss.backward()
                return metrics
        class Learner(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.update = Update()
            def learn(self, loss):
                metrics = self.update(loss, self.parameters())
                metrics["first"] = torch.zeros(4)
        learner = Learner().cuda()
        for _ in range(9):
            learner.learn(model(torch.zeros(4, device=device)).sum())
        """,
    "distributions without validation": """
        from torch.distributions import Normal
        Normal.set_default_validate_args(False)
        for batch in []:
            Normal(model(batch), model(batch).exp()).log_prob(batch).sum().backward()
        """,
    "the keys of a batch as text": """
        def shown(output):
            return {f"step/{key}": value for key, value in output.items()}
        for batch in []:
            output = model(batch)
            output.sum().backward()
            shown(output)
        """,
    "the keys of a batch in a dict": """
        for batch in DataLoader([], pin_memory=True):
            outputs = model(batch["image"].cuda(non_blocking=True))
            for key in batch:
                outputs[key] = batch[key]
            outputs["first"] = torch.zeros(4)
            outputs["loss"].backward()
        """,
    "a default device that no call overrides": """
        def sampled(size, device="cpu"):
            return torch.empty(size, device=device).uniform_(0, 1)
        for batch in []:
            model(batch).sum().backward()
            print(sampled(4).max().item())
        """,
    "an index of pairs of numbers": """
        for batch in []:
            x = model(batch)
            x.sum().backward()
            for pair in torch.cartesian_prod(torch.arange(3), torch.arange(3)):
                x[:, pair[0]] = x[:, pair[1]]
        """,
    "a value that a cache keeps": """
        cache = {}
        def constant(key):
            kept = cache.get(key)
            if kept is None:
                kept = torch.tensor([key], device="cuda")
                cache[key] = kept
            return kept
        for batch in []:
            (model(batch) * constant(3)).sum().backward()
        """,
    "the text of a warning": """
        import logging
        for batch in []:
            loss = model(batch).sum()
            loss.backward()
            if batch is None:
                logging.warning("no batch %s", loss)
        """,
    "a sparse tensor made of parts on the device": """
        for batch in []:
            x = model(batch)
            x.sum().backward()
            y = torch.sparse.FloatTensor(x._indices(), x._values(), x.shape).to(x.device)
        """,
}
SILENT["a part of a part of a model of an unknown class"] = """
        import unknown
        models = [one.to(device) for one in unknown.models()]
        for batch in []:
            model(batch).sum().backward()
            kinds = [str(one.blocks[0].linear.kinds) for one in models]
        """
SILENT["a dict whose values a loop copies to the host"] = """
        def shown(found):
            for key in found:
                found[key] = found[key].detach().cpu().numpy()
            return int(found["classes"][0]), float(found["scores"].max())
        for batch in []:
            found = {"classes": model(batch).argmax(1), "scores": model(batch)}
            found["scores"].sum().backward()
            shown(found)
        """
REPORTED = {
    "a dict of which a loop copies some values to the host": """
        def shown(found):
            for key in found:
                if key != "scores":
                    found[key] = found[key].detach().cpu().numpy()
            return float(found["scores"].max())
        for batch in []:
            found = {"classes": model(batch).argmax(1), "scores": model(batch)}
            found["scores"].sum().backward()
            shown(found)
        """,
    "a part of a batch of an unknown class": """
        import unknown
        for batch in unknown.batches():
            batch = batch.to(device)
            model(batch.graph.x).sum().backward()
            print(batch.graph.x)
        """,
    "arithmetic with a number on the host": """
        def scaled(output):
            return (output * torch.tensor(0.5)).max().item()
        for flow in []:
            model(flow).sum().backward()
            print(scaled(model(flow)))
        """,
    "arithmetic with a batch of a loader": """
        def difference(batch, truth):
            return (batch - truth).max().item()
        for batch in DataLoader([], pin_memory=True):
            model(batch.cuda(non_blocking=True)).sum().backward()
            print(difference(model.weight, batch))
        """,
    "a device that a call gives": """
        def sampled(size, device="cpu"):
            return torch.empty(size, device=device).uniform_(0, 1)
        for batch in []:
            model(batch).sum().backward()
            print(sampled(4, device="cuda").max().item())
        """,
    "a default device in a library": """
        def sampled(size, device="cpu"):
            for batch in []:
                model(batch).sum().backward()
                print(torch.empty(size, device=device).uniform_(0, 1).max().item())
        """,
    "distributions with validation": """
        from torch.distributions import Normal
        for batch in []:
            Normal(model(batch), model(batch).exp()).log_prob(batch).sum().backward()
        """,
    "a move of a tensor with elements": """
        for batch in []:
            model(batch).sum().backward()
            kept = torch.zeros(4).to(device)
        """,
}


def hot(findings):
    """The codes of what is reported in every step, other than the copies to the host that the programs make."""
    return [finding.code for finding in findings if finding.heat is Heat.STEP and finding.code != "GS202"]


@pytest.mark.parametrize("name", SILENT)
def test_what_does_not_wait_is_silent(lint, name):
    assert hot(lint(TRAINING + textwrap.dedent(SILENT[name]))) == []


@pytest.mark.parametrize("name", REPORTED)
def test_what_waits_beside_it_is_reported(lint, name):
    assert hot(lint(TRAINING + textwrap.dedent(REPORTED[name]))) != []


def test_what_runs_beside_a_schedule_of_epochs_is_in_no_step(lint):
    code = """
        class Trainer:
            def __init__(self):
                self.opt, self.lr_scheduler = make(), make()
                self.lr_scheduler = opt
            def start(self):
                self.lr_scheduler.step(1)
            def train_step(self, batch):
                model(batch).sum().backward()
                self.opt.step()
            def end(self, losses):
                return model.weight.sum().item()
            def run(self):
                for epoch in range(9):
                    self.start()
                    for number in range(99):
                        self.train_step(number)
                    self.end(model)
        Trainer().run()
        """
    assert [(finding.code, finding.heat) for finding in lint(TRAINING + textwrap.dedent(code))] == [
        ("GS201", Heat.EPOCH)
    ]


def test_what_runs_for_the_first_batch_only_is_guarded(lint):
    code = """
        import pytorch_lightning as pl
        class System(pl.LightningModule):
            def validation_step(self, batch, batch_nb):
                if batch_nb == 0:
                    print(self.net(batch).sum().item())
        """
    assert [finding.heat for finding in lint(TRAINING + textwrap.dedent(code))] == [Heat.GUARDED]


def test_a_package_inside_a_package_does_not_hide_a_framework(lint):
    step = "import torch\ndef step(x):\n    return torch.zeros(4, device='cuda').sum().item()\n"
    hidden = lint(pkg____init__="", pkg__torch____init__="", pkg__torch__work=step)
    assert [finding.code for finding in hidden] == ["GS201"]


def test_a_librarys_engine_is_known_by_its_public_name_in_the_librarys_own_examples(lint):
    code = textwrap.dedent("""
        from accelerate import Accelerator
        accelerator = Accelerator()
        loader = accelerator.prepare(DataLoader([]))
        for batch in loader:
            batch = {name: value.to(device) for name, value in batch.items()}
            model(batch["x"]).sum().backward()
        """)
    source = "class Accelerator:\n    def prepare(self, *args):\n        return args[0]\n"
    found = lint(TRAINING + code, accelerate____init__="from .engine import Accelerator", accelerate__engine=source)
    assert hot(found) == hot(lint(TRAINING + code))
    moved = (TRAINING + code).splitlines().index(
        "    batch = {name: value.to(device) for name, value in batch.items()}"
    ) + 1
    assert moved not in {finding.span.line for finding in found}


def test_the_conversion_of_an_argument_of_another_type_is_no_warning(lint):
    code = """
        def kl(a, b, at):
            a, b = [x if isinstance(x, torch.Tensor) else torch.tensor(x).to(at) for x in (a, b)]
            return (a - b).sum()
        for x in [model.weight]:
            kl(x, 0.0, model.weight).backward()
        """
    assert [finding.heat for finding in lint(TRAINING + textwrap.dedent(code))] == [Heat.GUARDED]


@pytest.mark.parametrize(("folder", "codes"), [("data", set()), ("ops", {"GS205"})])
def test_what_a_folder_for_data_prepares_is_on_the_host(lint, folder, codes):
    crop = "import torch\ndef crop(sample):\n    kept = torch.nonzero(sample['mask'])\n    return int(kept[0])\n"
    train = (
        f"from {folder}.crops import crop\nfor sample in []:\n    crop(sample)\n    model(sample).sum().backward()\n"
    )
    found = lint(**{f"{folder}____init__": "", f"{folder}__crops": crop, "train": TRAINING + train})
    assert {finding.code for finding in found if finding.path.endswith("crops.py")} == codes


def test_a_size_that_is_made_a_list_of_numbers_unless_it_is_one_is_no_tensor(lint):
    source = """
import torch
def crop(image, extent):
    if not isinstance(extent, (list, tuple)):
        extent = extent.tolist()
    height, width = extent
    return image[:, : int(round(height / 2))]
class Crop(torch.nn.Module):
    def forward(self, image, extents):
        return [crop(image, extents[i]) for i in range(len(image))]
model = Crop().cuda()
"""
    assert {finding.code for finding in lint(source)} == {"GS203"}


DEVICES_OF_VALUES = {
    "a value that has no method of tensors": """
        def shown(**values):
            for name, value in values.items():
                if hasattr(value, "item"):
                    value = value.item()
                print("%.3f" % value)
        """,
    "a part for the host, by the text of the device": """
        def shown(**values):
            for name, value in values.items():
                if "cuda" not in str(value.device):
                    print(value.cpu().max().item())
        """,
}


@pytest.mark.parametrize(("name", "lines"), list(zip(DEVICES_OF_VALUES, [{5}, set()], strict=True)))
def test_what_is_no_tensor_or_on_the_host_does_not_wait(lint, name, lines):
    code = """
        for batch in []:
            loss = model(batch).sum()
            loss.backward()
            shown(loss=loss)
        """
    found = lint(textwrap.dedent(DEVICES_OF_VALUES[name]) + TRAINING + textwrap.dedent(code))
    assert {finding.span.line for finding in found} == lines


SETTINGS = """
class Check:
    def test_gradients(self):
        for dtype in {values}:
            x = torch.tensor([1.0, 2.0], device="cuda", dtype=dtype, requires_grad=True)
            model(x).sum().backward()
Check().test_gradients()
"""


@pytest.mark.parametrize(
    ("values", "heat"),
    [
        ("(torch.float, torch.double)", Heat.EPOCH),
        ("itertools.product([1, 2, 3], (True, False))", Heat.EPOCH),
        ("[first, second, third]", Heat.STEP),
        ("batches", Heat.STEP),
    ],
)
def test_a_loop_over_listed_settings_repeats_no_steps(lint, values, heat):
    found = lint(TRAINING + SETTINGS.format(values=values))
    assert {finding.heat for finding in found if finding.code == "GS502"} == {heat}


@pytest.mark.parametrize(("values", "heat"), [("(first, second)", Heat.EPOCH), ("[a, b, c, d, e, f]", Heat.STEP)])
def test_a_loop_over_a_handful_of_listed_samples_that_runs_a_model_repeats_no_steps(lint, values, heat):
    code = f"for x in {values}:\n    print(model(x).sum().item())\n"
    assert {finding.heat for finding in lint(TRAINING + code)} == {heat}


METHODS = """
import torch
class Metric(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(1, device="cuda"))
    {decorator}
    def {name}(self{old}):
        print(self.total.sum().item())
    def {other}(self, values):
        self.total += values.sum()
"""


@pytest.mark.parametrize(
    ("decorator", "name", "other", "heat"),
    [
        ("", "compute", "update", Heat.ONCE),
        ("", "compute", "combine", Heat.STEP),
        ("@classmethod", "modified", "combine", Heat.ONCE),
        ("", "modified", "combine", Heat.STEP),
    ],
)
def test_methods_of_modules_that_end_an_evaluation_or_change_a_class_are_in_no_step(lint, decorator, name, other, heat):
    old = ", old" if name != "compute" else ""
    source = METHODS.format(decorator=decorator, name=name, other=other, old=old).replace(
        "self.total.sum()", "torch.zeros(1, device='cuda').sum()" if decorator else "self.total.sum()"
    )
    assert {finding.heat for finding in lint(source)} == {heat}


def test_what_runs_in_the_first_epoch_only_is_guarded(lint):
    code = """
        def validate(epoch, start_epoch):
            for batch in DataLoader([]):
                if epoch == start_epoch:
                    print(model(batch.cuda(non_blocking=True)).sum().item())
        for epoch in range(9):
            validate(epoch, 0)
        """
    assert {finding.heat for finding in lint(TRAINING + textwrap.dedent(code)) if finding.code == "GS201"} == {
        Heat.GUARDED
    }


@pytest.mark.parametrize(
    ("blocks", "heat"),
    [
        ("if mean:\n        mean = 0.9 * mean\n    else:\n        mean = loss.item()", Heat.GUARDED),
        ("if not mean:\n        mean = loss.item()\n    else:\n        mean = mean * 0.9", Heat.GUARDED),
        ("if not mean:\n        mean = loss.item()", Heat.STEP),
        ("if mean is not None:\n        pass\n    else:\n        mean = loss.item()", Heat.GUARDED),
        ("if mean:\n        mean = loss.item()", Heat.STEP),
        ("if not mean:\n        mean = loss.item()\n    mean = None", Heat.STEP),
        ("if mean is not None:\n        mean = loss.item()", Heat.STEP),
    ],
)
def test_a_running_mean_begins_once(lint, blocks, heat):
    code = f"mean = None\nfor x in []:\n    loss = model(x).sum()\n    loss.backward()\n    {blocks}\n"
    assert {finding.heat for finding in lint(TRAINING + code) if finding.code == "GS201"} == {heat}


@pytest.mark.parametrize(
    ("body", "heat"),
    [
        ("for epoch in range(9):\n        for x in DataLoader([]):\n            model(x).sum().backward()", Heat.ONCE),
        ("model(task).sum().backward()", Heat.STEP),
    ],
)
def test_a_remote_task_that_is_a_whole_training_is_no_step(lint, body, heat):
    code = f"import ray\n@ray.remote\ndef run(task):\n    {body}\n    print(model.weight.sum().item())\n"
    calls = "for task in range(9):\n    run.remote(task)\n"
    assert {finding.heat for finding in lint(TRAINING + code + calls) if finding.code == "GS201"} == {heat}


@pytest.mark.parametrize(
    ("condition", "heat"),
    [
        ("torch.isnan(loss).any()", Heat.GUARDED),
        ("not bool(torch.isfinite(loss).all())", Heat.GUARDED),
        ("(~loss.isfinite()).any().item()", Heat.GUARDED),
        ("torch.isfinite(loss)", Heat.STEP),
        ("not torch.isnan(loss)", Heat.STEP),
        ("torch.any(loss)", Heat.STEP),
    ],
)
def test_what_runs_for_nan_only_is_guarded(lint, condition, heat):
    code = f"for x in []:\n    loss = model(x).sum()\n    loss.backward()\n    if {condition}:\n        loss.tolist()\n"
    assert {finding.heat for finding in lint(TRAINING + code) if finding.code == "GS203"} == {heat}


METER = """
class Meter:
    def update(self, **values):
        for key, value in values.items():
            if isinstance(value, torch.Tensor):
                value = value.item()
            setattr(self, key, value)
meter = Meter()
for x in []:
    loss = model(x).sum()
    loss.backward()
    meter.update(lr=opt.param_groups[0]["lr"], step=1)
    {call}
"""


@pytest.mark.parametrize(
    ("call", "codes"),
    [
        ("meter.update(loss=float('nan'))", []),
        ("meter.update(**{'first': 1.0, 'second': 2.0})", []),
        ("meter.update(loss=loss)", ["GS201"]),
        ("meter.update(loss=unknown(x))", ["GS201"]),
        ("meter.update(**{key: loss for key in range(3)})", ["GS201"]),
        ("meter.update(**unknown(x))", ["GS201"]),
        ("meter.update(**dict(loss=1.0, **unknown(x)))", ["GS201"]),
    ],
)
def test_what_all_calls_pass_numbers_for_by_keyword_is_no_tensor(lint, call, codes):
    assert hot(lint(TRAINING + METER.format(call=call))) == codes


MASKED = """
class Masked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mask = torch.empty(0)
    def of(self, x):
        {before}
            self.mask = torch.ones(x.size(0), x.size(0)).triu()
        {after}
        return x * self.mask[: x.size(0)]
    def forward(self, x):
        return self.of(x * 2)
masked = Masked().to(device)
for x in []:
    masked(x.to(device, non_blocking=True)).sum().backward()
"""


@pytest.mark.parametrize(
    ("before", "after", "heat"),
    [
        ("if self.mask.size(0) < x.size(0):", "self.mask = self.mask.to(x)", Heat.GUARDED),
        ("if self.mask is None or self.mask.size(0) < x.size(0):", "self.mask = self.mask.to(x)", Heat.GUARDED),
        ("if x.size(0) > 3:", "self.mask = self.mask.to(x)", Heat.STEP),
        ("if True:", "self.mask = self.mask.to(x)", Heat.STEP),
        ("if self.mask.size(0) < x.size(0):", "x = x * self.mask.to(x)", Heat.STEP),
    ],
)
def test_a_kept_tensor_that_is_replaced_by_its_copy_is_moved_once(lint, before, after, heat):
    found = lint(TRAINING + MASKED.format(before=before, after=after))
    moves = TRAINING.count("\n") + MASKED.split("{after}")[0].count("\n") + 1
    assert {finding.heat for finding in found if finding.span.line == moves} == {heat}


@pytest.mark.parametrize(
    ("test", "codes"),
    [
        ("isinstance(speech, str) or isinstance(speech, Path)", []),
        ("not (not isinstance(speech, str) and not isinstance(speech, Path))", []),
        ("isinstance(speech, str) or len(speech) > 3", ["GS206"]),
        ("isinstance(speech, str) or isinstance(device, Path)", ["GS206"]),
    ],
)
def test_what_is_of_one_class_or_of_another_is_narrowed_to_both(lint, test, codes):
    code = f"""
        from pathlib import Path
        def read(path):
            print(path)
            return torch.zeros(4, device=device)
        def transcribe(speech):
            if {test}:
                speech = read(speech)
            model(speech).sum().backward()
        for x in []:
            transcribe(model(x))
        """
    assert hot(lint(TRAINING + textwrap.dedent(code))) == codes
