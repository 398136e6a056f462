"""The report of a decontamination: each benchmark, the most contaminated items, and the documents that contain them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.stages.deduplication.decontamination.index import SEARCHED, TEMPLATE, TOO_SHORT, ItemList
from gristmill.stages.deduplication.removal import document_names
from gristmill.stages.deduplication.sorted_runs import RunFiles, column, open_run

MOST_SHOWN = 1000
"""Maximum number of items to list, the most contaminated first."""
_DOCUMENTS = 5
_UNSEARCHED = 20


def summarize(index: ItemList, pairs: RunFiles, partition_ids: Sequence[str]) -> dict[str, Any]:
    """The results by benchmark and by item, as plain values.

    Args:
        index: The items of the benchmarks.
        pairs: The documents and the items that they contain.
        partition_ids: The ids of the partitions by number, for documents without an id.
    """
    count = len(index.array("benchmark"))
    documents, best = np.zeros(count, np.int64), np.zeros(count)
    for items, shares in zip(pairs.parts("item"), pairs.parts("share"), strict=True):
        np.add.at(documents, items, 1)
        np.maximum.at(best, items, shares)
    found = np.flatnonzero(documents)
    shown = found[np.lexsort((found, -documents[found], -best[found]))][:MOST_SHOWN]
    return {
        "benchmarks": _benchmarks(index, documents, best),
        "items": _items(index, shown, documents, best, _examples(pairs, shown, partition_ids)),
        "items_not_shown": len(found) - len(shown),
    }


def _benchmarks(
    index: ItemList, documents: npt.NDArray[np.int64], best: npt.NDArray[np.float64]
) -> list[dict[str, Any]]:
    names = index.texts("names").to_pylist()
    home, status, rows = index.array("benchmark"), index.array("status"), index.array("row")

    def counts(which: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        return np.bincount(home[which], minlength=len(names))

    hit = documents > 0
    contaminated, total = counts(hit), np.bincount(home[hit], best[hit], minlength=len(names))
    by_status = {value: counts(status == value) for value in (SEARCHED, TOO_SHORT, TEMPLATE)}
    unsearched = np.flatnonzero(status != SEARCHED)
    unsearched = unsearched[np.argsort(home[unsearched], kind="stable")]
    bounds = np.searchsorted(home[unsearched], np.arange(len(names) + 1))
    result = []
    for number, name in enumerate(names):
        not_searched = unsearched[bounds[number] : bounds[number + 1]][:_UNSEARCHED]
        result.append(
            {
                "benchmark": name,
                "items": int(sum(found[number] for found in by_status.values())),
                "searched": int(by_status[SEARCHED][number]),
                "too_short": int(by_status[TOO_SHORT][number]),
                "only_templates": int(by_status[TEMPLATE][number]),
                "not_searched": rows[not_searched].tolist(),
                "contaminated": int(contaminated[number]),
                "mean_share": round(float(total[number] / max(1, contaminated[number])), 4),
            }
        )
    return result


def _items(
    index: ItemList,
    shown: npt.NDArray[np.int64],
    documents: npt.NDArray[np.int64],
    best: npt.NDArray[np.float64],
    examples: dict[int, list[dict[str, Any]]],
) -> list[dict[str, Any]]:
    names, ids, texts = index.item_names(shown), index.texts("id"), index.texts("text")
    return [
        {
            "item": name,
            "id": ids[item].as_py(),
            "text": texts[item].as_py(),
            "share": round(float(best[item]), 4),
            "documents": int(documents[item]),
            "found_in": examples.get(item, []),
        }
        for item, name in zip(shown.tolist(), names, strict=True)
    ]


def _examples(
    pairs: RunFiles, shown: npt.NDArray[np.int64], partition_ids: Sequence[str]
) -> dict[int, list[dict[str, Any]]]:
    """The first documents of each shown item."""
    found: dict[int, list[dict[str, Any]]] = {int(item): [] for item in shown}
    for file in pairs.files:
        table = open_run(file.path, storage_options=pairs.storage_options)
        items = column(table, "item")
        places = np.flatnonzero(np.isin(items, shown))
        places = places[first_of_each(items[places])]
        keys = column(table, "document")[places]
        names = document_names(keys, table.column("id").take(places).to_pylist(), partition_ids)
        passages, shares = table.column("passage").take(places).to_pylist(), column(table, "share")[places]
        for item, name, share, passage in zip(items[places].tolist(), names, shares.tolist(), passages, strict=True):
            if len(found[item]) < _DOCUMENTS:
                found[item].append({"document": name, "share": round(share, 4), "passage": passage})
    return found


def first_of_each(items: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The places of the first `_DOCUMENTS` of each item, in order."""
    order = np.argsort(items, kind="stable")
    ranked = items[order]
    begins = np.concatenate([[0], np.flatnonzero(ranked[1:] != ranked[:-1]) + 1]) if len(ranked) else np.zeros(0, int)
    rank = np.arange(len(ranked)) - np.repeat(begins, np.diff(np.append(begins, len(ranked))))
    return np.sort(order[rank < _DOCUMENTS])
