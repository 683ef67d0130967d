// Runs inside VS Code: the extension with a real server, in the folder that run.ts has opened.

import assert from "node:assert/strict";
import { join } from "node:path";
import * as vscode from "vscode";
import type { Api } from "../../src/extension";

const PATIENCE_MS = 60_000;

async function until<T>(what: string, value: () => T | undefined | Promise<T | undefined>): Promise<T> {
  const end = Date.now() + PATIENCE_MS;
  for (;;) {
    const found = await value();
    if (found !== undefined) {
      return found;
    }
    assert.ok(Date.now() < end, `waited for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

function codes(uri: vscode.Uri): string[] {
  return vscode.languages.getDiagnostics(uri).map((one) => {
    const code = typeof one.code === "object" ? one.code.value : one.code;
    return `${code}:${one.range.start.line + 1}`;
  });
}

async function shows(uri: vscode.Uri, ...want: string[]): Promise<void> {
  await until(`${want.join(", ")} in ${uri.path}; there is ${codes(uri).join(", ")}`, () =>
    JSON.stringify(codes(uri)) === JSON.stringify(want) ? true : undefined,
  );
}

async function api(): Promise<Api> {
  const extension = vscode.extensions.getExtension<Api>("pytest-gpusync.gpusync");
  assert.ok(extension !== undefined, "the extension is installed");
  return await extension.activate();
}

async function set(name: string, value: unknown): Promise<void> {
  await vscode.workspace.getConfiguration("gpusync").update(name, value, vscode.ConfigurationTarget.Workspace);
}

/** Each test has a name and a body. They run in this order, in one window. */
export const tests: [string, () => Promise<void>][] = [
  [
    "diagnostics follow the text in the editor",
    async () => {
      const root = vscode.workspace.workspaceFolders?.[0]?.uri.fsPath;
      assert.ok(root !== undefined);
      const document = await vscode.workspace.openTextDocument(join(root, "train.py"));
      await vscode.window.showTextDocument(document);
      await until("the server", async () => ((await api()).isRunning() ? true : undefined));
      await shows(document.uri, "GS503:5", "GS201:8");
      const edit = new vscode.WorkspaceEdit();
      edit.insert(document.uri, new vscode.Position(7, 0), "        total = float(loss)\n");
      await vscode.workspace.applyEdit(edit);
      await shows(document.uri, "GS503:5", "GS205:8", "GS201:9");
      assert.ok(document.isDirty);
    },
  ],
  [
    "hover, code lens and quick fix",
    async () => {
      const editor = vscode.window.activeTextEditor;
      assert.ok(editor !== undefined);
      const { uri } = editor.document;
      const at = editor.document.lineAt(4).text.indexOf(".to(") + 2;
      const place = new vscode.Position(4, at);
      const hovers = await vscode.commands.executeCommand<vscode.Hover[]>("vscode.executeHoverProvider", uri, place);
      const text = hovers.flatMap((one) => one.contents).map((one) => (one as vscode.MarkdownString).value).join("\n");
      assert.match(text, /GS503/);
      const lenses = await vscode.commands.executeCommand<vscode.CodeLens[]>("vscode.executeCodeLensProvider", uri, 10);
      const titles = lenses.map((one) => one.command?.title ?? "");
      assert.deepEqual(titles, ["every step: 3 waits"]);
      assert.equal(lenses[0]?.command?.command, "gpusync.showFindings");
      const actions = await vscode.commands.executeCommand<vscode.CodeAction[]>(
        "vscode.executeCodeActionProvider", uri, new vscode.Range(place, place), "quickfix.gpusync.safe",
      );
      assert.equal(actions.length, 1);
      assert.ok(actions[0]?.edit !== undefined);
      await vscode.workspace.applyEdit(actions[0].edit);
      assert.match(editor.document.getText(), /torch\.zeros\(3, device="cuda"\)/);
      await shows(uri, "GS205:8", "GS201:9");
      const { command, arguments: args } = lenses[0].command;
      await vscode.commands.executeCommand(command, ...(args ?? []));
    },
  ],
  [
    "a notebook has diagnostics in its cells",
    async () => {
      const root = vscode.workspace.workspaceFolders?.[0]?.uri;
      assert.ok(root !== undefined);
      const notebook = await vscode.workspace.openNotebookDocument(vscode.Uri.joinPath(root, "train.ipynb"));
      await vscode.window.showNotebookDocument(notebook);
      assert.equal(notebook.cellCount, 3);
      const last = notebook.cellAt(2).document.uri;
      await shows(last, "GS501:2", "GS201:5");
      assert.deepEqual(codes(notebook.cellAt(1).document.uri), []);
      const edit = new vscode.WorkspaceEdit();
      edit.insert(last, new vscode.Position(4, 0), "    total = float(loss)\n");
      await vscode.workspace.applyEdit(edit);
      await shows(last, "GS501:2", "GS205:5", "GS201:6");
    },
  ],
  [
    "a command that is not found is said with the remedy, and a corrected setting starts the server",
    async () => {
      const gpusync = await api();
      await set("command", ["/nowhere/gpusync"]);
      const problem = await until("the problem", () => gpusync.problem());
      assert.match(problem, /^\/nowhere\/gpusync was not found \(from the setting gpusync\.command\)\. Install it with pip install/);
      assert.ok(!gpusync.isRunning());
      await set("command", undefined);
      await until("the server", () => (gpusync.isRunning() ? true : undefined));
      assert.equal(gpusync.problem(), undefined);
    },
  ],
  [
    "the restart command starts a new server",
    async () => {
      const gpusync = await api();
      await vscode.commands.executeCommand("gpusync.restart");
      assert.ok(gpusync.isRunning());
      const shown = (): boolean => vscode.languages.getDiagnostics().some(([, own]) => own.length > 0);
      await until("diagnostics after the restart", () => (shown() ? true : undefined));
    },
  ],
];
