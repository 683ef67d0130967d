// Which command starts the server, and whether it can. Nothing here needs VS Code.

import { spawn } from "node:child_process";

export const INSTALL = 'pip install "pytest-gpusync[server]"';
const PATIENCE_MS = 30_000;

export interface Settings {
  command: string[];
  interpreter: string;
  arguments: string[];
}

export interface ServerCommand {
  program: string;
  args: string[];
  /** The setting or place that the command is from, as shown to the user. */
  from: string;
}

/** The command that starts the server. `selected` is the interpreter of the Python extension, if there is one. */
export function serverCommand(settings: Settings, selected: string | undefined): ServerCommand {
  const rest = ["server", ...settings.arguments];
  const [program, ...first] = settings.command;
  if (program !== undefined && program !== "") {
    return { program, args: [...first, ...rest], from: "the setting gpusync.command" };
  }
  if (settings.interpreter !== "") {
    return {
      program: settings.interpreter,
      args: ["-m", "pytest_gpusync", ...rest],
      from: "the setting gpusync.interpreter",
    };
  }
  if (selected !== undefined) {
    return { program: selected, args: ["-m", "pytest_gpusync", ...rest], from: "the selected Python interpreter" };
  }
  return { program: "gpusync", args: rest, from: "the PATH" };
}

/**
 * Why a command cannot start the server, in one line with the remedy; undefined if it can.
 *
 * The server is started without input: one that works ends with status 1 because no editor shut it down, and one that
 * lacks something ends with another status and says why.
 */
export async function problemOf(command: ServerCommand, cwd: string | undefined): Promise<string | undefined> {
  const choose = "choose the environment that has it with the setting gpusync.interpreter";
  return await new Promise((resolve) => {
    const process = spawn(command.program, command.args, { cwd, stdio: ["ignore", "ignore", "pipe"] });
    const timer = setTimeout(() => {
      process.kill();
      resolve(`${command.program} did not answer within ${PATIENCE_MS / 1000} s (from ${command.from}).`);
    }, PATIENCE_MS);
    let errors = "";
    process.stderr.setEncoding("utf8");
    process.stderr.on("data", (data: string) => {
      errors = (errors + data).slice(-10_000);
    });
    process.on("error", (error: NodeJS.ErrnoException) => {
      clearTimeout(timer);
      const why = error.code === "ENOENT" ? "was not found" : `cannot be started (${error.code ?? error.message})`;
      resolve(`${command.program} ${why} (from ${command.from}). Install it with ${INSTALL}, or ${choose}.`);
    });
    process.on("close", (code, signal) => {
      clearTimeout(timer);
      if (code === 0 || code === 1 && !/No module named/.test(errors)) {
        resolve(undefined);
        return;
      }
      const last = errors.trim().split("\n").at(-1) ?? "";
      if (/No module named '?pytest_gpusync/.test(last)) {
        resolve(`${command.program} has no gpusync (from ${command.from}). Run ${INSTALL} in its environment, or ${choose}.`);
        return;
      }
      const how = signal === null ? `status ${code}` : `signal ${signal}`;
      resolve(last !== "" ? last : `${command.program} ended with ${how} (from ${command.from}).`);
    });
  });
}
