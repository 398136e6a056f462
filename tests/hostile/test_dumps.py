"""Dumps made to harm: LaTeX, tar, XML, mail and PDF that grow, nest, lie or are damaged anywhere."""

from __future__ import annotations

import gzip
import io
import random
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gristmill.ledger.prove.verify import verify
from gristmill.pipeline import Pipeline
from gristmill.stages.text.download.arxiv.latex import LatexError, latex_to_text
from gristmill.stages.text.download.arxiv.latex.main_file import main_file
from gristmill.stages.text.download.arxiv.papers import Paper, papers
from gristmill.stages.text.io.reader.pdf import PdfReader
from gristmill.stages.text.io.writer import JsonlWriter
from gristmill.storage.row_formats import Broken
from tests.hostile.attempt import FULL
from tests.unit.storage.test_dump_rows import POSTS, mailbox, mails, posts

Note = Callable[[str, object], None]
PARTS = {
    "braces": ("{", ""),
    "brackets": (r"\x[", ""),
    "footnotes in footnotes": (r"\footnote{", "}"),
    "environments": (r"\begin{itemize}", ""),
    "figures without an end": (r"\begin{figure}", ""),
    "conditions without an end": (r"\iffalse ", ""),
    "conditions in groups": (r"\ensuremath{\iffalse ", "}"),
    "verbatim without an end": (r"\begin{verbatim}", ""),
    "dollars": ("$x", ""),
    "arguments in arguments": (r"\def\a#1{(#1)}\a{", "}"),
    "comments": ("%\n", ""),
    "backslashes": ("\\", ""),
    "definitions": (r"\newcommand{\a}[9]{", ""),
    "delimited arguments": (r"\def\a#1;{#1}\a ", ""),
    "optional arguments": (r"\item[", ""),
    "blanks": ("\\a\t \n ", ""),
    "one long blank": (" ", ""),
    "included files": (r"\input{a}", ""),
    "environments in themselves": (r"\newenvironment{x}{\begin{x}}{\end{x}}\begin{x}", ""),
    "classes": (r"\documentclass ", ""),
}
SIZE = 1_000_000 if FULL else 100_000


@pytest.mark.parametrize("part", PARTS)
def test_latex_of_nothing_but_beginnings(part: str) -> None:
    """LaTeX with 20 kinds of unclosed constructs, nested or repeated: text or a refusal, in time linear in its size."""
    opening, closing = PARTS[part]
    count = SIZE // (len(opening) + len(closing))
    text = opening * count + closing * count
    begun = time.process_time()
    try:
        latex_to_text({"a.tex": text, "main.tex": text}, "main.tex")
    except LatexError as error:
        assert error.cause == "latex_expansion"  # noqa: PT017 (both ends are good)
    main_file({"a.tex": text, "b.tex": text})
    assert time.process_time() - begun < 20 * SIZE / 100_000


def packed() -> bytes:
    """An archive of three papers, one of them an archive itself."""

    def tar(files: dict[str, bytes]) -> bytes:
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as archive:
            for name, content in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        return stream.getvalue()

    source = rb"\documentclass{article}\begin{document}Text \input{b} and more.\end{document}"
    inner = gzip.compress(tar({"a.tex": source, "b.tex": b"of b"}))
    return tar({"1/1.gz": gzip.compress(source), "1/2.gz": inner, "1/3.gz": gzip.compress(source)})


def test_archives_of_papers_damaged_anywhere(record_property: Note) -> None:
    """Archives of papers with flipped bits or truncated: papers, or broken pieces with a cause; never an error."""
    whole, draw = packed(), random.Random(5)
    tried = 5000 if FULL else 400
    for _ in range(tried):
        content = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        if draw.random() < 0.3:
            del content[draw.randrange(len(content)) :]
        found = list(papers(io.BytesIO(bytes(content))))
        assert all(isinstance(one, Paper) or (isinstance(one, Broken) and one.cause and one.detail) for one in found)
        assert found
    record_property("tried", tried)


def test_a_paper_that_explodes() -> None:
    """A paper of 300 MB of blanks in 300 KB: quarantined as too large, the next one kept."""
    bomb = gzip.compress(b" " * (300 << 20), 1)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in (("1.gz", bomb), ("2.gz", gzip.compress(rb"\section{Good}"))):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    broken, paper = papers(io.BytesIO(stream.getvalue()))
    assert isinstance(broken, Broken)
    assert broken.cause == "record_too_large"
    assert isinstance(paper, Paper)


LAUGHS = '<!ENTITY a "ha">' + "".join(f'<!ENTITY {chr(98 + n)} "{f"&{chr(97 + n)};" * 10}">' for n in range(9))
ATTACKS = {
    "billion laughs": (f"<!DOCTYPE posts [{LAUGHS}]><posts><row Id='1' Body='&j;'/></posts>", "unsafe_xml"),
    "one large entity": (f'<!DOCTYPE p [<!ENTITY a "{"a" * 50_000}">]><posts>{"&a;" * 1000}</posts>', "unsafe_xml"),
    "a file as entity": ('<!DOCTYPE p [<!ENTITY a SYSTEM "file:///etc/passwd">]><posts>&a;</posts>', "unsafe_xml"),
    "a parameter entity": ('<!DOCTYPE p [<!ENTITY % a SYSTEM "http://127.0.0.1:9/">%a;]><posts/>', "unsafe_xml"),
    "deep elements": ("<posts>" + "<row>" * 50_000, "truncated_file"),
    "many attributes": ("<posts><row " + " ".join(f'a{n}="1"' for n in range(50_000)) + "/></posts>", None),
    "zeros": ("\0" * 10_000, "corrupt_xml"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_xml_that_grows_or_reads_files(tmp_path: Path, attack: str) -> None:
    """XML with expanding or external entities, deeply nested or damaged: quarantined within seconds, no file opened."""
    content, cause = ATTACKS[attack]
    begun = time.process_time()
    rows, broken = posts(tmp_path, content)
    assert rows == []
    assert [one.cause for one in broken if one.rest] == ([cause] if cause else [])
    assert time.process_time() - begun < 10


def test_posts_damaged_anywhere(tmp_path: Path, record_property: Note) -> None:
    """Posts with changed bytes or truncated anywhere: rows or broken pieces, never an error."""
    whole, draw = POSTS.encode(), random.Random(6)
    for _ in range(300):
        content = bytearray(whole)
        for _ in range(draw.randint(1, 5)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        rows, broken = posts(tmp_path, bytes(content[: draw.randrange(len(content)) if draw.random() < 0.3 else None]))
        assert rows or broken
    record_property("tried", 300)


def test_mail_damaged_anywhere(tmp_path: Path, record_property: Note) -> None:
    """The messages of Python's own mail tests with bytes changed: each a row or a broken piece, never an error."""
    draw, tried = random.Random(7), 0
    for path in mails():
        for _ in range(100 if FULL else 8):
            content = bytearray(path.read_bytes().lstrip())
            for _ in range(draw.randint(1, 10)):
                content[draw.randrange(len(content))] = draw.choice(b'\0\n\r =?;:"-\xff<>a')
            rows, broken = mailbox(tmp_path, bytes(content), "a.eml")
            assert rows or broken
            tried += 1
    record_property("tried", tried)


def nested(depth: int) -> bytes:
    """Parts in parts in parts."""
    parts = [f'Content-Type: multipart/mixed; boundary="b{n}"\n\n--b{n}\n' for n in range(depth)]
    return ("Subject: deep\nMIME-Version: 1.0\n" + "".join(parts) + "\n\nText.\n").encode()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("parts in parts", nested(3000)),
        ("long header", b"Subject: " + b"=?utf-8?Q?a?= " * 200_000 + b"\n\nx"),
        ("long address", b"From: " + b"(" * 500_000 + b"\n\nx"),
        ("long parameters", b"Subject: a\nContent-Type: text/plain" + b"; a=b" * 50_000 + b"\n\nx"),
        ("many headers", b"A: b\n" * 200_000 + b"\nx"),
        ("many parts", b'Subject: a\nContent-Type: multipart/mixed; boundary="b"\n\n' + b"--b\n\nx\n" * 30_000),
        ("folded header", b"Subject: a\n" + b" b\n" * 200_000 + b"\nx"),
        ("border lines", b"From a  Mon Jan  5 10:00:00 2020\n" + b"From \n\n" * 200_000),
    ],
)
def test_mail_that_nests_and_repeats(tmp_path: Path, name: str, content: bytes) -> None:
    """Mail with 3,000 nested parts, 30,000 parts, or headers of megabytes: read or quarantined within seconds."""
    begun = time.process_time()
    rows, broken = mailbox(tmp_path, content, "a.mbox", sender=True)
    assert len(rows) + len(broken) == 1
    assert time.process_time() - begun < 15


def test_pdfs_damaged_anywhere(tmp_path: Path, record_property: Note) -> None:
    """PDFs with flipped bits, truncated or garbled: each is written, dropped or quarantined, and the run succeeds."""
    from tests.unit.stages.text.io.test_dump_readers import pdf

    whole, draw = pdf("First page", "Second page", "Third page"), random.Random(8)
    tried = 2000 if FULL else 150
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(tried):
        content = bytearray(whole)
        for _ in range(draw.randint(1, 20)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        if draw.random() < 0.2:
            del content[draw.randrange(len(content)) :]
        (folder / f"{number}.pdf").write_bytes(content or b"x")
    stages = [PdfReader(str(folder)), JsonlWriter(str(tmp_path / "out"))]
    report = Pipeline("pdf", stages=stages).run(progress=False, error_budget=1.0).report
    assert report.rows_read == tried
    assert verify(str(tmp_path / "out")).ok
    record_property("tried", tried)
