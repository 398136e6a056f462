"""A real kernel runs a real notebook: objects are displayed, and progress contains no escape codes."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import nbclient
import nbformat

CELLS = [
    """
import time
from gristmill.ledger import Ledger
from gristmill.pipeline import Pipeline
from gristmill.stages.base import ProcessingStage
from gristmill.stages.text.filters import ScoreFilter, WordCountFilter
from gristmill.stages.text.io import JsonlReader, JsonlWriter
from gristmill.tasks import DocumentBatch


class Slow(ProcessingStage[DocumentBatch, DocumentBatch]):
    name = "slow"

    def process(self, task):
        time.sleep(0.4)
        return task


stages = [JsonlReader("in"), Slow(), ScoreFilter(WordCountFilter(min_words=50)), JsonlWriter("out")]
pipeline = Pipeline("clean", stages=stages)
pipeline
""",
    "pipeline.explain()",
    "result = pipeline.run()",
    "result",
    "Ledger('out')",
    "pipeline.run()[0]",
]


def test_a_notebook(tmp_path: Path, sample_path: Path) -> None:
    (tmp_path / "in").mkdir()
    lines = gzip.decompress(sample_path.read_bytes()).splitlines(keepends=True)
    for part in range(6):
        (tmp_path / "in" / f"{part}.jsonl").write_bytes(b"".join(lines[part * 100 : part * 100 + 100]))
    page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    updates: list[dict[str, Any]] = []

    class Client(nbclient.NotebookClient):
        def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
            if msg["msg_type"] in ("display_data", "update_display_data"):
                updates.append(msg["content"]["data"])
            return super().process_message(msg, cell, cell_index)

    Client(page, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [cell.outputs for cell in page.cells]
    shown = [[one.data.get("text/html", "") for one in found if "data" in one] for found in outputs]
    assert "Pipeline clean" in shown[0][0]
    assert shown[1][0].startswith("<pre")
    assert "6 partitions" in shown[1][0]
    # While it ran: one place that was renewed, with a bar and the stages; in the end one line.
    assert len(shown[2]) == 1
    assert re.search(r"clean done: 6/6 partitions · 600 rows read", shown[2][0])
    assert any("<progress" in one["text/html"] for one in updates)
    assert any("WordCountFilter" in one["text/html"] for one in updates)
    assert all(one["text/plain"] for one in updates)
    assert "600 documents read" in shown[3][0]
    assert "too_few_words" in shown[3][0]
    assert "too_few_words" in shown[4][0]
    assert [one.name for found in outputs for one in found if one.output_type == "stream"] == []
    assert "\x1b" not in str(page) + str(updates)
    assert "\\x1b" not in str(page) + str(updates)
