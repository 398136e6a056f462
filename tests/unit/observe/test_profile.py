"""The profile of a run: which kind of work a stack shows, and how samples add up."""

from __future__ import annotations

import dis
import inspect
import linecache
import os
import signal
import sys
import sysconfig
import threading
import time
from typing import Any

import numpy as np
import orjson
import pytest

import gristmill
from gristmill.errors import UsageError
from gristmill.kernels import hashing
from gristmill.observe.profile.call_site import called_frame
from gristmill.observe.profile.kinds import KERNELS, KINDS, WAIT, Frame, kind_of, origin, shown_file
from gristmill.observe.profile.profile import BETWEEN, DRIVER, add_up
from gristmill.observe.profile.sampler import WAIT_INTERVAL_S, Sampler
from gristmill.observe.profile.session import ProfileSession

PACKAGE = os.path.dirname(gristmill.__file__)
PURE = sysconfig.get_path("purelib")
STANDARD = sysconfig.get_path("stdlib")


def ours(file: str, name: str = "f") -> Frame:
    return Frame(f"{PACKAGE}/{file}", name)


def standard(file: str, name: str) -> Frame:
    return Frame(f"{STANDARD}/{file}", name)


USER = Frame("/home/me/my stage <b>.py", "Slow.process")
CALL = ours("execution/stage_call.py", "DirectCalls.call")
PYARROW = Frame(f"{PURE}/pyarrow/parquet/core.py", "read_table")
TORCH = Frame(f"{PURE}/torch/nn/modules/module.py", "_call_impl")
NUMBA = Frame(f"{PURE}/numba/core/compiler.py", "compile_extra")
IMPORT = Frame("<frozen importlib._bootstrap>", "_find_and_load")
READER = ours("storage/jsonl_blocks.py", "read_blocks")
WRITER = ours("storage/jsonl_sink.py", "JsonlSink.append")
FILTER = ours("stages/text/filters/cascade.py", "FusedFilters.process")


@pytest.mark.parametrize(
    ("stack", "kind"),
    [
        ([CALL, FILTER, ours("kernels/ngrams.py", "ngram_counts")], "kernels"),
        ([CALL, READER, ours("kernels/json_scan.py", "scan")], "kernels"),
        ([CALL, USER], "user"),
        ([CALL, USER, standard("re.py", "sub")], "user"),
        ([CALL, USER, TORCH], "libraries"),
        ([CALL, USER, TORCH, standard("functools.py", "wrapper")], "libraries"),
        ([CALL, FILTER, TORCH], "libraries"),
        ([CALL, FILTER], "own"),
        ([CALL, READER], "reading"),
        ([CALL, READER, PYARROW], "reading"),
        ([CALL, READER, standard("threading.py", "Condition.wait")], "reading"),
        ([CALL, WRITER], "writing"),
        ([CALL, WRITER, ours("storage/json_columns.py", "encode")], "writing"),
        ([ours("execution/partition_output.py", "PartitionOutput.commit"), standard("os.py", "fsync")], "writing"),
        ([ours("backends/local/worker.py", "_in_turn"), Frame(WAIT, "groups.get")], "waiting"),
        ([ours("backends/local/engine.py", "Engine._wait"), standard("selectors.py", "X.select")], "waiting"),
        ([CALL, USER, Frame(WAIT, "time.sleep")], "waiting"),
        ([CALL, USER, standard("threading.py", "Thread.join")], "waiting"),
        ([CALL, USER, standard("json/decoder.py", "wait")], "user"),
        ([CALL, FILTER, ours("kernels/numba_internals.py", "load"), NUMBA], "starting"),
        ([CALL, USER, IMPORT, Frame("/home/me/other.py", "<module>")], "starting"),
        ([IMPORT, Frame("/home/me/script.py", "<module>"), CALL, USER], "user"),
        ([ours("execution/runner.py", "SegmentRunner.setup"), USER, TORCH], "starting"),
        ([standard("threading.py", "Thread._bootstrap")], "own"),
        ([PYARROW], "libraries"),
        ([], "own"),
    ],
)  # fmt: skip
def test_the_innermost_frame_that_is_somebodys_decides(stack: list[Frame], kind: str) -> None:
    assert kind_of(stack) == kind


def test_every_file_of_ours_has_a_kind() -> None:
    kinds = set(KINDS)
    for folder, _, files in os.walk(PACKAGE):
        assert {origin(os.path.join(folder, file)) for file in files if file.endswith(".py")} <= kinds


def test_files_lose_the_folders_of_the_machine_but_not_the_users() -> None:
    assert shown_file(READER.file) == "gristmill/storage/jsonl_blocks.py"
    assert shown_file(PYARROW.file) == "pyarrow/parquet/core.py"
    assert shown_file(f"{STANDARD}/re.py") == "python/re.py"
    assert shown_file(USER.file) == USER.file


# --- what a frame calls ---


def site(function: Any, text: str) -> tuple[str, str, int] | None:
    """What is found for the call written as `text(…` in the source."""
    lines, first = inspect.getsourcelines(function)
    wanted = [first + at for at, line in enumerate(lines) if text in line]
    for instruction in dis.get_instructions(function):
        place = instruction.positions
        if instruction.opname == "CALL" and place is not None and place.lineno in wanted:
            return called_frame(function.__code__, instruction.offset, function.__globals__)
    raise AssertionError(text)


def calls(given: Any, texts: dict[str, str]) -> None:
    given.acquire()
    texts.get("a")
    time.sleep(
        0.0,
    )
    len(texts)
    calls(given, texts)


def test_a_call_of_a_kernel_is_a_frame_of_its_own() -> None:
    source = "def calling(a):\n    return hashing.second_hashes(\n        a, a)\n"
    names: dict[str, Any] = {"hashing": hashing}
    linecache.cache["<made>"] = (len(source), None, source.splitlines(keepends=True), "<made>")
    exec(compile(source, "<made>", "exec"), names)
    at = next(one.offset for one in dis.get_instructions(names["calling"]) if one.opname == "CALL")
    found = called_frame(names["calling"].__code__, at, names)
    assert found is not None
    assert found[0].startswith(KERNELS)
    assert found[1] == "second_hashes"
    linecache.cache["<made>"] = (1, None, ["something else\n"], "<made>")
    assert called_frame(names["calling"].__code__, at, names) is None


def test_sleeping_is_waiting_and_a_dictionary_is_not() -> None:
    assert site(calls, "time.sleep(") == (WAIT, "time.sleep", 0)
    assert site(calls, "texts.get(") is None
    assert site(calls, "given.acquire(") is None  # in the user's code it may be anything
    assert site(calls, "len(texts)") is None
    assert site(calls, "calls(given, texts)") is None


# --- samples ---


def burn(seconds: float) -> int:
    until, found = time.process_time() + seconds, 0
    while time.process_time() < until:
        found += sum(range(100))
    return found


def test_seconds_add_up_to_the_time_of_the_process_and_go_to_the_stage_at_work() -> None:
    session = ProfileSession("p")
    begun = time.perf_counter()
    with session.in_process([["first", "second"], ["third"]]) as steps:
        steps[0].at(0, 1, 0, 0)
        burn(0.15)
        steps[1].at(0, 0, 0, 0)
        burn(0.05)
    profile = session.finish()
    took = time.perf_counter() - begun
    by_name = {row.stage: row for row in profile.stages}
    assert list(by_name) == ["first", "second", "third", DRIVER]
    assert sum(row.seconds for row in profile.stages) == pytest.approx(took, abs=0.05)
    assert by_name["first"].seconds == 0
    assert by_name["second"].kinds["user"] > 0.8 * by_name["second"].seconds
    assert by_name["second"].processor_s == pytest.approx(0.15, abs=0.04)
    assert by_name["third"].processor_s == pytest.approx(0.05, abs=0.03)
    assert profile.processes[0].seconds == pytest.approx(sum(row.seconds for row in profile.stages))


def test_waits_end_where_work_begins() -> None:
    places = ["waiting", "working"]
    now = [0]
    with Sampler("p", places, lambda: now[0]) as sampler:
        for _ in range(3):
            now[0] = 0
            threading.Event().wait(0.15)
            now[0] = 1
            burn(0.05)
    raw = sampler.snapshot()
    waiting, working = add_up("p", [raw]).stages
    assert waiting.seconds >= 0.3  # of 0.45, less what passes before a wait is seen
    assert working.processor_s == pytest.approx(0.15, abs=0.05)
    assert waiting.seconds + working.seconds == pytest.approx(raw["seconds"])
    seen = sum(stack[5] for stack in raw["stacks"] if stack[0] == 0 and not stack[1])
    assert seen <= 1.2 * waiting.seconds / WAIT_INTERVAL_S + 3


def test_other_threads_count_with_what_they_take_of_a_processor() -> None:
    over = threading.Event()
    taken: list[float] = []

    def work() -> None:
        while not over.is_set():
            burn(0.01)
        taken.append(time.thread_time())

    with Sampler("p", ["a"], lambda: 0) as sampler:
        worker, waiting = threading.Thread(target=work), threading.Thread(target=over.wait)
        worker.start()
        waiting.start()
        seen = slept = 0.0
        while seen < 0.05 or slept < 0.5:  # on a busy machine the sampler's thread may have to wait for its turn
            begun = time.perf_counter()
            time.sleep(0.05)
            slept += time.perf_counter() - begun
            with sampler._counting:
                seen = sum(stack[4] for stack in sampler.snapshot()["stacks"] if stack[1])
        over.set()
        worker.join()
        waiting.join()
    profile = add_up("p", [sampler.snapshot()])
    (row,) = profile.stages
    assert row.kinds["waiting"] > 0.7 * slept
    assert seen <= row.other_threads_s < taken[0] + 0.05


def test_a_file_is_left_for_those_who_outlive_the_process(tmp_path: Any) -> None:
    path = tmp_path / "samples.json"
    with Sampler("w", ["a"], lambda: -1, str(path)):
        burn(0.02)
    raw = orjson.loads(path.read_bytes())
    assert raw["process"] == "w"
    assert raw["seconds"] == pytest.approx(sum(stack[3] for stack in raw["stacks"]))
    assert os.listdir(tmp_path) == ["samples.json"]


def test_deep_recursion_and_many_stacks_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gristmill.observe.profile.sampler._MOST_STACKS", 3)

    def deep(levels: int) -> None:
        if levels:
            deep(levels - 1)
        else:
            sampler._sample(sys._getframe())

    sampler = Sampler("p", [], lambda: -1)
    sampler._last = time.perf_counter()
    sampler._main = threading.get_ident()
    for levels in (*range(20), 600):
        deep(levels)
    raw = sampler.snapshot()
    assert len(raw["stacks"]) <= 4
    assert max(len(stack[2]) for stack in raw["stacks"]) <= 200


def raw_process(name: str, stacks: list[tuple[int, int, list[Frame], float, float]], stages: list[str]) -> Any:
    frames = sorted({frame for stack in stacks for frame in stack[2]})
    return {
        "process": name, "pid": 7, "seconds": 1.0, "samples": len(stacks), "has_processor_time": True,
        "stages": stages, "frames": frames,
        "stacks": [
            [place, beside, [frames.index(one) for one in reversed(stack)], seconds, spent, 1]
            for place, beside, stack, seconds, spent in stacks
        ],
    }  # fmt: skip


def test_processes_are_added_up_by_stage() -> None:
    worker = [
        (0, 0, [CALL, READER], 1.0, 0.5),
        (1, 0, [CALL, USER], 2.0, 2.0),
        (1, 1, [USER], 0.0, 0.75),
        (-1, 0, [ours("backends/local/worker.py", "_in_turn"), Frame(WAIT, "groups.get")], 0.5, 0.0),
    ]
    driver = raw_process(DRIVER, [(-1, 0, [ours("pipeline/pipeline.py", "run")], 4.0, 0.1)], [])
    workers = [raw_process(f"worker {number}", worker, ["reader", "slow"]) for number in (1, 2)]
    profile = add_up("p", [driver, *workers])
    assert [row.stage for row in profile.stages] == ["reader", "slow", BETWEEN, DRIVER]
    assert [row.seconds for row in profile.stages] == [2.0, 4.0, 1.0, 4.0]
    assert profile.stages[1].other_threads_s == 1.5
    assert profile.seconds == 7.0
    assert [one.seconds for one in profile.processes] == [4.0, 3.5, 3.5]
    head, rows = profile.table()
    assert rows[1][head.index("your Python")] == "4.00"
    assert rows[1][head.index("share")] == "57.1 %"
    assert rows[3][head.index("share")] == "–"
    assert "worker 2 (pid 7): 3.50 s" in str(profile)


def test_the_file_for_other_tools_names_frames_and_weights() -> None:
    stacks = [(0, 0, [CALL, USER, TORCH], 1.5, 1.0), (0, 0, [CALL, FILTER, NUMBA, NUMBA], 0.5, 0.1)]
    found = add_up("p", [raw_process("worker 1", stacks, ["slow"])]).speedscope()
    frames = found["shared"]["frames"]
    (profile,) = found["profiles"]
    assert profile["type"] == "sampled"
    assert profile["unit"] == "seconds"
    assert profile["endValue"] == sum(profile["weights"]) == 2.0
    names = [[frames[number]["name"] for number in sample] for sample in profile["samples"]]
    assert names == [["slow", "Slow.process", "_call_impl"], ["slow", "FusedFilters.process", "compile_extra"]]
    assert frames[1]["file"] == USER.file
    assert found["gristmill"]["stages"][0]["kinds"] == {"libraries": 1.5, "starting": 0.5}


def test_profiles_are_for_the_local_executor() -> None:
    from gristmill.backends.local import LocalExecutor
    from gristmill.pipeline.profiled_run import begin_profile

    class Elsewhere(LocalExecutor):
        name = "elsewhere"
        can_profile = False

    with pytest.raises(UsageError, match=r"works on the local executor only; 'elsewhere'.*--sample"):
        begin_profile("p", Elsewhere())
    given = LocalExecutor()
    session, chosen = begin_profile("p", given)
    session.close()
    assert given.profile is None
    assert chosen.profile is session


def test_python_between_kernels_is_not_overlooked() -> None:
    """Pieces of less than a millisecond, in turns."""
    data = np.zeros(5_000_000, dtype=np.uint8)
    offsets = np.arange(0, len(data) + 1, 1000)
    hashing.second_hashes(data, offsets)
    spent = {"kernels": 0.0, "user": 0.0}
    with Sampler("p", ["a"], lambda: 0) as sampler:
        while sum(spent.values()) < 0.5:
            begun = time.thread_time()
            hashing.second_hashes(data, offsets)
            middle = time.thread_time()
            sum(number for number in range(8_000))
            spent["kernels"] += middle - begun
            spent["user"] += time.thread_time() - middle
    raw = sampler.snapshot()
    seen = dict.fromkeys(spent, 0.0)
    for _, beside, numbers, _, on_processor, _ in raw["stacks"]:
        kind = kind_of([Frame(*raw["frames"][number]) for number in reversed(numbers)])
        if not beside and kind in seen:
            seen[kind] += on_processor
    true = spent["user"] / sum(spent.values())
    assert 0.2 < true < 0.8
    assert seen["user"] / sum(seen.values()) == pytest.approx(true, abs=0.25)


def test_the_signal_is_given_back_and_not_taken_from_others() -> None:
    with Sampler("p", [], lambda: -1):
        assert signal.getsignal(signal.SIGPROF) != signal.SIG_DFL
    assert signal.getsignal(signal.SIGPROF) == signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)
    mine = signal.signal(signal.SIGPROF, signal.SIG_IGN)
    try:
        with Sampler("p", ["a"], lambda: 0) as sampler:
            assert signal.getsignal(signal.SIGPROF) == signal.SIG_IGN
            burn(0.1)
    finally:
        signal.signal(signal.SIGPROF, mine)
    (row,) = add_up("p", [sampler.snapshot()]).stages
    assert row.kinds["user"] > 0.5 * row.seconds
    assert row.processor_s == pytest.approx(0.1, abs=0.03)


def test_a_run_in_another_thread_is_sampled_too() -> None:
    found = []

    def work() -> None:
        with Sampler("p", ["a"], lambda: 0) as sampler:
            burn(0.1)
        found.append(sampler.snapshot())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    (row,) = add_up("p", found).stages
    assert row.kinds["user"] > 0.5 * row.seconds


def test_kernels_are_seen_while_they_run() -> None:
    """The frame that called compiled code, and the name of what it called."""
    data = np.zeros(20_000_000, dtype=np.uint8)
    offsets = np.arange(0, len(data) + 1, 1000)
    hashing.second_hashes(data, offsets)
    with Sampler("p", ["a"], lambda: 0) as sampler:
        until = time.perf_counter() + 0.3
        while time.perf_counter() < until:
            hashing.second_hashes(data, offsets)
    profile = add_up("p", [sampler.snapshot()])
    assert profile.stages[0].kinds["kernels"] > 0.7 * profile.seconds
    assert max(profile.stacks, key=lambda stack: stack.seconds).frames[-1].name == "second_hashes"
