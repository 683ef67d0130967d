"""The names of a function while it is interpreted, with branches that cost only what they change."""

from __future__ import annotations

from gpusync_lint.domain.lattice import UNKNOWN, Value, join


class Environment:
    """Names, and dotted paths such as `self.model`, with what they hold.

    A branch is run in place and rolled back: its changes come back as a small dictionary, so that a function with many
    branches and many names stays linear.
    """

    __slots__ = ("_owners", "_trail", "values")

    def __init__(self, values: dict[str, Value]) -> None:
        self.values = values
        self._owners: set[str] = set()
        """Names of which some attribute was assigned."""
        self._trail: list[tuple[str, Value | None]] = []

    def get(self, path: str) -> Value | None:
        """What a name or path holds here; None when it was not assigned here."""
        return self.values.get(path)

    def set(self, path: str, value: Value) -> None:
        """Assign, and forget what was known of the old object's attributes."""
        values = self.values
        if "." in path:
            self._owners.add(path[: path.index(".")])
        elif path in self._owners:
            prefix = path + "."
            for key in [key for key in values if key.startswith(prefix)]:
                self._trail.append((key, values.pop(key)))
        self._trail.append((path, values.get(path)))
        values[path] = value

    def set_name(self, label: str, value: Value) -> None:
        """Assign to a name, which is no path."""
        if label in self._owners:
            self.set(label, value)
            return
        values = self.values
        self._trail.append((label, values.get(label)))
        values[label] = value

    def mark(self) -> int:
        """A point to roll back to."""
        return len(self._trail)

    def rollback(self, mark: int) -> dict[str, Value]:
        """Undo everything since a mark; the values that the changed names had."""
        changed: dict[str, Value] = {}
        trail, values = self._trail, self.values
        if len(trail) == mark:
            return changed
        for path, old in reversed(trail[mark:]):
            if path not in changed:
                changed[path] = values.get(path, UNKNOWN)
            if old is None:
                values.pop(path, None)
            else:
                values[path] = old
        del trail[mark:]
        return changed

    def changes(self, mark: int) -> dict[str, Value]:
        """What changed since a mark, without undoing it."""
        return {path: self.values[path] for path, _ in self._trail[mark:] if path in self.values}

    def merge(self, branches: list[dict[str, Value]], exhaustive: bool) -> None:
        """Join the changes of branches into this environment; not exhaustive: none of them may have run."""
        values, trail = self.values, self._trail
        if len(branches) == 1:
            for path, value in branches[0].items():
                base = values.get(path)
                trail.append((path, base))
                values[path] = value if exhaustive or base is None else join(base, value)
            return
        paths = {path: None for branch in branches for path in branch}
        for path in paths:
            base = values.get(path)
            merged: Value | None = None if exhaustive else base
            for branch in branches:
                changed = branch.get(path, base)
                if changed is not None:
                    merged = changed if merged is None else join(merged, changed)
            if merged is not None:
                trail.append((path, base))
                values[path] = merged
