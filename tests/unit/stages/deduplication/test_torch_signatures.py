"""Signatures on a device of torch: bit for bit those of the kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.backends.base import Capacity
from gristmill.errors import UsageError
from gristmill.kernels.minhash import band_hashes, hash_factors, listed_shingles
from gristmill.kernels.shingles import CHARACTERS, WORDS, word_tables
from gristmill.kernels.text_column import text_column
from gristmill.stages.deduplication import FuzzyDeduplicationWorkflow
from gristmill.stages.deduplication.fuzzy.banding import Banding
from gristmill.stages.deduplication.fuzzy.signatures import MinHashes
from gristmill.stages.resources import Resources
from gristmill.tasks.document import DocumentBatch
from gristmill.tracking.origins import Lineage
from tests.unit.stages.deduplication.jobs import deduplicate, documents, kept_ids, write_files

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.models

TEXTS = ["one two three four five six seven", "", None, " \n", "{}[]();;;;;;;;; x", "short", "天地玄黄宇宙洪荒", "!!"]


@given(
    st.lists(st.none() | st.text(st.sampled_from("ab x_天{};\n"), max_size=60), max_size=8),
    st.sampled_from([(1, 1), (3, 2)]),
    st.sampled_from([(5, WORDS), (1, WORDS), (4, CHARACTERS)]),
    st.sampled_from([7, 1000]),
)
@example([*TEXTS], (20, 7), (5, WORDS), 5)
@settings(max_examples=25)
def test_a_device_gives_what_the_kernel_gives(
    texts: list[str | None], bands: tuple[int, int], shingles: tuple[int, int], at_once: int
) -> None:
    from gristmill.stages.deduplication.fuzzy.torch_signatures import torch_band_hashes

    data, offsets, _ = text_column(texts)
    functions = hash_factors(bands[0] * bands[1], 42)
    hashes, contents, counts, kept = band_hashes(
        data, offsets, *word_tables(), *shingles, *functions, *bands, np.empty(1, np.uint32)
    )
    values, bounds, sequences = listed_shingles(data, offsets, *word_tables(), *shingles)
    assert kept.tolist() == values.tolist()
    found = torch_band_hashes(values, bounds, *functions, *bands, device="cpu", at_once=at_once)
    assert np.diff(bounds).tolist() == counts.tolist()
    assert sequences[counts > 0].tolist() == contents[counts > 0].tolist()
    assert found.dtype == np.uint64
    assert found.tolist() == hashes.tolist()


def test_the_stage_gives_the_same_table_on_a_device() -> None:
    batch = DocumentBatch.from_columns(_columns([*TEXTS, "one two three four five six eight"]))
    batch._lineage = Lineage(3, "c")
    stage = MinHashes("text", banding=Banding(20, 7))
    wanted = stage.process(batch).to_pyarrow()
    stage._device = torch.device("cpu")
    assert stage.process(batch).to_pyarrow().equals(wanted)
    assert 0 < wanted.num_rows < len(TEXTS)


def test_a_worker_without_cuda_uses_the_kernel() -> None:
    stage = MinHashes("text", banding=Banding(20, 7)).with_(resources=Resources(gpus=0.25))
    stage.setup(None)
    assert (stage._device is not None) == torch.cuda.is_available()


@pytest.mark.parametrize(("device", "gpus", "taken"), [("auto", 0, False), ("auto", 2, True), ("cpu", 2, False)])
def test_gpus_are_taken_where_there_are_some(device: Any, gpus: int, taken: bool) -> None:
    class Executor:
        def capacity(self) -> Capacity:
            return Capacity(4.0, float(gpus), 4.0, float(gpus))

    workflow = FuzzyDeduplicationWorkflow(input_path="in", output_path="out", device=device)
    assert workflow._on_gpu(Executor()) is taken  # type: ignore[arg-type]


def test_a_gpu_that_is_not_there_is_an_error_only_when_asked_for(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    write_files(tmp_path, {"a.jsonl": documents(["the same words", "the same words"])})
    with pytest.raises(UsageError, match="the executor has 0 GPUs"):
        deduplicate(tmp_path, "fuzzy", device="cuda")
    with pytest.raises(UsageError, match="must be one of auto, cpu, cuda"):
        deduplicate(tmp_path, "fuzzy", device="gpu")
    deduplicate(tmp_path, "fuzzy")
    assert kept_ids(tmp_path) == ["d0"]


def _columns(texts: list[str | None]) -> Any:
    import pyarrow as pa

    from gristmill.tasks.columns import TableColumns

    return TableColumns(pa.table({"text": pa.array(texts, pa.large_string())}))
