"""Clusters: found, started, left alone, and losing a node in the middle of a run."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gristmill.backends.ray_data import RayDataExecutor
from gristmill.errors import UsageError, WorkerError
from tests.contract.executor_suite import make_input

pytestmark = [pytest.mark.ray, pytest.mark.slow]
_SCRIPT_S = 540
"""Ray takes a minute to notice a lost node, and far longer to do anything on a busy machine."""


def _run(script: str, folder: Path, *arguments: str, **environment: str) -> str:
    """Run a script in a process of its own, which may start and kill what it likes."""
    file = folder / "script.py"
    file.write_text(textwrap.dedent(script))
    root = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    return _python(str(file), *arguments, PYTHONPATH=path, **environment)


def _python(*arguments: str, cells: str | None = None, folder: Path | None = None, **environment: str) -> str:
    """What a Python process prints; `cells` is its standard input."""
    variables = {**os.environ, "RAY_worker_niceness": "0", **environment}
    variables.pop("RAY_ADDRESS", None)
    done = subprocess.run(
        [sys.executable, *arguments],
        input=cells,
        cwd=folder,
        capture_output=True,
        text=True,
        env=variables,
        timeout=_SCRIPT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_a_cluster_that_was_there_is_used_and_stays(ray_cluster: str, tmp_path: Path) -> None:
    import ray

    from gristmill.pipeline import Pipeline
    from gristmill.stages.text.io.reader import JsonlReader

    source = make_input(tmp_path / "in", files=2)
    result = Pipeline("p", stages=[JsonlReader(str(source), files_per_partition=1)]).run(executor="ray_data")
    assert result.report.rows_read == 80
    assert ray.is_initialized()
    assert ray.get_runtime_context().gcs_address == ray_cluster


def test_addresses_that_cannot_work(ray_cluster: str) -> None:
    """Refused before anything is started; the connected cluster is not asked for another address."""
    from gristmill.backends.ray.cluster import ClusterConfig, _connect, _unreachable

    with pytest.raises(UsageError, match="ray job submit"):
        _connect(ClusterConfig(), "ray://somewhere:10001", {})
    error = _unreachable("10.0.0.1:6379", ConnectionError("Failed to connect"))
    assert isinstance(error, WorkerError)
    assert "RAY_AUTH_TOKEN" in str(error)


def test_head_node_alone_cannot_be_ignored(ray_cluster: str) -> None:
    with pytest.raises(WorkerError, match="head"):
        RayDataExecutor(ignore_head_node=True).capacity()


@pytest.mark.cluster
@pytest.mark.timeout(_SCRIPT_S + 30)
@pytest.mark.parametrize("kind", ["ray_data tasks", "ray_data workers", "xenna workers"])
def test_a_node_is_lost(tmp_path: Path, kind: str) -> None:
    """Two local nodes, one killed with -9 in the middle: the files are those of an undisturbed run."""
    executor, work = kind.split()
    if executor == "xenna":
        pytest.importorskip("cosmos_xenna")
    make_input(tmp_path / "in", files=12)
    printed = _run(
        """
        import os, sys, threading, time
        from pathlib import Path
        import psutil
        import ray
        from ray.cluster_utils import Cluster
        from gristmill.ledger.prove.verify import verify
        from gristmill.pipeline import Pipeline
        from gristmill.stages.text.io.reader import JsonlReader
        from gristmill.stages.text.io.writer import JsonlWriter
        from gristmill.stages.base import ProcessingStage
        from gristmill.stages.resources import Resources
        from tests.contract import stages
        from tests.contract.executor_suite import InProcess, contents

        folder, executor, work = Path(sys.argv[1]), sys.argv[2], sys.argv[3]

        def wait_for(condition):
            end = time.monotonic() + 200
            while not condition() and time.monotonic() < end:
                time.sleep(0.02)

        class Waits(ProcessingStage):
            # From the second partition on it goes on only after the node is lost.

            name = "waits"

            def __init__(self, folder):
                self.folder = folder

            def process(self, task):
                if ray.is_initialized() and task.column("n")[0].as_py() >= 40:
                    note = self.folder / f"begun-{ray.get_runtime_context().get_node_id()}"
                    note.with_suffix(".new").write_text(str(os.getpid()))
                    note.with_suffix(".new").rename(note)
                    wait_for((self.folder / "lost").exists)
                return task

        class Stays(Waits):
            needs_own_worker = True

        def pipeline(name):
            waits = Waits(folder) if work == "tasks" else Stays(folder)
            if executor == "xenna" and name == "there":
                # Too large for two of them on a node, which is where Xenna would put them as often as not.
                waits = waits.with_(num_workers=2, resources=Resources(cpus=2))
            return Pipeline("p", stages=[
                JsonlReader(str(folder / "in"), files_per_partition=1), waits, stages.DropEveryThird(),
                JsonlWriter(str(folder / name))])

        pipeline("here").run(executor=InProcess())
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        second = cluster.add_node(num_cpus=2)
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        begun = folder / f"begun-{second.node_id}"

        def kill():
            wait_for(begun.exists)
            cluster.remove_node(second, False)
            (folder / "lost").touch()

        threading.Thread(target=kill, daemon=True).start()
        result = pipeline("there").run(executor=executor)
        assert (folder / "lost").exists()
        wait_for(lambda: not psutil.pid_exists(int(begun.read_text())))
        assert not psutil.pid_exists(int(begun.read_text())), "a worker has outlived its node"
        assert contents(folder / "here") == contents(folder / "there")
        assert verify(str(folder / "there")).ok
        print("rows", result.report.rows_written)
        ray.shutdown()
        cluster.shutdown()
        """,
        tmp_path,
        str(tmp_path),
        executor,
        work,
    )
    assert "rows 320" in printed


@pytest.mark.cluster
@pytest.mark.timeout(_SCRIPT_S + 30)
@pytest.mark.parametrize("executor", ["ray_data", "xenna"])
def test_work_is_kept_off_the_head(tmp_path: Path, executor: str) -> None:
    """A head that has processors, and one that has none, with stages that hold something and stages that do not."""
    if executor == "xenna":
        pytest.importorskip("cosmos_xenna")
    make_input(tmp_path / "in", files=6)
    printed = _run(
        """
        import sys
        from pathlib import Path
        import ray
        from ray.cluster_utils import Cluster
        from gristmill.backends.registry import get_executor
        from gristmill.pipeline import Pipeline
        from gristmill.stages.text.io.reader import JsonlReader
        from tests.integration.ray.ray_stages import Noted, SaysNode, notes

        folder, name = Path(sys.argv[1]), sys.argv[2]
        for cpus in (4, 0):
            where = folder / f"notes-{cpus}"
            where.mkdir()
            cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cpus, "include_dashboard": False})
            cluster.add_node(num_cpus=2)
            ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
            head = ray.get_runtime_context().get_node_id()
            executor = get_executor(name)
            executor.ignore_head_node = bool(cpus)
            result = Pipeline("p", stages=[
                JsonlReader(str(folder / "in"), files_per_partition=1), SaysNode(), Noted(where, seconds=0.1)
            ]).run(executor=executor)
            said = {node for task in result for node in task.column("node").to_pylist()}
            assert len(said) == 1 and head not in said, said
            assert {note["node"] for note in notes(where, "node")} == said
            ray.shutdown()
            cluster.shutdown()
            print("kept off", cpus)
        """,
        tmp_path,
        str(tmp_path),
        executor,
    )
    assert printed.count("kept off") == 2


@pytest.mark.cluster
@pytest.mark.timeout(_SCRIPT_S + 30)
def test_client_starts_and_stops_its_own_cluster(ray_cluster: str, tmp_path: Path) -> None:
    """The default ports may be taken; the variables are put back; the other cluster on the machine stays."""
    import ray

    make_input(tmp_path / "in", files=2)
    printed = _run(
        """
        import os, subprocess, sys
        from gristmill.core.client import RayClient
        from gristmill.pipeline import Pipeline
        from gristmill.stages.text.io.reader import JsonlReader

        os.environ.pop("RAY_AUTH_MODE", None)
        with RayClient(num_cpus=1, include_dashboard=False) as client:
            assert os.environ["RAY_ADDRESS"] == client.address
            pipeline = Pipeline("p", stages=[JsonlReader(sys.argv[1], files_per_partition=1)])
            print("rows", pipeline.run(executor="ray_data").report.rows_read)
            # Somebody else on the machine, who has not been given the token of this cluster.
            others = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
            ask = "from gristmill.backends.ray_data import RayDataExecutor; RayDataExecutor().capacity()"
            asked = subprocess.run(
                [sys.executable, "-W", "ignore", "-c", ask], env=others, capture_output=True, text=True)
            last = asked.stderr.strip().splitlines()[-1]
            assert asked.returncode and "RAY_AUTH_MODE=token" in last and "ray get-auth-token" in last, last
        assert "RAY_ADDRESS" not in os.environ and "RAY_AUTH_TOKEN" not in os.environ
        import ray
        assert not ray.is_initialized()
        """,
        tmp_path,
        str(tmp_path / "in"),
    )
    assert "rows 80" in printed
    assert ray.cluster_resources()["CPU"] == 2.0


@pytest.mark.cluster
@pytest.mark.timeout(_SCRIPT_S + 30)
def test_every_node_is_set_up_once_for_every_stage(tmp_path: Path) -> None:
    """Two nodes, two stages with two workers on each node; and the user's own connection stays."""
    make_input(tmp_path / "in", files=12)
    (tmp_path / "notes").mkdir()
    printed = _run(
        """
        import sys
        from collections import Counter
        from pathlib import Path
        import ray
        from ray.cluster_utils import Cluster
        from gristmill.pipeline import Pipeline
        from gristmill.stages.resources import Resources
        from gristmill.stages.text.io.reader import JsonlReader
        from tests.integration.ray.ray_stages import Noted, notes

        folder = Path(sys.argv[1])
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        cluster.add_node(num_cpus=2)
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        both = [
            Noted(folder / "notes", name=name, seconds=0.2).with_(
                num_workers=4, resources=Resources(cpus=0.4), ray_stage_spec={
                    "ray_remote_args": {"scheduling_strategy": "SPREAD"}})
            for name in ("one", "two")
        ]
        Pipeline("p", stages=[JsonlReader(str(folder / "in"), files_per_partition=1), *both]).run(executor="ray_data")
        set_up = Counter((note["stage"], note["node"]) for note in notes(folder / "notes", "node"))
        nodes = {node for _, node in set_up}
        assert set(set_up.values()) == {1}, set_up
        assert len(nodes) == 2 and len(set_up) == 4, set_up
        assert ray.is_initialized()
        print("workers", len(notes(folder / "notes", "setup")))
        ray.shutdown()
        cluster.shutdown()
        """,
        tmp_path,
        str(tmp_path),
    )
    assert "workers 8" in printed


@pytest.mark.cluster
@pytest.mark.timeout(_SCRIPT_S + 30)
def test_an_object_store_that_is_too_small_spills(tmp_path: Path) -> None:
    """All batches together are three times the store; one stage waits for all of them."""
    make_input(tmp_path / "in", files=24)
    printed = _run(
        """
        import sys
        from pathlib import Path
        from gristmill.pipeline import Pipeline
        from gristmill.backends.ray_actor_pool import RayActorPoolExecutor
        from gristmill.backends.ray_data import RayDataExecutor
        from gristmill.stages.text.io.reader import JsonlReader
        from gristmill.stages.text.io.writer import JsonlWriter
        from tests.contract.executor_suite import InProcess, contents
        from tests.integration.ray.ray_stages import Shrinks, Swells

        folder = Path(sys.argv[1])
        config = {"num_cpus": 2, "object_store_memory": 80_000_000}
        executors = {
            "here": InProcess(), "there": RayActorPoolExecutor(config=config), "flow": RayDataExecutor(config=config)
        }
        for name, executor in executors.items():
            Pipeline("p", stages=[
                JsonlReader(str(folder / "in"), files_per_partition=1), Swells(10), Shrinks(),
                JsonlWriter(str(folder / name))]).run(executor=executor)
        assert contents(folder / "here") == contents(folder / "there") == contents(folder / "flow")
        print("files", len(list((folder / "there").glob("*.jsonl"))))
        """,
        tmp_path,
        str(tmp_path),
    )
    assert "files 24" in printed


@pytest.mark.cluster
@pytest.mark.timeout(_SCRIPT_S + 30)
def test_own_clusters_come_and_go_around_the_users(tmp_path: Path) -> None:
    """A run on a cluster of its own, then the user's own ray.init, then another run there, which leaves it alone."""
    make_input(tmp_path / "in", files=2)
    printed = _run(
        """
        import sys
        import ray
        from gristmill.backends.ray_data import RayDataExecutor
        from gristmill.pipeline import Pipeline
        from gristmill.stages.text.io.reader import JsonlReader

        pipeline = Pipeline("p", stages=[JsonlReader(sys.argv[1], files_per_partition=1)])
        print("rows", pipeline.run(executor=RayDataExecutor(config={"num_cpus": 1})).report.rows_read)
        assert not ray.is_initialized()
        ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
        node = ray.get_runtime_context().get_node_id()
        print("rows", pipeline.run(executor="ray_data").report.rows_read)
        assert ray.is_initialized() and ray.get_runtime_context().get_node_id() == node
        ray.shutdown()
        """,
        tmp_path,
        str(tmp_path / "in"),
    )
    assert printed.count("rows 80") == 2


@pytest.mark.cluster
@pytest.mark.timeout(_SCRIPT_S + 30)
def test_stages_of_a_notebook_reach_the_workers(tmp_path: Path) -> None:
    """Code that came line by line and lies in no file, with a module beside it that is sent along."""
    make_input(tmp_path / "in", files=2)
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "marks.py").write_text('MARK = "!"\n')
    cells = """
import sys
sys.path.insert(0, "beside")
import marks
from gristmill.backends.ray_data import RayDataExecutor
from gristmill.pipeline import Pipeline
from gristmill.stages.base import ProcessingStage
from gristmill.stages.text.io.reader import JsonlReader
from gristmill.tasks import DocumentBatch

class Mark(ProcessingStage):
    name = "mark"
    def process(self, task):
        frame = task.to_pandas()
        return DocumentBatch(data=frame.assign(text=frame["text"] + marks.MARK))

executor = RayDataExecutor(config={"num_cpus": 1, "runtime_env": {"py_modules": ["beside/marks.py"]}})
result = Pipeline("p", stages=[JsonlReader("in", files_per_partition=1), Mark()]).run(executor=executor)
print(sum(text.endswith("!") for task in result for text in task.column("text").to_pylist()))
"""
    assert _python("-W", "ignore", "-", cells=cells, folder=tmp_path).split()[-1] == "80"
