"""Deduplication from and to a store that is not the local disk."""

from __future__ import annotations

import json

import fsspec
import pytest

from gristmill.stages.deduplication import ExactDeduplicationWorkflow, FuzzyDeduplicationWorkflow
from tests.unit.pipeline.jobs import here
from tests.unit.stages.deduplication.jobs import documents


@pytest.mark.parametrize("kind", [ExactDeduplicationWorkflow, FuzzyDeduplicationWorkflow])
def test_urls_in_and_out(kind: type) -> None:
    store = fsspec.filesystem("memory")
    name = kind.__name__
    text = "some words that are the same in two documents of this store"
    lines = "".join(json.dumps(row) + "\n" for row in documents([text, "other", text]))
    store.pipe(f"/{name}/in/a.jsonl", lines.encode())
    workflow = kind(input_path=f"memory://{name}/in", output_path=f"memory://{name}/out", perform_removal=True)
    result = workflow.run(executor=here())
    assert result.get_metadata("num_removed") == 1
    kept = store.cat(f"/{name}/out/a.jsonl").decode().splitlines()
    assert [json.loads(line)["id"] for line in kept] == ["d0", "d1"]
    assert store.exists(f"/{name}/out.gristmill/deduplication.json")
