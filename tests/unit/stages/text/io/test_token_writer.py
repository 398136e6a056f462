"""Documents written as tokens, read back by the readers of trainers, and what is refused before a run."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.backends.local import LocalExecutor
from gristmill.errors import ModelLoadError, ModelNotFoundError, OutputError, ResumeError, UsageError
from gristmill.ledger.prove.verify import verify
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.summary import read_summary
from gristmill.pipeline import Pipeline
from gristmill.pipeline.run import RunResult
from gristmill.stages.text.filters import ScoreFilter, WordCountFilter
from gristmill.stages.text.io.reader import JsonlReader
from gristmill.stages.text.io.token_shards import inspect_shard
from gristmill.stages.text.io.writer import MegatronTokenizerWriter, TokenWriter
from gristmill.stages.text.models import TokenCounter
from gristmill.tasks import DocumentBatch
from tests.integration.trust_job import Apart
from tests.outputs import contents_of
from tests.token_files import (
    END,
    TEXTS,
    encoded,
    make_large_tokenizer,
    make_tokenizer,
    read_litdata,
    read_mds,
    read_megatron,
)

DOCUMENTS: list[str | None] = [*TEXTS, "", None, "mill " * 40, TEXTS[0]]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    for number, name in enumerate("ab"):
        lines = [json.dumps({"id": f"{number}-{at}", "text": text, "n": at}) for at, text in enumerate(DOCUMENTS)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def run(source: Path, *stages: Any, **options: Any) -> RunResult:
    pipeline = Pipeline("tokens", stages=[JsonlReader(str(source)), *stages])
    return pipeline.run(LocalExecutor({"num_cpus": 0}), progress=False, **options)


def written(source: Path, output: Path, tokenizer: Path, kind: Any = "megatron", **options: Any) -> dict[str, Any]:
    """The summary of a run that is proved by its files."""
    run(source, TokenWriter(str(output), str(tokenizer), kind, **options))
    verify(output).raise_for_problems()
    found = read_summary(RunFolder(output))
    assert found is not None
    return found


class TestFormats:
    def test_megatron(self, source: Path, tokenizer: Path, tmp_path: Path) -> None:
        summary = written(source, tmp_path / "out", tokenizer)
        wanted = encoded(tokenizer, DOCUMENTS)
        assert read_megatron(tmp_path / "out" / "a") == read_megatron(tmp_path / "out" / "b") == wanted
        assert summary["tokens"] == 2 * sum(map(len, wanted))
        assert (summary["dtype"], summary["documents"], summary["shards"]) == ("uint16", 14, 2)

    def test_numpy(self, source: Path, tokenizer: Path, tmp_path: Path) -> None:
        summary = written(source, tmp_path / "out", tokenizer, "numpy", append_eod=False)
        tokens = np.load(tmp_path / "out" / "a.npy", mmap_mode="r")
        bounds = np.load(tmp_path / "out" / "a.bounds.npy", mmap_mode="r")
        assert tokens.dtype == np.uint16
        assert [tokens[a:b].tolist() for a, b in pairwise(bounds)] == encoded(tokenizer, DOCUMENTS, end=False)
        assert summary["empty_documents"] == 4

    @pytest.mark.parametrize("kind", ["parquet", "arrow"])
    def test_tables_are_read_by_datasets(self, source: Path, tokenizer: Path, tmp_path: Path, kind: Any) -> None:
        datasets = pytest.importorskip("datasets")
        written(source, tmp_path / "out", tokenizer, kind, fields=["id", "n"])
        files = sorted(map(str, (tmp_path / "out").iterdir()))
        found = datasets.load_dataset(kind, data_files=files, split="train", cache_dir=str(tmp_path / "cache"))
        assert found["input_ids"] == 2 * encoded(tokenizer, DOCUMENTS)
        assert found["id"] == [f"{number}-{at}" for number in range(2) for at in range(len(DOCUMENTS))]
        assert found.column_names == ["input_ids", "id", "n"]

    def test_mds(self, source: Path, tokenizer: Path, tmp_path: Path) -> None:
        written(source, tmp_path / "out", tokenizer, "mds", shard_tokens=60)
        assert read_mds(tmp_path / "out") == 2 * encoded(tokenizer, DOCUMENTS)
        assert len(list((tmp_path / "out").glob("a*.mds"))) > 1

    def test_mds_leaves_out_documents_without_tokens(self, source: Path, tokenizer: Path, tmp_path: Path) -> None:
        written(source, tmp_path / "out", tokenizer, "mds", append_eod=False)
        assert read_mds(tmp_path / "out") == 2 * [row for row in encoded(tokenizer, DOCUMENTS, end=False) if row]

    def test_packed_mds(self, source: Path, tokenizer: Path, tmp_path: Path) -> None:
        summary = written(source, tmp_path / "out", tokenizer, "mds", sequence_length=16, pack="best_fit")
        samples = read_mds(tmp_path / "out")
        assert {len(sample) for sample in samples} == {16}
        assert 16 * len(samples) == summary["tokens"]
        assert summary["padding"] == summary["tokens"] - 2 * sum(map(len, encoded(tokenizer, DOCUMENTS)))
        assert summary["waste"] == pytest.approx(summary["padding"] / summary["tokens"], abs=1e-6)

    def test_litdata(self, source: Path, tokenizer: Path, tmp_path: Path) -> None:
        written(source, tmp_path / "out", tokenizer, "litdata")
        assert read_litdata(tmp_path / "out") == 2 * encoded(tokenizer, DOCUMENTS)

    @pytest.mark.filterwarnings("ignore:The given buffer is not writable")
    def test_real_readers(self, source: Path, tokenizer: Path, tmp_path: Path) -> None:
        """Those of LitData and Megatron, where they are installed: tests/integration/test_tokens.py does that."""
        pytest.importorskip("litdata")
        indexed = pytest.importorskip("megatron.core.datasets.indexed_dataset")
        from litdata import StreamingDataset, TokensLoader

        written(source, tmp_path / "lit", tokenizer, "litdata")
        stream = [token for row in encoded(tokenizer, DOCUMENTS) for token in row]
        found = StreamingDataset(str(tmp_path / "lit"), item_loader=TokensLoader(block_size=8))
        assert found[0].tolist() == stream[:8]
        written(source, tmp_path / "megatron", tokenizer)
        documents = indexed.IndexedDataset(str(tmp_path / "megatron" / "a"))
        assert [row.tolist() for row in documents[:]] == encoded(tokenizer, DOCUMENTS)

    def test_a_single_parquet_file(self, source: Path, tokenizer: Path, tmp_path: Path) -> None:
        run(source / "a.jsonl", TokenWriter(str(tmp_path / "tokens.parquet"), str(tokenizer), "parquet"))
        verify(tmp_path / "tokens.parquet").raise_for_problems()
        assert pq.read_table(tmp_path / "tokens.parquet")["input_ids"].to_pylist() == encoded(tokenizer, DOCUMENTS)


class TestTokenizers:
    def test_sentencepiece(self, source: Path, tmp_path: Path) -> None:
        pieces = pytest.importorskip("sentencepiece")
        model = tmp_path / "tokenizer.model"
        with model.open("wb") as file:
            pieces.SentencePieceTrainer.train(
                sentence_iterator=iter(TEXTS * 20), model_writer=file, vocab_size=60, minloglevel=2
            )
        processor = pieces.SentencePieceProcessor(model_file=str(model))
        written(source, tmp_path / "out", model)
        wanted = [[*processor.encode(text or ""), processor.eos_id()] for text in DOCUMENTS]
        assert read_megatron(tmp_path / "out" / "a") == wanted
        shown = inspect_shard(str(tmp_path / "out" / "a.bin"), limit=1, max_tokens=200).shown[0]
        assert shown.text is not None
        assert shown.text.startswith("The mill grinds")

    def test_folders_that_only_transformers_can_read(self, source: Path, tokenizer: Path, tmp_path: Path) -> None:
        pytest.importorskip("transformers")
        folder = tmp_path / "slow"
        folder.mkdir()
        fast = json.loads((tokenizer / "tokenizer.json").read_text())["model"]
        (folder / "vocab.json").write_text(json.dumps(fast["vocab"]))
        merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in fast["merges"]]
        (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"tokenizer_class": "GPT2Tokenizer", "eos_token": END, "unk_token": END, "bos_token": END})
        )
        written(source, tmp_path / "out", folder)
        assert read_megatron(tmp_path / "out" / "a") == encoded(tokenizer, DOCUMENTS)

    def test_the_end_token_that_settings_name(self, source: Path, tmp_path: Path) -> None:
        folder = make_tokenizer(tmp_path / "tokenizer", settings={"eos_token": {"content": "<pad>"}})
        summary = written(source, tmp_path / "out", folder)
        assert summary["eod_id"] == 0

    def test_truncation_in_the_file_is_ignored(self, source: Path, tokenizer: Path, tmp_path: Path) -> None:
        from tokenizers import Tokenizer

        cutting = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
        cutting.enable_truncation(max_length=4)
        cutting.enable_padding(length=32)
        (tmp_path / "cutting").mkdir()
        cutting.save(str(tmp_path / "cutting" / "tokenizer.json"))
        written(source, tmp_path / "out", tmp_path / "cutting")
        assert read_megatron(tmp_path / "out" / "a") == encoded(tokenizer, DOCUMENTS)


class TestRefusals:
    """Wrong before the run: nothing is written."""

    def refused(self, source: Path, tmp_path: Path, tokenizer: Path | str, match: str, **options: Any) -> None:
        with pytest.raises((UsageError, ModelLoadError, ModelNotFoundError), match=match):
            run(source, TokenWriter(str(tmp_path / "out"), str(tokenizer), **options))
        assert not (tmp_path / "out").exists()

    def test_no_end_token(self, source: Path, tmp_path: Path) -> None:
        folder = make_tokenizer(tmp_path / "tokenizer", end=None)
        self.refused(
            source,
            tmp_path,
            folder,
            r"does not define an end-of-text token.*special tokens are <pad>.*append_eod=False",
        )

    def test_an_end_token_that_is_not_there(self, source: Path, tokenizer: Path, tmp_path: Path) -> None:
        self.refused(source, tmp_path, tokenizer, r"has no token '</s>'", eod_token="</s>")
        self.refused(source, tmp_path, tokenizer, r"no token 5000: its ids go from 0 to 2\d\d", eod_token=5000)

    def test_a_type_that_is_too_small(self, source: Path, tmp_path: Path) -> None:
        folder = make_large_tokenizer(tmp_path / "large", 70_000)
        told = r"uint16.*up to 65,535.*has 70,000 tokens.*'auto'"
        self.refused(source, tmp_path, folder, told, token_dtype="uint16")

    @pytest.mark.parametrize(("kind", "dtype"), [("megatron", "int32"), ("numpy", "uint32"), ("litdata", "int32")])
    def test_large_vocabularies_get_a_larger_type(self, source: Path, tmp_path: Path, kind: Any, dtype: str) -> None:
        folder = make_large_tokenizer(tmp_path / "large", 70_000)
        assert written(source, tmp_path / "out", folder, kind)["dtype"] == dtype

    def test_the_last_id_that_fits(self, source: Path, tmp_path: Path) -> None:
        folder = make_large_tokenizer(tmp_path / "large", 65_536)
        summary = written(source, tmp_path / "out", folder)
        assert (summary["dtype"], summary["eod_id"]) == ("uint16", 65_535)
        assert read_megatron(tmp_path / "out" / "a")[3] == [65_535]

    def test_no_padding_token(self, source: Path, tmp_path: Path) -> None:
        folder = make_large_tokenizer(tmp_path / "large", 10)
        self.refused(source, tmp_path, folder, "no padding token.*pad_token", sequence_length=8, append_eod=False)

    def test_no_tokenizer(self, source: Path, tmp_path: Path) -> None:
        (tmp_path / "broken").mkdir()
        (tmp_path / "broken" / "tokenizer.json").write_text("{}")
        self.refused(source, tmp_path, tmp_path / "broken", "cannot be read as a tokenizer.json")
        self.refused(source, tmp_path, tmp_path / "missing", "not there")

    @pytest.mark.parametrize(
        ("options", "match"),
        [
            ({"format": "megatrom"}, "megatrom.*Did you mean 'megatron'"),
            ({"pack": "best_fit"}, "needs sequence_length"),
            ({"pack": "best", "sequence_length": 8}, "choose one of concatenate, documents, best_fit"),
            ({"sequence_length": 0}, "at least 1"),
            ({"sequence_length": 8, "shard_tokens": 7}, "at least one sequence"),
            ({"token_dtype": "uint32"}, "choose one of uint16, int32, int64"),
            ({"fields": ["id"]}, "only Parquet and Arrow"),
            ({"format": "parquet", "fields": ["input_ids"]}, "holds the tokens"),
            ({"compression": "zstd"}, "only Parquet and Arrow"),
        ],
    )
    def test_options_that_contradict(self, tmp_path: Path, options: dict[str, Any], match: str) -> None:
        with pytest.raises(UsageError, match=match):
            TokenWriter(str(tmp_path), "tokenizer/", **options)


class TestRuns:
    @pytest.mark.parametrize("options", [{}, {"format": "litdata"}, {"sequence_length": 8, "pack": "best_fit"}])
    def test_pieces_of_a_partition_give_the_same_bytes(
        self, source: Path, tokenizer: Path, tmp_path: Path, options: dict[str, Any]
    ) -> None:
        """A partition that crosses workers in pieces, joined in the driver."""
        kind = {"format": "numpy", **options}
        run(source, TokenWriter(str(tmp_path / "one"), str(tokenizer), **kind))
        run(source, Apart(), TokenWriter(str(tmp_path / "two"), str(tokenizer), **kind))
        names = {"plan.json"} | {path.name for path in (tmp_path / "one.gristmill" / "manifest").iterdir()}
        without = {"run.json", "report.html", *names}
        assert contents_of(tmp_path / "one", without=without) == contents_of(tmp_path / "two", without=without)

    def test_every_document_has_its_place(self, source: Path, tokenizer: Path, tmp_path: Path) -> None:
        filtered = ScoreFilter(WordCountFilter(min_words=2))
        run(source, filtered, TokenWriter(str(tmp_path / "out"), str(tokenizer), sequence_length=16))
        table = pq.read_table(tmp_path / "out.gristmill" / "documents" / "b.parquet")
        rows = table.to_pylist()
        assert {(row["id"], row["row"]) for row in rows} == {(f"1-{at}", at) for at in (0, 1, 2, 5, 6)}
        assert {row["source"] for row in rows} == {str(source / "b.jsonl")}
        view = inspect_shard(str(tmp_path / "out" / "b.idx"), document="1-5", max_tokens=1000)
        assert "".join(one.text or "" for one in view.shown) == f"{DOCUMENTS[5]}{END}"
        (owner,) = inspect_shard(str(tmp_path / "out" / "b.bin"), offset=rows[1]["offset"]).shown
        assert owner.id == rows[1]["id"]

    def test_a_second_run_does_nothing_and_a_changed_tokenizer_is_noticed(
        self, source: Path, tokenizer: Path, tmp_path: Path
    ) -> None:
        own = shutil.copytree(tokenizer, tmp_path / "own")
        pipeline = Pipeline(
            "tokens", stages=[JsonlReader(str(source)), TokenWriter(str(tmp_path / "out"), str(own), "mds")]
        )
        first = pipeline.run(LocalExecutor({"num_cpus": 0}), progress=False)
        before = contents_of(tmp_path / "out")
        again = pipeline.run(LocalExecutor({"num_cpus": 0}), progress=False)
        assert (first.report.partitions_done_before, again.report.partitions_done_before) == (0, 2)
        assert contents_of(tmp_path / "out") == before
        make_tokenizer(own, end="</s>")
        with pytest.raises(ResumeError, match="model_files"):
            pipeline.run(LocalExecutor({"num_cpus": 0}), progress=False)

    def test_the_index_follows_the_input(self, tokenizer: Path, tmp_path: Path) -> None:
        folder = tmp_path / "in"
        folder.mkdir()
        (folder / "a.jsonl").write_text('{"text": "one"}\n')
        written(folder, tmp_path / "out", tokenizer, "mds")
        (folder / "b.jsonl").write_text('{"text": "two"}\n')
        written(folder, tmp_path / "out", tokenizer, "mds")
        assert read_mds(tmp_path / "out") == encoded(tokenizer, ["one", "two"])

    @pytest.mark.parametrize(
        ("name", "match"),
        [
            ("out/index.json", "index.json was changed after it was written"),
            ("out/a.mds", "a.mds of partition a was changed after it was written"),
            (
                "out.gristmill/documents/a.parquet",
                "documents/a.parquet of partition a was changed after it was written",
            ),
            ("out.gristmill/summary.json", "summary.json was changed after"),
        ],
    )
    def test_verify_notices_changes(self, source: Path, tokenizer: Path, tmp_path: Path, name: str, match: str) -> None:
        written(source, tmp_path / "out", tokenizer, "mds")
        path = tmp_path / name
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        assert any(match in problem or "damaged" in problem for problem in verify(tmp_path / "out").problems)

    def test_verify_notices_a_missing_index(self, source: Path, tokenizer: Path, tmp_path: Path) -> None:
        written(source, tmp_path / "out", tokenizer, "mds")
        (tmp_path / "out" / "index.json").unlink()
        assert any("index.json is missing" in problem for problem in verify(tmp_path / "out").problems)

    def test_what_will_happen_is_said_before_the_run(self, source: Path, tokenizer: Path, tmp_path: Path) -> None:
        writer = TokenWriter(str(tmp_path / "out"), str(tokenizer), shard_tokens=5, append_eod=False)
        told = run(source, writer).report.notes
        assert "A document of more than 5 tokens gets its own shard, uncut." in told
        assert "Documents without text are written as documents without tokens." in told


class TestMegatronTokenizerWriter:
    def test_by_itself(self, tokenizer: Path, tmp_path: Path) -> None:
        writer = MegatronTokenizerWriter(str(tmp_path / "out"), model_identifier=str(tokenizer), append_eod=True)
        writer.setup()
        batch = DocumentBatch(data=pa.table({"text": pa.array(DOCUMENTS, pa.large_string())}))
        files = sorted(map(Path, writer.process(batch).data))
        assert [file.suffix for file in files] == [".bin", ".idx"]
        assert read_megatron(files[0].with_suffix("")) == encoded(tokenizer, DOCUMENTS)
        assert sorted((tmp_path / "out").iterdir()) == files

    def test_its_parts_are_what_it_writes(self, tokenizer: Path, tmp_path: Path) -> None:
        writer = MegatronTokenizerWriter(str(tmp_path), model_identifier=str(tokenizer), append_eod=True)
        lengths: list[int] = []
        with (tmp_path / "own.bin").open("wb") as file:
            writer.write_data(file, np.int32, 7, [[1, 2], []], lengths)
        writer.write_idx_data(str(tmp_path / "own"), 4, 4, lengths)
        assert read_megatron(tmp_path / "own") == [[1, 2, 7], [7]]
        with pytest.raises(UsageError, match=r"token_dtype_code=9.*8 \(uint16\)"):
            writer.write_idx_data(str(tmp_path / "own"), 4, 9, lengths)

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"model_identifier": "x", "file_extension": [".txt"]},
            {"model_identifier": "x", "append_mode_implemented": True},
            {"model_identifier": "x", "write_kwargs": {"compresion": "gz"}},
        ],
    )
    def test_refusals(self, tmp_path: Path, options: dict[str, Any]) -> None:
        with pytest.raises(UsageError):
            MegatronTokenizerWriter(str(tmp_path), **options)


def test_token_counter(source: Path, tokenizer: Path) -> None:
    result = Pipeline("count", stages=[JsonlReader(str(source)), TokenCounter(str(tokenizer))]).run(
        LocalExecutor({"num_cpus": 0}), progress=False
    )
    found = [count for task in result for count in task.to_pyarrow()["token_count"].to_pylist()]
    assert found == 2 * [len(row) for row in encoded(tokenizer, DOCUMENTS, end=False)]


def test_an_output_that_is_one_file_cannot_have_two_shards(source: Path, tokenizer: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="single file"):
        run(source / "a.jsonl", TokenWriter(str(tmp_path / "x.parquet"), str(tokenizer), "parquet", shard_tokens=5))
