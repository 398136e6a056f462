"""A store behind a URL for the tests: `shelf://`, a local folder that cannot rename, and fails when told to.

Importing the module makes the store known, so that worker processes know it as soon as they get a stage from here.
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from gristmill.stages.base import ProcessingStage
from gristmill.tasks import DocumentBatch


class Shelf(DirFileSystem):
    """Objects below `root`.

    Args:
        root: The folder they lie in.
        trouble: A file with the number of the operation that fails; its neighbour `….count` has a byte for each one
            that was begun, in whatever process.
    """

    protocol = "shelf"
    cachable = False

    def __init__(self, root: str, trouble: str | None = None, **options: Any) -> None:
        super().__init__(path=root, fs=LocalFileSystem(auto_mkdir=True))
        self._trouble = trouble

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        self._operate()
        self.cp_file(path1, path2)
        self.rm_file(path1)

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if "r" not in mode:
            self._operate()
        return super().open(path, mode, **options)

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        self._operate()
        super().pipe_file(path, value, **options)

    def rm_file(self, path: str) -> None:
        self._operate()
        super().rm_file(path)

    def _operate(self) -> None:
        if self._trouble is None:
            return
        counter = os.open(self._trouble + ".count", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(counter, b".")
        number = os.lseek(counter, 0, os.SEEK_CUR)
        os.close(counter)
        if Path(self._trouble).exists() and int(Path(self._trouble).read_text()) == number:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")


class Borrower(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Takes a file away from the store as soon as it sees a certain document, if a place for it is there.

    Documents of later files wait for that, so that the file is gone when its turn comes, whichever worker is faster.
    """

    name = "borrower"

    def __init__(self, file: str, place: str) -> None:
        self._file = file
        self._place = place

    def process(self, task: DocumentBatch) -> DocumentBatch:
        names = task.column("id").to_pylist()
        if "1-3" in names and os.path.isdir(self._place) and os.path.exists(self._file):
            os.rename(self._file, os.path.join(self._place, os.path.basename(self._file)))
        later = any(int(name.split("-")[0]) > 1 for name in names)
        while later and os.path.isdir(self._place) and os.path.exists(self._file):
            time.sleep(0.01)
        return task


fsspec.register_implementation("shelf", Shelf, clobber=True)
