"""An editor for tests of the language server: a real client over standard input and output."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

from lsprotocol import types
from pygls.lsp.client import LanguageClient

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

PATIENCE = 30.0
"""Seconds that a test waits for a message; machines that run tests are busy."""


class Editor:
    def __init__(self) -> None:
        self.client = LanguageClient("test editor", "1")
        self.published: dict[str, types.PublishDiagnosticsParams] = {}
        self.on_published: Callable[[types.PublishDiagnosticsParams], object] = lambda params: None
        self.messages: list[str] = []
        self._news = asyncio.Event()
        self.client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)(lambda params: self._take(params))
        self.client.feature(types.WINDOW_LOG_MESSAGE)(lambda params: self._note(params.message))
        self.client.feature(types.WINDOW_SHOW_MESSAGE)(lambda params: self._note(params.message))
        self.client.feature(types.PROGRESS)(lambda params: self._work(params))
        self.client.feature(types.WINDOW_WORK_DONE_PROGRESS_CREATE)(lambda params: None)
        self.client.feature(types.WORKSPACE_CODE_LENS_REFRESH)(lambda params: self._refresh_lenses())
        self.lens_refreshes = 0
        self.running: dict[int | str, str | None] = {}
        """The work in progress that the server shows, by token, with its message."""
        self.finished = 0
        """How much of it has ended."""
        self._versions: dict[str, int] = {}

    def _refresh_lenses(self) -> None:
        self.lens_refreshes += 1
        self._news.set()

    def _work(self, params: types.ProgressParams) -> None:
        if isinstance(params.value, dict) and params.value["kind"] == "begin":
            self.running[params.token] = params.value.get("message")
        elif isinstance(params.value, dict) and params.value["kind"] == "end":
            del self.running[params.token]
            self.finished += 1
        self._news.set()

    def _take(self, params: types.PublishDiagnosticsParams) -> None:
        self.published[params.uri] = params
        self.on_published(params)
        self._news.set()

    def _note(self, message: str) -> None:
        self.messages.append(message)
        self._news.set()

    async def until(self, condition: Callable[[], Any]) -> None:
        async def wait() -> None:
            while not condition():
                self._news.clear()
                await self._news.wait()

        try:
            await asyncio.wait_for(wait(), PATIENCE)
        except asyncio.TimeoutError:
            shown = {uri: self.places(uri) for uri in self.published}
            raise AssertionError(f"waited {PATIENCE} s; shown: {shown}; messages: {self.messages}") from None

    async def news(self, seconds: float) -> bool:
        """Wait for the next message. Returns whether one has come."""
        self._news.clear()
        try:
            await asyncio.wait_for(self._news.wait(), seconds)
        except asyncio.TimeoutError:
            return False
        return True

    async def start(
        self, *roots: Path, options: tuple[str, ...] = (), settings: dict[str, bool] | None = None
    ) -> types.InitializeResult:
        await self.client.start_io(sys.executable, "-m", "pytest_gpusync", "server", *options)
        folders = [types.WorkspaceFolder(uri=root.as_uri(), name=root.name) for root in roots]
        window = types.WindowClientCapabilities(work_done_progress=True)
        lenses = types.CodeLensWorkspaceClientCapabilities(refresh_support=True)
        workspace = types.WorkspaceClientCapabilities(code_lens=lenses)
        capabilities = types.ClientCapabilities(window=window, workspace=workspace)
        result = await self.client.initialize_async(
            types.InitializeParams(
                capabilities=capabilities, workspace_folders=folders, initialization_options=settings
            )
        )
        self.client.initialized(types.InitializedParams())
        return result

    async def stop(self) -> int | None:
        await self.client.shutdown_async(None)
        self.client.exit(None)
        process = self.client._server
        assert process is not None
        await asyncio.wait_for(process.wait(), PATIENCE)
        return process.returncode

    def open(self, path: Path, text: str | None = None) -> str:
        uri = path.as_uri()
        self._versions[uri] = 1
        content = path.read_text() if text is None else text
        item = types.TextDocumentItem(uri=uri, language_id="python", version=1, text=content)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(text_document=item))
        return uri

    def change(self, uri: str, text: str) -> None:
        self._versions[uri] += 1
        self.client.text_document_did_change(
            types.DidChangeTextDocumentParams(
                text_document=types.VersionedTextDocumentIdentifier(uri=uri, version=self._versions[uri]),
                content_changes=[types.TextDocumentContentChangeWholeDocument(text=text)],
            )
        )

    def save(self, uri: str) -> None:
        document = types.TextDocumentIdentifier(uri=uri)
        self.client.text_document_did_save(types.DidSaveTextDocumentParams(text_document=document))

    def diagnostics(self, uri: str) -> list[types.Diagnostic] | None:
        """Those of the current version; None if they were not published yet."""
        params = self.published.get(uri)
        return None if params is None or params.version != self._versions[uri] else list(params.diagnostics)

    def places(self, uri: str) -> list[tuple[object, int]] | None:
        """Code and line, from 1, of each diagnostic of the current version."""
        found = self.diagnostics(uri)
        return None if found is None else [(one.code, one.range.start.line + 1) for one in found]

    async def actions(
        self, uri: str, line: int, character: int, only: list[str] | None = None
    ) -> list[types.CodeAction]:
        position = types.Position(line=line - 1, character=character)
        found = await self.client.text_document_code_action_async(
            types.CodeActionParams(
                text_document=types.TextDocumentIdentifier(uri=uri),
                range=types.Range(start=position, end=position),
                context=types.CodeActionContext(diagnostics=[], only=only),
            )
        )
        return [one for one in found or () if isinstance(one, types.CodeAction)]

    async def hover(self, uri: str, line: int, character: int) -> str:
        found = await self.client.text_document_hover_async(
            types.HoverParams(
                text_document=types.TextDocumentIdentifier(uri=uri),
                position=types.Position(line=line - 1, character=character),
            )
        )
        return "" if found is None else found.contents.value

    async def lenses(self, uri: str) -> list[tuple[int, str]]:
        """Line, from 1, and text of each lens."""
        document = types.TextDocumentIdentifier(uri=uri)
        found = await self.client.text_document_code_lens_async(types.CodeLensParams(text_document=document))
        return [(one.range.start.line + 1, one.command.title) for one in found or ()]

    def open_notebook(self, path: Path, cells: list[tuple[str, str]]) -> list[str]:
        """Open a notebook of cells, each with its language and text. Returns their addresses."""
        uri = path.as_uri()
        made = [
            self._cell(f"{uri.replace('file:', 'vscode-notebook-cell:')}#{index}", *cell)
            for index, cell in enumerate(cells)
        ]
        self._versions[uri] = 1
        self.client.notebook_document_did_open(
            types.DidOpenNotebookDocumentParams(
                notebook_document=types.NotebookDocument(
                    uri=uri, notebook_type="jupyter-notebook", version=1, cells=[cell for cell, _ in made]
                ),
                cell_text_documents=[item for _, item in made],
            )
        )
        return [item.uri for _, item in made]

    def _cell(self, uri: str, language: str, text: str) -> tuple[types.NotebookCell, types.TextDocumentItem]:
        self._versions[uri] = 1
        kind = types.NotebookCellKind.Markup if language == "markdown" else types.NotebookCellKind.Code
        item = types.TextDocumentItem(uri=uri, language_id=language, version=1, text=text)
        return types.NotebookCell(kind=kind, document=uri), item

    def _change_notebook(self, path: Path, cells: types.NotebookDocumentCellChanges) -> None:
        uri = path.as_uri()
        self._versions[uri] += 1
        self.client.notebook_document_did_change(
            types.DidChangeNotebookDocumentParams(
                notebook_document=types.VersionedNotebookDocumentIdentifier(version=self._versions[uri], uri=uri),
                change=types.NotebookDocumentChangeEvent(cells=cells),
            )
        )

    def change_cell(self, path: Path, cell: str, text: str) -> None:
        self._change_cell(path, cell, types.TextDocumentContentChangeWholeDocument(text=text))

    def change_cell_part(self, path: Path, cell: str, line: int, start: int, end: int, text: str) -> None:
        """Replace a part of a line, counted from 0, from a UTF-16 column to another."""
        where = types.Range(types.Position(line, start), types.Position(line, end))
        self._change_cell(path, cell, types.TextDocumentContentChangePartial(range=where, text=text))

    def _change_cell(self, path: Path, cell: str, change: types.TextDocumentContentChangeEvent) -> None:
        self._versions[cell] += 1
        document = types.VersionedTextDocumentIdentifier(uri=cell, version=self._versions[cell])
        changed = types.NotebookDocumentCellContentChanges(document, [change])
        self._change_notebook(path, types.NotebookDocumentCellChanges(text_content=[changed]))

    def insert_cell(self, path: Path, index: int, text: str) -> str:
        cell, item = self._cell(f"{path.as_uri().replace('file:', 'vscode-notebook-cell:')}#new", "python", text)
        structure = types.NotebookDocumentCellChangeStructure(
            array=types.NotebookCellArrayChange(start=index, delete_count=0, cells=[cell]), did_open=[item]
        )
        self._change_notebook(path, types.NotebookDocumentCellChanges(structure=structure))
        return item.uri

    def remove_cell(self, path: Path, index: int, uri: str) -> None:
        structure = types.NotebookDocumentCellChangeStructure(
            array=types.NotebookCellArrayChange(start=index, delete_count=1),
            did_close=[types.TextDocumentIdentifier(uri=uri)],
        )
        self._change_notebook(path, types.NotebookDocumentCellChanges(structure=structure))

    def close_notebook(self, path: Path, cells: list[str]) -> None:
        self.client.notebook_document_did_close(
            types.DidCloseNotebookDocumentParams(
                notebook_document=types.NotebookDocumentIdentifier(uri=path.as_uri()),
                cell_text_documents=[types.TextDocumentIdentifier(uri=uri) for uri in cells],
            )
        )


def edited(text: str, action: types.CodeAction, uri: str) -> str:
    """A text after the edits of an action."""
    lines = text.split("\n")
    for edit in sorted(action.edit.changes[uri], key=lambda one: (one.range.start.line, one.range.start.character))[
        ::-1
    ]:
        start, end = edit.range.start, edit.range.end
        before = "\n".join([*lines[: start.line], lines[start.line][: start.character]])
        after = "\n".join([lines[end.line][end.character :], *lines[end.line + 1 :]])
        lines = f"{before}{edit.new_text}{after}".split("\n")
    return "\n".join(lines)


def session(script: Callable[[Editor], Awaitable[None]]) -> None:
    """Run a script with an editor, and end its server."""

    async def run() -> None:
        editor = Editor()
        try:
            await script(editor)
        finally:
            process = editor.client._server
            if process is not None and process.returncode is None:
                process.kill()
                await process.wait()

    asyncio.run(run())
