"""What a user sees while a run goes on."""

from __future__ import annotations

import io
import re
import threading
import time
from dataclasses import replace

import pytest

from gristmill.errors import UsageError
from gristmill.ledger.record.trail import StageCount
from gristmill.observe.display import Display, LineDisplay, LiveDisplay, Progress, make_listener
from gristmill.observe.events import Event, KernelCompiling, Notice, RecordsQuarantined, RunFinished, TaskStarted
from tests.unit.observe.events_of_a_run import Clock, committed, sample, started, task


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Broken(io.StringIO):
    """A stream whose other end has gone."""

    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")


def lines_of(events: list[Event], *, interval: float = 60) -> list[str]:
    stream, clock = io.StringIO(), Clock()
    display = make_listener("lines", stream=stream, logging_interval=interval, now=clock)
    for event in events:
        display(event)
        clock.time += 10
    display.close()
    return stream.getvalue().splitlines()


def test_first_and_last_line() -> None:
    first, last = lines_of([started(before=1), task(), sample(), committed(), RunFinished("done")])
    assert first == "clean: 3 stages, 4 partitions, 1 done before, 2.0 MB, executor local"
    assert last == "clean done: 2/4 partitions · 100 rows read (2.5/s) · 60 written · peak memory 5.0 MB · 40 s"


def test_without_a_writer_nothing_is_committed_or_written() -> None:
    *_, last = lines_of([started(output=None), task(), sample(), RunFinished("done")])
    assert last == "clean done: 4 partitions · 100 rows read (3.3/s) · peak memory 5.0 MB · 30 s"


def test_of_several_pipelines_each_is_shown_from_zero() -> None:
    one: list[Event] = [started(), task(), sample(), committed(), RunFinished("done")]
    lines = lines_of([*one, *one])
    assert len(lines) == 4
    assert lines[:2] == lines[2:]


def test_a_failed_step_is_told_once() -> None:
    """A pipeline that fails in one of its steps announces its end behind that of the step."""
    assert len(lines_of([started(), RunFinished("failed", "no space"), RunFinished("failed", "no space")])) == 2


def test_one_line_per_interval() -> None:
    events: list[Event] = [started(), *[task(number) for number in range(30)], RunFinished("done")]
    # 30 tasks, ten seconds apart, are five whole minutes.
    assert len(lines_of(events)) == 1 + 5 + 1
    assert len(lines_of(events, interval=100_000)) == 2


def test_a_line_has_what_matters() -> None:
    events = [started(), RecordsQuarantined(0, "read", "not_json", 2), committed(), sample(), task(), task()]
    line = lines_of(events, interval=50)[-1]
    for part in ("1/4 partitions", "2 quarantined", "1/2 workers busy", "queue 3 (3.0 KB)", "memory 5.0 MB", "left"):
        assert part in line


def test_notices_are_shown_at_once() -> None:
    assert lines_of([Notice("compiling"), Notice("disk nearly full", "warning")]) == [
        "compiling",
        "warning: disk nearly full",
    ]


def test_the_last_line_says_that_it_failed() -> None:
    assert lines_of([started(), RunFinished("failed", "no space")])[-1].startswith("clean failed: 0/4 partitions")


def test_a_stream_that_knows_only_ascii_gets_question_marks() -> None:
    raw = io.BytesIO()
    display = make_listener("lines", stream=io.TextIOWrapper(raw, encoding="ascii"))
    display(Notice("schöne Grüße"))
    assert raw.getvalue() == b"sch?ne Gr??e\n"


@pytest.mark.parametrize("kind", ["lines", "live"])
def test_a_broken_stream_does_not_break_the_run(kind: str) -> None:
    display = make_listener(kind, stream=Broken())  # type: ignore[arg-type]
    for event in (started(), task(), Notice("hello"), RunFinished("done")):
        display(event)
    display.close()


def test_a_closed_stream_does_not_break_the_run() -> None:
    stream = Terminal()
    display = make_listener("live", stream=stream)
    display(started())
    stream.close()
    for event in (task(), sample(), RunFinished("done")):
        display(event)
    display.close()


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def live(events: list[Event], monkeypatch: pytest.MonkeyPatch, *, columns: int = 160, rows: int = 40) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", str(rows))
    monkeypatch.setenv("TERM", "xterm-256color")
    stream, clock = Terminal(), Clock()
    display = make_listener("auto", stream=stream, now=clock)
    assert isinstance(display, LiveDisplay)
    for event in events:
        clock.time += 1
        display(event)
    display.close()
    return stream.getvalue()


def test_live_table(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = plain(live([started(), task(), sample(), committed(), task(1)], monkeypatch))
    assert re.search(r"words +100 +60 +40\.0 % +\d+/s", shown)
    assert "2 stages have dropped nothing so far" in shown
    assert not re.search(r"^(read|write) ", shown, re.MULTILINE)
    assert "1/4 partitions" in shown
    assert re.search(r"━+ 25\.0 % +1/4 partitions .* 3\.00 s · 9\.00 s left", shown)
    # A partition under way counts by its rows, at the size of those that are done.
    assert re.search(r"━+ 50\.0 % +1/4 partitions .* 4\.00 s · 4\.00 s left", shown)


def test_no_rate_is_shown_before_there_are_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Event] = [started(), KernelCompiling("words"), KernelCompiling("lines"), TaskStarted("0", 0, 0, 0)]
    shown = plain(live(events, monkeypatch))
    for doing in ("starting", "compiling kernels (1 so far)", "compiling kernels (2 so far)", "reading the first doc"):
        assert f"0/4 partitions · {doing}" in shown
    assert "0/s" not in shown
    assert "dropped nothing" not in shown
    # What compiling took tells nothing about the time that is left, nor about the rate.
    shown = plain(live([*events, task(), committed()], monkeypatch))
    assert "100 rows read (33/s)" in shown
    assert "5.00 s · 9.00 s left" in shown
    line = lines_of([started(), KernelCompiling("words"), KernelCompiling("lines")], interval=15)[-1]
    assert line == "0/4 partitions · compiling kernels (2 so far) · 0 written · 20 s"


def test_a_notice_for_the_whole_command_is_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    once = Notice("Compiling kernels", once=True)
    events: list[Event] = [started(), once, RunFinished("done"), started(), once, Notice("again"), Notice("again")]
    shown = lines_of(events)
    assert shown.count("Compiling kernels") == 1
    assert shown.count("again") == 2
    assert plain(live(events, monkeypatch)).count("Compiling kernels") == 1


def test_a_redone_task_is_counted_once() -> None:
    again = replace(task(), attempt=2)
    line = lines_of([started(), task(), again, task(1)], interval=25)[-1]
    assert "200 rows read" in line
    # The same task in another segment is other work.
    progress = Progress()
    for event in (started(), task(), replace(task(), segment=1), again, committed()):
        progress(event)
    assert progress.stages["words"].rows_in == 200


def test_live_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    names = tuple(f"stage{number}" for number in range(30))
    counts = {name: StageCount(rows_in=9, rows_out=8, dropped={"x": 1}) for name in names}
    shown = plain(live([started(stages=names), replace(task(), counts=counts)], monkeypatch, rows=15))
    assert "stage9" in shown
    assert "stage10" not in shown
    assert "and 20 more stages" in shown


def test_names_from_users_are_not_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("[red]x[/red]", "[/]", ":smile:")
    counts = {name: StageCount(rows_in=9, rows_out=8, dropped={"x": 1}) for name in names}
    events = [started(stages=names), replace(task(), counts=counts), Notice("[bold]no[/bold] [/]")]
    shown = plain(live(events, monkeypatch))
    for text in ("[red]x[/red]", "[/]", ":smile:", "[bold]no[/bold] [/]"):
        assert text in shown


def test_live_gives_the_cursor_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for events in ([started(), task()], [started(), RunFinished("done")]):
        shown = live(list(events), monkeypatch)
        assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


@pytest.mark.parametrize("term", ["", "dumb"])
def test_auto_is_lines_where_the_cursor_cannot_move(term: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", term)
    assert isinstance(make_listener("auto", stream=Terminal()), LineDisplay)
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(make_listener("auto", stream=io.StringIO()), LineDisplay)


def test_off_and_unknown() -> None:
    assert type(make_listener("off")) is Display
    with pytest.raises(UsageError, match="display='loud'"):
        make_listener("loud")  # type: ignore[arg-type]


def test_lines_come_while_no_event_does() -> None:
    """A task may take longer than the interval; afterwards nothing is written any more."""
    stream = io.StringIO()
    display = make_listener("lines", stream=stream, logging_interval=0.05)
    display(started())
    give_up = time.monotonic() + 60
    while stream.getvalue().count("\n") < 3 and time.monotonic() < give_up:
        time.sleep(0.01)
    display(RunFinished("done"))
    first, *between, last = stream.getvalue().splitlines()
    assert first.startswith("clean: 3 stages")
    assert len(between) >= 2
    assert all("0/4 partitions" in line for line in between)
    assert last.startswith("clean done")
    assert not [thread for thread in threading.enumerate() if thread.name == "gristmill-progress"]


def test_lines_stop_when_the_stream_is_gone() -> None:
    display = make_listener("lines", stream=Broken(), logging_interval=0.05)
    display(started())
    display(Notice("x"))
    display.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "gristmill-progress"]
