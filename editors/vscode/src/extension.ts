// The extension: it starts `gpusync server` and connects VS Code to it.

import * as vscode from "vscode";
import { CloseAction, ErrorAction, LanguageClient, State } from "vscode-languageclient/node";
import type { LanguageClientOptions, Location, Position, ServerOptions } from "vscode-languageclient/node";
import { problemOf, serverCommand } from "./command";
import type { ServerCommand, Settings } from "./command";

const PYTHON_EXTENSION = "ms-python.python";
const MAX_RESTARTS = 4;
const RESTART_WINDOW_MS = 180_000;

/** What tests and other extensions can ask for. */
export interface Api {
  /** Whether the server runs. */
  isRunning(): boolean;
  /** The problem that was shown last, if the server does not run. */
  problem(): string | undefined;
}

interface PythonApi {
  environments: {
    getActiveEnvironmentPath(resource?: vscode.Uri): { path: string };
    resolveEnvironment(path: { path: string }): Promise<{ executable: { uri?: vscode.Uri } } | undefined>;
    onDidChangeActiveEnvironmentPath: vscode.Event<unknown>;
  };
}

class Extension implements Api {
  private client: LanguageClient | undefined;
  private lastProblem: string | undefined;
  private pending: Promise<void> = Promise.resolve();
  private readonly log = vscode.window.createOutputChannel("gpusync", { log: true });

  constructor(private readonly context: vscode.ExtensionContext) {
    context.subscriptions.push(
      this.log,
      vscode.commands.registerCommand("gpusync.restart", async () => this.restart()),
      vscode.commands.registerCommand("gpusync.showLog", () => this.log.show()),
      vscode.commands.registerCommand("gpusync.showFindings", showFindings),
      vscode.workspace.onDidChangeConfiguration((event) => {
        const changed = ["command", "interpreter", "arguments"].some((name) => event.affectsConfiguration(`gpusync.${name}`));
        if (changed) {
          void this.restart();
        }
      }),
    );
  }

  isRunning(): boolean {
    return this.client?.state === State.Running;
  }

  problem(): string | undefined {
    return this.lastProblem;
  }

  /** Start the server, or start it again. Calls are carried out one after the other. */
  async restart(): Promise<void> {
    this.pending = this.pending.then(async () => {
      await this.stop();
      await this.start();
    });
    await this.pending;
  }

  async stop(): Promise<void> {
    const client = this.client;
    this.client = undefined;
    await client?.dispose();
  }

  private async start(): Promise<void> {
    const command = serverCommand(settings(), await this.selectedInterpreter());
    const folder = vscode.workspace.workspaceFolders?.[0]?.uri.fsPath;
    this.log.info(`${[command.program, ...command.args].join(" ")} (from ${command.from})`);
    this.lastProblem = await problemOf(command, folder);
    if (this.lastProblem !== undefined) {
      this.report(this.lastProblem);
      return;
    }
    const client = new LanguageClient("gpusync", "gpusync", serverOptions(command, folder), this.clientOptions());
    this.client = client;
    try {
      await client.start();
    } catch (error) {
      this.lastProblem = `The server did not start: ${error instanceof Error ? error.message : String(error)}`;
      this.report(this.lastProblem);
    }
  }

  private clientOptions(): LanguageClientOptions {
    const restarts: number[] = [];
    return {
      documentSelector: [
        { scheme: "file", language: "python" },
        { scheme: "file", pattern: "**/*.ipynb" },
      ],
      outputChannel: this.log,
      traceOutputChannel: this.log,
      initializationOptions: { showFindings: true },
      synchronize: { fileEvents: vscode.workspace.createFileSystemWatcher("**/{*.py,*.ipynb,pyproject.toml}") },
      errorHandler: {
        error: () => ({ action: ErrorAction.Continue }),
        closed: () => {
          const now = Date.now();
          restarts.push(now);
          if (restarts.length > MAX_RESTARTS && now - (restarts.shift() ?? 0) < RESTART_WINDOW_MS) {
            this.lastProblem = "The server ended several times within a few minutes and is not started again.";
            this.report(this.lastProblem);
            return { action: CloseAction.DoNotRestart, handled: true };
          }
          this.log.warn("The server ended; it is started again.");
          return { action: CloseAction.Restart, handled: true };
        },
      },
    };
  }

  private report(problem: string): void {
    this.log.error(problem);
    void vscode.window.showErrorMessage(`gpusync: ${problem}`, "Open Settings", "Show Log", "Try Again").then((choice) => {
      if (choice === "Open Settings") {
        void vscode.commands.executeCommand("workbench.action.openSettings", "gpusync");
      } else if (choice === "Show Log") {
        this.log.show();
      } else if (choice === "Try Again") {
        void this.restart();
      }
    });
  }

  /** The interpreter that the Python extension has selected; undefined without that extension or without a choice. */
  private async selectedInterpreter(): Promise<string | undefined> {
    const python = vscode.extensions.getExtension<PythonApi>(PYTHON_EXTENSION);
    if (python === undefined) {
      return undefined;
    }
    try {
      const { environments } = await python.activate();
      this.watch(environments);
      const active = environments.getActiveEnvironmentPath(vscode.workspace.workspaceFolders?.[0]?.uri);
      return (await environments.resolveEnvironment(active))?.executable.uri?.fsPath;
    } catch (error) {
      this.log.warn(`The Python extension does not say which interpreter is selected: ${String(error)}`);
      return undefined;
    }
  }

  private isWatching = false;

  private watch(environments: PythonApi["environments"]): void {
    if (!this.isWatching) {
      this.isWatching = true;
      this.context.subscriptions.push(environments.onDidChangeActiveEnvironmentPath(() => void this.restart()));
    }
  }
}

function settings(): Settings {
  const values = vscode.workspace.getConfiguration("gpusync");
  return {
    command: values.get<string[]>("command", []),
    interpreter: values.get<string>("interpreter", ""),
    arguments: values.get<string[]>("arguments", []),
  };
}

function serverOptions(command: ServerCommand, folder: string | undefined): ServerOptions {
  return { command: command.program, args: command.args, options: { cwd: folder } };
}

/** The command of a code lens: the findings in a function, as references. */
async function showFindings(uri: string, position: Position, locations: Location[]): Promise<void> {
  const range = ({ start, end }: Location["range"]): vscode.Range =>
    new vscode.Range(start.line, start.character, end.line, end.character);
  await vscode.commands.executeCommand(
    "editor.action.showReferences",
    vscode.Uri.parse(uri),
    new vscode.Position(position.line, position.character),
    locations.map((one) => new vscode.Location(vscode.Uri.parse(one.uri), range(one.range))),
  );
}

let extension: Extension | undefined;

export async function activate(context: vscode.ExtensionContext): Promise<Api> {
  extension = new Extension(context);
  void extension.restart();
  return extension;
}

export async function deactivate(): Promise<void> {
  await extension?.stop();
}
