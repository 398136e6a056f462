"""Documents per second of a DeBERTa classifier of v3-small shape, against `transformers.pipeline`, on real texts.

Same weights, same documents with their natural lengths, limit 512 tokens. The first weights are random, so agreement is
reported on probabilities; give --model a trained classifier to measure the agreement of labels. Also measures padding
and the rate of tokenization. Writes results/models_throughput.json.
"""

from __future__ import annotations

import argparse
import gzip
import json
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

    from gristmill.stages.text.classifiers.training import _new_tokenizer

    torch.manual_seed(0)
    tokenizer = _new_tokenizer(texts, 8000, LIMIT)
    config = DebertaV2Config(
        vocab_size=len(tokenizer), hidden_size=768, num_hidden_layers=6, num_attention_heads=12, intermediate_size=3072,
        max_position_embeddings=LIMIT, relative_attention=True, position_buckets=256, norm_rel_ebd="layer_norm",
        share_att_key=True, pos_att_type=["p2c", "c2p"], position_biased_input=False, type_vocab_size=0,
        pad_token_id=tokenizer.pad_token_id, num_labels=4, initializer_range=0.06,
    )  # fmt: skip
    DebertaV2ForSequenceClassification(config).eval().save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return folder


def ours(model: Path, texts: list[str], backend: str) -> tuple[float, Any, float]:
    from gristmill.stages.text.classifiers.base import DistributedDataClassifier
    from gristmill.tasks import DocumentBatch

    classifier = DistributedDataClassifier(
        model_identifier=str(model), score_field="p", max_seq_length=LIMIT, autocast=False, cpu_backend=backend
    )
    stages: list[Any] = classifier.decompose()
    for stage in stages:
        stage.setup()
    start = time.perf_counter()
    batch: Any = DocumentBatch(data=pa.table({"text": pa.array(texts, pa.large_string())}))
    for stage in stages:
        batch = stage.process(batch)
    seconds = time.perf_counter() - start
    figures = stages[1]._consume_custom_metrics()
    probabilities = np.array(batch.column("p").to_pylist())
    return len(texts) / seconds, probabilities, figures["padded_tokens"] / figures["real_tokens"]


def pipeline_rate(model: Path, texts: list[str]) -> tuple[float, Any]:
    from transformers import pipeline

    runner = pipeline("text-classification", model=str(model), device="cpu", top_k=None)
    runner(texts[:2], truncation=True, max_length=LIMIT)
    start = time.perf_counter()
    found = runner(texts, batch_size=32, truncation=True, max_length=LIMIT)
    seconds = time.perf_counter() - start
    rows = [[entry["score"] for entry in sorted(result, key=lambda entry: entry["label"])] for result in found]
    return len(texts) / seconds, np.array(rows)


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
    for _ in range(3):
        start = time.perf_counter()
        raw.encode_batch(texts)
        best_raw = min(best_raw, time.perf_counter() - start)
        start = time.perf_counter()
        stage.process(batch)
        best_ours = min(best_ours, time.perf_counter() - start)
    return best_raw / best_ours


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=256)
    parser.add_argument("--model", default=None, help="a trained sequence classifier")
    parser.add_argument("--backends", nargs="+", default=["torch", "onnx", "onnx-int8"])
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    texts = documents(options.documents)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(options.model) if options.model else make_model(Path(folder) / "deberta", texts)
        ratio = tokenization(model, texts)
        base, expected = pipeline_rate(model, texts)
        result: dict[str, Any] = {
            "documents": len(texts), "tokenization_vs_raw": round(ratio, 3), "pipeline_docs_per_s": round(base, 3),
            "trained": options.model is not None,
        }  # fmt: skip
        print(result, flush=True)
        for backend in options.backends:
            rate, found, padding = ours(model, texts, backend)
            result[backend] = {
                "docs_per_s": round(rate, 3),
                "speedup": round(rate / base, 2),
                "padding": round(padding, 4),
                "largest_difference": float(np.abs(found - expected).max()),
                "equal_labels": float((found.argmax(1) == expected.argmax(1)).mean()),
            }
            print(backend, result[backend], flush=True)
    path = ROOT / "results" / "models_throughput.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
