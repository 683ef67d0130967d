"""Where a run comes from: its command without secrets, and the commit without starting git."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_gpusync.reporting import origin
from pytest_gpusync.reporting.origin import command_text, origin_document

GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")


@pytest.fixture(autouse=True)
def no_ci(monkeypatch):
    for name in ("GITHUB_ACTIONS", "CI_PROJECT_URL", "CI_COMMIT_SHA"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with one commit, as a function that runs git in it."""

    def git(*arguments):
        return subprocess.run(
            [*GIT, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    try:
        git("init", "-q", "-b", "main")
    except OSError:
        pytest.skip("needs git")
    git("commit", "-q", "--allow-empty", "-m", "one")
    monkeypatch.chdir(tmp_path)
    return git


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["train.py", "--lr", "3"], "train.py --lr 3"),
        (["train.py", "a b"], "train.py 'a b'"),
        (["train.py", "--api-key", "abc", "x"], "train.py --api-key *** x"),
        (["train.py", "--hf_token=abc"], "train.py --hf_token=***"),
        (["train.py", "WANDB_API_KEY=abc"], "train.py WANDB_API_KEY=***"),
        (["train.py", "--password", "--lr", "3"], "train.py --password --lr 3"),
        (["train.py", "--max-tokens", "9", "--tokenizer", "gpt2"], "train.py --max-tokens 9 --tokenizer gpt2"),
    ],
)
def test_the_command_is_kept_without_secrets(arguments, shown):
    assert command_text(arguments) == shown


def test_a_long_command_is_cut():
    assert len(command_text(["x"] * 9999)) == 400


def test_a_program_is_named_without_its_folder(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/home/me/bin/gpusync", "trace", "a.py"])
    assert origin_document()["command"] == "gpusync trace a.py"
    monkeypatch.setattr(sys, "argv", ["/usr/lib/python3/site-packages/pytest/__main__.py", "-q"])
    assert origin_document()["command"] == "python -m pytest -q"


def test_the_commit_of_a_branch_is_found(repository):
    assert origin_document()["commit"] == repository("rev-parse", "HEAD")


def test_the_commit_is_found_from_a_folder_of_the_repository(repository, tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    assert origin_document()["commit"] == repository("rev-parse", "HEAD")


def test_the_commit_is_found_without_a_branch_and_in_packed_references(repository):
    commit = repository("rev-parse", "HEAD")
    repository("pack-refs", "--all")
    assert origin_document()["commit"] == commit
    repository("checkout", "-q", "--detach")
    assert origin_document()["commit"] == commit


def test_the_commit_of_a_worktree_is_its_own(repository, tmp_path, monkeypatch):
    repository("worktree", "add", "-q", "-b", "other", str(tmp_path / "other"))
    repository("commit", "-q", "--allow-empty", "-m", "two")
    monkeypatch.chdir(tmp_path / "other")
    assert origin_document()["commit"] == repository("rev-parse", "other")


@pytest.mark.parametrize("head", ["", "ref: refs/heads/none\n", "ref: ../../secret\n", "\0", "x" * 99])
def test_an_odd_repository_has_no_commit(tmp_path, monkeypatch, head):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text(head)
    (tmp_path.parent / "secret").write_text("password")
    monkeypatch.chdir(tmp_path)
    assert origin_document()["commit"] is None


def test_a_job_of_github_knows_the_address_of_its_sources(repository, tmp_path, monkeypatch):
    (tmp_path / "a b").mkdir()
    monkeypatch.chdir(tmp_path / "a b")
    assert origin_document()["source_url"] is None
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    for name, value in (("SERVER_URL", "https://github.test"), ("REPOSITORY", "o/r"), ("SHA", "abc")):
        monkeypatch.setenv(f"GITHUB_{name}", value)
    assert origin_document()["source_url"] == "https://github.test/o/r/blob/abc/a%20b/"


def test_a_job_of_gitlab_knows_the_address_of_its_sources():
    environ = {"CI_PROJECT_URL": "https://gitlab.test/o/r", "CI_COMMIT_SHA": "abc"}
    assert origin._source_url(environ, ".") == "https://gitlab.test/o/r/-/blob/abc/"
