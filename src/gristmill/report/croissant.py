"""Writes the Croissant description of a dataset (MLCommons Croissant 1.0, JSON-LD) from the record of a run.

Written to the output as `_croissant.json`: readers skip names that begin with an underscore.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from gristmill.errors import OutputExistsError
from gristmill.figures import format_size, plural
from gristmill.ledger.record.dataset_record import read_dataset_record
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.manifest import FileEntry, Manifest
from gristmill.ledger.record.run_record import read_run
from gristmill.ledger.record.shape import open_table
from gristmill.storage.compression import SourceFileObject, open_raw, open_source
from gristmill.storage.files import StorageOptions
from gristmill.storage.formats import format_of

CROISSANT = "_croissant.json"
REQUIRED = ("name", "description", "license", "url", "creator", "datePublished")
"""What Croissant 1.0 requires of every dataset in addition to its type and version."""
_LOOKED_AT = 200
_TYPES = {str: "sc:Text", bool: "sc:Boolean", int: "sc:Integer", float: "sc:Float"}
_FORMATS = {"jsonl": "application/jsonlines", "parquet": "application/x-parquet", "csv": "text/csv"}
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileProperty": "cr:fileProperty",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}


def write_croissant(
    output: str | os.PathLike[str],
    *,
    name: str | None = None,
    given: Mapping[str, str] | None = None,
    replace: bool = False,
    record_path: str | os.PathLike[str] | None = None,
    storage_options: StorageOptions = None,
) -> tuple[str, list[str]]:
    """Write the Croissant description of an output into its folder.

    Args:
        output: The output of a run, a folder.
        name: Name of the dataset; defaults to the name of the folder.
        given: Properties that the record does not contain: `license`, `url`, `creator`, `description`.
        replace: Overwrite a file that this function did not write.
        record_path: Path of the run's record, if not beside the output.
        storage_options: Passed to fsspec for URLs.

    Returns:
        Its path, and the required properties that are still missing.

    Raises:
        InputNotFoundError: The folder is not the output of a run.
        OutputExistsError: There is a file of that name from another program.

    Example:
        >>> write_croissant("shuffled/", given={"license": "CC-BY-4.0"})  # doctest: +SKIP
        ('shuffled/_croissant.json', ['url', 'creator'])
    """
    folder = RunFolder(output, storage_options, record_path=record_path)
    folder.require_run()
    place = folder.join(CROISSANT)
    if not replace and folder.exists(place) and b"Gristmill" not in folder.read(place):
        raise OutputExistsError(
            f"{place} exists and was not written by gristmill. Move it away, or replace it with --replace.", path=place
        )
    files = [file for entry in Manifest(folder).ordered() for file in entry.files]
    title = name or folder.path.rstrip("/").rpartition("/")[2]
    made = make_croissant(folder, files, title=title, given=given or {})
    folder.write(place, (json.dumps(made, indent=2, ensure_ascii=False) + "\n").encode())
    return place, [key for key in REQUIRED if not made.get(key)]


def make_croissant(
    folder: RunFolder, files: Sequence[FileEntry], *, title: str, given: Mapping[str, str]
) -> dict[str, Any]:
    """The description as JSON-LD."""
    run = read_run(folder) or {}
    record = read_dataset_record(folder) or {}
    rows, size = sum(file.rows or 0 for file in files), sum(file.size for file in files)
    told = f"{plural(rows, 'document')} in {plural(len(files), 'file')} ({format_size(size)}), made by Gristmill"
    licenses = sorted({name for source in record.get("sources", []) for name in licenses_of(source)})
    described: dict[str, Any] = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": title,
        "description": given.get("description") or f"{told}.",
        "version": "1.0.0",
        "datePublished": str(run.get("finished") or run.get("started") or "")[:10] or None,
        "license": given.get("license") or (licenses if len(licenses) > 1 else "".join(licenses)) or None,
        "url": given.get("url"),
        "creator": {"@type": "sc:Organization", "name": given["creator"]} if given.get("creator") else None,
        "distribution": [_file_object(folder, file) for file in files],
    }
    described["recordSet"] = _record_sets(folder, files)
    return {key: value for key, value in described.items() if value is not None}


def licenses_of(source: Mapping[str, Any]) -> list[str]:
    """The licences of a source: those of its documents, or the one stated for it."""
    found = [name for name in source.get("licenses", {}) if name not in ("unknown", "other")]
    return found or ([source["license"]] if source.get("license") else [])


def _file_object(folder: RunFolder, file: FileEntry) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": file.path,
        "name": file.path,
        "contentUrl": file.path,
        "contentSize": f"{file.size} B",
        "encodingFormat": _FORMATS.get(format_of(file.path) or "", "application/octet-stream"),
        "sha256": _sha256(folder, file),
    }


def _sha256(folder: RunFolder, file: FileEntry) -> str:
    digest = hashlib.sha256()
    with open_raw(folder.join(file.path), storage_options=folder.storage_options) as source:
        while block := source.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _record_sets(folder: RunFolder, files: Sequence[FileEntry]) -> list[dict[str, Any]]:
    """One record set per file, with the fields of its documents as far as the first ones show them."""
    if not files:
        return []
    columns = _columns(folder, files[0])
    return [
        {
            "@type": "cr:RecordSet",
            "@id": f"records/{file.path}",
            "name": f"records/{file.path}",
            "field": [
                {
                    "@type": "cr:Field",
                    "@id": f"records/{file.path}/{name}",
                    "name": name,
                    "dataType": kind,
                    "source": {"fileObject": {"@id": file.path}, "extract": {"column": name}},
                }
                for name, kind in columns.items()
            ],
        }
        for file in files
    ]


def _columns(folder: RunFolder, file: FileEntry) -> dict[str, str]:
    path = folder.join(file.path)
    if format_of(file.path) == "parquet":
        with open_raw(path, storage_options=folder.storage_options) as file, open_table(file) as table:
            return {field.name: _arrow_type(field.type) for field in table.schema_arrow}
    if format_of(file.path) != "jsonl":
        return {}
    found: dict[str, str] = {}
    opened = SourceFileObject(open_source(path, storage_options=folder.storage_options))
    with io.BufferedReader(opened) as source:
        for line in islice(source, _LOOKED_AT):
            for name, value in json.loads(line).items():
                if value is not None and found.get(name) != "sc:Text":
                    kind = _TYPES.get(type(value), "sc:Text")
                    before = found.get(name, kind)
                    found[name] = (
                        kind if before == kind else "sc:Float" if "sc:Text" not in (before, kind) else "sc:Text"
                    )
    return found


def _arrow_type(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "sc:Boolean"
    if pa.types.is_integer(kind):
        return "sc:Integer"
    return "sc:Float" if pa.types.is_floating(kind) else "sc:Text"
