"""Books of Project Gutenberg lose what stands around them, and nothing else."""

from __future__ import annotations

import time

import pytest

from gristmill.stages.text.modifiers import GutenbergBoilerplate

BOOK = "CHAPTER I\n\nIt was a dark night. *** The end of this is near. ***\n\n" + "More.\n\n" * 20 + "THE END"
NEW = """\ufeffThe Project Gutenberg eBook of A Book
This ebook is for the use of anyone anywhere in the United States …
Title: A Book

*** START OF THE PROJECT GUTENBERG EBOOK A BOOK ***




Produced by Somebody and the Online
Distributed Proofreading Team



{}



*** END OF THE PROJECT GUTENBERG EBOOK A BOOK ***

Updated editions will replace the previous one
START: FULL LICENSE
"""
OLDER = """The Project Gutenberg EBook of A Book, by Nobody

*** START OF THIS PROJECT GUTENBERG EBOOK A BOOK,
VOLUME ONE ***

{}

End of the Project Gutenberg EBook of A Book, by Nobody

*** END OF THIS PROJECT GUTENBERG EBOOK A BOOK ***

***** This file should be named 1.txt *****
"""
OLDEST = """***The Project Gutenberg Etext of A Book***
**Welcome To The World of Free Plain Vanilla Electronic Texts**
*BEFORE!* YOU USE OR READ THIS ETEXT
Money should be paid to …
*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*

{}

End of Project Gutenberg's Etext of A Book
"""


@pytest.mark.parametrize("frame", [NEW, OLDER, OLDEST], ids=["2021", "2004", "1993"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_the_book_alone_stays(frame: str, ending: str) -> None:
    """Whatever the year of its header."""
    text = frame.format(BOOK).replace("\n", ending)
    assert GutenbergBoilerplate().modify_document(text) == BOOK.replace("\n", ending)


def test_credits_stay_if_asked_for() -> None:
    """Who produced the text is part of it then."""
    found = GutenbergBoilerplate(keep_credits=True).modify_document(NEW.format(BOOK))
    assert found.startswith("Produced by Somebody")
    assert found.endswith("THE END")


@pytest.mark.parametrize(
    "text",
    ["", BOOK, "Project Gutenberg is a library.\n\nStart of the Project Gutenberg story.", "\n\n  An indented text \n"],
)
def test_other_texts_stay_as_they_are(text: str) -> None:
    """To the last blank."""
    assert GutenbergBoilerplate().modify_document(text) == text


def test_a_quotation_inside_a_long_book_stays() -> None:
    """Marks far from both ends are part of the book."""
    book = "word " * 20_000 + "\n*** END OF THE PROJECT GUTENBERG EBOOK X ***\n" + "word " * 20_000 + "end"
    assert GutenbergBoilerplate().modify_document(NEW.format(book)).count("word") == 40_000


@pytest.mark.parametrize(
    "piece", ["*", " ", "\n", "* ", "***\n", "START OF ", "\t*", "*** START OF THE PROJECT GUTENBERG "]
)
def test_time_grows_with_the_size(piece: str) -> None:
    """Texts made of the beginnings of marks."""
    begun = time.process_time()
    GutenbergBoilerplate().modify_document(piece * (1_000_000 // len(piece)))
    assert time.process_time() - begun < 2
