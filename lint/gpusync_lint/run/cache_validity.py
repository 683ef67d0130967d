"""The parts of a stored document that are still valid: what has changed since it was written, and what that affects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusync_lint.files.discovery import read

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpusync_lint.files.discovery import Listed
    from gpusync_lint.model.findings import Source
    from gpusync_lint.project import partition
    from gpusync_lint.project.outline import Outline
    from gpusync_lint.run.cache_file import Document

_UNCERTAIN = 2_000_000_000
"""The number of nanoseconds before a document is written in which a change may not have changed the time of a file."""


def text_digest(text: str) -> str:
    """The digest of a text."""
    from hashlib import blake2b  # loads OpenSSL, which a run without changes does not need

    return blake2b(text.encode(errors="surrogatepass"), digest_size=12).hexdigest()


def outline_digest(source: Source, imported: partition.Imports) -> str:
    """The digest of what decides which files are analyzed together with a file: imports, size, use of a device."""
    from gpusync_lint.project import partition
    from gpusync_lint.project.outline import weight

    return text_digest(repr((imported, weight(source.text), partition.device_use(source, imported).value)))


class Changes:
    """The files that have changed since a document was written. Updates the times in the document."""

    def __init__(self, document: Document, listed: Sequence[Listed]) -> None:
        """Compare the files of a run with those of a document. Raises DamagedError."""
        self.texts: dict[int, Source] = {}
        """The files with a new text, by number."""
        self.has_new_times = False
        """Whether a file has a new time or size and the same text."""
        self.keeps_partition = [one.path for one in listed] == document.paths
        """Whether files are divided into units as before. If not, the comparison is not complete."""
        if self.keeps_partition:
            for number in _suspects(document, listed):
                self.keeps_partition = self._compare(document, number, listed[number])
                if not self.keeps_partition:
                    break

    def _compare(self, document: Document, number: int, listed: Listed) -> bool:
        """Compare the text of a file. Returns whether files are divided into units as before."""
        file = read(listed)
        if file is None:
            return False
        if text_digest(file.source.text) == document.digests[number]:
            document.mtimes[number], document.sizes[number] = listed.mtime, listed.size
            self.has_new_times = True
            return True
        self.texts[number] = file.source
        return keeps_partition(document, number, file.source)


def _suspects(document: Document, listed: Sequence[Listed]) -> Iterator[int]:
    """The numbers of the files whose text may have changed, by their times and sizes."""
    certain = document.written - _UNCERTAIN
    mtimes = [one.mtime for one in listed]
    sizes = [one.size for one in listed]
    if mtimes == document.mtimes and sizes == document.sizes and max(mtimes, default=0) < certain:
        return
    for number, (one, mtime, size) in enumerate(zip(listed, document.mtimes, document.sizes, strict=True)):
        if one.mtime != mtime or one.size != size or mtime >= certain:
            yield number


def keeps_partition(document: Document, number: int, source: Source) -> bool:
    """Whether files are divided into units as before if a file has a new text."""
    from gpusync_lint.project import partition

    outline = outline_digest(source, partition.imports(source.text))
    return document.units[number] >= 0 and outline == document.outlines[number]


def outdated_units(document: Document, changed: Mapping[int, Source]) -> Iterator[int]:
    """The units that contain a changed file, or that depend on a section that has changed."""
    from gpusync_lint.project.outline import Outline

    own = {document.units[file] for file in changed}
    outlines = {file: Outline(source) for file, source in changed.items()}
    for unit, depends in enumerate(document.dependencies):
        if unit in own:
            yield unit
        elif not changed.keys().isdisjoint(depends):
            rows = document.unit(unit).dependencies
            if any(outlines[file].digests(digests) != digests for file, digests in rows if file in outlines):
                yield unit


def unchanged_units(document: Document, units: Sequence[partition.Unit], sources: Sequence[Source]) -> list[int]:
    """By unit of a new partition, its number in a document; -1 if the unit or one of its dependencies has changed."""
    comparison = _Comparison(document, sources)
    return [comparison.number_of(unit) for unit in units]


class _Comparison:
    """Compares units of a new partition with those of a document."""

    def __init__(self, document: Document, sources: Sequence[Source]) -> None:
        self._document = document
        self._sources = sources
        self._places = {source.path: place for place, source in enumerate(sources)}
        numbers = {path: file for file, path in enumerate(document.paths)}
        self._files = [numbers.get(source.path, -1) for source in sources]
        """By index of a source, its number in the document; -1 for a new file."""
        self._is_same = [
            file >= 0 and text_digest(source.text) == document.digests[file]
            for file, source in zip(self._files, sources, strict=True)
        ]
        self._own = document.own()
        self._components = {
            component: sorted(file for part in parts for file in self._own[part])
            for component, parts in document.members().items()
        }
        self._outlines: dict[int, Outline] = {}

    def number_of(self, unit: partition.Unit) -> int:
        """The number of a unit in the document; -1 if it has changed."""
        if not all(self._is_same[place] for place in unit.indices):
            return -1
        number = self._document.units[self._files[unit.indices[0]]]
        if number < 0 or not self._has_same_files(unit, number):
            return -1
        dependencies = self._document.unit(number).dependencies
        return number if all(self._is_valid(file, digests) for file, digests in dependencies) else -1

    def _has_same_files(self, unit: partition.Unit, number: int) -> bool:
        row = self._document.unit(number)
        component = self._document.components[number]
        kind = (component >= 0, row.uses_device, row.parse_only)
        return (
            self._own[number] == self._numbers(unit.indices)
            and kind == (bool(unit.component), unit.uses_device, unit.parse_only)
            and sorted(row.without_framework) == self._numbers(unit.without_framework)
            and (component < 0 or self._components[component] == self._numbers(unit.component))
        )

    def _numbers(self, places: Iterable[int]) -> list[int]:
        return sorted(self._files[place] for place in places)

    def _is_valid(self, file: int, digests: dict[str, str]) -> bool:
        place = self._places.get(self._document.paths[file])
        if place is None:
            return False
        return self._is_same[place] or self._outline(place).digests(digests) == digests

    def _outline(self, place: int) -> Outline:
        from gpusync_lint.project.outline import Outline

        outline = self._outlines.get(place)
        if outline is None:
            outline = self._outlines[place] = Outline(self._sources[place])
        return outline
