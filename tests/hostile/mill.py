"""A small run by the command line that tests disturb: its input, its recipe, and its undisturbed output."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from gristmill.ledger.prove.verify import verify
from tests.outputs import contents_of, record_of

SOURCE = str(Path(__file__).parents[2] / "src")
FILES = 12
PATIENCE_S = 600.0
"""How long a run may take before it counts as hung, on a machine however busy."""
UNEQUAL = ("run.json", "recipe.yaml", "report.html")
"""Files of a record that hold times, or the options of the command."""

# The second recipe hands documents from worker to worker; the first takes a partition from end to end.
STAGES = """\
- JsonlReader: {file_paths: INPUT}
- UrlRemover
- WordCountFilter: {min_words: 50}
- RepeatingTopNGramsFilter: {n: 2, max_repeating_ngram_ratio: 0.2}
- MeanWordLengthFilter: {with: {num_workers: 1, name: apart}}
- JsonlWriter: {path: "${output_path}"}
"""
RECIPES = {"whole.yaml": STAGES.replace(": {with: {num_workers: 1, name: apart}}", ""), "apart.yaml": STAGES}


class Said(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def kind(self) -> bool:
        """Whether it ended well, or by our own words in place of a traceback."""
        told = any(line.startswith("Error: ") for line in self.err.splitlines())
        return self.code in (0, 3) or (self.code in (1, 2) and told and "Traceback" not in self.err)


class Mill:
    """A folder with an input and recipes, and runs over it.

    Args:
        folder: An empty folder.
        rows: How many documents each of the `FILES` files has.

    Attributes:
        input: The folder of its input.
        usual_s: About how long an undisturbed run takes, once `expected` has made one.
    """

    def __init__(self, folder: Path, *, rows: int = 80) -> None:
        self.folder = folder
        self.usual_s = 0.0
        self.input = folder / "in"
        self.input.mkdir()
        draw = random.Random(7)
        words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(1, 9))) for _ in range(2000)]
        for file in range(FILES):
            lines = []
            for row in range(rows):
                text = " ".join(draw.choices(words, k=draw.randint(5, 300)))
                text += " http://a.example/x é漢👍" if row % 50 == 7 else ""
                lines.append(json.dumps({"id": f"{file}-{row}", "text": text}, ensure_ascii=False) + "\n")
            (self.input / f"f{file:02}.jsonl").write_text("".join(lines), encoding="utf-8")
        for name, stages in RECIPES.items():
            recipe = f"name: mill\nstages:\n{stages.replace('INPUT', str(self.input))}"
            (folder / name).write_text(recipe)

    def command(
        self, output: Path, *options: str, recipe: str = "apart.yaml", workers: int = 2, mode: str = "streaming"
    ) -> list[str]:
        """The command line of a run."""
        words = ["-m", "gristmill", "run", str(self.folder / recipe), "--set", f"output_path={output}"]
        if workers:
            words += ["--set", f"executor.execution_mode={mode}"]
        return [sys.executable, *words, "--workers", str(workers), *options]

    def start(
        self, command: Sequence[str], *, env: Mapping[str, str | None] | None = None, cwd: Path | None = None
    ) -> subprocess.Popen[str]:
        """A run, begun; with None a variable is removed."""
        merged = {**os.environ, "PYTHONPATH": SOURCE, **(env or {})}
        return subprocess.Popen(
            command,
            cwd=cwd or self.folder,
            env={name: value for name, value in merged.items() if value is not None},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def run(
        self, command: Sequence[str], *, env: Mapping[str, str | None] | None = None, cwd: Path | None = None
    ) -> Said:
        """A run from beginning to end."""
        return ended(self.start(command, env=env, cwd=cwd))

    @cache  # noqa: B019 (a few of them, for the life of the tests)
    def expected(self, recipe: str = "apart.yaml") -> dict[str, bytes]:
        """What an undisturbed run leaves."""
        # The shorter of two, as the first one may have compiled kernels.
        for attempt in ("warm", "undisturbed"):
            output = self.folder / f"{attempt}-{recipe}"
            begun = time.monotonic()
            said = self.run(self.command(output, recipe=recipe))
            took = time.monotonic() - begun
            self.usual_s = min(self.usual_s or took, took)
            assert said.code == 0, said
        return contents_of(output, without=UNEQUAL)

    def check(self, output: Path, recipe: str = "apart.yaml") -> None:
        """Make sure that an output is that of an undisturbed run, to the byte, and that its record proves it."""
        found, expected = contents_of(output, without=UNEQUAL), self.expected(recipe)
        assert list(found) == list(expected)
        assert [name for name in found if found[name] != expected[name]] == []
        report = verify(output)
        assert report.ok, report


def ended(process: subprocess.Popen[str]) -> Said:
    """How a process ended, once it has."""
    try:
        out, err = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return Said(process.returncode, out, err)


def stopped_in_the_middle(mill: Mill, output: Path, *options: str, **settings: Any) -> subprocess.Popen[str]:
    """A run whose driver was stopped (SIGSTOP) when it had committed something and not yet all."""
    for _ in range(20):
        process = mill.start(mill.command(output, *options, **settings))
        while process.poll() is None:
            # The first file is committed when the second is there.
            if len(list(output.glob("*.jsonl"))) >= 2:
                process.send_signal(signal.SIGSTOP)
                if len(list((record_of(output) / "manifest").glob("*.json"))) < FILES - 2:
                    return process
                process.send_signal(signal.SIGCONT)
                break
            time.sleep(0.001)
        ended(process)
        remove(output)
    raise AssertionError("every run was over before it could be stopped")


def processes_of(driver: int) -> dict[str, list[int]]:
    """The processes of a run: `driver`, `fork server` and `worker`."""
    found: dict[str, list[int]] = {"driver": [driver], "fork server": [], "worker": []}
    try:
        for child in psutil.Process(driver).children():
            if "multiprocessing.forkserver" in " ".join(child.cmdline()):
                found["fork server"].append(child.pid)
                found["worker"] += [worker.pid for worker in child.children()]
    except psutil.NoSuchProcess:
        pass
    return found


def remove(output: Path) -> None:
    """Remove an output with its record."""
    shutil.rmtree(output, ignore_errors=True)
    shutil.rmtree(record_of(output), ignore_errors=True)


@cache
def can_mount() -> bool:
    """Whether this user may mount file systems that only one process sees."""
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
