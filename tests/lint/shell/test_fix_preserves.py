"""`--fix` changes the text of a file and nothing else, also when it is killed."""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from gpusync_lint.cli import main
from gpusync_lint.files import atomic_write
from hot_loop import HOT_LOOP

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="owners, links and signals are those of POSIX")

TEXT = f"{HOT_LOOP}    a = torch.zeros(3).to('cuda')\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def fix(*arguments: str) -> int:
    return main(["--fix", "--no-cache", "--jobs", "1", *arguments])


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o755, 0o664, 0o4755])
def test_permissions_are_kept(folder: Path, mode: int) -> None:
    path = folder / "a.py"
    path.write_text(TEXT)
    path.chmod(mode)
    fix()
    assert path.read_text() != TEXT
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_extended_attributes_are_kept(folder: Path) -> None:
    path = folder / "a.py"
    path.write_text(TEXT)
    try:
        os.setxattr(path, "user.note", b"kept")
    except (AttributeError, OSError):
        pytest.skip("there are no extended attributes here")
    fix()
    assert path.read_text() != TEXT
    assert os.getxattr(path, "user.note") == b"kept"


def test_an_attribute_that_cannot_be_kept_is_said(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise PermissionError

    path = folder / "a.py"
    path.write_text(TEXT)
    monkeypatch.setattr(os, "listxattr", lambda path: ["security.label"] if path.name == "a.py" else [], raising=False)
    monkeypatch.setattr(os, "getxattr", lambda path, name: b"secret", raising=False)
    monkeypatch.setattr(os, "setxattr", refuse, raising=False)
    monkeypatch.setattr(atomic_write.os, "listxattr", lambda at: ["security.label"] if str(at).endswith(".py") else [])
    assert fix() == 2
    assert (
        "a.py: error: not written: its extended attribute security.label could not be kept" in capsys.readouterr().err
    )
    assert path.read_text() == TEXT
    assert os.listdir(folder) == ["a.py"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a file away")
def test_the_owner_is_kept(folder: Path) -> None:
    path = folder / "a.py"
    path.write_text(TEXT)
    os.chown(path, 12345, 23456)
    path.chmod(0o2755)
    fix()
    status = path.stat()
    assert path.read_text() != TEXT
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (12345, 23456, 0o2755)


def test_an_owner_that_cannot_be_kept_is_said(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise PermissionError

    path = folder / "a.py"
    path.write_text(TEXT)
    own = os.stat

    def stat_of(name: object, **how: bool) -> os.stat_result:
        status = own(name, **how)  # type: ignore[call-overload]
        return os.stat_result((*status[:4], 1, 1, *status[6:])) if str(name).endswith(".gpusync.tmp") else status

    monkeypatch.setattr(atomic_write.os, "stat", stat_of)
    monkeypatch.setattr(atomic_write.os, "chown", refuse)
    assert fix() == 2
    assert "not written: it belongs to another user or group" in capsys.readouterr().err
    assert path.read_text() == TEXT
    assert os.listdir(folder) == ["a.py"]


def test_hard_links_are_not_separated(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "a.py"
    path.write_text(TEXT)
    os.link(path, folder.parent / "other")
    (folder / "b.py").write_text(TEXT)
    assert fix() == 2
    assert "a.py: error: not written: it has 2 hard links" in capsys.readouterr().err
    assert path.read_text() == (folder.parent / "other").read_text() == TEXT
    assert (folder / "b.py").read_text() != TEXT


@pytest.mark.parametrize("given", [".", "link.py"])
def test_the_target_of_a_link_elsewhere_is_not_changed(
    folder: Path, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    elsewhere = folder.parent / "elsewhere.py"
    elsewhere.write_text(TEXT)
    (folder / "link.py").symlink_to(elsewhere)
    (folder / "b.py").write_text(TEXT)
    assert fix(given, "b.py") == 2
    assert "link.py: error: not written: it is a link to" in capsys.readouterr().err
    assert elsewhere.read_text() == TEXT
    assert (folder / "b.py").read_text() != TEXT


def test_the_target_of_a_link_inside_is_changed(folder: Path) -> None:
    (folder / "inside").mkdir()
    (folder / "inside" / "a.txt").write_text(TEXT)
    (folder / "link.py").symlink_to("inside/a.txt")
    fix()
    assert (folder / "link.py").is_symlink()
    assert (folder / "inside" / "a.txt").read_text() != TEXT


def test_a_link_to_a_folder_that_is_given_is_followed(folder: Path) -> None:
    (folder.parent / "real").mkdir()
    (folder.parent / "real" / "a.py").write_text(TEXT)
    (folder / "linked").symlink_to(folder.parent / "real")
    fix("linked")
    assert (folder.parent / "real" / "a.py").read_text() != TEXT


def test_what_a_killed_run_left_is_named_and_removed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a.py").write_text("x = 1\n")
    left, fresh = folder / ".a.py.abcdefgh.gpusync.tmp", folder / ".b.py.abcdefgh.gpusync.tmp"
    others = [folder / ".a.py.abc.gpusync.tmp", folder / ".a.tmp", folder / "a.py.abcdefgh.gpusync.tmp"]
    for path in (left, fresh, *others):
        path.write_text("x")
    os.utime(left, (1e9, 1e9))
    assert main(["--no-cache"]) == 0
    assert "found 2 temporary files of an interrupted --fix" in capsys.readouterr().err
    assert main(["--no-cache", "--diff"]) == 0
    assert left.exists()
    assert fix() == 0
    assert not left.exists()
    assert all(path.exists() for path in (fresh, *others))  # a run may still be writing the fresh one


def test_a_kill_loses_and_damages_no_file(tmp_path: Path) -> None:
    """GPUSYNC_KILLS sets the number of tries."""
    tries = int(os.environ.get("GPUSYNC_KILLS", "6"))
    rng = random.Random(5)
    folder = tmp_path / "project"
    folder.mkdir()
    names = [f"m{number}.py" for number in range(8)]
    code = "import sys; from gpusync_lint.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "--fix", "--no-cache", "--jobs", "1"]

    def reset() -> None:
        for path in folder.iterdir():
            path.unlink()
        for name in names:
            (folder / name).write_text(TEXT)

    reset()
    subprocess.run(command, cwd=folder, capture_output=True, check=False)
    fixed = (folder / names[0]).read_text()
    assert fixed != TEXT
    for _ in range(tries):
        reset()
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
            limit = time.monotonic() + 60
            while run.poll() is None and time.monotonic() < limit:  # until it writes the first file
                if any(name.endswith(".tmp") for name in os.listdir(folder)):
                    break
                if (folder / names[0]).read_text() != TEXT:
                    break
            time.sleep(rng.random() * 0.004)
            run.send_signal(signal.SIGKILL)
        assert {(folder / name).read_text() for name in names} <= {TEXT, fixed}
        left = sorted(set(os.listdir(folder)) - set(names))
        assert all(atomic_write.TEMPORARY.fullmatch(name) for name in left)
        for name in left:
            os.utime(folder / name, (1e9, 1e9))
        subprocess.run(command, cwd=folder, capture_output=True, check=False)
        assert sorted(os.listdir(folder)) == names
        assert {(folder / name).read_text() for name in names} == {fixed}
