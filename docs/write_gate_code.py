"""Compile pytest_gpusync/recorders/gate.c and write its machine code to gate_code.py; `--check` compares instead.

usage: python docs/write_gate_code.py [--check]

Needs gcc and objcopy on x86-64. Another version of gcc may write other instructions for the same source.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "pytest_gpusync" / "recorders"
SOURCE, TARGET = FOLDER / "gate.c", FOLDER / "gate_code.py"
# No SSE: the callers' registers of that kind are left alone. No tables: nothing but .text is kept.
OPTIONS = (
    *("-O2", "-fPIC", "-ffreestanding", "-nostdlib", "-mno-sse", "-Wall", "-Wextra", "-Werror"),
    *("-fno-asynchronous-unwind-tables", "-fcf-protection=none", "-fno-stack-protector", "-fno-jump-tables"),
    *("-fno-tree-vectorize", "-fno-tree-loop-distribute-patterns"),
)
LINE = 55
"""Bytes on a line of the file."""


def main() -> int:
    """Write the file, or compare it."""
    text = render(compiled(), compiler())
    if sys.argv[1:] == ["--check"]:
        if TARGET.read_text(encoding="utf-8") == text:
            return 0
        print("gate_code.py is not what gate.c compiles to here; run docs/write_gate_code.py", file=sys.stderr)
        return 1
    TARGET.write_text(text, encoding="utf-8")
    return 0


def compiler() -> str:
    """Return gcc's version."""
    return subprocess.run(["gcc", "-dumpfullversion"], capture_output=True, text=True, check=True).stdout.strip()


def compiled() -> bytes:
    """Return the machine code; its first byte is where it is entered.

    Raises:
        RuntimeError: it refers to something outside of itself.
    """
    with tempfile.TemporaryDirectory() as folder:
        made, code = Path(folder, "gate.o"), Path(folder, "gate.bin")
        subprocess.run(["gcc", *OPTIONS, "-c", str(SOURCE), "-o", str(made)], check=True)
        listed = subprocess.run(["objdump", "-r", "-h", str(made)], capture_output=True, text=True, check=True).stdout
        if "RELOCATION RECORDS" in listed or ".rodata" in listed:
            raise RuntimeError("gate.c needs a linker: it refers to data or functions outside of it")
        subprocess.run(["objcopy", "-O", "binary", "-j", ".text", str(made), str(code)], check=True)
        return code.read_bytes()


def render(code: bytes, version: str) -> str:
    """Return the module that holds the code."""
    lines = "\n".join(f'    "{code[start : start + LINE].hex()}"' for start in range(0, len(code), LINE))
    return (
        '"""The machine code of gate.c, for x86-64 Linux. Written by docs/write_gate_code.py, '
        f'with gcc {version}."""\n\n'
        f"from __future__ import annotations\n\nCODE = bytes.fromhex(\n{lines}\n)\n"
    )


if __name__ == "__main__":
    sys.exit(main())
