"""`deduplication.json`: what a workflow of several runs did, with a checksum; and the verification of its steps."""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import xxhash

from gristmill.errors import GristmillError, VerificationError
from gristmill.ledger.record.layout import RECORD_FOLDER, STEPS_FOLDER, RunFolder, list_folder, step_folder
from gristmill.ledger.record.manifest import Manifest
from gristmill.ledger.record.run_record import checked_record, encoded_record
from gristmill.storage.files import is_local, local_path

if TYPE_CHECKING:
    from gristmill.ledger.prove.verify import VerifyReport

FORMAT = 1
WORKFLOW_FILE = f"{RECORD_FOLDER}/deduplication.json"
CHOICE = f"{RECORD_FOLDER}/{STEPS_FOLDER}/removals"
"""The file that names the removal list that an output was made with."""
_STEPS = f"{RECORD_FOLDER}/{STEPS_FOLDER}/"


def write_workflow_record(
    folder: RunFolder,
    facts: Mapping[str, Any],
    *,
    steps: Mapping[str, str],
    list_folder: str,
    listed: bool,
    files: tuple[str, ...] = (),
) -> None:
    """Record the result of a workflow.

    Args:
        folder: The output of the workflow.
        facts: What it reports about itself.
        steps: The folders of its steps, by name.
        list_folder: The folder below the output for lists of documents; a list is a separate run.
        listed: Whether it made a list in this run; an earlier run may have left one.
        files: Files below the output that belong to no run, if they exist.
    """
    record = {
        **facts,
        "format": FORMAT,
        "steps": {name: contents_digest(step_folder(path, folder.storage_options)) for name, path in steps.items()},
        "steps_folder": _elsewhere(folder, steps),
        "list_folder": list_folder,
        "listed": listed,
        "files": {name: _hash_of(folder.read(place)) for name in files if folder.exists(place := folder.join(name))},
    }
    folder.write(folder.join(WORKFLOW_FILE), encoded_record(record))


def read_workflow_record(folder: RunFolder) -> dict[str, Any] | None:
    """What `write_workflow_record` wrote; None if no workflow has finished.

    Raises:
        VerificationError: The file is damaged.
    """
    try:
        data = folder.read(folder.join(WORKFLOW_FILE))
    except FileNotFoundError:
        return None
    return checked_record(data, folder.shown(WORKFLOW_FILE))


def contents_digest(folder: RunFolder) -> str:
    """A hash of the contents of all files of a run, independent of when it ran."""
    digest = xxhash.xxh3_128()
    for entry in Manifest(folder).ordered():
        for file in entry.files:
            digest.update(f"{file.hash}:{file.size}\n".encode())
    return digest.hexdigest()


def is_list_only(folder: RunFolder) -> bool:
    """Whether there is the record of a workflow here but no run, because it only listed the documents to remove."""
    return folder.exists(folder.join(WORKFLOW_FILE)) and not folder.has_run()


Verify = Callable[[RunFolder], "VerifyReport"]


def verify_list(folder: RunFolder, report: VerifyReport, verify: Verify) -> VerifyReport:
    """The verification of an output that holds a list instead of documents: its numbers are those of the list."""
    listing = folder.walk()
    record, report.problems = _record(folder)
    name = record.get("list_folder")
    found = check_workflow(folder, report, listing, verify, record=record)
    for key in ("partitions", "files", "bytes", "rows_read", "rows_created", "rows_written", "rows_dropped"):
        setattr(report, key, getattr(found or report, key))
    if record.get("listed") and found is None:
        report.problems.append(f"{name} is missing or damaged: the list named in {folder.shown(WORKFLOW_FILE)}.")
    report.status = "done" if record else None
    profile = (folder.relative(folder.record_path(kind)) for kind in ("profile", "profile_page"))
    own = (WORKFLOW_FILE, *profile, *(record.get("files") or ()))
    report.problems += [
        f"{folder.shown(path)} does not belong to the workflow."
        for path in listing
        if path not in own and not path.startswith((_STEPS, f"{name}/", f"{RECORD_FOLDER}/{name}/"))
    ]
    return report


def check_workflow(
    folder: RunFolder,
    report: VerifyReport,
    listing: Mapping[str, int],
    verify: Verify,
    *,
    record: Mapping[str, Any] | None = None,
) -> VerifyReport | None:
    """Check the record of a workflow against its output, its steps and its list. Returns the verification of the list.

    Args:
        folder: The output of the workflow, or of any other run.
        report: Problems are added to it.
        listing: The files of the output.
        verify: Verifies one run.
        record: The record, if it has already been read.
    """
    if record is None:
        if WORKFLOW_FILE not in listing:
            # A list has its own choice, but its steps are those of the enclosing output.
            if CHOICE in listing and any(name.startswith(_STEPS) and name != CHOICE for name in listing):
                report.problems.append(
                    f"{folder.shown(WORKFLOW_FILE)} is missing: the workflow did not finish; run it again."
                )
            _check_steps(folder, folder.join(_STEPS.rstrip("/")), {}, report, verify)
            return None
        record, problems = _record(folder)
        report.problems += problems
        report.problems += _differences(folder, record, report)
    for name, expected in (record.get("files") or {}).items():
        if name not in listing:
            report.problems.append(f"{name} is missing.")
        elif _hash_of(folder.read(folder.join(name))) != expected:
            report.problems.append(f"{name} was changed after the workflow.")
    name, proof = record.get("list_folder"), None
    # A list without documents has a record and no files.
    if name and any(path.startswith((f"{name}/", f"{RECORD_FOLDER}/{name}/")) for path in listing):
        proof = _check_run(name, list_folder(folder, name), report, verify)
    report.problems += _check_choice(folder, record)
    root = record.get("steps_folder") or folder.join(_STEPS.rstrip("/"))
    _check_steps(folder, root, record.get("steps") or {}, report, verify)
    return proof


def belongs_to_workflow(folder: RunFolder, listing: Mapping[str, int]) -> Callable[[str], bool]:
    """Decides whether a file of an output belongs to a workflow, so that it is not reported as a stray file."""
    record: Mapping[str, Any] = {}
    if WORKFLOW_FILE in listing:
        with contextlib.suppress(VerificationError):
            record = read_workflow_record(folder) or {}
    own, name = set(record.get("files") or ()), record.get("list_folder")
    below = (_STEPS, f"{name}/", f"{RECORD_FOLDER}/{name}/") if name else (_STEPS,)
    return lambda path: path in own or path.startswith(below)


def _record(folder: RunFolder) -> tuple[Mapping[str, Any], list[str]]:
    try:
        return read_workflow_record(folder) or {}, []
    except VerificationError as error:
        return {}, [str(error)]


def _differences(folder: RunFolder, record: Mapping[str, Any], report: VerifyReport) -> list[str]:
    if not record.get("perform_removal"):
        return []
    claims = [
        ("documents", record.get("documents"), report.rows_read),
        ("documents removed", record.get("num_removed"), report.rows_dropped),
    ]
    return [
        f"{folder.shown(WORKFLOW_FILE)} says {claimed} {what}, the manifest has {found}."
        for what, claimed, found in claims
        if claimed != found
    ]


def _check_choice(folder: RunFolder, record: Mapping[str, Any]) -> list[str]:
    """Check that the removal list of an output is the result of one of the steps."""
    if not record:
        return []
    chosen = list_folder(folder, record["list_folder"]) if record.get("listed") else folder
    place = chosen.join(CHOICE)
    known = (record.get("steps") or {}).values()
    if chosen.exists(place) and chosen.read(place).decode(errors="replace") not in known:
        return [f"{chosen.shown(CHOICE)} names a removal list that no step has written."]
    return []


def _check_steps(
    folder: RunFolder, root: str, digests: Mapping[str, str], report: VerifyReport, verify: Verify
) -> None:
    """Verify all existing steps. Finished steps may have been deleted, each as a whole."""
    place = step_folder(root, folder.storage_options)
    names: dict[str, None] = {}
    for path in place.walk(place.path):
        name, _, rest = path.partition("/")
        if rest:
            names[name] = None
        elif path != posixpath.basename(CHOICE):
            report.problems.append(f"{STEPS_FOLDER}/{path} does not belong to the workflow.")
    for name in names:
        step = step_folder(place.join(name), folder.storage_options)
        _check_run(f"{STEPS_FOLDER}/{name}", step, report, verify)
        report.steps += 1
        if name in digests and contents_digest(step) != digests[name]:
            report.problems.append(
                f"{STEPS_FOLDER}/{name} is not the step that this output was made from; run the workflow again."
            )


def _check_run(name: str, folder: RunFolder, report: VerifyReport, verify: Verify) -> VerifyReport | None:
    try:
        proof = verify(folder)
    except (GristmillError, OSError) as error:
        report.problems.append(f"{name}: {error}")
        return None
    report.problems += [f"{name}: {problem}" for problem in proof.problems]
    report.damaged += [damage for damage in proof.damaged if damage not in report.damaged]
    return proof


def _elsewhere(folder: RunFolder, steps: Mapping[str, str]) -> str | None:
    """Where the steps are, if not below the output."""
    roots = {posixpath.dirname(path.rstrip("/")) for path in steps.values()}
    root = roots.pop() if roots else None
    if root is None or root == folder.join(_STEPS.rstrip("/")):
        return None
    return os.path.abspath(local_path(root)) if is_local(root) else root


def _hash_of(data: bytes) -> str:
    return "xxh3:" + xxhash.xxh3_128_hexdigest(data)
