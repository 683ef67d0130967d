"""Which line is charged, and what stands between it and the call."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from pathlib import Path

import pytest

from pytest_gpusync.source import attribution
from pytest_gpusync.source.attribution import charge


def run_in(filename: str, source: str, call) -> None:
    """Run `source` compiled as if it stood in `filename`; it may call ``call``."""
    exec(compile(source, filename, "exec"), {"call": call, "__name__": "somewhere"})


def charged(filename: str, library: str | None = None):
    """Return the charge for a call made from `filename`, through a function in `library` if one is given."""
    found = []

    def sync() -> None:
        found.append(charge(sys._getframe(1), threading.get_ident()))

    def through_library() -> None:
        run_in(library, "def wrapper():\n    call()\nwrapper()", sync)

    run_in(filename, "call()", through_library if library else sync)
    return found[0]


@pytest.mark.parametrize(
    "filename",
    ["/project/train.py", "/project/src/pkg/loop.py", "<ipython-input-3-abcdef>", "<stdin>", "/tmp/ipykernel_77/12.py"],
)
def test_project_files_and_notebook_cells_are_charged(filename):
    assert charged(filename).site.path == filename


@pytest.mark.parametrize(
    ("library", "via"),
    [
        ("/env/lib/python3.11/site-packages/torch/nn/modules/module.py", "torch/nn/modules/module.py:2"),
        ("/usr/lib/python3/dist-packages/somelib/x.py", "somelib/x.py:2"),
        (str(Path(threading.__file__)), "threading.py:2"),
    ],
)
def test_the_library_frame_in_between_is_named(library, via):
    found = charged("/project/train.py", library)
    assert found.site.path.endswith("test_attribution.py")  # run_in's own line stands between the two
    assert found.site.via is not None
    assert found.site.via.startswith(via)


def test_a_virtual_environment_inside_the_project_is_a_library():
    assert attribution._classify_path("/project/.venv/lib/python3.11/site-packages/x.py") == attribution._LIBRARY


def test_this_package_is_never_charged():
    assert attribution._classify_path(attribution.__file__) == attribution._INTERNAL


def test_a_sibling_folder_with_a_longer_name_is_not_this_package():
    folder = Path(attribution.__file__).resolve().parents[1]
    assert attribution._classify_path(f"{folder}_extra/x.py") != attribution._INTERNAL


def test_paths_below_the_working_directory_are_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "a.py").touch()
    attribution.clear_caches()
    assert attribution.display_path(str(tmp_path / "pkg" / "a.py")) == "pkg/a.py"
    assert attribution.display_path("/elsewhere/b.py") == "/elsewhere/b.py"


def test_a_library_program_without_user_lines_is_charged_to_itself():
    def library_main() -> None:
        found.append(charge(sys._getframe(1), threading.get_ident()))

    found = []
    thread = threading.Thread(
        target=run_in, args=("/env/lib/python3.11/site-packages/tool/main.py", "call()", library_main)
    )
    # The thread's outer frames are this test's: the innermost user line wins over the library.
    thread.start()
    thread.join()
    assert found[0].site.path.endswith("test_attribution.py")
    assert found[0].site.via.startswith("tool/main.py:1")


def test_a_thread_without_python_frames_is_charged_to_the_line_inside_backward():
    torch = pytest.importorskip("torch")
    found = []
    autograd_thread = 2**40  # no Python thread has this ident

    class Probe(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            found.append(charge(None, autograd_thread))
            return gradient

    Probe.apply(torch.ones(2, requires_grad=True)).sum().backward()
    # On the CPU autograd runs on the calling thread, whose innermost user line is the function's own.
    assert found[0].thread == threading.get_ident()
    # Python 3.10 does not tell the class.
    assert found[0].site.function.endswith("backward")


def test_a_sync_in_backward_names_the_operator_whose_gradient_waits():
    torch = pytest.importorskip("torch")
    found = []
    x = torch.ones(4, requires_grad=True)
    loss = x[x > 0].sum()
    loss.grad_fn.next_functions[0][0].register_prehook(lambda gradients: found.append(_charge_without_frames()))
    loss.backward()
    assert found[0].site.via.endswith("_engine_run_backward, in IndexBackward0")


def test_where_anomaly_mode_kept_it_the_line_of_forward_is_named_too():
    torch = pytest.importorskip("torch")
    found = []
    x = torch.ones(4, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        loss = x[x > 0].sum()  # this line
    loss.grad_fn.next_functions[0][0].register_prehook(lambda gradients: found.append(_charge_without_frames()))
    loss.backward()
    line = test_where_anomaly_mode_kept_it_the_line_of_forward_is_named_too.__code__.co_firstlineno + 5
    assert found[0].site.via.endswith(
        f"in IndexBackward0 of tests/runtime/test_attribution.py:{line} "
        "test_where_anomaly_mode_kept_it_the_line_of_forward_is_named_too"
    )


def _charge_without_frames():
    """Charge a sync as of a frame that called the engine: what a kernel of autograd's on this thread would see."""
    frame = sys._getframe()
    while not attribution._is_engine(frame):
        frame = frame.f_back
    return charge(frame, threading.get_ident())


def test_where_nobody_is_in_backward_the_main_thread_is_charged():
    found = charge(None, 2**40)
    assert found.thread == threading.main_thread().ident
    assert found.site.path.endswith("test_attribution.py")


def test_what_the_line_inside_backward_holds_is_let_go_at_once():
    class Tensor:
        pass

    def line_inside_backward():
        tensor = Tensor()
        charge(None, thread=12345)
        return weakref.ref(tensor)

    was_enabled = gc.isenabled()
    gc.disable()
    try:
        assert line_inside_backward()() is None
    finally:
        if was_enabled:
            gc.enable()
