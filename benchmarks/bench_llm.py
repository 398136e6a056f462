"""What annotation adds to the time of the model: requests against a server with a known latency, and cached answers.

Usage: python -m benchmarks.bench_llm [--documents 12800] [--cached 1000000] [--out benchmarks/results/llm.json]

- **Requests.** A server in a process of its own answers every request after 50 ms. A pipeline reads JSONL, asks with 64
  requests at once and writes JSONL; the client alone sends as many, and both run in turn. The ideal is 64 requests per
  50 ms. The time of the stage comes from the record of the run, so the start of workers is not in it; the time of the
  whole run is reported beside it.
- **Cached answers.** The stage on a million documents whose answers are all cached, in batches of 10,000, with the
  memory of the process after the first and the last batch. Nothing is asked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from gristmill.backends.local import LocalExecutor
from gristmill.ledger.record.answer_cache import AnswerCache, Spent, answer_key
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.run_record import read_run
from gristmill.models.client import Answer, AsyncLLMClient, AsyncOpenAIClient
from gristmill.pipeline import Pipeline
from gristmill.stages.text.annotate import LLMStage
from gristmill.stages.text.io import JsonlReader, JsonlWriter
from gristmill.tasks.document import DocumentBatch

ROOT = Path(__file__).resolve().parent.parent
DELAY_S, AT_ONCE = 0.05, 64
TEXT = "A paragraph of a document that is about as long as many paragraphs on the web are, with some words in it. " * 8
PROMPT = "Rate the educational value of this text from 0 to 5.\n\n{{ text }}"
BATCH = 10_000


class Unreachable(AsyncLLMClient):
    """A client that must not be needed."""

    async def _answer_impl(self, **_: Any) -> Answer:
        raise AssertionError("an answer that is cached was asked for")


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def bare_rate(url: str, requests: int) -> dict[str, float]:
    """The client alone: as many coroutines as requests at once, each sending the next."""
    client = AsyncOpenAIClient(AT_ONCE, base_url=url)

    async def work(numbers: Any) -> None:
        for number in numbers:
            content = f"{PROMPT} {number} {TEXT}"
            await client.query_model(messages=[{"role": "user", "content": content}], model="bench")

    async def run() -> float:
        numbers = iter(range(requests))
        begun = time.perf_counter()
        await asyncio.gather(*(work(numbers) for _ in range(AT_ONCE)))
        seconds = time.perf_counter() - begun
        await client.close()
        return seconds

    before = cpu_s()
    seconds = asyncio.run(run())
    return {
        "seconds": seconds,
        "per_second": requests / seconds,
        "cpu_ms_per_request": (cpu_s() - before) / requests * 1e3,
    }


def pipeline_rate(url: str, source: Path, output: Path, documents: int) -> dict[str, float]:
    """A whole run; the time of the stage is that of its calls."""
    stage = LLMStage(PROMPT, model="bench", base_url=url, max_concurrent_requests=AT_ONCE)
    job = Pipeline(name="bench", stages=[JsonlReader(str(source)), stage, JsonlWriter(str(output))])
    begun = time.perf_counter()
    job.run(LocalExecutor(config={"num_cpus": 2}), progress=False, report=False)
    whole = time.perf_counter() - begun
    record = read_run(RunFolder(str(output)))
    assert record is not None
    found = next(one for one in record["stages"] if one["stage"] == "llm")
    assert found["custom"]["llm_requests"] == documents
    seconds = found["busy_seconds"]
    ideal = documents * DELAY_S / AT_ONCE
    return {
        "seconds": seconds,
        "per_second": documents / seconds,
        "share_of_ideal": ideal / seconds,
        "overhead_ms_per_document": (seconds - ideal) / documents * 1e3,
        "whole_run_seconds": whole,
    }


def requests(documents: int, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "in"
        source.mkdir()
        lines = [json.dumps({"id": number, "text": f"{number} {TEXT}"}) for number in range(documents)]
        (source / "part.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        command = [sys.executable, "-m", "tests.llm_server", "--delay", str(DELAY_S)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
                bare_rate(url, AT_ONCE * 4)
                made = []
                for number in range(rounds):
                    bare = bare_rate(url, documents)
                    run = pipeline_rate(url, source, Path(place) / f"out-{number}", documents)
                    made.append({"bare_client": bare, "pipeline": run})
                    print(json.dumps(made[-1]))
                spent = psutil.Process(server.pid).cpu_times()
            finally:
                server.kill()
    best = max(made, key=lambda one: one["pipeline"]["share_of_ideal"])
    return {
        "documents": documents,
        "delay_s": DELAY_S,
        "at_once": AT_ONCE,
        "ideal_per_second": AT_ONCE / DELAY_S,
        "server_cpu_ms_per_request": (spent.user + spent.system) / (documents * 2 * rounds) * 1e3,
        "rounds": made,
        "best": best,
    }


def cached(answers: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        stage = LLMStage(PROMPT, model="bench", client=Unreachable(), cache_dir=place)
        stage.setup()
        cache = AnswerCache(place)
        begun = time.perf_counter()
        for number in range(answers):
            message = {"role": "user", "content": stage._templates[0].render({"text": _text(number)})}
            answer = Answer((f"A grade of {number % 6}, for a reason of some words.",), "bench", 200, 12, ("stop",))
            key = answer_key(stage._prefix, [message])
            cache.add(key, answer, stage="llm", model="bench", spent=Spent(200, 12), source=("part", number))
        written = time.perf_counter() - begun
        cache.close()
        process = psutil.Process()
        begun, spent, memory = time.perf_counter(), cpu_s(), []
        asking = 0.0
        for first in range(0, answers, BATCH):
            batch = DocumentBatch(data=pa.table({"text": [_text(number) for number in range(first, first + BATCH)]}))
            called = time.perf_counter()
            made = stage.process(batch)
            asking += time.perf_counter() - called
            assert made.num_items == BATCH
            memory.append(process.memory_info().rss)
        seconds = time.perf_counter() - begun
        stage.teardown()
        return {
            "answers": answers,
            "seconds": asking,
            "with_making_batches_s": seconds,
            "cpu_s": cpu_s() - spent,
            "writing_s": written,
            "bytes": sum(path.stat().st_size for path in Path(place).iterdir()),
            "rss_after_first_batch": memory[0],
            "rss_after_last_batch": memory[-1],
            "rss_peak": max(memory),
        }


def _text(number: int) -> str:
    return f"{number} {TEXT[:400]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=AT_ONCE * 200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cached", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    result: dict[str, Any] = {"cores": psutil.cpu_count(), "load_at_start": psutil.getloadavg()[0]}
    if given.documents:
        result["requests"] = requests(given.documents, given.rounds)
    if given.cached:
        result["cached"] = cached(given.cached)
    print(json.dumps(result, indent=1))
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
