"""Build hooks: the native libraries of a wheel, and README.md as the long description of the package.

Without a compiler the wheel is pure Python, and works.

Each C or C++ file of pytest_gpusync becomes ``libgpusync_STEM.so`` beside it. An editable installation leaves the
libraries in the checkout; so does ``python hatch_build.py``, for work in a checkout that is not installed. Settings,
from the environment:

CC, CXX, CFLAGS, CXXFLAGS, LDFLAGS
    As usual. A cross compiler works: the wheel is tagged with the machine that the compiler builds for.
GPUSYNC_NATIVE=0
    Build the pure wheel, for platforms that have none of their own.
GPUSYNC_REQUIRE_NATIVE=1
    Fail where something cannot be compiled, as a release should.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
    from hatchling.metadata.plugin.interface import MetadataHookInterface
except ModuleNotFoundError:  # run by hand
    BuildHookInterface = MetadataHookInterface = object

ROOT = Path(__file__).parent
OPTIONS = ("-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wl,-z,relro,-z,now,-z,noexecstack")
LANGUAGES = {
    ".c": ("CC", ("cc", "gcc", "clang"), "CFLAGS", ("-std=c11",)),
    ".cpp": ("CXX", ("c++", "g++", "clang++"), "CXXFLAGS", ("-std=c++17", "-fno-rtti")),
}


class CustomBuildHook(BuildHookInterface):  # type: ignore[misc,valid-type]
    """Adds the libraries to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See hatchling. `version` is "editable" or "standard"."""
        self._folder = Path(tempfile.mkdtemp())
        machines = set()
        for source in sources():
            library = library_of(source)
            made = library if version == "editable" else self._folder / library.name
            try:
                machines.add(build(source, made))
            except (OSError, subprocess.CalledProcessError) as error:
                said = getattr(error, "stderr", None) or str(error)
                if os.environ.get("GPUSYNC_REQUIRE_NATIVE") == "1":
                    raise SystemExit(f"{source.name} was not compiled: {said}") from None
                reason = next((line for line in said.splitlines() if "error" in line), said.splitlines()[0])
                self.app.display_warning(f"built without {library.name}, which is optional: {reason}")
                continue
            if version != "editable":
                build_data["force_include"][str(made)] = str(library.relative_to(ROOT))
        if machines and version != "editable":
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-linux_{machines.pop()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """See hatchling."""
        shutil.rmtree(self._folder)


class CustomMetadataHook(MetadataHookInterface):  # type: ignore[misc,valid-type]
    """Adds README.md to the metadata, with links that work on a package index."""

    def update(self, metadata: dict[str, Any]) -> None:
        """See hatchling."""
        text = with_absolute_links((ROOT / "README.md").read_text(encoding="utf-8"), metadata["urls"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def with_absolute_links(readme: str, urls: dict[str, str]) -> str:
    """Make the links of README.md absolute: pages of docs/ lead to the site, other files to the repository.

    Args:
        readme: the text of README.md.
        urls: ``[project.urls]`` of pyproject.toml, with "Documentation" and "Source".
    """

    def absolute(match: re.Match[str]) -> str:
        path, hash_sign, anchor = match["link"].partition("#")
        if path.startswith("docs/"):
            page = re.sub(r"(?:(?:^|(?<=/))(?:index|README))?\.md$", "", path.removeprefix("docs/"))
            page += "/" if path.endswith(".md") and page and not page.endswith("/") else ""
            return f"]({urls['Documentation']}{page}{hash_sign}{anchor})"
        return f"]({urls['Source']}/blob/HEAD/{path}{hash_sign}{anchor})"

    return re.sub(r"\]\((?!https?://|#)(?P<link>[^)\s]+)\)", absolute, readme)


def sources() -> list[Path]:
    """The files to compile; none where the libraries are of no use."""
    if os.environ.get("GPUSYNC_NATIVE") == "0" or sys.platform != "linux":
        return []
    return sorted(path for path in (ROOT / "pytest_gpusync").rglob("*") if path.suffix in LANGUAGES)


def library_of(source: Path) -> Path:
    """Where the library of a source lies in a checkout."""
    return source.with_name(f"libgpusync_{source.stem}.so")


def build(source: Path, library: Path) -> str:
    """Compile `source`; returns the machine that the library is for, such as ``x86_64``.

    Raises:
        OSError: there is no compiler.
        subprocess.CalledProcessError: it failed.
    """
    variable, names, flags, options = LANGUAGES[source.suffix]
    compiler = shlex.split(os.environ.get(variable, "")) or shlex.split(sysconfig.get_config_var(variable) or "")
    if not compiler or (variable not in os.environ and shutil.which(compiler[0]) is None):
        compiler = [next((name for name in names if shutil.which(name)), names[0])]
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    command = [*compiler, *OPTIONS, *options, f'-DGPUSYNC_SOURCE="{digest}"', *shlex.split(os.environ.get(flags, ""))]
    unfinished = library.with_suffix(".unfinished")
    command += [source.name, "-o", str(unfinished), *shlex.split(os.environ.get("LDFLAGS", ""))]
    run(command, source.parent)
    unfinished.replace(library)
    return run([*compiler, "-dumpmachine"], source.parent).partition("-")[0]


def run(command: list[str], folder: Path) -> str:
    """Run a command in a folder and return what it prints."""
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    for path in sources():
        try:
            print(f"{library_of(path).relative_to(ROOT)}: {build(path, library_of(path))}")
        except (OSError, subprocess.CalledProcessError) as error:
            sys.exit(f"{path.name} was not compiled: {getattr(error, 'stderr', None) or error}")
