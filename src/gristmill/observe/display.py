"""Progress displays: a live table on a terminal, one below the cell in a notebook, lines elsewhere.

All but the notebook's write to stderr. A display is a listener. It draws when events arrive and switches itself off at
its first failure: an unusual terminal must never end a run.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeAlias

from gristmill.errors import UsageError
from gristmill.figures import duration, format_size, plural, printable, rate, share
from gristmill.ledger.record.trail import StageCount
from gristmill.observe.events import (
    Event,
    KernelCompiling,
    Notice,
    PartitionCommitted,
    RecordsQuarantined,
    RunFinished,
    RunStarted,
    Sample,
    TaskFinished,
    TaskStarted,
    WorkerStarted,
    WorkerStopped,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

Kind: TypeAlias = Literal["auto", "live", "lines", "off"]

LOGGING_INTERVAL_S = 60.0
REFRESH_S = 0.1
"""Ten updates per second look smooth; more would slow down the run."""
NOTEBOOK_REFRESH_S = 0.5
"""A browser redraws the whole table."""
_MAX_NOTICES = 20
_BAR_WIDTH = 20
RATE_WINDOW_S = 30.0
"""The rate covers the last half minute: long enough to be steady, short enough to show a change."""


def make_listener(
    kind: Kind = "auto",
    *,
    logging_interval: float = LOGGING_INTERVAL_S,
    stream: TextIO | None = None,
    now: Callable[[], float] = time.monotonic,
) -> Display:
    """Create a display of this kind.

    Args:
        kind: `live` (a table that updates itself), `lines` (one line per `logging_interval`), `off`, or `auto`: live on
            a terminal, a table below the cell in a notebook, lines elsewhere.
        logging_interval: Seconds between two lines.
        stream: Where to write; stderr by default.
        now: The clock; tests pass their own.

    Example:
        >>> make_listener("off")(Notice("nobody reads this"))
    """
    if kind not in ("auto", "live", "lines", "off"):
        raise UsageError(f"display={kind!r}: choose 'auto', 'live', 'lines' or 'off'.")
    target = sys.stderr if stream is None else stream
    if kind == "auto" and stream is None and "ipykernel" in sys.modules and is_notebook():
        return NotebookDisplay(target, logging_interval, now)
    if kind == "auto":
        try:
            can_redraw = target.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
        except (AttributeError, ValueError, OSError):  # closed, or not a real stream
            can_redraw = False
        kind = "live" if can_redraw else "lines"
    if kind == "live":
        return LiveDisplay(target, REFRESH_S, now)
    return LineDisplay(target, logging_interval, now) if kind == "lines" else Display(target, logging_interval, now)


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook, rather than one that merely imported it."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


# --- state ---


@dataclass
class Progress:
    """Turns the events of one run into the figures that a display needs, independent of how they are shown."""

    now: Callable[[], float] = time.monotonic
    pipeline: str = ""
    status: str = "starting"
    writes: bool = True  # without a writer nothing is committed, and the caller gets the result
    stages: dict[str, StageCount] = field(default_factory=dict)
    partitions: int = 0
    partitions_done: int = 0
    partitions_done_before: int = 0
    rows_written: int = 0
    rows_read: int = 0
    quarantined: int = 0
    workers: int = 0
    busy: int = 0
    queued: int = 0
    queued_bytes: int = 0
    memory_bytes: int = 0
    peak_memory_bytes: int = 0
    workers_lost: int = 0
    kernels_compiled: int = 0
    doing: str = "starting"
    model_tokens: float = 0.0
    model_cost: float = 0.0
    _models: tuple[float, float] = (0.0, 0.0)  # tokens and cost of tasks that are finished
    _open_rows: dict[int, int] = field(default_factory=dict)
    _open_tasks: dict[int, set[tuple[int, str]]] = field(default_factory=dict)
    _rows_done: int = 0
    _alive: set[int] = field(default_factory=set)
    _sampled: bool = False
    _recent: deque[tuple[float, int, float]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.started = self.begun = self.now()
        self._recent.append((self.started, 0, 0.0))

    def __call__(self, event: Event) -> None:
        """Handle one event."""
        if isinstance(event, TaskFinished):
            self._task(event)
        elif isinstance(event, Sample):
            self._sampled = True
            self.memory_bytes = event.memory_bytes
            self.peak_memory_bytes = max(self.peak_memory_bytes, event.memory_bytes)
            self.queued, self.queued_bytes = sum(event.queued), sum(event.queued_bytes)
            self.workers, self.busy = sum(event.workers), sum(event.busy)
            if event.running:
                self._note_models(event.running)
                self._recent.append((self.now(), self.rows_read, self.model_tokens))
        elif isinstance(event, PartitionCommitted):
            self.partitions_done += 1
            self.rows_written += event.rows
            self._rows_done += self._open_rows.pop(event.partition, 0)
            self._open_tasks.pop(event.partition, None)
        elif isinstance(event, KernelCompiling):
            self.kernels_compiled += 1
            self.doing = f"compiling kernels ({self.kernels_compiled:,} so far)"
            if not self.rows_read:  # compile time says nothing about the time to come
                self.begun = self.now()
                self._recent = deque([(self.begun, 0, 0.0)])
        elif isinstance(event, RecordsQuarantined):
            self.quarantined += event.records
        elif isinstance(event, WorkerStarted | WorkerStopped):
            self._worker(event)
        elif isinstance(event, TaskStarted):
            self.doing = "reading the first documents"
        elif isinstance(event, RunStarted):
            self.pipeline, self.status, self.partitions = event.pipeline, "running", event.partitions
            self.writes = event.output is not None
            self.partitions_done = self.partitions_done_before = event.partitions_done_before
            for name in event.stages:
                self.stages[name] = StageCount()
        elif isinstance(event, RunFinished):
            self.status = event.status
            if event.status == "done":
                self.model_tokens, self.model_cost = self._models

    @property
    def rate(self) -> float:
        """Recent rows read per second."""
        begin, rows, _ = self._recent[0]
        seconds = self.now() - begin
        return (self.rows_read - rows) / seconds if seconds > 0 else 0.0

    @property
    def token_rate(self) -> float:
        """Recent tokens of language models per second."""
        begin, _, tokens = self._recent[0]
        seconds = self.now() - begin
        return (self.model_tokens - tokens) / seconds if seconds > 0 else 0.0

    @property
    def share_done(self) -> float | None:
        """The fraction of this run's work that is done, by partitions and rows in progress; None if unknown."""
        done_now = self.partitions_done - self.partitions_done_before
        to_do = self.partitions - self.partitions_done_before
        if done_now <= 0 or to_do <= 0:
            return None
        expected = self._rows_done / done_now
        under_way = sum(min(rows / expected, 1.0) for rows in self._open_rows.values()) if expected else 0.0
        return min((done_now + under_way) / to_do, 1.0)

    @property
    def seconds_left(self) -> float | None:
        """Estimated time left at the speed so far; None while unknown."""
        done = self.share_done
        return None if done is None else (self.now() - self.begun) * (1 - done) / done

    def _task(self, event: TaskFinished) -> None:
        finished = self._open_tasks.setdefault(event.partition, set())
        if event.attempt > 1 and (event.segment, event.task_id) in finished:
            return  # redone, because its first result was lost
        finished.add((event.segment, event.task_id))
        for name, count in event.counts.items():
            self.stages.setdefault(name, StageCount()).add(count)
            # A source has no input and creates its rows.
            if count.created and not count.rows_in:
                self.rows_read += count.created
                self._open_rows[event.partition] = self._open_rows.get(event.partition, 0) + count.created
        for spent in event.times.values():
            if spent.custom:
                tokens, cost = _of_models(spent.custom)
                self._models = self._models[0] + tokens, self._models[1] + cost
                self._note_models({})
        moment = self.now()
        self._recent.append((moment, self.rows_read, self.model_tokens))
        while len(self._recent) > 2 and moment - self._recent[1][0] > RATE_WINDOW_S:
            self._recent.popleft()

    def _note_models(self, running: Mapping[str, float]) -> None:
        """Add calls in progress; a task between its last call and its end is briefly in neither figure."""
        tokens, cost = _of_models(running)
        self.model_tokens = max(self.model_tokens, self._models[0] + tokens)
        self.model_cost = max(self.model_cost, self._models[1] + cost)

    def _worker(self, event: WorkerStarted | WorkerStopped) -> None:
        if isinstance(event, WorkerStarted):
            self._alive.add(event.worker)
        else:
            self._alive.discard(event.worker)
            self.workers_lost += not event.expected
        if not self._sampled:
            self.workers = len(self._alive)


def _of_models(custom: Mapping[str, float]) -> tuple[float, float]:
    """Tokens and cost of language models among the metrics of a stage."""
    tokens = custom.get("llm_prompt_tokens", 0.0) + custom.get("llm_completion_tokens", 0.0)
    return tokens, custom.get("llm_cost", 0.0)


def _line(progress: Progress) -> str:
    """The current state."""
    parts = _totals(progress, per_second=progress.rate)
    if not progress.rows_read:
        parts[1] = progress.doing
    if progress.workers:
        parts.append(f"{progress.busy:,}/{plural(progress.workers, 'worker')} busy")
    if progress.queued:
        parts.append(f"queue {progress.queued:,} ({format_size(progress.queued_bytes)})")
    if progress.memory_bytes:
        parts.append(f"memory {format_size(progress.memory_bytes)}")
    if progress.model_tokens:
        parts.append(f"{progress.token_rate:,.0f} tokens/s")
    parts.append(duration(progress.now() - progress.started))
    if progress.seconds_left is not None:
        parts.append(f"{duration(progress.seconds_left)} left")
    return " · ".join(parts)


def _last_line(progress: Progress) -> str:
    """How the run ended; the error that ended it is reported separately."""
    elapsed = progress.now() - progress.started
    parts = _totals(progress, per_second=progress.rows_read / elapsed if elapsed > 0 else 0.0)
    if progress.peak_memory_bytes:
        parts.append(f"peak memory {format_size(progress.peak_memory_bytes)}")
    return f"{progress.pipeline or 'run'} {progress.status}: {' · '.join([*parts, duration(elapsed)])}"


def _totals(progress: Progress, *, per_second: float) -> list[str]:
    partitions = plural(progress.partitions, "partition")
    parts = [
        f"{progress.partitions_done:,}/{partitions}" if progress.writes else partitions,
        f"{plural(progress.rows_read, 'row')} read" + (f" ({rate(per_second)})" if progress.rows_read else ""),
    ]
    if progress.writes:
        parts.append(f"{progress.rows_written:,} written")
    if progress.model_tokens:
        parts.append(f"{progress.model_tokens:,.0f} tokens of models")
    if progress.model_cost:
        parts.append(f"estimated cost {progress.model_cost:,.2f}")
    if progress.quarantined:
        parts.append(f"{progress.quarantined:,} quarantined")
    if progress.workers_lost:
        parts.append(f"{plural(progress.workers_lost, 'worker')} lost")
    return parts


# --- displays ---


class Display:
    """A listener that shows events until that fails; this base class shows nothing.

    If several pipelines run in a row, each is shown from zero.

    Args:
        stream: Where to write.
        interval: Seconds between two updates.
        now: The clock.
    """

    def __init__(self, stream: TextIO, interval: float, now: Callable[[], float]) -> None:
        self._stream = stream
        self._interval = interval
        self._now = now
        self._progress = Progress(now=now)
        self._drawn = now()
        self._works = True
        self._shown_once: set[str] = set()

    def __call__(self, event: Event) -> None:
        """Handle one event."""
        if not self._works:
            return
        try:
            if isinstance(event, RunStarted):
                self._progress = Progress(now=self._now)
            if isinstance(event, Notice) and event.once:
                if event.message in self._shown_once:
                    return
                self._shown_once.add(event.message)
            if isinstance(event, RunFinished) and self._progress.status not in ("starting", "running"):
                return  # the pipeline that ended, because one of its steps did
            self._progress(event)
            self._show(event)
        except Exception:  # a failing terminal must not stop the run
            self._works = False
            self.close()

    def close(self) -> None:
        """Restore the terminal; safe to call repeatedly."""

    def _show(self, event: Event) -> None:
        """Draw what is new; may raise."""


_LEAST_WAIT_S = 0.05
_NOTHING = Notice("")
"""Represents the passing of time."""


class LineDisplay(Display):
    """A first line, one line per interval, every notice, and a last line.

    A thread writes the lines while no event arrives: a stage may take minutes for a task.
    """

    _thread: threading.Thread | None = None

    def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._over.set()
            if thread is not threading.current_thread():
                thread.join()

    def _wait(self) -> None:
        while not self._over.wait(max(_LEAST_WAIT_S, self._drawn + self._interval - self._now())):
            self(_NOTHING)

    def _show(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._drawn = self._now()
            self.close()  # the previous run may have failed to announce its end
            self._over = threading.Event()
            thread = threading.Thread(target=self._wait, name="gristmill-progress", daemon=True)
            with contextlib.suppress(RuntimeError):  # no thread available: lines are written only with events
                thread.start()
                self._thread = thread
            parts = [f"{event.pipeline}: {plural(len(event.stages), 'stage')}", plural(event.partitions, "partition")]
            if event.partitions_done_before:
                parts.append(f"{event.partitions_done_before:,} done before")
            if event.input_bytes:
                kind = f" of {event.input_format}" if event.input_format else ""
                parts.append(format_size(event.input_bytes) + kind)
            line = ", ".join([*parts, f"executor {event.executor}"])
        elif isinstance(event, RunFinished):
            self.close()
            line = _last_line(self._progress)
        elif isinstance(event, Notice) and event is not _NOTHING:
            line = event.message if event.level == "info" else f"{event.level}: {event.message}"
        elif self._now() - self._drawn >= self._interval:
            self._drawn = self._now()
            line = _line(self._progress)
        else:
            return
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._stream.write(printable(line).encode(encoding, errors="replace").decode(encoding) + "\n")
        self._stream.flush()


class LiveDisplay(Display):
    """A table of the stages that dropped something, and a bar with totals, rate and time left; updates itself."""

    _live: Live | None = None
    _console: Console | None = None

    def close(self) -> None:
        live, self._live = self._live, None
        try:
            if live is not None:
                live.stop()
        except Exception:  # a terminal that cannot be restored does not end the run either
            self._works = False

    def _show(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            from rich.live import Live

            self._live = Live(
                self._picture(), console=self._screen(), auto_refresh=False, transient=True, redirect_stdout=False
            )
            self._live.start(refresh=True)
        if isinstance(event, Notice):
            colour = {"warning": "yellow", "error": "red"}.get(event.level, "cyan")
            self._screen().print(printable(event.message), style=colour, markup=False)
        if isinstance(event, RunFinished):
            self.close()
            self._screen().print(printable(_last_line(self._progress)), markup=False)
        elif self._live is not None and self._now() - self._drawn >= self._interval:
            self._drawn = self._now()
            self._live.update(self._picture(), refresh=True)

    def _screen(self) -> Console:
        if self._console is None:
            from rich.console import Console

            self._console = Console(file=self._stream, force_terminal=True, highlight=False, emoji=False)
        return self._console

    def _picture(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("stage", overflow="ellipsis", no_wrap=True)
        for title in ("rows in", "kept", "dropped", "rate"):
            table.add_column(title, justify="right", no_wrap=True)
        progress = self._progress
        elapsed = progress.now() - progress.begun
        stages = [(name, count) for name, count in progress.stages.items() if count.dropped or count.quarantined]
        # The table must fit the terminal, or it could not be redrawn in place.
        room = max(self._screen().height - 5, 1)
        for name, count in stages[:room]:
            table.add_row(
                Text(printable(name)),
                f"{count.rows_in:,}",
                f"{count.rows_out:,}",
                share(sum(count.dropped.values()) / count.rows_in if count.rows_in else None),
                rate(count.rows_in / elapsed if elapsed > 0 else 0.0),
            )
        hidden, idle = len(stages) - room, len(progress.stages) - len(stages)
        more = [f"… and {plural(hidden, 'more stage')}"] if hidden > 0 else []
        if idle and progress.rows_read:
            more.append(f"{plural(idle, 'stage')} {'has' if idle == 1 else 'have'} dropped nothing so far")
        done = progress.share_done
        bar = ProgressBar(total=None if done is None else 1.0, completed=done or 0.0, width=_BAR_WIDTH)
        foot = Table.grid(padding=(0, 1))
        foot.add_row(bar, Text("" if done is None else share(done)), Text(_line(progress), style="bold"))
        tables = [table] if stages else []
        return Group(*tables, *(Text(line, style="dim") for line in more), foot)


class NotebookDisplay(Display):
    """A bar, the figures of the run and the stages that dropped something, as HTML in the notebook.

    A page that cannot show HTML gets the figures as text.
    """

    def __init__(self, stream: TextIO, interval: float, now: Callable[[], float]) -> None:
        super().__init__(stream, interval, now)
        self._handle: Any = None
        self._notices: list[str] = []

    def _show(self, event: Event) -> None:
        from IPython.display import display

        if isinstance(event, Notice):
            self._notices = [*self._notices, event.message][-_MAX_NOTICES:]
        if isinstance(event, RunStarted):
            self._handle = display(self._picture(), display_id=True, raw=True)
        elif self._handle is not None and isinstance(event, RunFinished):
            # The result shows what the stages dropped.
            self._handle.update(self._bundle(_last_line(self._progress)), raw=True)
            self._handle, self._notices = None, []
        elif self._handle is not None and self._now() - self._drawn >= NOTEBOOK_REFRESH_S:
            self._drawn = self._now()
            self._handle.update(self._picture(), raw=True)

    def _picture(self) -> dict[str, str]:
        from gristmill import notebook

        progress = self._progress
        done = progress.share_done
        bar = f'<progress max="1"{"" if done is None else f" value={done:.3f}"} aria-label="Progress"></progress> '
        rows = [
            (name, count.rows_in, count.rows_out, sum(count.dropped.values()), sum(count.quarantined.values()))
            for name, count in progress.stages.items()
            if count.dropped or count.quarantined
        ]
        names = ("stage", "rows in", "kept", "dropped", "quarantined")
        stages = notebook.table(names, rows[: notebook.MAX_ROWS]) if rows else ""
        return self._bundle(_line(progress), before=bar, after=stages)

    def _bundle(self, line: str, *, before: str = "", after: str = "") -> dict[str, str]:
        from gristmill import notebook

        notices = "".join(f"<p>{notebook.escaped(notice, 2000)}</p>" for notice in self._notices)
        shown = f"<div>{notices}{before}<span>{notebook.escaped(line, 2000)}</span>{after}</div>"
        return {"text/html": shown, "text/plain": "\n".join([*self._notices, line])}
