"""Deduplication on Ray gives what it gives in this process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.pipeline.jobs import here
from tests.unit.stages.deduplication.jobs import KINDS, documents, kept_ids, write_files

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.mark.parametrize("kind", ["exact", "fuzzy"])
def test_the_same_survivors_on_ray(ray_cluster: str, tmp_path: Path, kind: str) -> None:
    from gristmill.backends.ray_data import RayDataExecutor

    rng = np.random.default_rng(1)
    texts = [" ".join(map(str, rng.integers(0, 500, 40))) for _ in range(30)]
    texts = [texts[at] for at in rng.integers(0, 30, 90)]
    files = {f"{name}.jsonl": documents(texts[at : at + 30], first=at) for name, at in (("a", 0), ("b", 30), ("c", 60))}
    found = []
    for name, executor in (("local", here()), ("ray", RayDataExecutor())):
        write_files(tmp_path / name, files)
        workflow = KINDS[kind](
            input_path=str(tmp_path / name / "in"), output_path=str(tmp_path / name / "out"), perform_removal=True
        )
        result = workflow.run(executor=executor, progress=False)
        found.append((kept_ids(tmp_path / name), result.get_metadata("num_removed")))
    assert found[0] == found[1]
    assert found[0][1] > 40
