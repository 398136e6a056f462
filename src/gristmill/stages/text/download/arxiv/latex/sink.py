"""The output of the converter: paragraphs and blocks, with whitespace as in TeX."""

from __future__ import annotations

import unicodedata

LINE_BREAK = "\x03"
_LIGATURES = (("---", "—"), ("--", "–"), ("``", "“"), ("''", "”"), ("`", "‘"))


def ligatured(text: str) -> str:
    """Running text with TeX's dashes and quotation marks."""
    if "--" in text or "`" in text or "''" in text:
        for written, meant in _LIGATURES:
            text = text.replace(written, meant)
    return text


class Sink:
    """Collects output text; a paragraph is the text between two calls of `paragraph`."""

    def __init__(self) -> None:
        self.blocks: list[str] = []
        self._pieces: list[str] = []
        self._notes: list[str] = []
        self._lead = ""

    def add(self, piece: str) -> None:
        """Append to the paragraph."""
        self._pieces.append(piece)

    def lead(self, text: str) -> None:
        """Begin a paragraph with `text`, such as a list bullet; a bullet alone is dropped."""
        self.paragraph()
        self._lead = text

    def note(self, text: str) -> None:
        """Add a footnote after the paragraph."""
        self._notes.append(text)

    def paragraph(self) -> None:
        """End the paragraph."""
        if self._pieces:
            lines = "".join(self._pieces).split(LINE_BREAK)
            self._pieces = []
            kept = [line for line in (" ".join(line.split()) for line in lines) if line.strip(" |")]
            if kept:
                kept[0] = self._lead + kept[0]
                self._lead = ""
                self.blocks.append(unicodedata.normalize("NFC", "\n".join(kept)))
        if self._notes and self.blocks:
            self.blocks += [f"Footnote: {note}" for note in self._notes]
            self._notes = []

    def block(self, text: str) -> None:
        """Insert `text` between paragraphs, unchanged."""
        self.paragraph()
        self.blocks.append(self._lead + text)
        self._lead = ""

    def text(self) -> str:
        """The whole text, with a blank line between blocks."""
        self.paragraph()
        return "\n\n".join(self.blocks)
