from __future__ import annotations

import json
import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from transformers import AutoTokenizer

from gristmill.backends.local import LocalExecutor
from gristmill.errors import ModelNotFoundError, UsageError
from gristmill.pipeline import Pipeline
from gristmill.stages.text.classifiers import DistributedDataClassifier
from gristmill.stages.text.io.reader import JsonlReader
from gristmill.stages.text.io.writer import JsonlWriter
from gristmill.stages.text.models import TokenizerStage
from gristmill.stages.text.models.tokenizer import splits_at_spaces
from gristmill.stages.text.models.tokens import token_facts
from tests.unit.stages.text.models.tiny import batch_of, make_classifier, make_tokenizer, texts


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_classifier(tmp_path_factory.mktemp("models") / "tiny")


def ready(model: Path, **options: object) -> TokenizerStage:
    stage = TokenizerStage(str(model), **options)  # type: ignore[arg-type]
    stage.setup_on_node()
    stage.setup()
    return stage


def test_tokens_equal_those_of_the_models_own_tokenizer(model: Path) -> None:
    values = [*texts(40, longest=90), "", "unknownword the"]
    out = ready(model, sort_by_length=False).process(batch_of(values))
    reference = AutoTokenizer.from_pretrained(str(model))(values, truncation=True, max_length=64)
    assert out.column("input_ids").to_pylist() == reference["input_ids"]
    assert out.column("attention_mask").to_pylist() == reference["attention_mask"]
    assert out.get_columns() == ["text", "id", "input_ids", "attention_mask"]


def test_lists_are_not_padded_and_the_text_is_not_cut(model: Path) -> None:
    long = "the " * 500
    out = ready(model, max_chars=10, max_seq_length=5).process(batch_of([long, "a"]))
    rows = {row["id"]: row for row in out.to_pyarrow().to_pylist()}
    assert rows[0]["text"] == long
    assert len(rows[0]["input_ids"]) == 5
    assert len(rows[1]["input_ids"]) == 3


def test_rows_are_sorted_by_length_and_remember_their_place(model: Path) -> None:
    values = ["the a of to", "a", "the a", "", "a of"]
    out = ready(model).process(batch_of(values))
    assert out.column("_curator_seq_order").to_pylist() == [3, 1, 2, 4, 0]
    assert [values[place] for place in out.column("_curator_seq_order").to_pylist()] == out.column("text").to_pylist()


def test_planning_tells_of_columns_of_the_input_that_tokens_replace(model: Path, tmp_path: Path) -> None:
    def notes(record: dict[str, object]) -> tuple[str, ...]:
        (tmp_path / "in.jsonl").write_text(json.dumps(record) + "\n")
        reader, writer = JsonlReader(str(tmp_path / "in.jsonl")), JsonlWriter(str(tmp_path / "out"))
        classifiers = [
            DistributedDataClassifier(model_identifier=str(model), label_field=name) for name in ("one", "two")
        ]
        run = Pipeline("p", stages=[reader, *classifiers, writer]).run(LocalExecutor({"num_cpus": 0}), fresh=True)
        return tuple(note for note in run.report.notes if "GPU" not in note)

    (note,) = notes({"text": "the", "input_ids": [7]})
    assert note.startswith("tiny_tokenizer writes column 'input_ids', which the input already has")
    assert notes({"text": "the", "tokens": [7]}) == ()


def test_a_missing_text_counts_as_empty(model: Path) -> None:
    out = ready(model, sort_by_length=False).process(batch_of([None, ""]))
    assert out.column("input_ids").to_pylist() == [[1, 2], [1, 2]]
    assert out.column("text").to_pylist() == [None, ""]


def test_an_empty_batch_keeps_its_columns(model: Path) -> None:
    out = ready(model).process(batch_of([]))
    assert out.num_items == 0
    assert out.get_columns() == ["text", "id", "input_ids", "attention_mask", "_curator_seq_order"]


def test_max_chars_counts_characters_not_bytes(tmp_path: Path) -> None:
    make_tokenizer(tmp_path, extra=["é", "éé"])
    out = ready(tmp_path, max_chars=2, sort_by_length=False).process(batch_of(["ééé"]))
    assert (
        out.column("input_ids").to_pylist()
        == ready(tmp_path, sort_by_length=False).process(batch_of(["éé"])).column("input_ids").to_pylist()
    )


def test_same_settings_give_the_same_digest_and_others_do_not(model: Path, tmp_path: Path) -> None:
    twin = make_classifier(tmp_path / "twin", seed=5)
    digests = [
        token_facts(ready(*arguments[:1], **arguments[1]).process(batch_of(["a"])))["digest"]  # type: ignore[arg-type]
        for arguments in [
            (model, {"max_seq_length": 8}),
            (twin, {"max_seq_length": 8, "padding_side": "left", "sort_by_length": False}),
            (model, {"max_seq_length": 9}),
            (model, {"max_seq_length": 8, "max_chars": 5}),
        ]
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


@pytest.mark.parametrize("name", ["cache_dir", "padding_side", "local_files_only", "token", "trust_remote_code"])
def test_options_that_are_the_stages_own_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        TokenizerStage("some/model", transformers_init_kwargs={name: "x"})


@pytest.mark.parametrize(
    "options", [{"max_chars": 0}, {"max_seq_length": 0}, {"padding_side": "top"}, {"max_chars": True}]
)
def test_values_that_cannot_work_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        TokenizerStage("some/model", **options)  # type: ignore[arg-type]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="is not there"):
        TokenizerStage(str(tmp_path / "nothing")).setup_on_node()


def test_a_token_is_never_shown_and_still_travels() -> None:
    stage = TokenizerStage("some/model", hf_token="hf_secret")
    shown = f"{stage!r} {stage} {vars(stage)} {stage.get_config()}"
    assert "hf_secret" not in shown
    assert pickle.loads(pickle.dumps(stage)).hf_token == "hf_secret"


def test_json_records_get_token_columns(model: Path) -> None:
    table = pa.table({"text": ["the a", "of"], "extra": [{"a": 1}, {"a": 2}]})
    from gristmill.tasks import DocumentBatch

    out = ready(model).process(DocumentBatch(data=table))
    assert out.column("extra").to_pylist() == [{"a": 2}, {"a": 1}]


def test_the_rest_of_a_long_text_is_not_read_and_not_missed(model: Path) -> None:
    values = [
        " ".join(texts(30, longest=90)),  # cut between two words
        "the a " + "," * 900,  # no place to cut
        "the" + " " * 400 + "a of to",  # few tokens for its size
        "a" * 3000 + " the of" * 200,  # a word that is one token
        "of the",
    ]
    stage = ready(model, sort_by_length=False, max_seq_length=24)
    read: list[int] = []
    encode = stage._backend.encode_batch_fast

    class Watched:
        def encode_batch_fast(self, given: list[str]) -> object:
            read.extend(map(len, given))
            return encode(given)

    stage._backend = Watched()
    out = stage.process(batch_of(values))
    reference = AutoTokenizer.from_pretrained(str(model))(values, truncation=True, max_length=24)
    assert out.column("input_ids").to_pylist() == reference["input_ids"]
    assert read[0] < len(values[0])
    assert stage._words_alone


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (None, False),
        ({"type": "Metaspace"}, True),
        ({"type": "Metaspace", "split": False}, False),
        ({"type": "ByteLevel", "use_regex": False}, False),
        ({"type": "Digits"}, False),
        ({"type": "Sequence", "pretokenizers": [{"type": "Digits"}, {"type": "WhitespaceSplit"}]}, True),
    ],
)
def test_only_tokenizers_that_split_at_spaces_get_the_start_alone(step: object, expected: bool) -> None:
    class Compiled:
        def to_str(self) -> str:
            return json.dumps({"pre_tokenizer": step})

    assert splits_at_spaces(Compiled()) is expected


@pytest.mark.parametrize("change", [{"pad_token": "[UNK]"}, {"truncation_side": "left"}])
def test_tokenizers_of_one_vocabulary_that_work_differently_share_no_tokens(
    model: Path, tmp_path: Path, change: dict[str, str]
) -> None:
    twin = make_classifier(tmp_path / "twin")
    settings = json.loads((twin / "tokenizer_config.json").read_text())
    (twin / "tokenizer_config.json").write_text(json.dumps({**settings, **change}))
    first, second = ready(model, max_seq_length=8), ready(twin, max_seq_length=8)
    batch = first.process(batch_of(["the of and to in it is was that for on are"]))
    again = second.reuse(batch)
    anew = second.process(batch_of(["the of and to in it is was that for on are"]))
    assert again.column("input_ids").to_pylist() == anew.column("input_ids").to_pylist()
    assert token_facts(again)["pad_token_id"] == second.tokenizer.pad_token_id


def test_a_limit_that_the_tokenizer_does_not_state_is_the_base_models(tmp_path: Path) -> None:
    for name, self_contained in (("alone", True), ("based", False)):
        folder = make_classifier(tmp_path / name, self_contained=self_contained)
        make_tokenizer(folder, max_length=int(1e30))
        batch = ready(folder).process(batch_of(["the " * 600]))
        assert len(batch.column("input_ids")[0]) == 64
    (tmp_path / "based-base" / "config.json").unlink()
    assert len(ready(folder).process(batch_of(["the " * 600])).column("input_ids")[0]) == 512
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "base_model": "some-org/not-here"}))
    stage = TokenizerStage(str(folder), cache_dir=str(tmp_path))
    stage.setup()
    assert len(stage.process(batch_of(["the " * 600])).column("input_ids")[0]) == 512


def test_places_behind_the_padding_of_a_base_model_are_not_counted(tmp_path: Path) -> None:
    make_tokenizer(tmp_path, max_length=int(1e30))
    base = {"model_type": "xlm-roberta", "max_position_embeddings": 40, "pad_token_id": 1}
    (tmp_path / "config.json").write_text(json.dumps({"base_config": base, "fc_dropout": 0.1, "id2label": {}}))
    assert len(ready(tmp_path).process(batch_of(["the " * 600])).column("input_ids")[0]) == 38


def test_the_settings_of_a_base_model_are_fetched_where_a_limit_is_in_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def download(repo_id: str, *, local_files_only: bool = False, **_: object) -> str:
        from huggingface_hub import errors

        if not local_files_only:
            asked.append(repo_id)
        if not asked:
            raise errors.LocalEntryNotFoundError("not here yet")
        return str(tmp_path / "model-base")

    folder = make_classifier(tmp_path / "model")
    make_tokenizer(folder, max_length=int(1e30))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "base_model": "some-org/base"}))
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    TokenizerStage(str(folder), max_seq_length=8).setup_on_node()
    assert asked == []
    stage = TokenizerStage(str(folder))
    stage.setup_on_node()
    stage.setup()
    assert asked == ["some-org/base"]
    assert len(stage.process(batch_of(["the " * 600])).column("input_ids")[0]) == 64


@pytest.mark.parametrize("name", ["a b c", "-a-", "some-org/a..b", "ä"])
def test_what_cannot_be_an_id_of_the_hub_is_told_before_anything_is_asked(name: str) -> None:
    for call in (TokenizerStage(name).setup_on_node, TokenizerStage(name).setup):
        with pytest.raises(ModelNotFoundError, match="'organisation/name'") as caught:
            call()
        assert repr(name) in str(caught.value)


def test_offline_the_tokenizers_error_names_all_files_that_a_classifier_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import errors

    def offline(*_: object, **__: object) -> str:
        raise errors.LocalEntryNotFoundError("no connection")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(ModelNotFoundError, match=r"--include '\*\.safetensors'"):
        TokenizerStage("some-org/some-model", cache_dir=str(tmp_path)).setup_on_node()
