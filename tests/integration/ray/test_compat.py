"""Scripts written for NeMo Curator, as they are: in forked workers, on Ray Data and Xenna, over the nodes of a job."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

_SCRIPT_S = 240
SCRIPT = """
import sys
from dataclasses import dataclass

from loguru import logger
from nemo_curator.backends.ray_data import RayDataExecutor
from nemo_curator.backends.xenna import XennaExecutor
from nemo_curator.pipeline import Pipeline
from nemo_curator.stages.base import ProcessingStage
from nemo_curator.stages.text.filters import ScoreFilter
from nemo_curator.stages.text.filters.heuristic import WordCountFilter
from nemo_curator.stages.text.io.reader import JsonlReader
from nemo_curator.stages.text.io.writer import JsonlWriter
from nemo_curator.tasks import DocumentBatch


@dataclass
class Tag(ProcessingStage[DocumentBatch, DocumentBatch]):
    name: str = "tag"

    def process(self, batch):
        from nemo_curator.utils.hash_utils import get_deterministic_hash

        frame = batch.data
        frame["tag"] = [get_deterministic_hash([text]) for text in frame["text"]]
        batch.data = frame
        return batch


executors = {"ray_data": RayDataExecutor, "xenna": XennaExecutor}
pipeline = Pipeline(name="old")
pipeline.add_stage(JsonlReader(sys.argv[1], files_per_partition=1))
pipeline.add_stage(ScoreFilter(WordCountFilter(min_words=2), name="words"))
pipeline.add_stage(Tag())
pipeline.add_stage(JsonlWriter(sys.argv[2]))
if __name__ == "__main__":
    logger.add(sys.argv[2] + ".log", format="{message}")
    executor = executors[sys.argv[3]]() if len(sys.argv) > 3 else None
    print("written", pipeline.run(executor).report.rows_written)
    logger.info("end of the script")
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "in").mkdir()
    for number in range(3):
        rows = [{"text": f"two words {number} {row}"} for row in range(4)] + [{"text": "one"}]
        (tmp_path / "in" / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def _compat(job: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-m", "gristmill.compat", str(job / "script.py"), str(job / "in")]
    return subprocess.run(
        [*command, *arguments],
        cwd=job,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=_SCRIPT_S,
        check=False,
    )


def _tags(folder: Path) -> list[str]:
    return [
        json.loads(line)["tag"] for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()
    ]


@pytest.mark.timeout(2 * _SCRIPT_S)
def test_the_same_script_on_every_executor(ray_cluster: str, job: Path) -> None:
    """The cluster was started before and knows nothing of compatibility. What a script logs by loguru is seen."""
    pytest.importorskip("loguru")
    kept = []
    for name in ("local", "ray_data", "xenna"):
        more = [] if name == "local" else [name]
        done = _compat(job, str(job / name), *more, RAY_ADDRESS="" if name == "local" else ray_cluster)
        assert "written 12" in done.stdout, done.stderr[-3000:]
        assert "end of the script" in done.stderr
        assert (job / f"{name}.log").read_text() == "end of the script\n"
        kept.append(_tags(job / name))
    assert len(kept[0]) == 12
    assert kept[0] == kept[1] == kept[2]


NODES = """
import os
import sys
from nemo_curator.core.client import SlurmRayClient

client = SlurmRayClient(include_dashboard=False, num_cpus=1, worker_connect_timeout_s=120)
client.start()
import ray
ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False)
print("nodes", sum(node["Alive"] for node in ray.nodes()), "node", os.environ["SLURM_NODEID"], flush=True)
ray.shutdown()
client.stop()
"""
SRUN = """#!/bin/sh
# Stands in for srun: starts the command once for each node, all of them here.
pids=
for node in 0 1; do
    SLURM_JOB_ID=7 SLURM_NODEID=$node SLURM_JOB_NODELIST='node[1-2]' "$@" & pids="$pids $!"
done
code=0
for pid in $pids; do wait $pid || code=$?; done
exit $code
"""


@pytest.mark.timeout(_SCRIPT_S + 30)
def test_a_cluster_over_the_nodes_of_a_slurm_job(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    (tmp_path / "nodes.py").write_text(NODES)
    (tmp_path / "srun").write_text(SRUN)
    (tmp_path / "srun").chmod(0o755)
    shared = tmp_path / "shared"
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    variables = {"PATH": path, "RAY_PORT_BROADCAST_DIR": str(shared), "RAY_ADDRESS": ""}
    command = ["srun", sys.executable, "-W", "ignore", "-m", "gristmill.compat", str(tmp_path / "nodes.py")]
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=_SCRIPT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert [line for line in done.stdout.splitlines() if line.startswith("nodes")] == ["nodes 2 node 0"]
    assert not list(shared.iterdir())


@pytest.mark.timeout(_SCRIPT_S + 30)
def test_a_script_that_does_not_stop_its_client_leaves_nothing_running(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    code = """
        from gristmill.core.client import RayClient

        client = RayClient(num_cpus=1, include_dashboard=False)
        client.start()
        print("port", client.ray_port, flush=True)
        """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        env={**os.environ, "RAY_ADDRESS": ""},
        capture_output=True,
        text=True,
        timeout=_SCRIPT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(done.stdout.split()[-1])), timeout=5)
