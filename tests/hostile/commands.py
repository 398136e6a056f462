"""The command line under attack: every command in its own process, with its time, peak memory and messages.

The processes are forked from one that has imported the package and nothing else, because starting Python for each of
some hundred commands would take longer than the commands.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
EXITS = (0, 1, 2, 3)
"""Done, failed, used wrongly, done with records in quarantine: a command ends in no other way."""


WARM = (
    "gristmill.backends.local.executor",
    "gristmill.cli.run",
    "gristmill.recipes.loader",
    "gristmill.stages.text.filters.cascade",
    "gristmill.stages.text.filters:WordCountFilter",
    "gristmill.stages.text.io.reader.jsonl",
    "gristmill.stages.text.io.writer.jsonl",
)


class Answer(NamedTuple):
    """How a command ended: exit code (negative: the signal), seconds, peak of resident memory in bytes, its words."""

    code: int
    seconds: float
    peak: int
    said: str

    def held(self, peak: int) -> bool:
        """Whether it ended in one of the known ways, without a traceback, and within this much memory."""
        return self.code in EXITS and self.peak <= peak and not re.search("Traceback|Unexpected error", self.said)


class Commands:
    """Runs commands in a folder."""

    def __init__(self, server: subprocess.Popen[str]) -> None:
        self._server = server

    def __call__(self, folder: Path, *arguments: str, seconds: float = 300.0) -> Answer:
        """What `gristmill ARGUMENTS` does in the folder; killed after `seconds`, which returns code -9."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps([os.fspath(folder), arguments, seconds]) + "\n")
        self._server.stdin.flush()
        return Answer(*json.loads(self._server.stdout.readline()))


@contextmanager
def serving() -> Iterator[Commands]:
    """Commands, and the process that they are forked from, until the end of the block."""
    here = [sys.executable, "-m", "tests.hostile.commands"]
    with subprocess.Popen(here, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        yield Commands(server)


def main() -> None:
    """Answer requests until the input ends."""
    from gristmill.backends.local.preload import EVERY_WORKER, load

    load([*EVERY_WORKER, *WARM])
    for line in sys.stdin:
        print(json.dumps(_run(*json.loads(line))), flush=True)


def _run(folder: str, arguments: list[str], seconds: float) -> tuple[Any, ...]:
    words, began = Path(folder, ".words"), time.monotonic()
    pid = os.fork()
    if pid == 0:
        os._exit(_command(folder, arguments, words))
    # In steps, so that a command that hangs is killed.
    while not (ended := os.wait4(pid, os.WNOHANG))[0]:
        if time.monotonic() > began + seconds:
            os.kill(pid, signal.SIGKILL)
            ended = os.wait4(pid, 0)
            break
        time.sleep(0.005)
    _, status, usage = ended
    said = words.read_text(encoding="utf-8", errors="backslashreplace")
    words.unlink()
    return os.waitstatus_to_exitcode(status), time.monotonic() - began, usage.ru_maxrss * 1024, said


def _command(folder: str, arguments: list[str], words: Path) -> int:
    os.chdir(folder)
    target = os.open(words, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, place in enumerate((nothing, target, target)):
        os.dup2(place, number)
    sys.stdout = open(1, "w", closefd=False, encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
    from gristmill.cli.main import cli

    code = 0
    try:
        cli.main([os.fsdecode(os.fsencode(argument)) for argument in arguments], prog_name="gristmill")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        print(f"Traceback: {error!r}", file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    main()
