"""The comment of a pull request, which a job writes once and then updates: against a stand-in for the host's API."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from test_report_diff import LOSS, every, region, write

from pytest_gpusync.commands import report
from pytest_gpusync.commands.review_comment import CommentError, post

MARKER = "<!-- pytest-gpusync report -->"


class Host:
    """GitHub and GitLab, as far as comments go."""

    def __init__(self):
        self.comments = []
        self.users = {"secret": "github-actions[bot]"}
        self.tells_user = False
        self.pulls = []
        self.refuses = None
        self.asked = []
        host = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                host.answer(self)

            do_POST = do_PATCH = do_PUT = do_GET

            def log_message(self, *_):
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def answer(self, request):
        length = int(request.headers.get("Content-Length") or 0)
        document = json.loads(request.rfile.read(length)) if length else None
        token = request.headers.get("PRIVATE-TOKEN") or (request.headers.get("Authorization") or "").split()[-1]
        url = urlsplit(request.path)
        self.asked.append((request.command, request.path))
        code, found = self.found(request.command, url.path, parse_qs(url.query), document, self.users[token])
        body = json.dumps(found).encode()
        request.send_response(code)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def found(self, method, path, query, document, user):
        if self.refuses == method:
            return 403, {}
        if path.endswith("/user"):
            return (200, {"login": user, "username": user}) if self.tells_user else (403, {})
        if path.endswith("/pulls"):
            return 200, self.pulls
        if method == "GET":
            first = 100 * (int(query["page"][0]) - 1)
            return 200, self.comments[first : first + 100]
        if method == "POST":
            self.add(user, document["body"])
            return 201, {}
        (comment,) = [one for one in self.comments if one["id"] == int(path.rpartition("/")[2])]
        comment["body"] = document["body"]
        return 200, {}

    def add(self, user, body):
        author = {"login": user, "username": user}
        self.comments.append({"id": len(self.comments) + 1, "body": body, "user": author, "author": author})


@pytest.fixture
def host():
    host = Host()
    yield host
    host.server.shutdown()
    host.server.server_close()


@pytest.fixture
def github(host, tmp_path):
    """The environment of a job of GitHub for an event."""

    def environment(event, **more):
        (tmp_path / "event.json").write_text(json.dumps(event))
        fixed = {"GITHUB_ACTIONS": "true", "GITHUB_API_URL": host.address, "GITHUB_REPOSITORY": "owner/name"}
        return {**fixed, "GITHUB_EVENT_PATH": str(tmp_path / "event.json"), "GPUSYNC_TOKEN": "secret", **more}

    return environment


def gitlab(host, **more):
    fixed = {"GITLAB_CI": "true", "CI_API_V4_URL": f"{host.address}/api/v4", "CI_PROJECT_ID": "7"}
    host.users["secret"], host.tells_user = "project_7_bot", True
    return {**fixed, "CI_MERGE_REQUEST_IID": "5", "GPUSYNC_TOKEN": "secret", **more}


def posted(environment, body="Two more.", **more):
    return post(body, "report", only_update=False, environ=environment, **more)


PULL = {"pull_request": {"number": 5}}


@pytest.mark.parametrize("of", ["github", "gitlab"])
def test_the_first_run_writes_the_comment_and_later_ones_update_it(host, github, of):
    environment = github(PULL) if of == "github" else gitlab(host)
    assert posted(environment, "Two more.") == "a comment was written"
    host.add("somebody", "Why?")
    assert posted(environment, "One more.") == "the comment was updated"
    assert [one["body"] for one in host.comments] == [f"{MARKER}\nOne more.", "Why?"]
    paths = {"github": "/repos/owner/name/issues/5/comments", "gitlab": "/api/v4/projects/7/merge_requests/5/notes"}
    assert ("POST", paths[of]) in host.asked


def test_a_comment_of_somebody_else_with_the_marker_is_left_alone(host, github):
    host.add("somebody", f"{MARKER}\nAll is well.")
    assert posted(github(PULL)) == "a comment was written"
    assert host.comments[0]["body"] == f"{MARKER}\nAll is well."


def test_the_comment_is_found_behind_many_others(host, github):
    for _ in range(150):
        host.add("somebody", "Hm.")
    host.add("github-actions[bot]", f"{MARKER}\nOld.")
    assert posted(github(PULL)) == "the comment was updated"


def test_comments_of_other_jobs_are_told_apart(host, github):
    posted(github(PULL))
    post("Other.", "gpu-gate", only_update=False, environ=github(PULL))
    assert len(host.comments) == 2


def test_where_nothing_changed_no_first_comment_is_written(host, github):
    post("Nothing.", "report", only_update=True, environ=github(PULL))
    assert host.comments == []


def test_the_pull_request_of_a_fork_is_the_one_with_the_commit_that_ran(host, github):
    run = {"head_repository": {"owner": {"login": "fork"}}, "head_branch": "b&c", "head_sha": "12", "pull_requests": []}
    host.pulls = [{"number": 4, "head": {"sha": "11"}}, {"number": 5, "head": {"sha": "12"}}]
    assert posted(github({"workflow_run": run})) == "a comment was written"
    assert ("POST", "/repos/owner/name/issues/5/comments") in host.asked
    assert ("GET", "/repos/owner/name/pulls?state=open&per_page=100&head=fork%3Ab%26c") in host.asked


@pytest.mark.parametrize("event", [{}, {"ref": "refs/heads/main"}])
def test_a_push_has_no_comment(host, github, event):
    assert "not of a pull request" in posted(github(event))
    assert host.comments == []


def test_a_comment_that_is_too_long_is_cut_at_a_line(host, github):
    posted(github(PULL), "line\n" * 20_000)
    assert len(host.comments[0]["body"]) < 65_536
    assert host.comments[0]["body"].endswith("line\n\n</details>\n\nThe rest is in the job's report.\n")


@pytest.mark.parametrize(
    ("refuses", "more", "remedy"),
    [
        ("POST", {}, "permissions: pull-requests: write"),
        (None, {"GPUSYNC_TOKEN": ""}, "GITHUB_TOKEN is not set"),
        (None, {"GITHUB_API_URL": "http://127.0.0.1:1"}, "cannot be reached"),
    ],
)
def test_what_cannot_be_written_is_an_error_with_its_remedy(host, github, refuses, more, remedy):
    host.refuses = refuses
    with pytest.raises(CommentError, match=remedy):
        posted(github(PULL, **more))


def test_a_comparison_is_written_as_a_comment_and_does_not_fail_without_it(host, github, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "a.json", region({}))
    write(tmp_path, "b.json", region({(3, LOSS): every()}))
    for name, value in github(PULL).items():
        monkeypatch.setenv(name, value)
    assert report.main(["diff", "--comment", "--output-format=md", "a.json", "b.json"]) == 0
    assert host.comments[0]["body"] == f"{MARKER}\n{capsys.readouterr().out}"
    host.refuses = "PATCH"
    assert report.main(["diff", "--comment=report", "a.json", "b.json"]) == 0
    assert "no comment was written: the host answered 403" in capsys.readouterr().err
