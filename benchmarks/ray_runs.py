"""Clusters on this machine for the benchmarks on Ray, and the clock of a run: when its partitions were committed."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Ray would give its workers a lower priority than the local engine's have.
os.environ.setdefault("RAY_worker_niceness", "0")


@contextlib.contextmanager
def one_node(cpus: int, gpus: int = 0) -> Iterator[None]:
    """A cluster of one node, without a dashboard, which this process is connected to."""
    import ray

    from gristmill.backends.ray.cluster import short_temp_dir

    ray.init(
        address="local",
        num_cpus=cpus,
        num_gpus=gpus,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        _temp_dir=short_temp_dir(),
    )
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def many_nodes(count: int, cpus_each: int) -> Iterator[None]:
    """A cluster of several nodes on this machine; the driver's own node does no work."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(count):
            cluster.add_node(num_cpus=cpus_each)
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


class Commits:
    """Listens to a run and knows when each partition was committed."""

    def __init__(self) -> None:
        self.moments: list[float] = []

    def __call__(self, event: Any) -> None:
        from gristmill.observe.events import PartitionCommitted

        if isinstance(event, PartitionCommitted):
            self.moments.append(time.monotonic())

    def per_second(self, first: float, last: float) -> float:
        """Partitions per second between two shares of all partitions, such as 0.3 and 0.9."""
        low, high = int(first * len(self.moments)), int(last * len(self.moments)) - 1
        return (high - low) / (self.moments[high] - self.moments[low])


def linked(files: list[Path], folder: Path, copies: int) -> Path:
    """`folder` with that many links to each file."""
    folder.mkdir(parents=True)
    for copy in range(copies):
        for path in files:
            (folder / f"{copy:03d}-{path.name}").symlink_to(path.resolve())
    return folder
