"""What is told about a stage that raised."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from gristmill.errors import MissingColumnError, StageDefinitionError
from gristmill.execution.failures import failed_stage, raised_in
from gristmill.stages.text.filters import ScoreFilter, WordCountFilter
from gristmill.tasks import DocumentBatch
from gristmill.tasks.columns import TableColumns
from gristmill.tasks.pandas_io import to_table
from gristmill.tracking.origins import Lineage


@pytest.fixture
def batch() -> DocumentBatch:
    return DocumentBatch(data=pa.table({"body": ["a"]}))


def test_an_error_of_ours_needs_no_traceback(batch: DocumentBatch) -> None:
    stage = ScoreFilter(WordCountFilter())
    with pytest.raises(MissingColumnError) as caught:
        stage.process(batch)
    # The frame of this test is the only one that is not ours.
    ours = caught.value.with_traceback(caught.value.__traceback__.tb_next)
    error = failed_stage(stage, batch, ours)
    assert error.traceback is None
    assert "Traceback" not in error.message
    assert "No column 'text'" in error.message
    assert "Committed output is intact" in error.message
    early = raised_in(stage, ours, doing="setup()")
    assert early.traceback is None
    assert early.message == f"Stage {stage.name!r} failed in setup(): {ours}"


def test_an_error_that_passed_through_other_code_shows_it(batch: DocumentBatch) -> None:
    stage = ScoreFilter(WordCountFilter())
    with pytest.raises(MissingColumnError) as caught:
        stage.process(batch)
    error = failed_stage(stage, batch, caught.value)
    assert "test_failures.py" in error.traceback
    assert error.traceback in error.message
    early = raised_in(stage, caught.value, doing="setup()")
    assert (
        early.message
        == f"Stage {stage.name!r} failed in setup(): MissingColumnError: {caught.value}\n\n{early.traceback}"
    )
    assert "test_failures.py" in early.traceback
    assert "score_filter.py" not in early.traceback, "what we do in there explains nothing"


def test_an_error_of_ours_that_passed_through_python_alone_needs_no_traceback(batch: DocumentBatch) -> None:
    frame = pd.DataFrame({"body": ["a"], "made": [object()]})
    with pytest.raises(StageDefinitionError, match="cannot be written as JSON") as caught:
        to_table(frame)
    assert caught.value.__traceback__ is not None
    ours = caught.value.with_traceback(caught.value.__traceback__.tb_next)
    assert failed_stage(ScoreFilter(WordCountFilter()), batch, ours).traceback is None


@pytest.mark.parametrize(
    ("partition", "told"),
    [
        ("part2", "on row 7 of in/part2.jsonl: "),
        ("part2.b0003", "on row 7 of in/part2.jsonl (counted from the beginning of partition part2.b0003): "),
        (
            "part1.n2-0123456789",
            "on row 7 of in/part2.jsonl (counted from the beginning of partition part1.n2-0123456789): ",
        ),
        ("part2~gz", "on row 7 of in/part2.jsonl: "),
    ],
)
def test_rows_of_a_part_of_a_file_are_not_taken_for_rows_of_the_file(partition: str, told: str) -> None:
    batch = DocumentBatch.from_columns(TableColumns(pa.table({"text": ["a"]})), rows=np.array([7]))
    batch._metadata["source_file"] = "in/part2.jsonl"
    batch._lineage = Lineage(0, partition)
    error = failed_stage(ScoreFilter(WordCountFilter()), batch, ValueError("no"), row=0)
    assert told in error.message
    assert error.row == 7
