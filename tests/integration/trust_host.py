"""A process that has everything imported and forks a driver for every run that a test asks for.

A driver begins within milliseconds, so that a test can afford many that die. Requests and answers are lines of JSON on
stdin and stdout; see `Host` for the side of the tests. A driver may be told to kill itself at a given file operation:
before it, after it, or, for a write, with half of the bytes written.
"""

from __future__ import annotations

import builtins
import io
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Host:
    """The test's end of the host process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=ROOT,
        )
        self._runs = 0
        self._living: set[int] = set()
        assert self._answer() == {"ready": True}

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the host process has ended"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def start(self, source: Path, output: Path, **options: Any) -> Driver:
        """A driver that runs the pipeline from `source` to `output`."""
        self._runs += 1
        report = self.folder / f"driver-{self._runs}.json"
        answer = self._ask(do="start", source=str(source), output=str(output), report=str(report), **options)
        self._living.add(int(answer["pid"]))
        return Driver(self, int(answer["pid"]), report)

    def run(self, source: Path, output: Path, **options: Any) -> dict[str, Any]:
        """Run it and give what it reports: `code` and, unless it was killed, `error`, `operations`, `counts`."""
        return self.start(source, output, **options).wait()

    def wait(self, pid: int) -> int:
        """Wait for the end of a driver; its exit code."""
        code = int(self._ask(do="wait", pid=pid)["code"])
        self._living.discard(pid)
        return code

    def close(self) -> None:
        """End the host, and the drivers that a failed test left behind."""
        for pid in self._living:
            os.kill(pid, signal.SIGKILL)
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(200)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Driver:
    """A driver process on its way."""

    def __init__(self, host: Host, pid: int, report: Path) -> None:
        self.host = host
        self.pid = pid
        self.report = report

    def wait(self) -> dict[str, Any]:
        """Wait for its end; what it reports."""
        code = self.host.wait(self.pid)
        # One that was killed may have left half a report.
        told = json.loads(self.report.read_text()) if code >= 0 and self.report.exists() else {}
        return {"code": code, **told}

    def kill(self) -> int:
        """kill -9, and wait; the exit code (0 if it was done before)."""
        os.kill(self.pid, signal.SIGKILL)
        return int(self.wait()["code"])


# --- the host process ---


class Trap:
    """Counts the operations that change files and kills the process at one of them."""

    def __init__(self, at: int | None, how: str, below: str) -> None:
        self.at = at
        self.how = how
        self.below = below
        self.seen = 0
        for name in ("replace", "rename", "unlink", "remove", "rmdir", "mkdir"):
            setattr(os, name, self._wrapped(getattr(os, name)))
        self._open = builtins.open
        builtins.open = self._opened

    def _counts(self, path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self.below)

    def _wrapped(self, function: Any) -> Any:
        def operation(path: Any, *rest: Any, **options: Any) -> Any:
            if not self._counts(path):
                return function(path, *rest, **options)
            self.seen += 1
            mine = self.seen == self.at
            if mine and self.how != "after":
                self.die()
            try:
                return function(path, *rest, **options)
            finally:
                if mine:
                    self.die()

        return operation

    def _opened(self, path: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        file = self._open(path, mode, *rest, **options)
        if not self._counts(path) or not set(mode) & set("wxa"):
            return file
        self.seen += 1
        if self.seen == self.at:
            if self.how == "after" or not isinstance(file, io.FileIO):
                self.die()
            return _Torn(file, self)
        return file

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class _Torn:
    """A file whose process dies half-way through its first write, or when it is closed."""

    def __init__(self, file: io.FileIO, trap: Trap) -> None:
        self._file = file
        self._trap = trap

    def write(self, data: Any) -> None:
        self._file.write(memoryview(data)[: len(data) // 2])
        self._trap.die()

    def close(self) -> None:
        self._trap.die()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _drive(request: dict[str, Any]) -> dict[str, Any]:
    from tests.integration.trust_job import job

    trap = Trap(request.get("die_at"), request.get("how", "before"), request["output"])
    report = job(
        request["source"],
        request["output"],
        workers=request.get("workers", 0),
        format=request.get("format", "jsonl"),
        segments=request.get("segments", 1),
        tokens=request.get("tokens"),
    )
    counts = {stage.name: [stage.rows_in, stage.rows_out] for stage in report.stages}
    return {"operations": trap.seen, "counts": counts, "done_before": report.partitions_done_before}


def _child(request: dict[str, Any]) -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "hold" in request:
        os.environ["GRISTMILL_TEST_HOLD"] = request["hold"]
    if request.get("file_limit"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_limit"], request["file_limit"]))
    log = os.open(request["report"] + ".log", os.O_WRONLY | os.O_CREAT)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    try:
        told, code = _drive(request), 0
    except Exception as error:
        told, code = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}, 1
    with open(request["report"], "w") as file:
        json.dump(told, file)
    return code


def _modules_of_a_run() -> list[str]:
    """What a run imports, found out by one in a fork."""
    with tempfile.TemporaryDirectory() as folder:
        pid = os.fork()
        if pid == 0:
            from tests.integration.trust_job import job, make_input

            for kind in ("jsonl", "parquet"):
                source = make_input(Path(folder, "in", kind), files=1)
                job(str(source), str(Path(folder, kind)), workers=0, format=kind)
            Path(folder, "modules").write_text("\n".join(sys.modules))
            os._exit(0)
        os.waitpid(pid, 0)
        names = Path(folder, "modules").read_text().split("\n")
    ours = [name for name in names if name.split(".")[0] in ("gristmill", "tests")]
    return ["pandas", "polars", "pyarrow.parquet", "gristmill.backends.local.engine", *ours]


def main() -> None:
    """Fork a driver for every request until stdin ends."""
    # Imported and loaded once, before the forks; nothing here starts a thread that works.
    from gristmill.backends.local.preload import load

    load(_modules_of_a_run())
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "start":
            pid = os.fork()
            if pid == 0:
                os._exit(_child(request))
            answer = {"pid": pid}
        else:
            answer = {"code": os.waitstatus_to_exitcode(os.waitpid(request["pid"], 0)[1])}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
