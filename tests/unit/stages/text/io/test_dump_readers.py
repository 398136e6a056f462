"""Mail, PDF and StackExchange posts through whole runs: the format is chosen, everything is accounted for."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from gristmill.backends.local import LocalExecutor
from gristmill.errors import MissingExtraError, UsageError
from gristmill.ledger.prove.verify import verify
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.quarantine import read_quarantine
from gristmill.pipeline import Pipeline
from gristmill.stages.text.io.documents import DocumentReader
from gristmill.stages.text.io.reader.dumps import MailReader, StackExchangeReader
from gristmill.stages.text.io.reader.pdf import PdfExtractor, PdfReader
from gristmill.stages.text.io.writer import JsonlWriter
from gristmill.tasks.document import DocumentBatch

POSTS = '<posts><row Id="1" PostTypeId="1" Body="&lt;p&gt;How?&lt;/p&gt;"/><row Id="2"/></posts>'
MAIL = b"From a at b  Mon Jan  5 10:00:00 2020\nSubject: Hello\n\nText.\n\n"


def pdf(*pages: str, trailer: str = "") -> bytes:
    """A PDF with a line of text on each page."""
    kids = " ".join(f"{3 + 2 * n} 0 R" for n in range(len(pages)))
    objects = ["<</Type/Catalog/Pages 2 0 R>>", f"<</Type/Pages/Kids[{kids}]/Count {len(pages)}>>"]
    for n, text in enumerate(pages):
        content = f"BT /F 12 Tf 20 700 Td ({text}) Tj ET" if text else ""
        objects.append(
            f"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Contents {4 + 2 * n} 0 R"
            "/Resources<</Font<</F<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>>>>>"
        )
        objects.append(f"<</Length {len(content)}>>stream\n{content}\nendstream")
    body, places = b"%PDF-1.4\n", []
    for number, one in enumerate(objects, 1):
        places.append(len(body))
        body += f"{number} 0 obj\n{one}\nendobj\n".encode()
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    count = len(objects) + 1
    end = f"xref\n0 {count}\n0000000000 65535 f \n{table}trailer\n<</Size {count}/Root 1 0 R{trailer}>>"
    return body + f"{end}\nstartxref\n{len(body)}\n%%EOF\n".encode()


LOCKED = pdf("Secret", trailer=f"/ID[<{'00' * 16}><{'00' * 16}>]/Encrypt<</Filter/Standard/V 1/R 2/P -4"
             f"/O<{'11' * 32}>/U<{'22' * 32}>>>")  # fmt: skip


def run(tmp_path: Path, reader: Any, **options: Any) -> tuple[list[dict[str, Any]], dict[str, str], Any]:
    out = tmp_path.with_name(tmp_path.name + "-out")
    stages = [*(reader if isinstance(reader, list) else [reader]), JsonlWriter(str(out))]
    result = Pipeline("dumps", stages=stages).run(progress=False, error_budget=1.0, **options)
    rows = [json.loads(line) for path in sorted(out.glob("*.jsonl")) for line in path.read_text().splitlines()]
    assert verify(str(out)).ok
    causes = {entry.record.cause: entry.record.detail for entry in read_quarantine(RunFolder(str(out)))}
    return rows, causes, result.report


def test_the_format_is_chosen_by_the_name(tmp_path: Path) -> None:
    """For mail, posts and PDF alike, silently."""
    for name, content in (("a.mbox", MAIL * 2), ("Posts.xml", POSTS.encode()), ("a.pdf", pdf("Hello"))):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_bytes(content)
        rows, causes, report = run(folder, DocumentReader(str(folder)))
        assert report.rows_read == len(rows) + len(causes)
        assert rows[0]["text"] in ("Text.", "How?", "Hello")
    assert causes == {}


def test_posts_are_accounted_for(tmp_path: Path) -> None:
    """Those that are none are quarantined."""
    (tmp_path / "Posts.xml").write_text(POSTS)
    rows, causes, _ = run(tmp_path, StackExchangeReader(str(tmp_path), fields=["id", "kind", "text"]))
    assert rows == [{"id": "1", "kind": "question", "text": "How?"}]
    assert list(causes) == ["not_a_post"]


def test_a_maildir_is_read(tmp_path: Path) -> None:
    """A list of files without an ending."""
    (tmp_path / "cur").mkdir()
    for number in range(3):
        (tmp_path / "cur" / f"160{number}.M1P2.host:2,S").write_bytes(b"Subject: %d\n\nText %d" % (number, number))
    rows, _, _ = run(tmp_path, MailReader(sorted((tmp_path / "cur").iterdir())))
    assert [row["subject"] for row in rows] == ["0", "1", "2"]


def test_pdfs_become_text(tmp_path: Path) -> None:
    """Page by page; what is broken or locked is quarantined, a page of nothing dropped."""
    files = {
        "a.pdf": pdf("First page", "Second page", ""),
        "b.pdf": b"%PDF-1.4\nnothing else",
        "c.pdf": LOCKED,
        "d.pdf": pdf(""),
        "e.pdf": pdf("Last"),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    rows, causes, report = run(tmp_path, PdfReader(str(tmp_path)))
    assert rows == [
        {"id": "a.pdf", "file_name": "a.pdf", "text": "First page\n\nSecond page", "pages": 3},
        {"id": "e.pdf", "file_name": "e.pdf", "text": "Last", "pages": 1},
    ]
    assert sorted(causes) == ["corrupt_pdf", "encrypted_pdf"]
    assert "password" in causes["encrypted_pdf"]
    assert (report.rows_read, report.rows_written) == (5, 2)


def test_limits_of_pdfs(tmp_path: Path) -> None:
    """Pages are counted, sizes are held."""
    (tmp_path / "a.pdf").write_bytes(pdf("One", "Two"))
    (tmp_path / "b.pdf").write_bytes(pdf("One") + b"%" * 5000)
    rows, causes, _ = run(tmp_path, PdfReader(str(tmp_path), max_pages=1, max_file_bytes=4000, fields=["text"]))
    assert rows == [{"text": "One"}]
    assert list(causes) == ["record_too_large"]
    with pytest.raises(UsageError, match="max_pages=0"):
        PdfReader(str(tmp_path), max_pages=0)


class Crashing(PdfExtractor):
    """Ends the worker at one file, as a fault in PDFium would."""

    def _text(self, content: bytes) -> tuple[str, int]:
        if b"Crash" in content:
            os.abort()
        return super()._text(content)


def test_a_pdf_that_ends_the_worker_is_found(tmp_path: Path) -> None:
    """The others of its batch come through."""
    for number in range(6):
        (tmp_path / f"{number}.pdf").write_bytes(pdf("Crash" if number == 3 else f"Text {number}"))
    files = PdfReader(str(tmp_path)).decompose()[:-1]
    rows, causes, _ = run(tmp_path, [*files, Crashing()], executor=LocalExecutor({"num_cpus": 2}))
    assert [row["text"] for row in rows] == [f"Text {number}" for number in range(6) if number != 3]
    assert len(causes) == 1


def test_without_the_library_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is read."""
    (tmp_path / "a.pdf").write_bytes(pdf("One"))
    monkeypatch.setitem(sys.modules, "pypdfium2", None)
    with pytest.raises(MissingExtraError, match=r"gristmill\[web\]"):
        run(tmp_path, PdfReader(str(tmp_path)))


def test_null_and_empty_files_are_no_pdf() -> None:
    """A column of anything is handled row by row."""
    import pyarrow as pa

    batch = DocumentBatch(data=pa.table({"pdf": pa.array([None, b""], pa.binary())}))
    assert PdfExtractor().process(batch).num_items == 0
