"""Mail and StackExchange posts as rows, and the HTML that they are written in as text."""

from __future__ import annotations

import bz2
import email
import os
import time
from pathlib import Path
from typing import Any

import pytest

from gristmill.storage.formats import format_of, recognise
from gristmill.storage.partitions import FileRange
from gristmill.storage.row_formats import Broken, mail_rows, reading_of, rows_of
from gristmill.storage.row_formats.simple_html import text_of

POSTS = """<?xml version="1.0" encoding="utf-8"?>
<posts>
  <row Id="1" PostTypeId="1" AcceptedAnswerId="2" CreationDate="2010-07-09T19:05:36.853" Score="12" ViewCount="3"
    Body="&lt;p&gt;How do I knead?&lt;/p&gt;&#xA;&lt;pre&gt;&lt;code&gt;a &amp;lt; b&#xA;c&lt;/code&gt;&lt;/pre&gt;"
    Title="Kneading &amp; resting" Tags="&lt;bread&gt;&lt;dough&gt;" ContentLicense="CC BY-SA 2.5" />
  <row Id="2" PostTypeId="2" ParentId="1" Score="-3" Tags="|bread|dough|" Body="&lt;p&gt;Slowly.&lt;/p&gt;" />
  <row Id="3" PostTypeId="1" Score="many" Title="No body" />
  <row Id="4" PostTypeId="99" Score="many" Body="" />
</posts>
"""


def read(path: Path, format: Any, **options: Any) -> tuple[list[dict[str, Any]], list[Broken]]:
    size = os.path.getsize(path)
    part = FileRange(str(path), path.name, size, "", 0, size, True, reading_of(format, options))
    rows: list[dict[str, Any]] = []
    broken: list[Broken] = []
    for found in rows_of(part):
        if isinstance(found, Broken):
            broken.append(found)
        else:
            rows += found.to_pylist()
    return rows, broken


def mails() -> list[Path]:
    """Those of Python's own tests, which some distributions of it leave out."""
    tests = pytest.importorskip("test.test_email", reason="this Python comes without its tests")
    return sorted((Path(tests.__file__).parent / "data").glob("msg_*.txt"))


def posts(tmp_path: Path, content: str | bytes) -> tuple[list[dict[str, Any]], list[Broken]]:
    path = tmp_path / "Posts.xml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read(path, "stackexchange")


def mailbox(tmp_path: Path, content: bytes, name: str = "a.mbox", **options: Any) -> tuple[list[Any], list[Broken]]:
    path = tmp_path / name
    path.write_bytes(content)
    return read(path, "mail", **options)


# StackExchange ---------------------------------------------------------------------------------------------------


def test_posts_become_rows(tmp_path: Path) -> None:
    """With what is known of each; a row without a body is one broken piece."""
    rows, broken = posts(tmp_path, POSTS)
    assert rows[0] == {
        "id": "1",
        "file_name": "Posts.xml",
        "kind": "question",
        "parent_id": None,
        "accepted_answer_id": "2",
        "title": "Kneading & resting",
        "tags": ["bread", "dough"],
        "score": 12,
        "date": "2010-07-09T19:05:36.853",
        "license": "CC BY-SA 2.5",
        "text": "How do I knead?\n\n```\na < b\nc\n```",
    }
    assert [(row["kind"], row["parent_id"], row["score"], row["tags"]) for row in rows[1:]] == [
        ("answer", "1", -3, ["bread", "dough"]),
        ("99", None, None, []),
    ]
    assert [(one.cause, one.rest) for one in broken] == [("not_a_post", False)]


def test_compressed_posts_are_read_and_names_tell(tmp_path: Path) -> None:
    """The name of the file says what it holds, and so does its content."""
    path = tmp_path / "cooking-Posts.xml.bz2"
    path.write_bytes(bz2.compress(POSTS.encode()))
    assert len(read(path, "stackexchange")[0]) == 3
    assert format_of("dump/Posts.xml") == format_of(str(path)) == "stackexchange"
    assert recognise(POSTS.encode()) == "stackexchange"


@pytest.mark.parametrize(
    ("content", "cause", "kept"),
    [
        (POSTS[: POSTS.index('<row Id="2"') + 30], "truncated_file", 1),
        (POSTS.replace('<row Id="2"', '<row Id="2" <'), "corrupt_xml", 1),
        ("<mediawiki><page/></mediawiki>", "unsafe_xml", 0),
        ("", "truncated_file", 0),
    ],
)
def test_damaged_posts_keep_what_lies_before(tmp_path: Path, content: str, cause: str, kept: int) -> None:
    """And say where the damage is."""
    rows, broken = posts(tmp_path, content)
    assert (len(rows), [(one.cause, one.rest) for one in broken]) == (kept, [(cause, True)])


# Mail ------------------------------------------------------------------------------------------------------------


def test_the_mails_of_pythons_own_tests_are_read(tmp_path: Path) -> None:
    """Each alone and all in one mailbox; none makes the reader fail, and texts are the same both ways."""
    alone: list[str] = []
    box = b""
    for path in mails():
        content = path.read_bytes()
        content = content.partition(b"\n")[2] if content.startswith(b"From ") else content
        rows, broken = mailbox(tmp_path, content, f"{path.stem}.eml")
        assert len(rows) + len(broken) == 1
        if rows:
            escaped = b"\n".join(b">" + line if line.startswith(b"From ") else line for line in content.split(b"\n"))
            box += b"From someone@example.org Thu Jan  1 00:00:00 1970\n" + escaped + b"\n\n"
            alone.append(rows[0]["text"])
    assert len(alone) >= 45
    rows, broken = mailbox(tmp_path, box)
    assert not broken
    assert [row["text"].strip() for row in rows] == [text.strip() for text in alone]
    assert [row["id"] for row in rows] == [f"a.mbox#{number}" for number in range(len(rows))]


MESSAGE = """From: =?utf-8?q?J=C3=BCrgen?= <j@example.org>
Subject: =?iso-8859-1?Q?Gr=FC=DFe?= an alle
Date: Tue, 01 Jul 2003 09:30:00 +0200
Message-ID: <1@example.org>
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="A"

--A
Content-Type: multipart/alternative; boundary="B"

--B
Content-Type: text/plain; charset="utf-8"
Content-Transfer-Encoding: base64

R3LDvMOfZSwKCmRpZSBsYW5nZSBaZWlsZQ==

--B
Content-Type: text/html

<b>not this one</b>
--B--
--A
Content-Type: text/plain; charset="x-nonsense"
Content-Transfer-Encoding: quoted-printable

caf=E9
--A
Content-Type: text/plain
Content-Disposition: attachment; filename="a.txt"

Attached.
--A--
"""


def test_a_message_is_decoded(tmp_path: Path) -> None:
    """Headers, transfer encodings and charsets; alternatives once, attachments not."""
    rows, _ = mailbox(tmp_path, MESSAGE.encode(), "one.eml", sender=True)
    assert rows == [
        {
            "id": "one.eml",
            "file_name": "one.eml",
            "message_id": "1@example.org",
            "subject": "Grüße an alle",
            "date": "2003-07-01T09:30:00+02:00",
            "from": "Jürgen <j@example.org>",
            "text": "Grüße,\n\ndie lange Zeile\n\ncafé",
        }
    ]
    assert "from" not in mailbox(tmp_path, MESSAGE.encode(), "one.eml")[0][0]


def test_html_is_taken_where_there_is_no_other_text(tmp_path: Path) -> None:
    """Without its scripts and styles."""
    mail = b"Subject: a\nContent-Type: text/html\n\n<style>p{}</style><p>Dear&nbsp;all,<p>hello<br>there"
    assert mailbox(tmp_path, mail, "a.eml")[0][0]["text"] == "Dear all,\n\nhello\nthere"


def test_borders_of_messages(tmp_path: Path) -> None:
    """Lines of a text that begin like one are none, and quoted ones lose one mark."""
    border = b"From a at b  Mon Jan  5 10:00:00 2020\n"
    box = border + b"Subject: 1\n\nOne.\n\nFrom here on\n>From there\n\n" + border + b"Subject: 2\r\n\r\nTwo\r\n\r\n"
    box += border.replace(b"\n", b"\r\n") + b"Subject: 3\n\n\n" + border + b"no header here\n"
    rows, broken = mailbox(tmp_path, box)
    assert [(row["subject"], row["text"]) for row in rows] == [
        ("1", "One.\n\nFrom here on\nFrom there"), ("2", "Two"), ("3", ""),
    ]  # fmt: skip
    assert [(one.cause, one.offset, one.rest) for one in broken] == [("corrupt_mail", len(box) - 15, False)]
    assert recognise(box) == "mail"


def test_messages_cross_the_pieces_that_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a piece ends, the messages are the same."""
    border = b"From a at b  Mon Jan  5 10:00:00 2020\n"
    box = b"".join(border + b"Subject: %d\n\nText %d\n\n" % (n, n) for n in range(40))
    for piece in (600, 601, 637, 700, 1000):
        monkeypatch.setattr(mail_rows, "_PIECE", piece)
        assert [row["subject"] for row in mailbox(tmp_path, box)[0]] == [str(n) for n in range(40)]


def test_a_message_that_is_too_large_is_one_broken_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is read."""
    monkeypatch.setattr(mail_rows, "_PIECE", 4096)
    monkeypatch.setattr(mail_rows, "MAX_MESSAGE_BYTES", 20_000)
    border = b"From a at b  Mon Jan  5 10:00:00 2020\n"
    big = border + b"Subject: big\n\n" + b"x" * 60 * 1000 + b"\n\n"
    small = border + b"Subject: small\n\ny\n\n"
    rows, broken = mailbox(tmp_path, small + big + small)
    assert [row["subject"] for row in rows] == ["small", "small"]
    assert [(one.cause, one.size) for one in broken] == [("record_too_large", len(big) - len(border))]
    assert [one.cause for one in mailbox(tmp_path, small + big)[1]] == ["record_too_large"]


def test_lies_in_headers_do_no_harm(tmp_path: Path) -> None:
    """What cannot be decoded stays as it is, a date that is none is null."""
    mail = b"Subject: =?x-no?Q?a=?= \xff\nDate: yesterday\nContent-Type: text/plain; charset=utf-8\n\n\xff\xfe caf\xe9"
    (row,), _ = mailbox(tmp_path, mail, "a.eml")
    assert (row["date"], row["text"]) == (None, "ÿþ café")
    assert email.message_from_bytes(mail)["Subject"] is not None
    assert row["subject"].startswith("=?x-no?Q?a=?=")


# HTML ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("<p>One\n two</p><p>Three</p>", "One two\n\nThree"),
        ("<ol><li>a<li>b<ul><li>c</ul></ol><p>d", "1. a\n2. b\n  - c\n\nd"),
        ("<h2>Head</h2>x<hr>y", "## Head\n\nx\n\ny"),
        ("a < b &amp; <i>c</i> <!-- gone --> d<script>x<y</script>e", "a < b & c de"),
        ('<img src="x" alt="A &quot;cat&quot;">', 'A "cat"'),
        ("<pre><code>if x:\n    y</code></pre>", "```\nif x:\n    y\n```"),
        ("<script>never closed", ""),
        ("<!-- never closed", ""),
        ("", ""),
    ],
)
def test_html_as_text(markup: str, text: str) -> None:
    """What posts and mails are made of."""
    assert text_of(markup) == text


@pytest.mark.parametrize("piece", ["<", "<a", "<p>", "<ul><li>", "<!--", "<script>", "&lt;", "<a href='", "</ul>"])
def test_html_takes_time_by_its_size(piece: str) -> None:
    """Half a megabyte of the same takes less than two seconds."""
    begun = time.process_time()
    text_of(piece * (500_000 // len(piece)))
    assert time.process_time() - begun < 2
