import assert from "node:assert/strict";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

const ROOT = join(__dirname, "..", "..");

interface Manifest {
  main: string;
  contributes: {
    commands: { command: string }[];
    configuration: { properties: Record<string, { default: unknown }> };
  };
}

const manifest = JSON.parse(readFileSync(join(ROOT, "package.json"), "utf8")) as Manifest;
const source = readFileSync(join(ROOT, "src", "extension.ts"), "utf8");

test("the manifest names the compiled extension, and commands that it registers", () => {
  assert.ok(existsSync(join(ROOT, manifest.main)));
  for (const { command } of manifest.contributes.commands) {
    assert.ok(source.includes(`registerCommand("${command}"`), command);
  }
});

test("README.md describes every setting and command", () => {
  const readme = readFileSync(join(ROOT, "README.md"), "utf8");
  const names = [...Object.keys(manifest.contributes.configuration.properties), ...manifest.contributes.commands.map((one) => one.command)];
  for (const name of names) {
    assert.ok(readme.includes(`\`${name}\``), name);
  }
});

test("the lock file names no registry", () => {
  assert.ok(!/"resolved"/.test(readFileSync(join(ROOT, "package-lock.json"), "utf8")));
});
