"""The profile of a run: the samples of its processes, added up by stage and kind of work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gristmill import notebook
from gristmill.figures import duration, plural, printable, share
from gristmill.observe.profile.kinds import KINDS, PACKAGE, Frame, is_compiler, is_import, kind_of, shown_file

DRIVER = "driver"
BETWEEN = "between stages"
_MACHINERY = tuple(f"{PACKAGE}{name}" for name in ("execution/", "tracking/", "backends/local/worker.py"))
"""Frames around the call of a stage, which are irrelevant below the stage's name."""


@dataclass(slots=True)
class StageTime:
    """Where one stage spent its time, over all processes.

    Attributes:
        stage: Its name; `between stages` for workers without one, `driver` for the process that runs the pipeline.
        kinds: Seconds by kind of work.
        processor_s: CPU seconds, in the threads that `kinds` covers.
        other_threads_s: CPU seconds in all other threads.
    """

    stage: str
    kinds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    processor_s: float = 0.0
    other_threads_s: float = 0.0

    @property
    def seconds(self) -> float:
        """The total."""
        return sum(self.kinds.values())


@dataclass(frozen=True, slots=True)
class ProcessTime:
    """Where one process spent its time."""

    name: str
    pid: int
    samples: int
    kinds: Mapping[str, float]

    @property
    def seconds(self) -> float:
        """From its first sample to its last."""
        return sum(self.kinds.values())


@dataclass(frozen=True, slots=True)
class Stack:
    """One stack, reduced to the relevant frames, from the outermost one."""

    process: int
    stage: str
    kind: str
    frames: tuple[Frame, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Profile:
    """Where a run spent its time.

    Attributes:
        pipeline: The pipeline's name.
        stages: By stage, in pipeline order; the driver last.
        processes: By process; the driver first.
        stacks: The sampled stacks, for flame graphs.
        has_processor_time: Whether this system reports the CPU time of threads.

    Example:
        >>> profile = pipeline.run(profile=True).report.profile  # doctest: +SKIP
        >>> print(profile)  # doctest: +SKIP
    """

    pipeline: str
    stages: tuple[StageTime, ...]
    processes: tuple[ProcessTime, ...]
    stacks: tuple[Stack, ...]
    has_processor_time: bool = True

    @property
    def seconds(self) -> float:
        """The total time in and between stages: that of the workers, or of the stages if there are none."""
        return sum(row.seconds for row in self.stages if row.stage != DRIVER)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """The header and the rows of the table of stages."""
        used = [kind for kind in KINDS if any(row.kinds[kind] >= 0.005 for row in self.stages)]
        head = ["stage", *(KINDS[kind] for kind in used), "total", "share", "CPU time", "other threads"]
        rows = []
        for row in self.stages:
            figures = [_seconds(row.kinds[kind]) for kind in used]
            part = "–" if row.stage == DRIVER or not self.seconds else share(row.seconds / self.seconds)
            spent = [row.processor_s, row.other_threads_s] if self.has_processor_time else [0.0, 0.0]
            rows.append([printable(row.stage), *figures, _seconds(row.seconds), part, *map(_seconds, spent)])
        return head, rows

    def process_lines(self) -> list[str]:
        """One line per process."""
        lines = []
        for one in self.processes:
            largest = sorted((kind for kind in KINDS if one.kinds[kind]), key=lambda kind: -one.kinds[kind])[:3]
            parts = ", ".join(f"{KINDS[kind]} {share(one.kinds[kind] / one.seconds)}" for kind in largest)
            lines.append(
                f"{one.name} (pid {one.pid}): {duration(one.seconds)}, {plural(one.samples, 'sample')}: {parts}"
            )
        return lines

    def __str__(self) -> str:
        head, rows = self.table()
        wide = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines = [
            "  ".join(text.ljust(width) if not at else text.rjust(width) for at, (text, width) in enumerate(pairs))
            for pairs in (list(zip(row, wide, strict=True)) for row in (head, *rows))
        ]
        return "\n".join(line.rstrip() for line in [*lines, "", *self.process_lines()])

    _repr_html_ = notebook.as_text

    def figures(self) -> dict[str, Any]:
        """The tables as plain values."""
        return {
            "stages": [
                {
                    "stage": row.stage, "seconds": _rounded(row.seconds), "kinds": _plain(row.kinds),
                    "processor_seconds": _rounded(row.processor_s) if self.has_processor_time else None,
                    "other_threads_seconds": _rounded(row.other_threads_s) if self.has_processor_time else None,
                }
                for row in self.stages
            ],
            "processes": [
                {
                    "process": one.name, "pid": one.pid, "samples": one.samples, "seconds": _rounded(one.seconds),
                    "kinds": _plain(one.kinds),
                }
                for one in self.processes
            ],
        }  # fmt: skip

    def speedscope(self) -> dict[str, Any]:
        """The profile as a speedscope file (https://www.speedscope.app), with one profile per process.

        The outermost frame of each stack is its stage. The tables are stored under `gristmill`.
        """
        numbers: dict[Frame, int] = {}
        profiles: list[dict[str, Any]] = [
            {
                "type": "sampled", "name": one.name, "unit": "seconds", "startValue": 0,
                "endValue": _rounded(one.seconds), "samples": [], "weights": [],
            }
            for one in self.processes
        ]  # fmt: skip
        for stack in self.stacks:
            frames = (Frame("", stack.stage), *stack.frames)
            profiles[stack.process]["samples"].append([numbers.setdefault(frame, len(numbers)) for frame in frames])
            profiles[stack.process]["weights"].append(_rounded(stack.seconds))
        return {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "name": self.pipeline,
            "exporter": "gristmill",
            "activeProfileIndex": min(1, len(profiles) - 1),
            "shared": {
                "frames": [
                    {"name": frame.name} | ({"file": frame.file, "line": frame.line} if frame.file else {})
                    for frame in numbers
                ]
            },
            "profiles": profiles,
            "gristmill": self.figures(),
        }


def add_up(pipeline: str, processes: Sequence[Mapping[str, Any]]) -> Profile:
    """The profile of a run from the snapshots of its samplers, that of the driver first."""
    rows: dict[str, StageTime] = {}
    times: list[ProcessTime] = []
    stacks: dict[tuple[int, str, str, tuple[Frame, ...]], float] = defaultdict(float)
    for process, raw in enumerate(processes):
        frames = [Frame(*frame) for frame in raw["frames"]]
        elsewhere = DRIVER if raw["process"] == DRIVER else BETWEEN
        for name in raw["stages"]:
            rows.setdefault(name, StageTime(name))
        kinds = dict.fromkeys(KINDS, 0.0)
        for place, beside, numbers, seconds, spent, _ in raw["stacks"]:
            stage = raw["stages"][place] if place >= 0 else elsewhere
            row = rows.setdefault(stage, StageTime(stage))
            stack = [frames[number] for number in reversed(numbers)]
            if beside:
                row.other_threads_s += spent
                continue
            kind = kind_of(stack)
            row.kinds[kind] += seconds
            row.processor_s += spent
            kinds[kind] += seconds
            stacks[process, stage, kind, _shown(stack)] += seconds
        times.append(ProcessTime(raw["process"], raw["pid"], raw["samples"], kinds))
    last = [rows.pop(name) for name in (BETWEEN, DRIVER) if name in rows]
    return Profile(
        pipeline,
        (*rows.values(), *last),
        tuple(times),
        tuple(Stack(*key, seconds) for key, seconds in stacks.items()),
        all(raw["has_processor_time"] for raw in processes),
    )


def _shown(stack: Sequence[Frame]) -> tuple[Frame, ...]:
    """A stack without the frames around the work, and without machine-specific folders."""
    around = [at for at, frame in enumerate(stack) if frame.file.startswith(_MACHINERY)]
    ours = next((at for at, frame in enumerate(stack) if frame.file.startswith(PACKAGE)), 0)
    begin = min(around[-1] + 1, len(stack) - 1) if around else ours
    found: list[Frame] = []
    for frame in stack[begin:]:
        if is_import(frame.file):
            if not found or not is_import(found[-1].file):
                found.append(Frame(frame.file, "import"))
            continue
        found.append(frame._replace(file=shown_file(frame.file)))
        if is_compiler(frame.file):  # the internals of a compiler are of no interest here
            break
    return tuple(found)


def _plain(kinds: Mapping[str, float]) -> dict[str, float]:
    return {kind: _rounded(seconds) for kind, seconds in kinds.items() if seconds}


def _rounded(seconds: float) -> float:
    return round(seconds, 6)


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value >= 0.005 else "–"
