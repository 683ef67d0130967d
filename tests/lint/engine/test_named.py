"""Barriers that a dotted name tells: libraries on top of torch, and the project's own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gpusync_lint.catalogue import registry
from gpusync_lint.model.findings import EngineSettings, Source
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.run import engine

STEP = """
import torch
model = torch.nn.Linear(4, 4).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.rand(4, device="cuda")
"""
LOOP = "for step in range(100):\n    opt.step()\n"


def own(*calls, **fields):
    template = registry.catalogue("torch").barriers["project-barrier"]
    entry = replace(template, id="project.0", framework="project", calls=calls, **fields)
    return EngineSettings(barriers=(entry,))


def codes(found):
    return [finding.code for finding in found]


IMPORTS = [
    "import torchmetrics\nmean = torchmetrics.MeanMetric().cuda()",
    "from torchmetrics import MeanMetric\nmean = MeanMetric().cuda()",
    "from torchmetrics.aggregation import MeanMetric as Mean\nmean = Mean().cuda()",
    "import torchmetrics as tm\nmean = tm.aggregation.MeanMetric().cuda()",
]


@pytest.mark.parametrize("imports", IMPORTS)
def test_a_class_is_known_by_every_name_that_its_library_gives_it(lint, imports):
    assert codes(lint(f"{STEP}{imports}\n{LOOP}    mean.update(x)\n")) == ["GS604"]


def test_a_class_of_the_same_name_from_elsewhere_is_not_the_library_s(lint):
    assert lint(f"{STEP}from metrics import MeanMetric\nmean = MeanMetric()\n{LOOP}    mean.update(x)\n") == []


def test_a_metric_kept_in_an_attribute_is_followed(lint):
    code = (
        "import torchmetrics\nclass Trainer:\n"
        "    def __init__(self):\n        self.mean = torchmetrics.MeanMetric().cuda()\n"
        "    def fit(self):\n        for _ in range(9):\n            opt.step()\n            self.mean.update(x)\n"
        "Trainer().fit()\n"
    )
    assert codes(lint(STEP + code)) == ["GS604"]


def test_a_method_that_the_project_overrides_is_not_the_library_s(lint):
    code = (
        "import lightning as L\nclass Net(L.LightningModule):\n"
        "    def log(self, name, value, prog_bar=False):\n        pass\n"
        "    def training_step(self, batch, index):\n        self.log('a', self.loss(batch), prog_bar=True)\n"
    )
    assert lint(STEP + code) == []


def test_a_method_inherited_through_a_class_of_the_project_is_the_library_s(lint):
    code = (
        "import lightning as L\nclass Base(L.LightningModule):\n    pass\nclass Net(Base):\n"
        "    def training_step(self, batch, index):\n        self.log('a', self.loss(batch), prog_bar=True)\n"
    )
    assert codes(lint(STEP + code)) == ["GS207"]


def test_a_metric_that_no_longer_says_how_it_was_made_is_a_guess_only(lint):
    code = (
        "import torchmetrics\nmean = torchmetrics.MeanMetric().cuda()\nif x.shape[0] > 2:\n"
        "    mean = torchmetrics.MeanMetric(nan_strategy='disable').cuda()\n"
    )
    assert lint(f"{STEP}{code}{LOOP}    mean.update(x)\n") == []


def test_anomaly_detection_for_a_whole_script_is_in_every_step(lint):
    (finding,) = lint(f"{STEP}torch.autograd.set_detect_anomaly(True)\n{LOOP}")
    assert (finding.code, finding.heat) == ("GS606", Heat.STEP)


def test_anomaly_detection_that_an_option_switches_on_is_not_in_every_step(lint):
    (finding,) = lint(
        f"{STEP}import sys\nif '--debug' in sys.argv:\n    torch.autograd.set_detect_anomaly(True)\n{LOOP}"
    )
    assert finding.heat is not Heat.STEP


def test_a_barrier_among_processes_is_a_guess_only():
    code = f"{STEP}from accelerate import Accelerator\nacc = Accelerator()\n{LOOP}    acc.wait_for_everyone()\n"
    findings = engine.analyze([Source("train.py", code)], EngineSettings()).findings
    (finding,) = (one for one in findings if one.code == "GS104")
    assert (finding.code, finding.confidence) == ("GS104", Confidence.LOW)


@pytest.mark.parametrize(
    ("imports", "call", "shown"),
    [
        ("from torchvision import ops", "ops.nms(x, x, 0.5)", "`ops.nms()`"),
        ("from torchvision.ops import nms", "nms(x, x, 0.5)", "`nms()`"),
        ("import torchvision", "torchvision.ops.boxes.nms(x, x, 0.5)", "`torchvision.ops.boxes.nms()`"),
        ("import torchmetrics\nm = torchmetrics.MeanMetric().cuda()", "m.update(x)", "`.update()`"),
    ],
)
def test_a_message_names_what_is_called_as_its_author_wrote_it(lint, imports, call, shown):
    (finding,) = lint(f"{STEP}{imports}\n{LOOP}    {call}\n")
    assert shown in finding.message


PREPARED = """
from torch.utils.data import DataLoader
batches = tool.{method}(DataLoader([]))
for i, b in enumerate(batches):
"""


@pytest.mark.parametrize(
    ("tool", "method", "expected"),
    [
        ("from accelerate import Accelerator\ntool = Accelerator()", "prepare", ["GS501"]),
        ("from accelerate import Accelerator\ntool = Accelerator(cpu=False)", "prepare_data_loader", ["GS501"]),
        ("import lightning as L\ntool = L.Fabric()", "setup_dataloaders", []),
    ],
)
def test_only_accelerate_moves_batches_with_blocking_copies(lint, tool, method, expected):
    loop = PREPARED.format(method=method)
    assert codes(lint(f"{STEP}{tool}\n{loop}    model(b).sum().backward()\n    opt.step()\n")) == expected


HELPER = "def to_host(t, wait=True):\n    return t\n"


def test_a_function_of_the_project_is_found_where_its_module_is_imported(lint):
    code = f"{STEP}from ourlib.metrics import to_host as fetch\n{LOOP}    fetch(1)\n"
    (finding,) = lint(settings=own("ourlib.metrics.to_host"), train=code, src__ourlib__metrics=HELPER)
    assert (finding.code, finding.heat, finding.confidence) == ("GS699", Heat.STEP, Confidence.HIGH)
    (finding,) = lint(settings=own("ourlib.metrics.to_host", code="GS201"), train=code, src__ourlib__metrics=HELPER)
    assert (finding.code, finding.confidence) == ("GS201", Confidence.HIGH)
    assert (finding.framework, "`to_host()`" in finding.message or "`fetch()`" in finding.message) == ("project", True)


def test_a_function_of_the_same_name_in_another_module_is_silent(lint):
    code = f"{STEP}from other import to_host\n{LOOP}    to_host(1)\n"
    assert lint(settings=own("ourlib.metrics.to_host"), train=code, other=HELPER) == []


def test_a_function_outside_the_project_is_found_in_a_file_without_any_framework(lint):
    code = "import clib\nfor step in range(3):\n    clib.wait()\n"
    assert codes(lint(code, settings=own("clib.wait"))) == ["GS699"]


def test_a_method_of_a_class_of_the_project_is_found(lint):
    code = f"{STEP}class Queue:\n    def drain(self):\n        pass\nqueue = Queue()\n{LOOP}    queue.drain()\n"
    assert codes(lint(code, settings=own("Queue.drain"))) == ["GS699"]


def test_a_method_of_a_class_from_elsewhere_is_found(lint):
    code = f"{STEP}from clib import Stream\nstream = Stream()\n{LOOP}    stream.wait()\n    stream.query()\n"
    (finding,) = lint(code, settings=own("clib.Stream.wait"))
    assert (finding.code, finding.span.line) == ("GS699", 10)


def test_a_leading_dot_means_the_method_of_anything(lint):
    assert codes(lint(f"{STEP}{LOOP}    unknown.drain()\n    x.drain()\n", settings=own(".drain"))) == [
        "GS699",
        "GS699",
    ]


@pytest.mark.parametrize(("argument", "expected"), [("x", ["GS699"]), ("[x]", ["GS699"]), ("1", []), ("x.shape", [])])
def test_an_entry_that_takes_a_tensor_is_found_with_one_only(lint, argument, expected):
    code = f"{STEP}import clib\n{LOOP}    clib.show({argument})\n"
    assert codes(lint(code, settings=own("clib.show", takes="tensor"))) == expected


def test_a_keyword_that_excuses_a_call_is_respected(lint):
    code = f"{STEP}import clib\n{LOOP}    clib.copy(x, stream=1)\n"
    assert lint(code, settings=own("clib.copy", unless_keywords=("stream",))) == []


def test_without_entries_nothing_is_found(lint):
    assert lint("import clib\nfor step in range(3):\n    clib.wait()\n") == []
