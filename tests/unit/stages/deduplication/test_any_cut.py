"""The same survivors however files are listed and cut, and however many sorted runs a partition leaves."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.ledger.ask.ledger import Ledger
from gristmill.ledger.prove.verify import verify
from gristmill.ledger.record.layout import step_folder
from gristmill.ledger.record.manifest import Manifest
from gristmill.stages.deduplication import SemanticDeduplicationWorkflow
from tests.unit.pipeline.jobs import here, read_rows
from tests.unit.stages.deduplication.jobs import KINDS, write_files

SENTENCE = "the mill grinds every grain that the river brings to the wheel and none is lost on the way home"
WORDS = SENTENCE.split()

TEXTS = st.builds(
    lambda start, length, last: " ".join([*(WORDS * 3)[start : start + length], last]),
    st.integers(0, 4),
    st.integers(0, 45),
    st.sampled_from(["", "again", "x"]),
) | st.sampled_from(["", "  ", "!?", "word", None])


def rows_of(texts: list[str | None], first: int) -> list[dict[str, Any]]:
    vectors = [None if text is None else [float(text.count(letter)) for letter in "aeiountx"] for text in texts]
    return [
        {"id": f"d{number}", "text": text, "embeddings": vector}
        for number, text, vector in zip(itertools.count(first), texts, vectors, strict=False)
    ]


def removed_by(kind: str, files: list[str], output: Path, *, run_bytes: int | None = None, **cut: Any) -> list[Any]:
    """Every removed document with its survivor and similarity."""
    options = {"output_path": str(output), "perform_removal": True, **cut}
    workflow: Any
    if kind == "semantic":
        workflow = SemanticDeduplicationWorkflow(files, eps=0.02, **options)
    else:
        verify_by = {"verify": "cluster"} if kind == "cluster" else {}
        workflow = KINDS["exact" if kind == "exact" else "fuzzy"](input_path=files, **verify_by, **options)
    if run_bytes is not None:
        workflow.run_bytes = run_bytes
    workflow.run(executor=here())
    kept = {row["id"] for row in read_rows(output)}
    found = Ledger(str(output)).frame().select("id", "survivor", "similarity").sort("id").rows()
    assert kept.isdisjoint(document for document, _, _ in found)
    assert kept.issuperset(survivor for _, survivor, _ in found)
    return found


@pytest.mark.parametrize("kind", ["exact", "fuzzy", "cluster", "semantic"])
@given(
    files=st.lists(st.lists(TEXTS, min_size=1, max_size=8), min_size=1, max_size=4),
    seed=st.integers(0, 99),
    blocksize=st.sampled_from([300, 2000, "1MB"]),
    run_bytes=st.sampled_from([1, 500, None]),
)
@settings(max_examples=6)
def test_neither_listing_nor_cutting_changes_the_survivors(
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    files: list[list[str | None]],
    seed: int,
    blocksize: int | str,
    run_bytes: int | None,
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    first = itertools.accumulate((len(texts) for texts in files), initial=0)
    source = write_files(
        folder,
        {f"{number}.jsonl": rows_of(texts, at) for number, (texts, at) in enumerate(zip(files, first, strict=False))},
    )
    listed = sorted(map(str, source.iterdir()))
    shuffled = random.Random(seed).sample(listed, len(listed))
    wanted = removed_by(kind, listed, folder / "plain")
    assert removed_by(kind, shuffled, folder / "cut", input_blocksize=blocksize, run_bytes=run_bytes) == wanted


@pytest.mark.parametrize("kind", ["exact", "fuzzy", "cluster", "semantic"])
def test_partitions_of_several_sorted_runs_lose_nothing(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(3)
    texts: list[str | None] = [" ".join(rng.choice(WORDS, 30)) for _ in range(60)]
    texts = [texts[at] for at in rng.integers(0, 60, 200)]
    source = write_files(tmp_path, {"a.jsonl": rows_of(texts, 0)})
    wanted = removed_by(kind, [str(source)], tmp_path / "one")
    assert len(wanted) > 100
    small = {"run_bytes": 1, "read_kwargs": {"batch_bytes": 4000}}
    assert removed_by(kind, [str(source)], tmp_path / "many", **small) == wanted
    first = "vectors" if kind == "semantic" else "signatures"
    (entry,) = Manifest(step_folder(str(tmp_path / "many.gristmill" / "steps" / first))).load().values()
    assert len(entry.files) > 3
    assert verify(str(tmp_path / "many")).problems == []
