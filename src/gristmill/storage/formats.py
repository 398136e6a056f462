"""Formats of input files, by their names (format and compression) and by their first bytes."""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Format = Literal[
    "jsonl", "parquet", "archive", "arrow", "csv", "html", "mail", "mediawiki", "pdf", "sql", "stackexchange", "text",
    "warc",
]  # fmt: skip
RECORD_FORMATS: tuple[Format, ...] = ("jsonl", "parquet")
"""The formats of ready-made records: the input of workflows and the default output."""
WrittenFormat = Literal["jsonl", "parquet", "arrow", "csv"]
WRITTEN_FORMATS: tuple[WrittenFormat, ...] = get_args(WrittenFormat)
Codec = Literal["none", "gz", "zst", "bz2", "xz"]


@dataclass(frozen=True, slots=True)
class FormatSpec:
    """Properties of a format.

    Attributes:
        label: Common name.
        extensions: Extensions of such files; a compression suffix may follow.
        reader: The public class that reads it.
        companion: Such files often accompany data of another format, like a README, and are then not data.
        packed: Files are usually small and numerous, so several form one partition by default.
        uniform: Every file has the same columns.
        split_bytes: Local files above this size are split by default; lower for formats that are slow to process.
    """

    label: str
    extensions: tuple[str, ...]
    reader: str
    companion: bool = False
    packed: bool = False
    uniform: bool = False
    split_bytes: int = 128 * 10**6


FORMATS: Mapping[Format, FormatSpec] = {
    "jsonl": FormatSpec("JSONL", (".jsonl", ".json", ".ndjson"), "JsonlReader"),
    "parquet": FormatSpec("Parquet", (".parquet",), "ParquetReader"),
    "archive": FormatSpec("archives", (".tar", ".tgz", ".zip"), "ArchiveReader"),
    "arrow": FormatSpec("Arrow", (".arrow", ".feather", ".ipc"), "ArrowReader"),
    "csv": FormatSpec("CSV", (".csv", ".tsv"), "CsvReader"),
    "html": FormatSpec("HTML", (".html", ".htm", ".xhtml"), "HtmlReader", companion=True, packed=True, uniform=True),
    "mail": FormatSpec("mail", (".mbox", ".eml"), "MailReader", packed=True),
    "pdf": FormatSpec("PDF", (".pdf",), "PdfReader", companion=True, packed=True),
    "sql": FormatSpec("SQL", (".sqlite", ".sqlite3", ".duckdb"), "SqlReader"),
    "stackexchange": FormatSpec("StackExchange posts", ("posts.xml",), "StackExchangeReader"),
    "text": FormatSpec(
        "text", (".txt", ".text", ".md", ".markdown"), "TextReader", companion=True, packed=True, uniform=True
    ),
    "warc": FormatSpec("WARC", (".warc", ".wet", ".arc"), "WarcReader", split_bytes=32 * 10**6),
    # Last: names of other formats may end with .xml too.
    "mediawiki": FormatSpec("MediaWiki dump", (".xml",), "WikipediaReader"),
}
EXTENSIONS: Mapping[Format, tuple[str, ...]] = {name: spec.extensions for name, spec in FORMATS.items()}
CODECS: Mapping[str, Codec] = {
    ".gz": "gz", ".zst": "zst", ".zstd": "zst", ".bz2": "bz2", ".xz": "xz", ".lzma": "xz",
}  # fmt: skip
"""The compression that a suffix indicates."""
COMPRESSED_SUFFIXES = tuple(CODECS)
_PAGE_RANGE = re.compile(r"(?<=\.xml)-p\d+p\d+$")


def codec_of(path: str) -> Codec:
    """The compression that the suffix of `path` indicates."""
    path = path.lower()
    for suffix, codec in CODECS.items():
        if path.endswith(suffix):
            return codec
    return "none"


def has_extension(name: str, extensions: Sequence[str]) -> bool:
    """Whether `name` ends with one of `extensions`, optionally followed by a compression suffix."""
    name = name.lower()
    for suffix in COMPRESSED_SUFFIXES:
        if name.endswith(suffix) and not name.endswith(tuple(extensions)):
            name = name[: -len(suffix)]
            break
    if ".xml-p" in name:  # dumps of large wikis come in pieces: enwiki-latest-pages-articles1.xml-p1p41242
        name = _PAGE_RANGE.sub("", name)
    return name.endswith(tuple(extensions))


def format_of(name: str) -> Format | None:
    """The format that a file's name indicates; None if no reader accepts such names."""
    for kind, endings in EXTENSIONS.items():
        if has_extension(name, endings):
            return kind
    return None


# What the first bytes say --------------------------------------------------------------------------------------------

_MAGIC: tuple[tuple[str, int, bytes], ...] = (
    ("parquet", 0, b"PAR1"),
    ("gzip", 0, b"\x1f\x8b\x08"),
    ("zstd", 0, b"\x28\xb5\x2f\xfd"),
    ("xz", 0, b"\xfd7zXZ\0"),
    ("bzip2", 4, b"1AY&SY"),
    ("lz4", 0, b"\x04\x22\x4d\x18"),
    ("zip", 0, b"PK\3\4"),
    ("zip", 0, b"PK\5\6"),
    ("7z", 0, b"7z\xbc\xaf\x27\x1c"),
    ("tar", 257, b"ustar"),
    ("arrow", 0, b"ARROW1"),
    ("arrow", 0, b"FEA1"),
    ("arrow_stream", 0, b"\xff\xff\xff\xff"),
    ("avro", 0, b"Obj\1"),
    ("hdf5", 0, b"\x89HDF\r\n"),
    ("sqlite", 0, b"SQLite format 3\0"),
    ("duckdb", 8, b"DUCK"),
    ("pdf", 0, b"%PDF-"),
    ("warc", 0, b"WARC/"),
    ("utf-32", 0, b"\xff\xfe\0\0"),
    ("utf-32", 0, b"\0\0\xfe\xff"),
    ("utf-16", 0, b"\xff\xfe"),
    ("utf-16", 0, b"\xfe\xff"),
)
CODEC_KINDS: Mapping[str, Codec] = {"gzip": "gz", "zstd": "zst", "bzip2": "bz2", "xz": "xz"}
HEAD_BYTES = 16 * 1024
"""Number of bytes of a file's content that `recognise` inspects."""

# Without a byte order mark: JSON and CSV begin with ASCII, whose other bytes are then zero.
_WIDE = re.compile(rb"(?P<u32>(?:[\t-~]\0\0\0){2}|(?:\0\0\0[\t-~]){2})|(?P<u16>(?:[\t-~]\0){2}|(?:\0[\t-~]){2})")
_RECORD = re.compile(rb"^[ \t]*\{[ \t]*[^\s]", re.MULTILINE)
_AT_MARGIN = re.compile(rb"^\{[ \t]*(?:[^\s]|\Z)", re.MULTILINE)
_MARKUP = re.compile(rb"<(?:\?xml|!doctype|html)\b", re.IGNORECASE)
_POSTS = re.compile(rb"(?:<\?xml[^<>]*>\s*)?<posts>")
_MAILBOX = re.compile(rb"From [^\r\n]{1,300}\d\d:\d\d[^\r\n]*\r?\n[!-9;-~]+:")
_COLUMN_NAME = re.compile(r"[\w .:/-]{1,64}")
_TEXT_LINES = 10

_POLARS = "`python -c \"import sys, polars; polars.{}.{}('records.{}')\" {{path}}`"
_RENAME = "Rename it to end with .{} and read it with {}"
_KINDS: Mapping[str, tuple[str, str]] = {
    "jsonl": ("JSONL", _RENAME.format("jsonl", "JsonlReader")),
    "json_array": ("a JSON array", _RENAME.format("json", "JsonlReader")),
    "uncompressed": ("not compressed", "Rename it to end without {suffix}"),
    "json_object": (
        "JSON laid out over several lines, not one record per line",
        "Convert it: `jq -c . {path} > records.jsonl` (with '.NAME[]' for '.' if the records are nested)",
    ),
    "json_values": ("a JSON array of values that are not objects", 'Records are objects, such as {{"text": "…"}}'),
    "parquet": ("Parquet", _RENAME.format("parquet", "ParquetReader")),
    "lz4": ("LZ4-compressed", "Decompress it: `lz4 -d {path}`"),
    "zip": ("a ZIP archive", f"{_RENAME.format('zip', 'ArchiveReader')}, or unpack it: `unzip {{path}}`"),
    "7z": ("a 7z archive", "Unpack it: `7z x {path}`"),
    "tar": ("a tar archive", f"{_RENAME.format('tar', 'ArchiveReader')}, or unpack it: `tar -xf {{path}}`"),
    "arrow": ("Arrow IPC (Feather)", _RENAME.format("arrow", "ArrowReader")),
    "arrow_stream": ("an Arrow IPC stream", _RENAME.format("arrow", "ArrowReader")),
    "avro": ("Avro", "Convert it: " + _POLARS.format("read_avro(sys.argv[1])", "write_parquet", "parquet")),
    "hdf5": ("HDF5", "Convert it to Parquet or JSONL"),
    "sqlite": ("an SQLite database", "Read it with SqlReader (--input-filetype sql)"),
    "duckdb": ("a DuckDB database", "Read it with SqlReader (--input-filetype sql)"),
    "mail": ("mail", _RENAME.format("mbox or .eml", "MailReader")),
    "pdf": ("a PDF", _RENAME.format("pdf", "PdfReader")),
    "stackexchange": ("posts of StackExchange", "Rename it to end with Posts.xml and read it with StackExchangeReader"),
    "warc": ("a WARC archive of web pages", _RENAME.format("warc", "WarcReader")),
    "html": ("HTML", _RENAME.format("html", "HtmlReader")),
    "mediawiki": ("a MediaWiki dump", _RENAME.format("xml", "WikipediaReader")),
    "xml": ("XML", "Convert it to records first"),
    "csv": ("CSV", _RENAME.format("csv", "CsvReader")),
    "tsv": ("tab-separated values", _RENAME.format("tsv", "CsvReader")),
    "utf-16": ("text in UTF-16", "Convert it: `iconv -f UTF-16 -t UTF-8 {path} > records.jsonl`"),
    "utf-32": ("text in UTF-32", "Convert it: `iconv -f UTF-32 -t UTF-8 {path} > records.jsonl`"),
    "text": ("plain text, not records", _RENAME.format("txt", "TextReader (document='line' for a document per line)")),
}  # fmt: skip
_NO_TEXT = frozenset(kind for kind, _, _ in _MAGIC) - {"utf-16", "utf-32"}
"""Content that no text reader accepts, whatever its name; anything else may be text that happens to begin like this."""


def recognise(head: bytes) -> str | None:
    """The type of a file's content by its first bytes: a key of `_KINDS` or `CODEC_KINDS`.

    None if it is uncertain. A line that is not a record does not rule out JSONL: one other line among the first that
    begins like a record is enough.
    """
    for kind, at, magic in _MAGIC:
        if head.startswith(magic, at) and (kind != "arrow_stream" or head[7:8] == b"\0"):
            return kind
    wide = _WIDE.match(head)
    if wide is not None:
        return "utf-32" if wide["u32"] else "utf-16"
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    lines = text.split(b"\n", 64)
    first, rest = lines[0].rstrip(), b"\n".join(lines[1:]).strip()
    if not text or (len(lines) == 1 and text[:1] not in b"{[<"):
        return None
    if text[:1] == b"{":
        # Braces of JSON over several lines are indented or stand alone.
        return "json_object" if rest and not first.endswith(b"}") and not _AT_MARGIN.search(rest) else "jsonl"
    records = _RECORD.search(rest) is not None
    if text[:1] == b"[":
        if rest and first.endswith(b"]") and first != b"[]":
            return "jsonl" if records else None  # lines that are arrays
        inside = text[1:].lstrip()[:1]
        if inside in (b"{", b"]"):
            return "json_array"
        return "json_values" if inside and not first.endswith(b"]") else None
    if text[:1] == b"<" and b"<mediawiki" in text[:2000]:
        return "mediawiki"
    if _POSTS.match(text):
        return "stackexchange"
    if _MAILBOX.match(head):
        return "mail"
    if _MARKUP.match(text):
        return "html" if b"<html" in text[:2000].lower() or text[:9].lower() == b"<!doctype" else "xml"
    if records:
        return "jsonl"
    if text[:1] == b"<":
        return "xml"
    return None if b"\0" in head else _recognise_text(text)


def _recognise_text(text: bytes) -> str | None:
    """Tables and running text by their first lines, none of which begins like a record."""
    decoded = text.decode("utf-8", "replace")
    for delimiter, kind in ((",", "csv"), ("\t", "tsv"), (";", "csv"), ("|", "csv")):
        try:
            rows = [row for row in csv.reader(io.StringIO(decoded), delimiter=delimiter) if row]
        except csv.Error:
            continue
        complete = rows[:-1]  # the last one may be cut
        width = len(rows[0])
        if width < 2 or len(rows) < 2 or any(len(row) != width for row in complete):
            continue
        if len(complete) > 1 or all(map(_COLUMN_NAME.fullmatch, rows[0])):
            return kind
    return "text" if decoded.count("\n") >= _TEXT_LINES else None


def mismatch(path: str, kind: str | None, format: Format) -> str | None:
    """The problem with reading a file that holds `kind` as `format`, and the fix; None if there is none.

    Args:
        path: The file, by its name.
        kind: Its recognised type.
        format: Format of the reader.
    """
    if kind is None or kind == format or (format == "jsonl" and kind == "json_array"):
        return None
    if format not in RECORD_FORMATS and kind not in _NO_TEXT:
        return None
    codec = codec_of(path)
    if kind in CODEC_KINDS:
        what = f"{kind}-compressed{' twice' if CODEC_KINDS[kind] == codec else ''}"
        fix = f"Rename it to end with .{CODEC_KINDS[kind]}"
        if format == "parquet" or CODEC_KINDS[kind] == codec:
            fix = "Decompress it"
    else:
        what, fix = _KINDS[kind]
        fix = f"Decompress it first. {fix}" if codec != "none" and "{path" in fix else fix
    fix = fix.format(path=shlex.quote(path), suffix=path[path.rfind(".") :])
    return f"{path} cannot be read as {FORMATS[format].label}: it is {what}. {fix}."
