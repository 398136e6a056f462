"""A segment as Xenna sees it: a stage whose samples are parcels."""

from __future__ import annotations

import os
import threading
from typing import Any

from cosmos_xenna.pipelines import v1 as xenna
from cosmos_xenna.ray_utils.runtime_envs import CondaEnv, RuntimeEnv

from gristmill.backends.ray.parcels import Parcel, Receipt
from gristmill.backends.ray.worker import Order, SegmentWorker
from gristmill.backends.xenna.mailbox import Sender

_AHEAD = 4
"""Receipts that may be on their way at once; a worker that waited for each of them would lose some milliseconds."""


class SegmentStage(xenna.Stage):  # type: ignore[misc]
    """Runs a segment in Xenna's workers.

    Args:
        order: What the workers need to know.
        mailbox: Where receipts go.
        cpus: Processors of one worker.
        gpus: GPUs of one worker.
        batch_size: Parcels per call.
        setup_attempts: How often `setup` is tried.
        careful: A worker of an earlier attempt has died; see `SegmentWorker.run`.
        environment: The runtime environment of the segment.
    """

    def __init__(
        self,
        order: Order,
        mailbox: Any,
        *,
        cpus: float,
        gpus: float,
        batch_size: int,
        setup_attempts: int,
        careful: bool,
        environment: dict[str, Any],
    ) -> None:
        self._order = order
        self._mailbox = mailbox
        self._cpus, self._gpus = cpus, gpus
        self._batch_size = batch_size
        self._attempts = setup_attempts
        self._careful = careful
        self._environment = environment
        self._worker: SegmentWorker | None = None
        self._sender: Sender | None = None

    def __deepcopy__(self, memo: object) -> SegmentStage:
        # Xenna copies its whole specification; handles of actors must not be copied.
        return self

    @property
    def stage_batch_size(self) -> int:
        """Parcels per call."""
        return self._batch_size

    @property
    def required_resources(self) -> Any:
        """What one worker holds."""
        return xenna.Resources(cpus=self._cpus, gpus=self._gpus)

    @property
    def env_info(self) -> Any:
        """The runtime environment of the workers."""
        conda = self._environment.get("conda")
        variables = dict(self._environment.get("env_vars", {}))
        return RuntimeEnv(conda=CondaEnv(conda) if conda else None, extra_env_vars=variables)

    def setup(self, worker_metadata: Any) -> None:
        """Called by Xenna once per worker, in the thread that later works."""
        gpus = tuple(gpu.index for gpu in worker_metadata.allocation.gpus)
        self._sender = Sender(self._mailbox, ahead=0 if self._careful else _AHEAD)
        threading.Thread(target=_end_the_process, name="gristmill-end", daemon=True).start()
        for attempt in range(self._attempts):
            self._worker = SegmentWorker(self._order)
            self._worker.start(allocation=gpus)
            if self._worker.failure is None or attempt == self._attempts - 1:
                return

    def process_data(self, in_data: list[Parcel]) -> list[Parcel]:
        """Called by Xenna with `stage_batch_size` parcels, or fewer at the end."""
        assert self._worker is not None
        assert self._sender is not None
        given: list[Parcel] = []
        results = self._worker.run(in_data, careful=self._careful)
        try:
            for item in results:
                if isinstance(item, Receipt):
                    self._sender.post(item)
                else:
                    given.append(item)
        finally:
            results.close()
        return given

    def end(self) -> None:
        """Tear down; asked for by the driver before Xenna ends the worker."""
        if self._worker is not None:
            self._worker.end()
        if self._sender is not None:
            # After the worker, which may have finished a call only now.
            self._sender.settle()


def _end_the_process() -> None:
    """End this process when Ray ends its main thread: Xenna's own threads would keep it for ever after a lost node."""
    threading.main_thread().join()
    os._exit(0)
