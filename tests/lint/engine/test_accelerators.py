"""Accelerators other than CUDA's: what is a wait there, and in whose words findings say so."""

from __future__ import annotations

import pytest
from gpusync_lint.catalogue import registry, roots
from gpusync_lint.catalogue.loading import CatalogueError, load
from gpusync_lint.domain import accelerators
from gpusync_lint.domain.values import Device

NOUNS = {"mps": "GPU", "xpu": "GPU", "npu": "NPU", "hpu": "HPU", "mlu": "MLU", "musa": "GPU", "xla": "XLA device"}
LOOP = "for batch in range(100):\n    optimizer.step()\n"


def step(lint, before, body):
    """The findings in the body of a step loop, as pairs of the code and the finding."""
    source = f"import torch\n{before}\n{LOOP}" + "".join(f"    {line}\n" for line in body.splitlines())
    start = source.index(LOOP) + len(LOOP)
    line = source[:start].count("\n")
    return [(found.code, found) for found in lint(source) if found.span.line > line]


@pytest.mark.parametrize(("device", "noun"), NOUNS.items())
def test_a_read_names_the_device(lint, device, noun):
    ((code, found),) = step(lint, f"x = torch.rand(4, device={device!r})", "x.sum().item()")
    assert (code, f"the {noun}" in found.message) == ("GS201", True)
    assert noun == "GPU" or "GPU" not in found.message + found.remedy


@pytest.mark.parametrize(
    "moved",
    [
        "x = torch.rand(4).to('npu:0')",
        "x = torch.rand(4).npu()",
        "x = torch.rand(4, device=torch.device('npu', 0))",
        "x = torch.nn.Linear(4, 4).npu()(torch.rand(4, 4, device='npu'))",
        "x = torch.rand(4).to(torch.npu.current_device())\nimport torch_npu",
        "d = 'npu' if torch.npu.is_available() else 'cpu'\nx = torch.rand(4, device=d)",
    ],
)
def test_each_form_of_a_move_is_known(lint, moved):
    ((_, found),) = step(lint, moved, "x.sum().item()")
    assert "the NPU" in found.message


@pytest.mark.parametrize("method", sorted(accelerators.moves()))
def test_a_method_that_moves_to_an_accelerator_waits_for_the_copy(lint, method):
    assert [code for code, _ in step(lint, "c = torch.rand(4)", f"c.{method}()")] == ["GS501"]


def test_a_tensor_that_may_be_on_two_kinds_of_accelerators_is_on_a_gpu(lint):
    before = "x = torch.rand(4, device='npu')\nif config:\n    x = torch.rand(4, device='mlu')"
    ((_, found),) = step(lint, before, "x.sum().item()")
    assert "the GPU" in found.message


def test_the_only_plugin_that_a_file_imports_names_devices_that_the_code_does_not_show(lint):
    ((_, found),) = step(lint, "import torch_npu\ndevice = config.device\nx = load().to(device)", "x.item()")
    assert "the NPU" in found.message


def test_a_file_that_names_cuda_too_speaks_of_gpus(lint):
    before = "import torch_npu\ntorch.cuda.manual_seed(0)\ndevice = config.device\nx = load().to(device)"
    ((_, found),) = step(lint, before, "x.item()")
    assert "the GPU" in found.message


@pytest.mark.parametrize(
    ("replaced", "noun"),
    [
        ("import torch_npu\nfrom torch_npu.contrib import transfer_to_npu", "NPU"),
        ("import habana_frameworks.torch.gpu_migration", "HPU"),
    ],
)
def test_what_makes_cuda_mean_another_device_names_that_device(lint, replaced, noun):
    ((_, found),) = step(lint, f"{replaced}\nx = torch.rand(4).cuda()", "x.sum().item()")
    assert f"the {noun}" in found.message


CHOSEN = "device = 'mps' if torch.backends.mps.is_available() else 'cpu'\nx = torch.rand(4, device=device)"


def test_code_for_apple_alone_runs_there(lint):
    assert [code for code, _ in step(lint, CHOSEN, "x.sum().item()")] == ["GS201"]


@pytest.mark.parametrize("condition", ["device.type == 'npu'", "device.type != 'cpu'", "'npu' == device.type"])
def test_a_branch_for_the_only_kind_of_device_runs(lint, condition):
    found = step(
        lint, "import torch_npu\ndevice = torch.device('npu')", f"if {condition}:\n    torch.npu.synchronize()"
    )
    assert [code for code, _ in found] == ["GS101"]


def test_on_xla_a_read_runs_the_traced_graph_and_a_copy_to_the_device_does_not_wait(lint):
    before = "import torch_xla\nx = torch.rand(4, device=torch_xla.device())\nc = torch.rand(4)"
    found = step(lint, before, "c.to(torch_xla.device())\nif x.sum() > 0:\n    pass")
    assert [code for code, _ in found] == ["GS301"]
    assert found[0][1].message.startswith(
        "This comparison needs values of the XLA device: the graph traced so far is compiled"
    )


def test_a_loader_that_moves_batches_to_xla_gives_tensors_there(lint):
    before = (
        "import torch_xla\nimport torch_xla.distributed.parallel_loader as pl\n"
        "loader = pl.MpDeviceLoader(torch.utils.data.DataLoader([]), torch_xla.device())"
    )
    found = step(lint, before, "for x, y in loader:\n    print((x == y).sum().item())")
    assert [code for code, _ in found] == ["GS201"]
    assert "XLA device" in found[0][1].message


def test_no_fix_adds_non_blocking_where_that_is_not_safe(lint):
    before = "p = torch.rand(4).pin_memory()"
    fixes = {device: step(lint, before, f"p.to({device!r})")[0][1].fix for device in ("cuda", "npu", "mps")}
    assert [fix is not None for fix in fixes.values()] == [True, True, False]


def test_a_remedy_says_what_an_accelerator_offers_for_copies(lint):
    found = {device: step(lint, "c = torch.rand(4)", f"c.to({device!r})")[0][1].remedy for device in ("mps", "xpu")}
    assert "already freed or overwritten" in found["mps"]
    assert found["xpu"] == "Pass `non_blocking=True`; the memory need not be pinned"


def test_a_fix_waits_for_the_device_whose_work_is_timed(lint, with_fix):
    source = (
        "import time\nimport torch\nx = torch.rand(4, 4, device='npu')\n"
        "start = time.time()\ny = x @ x\nprint(time.time() - start)\n"
    )
    (found,) = lint(source)
    assert "torch.npu.synchronize()" in found.remedy
    assert with_fix(source, found.fix).count("torch.npu.synchronize()") == 2


def test_waiting_for_the_device_ends_a_measurement_there(lint):
    source = (
        "import time\nimport torch\nx = torch.rand(4, 4, device='npu')\n"
        "start = time.time()\ny = x @ x\ntorch.npu.synchronize()\nprint(time.time() - start)\n"
    )
    assert lint(source) == []


def test_a_stream_of_an_accelerator_is_waited_for_on_the_device(lint):
    before = "x = torch.rand(4, device='npu')\nside = torch.npu.Stream()"
    found = step(lint, before, "with torch.npu.stream(side):\n    y = x + 1\nside.synchronize()")
    assert [code for code, _ in found] == ["GS102"]
    assert "torch.npu.current_stream().wait_stream(side)" in found[0][1].remedy


def test_what_was_measured_inside_cudas_libraries_is_not_claimed_elsewhere(lint):
    codes = {
        device: [code for code, _ in step(lint, f"x = torch.rand(4, 4, device={device!r})", "torch.linalg.svd(x)")]
        for device in ("cuda", "mps")
    }
    assert codes == {"cuda": ["GS408"], "mps": []}


def test_every_accelerator_has_a_device_and_a_source_and_names_barriers_that_exist():
    known = registry.catalogue("torch").barriers
    found = roots.accelerators()
    assert set(found) == set(NOUNS)
    assert {one.noun for one in found.values()} == set(NOUNS.values())
    assert set(accelerators.by_device()) == {Device(n) for n in range(Device.ASSUMED + 1, Device.GPU)}
    for one in found.values():
        assert one.source
        named = {*one.silent, *(key for wording in one.wordings for key in wording.barriers)}
        assert named <= set(known)


def test_a_library_that_adds_no_device_has_no_functions(tmp_path):
    path = tmp_path / "mylib.toml"
    path.write_text(
        'framework = "mylib"\ntitle = "x"\non = "torch"\nmodules = ["mylib"]\nprelude = ""\n[[barrier]]\nid = "a"\n'
        'code = "GS101"\nmessage = "m"\nremedy = "r"\nfunctions = ["torch.mylib.wait"]\nwaits = []\nsilent = []\n'
    )
    with pytest.raises(CatalogueError, match="'functions' is for accelerators; write 'calls'"):
        load(path)
