"""Compile the native sources of the package into Python files that hold their machine code; `--check` compares instead.

usage: python docs/write_gate_code.py [--check]

pytest_gpusync/recorders/gate.c becomes gate_code.py beside it, and
pytest_gpusync/simulated/native_path/shortcut.cpp becomes shortcut_code.py.
Needs gcc, g++ and binutils on x86-64. Another version of gcc may write other instructions for the same source.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "pytest_gpusync"
GATE, SHORTCUT = PACKAGE / "recorders" / "gate.c", PACKAGE / "simulated" / "native_path" / "shortcut.cpp"
OPTIONS = (
    *("-O2", "-fPIC", "-ffreestanding", "-nostdlib", "-Wall", "-Wextra", "-Werror"),
    *("-fcf-protection=none", "-fno-stack-protector", "-fno-jump-tables"),
    *("-fno-tree-vectorize", "-fno-tree-loop-distribute-patterns"),
)
# No SSE: the callers' registers of that kind are left alone. No tables: nothing but .text is kept.
GATE_OPTIONS = ("-mno-sse", "-fno-asynchronous-unwind-tables")
# It catches exceptions, for which the runtime needs its tables.
SHORTCUT_OPTIONS = ("-std=c++17", "-mgeneral-regs-only", "-fexceptions", "-fno-rtti", "-fvisibility=hidden")
# What is filled in before the code may run, the tables of exceptions, the code, and a zero that ends the tables.
LAYOUT = """SECTIONS {
    . = 0;
    .all : {
        *(.slots) *(.data.rel.local.*) *(.gcc_except_table*) *(.text .text.*) . = ALIGN(8);
        frames = .; *(.eh_frame) QUAD(0)
    }
    /DISCARD/ : { *(.comment) *(.note*) *(.group) }
}
"""
SLOTS = ("context_slot", "begin_catch_slot", "end_catch_slot", "rethrow_slot", "resume_slot")
ENTRIES = ("compute", "view", "inspect", "frames", *SLOTS)
PERSONALITY = "__gxx_personality_v0"
LINE = 55
"""Bytes on a line of the file."""


def main() -> int:
    """Write the files, or compare them."""
    version = compiler()
    written = {
        GATE.with_name("gate_code.py"): render(GATE.name, gate(), version),
        SHORTCUT.with_name("shortcut_code.py"): render(SHORTCUT.name, *shortcut(), version),
    }
    if sys.argv[1:] != ["--check"]:
        for path, text in written.items():
            path.write_text(text, encoding="utf-8")
        return 0
    stale = [path.name for path, text in written.items() if path.read_text(encoding="utf-8") != text]
    for name in stale:
        print(f"{name} is not what its source compiles to here; run docs/write_gate_code.py", file=sys.stderr)
    return len(stale) > 0


def compiler() -> str:
    """Return gcc's version."""
    return output("gcc", "-dumpfullversion").strip()


def output(*command: str) -> str:
    """Run a command and return what it prints."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def gate() -> bytes:
    """Return the machine code of the gate; its first byte is where it is entered.

    Raises:
        RuntimeError: it refers to something outside of itself.
    """
    with tempfile.TemporaryDirectory() as folder:
        made, code = f"{folder}/gate.o", Path(folder, "gate.bin")
        output("gcc", *OPTIONS, *GATE_OPTIONS, "-c", str(GATE), "-o", made)
        listed = output("objdump", "-r", "-h", made)
        if "RELOCATION RECORDS" in listed or ".rodata" in listed:
            raise RuntimeError("gate.c needs a linker: it refers to data or functions outside of it")
        output("objcopy", "-O", "binary", "-j", ".text", made, str(code))
        return code.read_bytes()


def shortcut() -> tuple[bytes, dict[str, int]]:
    """Return the image of the shortcut, which may lie anywhere, and what lies where in it."""
    with tempfile.TemporaryDirectory() as folder:
        made, linked = f"{folder}/made.o", f"{folder}/linked"
        code, layout = Path(folder, "code"), Path(folder, "layout")
        layout.write_text(LAYOUT, encoding="utf-8")
        output("g++", *OPTIONS, *SHORTCUT_OPTIONS, "-c", str(SHORTCUT), "-o", made)
        # The one absolute address is filled in when the image is loaded.
        output("ld", "-T", str(layout), "--defsym", f"{PERSONALITY}=0", "-o", linked, made)
        output("objcopy", "-O", "binary", linked, str(code))
        symbols = (line.split() for line in output("nm", linked).splitlines())
        places = {name: int(address, 16) for address, _, name in symbols}
        return code.read_bytes(), {name: places[name] for name in (*ENTRIES, f"DW.ref.{PERSONALITY}")}


def render(source: str, code: bytes, *told: object) -> str:
    """Return the module that holds the code; `told` is the compiler's version, and before it what lies where, if that
    is to be known.
    """
    *places, version = told
    lines = "\n".join(f'    "{code[start : start + LINE].hex()}"' for start in range(0, len(code), LINE))
    held = "".join(f'    "{name}": {place},\n' for table in places for name, place in table.items())  # type: ignore[attr-defined]
    return (
        f'"""The machine code of {source}, for x86-64 Linux. Written by docs/write_gate_code.py, '
        f'with gcc {version}."""\n\n'
        f"from __future__ import annotations\n\nCODE = bytes.fromhex(\n{lines}\n)\n"
        + (f"PLACES = {{\n{held}}}\n" if held else "")
    )


if __name__ == "__main__":
    sys.exit(main())
