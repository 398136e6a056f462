"""What annotation adds to the time of the model: requests against a server with a known latency, and cached answers.

Usage: python -m benchmarks.bench_llm [--documents 12800] [--cached 1000000] [--out benchmarks/results/llm.json]

- **Requests.** A server in a process of its own answers every request 50 ms after it has arrived; it parses nothing but
  the length, because it stands for another machine. A pipeline reads eight JSONL files, asks with 64 requests at once
  and writes JSONL; the client alone sends as many, and both run in turn. The ideal is 64 requests per 50 ms. Taken by
  the server, from the first request to the last answer, ends of batches included; the time of the whole run, with the
  start of workers, is reported beside it.
- **Cached answers.** The stage on a million documents whose answers are all cached, in batches of 10,000, with the
  memory of the process after the first and the last batch. Nothing is asked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import select
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import deque
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from gristmill.backends.local import LocalExecutor
from gristmill.ledger.record.answer_cache import AnswerCache, Spent, answer_key
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
FILES = 8
COMPLETION = (
    b'{"model": "bench", "choices": [{"index": 0, "message": {"role": "assistant", "content": "A grade of 4."}, '
    b'"finish_reason": "stop"}], "usage": {"prompt_tokens": 170, "completion_tokens": 5, "total_tokens": 175}}'
)


def serve(delay_s: float) -> None:
    """Answer every POST after a delay and every GET at once, with figures on the requests since the last GET."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listening.setblocking(False)
    print(listening.getsockname()[1], flush=True)
    poll = select.epoll()
    poll.register(listening, select.EPOLLIN)
    connections: dict[int, socket.socket] = {}
    received: dict[int, bytes] = {}
    due: deque[tuple[float, socket.socket]] = deque()
    answers, late_s, first, last, cpu = 0, 0.0, 0.0, 0.0, time.process_time()
    answer = _response(COMPLETION)
    while True:
        wait_s = max(0.0, due[0][0] - time.monotonic()) if due else None
        select.select((poll,), (), (), wait_s)  # which keeps microseconds; epoll counts milliseconds
        for number, _ in poll.poll(0):
            if number == listening.fileno():
                connection = listening.accept()[0]
                connection.setblocking(False)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connections[connection.fileno()] = connection
                poll.register(connection, select.EPOLLIN)
                continue
            connection = connections[number]
            try:
                data = connection.recv(1 << 18)
            except ConnectionError:
                data = b""
            if not data:
                poll.unregister(number)
                connections.pop(number).close()
                received.pop(number, None)
                continue
            data = received.pop(number, b"") + data
            end = data.find(b"\r\n\r\n")
            if data.startswith(b"GET") and end >= 0:
                figures = {"answers": answers, "late_ms": late_s / max(1, answers) * 1e3, "seconds": last - first}
                figures["cpu_ms_per_request"] = (time.process_time() - cpu) / max(1, answers) * 1e3
                connection.send(_response(json.dumps(figures).encode()))
                answers, late_s, first, last, cpu = 0, 0.0, 0.0, 0.0, time.process_time()
                continue
            at = data.find(b"Content-Length: ")
            if end < 0 or at < 0 or len(data) < end + 4 + int(data[at + 16 : data.index(b"\r", at)]):
                received[number] = data
                continue
            now = time.monotonic()
            first = first or now
            due.append((now + delay_s, connection))
        now = time.monotonic()
        while due and due[0][0] <= now:
            at_s, connection = due.popleft()
            connection.send(answer)
            now = last = time.monotonic()
            answers += 1
            late_s += now - at_s


def _response(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


def served(url: str, expected: int) -> dict[str, float]:
    """What the server has seen since the last call."""
    with urllib.request.urlopen(url) as response:
        found: dict[str, float] = json.load(response)
    assert found["answers"] == expected, found
    ideal_s = expected * DELAY_S / AT_ONCE
    return found | {
        "per_second": expected / found["seconds"],
        "share_of_ideal": ideal_s / found["seconds"],
        "overhead_ms_per_document": (found["seconds"] - ideal_s) / expected * 1e3,
    }


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

    async def run() -> None:
        numbers = iter(range(requests))
        await asyncio.gather(*(work(numbers) for _ in range(AT_ONCE)))
        await client.close()

    before = cpu_s()
    asyncio.run(run())
    return served(url, requests) | {"client_cpu_ms_per_request": (cpu_s() - before) / requests * 1e3}


def pipeline_rate(url: str, source: Path, output: Path, documents: int) -> dict[str, float]:
    """A whole run."""
    stage = LLMStage(PROMPT, model="bench", base_url=url, max_concurrent_requests=AT_ONCE)
    job = Pipeline(name="bench", stages=[JsonlReader(str(source)), stage, JsonlWriter(str(output))])
    begun = time.perf_counter()
    job.run(LocalExecutor(config={"num_cpus": 2}), progress=False, report=False)
    return served(url, documents) | {"whole_run_s": time.perf_counter() - begun}


def requests(documents: int, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "in"
        source.mkdir()
        for file in range(FILES):
            lines = [json.dumps({"id": number, "text": f"{number} {TEXT}"}) for number in range(file, documents, FILES)]
            (source / f"part-{file}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        command = [sys.executable, "-m", "benchmarks.bench_llm", "--serve"]
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
            finally:
                server.kill()
    shares = sorted(one["pipeline"]["share_of_ideal"] for one in made)
    return {
        "documents": documents,
        "delay_s": DELAY_S,
        "at_once": AT_ONCE,
        "ideal_per_second": AT_ONCE / DELAY_S,
        "rounds": made,
        "median_share_of_ideal": shares[len(shares) // 2],
        "best_share_of_ideal": shares[-1],
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
    parser.add_argument("--serve", action="store_true", help="be the server")
    given = parser.parse_args()
    if given.serve:
        serve(DELAY_S)
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
