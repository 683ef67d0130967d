"""The language server: open documents in, diagnostics, hovers, code actions and code lenses out.

Two processes analyze (`worker`). One gives the findings of the command line, in seconds if the project is large. The
other one analyzes the edited file alone, so that the effect of a keystroke shows at once (`provisional`). A result for
a text that has been edited meanwhile is not shown, and a request waits for the analysis of the text that it is about.

A notebook that the client opens as cells is one document: its text is a notebook file that is made of the cells, so it
is analyzed as the saved file is.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsprotocol import types
from pygls import uris
from pygls.exceptions import JsonRpcException
from pygls.lsp.server import LanguageServer

from gpusync_lint import rule_pages
from gpusync_lint._version import __version__
from gpusync_lint.server import actions, lenses
from gpusync_lint.server.provisional import combined
from gpusync_lint.server.values import Cell, Positions, changed_text, diagnostics, hover, overlaps
from gpusync_lint.server.worker import Worker, WorkerDiedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusync_lint.model.function_key import Key
    from gpusync_lint.model.placement import Entry
    from gpusync_lint.server.analysis import Answer, Checked

SETTLED = 0.4
"""Seconds without an edit after which the project is analyzed completely."""
LONGEST = 3.0
"""Seconds of uninterrupted editing after which it is analyzed all the same."""
MAX_DEATHS = 3
"""The number of analyses of the same texts that may fail before the server waits for an edit."""
SLOW = 0.5
"""Seconds after which the client is told that an analysis is in progress."""
PATIENCE = 2.0
"""The longest time, in seconds, that a request waits for the analysis of the current text."""
_KEPT = 4
"""The number of texts of a document whose quick analyses are kept."""

Place = tuple[Path, "str | None"]
"""A workspace folder; or the folder of a file outside of all workspace folders, and its name."""


@dataclass(slots=True)
class _Document:
    """An open document."""

    uri: str
    path: str
    """The absolute path, without symbolic links."""
    place: Place
    text: str
    version: int | None
    cells: tuple[Cell, ...] | None = None
    """Those of a notebook; None for a text document."""
    base: Checked | None = None
    """The last complete analysis, of this text or of an earlier one."""
    quick: dict[str, Checked] = field(default_factory=dict)
    """The last quick analyses, by text."""
    shown: Checked | None = None
    answered: str | None = None
    """The text for which diagnostics were published last."""
    lenses: tuple[str, list[lenses.Lens]] | None = None
    """The last lenses, and the analyzed text that they were made for."""

    def remember(self, checked: Checked) -> None:
        """Keep a quick analysis, and forget the oldest ones."""
        self.quick.pop(checked.document, None)
        self.quick[checked.document] = checked
        needed = None if self.base is None else self.base.document
        for text in [text for text in self.quick if text != needed][:-_KEPT]:
            del self.quick[text]


class Server:
    """A session with one client."""

    def __init__(self, observed: Sequence[str] = ()) -> None:
        notebooks = types.NotebookDocumentFilterWithCells(
            notebook=types.NotebookDocumentFilterNotebookType("jupyter-notebook"),
            cells=[types.NotebookCellLanguage("python")],
        )
        self.client = LanguageServer(
            "gpusync",
            __version__,
            text_document_sync_kind=types.TextDocumentSyncKind.Full,
            notebook_document_sync=types.NotebookDocumentSyncOptions([notebooks], save=True),
        )
        self.was_shut_down = False
        self._observed = ", ".join(observed)
        self._complete_worker = Worker(observed)
        self._quick_worker = Worker(observed)
        self._executor = ThreadPoolExecutor(2, "gpusync")
        self._documents: dict[str, _Document] = {}
        self._notebooks: dict[str, str] = {}
        """By the address of a cell, that of its notebook."""
        self._cells: dict[str, types.TextDocumentItem] = {}
        """The texts of cells. The library does not apply changes of parts of them, which clients send all the same."""
        logging.getLogger("pygls.workspace.text_document").setLevel(logging.CRITICAL)  # it reports each such change
        self._answered = asyncio.Event()
        """Set, and replaced, whenever diagnostics are published."""
        self._runs_commands = False
        """Whether the client implements the command of lenses."""
        self._folders: list[Path] = []
        self._edited: dict[str, None] = {}
        """The documents to analyze quickly, the last edited one last."""
        self._dirty: dict[Place, float] = {}
        """The folders to analyze completely, with the times of the first edits since the last analysis."""
        self._entries: dict[Place, Mapping[Key, Entry]] = {}
        """How often functions are entered, by the last complete analyses. Quick analyses depend on it."""
        self._last_edit = 0.0
        self._wake_quick = asyncio.Event()
        self._wake_complete = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._progress: set[asyncio.Task[None]] = set()
        self._tokens = count(1)
        self._rules = rule_pages.docs()
        self._told = ""
        self._deaths = 0
        kinds = [actions.SAFE, actions.UNSAFE, actions.ALLOW, actions.FIX_ALL]
        handlers: dict[str, tuple[Any, Any]] = {
            types.INITIALIZE: (self._initialize, None),
            types.INITIALIZED: (self._initialized, None),
            types.SHUTDOWN: (self._shut_down, None),
            types.EXIT: (self._exit, None),
            types.TEXT_DOCUMENT_DID_OPEN: (self._opened, None),
            types.TEXT_DOCUMENT_DID_CHANGE: (self._changed, None),
            types.TEXT_DOCUMENT_DID_SAVE: (self._saved, None),
            types.TEXT_DOCUMENT_DID_CLOSE: (self._closed, None),
            types.NOTEBOOK_DOCUMENT_DID_OPEN: (self._notebook_opened, None),
            types.NOTEBOOK_DOCUMENT_DID_CHANGE: (self._notebook_changed, None),
            types.NOTEBOOK_DOCUMENT_DID_SAVE: (self._notebook_saved, None),
            types.NOTEBOOK_DOCUMENT_DID_CLOSE: (self._notebook_closed, None),
            types.WORKSPACE_DID_CHANGE_WATCHED_FILES: (self._files_changed, None),
            types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS: (self._folders_changed, None),
            types.TEXT_DOCUMENT_HOVER: (self._hover, None),
            types.TEXT_DOCUMENT_CODE_ACTION: (
                self._code_actions,
                types.CodeActionOptions(code_action_kinds=kinds),
            ),
            types.TEXT_DOCUMENT_CODE_LENS: (self._code_lenses, None),
        }
        for method, (handler, options) in handlers.items():
            self.client.feature(method, options)(_function(handler))

    def close(self) -> None:
        """End the processes that analyze."""
        self._complete_worker.close()
        self._quick_worker.close()

    def _initialize(self, params: types.InitializeParams) -> None:
        folders = [one.uri for one in params.workspace_folders or ()]
        if not folders and params.root_uri:
            folders = [params.root_uri]
        self._folders = [Path(path) for path in map(_path_of, folders) if path is not None]
        options = params.initialization_options
        self._runs_commands = isinstance(options, dict) and options.get("showFindings") is True

    def _initialized(self, params: types.InitializedParams) -> None:
        self._tasks = [asyncio.ensure_future(self._check_edited()), asyncio.ensure_future(self._check_folders())]
        for task in self._tasks:
            task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._log(f"internal error, a bug in gpusync: {task.exception()!r}", types.MessageType.Error)

    def _shut_down(self, params: object) -> None:
        self.was_shut_down = True
        self.close()

    def _exit(self, params: object) -> None:
        # The thread that reads standard input may wait for input that does not come: end without it.
        self.close()
        os._exit(0 if self.was_shut_down else 1)

    def _opened(self, params: types.DidOpenTextDocumentParams) -> None:
        one = params.text_document
        path = _path_of(one.uri)
        if path is None:  # an editor's own document, which is in no folder
            return
        self._documents[one.uri] = _Document(one.uri, path, self._place_of(path), one.text, one.version)
        self._edit(one.uri)

    def _changed(self, params: types.DidChangeTextDocumentParams) -> None:
        document = self._documents.get(params.text_document.uri)
        if document is not None and params.content_changes:
            document.text = params.content_changes[-1].text
            document.version = params.text_document.version
            self._edit(document.uri)

    def _edit(self, uri: str) -> None:
        self._last_edit = time.monotonic()
        self._deaths = 0
        self._edited.pop(uri, None)
        self._edited[uri] = None
        self._dirty.setdefault(self._documents[uri].place, self._last_edit)
        self._wake_quick.set()
        self._wake_complete.set()

    def _saved(self, params: types.DidSaveTextDocumentParams) -> None:
        self._save(params.text_document.uri)

    def _save(self, uri: str) -> None:
        document = self._documents.get(uri)
        if document is not None:
            self._refresh(document.place)

    def _closed(self, params: types.DidCloseTextDocumentParams) -> None:
        self._close(params.text_document.uri)

    def _close(self, uri: str) -> None:
        document = self._documents.pop(uri, None)
        if document is not None:
            self._edited.pop(uri, None)
            self._publish(document, {})
            self._refresh(document.place)

    def _notebook_opened(self, params: types.DidOpenNotebookDocumentParams) -> None:
        uri = params.notebook_document.uri
        path = _path_of(uri)
        if path is not None:
            self._documents[uri] = _Document(uri, path, self._place_of(path), "", None, ())
            self._cells.update((item.uri, item) for item in params.cell_text_documents)
            self._read_cells(uri)

    def _notebook_changed(self, params: types.DidChangeNotebookDocumentParams) -> None:
        uri, cells = params.notebook_document.uri, params.change.cells
        if uri not in self._documents or cells is None:
            return
        if cells.structure is not None:
            self._cells.update((item.uri, item) for item in cells.structure.did_open or ())
        for changed in cells.text_content or ():
            item = self._cells[changed.document.uri]
            for change in changed.changes:
                item.text = changed_text(item.text, change, self._encoding())
            item.version = changed.document.version
        self._read_cells(uri)

    def _notebook_saved(self, params: types.DidSaveNotebookDocumentParams) -> None:
        self._save(params.notebook_document.uri)

    def _notebook_closed(self, params: types.DidCloseNotebookDocumentParams) -> None:
        uri = params.notebook_document.uri
        document = self._documents.get(uri)
        self._close(uri)
        for cell in () if document is None or document.cells is None else document.cells:
            self._cells.pop(cell.uri, None)
        self._notebooks = {cell: notebook for cell, notebook in self._notebooks.items() if notebook != uri}

    def _read_cells(self, uri: str) -> None:
        """Take the order of the cells of a notebook from the workspace, which the library keeps."""
        document = self._documents[uri]
        notebook = self.client.workspace.get_notebook_document(notebook_uri=uri)
        cells = []
        for one in () if notebook is None else notebook.cells:
            item = self._cells.get(one.document)  # the client may leave out cells of other languages
            is_code = item is not None and one.kind is types.NotebookCellKind.Code and item.language_id == "python"
            text, version = ("", None) if item is None else (item.text, item.version)
            cells.append(Cell(one.document, text, version, is_code))
        gone = {cell.uri for cell in document.cells or ()} - {cell.uri for cell in cells}
        for cell_uri in gone:
            self._notebooks.pop(cell_uri, None)
            self._cells.pop(cell_uri, None)
            self._publish_in(cell_uri, [], None)
        self._notebooks.update((cell.uri, uri) for cell in cells)
        document.cells, document.text = tuple(cells), _notebook_file(cells)
        self._edit(uri)

    def _files_changed(self, params: types.DidChangeWatchedFilesParams) -> None:
        for place in {document.place for document in self._documents.values()}:
            self._refresh(place)

    def _folders_changed(self, params: types.DidChangeWorkspaceFoldersParams) -> None:
        removed = {_path_of(one.uri) for one in params.event.removed}
        added = [Path(path) for one in params.event.added if (path := _path_of(one.uri)) is not None]
        self._folders = [one for one in self._folders if str(one) not in removed] + added
        for document in self._documents.values():
            document.place, document.base = self._place_of(document.path), None
            document.quick.clear()
            self._edit(document.uri)

    def _place_of(self, path: str) -> Place:
        at = Path(path)
        above = [folder for folder in self._folders if at.is_relative_to(folder)]
        return (max(above, key=lambda folder: len(folder.parts)), None) if above else (at.parent, at.name)

    def _refresh(self, place: Place) -> None:
        """Analyze a folder again, because files have changed on disk."""
        if any(document.place == place for document in self._documents.values()):
            self._deaths = 0
            self._dirty.setdefault(place, time.monotonic())
            self._wake_complete.set()

    async def _ask(self, worker: Worker, call: str, place: Place, *arguments: object) -> Answer | None:
        """What an analysis found; None if it failed, which is logged."""
        loop = asyncio.get_running_loop()
        try:
            answer = await loop.run_in_executor(self._executor, worker.ask, call, *place, *arguments)
        except WorkerDiedError as error:
            self._deaths += 1
            if not self.was_shut_down:
                self._log(str(error), types.MessageType.Error)
            return None
        if answer is not None:
            for trace in answer.tracebacks:
                self._log(trace, types.MessageType.Error)
            if answer.problem != self._told and (answer.problem or worker is self._complete_worker):
                self._told = answer.problem
                if answer.problem:
                    message = types.ShowMessageParams(types.MessageType.Error, f"gpusync: {answer.problem}")
                    self.client.window_show_message(message)
        return answer

    async def _check_edited(self) -> None:
        """Analyze edited documents quickly, the last edited one first."""
        while True:
            await self._wake_quick.wait()
            if not self._edited:
                self._wake_quick.clear()
                continue
            uri, _ = self._edited.popitem()
            document = self._documents.get(uri)
            if document is None:
                continue
            text = document.text
            if await self._quick(document, text) and document.text == text:
                self._show(document)

    async def _quick(self, document: _Document, text: str) -> bool:
        """Analyze a document quickly, and the text of its last complete analysis if that has not been done."""
        texts = [text]
        if document.base is not None and document.base.document != text:
            texts.insert(0, document.base.document)
        for one in texts:
            if one not in document.quick:
                answer = await self._ask(self._quick_worker, "quick", document.place, document.path, one)
                if answer is None or document.path not in answer.documents:
                    return False
                document.remember(answer.documents[document.path])
        return True

    async def _check_folders(self) -> None:
        """Analyze folders completely, when no document has been edited for a moment."""
        while True:
            await self._wake_complete.wait()
            if not self._dirty or self._deaths >= MAX_DEATHS:
                self._wake_complete.clear()
                continue
            place, since = next(iter(self._dirty.items()))
            now = time.monotonic()
            wait = min(self._last_edit + SETTLED, since + LONGEST) - now
            if wait > 0:
                await asyncio.sleep(wait)
                continue
            del self._dirty[place]
            documents = [one for one in self._documents.values() if one.place == place]
            if not documents:
                continue
            texts = {one.path: one.text for one in documents}
            asked = asyncio.ensure_future(self._ask(self._complete_worker, "complete", place, texts))
            self._show_progress(place[0], asked)
            answer = await asked
            if answer is None:
                self._dirty.setdefault(place, now)
                continue
            for document in documents:
                if answer.problem:
                    document.quick.clear()
                document.base = answer.documents.get(document.path)
                if document.text == texts[document.path]:
                    self._show(document)
                elif document.uri in self._documents:
                    self._edited.setdefault(document.uri)
                    self._wake_quick.set()
            self._refresh_lenses()
            current = {one.path: one.text for one in documents}
            await self._ask(self._quick_worker, "scan", place, current, answer.entries)
            if self._entries.get(place) != answer.entries:
                self._entries[place] = answer.entries
                for document in documents:
                    document.quick.clear()
            for document in documents:
                await self._quick(document, document.text)

    def _show_progress(self, folder: Path, work: asyncio.Future[Any]) -> None:
        """Tell the client while an analysis is in progress, if it takes long and the client can show it."""
        window = self.client.client_capabilities.window
        if window is not None and window.work_done_progress:
            task = asyncio.ensure_future(self._report_progress(folder, work))
            self._progress.add(task)
            task.add_done_callback(self._progress.discard)

    async def _report_progress(self, folder: Path, work: asyncio.Future[Any]) -> None:
        done, _ = await asyncio.wait([work], timeout=SLOW)
        if done:
            return
        progress, token = self.client.work_done_progress, f"gpusync-{next(self._tokens)}"
        try:
            await progress.create_async(token)
        except JsonRpcException:  # the client refuses
            return
        progress.begin(token, types.WorkDoneProgressBegin(title="gpusync", message=f"analyzing {folder.name}"))
        await asyncio.wait([work])
        progress.end(token, types.WorkDoneProgressEnd())
        progress.tokens.pop(token, None)

    def _show(self, document: _Document) -> None:
        """Publish the findings in the current text of a document."""
        if self._documents.get(document.uri) is not document:
            return
        base, quick = document.base, document.quick.get(document.text)
        if base is not None and base.document == document.text:
            document.shown = base
        elif quick is not None:
            document.shown = combined(base, None if base is None else document.quick.get(base.document), quick)
        else:
            document.shown = None
        document.answered = document.text
        positions = self._positions(document)
        folder = document.place[0]
        uri_of = lambda path: uris.from_fs_path(str(folder / path)) or ""  # noqa: E731
        self._publish(document, {} if positions is None else diagnostics(positions, uri_of))
        self._answered.set()
        self._answered = asyncio.Event()

    def _publish(self, document: _Document, found: dict[str, list[types.Diagnostic]]) -> None:
        """Publish the diagnostics of a document, or of all cells of a notebook."""
        if document.cells is None:
            self._publish_in(document.uri, found.get(document.uri, []), document.version)
        for cell in document.cells or ():
            self._publish_in(cell.uri, found.get(cell.uri, []), cell.version)

    def _publish_in(self, uri: str, found: list[types.Diagnostic], version: int | None) -> None:
        params = types.PublishDiagnosticsParams(uri=uri, diagnostics=found, version=version)
        self.client.text_document_publish_diagnostics(params)

    def _document_of(self, uri: str) -> _Document | None:
        """The open document with an address, which may be that of a cell."""
        return self._documents.get(self._notebooks.get(uri, uri))

    def _positions(self, document: _Document | None) -> Positions | None:
        """The findings that are shown in a document; None if there are none for its current text."""
        if document is None or document.shown is None or document.shown.document != document.text:
            return None
        return Positions(document.uri, document.shown, self._encoding(), document.cells)

    def _encoding(self) -> str:
        return self.client.workspace.position_encoding or "utf-16"

    async def _current(self, uri: str) -> tuple[_Document, Positions] | None:
        """The document with an address, as soon as its text has been analyzed; None if it is not, or not in time."""

        async def answered() -> _Document | None:
            while True:
                document = self._document_of(uri)
                if document is None or document.answered == document.text:
                    return document
                await self._answered.wait()

        try:
            document = await asyncio.wait_for(answered(), PATIENCE)
        except asyncio.TimeoutError:
            return None
        positions = self._positions(document)
        return None if document is None or positions is None else (document, positions)

    async def _hover(self, params: types.HoverParams) -> types.Hover | None:
        uri = params.text_document.uri
        current = await self._current(uri)
        if current is None:
            return None
        positions = current[1]
        cursor = types.Range(start=params.position, end=params.position)
        checked = positions.checked
        places = [(one.finding, positions.place(one.finding.span)) for one in checked.reported]
        there = [(one, place) for one, place in places if overlaps(place, uri, cursor)]
        if not there:
            return None
        text = "\n\n---\n\n".join(
            hover(one, self._rules.get(one.code), checked.observations.get(one.key), checked.runs or self._observed)
            for one, _ in there
        )
        content = types.MarkupContent(kind=types.MarkupKind.Markdown, value=text)
        return types.Hover(contents=content, range=there[0][1].range)

    async def _code_actions(self, params: types.CodeActionParams) -> list[types.CodeAction] | None:
        uri = params.text_document.uri
        current = await self._current(uri)
        if current is None:
            return None
        context = params.context
        return actions.offered(uri, current[1], params.range, context.only, list(context.diagnostics))

    async def _code_lenses(self, params: types.CodeLensParams) -> list[types.CodeLens] | None:
        current = await self._current(params.text_document.uri)
        if current is None:
            return None
        document, positions = current
        found = lenses.lenses_of(positions.checked)
        if found is not None:
            document.lenses = positions.checked.text, found
        if document.lenses is None:
            return None
        text, found = document.lenses
        shown = lenses.shown(found, text, positions, commands=self._runs_commands)
        return shown.get(params.text_document.uri, [])

    def _refresh_lenses(self) -> None:
        """Have the client ask again for lenses, which may have changed without an edit of their document."""
        workspace = self.client.client_capabilities.workspace
        if workspace is not None and workspace.code_lens is not None and workspace.code_lens.refresh_support:
            self.client.workspace_code_lens_refresh(None)

    def _log(self, message: str, kind: types.MessageType) -> None:
        self.client.window_log_message(types.LogMessageParams(type=kind, message=f"gpusync: {message}"))


def _notebook_file(cells: Sequence[Cell]) -> str:
    """A notebook file with the text of cells, in which their numbers are those of the cells."""
    content: list[dict[str, Any]] = [
        {"cell_type": "code" if cell.is_code else "markdown", "source": cell.text, "metadata": {}} for cell in cells
    ]
    return json.dumps({"cells": content, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def _function(method: Any) -> Any:
    """A function in place of a method, because the library sets attributes of handlers."""
    if not inspect.iscoroutinefunction(method):
        return lambda params: method(params)

    async def handler(params: Any) -> Any:
        return await method(params)

    return handler


def _path_of(uri: str) -> str | None:
    """The path of a document, without symbolic links; None if it is no file."""
    path = uris.to_fs_path(uri)
    return None if path is None else os.path.realpath(path)
