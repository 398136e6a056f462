"""One round of a run on Ray Data, and how it is given up when the loss of a node has ended it or brought it to a stand.

Ray makes lost blocks again with the tasks that made them. Where workers that stay have taken the processors that are
left, those tasks find no place, and the workers wait for their blocks: nothing moves any more. The round is then given
up, and the next one is planned for the nodes that are there. What was finished stays.
"""

from __future__ import annotations

import time
from typing import Any

import ray

from gristmill.backends.ray.delivery import Delivery
from gristmill.backends.ray.driver import Run
from gristmill.backends.ray.ray_errors import is_loss
from gristmill.backends.ray_data.dataset import Flow
from gristmill.errors import GristmillError, WorkerError

_TICK_S = 1.0
_NOTICE_S = 60.0
"""How long Ray may take to find out that a node is gone, after something on it was lost."""


class _Stuck(Exception):  # noqa: N818 (a finding, not a fault)
    """Nothing has come for long, and a node is gone."""


def play(flow: Flow, delivery: Delivery, run: Run, *, patience_s: float) -> bool:
    """Deliver what `flow` gives; False if it was given up because of a lost node.

    Args:
        flow: The dataset of the round.
        delivery: Where results go.
        run: The run.
        patience_s: How long nothing may come after a node was lost.

    Raises:
        GristmillError: The error that ends the run.
    """
    try:
        _play(flow, delivery, run, patience_s)
    except _Stuck:
        run.end_workers()
        return False
    except GristmillError:
        raise
    except ray.exceptions.RayError as error:
        if is_loss(error) and _is_node_lost(run):
            run.end_workers()
            return False
        raise WorkerError(
            f"Ray ended the run: {type(error).__name__}: {str(error).strip()} Committed output is intact; look at the "
            "Ray dashboard and logs, and run again to go on.",
            cause=type(error).__name__,
        ) from error
    return True


def _play(flow: Flow, delivery: Delivery, run: Run, patience_s: float) -> None:
    with flow.opened() as pump:
        heard = time.monotonic()
        while (references := pump.take(_TICK_S)) is not None:
            for reference in references:
                for receipt in flow.receipts(_value(reference, run, patience_s)):
                    delivery.take(receipt)
                heard = time.monotonic()
            run.tick()
            if not references:
                _check(run, heard, patience_s)


def _value(reference: Any, run: Run, patience_s: float) -> Any:
    """The block, which may have to be made again."""
    asked = time.monotonic()
    while True:
        try:
            return ray.get(reference, timeout=_TICK_S)
        except ray.exceptions.GetTimeoutError:
            run.tick()
            _check(run, asked, patience_s)


def _check(run: Run, heard: float, patience_s: float) -> None:
    if time.monotonic() - heard > patience_s and run.lost_nodes():
        raise _Stuck


def _is_node_lost(run: Run) -> bool:
    """Whether a node turns out to be gone; Ray tells of what was lost on it sooner than of the node."""
    deadline = time.monotonic() + _NOTICE_S
    while not run.lost_nodes():
        if time.monotonic() > deadline:
            return False
        time.sleep(_TICK_S)
    return True
