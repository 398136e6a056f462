"""Deduplication on Ray gives what it gives in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.stages.deduplication import SemanticDeduplicationWorkflow
from tests.unit.pipeline.jobs import here
from tests.unit.stages.deduplication.jobs import KINDS, documents, kept_ids, write_files

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def workflow(kind: str, folder: Path) -> Any:
    options = {"input_path": str(folder / "in"), "output_path": str(folder / "out"), "perform_removal": True}
    if kind == "semantic":
        return SemanticDeduplicationWorkflow(eps=0.05, **options)  # type: ignore[arg-type]
    return KINDS[kind](**options)


@pytest.mark.parametrize("kind", ["exact", "fuzzy", "semantic"])
def test_the_same_survivors_on_ray(ray_cluster: str, tmp_path: Path, kind: str) -> None:
    from gristmill.backends.ray_data import RayDataExecutor

    rng = np.random.default_rng(1)
    words = rng.integers(0, 500, (30, 40))
    chosen = rng.integers(0, 30, 90)
    rows = documents(" ".join(map(str, words[at])) for at in chosen)
    for row, at in zip(rows, chosen, strict=True):
        row["embeddings"] = (words[at] - 250 + rng.integers(0, 20, 40)).tolist()
    files = {f"{name}.jsonl": rows[at : at + 30] for name, at in (("a", 0), ("b", 30), ("c", 60))}
    found = []
    for name, executor in (("local", here()), ("ray", RayDataExecutor())):
        write_files(tmp_path / name, files)
        result = workflow(kind, tmp_path / name).run(executor=executor, progress=False)
        found.append((kept_ids(tmp_path / name), result.get_metadata("num_removed")))
    assert found[0] == found[1]
    assert found[0][1] > 40
