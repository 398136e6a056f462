"""What a user sees while a run goes on: a live table on a terminal, one line now and then elsewhere. Always on stderr.

A display is a listener. It draws when events arrive (no thread of its own), and switches itself off at its first
failure: an odd terminal must never end a run.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TextIO, TypeAlias

from gristmill.errors import UsageError
from gristmill.observe.events import Event, Notice, RunFinished, RunStarted
from gristmill.observe.figures import count, duration, plural, rate, share
from gristmill.observe.progress import Progress
from gristmill.storage.sizes import format_size

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

Kind: TypeAlias = Literal["auto", "live", "lines", "off"]

LOGGING_INTERVAL_S = 60.0
REFRESH_S = 0.1
"""Ten pictures a second look alive; more would cost the run."""


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
            on a terminal, lines elsewhere.
        logging_interval: Seconds between two lines.
        stream: Where to; stderr by default.
        now: The clock; tests give their own.

    Example:
        >>> make_listener("off")(Notice("nobody reads this"))
    """
    if kind not in ("auto", "live", "lines", "off"):
        raise UsageError(f"display={kind!r}: choose 'auto', 'live', 'lines' or 'off'.")
    target = sys.stderr if stream is None else stream
    if kind == "auto":
        kind = "live" if _can_redraw(target) else "lines"
    if kind == "live":
        return LiveDisplay(target, now=now)
    if kind == "lines":
        return LineDisplay(target, logging_interval=logging_interval, now=now)
    return Display()


class Display:
    """A listener that can be closed; this one shows nothing."""

    def __call__(self, event: Event) -> None:
        """Take in one event."""

    def close(self) -> None:
        """Leave the terminal as it was; called once more than needed, it does nothing."""


class _Guarded(Display):
    """Shows events until showing fails."""

    def __init__(self, stream: TextIO, *, now: Callable[[], float]) -> None:
        self._stream = stream
        self._now = now
        self._progress = Progress(now=now)
        self._works = True

    def __call__(self, event: Event) -> None:
        if not self._works:
            return
        try:
            self._progress(event)
            self._show(event)
        except Exception:  # whatever a terminal does to us, the run goes on
            self._works = False
            self.close()

    def close(self) -> None:
        try:
            self._end()
        except Exception:  # as above
            self._works = False

    def _show(self, event: Event) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        """Give the terminal back."""


class LineDisplay(_Guarded):
    """A first line, one line per interval, every notice, and a last line."""

    def __init__(self, stream: TextIO, *, logging_interval: float, now: Callable[[], float]) -> None:
        super().__init__(stream, now=now)
        self._interval = logging_interval
        self._last = now()

    def _show(self, event: Event) -> None:
        progress = self._progress
        if isinstance(event, RunStarted):
            self._write(_first_line(event))
            self._last = self._now()
        elif isinstance(event, RunFinished):
            self._write(_last_line(progress))
        elif isinstance(event, Notice):
            self._write(event.message if event.level == "info" else f"{event.level}: {event.message}")
        elif self._now() - self._last >= self._interval:
            self._last = self._now()
            self._write(_line(progress))

    def _write(self, line: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._stream.write(line.encode(encoding, errors="replace").decode(encoding) + "\n")
        self._stream.flush()


class LiveDisplay(_Guarded):
    """A table of the stages that renews itself, with totals below."""

    def __init__(self, stream: TextIO, *, now: Callable[[], float]) -> None:
        super().__init__(stream, now=now)
        self._live: Live | None = None
        self._console: Console | None = None
        self._drawn = now()

    def _show(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._begin()
        if isinstance(event, Notice):
            self._say(event)
        if isinstance(event, RunFinished):
            self._end()
            self._plain(_last_line(self._progress))
        elif self._live is not None and self._now() - self._drawn >= REFRESH_S:
            self._drawn = self._now()
            self._live.update(self._picture(), refresh=True)

    def _begin(self) -> None:
        from rich.live import Live

        self._live = Live(
            self._picture(), console=self._screen(), auto_refresh=False, transient=True, redirect_stdout=False
        )
        self._live.start(refresh=True)

    def _screen(self) -> Console:
        if self._console is None:
            from rich.console import Console

            self._console = Console(file=self._stream, force_terminal=True, highlight=False, emoji=False)
        return self._console

    def _say(self, notice: Notice) -> None:
        colour = {"warning": "yellow", "error": "red"}.get(notice.level, "cyan")
        self._plain(notice.message, style=colour)

    def _plain(self, line: str, style: str | None = None) -> None:
        self._screen().print(line, style=style, markup=False)

    def _picture(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        progress, screen = self._progress, self._screen()
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("stage", overflow="ellipsis", no_wrap=True)
        for title in ("rows in", "kept", "dropped", "rate"):
            table.add_column(title, justify="right", no_wrap=True)
        stages = list(progress.stages.values())
        # The picture must fit the terminal, or it could not be drawn over.
        room = max(screen.height - 5, 1)
        for stage in stages[:room]:
            table.add_row(
                Text(stage.name),
                count(stage.rows_in),
                count(stage.rows_out),
                share(stage.share_dropped),
                rate(progress.stage_rate(stage)),
            )
        hidden = len(stages) - room
        more = [Text(f"… and {plural(hidden, 'more stage')}", style="dim")] if hidden > 0 else []
        return Group(table, *more, Text(_line(progress), style="bold"))

    def _end(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()


def _first_line(event: RunStarted) -> str:
    parts = [f"{event.pipeline}: {plural(len(event.stages), 'stage')}", plural(event.partitions, "partition")]
    if event.partitions_done_before:
        parts.append(f"{count(event.partitions_done_before)} done before")
    if event.input_bytes:
        parts.append(format_size(event.input_bytes))
    parts.append(f"executor {event.executor}")
    return ", ".join(parts)


def _line(progress: Progress) -> str:
    """How things stand now."""
    parts = _totals(progress, per_second=progress.rate)
    if progress.workers:
        parts.append(f"{count(progress.busy)}/{plural(progress.workers, 'worker')} busy")
    if progress.queued:
        parts.append(f"queue {count(progress.queued)} ({format_size(progress.queued_bytes)})")
    if progress.memory_bytes:
        parts.append(f"memory {format_size(progress.memory_bytes)}")
    parts.append(duration(progress.elapsed_s))
    if progress.seconds_left is not None:
        parts.append(f"{duration(progress.seconds_left)} left")
    return " · ".join(parts)


def _last_line(progress: Progress) -> str:
    """How it ended; what went wrong is told by the error that ends the run."""
    elapsed = progress.elapsed_s
    parts = _totals(progress, per_second=progress.rows_read / elapsed if elapsed > 0 else 0.0)
    if progress.peak_memory_bytes:
        parts.append(f"at most {format_size(progress.peak_memory_bytes)} of memory")
    return f"{progress.pipeline or 'run'} {progress.status}: {' · '.join([*parts, duration(elapsed)])}"


def _totals(progress: Progress, *, per_second: float) -> list[str]:
    parts = [
        f"{count(progress.partitions_done)}/{plural(progress.partitions, 'partition')}",
        f"{plural(progress.rows_read, 'row')} read ({rate(per_second)})",
        f"{count(progress.rows_written)} written",
    ]
    if progress.quarantined:
        parts.append(f"{count(progress.quarantined)} quarantined")
    if progress.workers_lost:
        parts.append(f"{plural(progress.workers_lost, 'worker')} lost")
    return parts


def _can_redraw(stream: TextIO) -> bool:
    """Whether the cursor can be moved: a terminal that is not a dumb one."""
    try:
        terminal = stream.isatty()
    except (AttributeError, ValueError, OSError):
        return False
    return terminal and os.environ.get("TERM", "") not in ("", "dumb")
