"""The driver's end: every result is handed to the work exactly once, however often Ray made it."""

from __future__ import annotations

from gristmill.backends.ray.parcels import Receipt, unpack_leaf
from gristmill.backends.ray.sampling import Levels
from gristmill.execution.driver import Work
from gristmill.execution.partition_output import Leaf


class Delivery:
    """Hands receipts to `work`; the ends of tasks that were done twice after a loss are taken once.

    Doing a task again gives the same ends, because task ids, rows and decisions follow from the input alone.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._open: dict[int, set[tuple[int, ...]]] = {}
        self._levels = Levels(work.events, len(work.plan.segments))

    def take(self, receipt: Receipt) -> None:
        """Deliver what the receipt holds.

        Raises:
            GristmillError: The error that the receipt brings.
        """
        for leaf, parcel in receipt.leaves:
            self._deliver(unpack_leaf(leaf, parcel))
        for event in receipt.events:
            self._work.events.emit(event)
        self._levels.take(receipt)
        if receipt.error is not None:
            raise receipt.error

    def _deliver(self, leaf: Leaf) -> None:
        if self._work.is_done(leaf.partition):
            return
        seen = self._open.setdefault(leaf.partition, set())
        if leaf.order in seen:
            return
        seen.add(leaf.order)
        self._work.deliver(leaf)
        if self._work.is_done(leaf.partition):
            del self._open[leaf.partition]
