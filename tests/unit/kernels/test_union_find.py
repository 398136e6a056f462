"""Components, leaders and pairs against plain Python."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gristmill.kernels.union_find import group_pairs, join, leaders, settle

_EDGES = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=20)


def connected(count: int, firsts: Any, seconds: Any) -> Any:
    """For each node the lowest one of its component; the edges come in two parts."""
    parents, half = np.arange(count), len(firsts) // 2
    join(parents, firsts[:half], seconds[:half])
    join(parents, firsts[half:], seconds[half:])
    settle(parents)
    return parents


def sides(edges: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    pairs = np.array(edges, np.int64).reshape(-1, 2)
    return np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])


@given(_EDGES, st.randoms())
def test_components_are_those_of_a_search_for_any_order_of_edges(edges: list[tuple[int, int]], random: object) -> None:
    lowest = list(range(12))
    for _ in range(12):
        for a, b in edges:
            lowest[a] = lowest[b] = min(lowest[a], lowest[b])
    shuffled = list(edges)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert connected(12, *sides(edges)).tolist() == lowest
    assert connected(12, *sides(shuffled)).tolist() == lowest


@given(_EDGES, st.integers(0, 12))
def test_leaders_stay_and_all_others_are_joined_to_one_directly(edges: list[tuple[int, int]], cut: int) -> None:
    later = sorted({(max(edge), min(edge)) for edge in edges if edge[0] != edge[1]})
    chosen = np.arange(12)
    for first, end in ((0, cut), (cut, 12)):
        nodes, seconds = sides([edge for edge in later if first <= edge[0] < end])
        bounds = np.searchsorted(nodes, np.arange(first, end + 1))
        leaders(chosen, first, bounds, seconds, np.full(len(seconds), 0.9))
    for node, leader in enumerate(chosen.tolist()):
        assert leader == node or (chosen[leader] == leader and (node, leader) in later)
        if leader == node:
            assert all(chosen[other] != other for other in range(node) if (node, other) in later)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 40)), max_size=25, unique_by=lambda r: r[2])
)
def test_pairs_join_equal_contents_once_and_the_first_of_each_with_each_other(rows: list[tuple[int, int, int]]) -> None:
    # The lowest eight bits of a hash are its band; here all are in band 0.
    rows = sorted((group << 8, content, document) for group, content, document in rows)
    columns = np.array(rows, np.uint64).reshape(-1, 3).T
    firsts, seconds, equal = group_pairs(*(np.ascontiguousarray(one) for one in columns), 16)
    wanted = set()
    for _, members in itertools.groupby(rows, key=lambda row: row[0]):
        heads = []
        for _, same in itertools.groupby(members, key=lambda row: row[1]):
            head, *others = [row[2] for row in same]
            heads.append(head)
            wanted |= {(head, other, True) for other in others}
        wanted |= {(*sorted(pair), False) for pair in itertools.combinations(heads, 2)}
    found = list(zip(firsts.tolist(), seconds.tolist(), equal.tolist(), strict=True))
    assert len(found) == len(set(found))
    assert set(found) == wanted


def test_a_wide_group_gives_pairs_in_proportion() -> None:
    count = 10_000
    hashes, documents = np.zeros(count, np.uint64), np.arange(count, dtype=np.uint64)
    firsts, seconds, _ = group_pairs(hashes, documents, documents, 24)
    assert len(firsts) < 6 * count
    assert set(seconds[firsts == 0].tolist()) == set(range(1, count))


def test_a_million_copies_give_a_million_pairs() -> None:
    count = 1_000_000
    hashes, contents = np.zeros(count, np.uint64), np.ones(count, np.uint64)
    firsts, seconds, equal = group_pairs(hashes, contents, np.arange(count, dtype=np.uint64), 24)
    assert len(firsts) == count - 1
    assert equal.all()
    assert not firsts.any()
    assert (connected(count, firsts.astype(np.int64), seconds.astype(np.int64)) == 0).all()
