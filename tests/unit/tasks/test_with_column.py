"""`DocumentBatch.with_column`: the kinds of values it accepts, and its errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from gristmill.errors import StageDefinitionError
from gristmill.tasks import DocumentBatch

BATCH = DocumentBatch(data=pa.table({"text": ["one", "two words", "three"]}))


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, 2, 3]), pa.chunked_array([[1], [2, 3]]), np.array([1, 2, 3]), [1, 2, 3], (1, 2, 3),
        pl.Series([1, 2, 3]), pd.Series([1, 2, 3], index=[7, 8, 9]),
    ],
    ids=lambda values: f"{type(values).__module__}.{type(values).__name__}",
)  # fmt: skip
def test_whatever_holds_one_value_per_row_becomes_a_column(values: Any) -> None:
    batch = BATCH.with_column("number", values)
    assert batch.to_pyarrow()["number"].to_pylist() == [1, 2, 3]


def test_texts_of_polars_and_numpy_are_strings() -> None:
    for values in (pl.Series(["a", None, "é"]), np.array(["a", None, "é"], object)):
        column = BATCH.with_column("text", values).to_pyarrow()["text"]
        assert column.to_pylist() == ["a", None, "é"]
        assert pa.types.is_string(column.type) or pa.types.is_large_string(column.type)


@pytest.mark.parametrize("values", [7, [1, "a", 2.5], [object(), object(), object()], np.zeros((3, 2))])
def test_what_cannot_be_a_column_is_an_error_that_names_it(values: Any) -> None:
    with pytest.raises(StageDefinitionError, match=r"Column 'number': an? \w+ cannot be a column .* one value per row"):
        BATCH.with_column("number", values)


def test_another_number_of_values_is_an_error() -> None:
    with pytest.raises(StageDefinitionError, match="Column 'number' has 2 values, but the batch has 3 rows"):
        BATCH.with_column("number", np.array([1, 2]))
