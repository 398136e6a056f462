"""A model server on this machine: speaks OpenAI's chat protocol, answers after a set time, and fails on request.

Used in a thread by tests (`model_server`) and as a program: `python -m tests.llm_server --delay 0.05 --log FILE`
prints its port and appends a line to the log for every answer that it sent.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Body = dict[str, Any]


@dataclass
class Fault:
    """What goes wrong with one request.

    Attributes:
        status: Answer with this status.
        headers: Further headers of the answer.
        body: The body, in place of a completion.
        delay_s: Answer only after this delay.
        cut_after: Close the connection after this many bytes of the body.
        text: The completion, in place of the usual one.
        finish_reason: Why the completion ended.
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    delay_s: float = 0.0
    cut_after: int | None = None
    text: str | None = None
    finish_reason: str = "stop"


def echo(body: Body) -> str:
    """An answer that depends on nothing but the messages."""
    said = json.dumps(body["messages"], ensure_ascii=False)
    return f"answer {hashlib.sha256(said.encode()).hexdigest()[:12]}"


@dataclass
class ModelServer:
    """The running server.

    Attributes:
        reply: Makes the text of an answer.
        delay_s: Each answer takes so long.
        usage: Tokens of a request and of its answer; by default the number of words.
        faults: What goes wrong with the next requests, one after another.
        always: What goes wrong with every request that has a message with the text; a list is used up.
        requests: The bodies of all requests.
        authorization: The header of the last request.
        answered: How many completions were sent in full.
        most_at_once: The most requests that were under way together.
    """

    reply: Callable[[Body], str] = echo
    delay_s: float = 0.0
    usage: Callable[[Body, str], tuple[int, int]] | None = None
    faults: list[Fault] = field(default_factory=list)
    always: dict[str, Fault | list[Fault]] = field(default_factory=dict)
    requests: list[Body] = field(default_factory=list)
    keeps_requests: bool = True
    authorization: str | None = None
    answered: int = 0
    most_at_once: int = 0
    under_way: int = 0
    log: Path | None = None
    port: int = 0

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self.port}/v1"

    def fault_for(self, body: Body) -> Fault | None:
        """What goes wrong with this request."""
        if self.faults:
            return self.faults.pop(0)
        for text, fault in self.always.items():
            if any(text in message["content"] for message in body["messages"]):
                if isinstance(fault, list):
                    return fault.pop(0) if fault else None
                return fault
        return None

    def response(self, body: Body, fault: Fault) -> bytes:
        """The body of the response."""
        if fault.body is not None or fault.status != 200:
            return fault.body if fault.body is not None else b'{"error": {"message": "made to fail"}}'
        text = fault.text if fault.text is not None else self.reply(body)
        words = sum(len(message["content"].split()) for message in body["messages"])
        prompt, completion = self.usage(body, text) if self.usage else (words, len(text.split()))
        usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        served = f"{body['model']}-served"
        if not body.get("stream"):
            choice = {
                "index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": fault.finish_reason,
            }  # fmt: skip
            return json.dumps({"model": served, "choices": [choice], "usage": usage}).encode()
        pieces = [{"delta": {"content": text[at : at + 5]}, "index": 0} for at in range(0, len(text), 5)]
        events = [json.dumps({"model": served, "choices": [piece]}) for piece in pieces]
        last = {"delta": {}, "index": 0, "finish_reason": fault.finish_reason}
        events += [json.dumps({"choices": [last]}), json.dumps({"choices": [], "usage": usage}), "[DONE]"]
        return "".join(f"data: {event}\n\n" for event in events).encode()


class _Connection(asyncio.Protocol):
    """HTTP/1.1 with one request at a time, as little of it as clients need: the server must not be what limits."""

    def __init__(self, server: ModelServer) -> None:
        self.server = server
        self.buffer = b""
        self.transport: Any = None
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.server.under_way -= 1

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, found, rest = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return
        headers = {}
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            headers[name.strip().lower()] = value.strip()
        length = int(headers.get(b"content-length", 0))
        if len(rest) < length:
            return
        self.buffer = rest[length:]
        server = self.server
        body = json.loads(rest[:length])
        server.authorization = headers.get(b"authorization", b"").decode() or None
        if server.keeps_requests:
            server.requests.append(body)
        server.under_way += 1
        server.most_at_once = max(server.most_at_once, server.under_way)
        fault = server.fault_for(body) or Fault()
        delay = server.delay_s + fault.delay_s
        loop = asyncio.get_running_loop()
        self.timer = loop.call_later(delay, self._answer, body, fault)

    def _answer(self, body: Body, fault: Fault) -> None:
        self.timer = None
        server = self.server
        server.under_way -= 1
        made = server.response(body, fault)
        kind = "text/event-stream" if body.get("stream") and fault.status == 200 else "application/json"
        headers = {"Content-Type": kind, "Content-Length": str(len(made)), **fault.headers}
        head = f"HTTP/1.1 {fault.status} Made\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        if fault.cut_after is not None:
            self.transport.write(head.encode() + b"\r\n" + made[: fault.cut_after])
            self.transport.close()
            return
        self.transport.write(head.encode() + b"\r\n" + made)
        if fault.status == 200 and fault.body is None:
            server.answered += 1
            if server.log is not None:
                with server.log.open("a", encoding="utf-8") as file:
                    file.write(hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest() + "\n")


async def _serve(server: ModelServer, ready: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(lambda: _Connection(server), "127.0.0.1", 0, backlog=1024)
    server.port = listening.sockets[0].getsockname()[1]
    ready()
    with contextlib.suppress(asyncio.CancelledError):
        await listening.serve_forever()


@contextlib.contextmanager
def model_server(**options: Any) -> Iterator[ModelServer]:
    """A server in a thread of this process."""
    server = ModelServer(**options)
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    task = loop.create_task(_serve(server, ready.set))

    def run() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--log", type=Path)
    given = parser.parse_args()
    server = ModelServer(delay_s=given.delay, log=given.log, keeps_requests=False)
    asyncio.run(_serve(server, lambda: print(server.port, flush=True)))


if __name__ == "__main__":
    main()
