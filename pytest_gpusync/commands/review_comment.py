"""One comment on a pull request of GitHub, or note on a merge request of GitLab, that each run of the job updates.

The comment begins with a hidden marker. Only a comment with the marker whose author is the user of the token is
updated: anyone can write the marker. The number of the request comes from the CI, never from a run file.
"""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Mapping

_KEY: Final = re.compile(r"[A-Za-z0-9 ._:/-]{1,100}\Z")

_TIMEOUT: Final = 30
"""Seconds for one answer."""

_PAGES: Final = 30
"""Most pages of 100 comments that are searched."""

_GITHUB_BOT: Final = "github-actions[bot]"
"""The user of the token that a job of GitHub has by itself."""

_GITHUB_API: Final = "2022-11-28"
"""The version of GitHub's API whose documentation this follows."""

_GITHUB_LIMIT: Final = 65_000
_GITLAB_LIMIT: Final = 900_000
"""Longest comment, in characters; the hosts refuse more than 65,536 and 1,000,000."""


class CommentError(Exception):
    """A comment cannot be posted; the message is one line with the remedy."""


@dataclass(frozen=True, slots=True)
class _Host:
    """A request at a host, whose API is addressed the same way by GitHub and GitLab."""

    comments: str
    """The address of the comments of the request."""
    single: str
    """The address below which single comments are changed."""
    user: str
    """The address of the token's user."""
    headers: dict[str, str]
    method: str
    """The HTTP method that changes a comment."""
    author: str
    """The name under which a comment has its author."""
    name: str
    """That of the user in these objects."""
    default_user: str | None
    limit: int
    remedy: str


def post(body: str, key: str, *, only_update: bool, environ: Mapping[str, str] = os.environ) -> str:
    """Post or update the comment, and return what was done.

    Args:
        body: Markdown.
        key: tells this comment from others of the tool, such as the name of a job.
        only_update: do not write a first comment.
        environ: the environment of the CI job.

    Raises:
        CommentError: there is no token, or the host refuses.
    """
    if not _KEY.match(key):
        raise CommentError(f"{key!r} cannot mark a comment; use at most 100 letters, digits, blanks and ._:/-")
    host = _github(environ) if environ.get("GITHUB_ACTIONS") == "true" else _gitlab(environ)
    if host is None:
        return "this job is not of a pull request or merge request, so there is no comment"
    marker = f"<!-- pytest-gpusync {key} -->"
    text = f"{marker}\n{_cut(body, host.limit)}"
    existing = _existing(host, marker)
    if existing is not None:
        _call(host, host.method, f"{host.single}/{existing}", {"body": text})
        return "the comment was updated"
    if only_update:
        return "nothing changed, and there is no comment to update"
    _call(host, "POST", host.comments, {"body": text})
    return "a comment was written"


def _github(environ: Mapping[str, str]) -> _Host | None:
    event = _event(environ)
    if not event.keys() & {"pull_request", "workflow_run"}:
        return None
    token = environ.get("GPUSYNC_TOKEN") or environ.get("GITHUB_TOKEN")
    if not token:
        raise CommentError("GITHUB_TOKEN is not set; pass it to the step: env: { GITHUB_TOKEN: ${{ github.token }} }")
    server = environ.get("GITHUB_API_URL", "https://api.github.com")
    api = f"{server}/repos/{environ.get('GITHUB_REPOSITORY', '')}"
    headers = {
        "Authorization": f"Bearer {token}",
        "Accept": "application/vnd.github+json",
        "X-GitHub-Api-Version": _GITHUB_API,
    }
    remedy = (
        "the job needs `permissions: pull-requests: write`; for pull requests of forks, comment from a workflow_run "
        "workflow"
    )
    host = _Host(
        "", f"{api}/issues/comments", f"{server}/user", headers, "PATCH", "user", "login", _GITHUB_BOT, _GITHUB_LIMIT,
        remedy,
    )  # fmt: skip
    number = _pull_request(event, host, api)
    return None if number is None else replace(host, comments=f"{api}/issues/{number}/comments")


def _event(environ: Mapping[str, str]) -> dict[str, Any]:
    try:
        with open(environ["GITHUB_EVENT_PATH"], encoding="utf-8") as file:
            event = json.load(file)
    except (KeyError, OSError, ValueError):
        return {}
    return event if isinstance(event, dict) else {}


def _pull_request(event: dict[str, Any], host: _Host, api: str) -> int | None:
    """Return the number of the pull request that an event is about."""
    number = (event.get("pull_request") or {}).get("number")
    run = event.get("workflow_run")
    if isinstance(number, int) or not isinstance(run, dict):
        return number if isinstance(number, int) else None
    # A run of a fork lists no pull requests. Its branch and commit are those that the host saw.
    owner = ((run.get("head_repository") or {}).get("owner") or {}).get("login")
    head = quote(f"{owner}:{run.get('head_branch')}", safe="")
    found = _call(host, "GET", f"{api}/pulls?state=open&per_page=100&head={head}")
    numbers = [one["number"] for one in found if one.get("head", {}).get("sha") == run.get("head_sha")]
    return numbers[0] if numbers and isinstance(numbers[0], int) else None


def _gitlab(environ: Mapping[str, str]) -> _Host | None:
    number = environ.get("CI_MERGE_REQUEST_IID")
    if environ.get("GITLAB_CI") != "true" or not number:
        return None
    token = environ.get("GPUSYNC_TOKEN")
    if not token:
        raise CommentError(
            "GPUSYNC_TOKEN is not set; give the project a masked variable with a project access token of scope api, as "
            "GitLab's own job token cannot write notes"
        )
    api = environ.get("CI_API_V4_URL", "")
    notes = f"{api}/projects/{quote(environ.get('CI_PROJECT_ID', ''), safe='')}/merge_requests/{quote(number)}/notes"
    return _Host(
        notes, notes, f"{api}/user", {"PRIVATE-TOKEN": token}, "PUT", "author", "username", None, _GITLAB_LIMIT,
        "the token needs the scope api and the role Reporter or higher",
    )  # fmt: skip


def _existing(host: _Host, marker: str) -> int | None:
    """Return the comment of this token's user that has the marker."""
    try:
        own = _call(host, "GET", host.user).get(host.name)
    except CommentError:
        own = host.default_user  # the token of a job of GitHub may not ask who it is
    if own is None:
        raise CommentError("the user of the token is not known; check GPUSYNC_TOKEN")
    for page in range(1, _PAGES + 1):
        comments = _call(host, "GET", f"{host.comments}?per_page=100&page={page}")
        for comment in comments:
            author = (comment.get(host.author) or {}).get(host.name)
            if author == own and str(comment.get("body") or "").startswith(marker):
                return int(comment["id"])
        if len(comments) < 100:
            return None
    return None


def _call(host: _Host, method: str, address: str, document: Any = None) -> Any:
    """Return the answer of the host's API."""
    data = None if document is None else json.dumps(document).encode()
    headers = {**host.headers, "Content-Type": "application/json", "User-Agent": "pytest-gpusync"}
    try:
        request = urllib.request.Request(address, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        raise CommentError(f"the host answered {error.code} {error.reason}; {host.remedy}") from None
    except (OSError, ValueError) as error:
        raise CommentError(f"the host cannot be reached ({error})") from None


def _cut(body: str, limit: int) -> str:
    """Return a text of at most `limit` characters, whole lines of it."""
    if len(body) <= limit:
        return body
    return f"{body[:limit].rpartition(chr(10))[0]}\n\n</details>\n\nThe rest is in the job's report.\n"
