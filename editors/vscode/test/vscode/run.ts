// Runs suite.ts in VS Code without a screen: code-server, which is VS Code's own workbench and extension host, with a
// headless Chromium as its window. The environment says where they are:
//
//   CODE_SERVER  the file out/node/entry.js of the package code-server
//   CHROMIUM     the browser; `chromium` if it is not set
//   PYTHON       the interpreter that has pytest-gpusync[server]; `python3` if it is not set

import { spawn } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

const EXTENSION = join(__dirname, "..", "..", "..");
const PATIENCE_MS = 180_000;
const TRAIN = `import torch

def train(model, loader, opt):
    for x in loader:
        loss = model(torch.zeros(3).to("cuda")).sum()
        loss.backward()
        opt.step()
        print(loss.item())
`;
const NOTEBOOK = {
  cells: [
    { cell_type: "markdown", metadata: {}, source: "# Training" },
    code("import torch\nmodel = torch.nn.Linear(2, 2).cuda()"),
    code("for x in loader:\n    loss = model(x.cuda()).sum()\n    loss.backward()\n    opt.step()\n    print(loss.item())"),
  ],
  metadata: { language_info: { name: "python" } },
  nbformat: 4,
  nbformat_minor: 5,
};

interface Result {
  name: string;
  ms: number;
  error: string | null;
}

function code(source: string): object {
  return { cell_type: "code", metadata: {}, outputs: [], execution_count: null, source };
}

/** An extension that runs the tests once VS Code has started, and writes their results. */
function installDriver(extensions: string, result: string): void {
  const folder = join(extensions, "driver");
  mkdirSync(folder, { recursive: true });
  const manifest = {
    name: "driver",
    publisher: "pytest-gpusync",
    version: "0.0.1",
    engines: { vscode: "^1.82.0" },
    main: "./driver.js",
    activationEvents: ["onStartupFinished"],
  };
  writeFileSync(join(folder, "package.json"), JSON.stringify(manifest));
  writeFileSync(
    join(folder, "driver.js"),
    `const { renameSync, writeFileSync } = require("node:fs");
    exports.activate = () => void run();
    async function run() {
      const results = [];
      try {
        for (const [name, body] of require(${JSON.stringify(join(__dirname, "suite.js"))}).tests) {
          const start = Date.now();
          const error = await body().then(() => null, (error) => String(error.stack ?? error));
          results.push({ name, ms: Date.now() - start, error });
        }
      } catch (error) {
        results.push({ name: "the suite", ms: 0, error: String(error.stack ?? error) });
      }
      const about = { version: require("vscode").version, app: require("vscode").env.appName, results };
      writeFileSync(${JSON.stringify(`${result}.part`)}, JSON.stringify(about));
      renameSync(${JSON.stringify(`${result}.part`)}, ${JSON.stringify(result)});
    }`,
  );
}

async function freePort(): Promise<number> {
  return await new Promise((resolve) => {
    const server = createServer();
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address() as AddressInfo;
      server.close(() => resolve(port));
    });
  });
}

async function until(what: string, condition: () => boolean | Promise<boolean>, children: ChildProcess[]): Promise<void> {
  const end = Date.now() + PATIENCE_MS;
  while (!(await condition())) {
    const ended = children.find((child) => child.exitCode !== null);
    if (Date.now() > end || ended !== undefined) {
      throw new Error(ended === undefined ? `waited for ${what}` : `${ended.spawnfile} ended before ${what}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}

async function main(): Promise<number> {
  const entry = process.env.CODE_SERVER;
  if (entry === undefined || !existsSync(entry)) {
    console.error("CODE_SERVER must be the path of out/node/entry.js of the npm package code-server");
    return 2;
  }
  const scratch = mkdtempSync(join(tmpdir(), "gpusync-vscode-"));
  const children: ChildProcess[] = [];
  const log: string[] = [];
  try {
    const [data, extensions, project] = ["data", "extensions", "project"].map((name) => join(scratch, name)) as [string, string, string];
    const result = join(scratch, "result.json");
    mkdirSync(join(data, "User"), { recursive: true });
    mkdirSync(project);
    writeFileSync(join(project, "train.py"), TRAIN);
    writeFileSync(join(project, "train.ipynb"), JSON.stringify(NOTEBOOK));
    writeFileSync(join(data, "User", "settings.json"), JSON.stringify({ "gpusync.interpreter": process.env.PYTHON ?? "python3" }));
    installDriver(extensions, result);
    const installed = join(extensions, "gpusync");
    mkdirSync(installed);
    cpSync(join(EXTENSION, "package.json"), join(installed, "package.json"));
    cpSync(join(EXTENSION, "out"), join(installed, "out"), { recursive: true });
    symlinkSync(join(EXTENSION, "node_modules"), join(installed, "node_modules"));
    const port = await freePort();
    const start = (program: string, args: string[]): void => {
      const child = spawn(program, args, { stdio: ["ignore", "pipe", "pipe"], env: { ...process.env, VSCODE_IPC_HOOK_CLI: "" }, detached: true });
      child.stdout.on("data", (text: Buffer) => log.push(text.toString()));
      child.stderr.on("data", (text: Buffer) => log.push(text.toString()));
      children.push(child);
    };
    const options = ["--auth", "none", "--bind-addr", `127.0.0.1:${port}`, "--user-data-dir", data, "--extensions-dir", extensions];
    start(process.execPath, [entry, ...options, "--disable-telemetry", "--disable-update-check", "--disable-workspace-trust", project]);
    const address = `http://127.0.0.1:${port}/`;
    await until("code-server", async () => await fetch(`${address}healthz`).then((one) => one.ok, () => false), children);
    start(process.env.CHROMIUM ?? "chromium", [
      "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-port=0",
      `--user-data-dir=${join(scratch, "browser")}`, `${address}?folder=${encodeURIComponent(project)}`,
    ]);
    await until("the results of the tests", () => existsSync(result), children);
    const { version, app, results } = JSON.parse(readFileSync(result, "utf8")) as { version: string; app: string; results: Result[] };
    console.log(`VS Code ${version} (${app})`);
    for (const { name, ms, error } of results) {
      console.log(`${error === null ? "ok" : "FAILED"} ${name} (${ms} ms)${error === null ? "" : `\n${error}`}`);
    }
    return results.length > 0 && results.every(({ error }) => error === null) ? 0 : 1;
  } catch (error) {
    console.error(`${log.join("").split("\n").slice(-40).join("\n")}\n${String(error)}`);
    return 1;
  } finally {
    for (const child of children) {
      if (child.pid !== undefined && child.exitCode === null) {
        process.kill(-child.pid, "SIGKILL"); // its own processes end with it
      }
    }
    await new Promise((resolve) => setTimeout(resolve, 500));
    rmSync(scratch, { recursive: true, force: true, maxRetries: 5 });
  }
}

void main().then((status) => process.exit(status));
