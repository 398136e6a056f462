"""Downloads files into a folder, complete or not at all, and only once."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from gristmill.errors import DownloadError, DownloadMissingError, OutputError, StoreError, UsageError
from gristmill.stages.base import ProcessingStage, Spec
from gristmill.storage.http_files import HttpFiles
from gristmill.storage.partitions import FileRange, Partition
from gristmill.tasks.base import FailedTask
from gristmill.tasks.file_group import FileGroupTask

PART_SUFFIX = ".part"
_LOCKS = ".locks"
_MAX_NAME = 200
_WAIT_S = 0.2
_LOCK_DIGITS = 3
_MOST_FAILURES = 10
_FORGOTTEN_S = 1800.0
_log = logging.getLogger(__name__)


class DocumentDownloader:
    """Downloads files over HTTP(S) into a folder. Subclass it for other protocols or other file names.

    A file gets its final name only once it is complete; until then it is called `NAME.part`, and a later attempt
    resumes it. Used in worker processes, several of which may share the folder.

    Args:
        download_dir: Folder for downloads; created with the first file.
        verbose: Log every download.

    Attributes:
        http: HTTP settings: attempts, time limits, bandwidth. Its attributes may be changed.
        keep_downloads: Whether to keep a file after its partition was read. If not, an interrupted run downloads the
            files of unfinished partitions again.
    """

    keep_downloads = True

    def __init__(self, download_dir: str, verbose: bool = False) -> None:
        if not str(download_dir).strip():
            raise UsageError(f"{type(self).__name__}(download_dir={download_dir!r}): must be a folder.")
        self.download_dir = os.fspath(download_dir)
        self.verbose = verbose
        self.http = HttpFiles()

    # --- to override ---

    def num_workers_per_node(self) -> int | None:
        """Maximum number of simultaneous downloads per machine; None for one per worker."""
        return None

    def _get_output_filename(self, url: str) -> str:
        """The name of the file in the folder; defaults to the path of the URL with its slashes replaced."""
        path = urlsplit(url).path.strip("/") or urlsplit(url).netloc
        return unquote(path).replace("/", "-")

    def _download_to_path(self, url: str, path: str) -> tuple[bool, str | None]:
        """Download `url` to the file `path`, which may hold its beginning from an earlier attempt.

        Returns:
            Whether it succeeded, and the error if not.
        """
        self.http.download(url, path, bandwidth_file=os.path.join(self._locks(), "bandwidth"))
        return True, None

    def _is_complete(self, url: str, path: str) -> bool:
        """Whether the file at `path`, which has its final name, is complete."""
        return self.http.matches(url, path)

    def check_environment(self) -> None:
        """Check at planning time that downloads can be written."""
        if os.path.exists(self.download_dir) and not os.path.isdir(self.download_dir):
            raise UsageError(f"download_dir={self.download_dir!r} is a file; choose a folder for the downloads.")

    # --- the work ---

    def download(self, url: str) -> str | None:
        """The path of the downloaded file; an existing complete file is not downloaded again.

        Returns:
            The path, or None if it could not be downloaded.

        Raises:
            DownloadError: It could not be downloaded.
        """
        path = self.path_of(url)
        os.makedirs(self.download_dir, exist_ok=True)
        with self._locked(url), self._slot():
            if os.path.exists(path):
                if self._is_complete(url, path):
                    return path
                _log.warning("%s is shorter or longer than %s; downloading it again.", path, url)
                os.unlink(path)
            begun = time.monotonic()
            failures = os.path.join(self._locks(), "failures")
            try:
                worked, problem = self._download_to_path(url, path + PART_SUFFIX)
            except DownloadError as error:
                if getattr(error, "transient", False):
                    _count_failure(failures, error)
                raise
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise OutputError(
                        f"No space left in {self.download_dir} for {url} ({error.strerror}). Free some space, or "
                        "remove files once they are read (keep_downloads = False, --remove-downloads), and run the "
                        "same command again to resume.",
                        path=self.download_dir,
                        errno=error.errno,
                    ) from error
                raise
            if not worked:
                raise DownloadError(f"{url} could not be downloaded: {problem or 'no reason was reported'}.", url=url)
            os.replace(path + PART_SUFFIX, path)
            with suppress(FileNotFoundError):
                os.unlink(failures)
        if self.verbose:
            _log.info("Downloaded %s (%d bytes, %.1f s).", url, os.path.getsize(path), time.monotonic() - begun)
        return path

    def path_of(self, url: str) -> str:
        """The path for the file of `url`: directly in the folder, whatever the URL contains."""
        return os.path.join(self.download_dir, _safe_name(self._get_output_filename(url)))

    def _locks(self) -> str:
        folder = os.path.join(self.download_dir, _LOCKS)
        os.makedirs(folder, exist_ok=True)
        return folder

    @contextmanager
    def _locked(self, url: str) -> Iterator[None]:
        """Wait until no other process downloads the same file."""
        # A bounded number of files, because one that is removed may be locked by two that do not see each other.
        name = hashlib.sha256(self.path_of(url).encode("utf-8", "surrogatepass")).hexdigest()[:_LOCK_DIGITS]
        with open(os.path.join(self._locks(), name), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _slot(self) -> Iterator[None]:
        """Wait until fewer than `num_workers_per_node` processes of this machine download."""
        slots = self.num_workers_per_node()
        if slots is None:
            yield
            return
        while True:
            for number in range(slots):
                with open(os.path.join(self._locks(), f"slot-{number}"), "w") as lock:
                    try:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        continue
                    yield
                    return
            time.sleep(_WAIT_S)


def _count_failure(path: str, error: DownloadError) -> None:
    """Count one more failed download, in a file that all workers of a machine share and a success removes.

    Raises:
        StoreError: Too many downloads in a row failed, across all workers, so the rest would fail too.
    """
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if time.time() - os.path.getmtime(path) > _FORGOTTEN_S:
            file.truncate(0)  # from an earlier run
        file.write(b".")
        file.flush()
        count = os.path.getsize(path)
        if count >= _MOST_FAILURES:
            file.truncate(0)
    if count >= _MOST_FAILURES:
        raise StoreError(
            f"{count} downloads in a row failed, so the server seems to be down or overloaded. The latest: {error}",
            path=error.facts.get("url"),
        ) from error


def _safe_name(name: str) -> str:
    """A name that stays in its folder, is not hidden, and is short enough for file systems."""
    safe = re.sub(r"[^A-Za-z0-9.,=+_@%-]+", "-", os.path.basename(name.replace("\\", "/").rstrip("/"))).lstrip(".-_")
    if safe == name and len(name) <= _MAX_NAME and not name.endswith(PART_SUFFIX):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{digest}-{safe.removesuffix(PART_SUFFIX)[-_MAX_NAME:]}"


@dataclass(frozen=True, slots=True)
class Downloaded:
    """A file that was downloaded.

    Attributes:
        part: Its file part in the run: its path is the URL.
        path: Its local path.
        problem: The error, if the file does not exist on the server.
        is_kept: Whether it is kept after reading.
    """

    part: FileRange
    path: str
    problem: str = ""
    is_kept: bool = True


def downloads_of(task: FileGroupTask) -> list[Downloaded]:
    """The files of a task from `DocumentDownloadStage`, or of a hand-made one."""
    found = task._metadata.get("downloads")
    if found is not None:
        return cast("list[Downloaded]", found)
    return [Downloaded(_range(path), path) for path in task.data]


def _range(path: str) -> FileRange:
    return FileRange(path, path, -1, "", 0, -1, True)


class DocumentDownloadStage(ProcessingStage[FileGroupTask, FileGroupTask | FailedTask]):
    """Downloads the files of a task.

    A file that does not exist on the server (404, 410) becomes a record in quarantine. One that cannot be downloaded
    for other reasons leaves its partition unfinished: the others continue, and the next run tries it again.

    Args:
        downloader: Downloads one file.
    """

    name = "download"
    notes_changes = True

    def __init__(self, downloader: DocumentDownloader) -> None:
        self._downloader = (
            downloader  # private, and so not part of the plan: how files are downloaded does not change the result
        )

    @property
    def downloader(self) -> DocumentDownloader:
        """What downloads the files."""
        return self._downloader

    @downloader.setter
    def downloader(self, downloader: DocumentDownloader) -> None:
        self._downloader = downloader

    def inputs(self) -> Spec:
        return ["data"], []

    def outputs(self) -> Spec:
        return ["data"], []

    def check_environment(self) -> None:
        self._downloader.check_environment()

    def process(self, task: FileGroupTask) -> FileGroupTask | FailedTask:
        partition: Partition | None = task._metadata.get("partition")
        known = {part.path: part for part in partition.ranges} if partition is not None else {}
        found: list[Downloaded] = []
        for url in task.data:
            part = known.get(url) or _range(url)
            try:
                path = self.downloader.download(url)
            except DownloadMissingError as error:
                found.append(Downloaded(part, "", str(error)))
                continue
            except DownloadError as error:
                return FailedTask(task.dataset_name, _metadata={"reason": str(error)})
            if path is None:
                reason = f"{type(self.downloader).__name__}.download() returned nothing for {url}."
                return FailedTask(task.dataset_name, _metadata={"reason": reason})
            self._log_metrics({"files": 1, "bytes": os.path.getsize(path)})
            found.append(Downloaded(part, path, is_kept=getattr(self.downloader, "keep_downloads", True)))
        metadata: dict[str, Any] = {**task._metadata, "downloads": found, "source_files": list(task.data)}
        return FileGroupTask(task.dataset_name, [file.path for file in found], _metadata=metadata)
