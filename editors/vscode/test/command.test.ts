import assert from "node:assert/strict";
import { chmodSync, mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { INSTALL, problemOf, serverCommand } from "../src/command";

const NOTHING = { command: [], interpreter: "", arguments: [] };

function script(text: string): string {
  const path = join(mkdtempSync(join(tmpdir(), "gpusync-")), "program");
  writeFileSync(path, `#!/bin/sh\n${text}\n`);
  chmodSync(path, 0o755);
  return path;
}

async function problem(program: string): Promise<string | undefined> {
  return await problemOf({ program, args: ["server"], from: "a test" }, undefined);
}

test("the command is that of the settings, then the interpreter, then that of the Python extension, then the PATH", () => {
  const all = { command: ["uv", "run", "gpusync"], interpreter: "/env/bin/python", arguments: ["--observed", "run.json"] };
  const chosen = serverCommand(all, "/selected/python");
  assert.equal(chosen.program, "uv");
  assert.deepEqual(chosen.args, ["run", "gpusync", "server", "--observed", "run.json"]);
  const interpreter = serverCommand({ ...all, command: [] }, "/selected/python");
  assert.deepEqual([interpreter.program, ...interpreter.args.slice(0, 3)], ["/env/bin/python", "-m", "pytest_gpusync", "server"]);
  assert.equal(serverCommand(NOTHING, "/selected/python").program, "/selected/python");
  assert.deepEqual(serverCommand(NOTHING, undefined), { program: "gpusync", args: ["server"], from: "the PATH" });
});

test("a command that is not there is a message with the remedy", async () => {
  const text = await problem("/nowhere/gpusync");
  assert.ok(text !== undefined);
  assert.match(text, /^\/nowhere\/gpusync was not found \(from a test\)\. /);
  assert.ok(text.includes(INSTALL));
  assert.ok(text.includes("gpusync.interpreter"));
  assert.ok(!text.includes("\n"));
});

test("an interpreter without gpusync is a message with the remedy", async () => {
  const text = await problem(script("echo '/usr/bin/python: No module named pytest_gpusync' >&2; exit 1"));
  assert.match(text ?? "", /has no gpusync \(from a test\)\. Run pip install/);
});

test("what the server lacks is what it says itself", async () => {
  const said = "gpusync server: error: it needs pygls and lsprotocol; " + INSTALL;
  assert.equal(await problem(script(`echo '${said}' >&2; exit 2`)), said);
  assert.match((await problem(script("kill -9 $$"))) ?? "", /ended with signal SIGKILL/);
});

test("a server that ends because no editor has shut it down works", async () => {
  assert.equal(await problem(script("exit 1")), undefined);
});
