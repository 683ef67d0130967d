"""The names of a function while it is interpreted, with branches that cost only what they change."""

from __future__ import annotations

from gpusync_lint.values import UNKNOWN, Value, join


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
        if "." in path:
            self._owners.add(path[: path.index(".")])
        elif path in self._owners:
            prefix = path + "."
            for key in [key for key in self.values if key.startswith(prefix)]:
                self._trail.append((key, self.values.pop(key)))
        self._trail.append((path, self.values.get(path)))
        self.values[path] = value

    def mark(self) -> int:
        """A point to roll back to."""
        return len(self._trail)

    def rollback(self, mark: int) -> dict[str, Value]:
        """Undo everything since a mark; the values that the changed names had."""
        changed: dict[str, Value] = {}
        while len(self._trail) > mark:
            path, old = self._trail.pop()
            if path not in changed:
                changed[path] = self.values.get(path, UNKNOWN)
            if old is None:
                self.values.pop(path, None)
            else:
                self.values[path] = old
        return changed

    def changes(self, mark: int) -> dict[str, Value]:
        """What changed since a mark, without undoing it."""
        return {path: self.values[path] for path, _ in self._trail[mark:] if path in self.values}

    def merge(self, branches: list[dict[str, Value]], exhaustive: bool) -> None:
        """Join the changes of branches into this environment; not exhaustive: none of them may have run."""
        if not branches:
            return
        paths = {path: None for branch in branches for path in branch}
        for path in paths:
            base = self.values.get(path)
            merged: Value | None = None if exhaustive else base
            for branch in branches:
                value = branch.get(path, base)
                if value is not None:
                    merged = value if merged is None else join(merged, value)
            if merged is not None:
                self._trail.append((path, base))
                self.values[path] = merged
