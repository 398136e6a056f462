"""Tells when all tasks that came from one partition have ended, in whatever order their ends become known."""

from __future__ import annotations

from dataclasses import dataclass, field

from gristmill.tasks.base import Step


@dataclass(slots=True)
class _Node:
    closed: bool = False
    last: int | None = None
    children: dict[int, _Node] = field(default_factory=dict)
    open_children: int = 0


class TaskTree:
    """The tasks of one partition. Children are numbered and the last one says so; a leaf is a task that has ended.

    Example:
        >>> tree = TaskTree()
        >>> tree.close((Step(1, last=True),))
        False
        >>> tree.close((Step(0, last=False),))
        True
    """

    def __init__(self) -> None:
        self._root = _Node()

    def close(self, path: tuple[Step, ...]) -> bool:
        """Note that the task at `path` has ended; True when with it the whole partition has.

        Raises:
            ValueError: The same task is said to have ended twice.
        """
        way = [self._root]
        node = self._root
        for step in path:
            if step.last:
                node.last = step.index
            if step.index not in node.children:
                node.children[step.index] = _Node()
                node.open_children += 1
            node = node.children[step.index]
            way.append(node)
        if node.closed:
            raise ValueError(f"Task {path} has ended before.")
        node.closed = True
        for parent in reversed(way[:-1]):
            parent.open_children -= 1
            complete = parent.last is not None and len(parent.children) == parent.last + 1 and not parent.open_children
            if not complete:
                return False
            parent.closed = True
            parent.children.clear()
            parent.last = None
        return self._root.closed
