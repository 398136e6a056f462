"""Metrics at a port and in a file, from the beginning of a run to its end."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

from gristmill.errors import MissingExtraError, UsageError
from gristmill.metrics import places
from gristmill.metrics.export import MetricsExport
from gristmill.observe.events import Event, Notice
from gristmill.pipeline import Pipeline
from gristmill.stages.text.io.reader import JsonlReader
from gristmill.stages.text.io.writer import JsonlWriter


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def _pipeline(tmp_path: Path) -> Pipeline:
    source = tmp_path / "in.jsonl"
    source.write_text('{"id": "a", "text": "one"}\n{"id": "b", "text": "two"}\n')
    return Pipeline("small", stages=[JsonlReader(str(source)), JsonlWriter(str(tmp_path / "out"))])


def test_a_run_serves_its_metrics_at_a_free_port_and_is_listed(tmp_path: Path) -> None:
    pages: list[str] = []
    listed: list[Path] = []
    modes: list[int] = []

    def look(event: Event) -> None:
        if isinstance(event, Notice) and event.message.startswith("Metrics: "):
            url = event.message.removeprefix("Metrics: ")
            with urllib.request.urlopen(url, timeout=10) as answer:
                pages.append(answer.read().decode())
            files = places.sweep_targets()
            listed.extend(files)
            modes.append(places.targets_folder().stat().st_mode & 0o777)
            (group,) = json.loads(files[0].read_text())
            assert group["targets"][0] in url

    _pipeline(tmp_path).run(listeners=[look], metrics_port=0, progress=False)
    assert 'gristmill_run_info{executor="local"' in pages[0]
    assert len(listed) == 1
    assert modes == [0o700]
    assert not list(places.targets_folder().iterdir()), "the list is empty when the run is over"


def test_two_runs_at_once_have_ports_and_names_of_their_own() -> None:
    with closing(MetricsExport("p", port=0)) as one, closing(MetricsExport("p", port=0)) as two:
        assert one.notice != two.notice
        assert len(places.sweep_targets()) == 2
        pages = []
        for export in (one, two):
            export(Notice("x"))
            with urllib.request.urlopen(export.notice.removeprefix("Metrics: "), timeout=10) as answer:
                pages.append(answer.read().decode())
        runs = [
            {line.split('run="')[1].split('"')[0] for line in page.splitlines() if 'run="' in line} for page in pages
        ]
        assert [len(names) for names in runs] == [1, 1]
        assert runs[0] != runs[1]


def test_metrics_are_not_reachable_from_elsewhere() -> None:
    with closing(MetricsExport("p", port=0)) as export:
        port = int(export.notice.rsplit(":", 1)[1].split("/")[0])
        with socket.create_server(("127.0.0.2", port)):
            pass  # it would be in use, were it bound to all addresses


def test_a_port_in_use_is_one_sentence_before_anything_is_written(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"^Port {port} of this machine is in use. Choose another metrics port"):
            _pipeline(tmp_path).run(metrics_port=port, progress=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("port", [-1, 70_000])
def test_a_port_that_cannot_be(port: int) -> None:
    with pytest.raises(UsageError, match=f"^Port {port} cannot be used for metrics"):
        MetricsExport("p", port=port)


def test_the_file_has_the_last_figures_of_a_run(tmp_path: Path) -> None:
    file = tmp_path / "small.prom"
    _pipeline(tmp_path).run(metrics_file=file, progress=False)
    text = file.read_text()
    assert "gristmill_documents_written_total{" in text
    assert 'status="done"} 1.0' in text
    assert [path.name for path in tmp_path.glob("small*")] == ["small.prom"]
    assert not places.targets_folder().exists(), "nobody listens at a port"


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be written: No such file or directory. Name a file in an existing"):
        _pipeline(tmp_path).run(metrics_file=tmp_path / "nowhere" / "x.prom", progress=False)


def test_without_a_place_for_the_list_the_metrics_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with closing(MetricsExport("p", port=0)) as export:
        assert "http://127.0.0.1:" in export.notice


def test_what_killed_runs_left_is_swept() -> None:
    code = (
        "from gristmill.metrics.export import MetricsExport\n"
        "import os, signal\n"
        "held = MetricsExport('p', port=0)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    left = list(places.targets_folder().iterdir())
    assert len(left) == 1
    mine = places.targets_folder() / "other.json"
    mine.write_text("[]")
    with closing(MetricsExport("p", port=0)):
        assert len(places.sweep_targets()) == 1
        assert not left[0].exists()
    assert mine.exists(), "what we did not write stays"


def test_a_process_that_has_the_number_of_a_dead_one_is_not_taken_for_it() -> None:
    folder = places.make_private(places.targets_folder())
    (folder / f"run-{os.getpid()}-1-9999.json").write_text("[]")
    assert places.sweep_targets() == []
    assert not list(folder.iterdir())


def test_who_lacks_the_package_is_told_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'gristmill\[monitor\]'"):
        MetricsExport("p", port=0)
