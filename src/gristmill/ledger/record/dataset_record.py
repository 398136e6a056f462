"""`dataset.json`: the origin of the shards of a shuffle or a mixture, with a checksum; and its verification.

It lists the inputs with their digests, the settings, the versions, the licences by source and every shard with its
hash. The table that maps every document to its shard and offset is in `steps/documents`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gristmill.errors import VerificationError
from gristmill.ledger.record.layout import RECORD_FOLDER, STEPS_FOLDER, RunFolder, step_folder
from gristmill.ledger.record.manifest import Manifest, ManifestEntry
from gristmill.ledger.record.run_record import checked_record, encoded_record
from gristmill.ledger.record.workflow_record import contents_digest

if TYPE_CHECKING:
    from gristmill.ledger.prove.verify import VerifyReport

FORMAT = 1
DATASET_FILE = f"{RECORD_FOLDER}/dataset.json"
DOCUMENTS = "documents"
"""The step whose table maps documents to shards."""


def documents_path(folder: RunFolder) -> str:
    """The folder with the table that maps documents to shards."""
    return folder.join(f"{RECORD_FOLDER}/{STEPS_FOLDER}/{DOCUMENTS}")


def write_dataset_record(folder: RunFolder, facts: Mapping[str, Any]) -> None:
    """Record what the shards of an output were made from."""
    record = {**facts, "format": FORMAT}
    record["documents_digest"] = contents_digest(step_folder(documents_path(folder), folder.storage_options))
    folder.write(folder.join(DATASET_FILE), encoded_record(record))


def read_dataset_record(folder: RunFolder) -> dict[str, Any] | None:
    """What `write_dataset_record` wrote; None if there is none.

    Raises:
        VerificationError: The file is damaged.
    """
    try:
        data = folder.read(folder.join(DATASET_FILE))
    except FileNotFoundError:
        return None
    return checked_record(data, folder.shown(DATASET_FILE))


def check_dataset(folder: RunFolder, report: VerifyReport, entries: Mapping[str, ManifestEntry]) -> None:
    """Check the record of a data set against the manifest of its output; problems are added to the report."""
    try:
        record = read_dataset_record(folder)
    except VerificationError as error:
        report.problems.append(str(error))
        return
    if record is None:
        return
    shown = folder.shown(DATASET_FILE)
    named = {shard["file"]: (shard["bytes"], shard["hash"], shard["documents"]) for shard in record["shards"]}
    found = {file.path: (file.size, file.hash, file.rows) for entry in entries.values() for file in entry.files}
    for path in sorted(named.keys() | found.keys()):
        if named.get(path) != found.get(path):
            report.problems.append(f"{path} is not the shard listed in {shown}.")
    claimed, written = record["totals"]["documents"], sum(entry.rows_written for entry in entries.values())
    if claimed != written or claimed != sum(source["documents"] for source in record["sources"]):
        report.problems.append(f"{shown} lists {claimed} documents; the manifest has {written}.")
    documents = step_folder(documents_path(folder), folder.storage_options)
    if record["documents_digest"] != contents_digest(documents):
        report.problems.append(f"{STEPS_FOLDER}/{DOCUMENTS} is not the table that {shown} was written with.")


def shard_facts(folder: RunFolder) -> list[dict[str, Any]]:
    """Every committed file of an output, in order."""
    return [
        {"file": file.path, "documents": file.rows, "bytes": file.size, "hash": file.hash}
        for entry in Manifest(folder).ordered()
        for file in entry.files
    ]
