"""What gpusync doctor says of machines, with stand-ins for what this one is not."""

from __future__ import annotations

import sys
import types

import pytest

from pytest_gpusync import record
from pytest_gpusync.commands import doctor
from pytest_gpusync.machine import devices
from pytest_gpusync.measure import device_choice
from pytest_gpusync.model.measurement import MeasurementError
from pytest_gpusync.recorders import RecorderUnavailable, base, cupti_api, frames, gate, obstacles
from pytest_gpusync.recorders.cupti import CuptiRecorder

needs_gate = pytest.mark.skipif(not gate.is_available(), reason="there is no native gate")
GPU = devices.Device("cuda", "NVIDIA H200", "580.1")
NO_GPU = devices.Device("none", reason="no driver")


class NVMLError(Exception):
    pass


class Nvml(types.ModuleType):
    """NVML as far as it is asked."""

    NVMLError = NVMLError

    def __init__(self, cuda=13000, mig=None, instances=0):
        super().__init__("pynvml")
        self._cuda, self._mig, self._number = cuda, mig, instances

    def nvmlInit(self): ...

    def nvmlShutdown(self): ...

    def nvmlSystemGetCudaDriverVersion_v2(self):
        return self._cuda

    def nvmlDeviceGetHandleByIndex(self, index):
        return "gpu"

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return uuid

    def nvmlDeviceGetName(self, handle):
        return f"{handle} 1g.18gb"

    def nvmlDeviceGetMigMode(self, handle):
        if self._mig is None:
            raise NVMLError("not supported")
        return [self._mig, self._mig]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):
        if index >= self._number:
            raise NVMLError("no such instance")
        return index


class Cupti:
    def __init__(self, path):
        self.path = path

    def version(self):
        return 130001


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Return a function that makes this machine another one."""
    for name, _ in obstacles._TOOLS:
        monkeypatch.delenv(name, raising=False)
    for name in ("CUDA_INJECTION64_PATH", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cupti_api, "Cupti", Cupti)
    monkeypatch.setattr(cupti_api, "has_driver", lambda: True)
    monkeypatch.setattr(obstacles, "_is_installed", lambda module: False)

    def become(nvml=None, built="13.0", library="/site/nvidia/cu13/lib/libcupti.so.13"):
        monkeypatch.setitem(sys.modules, "pynvml", nvml or Nvml())
        monkeypatch.setattr(devices, "torch_build", lambda: ("2.11.0", built))
        monkeypatch.setattr(cupti_api, "find_library", lambda cuda=None: library)

    become()
    return become


def told(name, found=GPU):
    """Return what is said of one thing, and the advice."""
    ((text, advice),) = [(fact.found, fact.advice) for fact in obstacles.facts(found) if fact.name == name]
    return text, advice


def names(found=GPU):
    return [fact.name for fact in obstacles.facts(found)]


@needs_gate
def test_a_machine_where_all_is_well_gets_no_advice():
    assert [fact.advice for fact in obstacles.facts(GPU)] == [None] * len(names())
    assert told("CUPTI") == ("130001, /site/nvidia/cu13/lib/libcupti.so.13", None)


@pytest.mark.parametrize(("built", "package"), [("12.8", "nvidia-cuda-cupti-cu12"), ("13.0", "nvidia-cuda-cupti")])
def test_without_a_libcupti_the_package_is_named(machine, built, package):
    machine(built=built, library=None)
    text, advice = told("CUPTI")
    assert text == "no libcupti"
    assert advice == f"libcupti was not found; pip install {package}, on which CUDA builds of torch depend"


def test_the_recorder_says_the_same_when_it_refuses(machine):
    machine(library=None)
    with pytest.raises(RecorderUnavailable, match="pip install nvidia-cuda-cupti, on which"):
        CuptiRecorder().start(lambda raw: None)


def test_without_the_drivers_library_cupti_is_asked_nothing(machine, monkeypatch):
    def asked(path):
        pytest.fail("CUPTI was loaded")

    monkeypatch.setattr(cupti_api, "has_driver", lambda: False)
    monkeypatch.setattr(cupti_api, "Cupti", asked)
    text, advice = told("CUPTI")
    assert text.endswith("libcupti.so.13 (not asked: no libcuda.so.1)")
    assert advice.endswith("a container gets it with NVIDIA_DRIVER_CAPABILITIES=compute,utility")
    with pytest.raises(RecorderUnavailable, match=r"^libcuda.so.1, the driver's library, was not found"):
        CuptiRecorder().start(lambda raw: None)


def test_a_libcupti_of_another_cuda_is_named(machine):
    machine(built="12.8")
    text, advice = told("CUPTI")
    assert text.endswith("libcupti.so.13, of CUDA 13")
    assert advice == "torch was built for CUDA 12; pip install nvidia-cuda-cupti-cu12 beside it"


@pytest.mark.parametrize("cuda", [12, 13])
def test_of_two_libraries_that_of_torchs_cuda_is_taken(monkeypatch, tmp_path, cuda):
    monkeypatch.undo()
    for folder, version in (("cuda_cupti", 12), ("cu13", 13)):
        lib = tmp_path / "nvidia" / folder / "lib"
        lib.mkdir(parents=True)
        (lib / f"libcupti.so.{version}").touch()
    monkeypatch.setattr(cupti_api, "_loaded_libraries", lambda: iter(()))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert cupti_api.find_library(cuda).endswith(f"libcupti.so.{cuda}")


def test_a_driver_older_than_torchs_cuda_is_named(machine):
    machine(Nvml(cuda=12080))
    text, advice = told("CUDA")
    assert text == "the driver supports 12.8, torch was built for 13.0"
    assert advice == "update the NVIDIA driver, or install a torch that was built for CUDA 12"


@pytest.mark.parametrize(("cuda", "built"), [(13000, "12.8"), (12080, "12.4"), (13020, "13.0")])
def test_a_driver_as_new_as_torchs_cuda_is_well(machine, cuda, built):
    machine(Nvml(cuda=cuda), built=built, library=f"libcupti.so.{built[:2]}")
    assert told("CUDA")[1] is None


@pytest.mark.parametrize(
    ("variable", "value", "tool"),
    [
        ("NSYS_PROFILING_SESSION_ID", "7", "Nsight Systems"),
        ("NV_NSIGHT_INJECTION_PORT_BASE", "49152", "Nsight Compute"),
        ("CUDA_INJECTION64_PATH", "/opt/libsanitizer-collection.so", "compute-sanitizer"),
        ("CUDA_INJECTION64_PATH", "/opt/libother.so", "a tool (CUDA_INJECTION64_PATH names libother.so)"),
    ],
)
def test_a_tool_that_holds_cupti_is_named(monkeypatch, variable, value, tool):
    monkeypatch.setenv(variable, value)
    text, advice = told("attached")
    assert text == tool
    assert "run without it to count at the driver" in advice
    assert obstacles.explain(error(cupti_api.MULTIPLE_SUBSCRIBERS)).startswith(f"{tool} holds CUPTI")


def error(code):
    return cupti_api.CuptiError("cuptiSubscribe", code, "CUPTI_ERROR")


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (35, "--cap-add=SYS_ADMIN"),
        (39, "another tool (a profiler, Nsight, compute-sanitizer) holds CUPTI"),
        (40, "have the host enable profiling"),
        (41, "confidential computing"),
        (43, "MIG instance"),
        (45, "WSL"),
        (999, "cuptiSubscribe returned 999 (CUPTI_ERROR)"),
    ],
)
def test_every_refusal_of_cupti_says_what_helps(code, remedy):
    assert remedy in obstacles.explain(error(code))


@pytest.mark.parametrize(
    ("nvml", "text", "advises"),
    [
        (Nvml(mig=1, instances=3), "on, 3 instances", "CUDA_VISIBLE_DEVICES=MIG-"),
        (Nvml(mig=1, instances=1), "on, 1 instance", None),
        (Nvml(mig=1), "on, without an instance: CUDA finds no device", "nvidia-smi mig -cgi"),
    ],
)
def test_a_gpu_cut_into_instances_is_told(machine, nvml, text, advises):
    machine(nvml)
    found, advice = told("MIG")
    assert found == text
    assert (advice is None) if advises is None else (advises in advice)


def test_an_instance_that_was_chosen_is_told(machine, monkeypatch):
    machine(Nvml(mig=1, instances=3))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-5c8")
    assert told("MIG") == ("an instance, MIG-5c8 1g.18gb: syncs are counted as on a whole GPU", None)


@pytest.mark.parametrize("nvml", [Nvml(mig=0), Nvml(mig=None)])
def test_a_whole_gpu_is_not_said_to_be_cut(machine, nvml):
    machine(nvml)
    assert "MIG" not in names()


def test_without_the_native_gate_it_is_told_what_is_lost_and_what_helps(monkeypatch):
    monkeypatch.setenv("GPUSYNC_NATIVE", "0")
    assert told("native gate") == (
        "no: native code is switched off by GPUSYNC_NATIVE=0; only torch's own hooks count",
        "unset GPUSYNC_NATIVE",
    )


def test_the_recorder_refuses_without_the_native_gate(monkeypatch):
    monkeypatch.setenv("GPUSYNC_NATIVE", "0")
    with pytest.raises(RecorderUnavailable, match="switched off by GPUSYNC_NATIVE=0; to count at the driver, unset"):
        CuptiRecorder().start(lambda raw: None)


@needs_gate
def test_an_interpreter_whose_frames_are_not_known_is_told(monkeypatch):
    monkeypatch.setattr(frames, "find_layout", lambda: None)
    text, _ = told("native gate")
    assert "each sync enters Python" in text


@needs_gate
def test_a_free_threaded_interpreter_is_told(monkeypatch):
    monkeypatch.setattr(base, "free_threaded", lambda: True)
    assert told("native gate") == ("built, and not used", base.NO_GIL)


def test_a_free_threaded_interpreter_measures_no_gpu(monkeypatch):
    monkeypatch.setattr(devices, "detect", lambda: GPU)
    monkeypatch.setattr(device_choice, "free_threaded", lambda: True)
    with pytest.raises(MeasurementError, match="use an ordinary build, such as python3"), record():
        pass


def test_other_frameworks_are_told_where_they_are_installed(monkeypatch):
    monkeypatch.setattr(obstacles, "_is_installed", lambda module: module in ("jax", "cupy"))
    assert names()[-2:] == ["CuPy", "JAX"]
    assert "CuPy" not in names(NO_GPU)


def test_nothing_is_asked_of_cupti_without_a_gpu(monkeypatch):
    monkeypatch.setattr(cupti_api, "Cupti", None)
    assert told("CUPTI", NO_GPU)[0].endswith("(not asked: no GPU)")


def test_the_advice_stands_below_what_was_found(machine, monkeypatch, capsys):
    machine(library=None)
    monkeypatch.setattr(devices, "detect", lambda: NO_GPU)
    monkeypatch.setattr(doctor, "_check_simulated", lambda: True)
    assert doctor.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    position = next(number for number, line in enumerate(lines) if line.startswith("CUPTI"))
    assert lines[position].split() == ["CUPTI", "no", "libcupti"]
    assert lines[position + 1].strip().startswith("to improve: libcupti was not found; pip install")


@pytest.mark.parametrize("kind", ["rocm", "xpu", "mps", "npu", "hpu", "mlu", "musa"])
def test_on_another_accelerator_nothing_is_said_of_cupti(kind):
    found = devices.Device("other", kind)
    assert names(found) == ["recorder", "not counted", "tried"]
    assert doctor._kind_of_build(None, found) == f"for {kind}"


def test_waits_of_xla_devices_are_said_not_to_be_counted(monkeypatch):
    monkeypatch.setattr(obstacles, "_is_installed", lambda module: module == "torch_xla")
    assert "not counted" in told("torch_xla", NO_GPU)[0]


def test_an_accelerator_that_torch_does_not_find_is_one_line(monkeypatch, capsys):
    from pytest_gpusync.recorders import dispatcher

    monkeypatch.setattr(devices, "detect", lambda: devices.Device("other", "mps"))
    monkeypatch.setattr(dispatcher, "accelerator", lambda: None)
    assert doctor.main([]) == 1
    assert "recorder dispatcher: cannot run: no recorder can run: dispatcher: torch finds no accelerator" in (
        capsys.readouterr().out
    )
