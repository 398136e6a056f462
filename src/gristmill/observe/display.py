"""What a user sees while a run goes on: a live table on a terminal, one below the cell in a notebook, lines elsewhere.

All but the notebook's are on stderr. A display is a listener. It draws when events arrive, and switches itself off at
its first failure: an odd terminal must never end a run.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
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
"""Ten pictures a second look alive; more would cost the run."""
NOTEBOOK_REFRESH_S = 0.5
"""A browser draws each picture anew."""
_MAX_NOTICES = 20
_BAR_WIDTH = 20
RATE_WINDOW_S = 30.0
"""The rate is that of the last half minute: long enough to be steady, short enough to show a change."""


def make_listener(
    kind: Kind = "auto",
    *,
    logging_interval: float = LOGGING_INTERVAL_S,
    stream: TextIO | None = None,
    now: Callable[[], float] = time.monotonic,
) -> Display:
    """The display of this kind.

    Args:
        kind: `live` (a table that renews itself), `lines` (one line per `logging_interval`), `off`, or `auto`: live
            on a terminal, a table below the cell in a notebook, lines elsewhere.
        logging_interval: Seconds between two lines.
        stream: Where to; stderr by default.
        now: The clock; tests give their own.

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
        except (AttributeError, ValueError, OSError):  # closed, or not quite a stream
            can_redraw = False
        kind = "live" if can_redraw else "lines"
    if kind == "live":
        return LiveDisplay(target, REFRESH_S, now)
    return LineDisplay(target, logging_interval, now) if kind == "lines" else Display(target, logging_interval, now)


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook, and not only one that has imported it."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


# --- how things stand ---


@dataclass
class Progress:
    """Folds the events of one run into the figures that a display needs, without a word about how they are shown."""

    now: Callable[[], float] = time.monotonic
    pipeline: str = ""
    status: str = "starting"
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
    _open_rows: dict[int, int] = field(default_factory=dict)
    _open_tasks: dict[int, set[tuple[int, str]]] = field(default_factory=dict)
    _rows_done: int = 0
    _alive: set[int] = field(default_factory=set)
    _sampled: bool = False
    _recent: deque[tuple[float, int]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.started = self.begun = self.now()
        self._recent.append((self.started, 0))

    def __call__(self, event: Event) -> None:
        """Take in one event."""
        if isinstance(event, TaskFinished):
            self._task(event)
        elif isinstance(event, Sample):
            self._sampled = True
            self.memory_bytes = event.memory_bytes
            self.peak_memory_bytes = max(self.peak_memory_bytes, event.memory_bytes)
            self.queued, self.queued_bytes = sum(event.queued), sum(event.queued_bytes)
            self.workers, self.busy = sum(event.workers), sum(event.busy)
        elif isinstance(event, PartitionCommitted):
            self.partitions_done += 1
            self.rows_written += event.rows
            self._rows_done += self._open_rows.pop(event.partition, 0)
            self._open_tasks.pop(event.partition, None)
        elif isinstance(event, KernelCompiling):
            self.kernels_compiled += 1
            self.doing = f"compiling kernels ({self.kernels_compiled:,} so far)"
            if not self.rows_read:  # the time that it takes tells nothing about what is to come
                self.begun = self.now()
                self._recent = deque([(self.begun, 0)])
        elif isinstance(event, RecordsQuarantined):
            self.quarantined += event.records
        elif isinstance(event, WorkerStarted | WorkerStopped):
            self._worker(event)
        elif isinstance(event, TaskStarted):
            self.doing = "reading the first documents"
        elif isinstance(event, RunStarted):
            self.pipeline, self.status, self.partitions = event.pipeline, "running", event.partitions
            self.partitions_done = self.partitions_done_before = event.partitions_done_before
            for name in event.stages:
                self.stages[name] = StageCount()
        elif isinstance(event, RunFinished):
            self.status = event.status

    @property
    def rate(self) -> float:
        """Rows read per second, lately."""
        begin, rows = self._recent[0]
        seconds = self.now() - begin
        return (self.rows_read - rows) / seconds if seconds > 0 else 0.0

    @property
    def share_done(self) -> float | None:
        """How much of this run's work is done, by its partitions and the rows of those under way; None if unknown."""
        done_now = self.partitions_done - self.partitions_done_before
        to_do = self.partitions - self.partitions_done_before
        if done_now <= 0 or to_do <= 0:
            return None
        expected = self._rows_done / done_now
        under_way = sum(min(rows / expected, 1.0) for rows in self._open_rows.values()) if expected else 0.0
        return min((done_now + under_way) / to_do, 1.0)

    @property
    def seconds_left(self) -> float | None:
        """How long the rest will take at the speed so far; None while nothing tells."""
        done = self.share_done
        return None if done is None else (self.now() - self.begun) * (1 - done) / done

    def _task(self, event: TaskFinished) -> None:
        finished = self._open_tasks.setdefault(event.partition, set())
        if event.attempt > 1 and (event.segment, event.task_id) in finished:
            return  # redone, because its first result was lost
        finished.add((event.segment, event.task_id))
        for name, count in event.counts.items():
            self.stages.setdefault(name, StageCount()).add(count)
            # A source takes in nothing and creates its rows.
            if count.created and not count.rows_in:
                self.rows_read += count.created
                self._open_rows[event.partition] = self._open_rows.get(event.partition, 0) + count.created
        moment = self.now()
        self._recent.append((moment, self.rows_read))
        while len(self._recent) > 2 and moment - self._recent[1][0] > RATE_WINDOW_S:
            self._recent.popleft()

    def _worker(self, event: WorkerStarted | WorkerStopped) -> None:
        if isinstance(event, WorkerStarted):
            self._alive.add(event.worker)
        else:
            self._alive.discard(event.worker)
            self.workers_lost += not event.expected
        if not self._sampled:
            self.workers = len(self._alive)


def _line(progress: Progress) -> str:
    """How things stand now."""
    parts = _totals(progress, per_second=progress.rate)
    if not progress.rows_read:
        parts[1] = progress.doing
    if progress.workers:
        parts.append(f"{progress.busy:,}/{plural(progress.workers, 'worker')} busy")
    if progress.queued:
        parts.append(f"queue {progress.queued:,} ({format_size(progress.queued_bytes)})")
    if progress.memory_bytes:
        parts.append(f"memory {format_size(progress.memory_bytes)}")
    parts.append(duration(progress.now() - progress.started))
    if progress.seconds_left is not None:
        parts.append(f"{duration(progress.seconds_left)} left")
    return " · ".join(parts)


def _last_line(progress: Progress) -> str:
    """How it ended; what went wrong is told by the error that ends the run."""
    elapsed = progress.now() - progress.started
    parts = _totals(progress, per_second=progress.rows_read / elapsed if elapsed > 0 else 0.0)
    if progress.peak_memory_bytes:
        parts.append(f"at most {format_size(progress.peak_memory_bytes)} of memory")
    return f"{progress.pipeline or 'run'} {progress.status}: {' · '.join([*parts, duration(elapsed)])}"


def _totals(progress: Progress, *, per_second: float) -> list[str]:
    parts = [
        f"{progress.partitions_done:,}/{plural(progress.partitions, 'partition')}",
        f"{plural(progress.rows_read, 'row')} read" + (f" ({rate(per_second)})" if progress.rows_read else ""),
        f"{progress.rows_written:,} written",
    ]
    if progress.quarantined:
        parts.append(f"{progress.quarantined:,} quarantined")
    if progress.workers_lost:
        parts.append(f"{plural(progress.workers_lost, 'worker')} lost")
    return parts


# --- displays ---


class Display:
    """A listener that shows events until showing fails; this one has nothing to show.

    Of several pipelines in a row each is shown from zero.

    Args:
        stream: Where to.
        interval: Seconds between two drawings.
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
        """Take in one event."""
        if not self._works:
            return
        try:
            if isinstance(event, RunStarted):
                self._progress = Progress(now=self._now)
            if isinstance(event, Notice) and event.once:
                if event.message in self._shown_once:
                    return
                self._shown_once.add(event.message)
            self._progress(event)
            self._show(event)
        except Exception:  # whatever a terminal does to us, the run goes on
            self._works = False
            self.close()

    def close(self) -> None:
        """Leave the terminal as it was; called once more than needed, it does nothing."""

    def _show(self, event: Event) -> None:
        """Draw what is new; may raise."""


_LEAST_WAIT_S = 0.05
_NOTHING = Notice("")
"""Stands for the passing of time."""


class LineDisplay(Display):
    """A first line, one line per interval, every notice, and a last line.

    A thread sees to the lines while no event comes: a stage may take minutes for a task.
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
            self.close()  # the run before this one may have failed to tell its end
            self._over = threading.Event()
            thread = threading.Thread(target=self._wait, name="gristmill-progress", daemon=True)
            with contextlib.suppress(RuntimeError):  # the system has none left: lines come with events alone
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
    """A table of the stages that have dropped something, and a bar with totals, rate and time left; renews itself."""

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
        # The picture must fit the terminal, or it could not be drawn over.
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
    """A bar, the figures of the run and the stages that have dropped something, as HTML that is sent to the page.

    A page that shows no HTML gets the figures as text.
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
            # What the stages dropped is shown by the result.
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
