"""The environment of a run: the values of names at the current point of a function.

A branch is interpreted in place and rolled back afterwards. All changes are logged on a trail, so the cost of a branch
depends on the number of names that it binds, not on the number of names in the function.
"""

from __future__ import annotations

from gpusync_lint.domain.lattice import join
from gpusync_lint.domain.values import UNKNOWN, Value


class Environment:
    """The values of names, and of dotted paths such as `self.model`."""

    __slots__ = ("_owners", "_trail", "carried", "values")

    def __init__(self, values: dict[str, Value]) -> None:
        self.values = values
        self.carried: dict[str, Value] = {}
        """By name that was not bound before a loop, the value that the iteration before bound.

        In the first iteration it has no value. So if only some branches of an `if` bind it, one of those is taken.
        """
        self._owners: set[str] = set()
        """The names that are the first word of a path that was bound."""
        self._trail: list[tuple[str, Value | None]] = []
        """The paths that were bound, in order, each with its value before; None if it had none."""

    def get(self, path: str) -> Value | None:
        """The value of a name or path; None if the function did not bind it."""
        return self.values.get(path)

    def set(self, path: str, value: Value) -> None:
        """Bind a name or path. Binding a name kills the paths that begin with it."""
        values = self.values
        if "." in path:
            self._owners.add(path[: path.index(".")])
        elif path in self._owners:
            prefix = path + "."
            for key in [key for key in values if key.startswith(prefix)]:
                self._trail.append((key, values.pop(key)))
        self._trail.append((path, values.get(path)))
        values[path] = value

    def set_name(self, name: str, value: Value) -> None:
        """Bind a name. Faster than `set`, for names without a dot."""
        if name in self._owners:
            self.set(name, value)
            return
        values = self.values
        self._trail.append((name, values.get(name)))
        values[name] = value

    def mark(self) -> int:
        """The current position on the trail, for `rollback` and `changes`."""
        return len(self._trail)

    def rollback(self, mark: int) -> dict[str, Value]:
        """Undo all changes since a mark. Returns the values that the changed paths had; unknown for killed ones."""
        changes: dict[str, Value] = {}
        trail, values = self._trail, self.values
        if len(trail) == mark:
            return changes
        for path, old in reversed(trail[mark:]):
            if path not in changes:
                changes[path] = values.get(path, UNKNOWN)
            if old is None:
                values.pop(path, None)
            else:
                values[path] = old
        del trail[mark:]
        return changes

    def changes(self, mark: int) -> dict[str, Value]:
        """The current values of the paths that were bound since a mark."""
        return {path: self.values[path] for path, _ in self._trail[mark:] if path in self.values}

    def merge(self, branches: list[dict[str, Value]], exhaustive: bool) -> None:
        """Join the changes of branches into the environment.

        Args:
            branches: the changes of each branch, as `rollback` returned them.
            exhaustive: whether one of the branches certainly ran.
        """
        values, trail = self.values, self._trail
        if len(branches) == 1:
            for path, value in branches[0].items():
                base = values.get(path)
                trail.append((path, base))
                values[path] = value if exhaustive or base is None else join(base, value)
            return
        for path in {path: None for branch in branches for path in branch}:
            base = values.get(path)
            merged = None if exhaustive else base
            unbound = base is not None and self.carried.get(path) is base
            for branch in branches:
                value_after = branch.get(path, None if unbound else base)
                if value_after is not None:
                    merged = value_after if merged is None else join(merged, value_after)
            if merged is not None:
                trail.append((path, base))
                values[path] = merged
