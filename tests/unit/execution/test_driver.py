"""When a partition is complete, whatever the order in which its tasks end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.execution.driver import TaskTree
from gristmill.tracking.origins import Step


@st.composite
def leaves(draw: st.DrawFn, depth: int = 0) -> list[tuple[Step, ...]]:
    """The paths of all leaves of a random tree."""
    children = draw(st.integers(0, 4)) if depth < 3 else 0
    if not children:
        return [()]
    found: list[tuple[Step, ...]] = []
    for index in range(children):
        step = Step(index, last=index == children - 1)
        found.extend((step, *path) for path in draw(leaves(depth + 1)))
    return found


@given(leaves().flatmap(st.permutations))
def test_it_is_complete_with_its_last_leaf_and_not_before(paths: list[tuple[Step, ...]]) -> None:
    tree = TaskTree()
    assert [tree.close(path) for path in paths] == [False] * (len(paths) - 1) + [True]


def test_a_leaf_cannot_end_twice() -> None:
    tree = TaskTree()
    tree.close((Step(0, last=False),))
    with pytest.raises(ValueError, match="already ended"):
        tree.close((Step(0, last=False),))
