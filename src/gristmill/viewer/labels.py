"""Labels from the viewer's user: a small append-only file of JSON lines."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from datetime import UTC, datetime
from typing import Any

from gristmill.errors import OutputError
from gristmill.ledger.ask.why import KEPT
from gristmill.ledger.record.layout import RunFolder
from gristmill.storage.files import is_local, local_path

KEEP, DROP = "keep", "drop"
RIGHT, WRONG = "right", "wrong"


def verdict(status: str, label: str) -> str:
    """What should happen to a document whose decision is right or wrong."""
    return KEEP if (status == KEPT) == (label == RIGHT) else DROP


def rating(status: str, kept: str) -> str:
    """Whether a decision is right if this should happen to the document."""
    return RIGHT if (status == KEPT) == (kept == KEEP) else WRONG


class Labels:
    """What should happen to documents, by partition and row; the last label of a document counts.

    A line says `keep` or `drop` instead of `right` or `wrong`, so that it stays valid if a later run decides otherwise.
    It contains the fingerprint of its partition: labels of an input that has changed are kept but not used.

    Args:
        folder: The run; the labels are in its record.
        path: Another file for the labels.

    Attributes:
        path: Path of the labels; None if nothing can be appended there.
        why_not: Why nothing can be labelled, as a sentence; empty if labelling is possible.
    """

    def __init__(self, folder: RunFolder, path: str | os.PathLike[str] | None = None) -> None:
        self.why_not = ""
        self.damaged = 0
        self._lock = threading.Lock()
        self._known: dict[str, dict[int, dict[str, Any]]] = {}
        place = folder.record_path("labels") if path is None else os.fspath(path)
        self.path = local_path(place) if is_local(place) else None
        if self.path is None:
            self.why_not = (
                f"{folder.record} is not on this machine. To label documents, name a file with --labels FILE."
            )
            return
        self._read(self.path)
        self.why_not = _why_not_writable(self.path, given=path is not None)

    def _read(self, path: str) -> None:
        try:
            with open(path, "rb") as file:
                for line in file:
                    try:
                        values = json.loads(line)
                        self._known.setdefault(str(values["partition"]), {})[int(values["row"])] = values
                    except (ValueError, KeyError, TypeError):
                        self.damaged += 1  # truncated by a crash, or edited
        except FileNotFoundError:
            pass
        except OSError as error:
            raise OutputError(f"The labels in {path} cannot be read: {error.strerror or error}.", path=path) from error

    def get(self, partition: str, row: int, fingerprint: str) -> dict[str, Any] | None:
        """The label of a document, if its input is unchanged."""
        found = self._known.get(partition, {}).get(row)
        return found if found and found.get("verdict") and found.get("fingerprint") == fingerprint else None

    def partitions(self) -> list[str]:
        """The partitions that have labels."""
        with self._lock:
            return list(self._known)

    def rows(self, partition: str) -> dict[int, dict[str, Any]]:
        """The labels of a partition by row."""
        with self._lock:
            known = self._known.get(partition, {})
            return {row: known[row] for row in sorted(known) if known[row].get("verdict")}

    def counts(self) -> dict[str, int]:
        """The number of documents that should be kept and dropped, by their labels."""
        with self._lock:
            found = Counter(str(one.get("verdict")) for rows in self._known.values() for one in rows.values())
        return {KEEP: found[KEEP], DROP: found[DROP]}

    def put(self, partition: str, row: int, fingerprint: str, wanted: str | None, **facts: Any) -> None:
        """Label a document, or remove its label (`wanted=None`); it is on disk when this returns.

        Raises:
            OutputError: The file cannot be written.
        """
        if self.path is None or self.why_not:
            raise OutputError(self.why_not, path=self.path)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        known = {"partition": partition, "row": row, "fingerprint": fingerprint}
        values = {**known, "verdict": wanted, **facts, "at": now}
        with self._lock:
            try:
                _append(self.path, json.dumps(values).encode() + b"\n")
            except OSError as error:
                raise OutputError(
                    f"The label could not be saved in {self.path}: {error.strerror or error}.", path=self.path
                ) from error
            self._known.setdefault(partition, {})[row] = values


def _append(path: str, line: bytes) -> None:
    """Append a line atomically, starting a new line even if the last one was truncated."""
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        size = os.fstat(handle).st_size
        whole = not size or os.pread(handle, 1, size - 1) == b"\n"
        os.write(handle, line if whole else b"\n" + line)
        os.fsync(handle)
    finally:
        os.close(handle)


def _why_not_writable(path: str, *, given: bool) -> str:
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        return f"There is no folder {folder} for the labels. Create it, or name another file with --labels FILE."
    if os.path.isdir(path):
        return f"{path} is a folder, so labels cannot be saved in it. Name a file with --labels FILE."
    if os.access(path if os.path.exists(path) else folder, os.W_OK):
        return ""
    other = "another file" if given else "a file"
    return f"{path} cannot be written, so labels cannot be saved. To label documents, pass {other} with --labels FILE."
