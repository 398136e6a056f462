from __future__ import annotations

import json
import logging
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from gristmill.backends.local import LocalExecutor
from gristmill.errors import ModelLoadError, ModelNotFoundError, NotSupportedError, UsageError
from gristmill.pipeline import Pipeline
from gristmill.stages.resources import Resources
from gristmill.stages.text.classifiers import (
    AegisClassifier,
    ContentTypeClassifier,
    DomainClassifier,
    FineWebEduClassifier,
    FineWebMixtralEduClassifier,
    FineWebNemotronEduClassifier,
    InstructionDataGuardClassifier,
    MultilingualDomainClassifier,
    PromptTaskComplexityClassifier,
    QualityClassifier,
)
from gristmill.stages.text.classifiers.base import ClassifierModelStage, Deberta, DistributedDataClassifier
from gristmill.stages.text.embedders import EmbeddingCreatorStage
from gristmill.stages.text.filters import ScoreFilter, TokenCountFilter
from gristmill.stages.text.io import JsonlReader
from gristmill.stages.text.models import TokenizerStage
from gristmill.stages.text.models.token_batches import SharedTokens
from tests.unit.stages.text.models.tiny import LABELS, batch_of, make_classifier, make_sequence_classifier, run, texts
from tests.unit.stages.text.test_odd_records import check

EMBEDDINGS = "embeddings.word_embeddings.weight"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_classifier(tmp_path_factory.mktemp("models") / "quality")


def reference(model: Path, values: list[str]) -> np.ndarray[Any, Any]:
    network = Deberta.from_pretrained(str(model)).eval()
    tokenizer = AutoTokenizer.from_pretrained(str(model))
    batch = tokenizer(values, truncation=True, max_length=64, padding=True, return_tensors="pt")
    with torch.no_grad():
        return network(dict(batch)).numpy()  # type: ignore[no-any-return]


def test_labels_and_probabilities_equal_the_reference(model: Path) -> None:
    values = texts(30)
    classifier = DistributedDataClassifier(model_identifier=str(model), label_field="quality", score_field="p")
    out = run(classifier.decompose(), batch_of(values)).to_pyarrow()
    expected = reference(model, values)
    assert out.column("id").to_pylist() == list(range(30))
    assert out.column("quality").to_pylist() == [LABELS[best] for best in expected.argmax(1)]
    assert np.abs(np.array(out.column("p").to_pylist()) - expected).max() < 2e-5
    assert out.column_names == ["text", "id", "quality", "p"]
    assert out.column("text").to_pylist() == values
    assert len(set(out.column("quality").to_pylist())) > 1


def test_probabilities_can_be_had_with_their_labels(model: Path) -> None:
    values = texts(12)
    plain, labelled = (
        run(
            DistributedDataClassifier(
                model_identifier=str(model), score_field="p", scores_by_label=by_label
            ).decompose(),
            batch_of(values),
        )
        for by_label in (False, True)
    )
    expected = [dict(zip(LABELS, found, strict=True)) for found in plain.column("p").to_pylist()]
    assert labelled.to_pyarrow().column("p").to_pylist() == expected
    lines = bytes(labelled.columns.encode_jsonl()).splitlines()
    assert list(json.loads(lines[0])["p"]) == list(LABELS)
    with pytest.raises(UsageError, match="needs score_field"):
        DistributedDataClassifier(model_identifier=str(model), scores_by_label=True)


def test_the_removed_onnx_back_end_names_what_replaces_it(model: Path) -> None:
    with pytest.raises(UsageError, match=r"removed.*'torch'"):
        DistributedDataClassifier(model_identifier=str(model), cpu_backend="onnx")  # type: ignore[arg-type]


def test_eight_bits_change_probabilities_a_little(model: Path) -> None:
    values = texts(12)
    classifier = DistributedDataClassifier(model_identifier=str(model), score_field="p", cpu_backend="torch-int8")
    out = run(classifier.decompose(), batch_of(values)).to_pyarrow()
    difference = np.abs(np.array(out.column("p").to_pylist()) - reference(model, values)).max()
    assert 0 < difference < 0.03


def test_scores_in_small_groups_equal_the_reference(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gristmill.stages.text.models.acceleration.deberta_encoder._PAIRS_AT_ONCE", 300)
    values = texts(12)
    classifier = DistributedDataClassifier(model_identifier=str(model), score_field="p")
    out = run(classifier.decompose(), batch_of(values)).to_pyarrow()
    assert np.abs(np.array(out.column("p").to_pylist()) - reference(model, values)).max() < 2e-5


def test_a_transformers_sequence_classifier_works_too(tmp_path: Path) -> None:
    folder = make_sequence_classifier(tmp_path / "plain")
    values = texts(8)
    out = run(DistributedDataClassifier(model_identifier=str(folder)).decompose(), batch_of(values))
    network = AutoModelForSequenceClassification.from_pretrained(str(folder)).eval()
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    with torch.no_grad():
        best = [int(network(**tokenizer(v, return_tensors="pt")).logits.argmax()) for v in values]
    assert out.column("preds").to_pylist() == [f"LABEL_{number}" for number in best]


def test_a_saved_classifier_does_not_need_its_base_model(tmp_path: Path) -> None:
    folder = make_classifier(tmp_path / "alone", self_contained=True)
    out = run(DistributedDataClassifier(model_identifier=str(folder)).decompose(), batch_of(["the a", "of"]))
    assert set(out.column("preds").to_pylist()) <= set(LABELS)


def test_deberta_loads_the_base_weights_and_saves_through_the_mixin(model: Path, tmp_path: Path) -> None:
    config = {"base_model": f"{model}-base", "fc_dropout": 0.1, "id2label": {"0": "a", "1": "b"}}
    network = Deberta(config).eval()
    saved = load_file(f"{model}-base/model.safetensors")
    assert torch.equal(network.model.state_dict()[EMBEDDINGS], saved[EMBEDDINGS])
    assert isinstance(network.dropout, torch.nn.Dropout)
    assert network.dropout.p == 0.1
    assert network.fc.out_features == 2
    network.save_pretrained(str(tmp_path / "saved"), config=config)
    again = Deberta.from_pretrained(str(tmp_path / "saved")).eval()
    batch = {"input_ids": torch.tensor([[1, 5, 2]]), "attention_mask": torch.ones(1, 3, dtype=torch.int64)}
    with torch.no_grad():
        assert torch.allclose(network(batch), again(batch), atol=1e-6)
        assert torch.allclose(network(batch).sum(1), torch.ones(1))


def test_deberta_takes_an_instance_of_a_dataclass(model: Path, tmp_path: Path) -> None:
    @dataclass
    class Settings:
        base_model: str = f"{model}-base"
        fc_dropout: float = 0.1
        id2label: dict[str, str] = field(default_factory=lambda: {"0": "a", "1": "b"})

    network = Deberta(Settings())
    assert network.fc.out_features == 2
    network.save_pretrained(str(tmp_path))
    assert Deberta.from_pretrained(str(tmp_path)).dropout.p == 0.1


def in_cache(cache: Path, identifier: str, folder: Path) -> Path:
    """The files of a folder, laid out as the hub keeps a download."""
    root, commit = cache / f"models--{identifier.replace('/', '--')}", "0" * 40
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(commit)
    shutil.copytree(folder, root / "snapshots" / commit)
    return root / "snapshots" / commit


@pytest.fixture
def published(model: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A cache that holds a classifier and not its base model, and the folder of that."""
    folder = in_cache(tmp_path / "cache", "some-org/quality", model)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "base_model": "some-org/base"}))
    return tmp_path / "cache", Path(f"{model}-base")


def test_deberta_fetches_the_settings_of_its_base_model(
    published: tuple[Path, Path], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, base = published
    asked: dict[str, Any] = {}

    def download(**options: Any) -> str:
        asked.update(options)
        return str(in_cache(cache, options["repo_id"], base))

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    network = Deberta.from_pretrained("some-org/quality", cache_dir=cache, token="hf_secret")
    assert (asked["repo_id"], asked["cache_dir"], asked["token"]) == ("some-org/base", str(cache), "hf_secret")
    assert "*.json" in asked["allow_patterns"]
    assert "*.safetensors" not in asked["allow_patterns"]
    expected = Deberta.from_pretrained(str(model)).state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in network.state_dict().items())


def test_deberta_says_which_files_of_its_base_model_are_missing(
    published: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, base = published
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for options in ({}, {"local_files_only": True}):
        with pytest.raises(ModelNotFoundError) as caught:
            Deberta.from_pretrained("some-org/quality", cache_dir=str(cache), **options)
        text = str(caught.value)
        assert str(cache / "models--some-org--base") in text
        assert "hf download some-org/base --include '*.json'" in text
        assert f"--cache-dir {cache}" in text
        assert "*.safetensors" not in text
    in_cache(cache, "some-org/base", base)
    assert Deberta.from_pretrained("some-org/quality", cache_dir=str(cache)).fc.out_features == 3


def test_the_base_model_may_be_in_a_package(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(f"{model}-base", tmp_path / "some_base_package")
    (tmp_path / "some_base_package" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    config = {"base_model": "package:some_base_package", "fc_dropout": 0.1, "id2label": {"0": "a", "1": "b"}}
    network = Deberta(config)
    assert torch.equal(network.model.state_dict()[EMBEDDINGS], load_file(f"{model}-base/model.safetensors")[EMBEDDINGS])
    network.save_pretrained(str(tmp_path / "saved"))
    assert Deberta.from_pretrained(str(tmp_path / "saved")).fc.out_features == 2


def test_weights_that_do_not_fit_are_refused(model: Path, tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "broken"
    shutil.copytree(model, folder)
    from safetensors.torch import load_file, save_file

    state = load_file(str(folder / "model.safetensors"))
    del state["fc.bias"]
    save_file(state, str(folder / "model.safetensors"))
    stage = ClassifierModelStage(str(folder))
    with pytest.raises(ModelLoadError, match=r"fc\.bias"):
        stage.setup()


def test_weights_in_other_formats_are_refused(model: Path, tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "pickled"
    shutil.copytree(model, folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelNotFoundError, match="safetensors"):
        ClassifierModelStage(str(folder)).setup()


def test_padding_stays_below_one_in_twenty(model: Path) -> None:
    tokenizer, stage = DistributedDataClassifier(model_identifier=str(model)).decompose()
    tokenizer.setup()
    stage.setup()
    stage.process(tokenizer.process(batch_of(texts(300, longest=60))))
    figures = stage._consume_custom_metrics()
    assert figures["padded_tokens"] / figures["real_tokens"] <= 1.05


def test_out_of_memory_is_halved_by_tokens_and_hopeless_documents_are_set_aside(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Small(ClassifierModelStage):
        def _model_forward(self, model_input_batch: Any) -> Any:
            if model_input_batch["input_ids"].numel() > 40:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super()._model_forward(model_input_batch)

    values = [*texts(30, longest=35), "the " * 60]
    tokenizer = TokenizerStage(str(model))
    tokenizer.setup()
    batch = tokenizer.process(batch_of(values))
    stage = Small(str(model), score_field="p")
    stage.setup()
    with caplog.at_level(logging.WARNING):
        out = stage.process(batch)
    assert out is not None
    assert out.column("id").to_pylist() == list(range(30))
    assert np.abs(np.array(out.column("p").to_pylist()) - reference(model, values[:30])).max() < 2e-5
    assert [record.cause for record in batch._tracking.trail.quarantine] == ["out_of_memory"]
    assert "ran out of memory" in caplog.text


def test_hooks_overridden_by_a_user_get_the_frame(model: Path) -> None:
    class Custom(ClassifierModelStage):
        def create_output_dataframe(self, df_cpu: Any, collected_output: Any) -> Any:
            frame = super().create_output_dataframe(df_cpu, collected_output)
            return frame.assign(shout=frame["preds"].str.upper())

    values = texts(9)
    out = run([TokenizerStage(str(model)), Custom(str(model))], batch_of(values))
    plain = run(DistributedDataClassifier(model_identifier=str(model)).decompose(), batch_of(values))
    assert out.to_pandas()["shout"].tolist() == [label.upper() for label in plain.column("preds").to_pylist()]


def test_existing_tokens_are_used_also_when_padded(model: Path) -> None:
    values = ["the a of", "a"]
    kept = run(DistributedDataClassifier(model_identifier=str(model), keep_tokens=True, score_field="p").decompose(),
               batch_of(values))  # fmt: skip
    assert {"input_ids", "attention_mask"} <= set(kept.get_columns())
    ids = kept.column("input_ids").to_pylist()
    padded = batch_of(
        values,
        input_ids=[row + [0] * (9 - len(row)) for row in ids],
        attention_mask=[[1] * len(row) + [0] * (9 - len(row)) for row in ids],
    )
    again = DistributedDataClassifier(model_identifier=str(model), use_existing_tokens=True, score_field="p")
    (stage,) = again.decompose()
    out = run([stage], padded)
    assert np.allclose(out.column("p").to_pylist(), kept.column("p").to_pylist(), atol=1e-6)


def test_a_label_that_the_model_never_gives_is_an_error(model: Path) -> None:
    stage = ClassifierModelStage(str(model), expected_labels=["Hihg"])
    with pytest.raises(UsageError, match="Did you mean 'High'"):
        stage.setup()


@pytest.mark.parametrize("labels", [[], "High", 3])
def test_a_filter_that_cannot_keep_anything_is_an_error(labels: Any) -> None:
    with pytest.raises(UsageError, match="filter_by"):
        DistributedDataClassifier(model_identifier="a/b", filter_by=labels)


def test_unknown_back_ends_are_an_error() -> None:
    with pytest.raises(UsageError, match="cpu_backend"):
        DistributedDataClassifier(model_identifier="a/b", cpu_backend="tpu")  # type: ignore[arg-type]


def test_classifiers_with_equal_tokens_share_one_tokenization(model: Path, tmp_path: Path) -> None:
    other = make_classifier(tmp_path / "topic", labels=["x", "y"], seed=3)
    first = DistributedDataClassifier(model_identifier=str(model), label_field="a", max_seq_length=32)
    second = DistributedDataClassifier(model_identifier=str(other), label_field="b", max_seq_length=32)
    values = texts(12)
    tokenizer, model_a, tokenizer_b, model_b = [*first.decompose(), *second.decompose()]
    fused = model_a.fuse([tokenizer_b, model_b])
    assert isinstance(fused, SharedTokens)
    assert list(fused.members) == [model_a, tokenizer_b]
    for stage in (tokenizer, fused, model_b):
        stage.setup()
    assert isinstance(fused.tokenizer, TokenizerStage)
    fused.tokenizer._encode = None  # type: ignore[method-assign,assignment]
    out = model_b.process(fused.process(tokenizer.process(batch_of(values))))  # type: ignore[arg-type]
    assert fused._consume_custom_metrics()["documents_with_shared_tokens"] == 12
    apart = run([*first.decompose(), *second.decompose()], batch_of(values))
    assert out.to_pyarrow().equals(apart.to_pyarrow())


@pytest.mark.parametrize("change", [{"max_seq_length": 16}, {"text_field": "title"}, {"max_chars": 5}])
def test_other_settings_are_tokenized_anew(model: Path, change: dict[str, Any]) -> None:
    first = DistributedDataClassifier(model_identifier=str(model), max_seq_length=32)
    second = DistributedDataClassifier(**{"model_identifier": str(model), "max_seq_length": 32, **change})
    _, model_a, *rest = [*first.decompose(), *second.decompose()]
    assert model_a.fuse(rest) is None


def test_fineweb_scores_are_clamped_rounded_and_labelled(tmp_path: Path) -> None:
    folder = make_sequence_classifier(tmp_path / "edu", num_labels=1)
    values = texts(20)
    classifier = FineWebEduClassifier(model_identifier=str(folder))
    out = run(classifier.decompose(), batch_of(values)).to_pandas()
    network = AutoModelForSequenceClassification.from_pretrained(str(folder)).eval()
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    with torch.no_grad():
        raw = [float(network(**tokenizer(v, return_tensors="pt")).logits) for v in values]
    assert np.allclose(out["fineweb-edu-score-float"], np.clip(raw, 0, 5), atol=1e-4)
    assert out["fineweb-edu-score-int"].tolist() == [round(max(0.0, min(5.0, value))) for value in raw]
    assert out["fineweb-edu-score-label"].tolist() == [
        "high_quality" if value >= 2.5 else "low_quality" for value in raw
    ]


@pytest.mark.parametrize("own_form", [False, True])
def test_a_single_output_is_no_choice_between_labels(own_form: bool, tmp_path: Path) -> None:
    folder = tmp_path / "score"
    if own_form:
        make_classifier(folder, labels=["only"])
    else:
        make_sequence_classifier(folder, num_labels=1)
    with pytest.raises(UsageError, match=r"has 1 output .*FineWebEduClassifier"):
        run(DistributedDataClassifier(model_identifier=str(folder)).decompose(), batch_of(["the a"]))


def test_several_outputs_are_no_score(tmp_path: Path) -> None:
    folder = make_sequence_classifier(tmp_path / "labels", num_labels=3)
    with pytest.raises(UsageError, match=r"has 3 outputs.*DistributedDataClassifier"):
        run(FineWebEduClassifier(model_identifier=str(folder)).decompose(), batch_of(["the a"]))


def test_published_defaults() -> None:
    def facts(classifier: Any) -> tuple[Any, ...]:
        return (
            classifier.model_identifier, classifier.label_field, classifier.max_chars, classifier.max_seq_length,
            classifier.model_inference_batch_size,
        )  # fmt: skip

    assert facts(QualityClassifier()) == ("nvidia/quality-classifier-deberta", "quality_pred", 6000, 1024, 256)
    assert facts(ContentTypeClassifier())[1:] == ("content_pred", 6000, 1024, 256)
    assert facts(DomainClassifier())[1:] == ("domain_pred", 2000, 512, 256)
    assert facts(MultilingualDomainClassifier())[1:] == ("multilingual_domain_pred", 2000, 512, 256)
    assert facts(FineWebEduClassifier())[1:] == ("fineweb-edu-score-label", None, 512, 256)
    assert facts(FineWebMixtralEduClassifier())[1:] == ("fineweb-mixtral-edu-score-label", None, 512, 1024)
    assert facts(FineWebNemotronEduClassifier())[1:] == ("fineweb-nemotron-edu-score-label", None, 512, 1024)
    assert len(PromptTaskComplexityClassifier().outputs()[1]) == 11
    guard = InstructionDataGuardClassifier()
    assert (guard.label_field, guard.score_field) == ("is_poisoned", "instruction_data_guard_poisoning_score")
    assert (guard.model_inference_batch_size, AegisClassifier().model_inference_batch_size) == (64, 64)
    assert (AegisClassifier().max_chars, AegisClassifier().label_field) == (6000, "aegis_pred")
    with pytest.raises(NotSupportedError, match="Add a Filter stage"):
        PromptTaskComplexityClassifier(filter_by=["x"])


@pytest.mark.parametrize("make", [QualityClassifier, AegisClassifier, InstructionDataGuardClassifier])
def test_tokens_of_access_are_never_shown(make: Any) -> None:
    classifier = make(hf_token="hf_secret")
    stages = classifier.decompose()
    shown = f"{classifier!r} {vars(classifier)} {[(repr(stage), vars(stage)) for stage in stages]}"
    assert "hf_secret" not in shown
    assert [stage.hf_token for stage in stages if hasattr(stage, "hf_token")] == ["hf_secret"] * 2


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (DistributedDataClassifier, {"label_field": "text"}, "label_field='text'.*uses that column for the text"),
        (DistributedDataClassifier, {"label_field": "p", "score_field": "p"}, "score_field='p'.*label_field="),
        (DistributedDataClassifier, {"score_field": "input_ids"}, "score_field='input_ids'.*tokens"),
        (DistributedDataClassifier, {"label_field": ""}, "label_field='': must be a column name"),
        (FineWebEduClassifier, {"int_score_field": "fineweb-edu-score-float"}, "int_score_field=.*float_score_field="),
        (AegisClassifier, {"label_field": "text"}, "uses that column for the text"),
        (InstructionDataGuardClassifier, {"score_field": "is_poisoned"}, "score_field=.*label_field="),
        (EmbeddingCreatorStage, {"embedding_field": "text"}, "uses that column for the text"),
        (InstructionDataGuardClassifier, {"filter_by": ["poisoned"]}, "filter_by contains 'poisoned'.*'True'"),
        (DistributedDataClassifier, {"model_identifier": ""}, "model_identifier=''"),
        (DistributedDataClassifier, {"model_identifier": None}, "model_identifier=None"),
    ],
)
def test_options_that_would_lose_data_are_refused(make: Any, options: dict[str, Any], message: str) -> None:
    needed = {"model_identifier": "a/b"} if make is DistributedDataClassifier else {}
    with pytest.raises(UsageError, match=message):
        make(**{**needed, **options})


def test_a_folder_may_be_given_as_a_path(model: Path) -> None:
    out = run(DistributedDataClassifier(model_identifier=model).decompose(), batch_of(texts(3)))  # type: ignore[arg-type]
    assert len(out.column("preds")) == 3


def test_a_document_whose_text_is_no_string_changes_no_label_of_others(model: Path, tmp_path: Path) -> None:
    check(DistributedDataClassifier(model_identifier=str(model)).decompose(), tmp_path)
    check([ScoreFilter(TokenCountFilter(str(model / "tokenizer.json")), score_field="tokens")], tmp_path)


def test_a_gpu_for_the_whole_classifier_is_one_for_its_model(model: Path, tmp_path: Path) -> None:
    classifier = DistributedDataClassifier(model_identifier=str(model), filter_by=list(LABELS))
    parts = {part.name: part.resources for part in classifier.decompose()}
    for given in (Resources(gpus=0.5), Resources(gpu_memory_gb=4), Resources(cpus=2.0, gpus=1)):
        changed = classifier.with_(resources=given, batch_size=3).decompose_and_apply_with()
        assert [part.batch_size for part in changed] == [3] * len(parts)
        for part in changed:
            assert part.resources == (given if parts[part.name].requires_gpu else parts[part.name])
        assert sum(part.resources.requires_gpu for part in changed) == 1
    processors = classifier.with_(resources=Resources(cpus=2.0)).decompose_and_apply_with()
    assert [part.resources for part in processors] == [Resources(cpus=2.0)] * len(parts)
    (tmp_path / "in.jsonl").write_text(json.dumps({"text": "the of to"}) + "\n")
    stages = [JsonlReader(str(tmp_path / "in.jsonl")), classifier.with_(resources=Resources(gpus=1))]
    (made,) = Pipeline(name="p", stages=stages).run(LocalExecutor(config={"num_cpus": 0}), progress=False)
    assert made.column("preds").to_pylist()[0] in LABELS


def test_a_whole_number_of_numpy_is_a_whole_number(model: Path) -> None:
    three, same = (
        DistributedDataClassifier(model_identifier=str(model), model_inference_batch_size=size)
        for size in (3, np.int64(3))
    )
    values = batch_of(texts(9))
    assert run(same.decompose(), values).text("preds").equals(run(three.decompose(), values).text("preds"))
    for wrong in (True, np.True_, np.int64(0), np.float64(3.0), 2.5):
        with pytest.raises(UsageError, match="whole number"):
            DistributedDataClassifier(model_identifier=str(model), model_inference_batch_size=wrong)
