"""The modifier that repairs wrongly decoded text with ftfy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import optional_module, require_module
from gristmill.kernels.text_column import text_column
from gristmill.kernels.text_search import suspicious_rows
from gristmill.stages.text.modifiers.doc_modifier import ColumnModifier

if TYPE_CHECKING:
    from ftfy import TextFixerConfig

__all__ = ["UnicodeReformatter"]


class UnicodeReformatter(ColumnModifier):
    """Repairs text that was decoded wrongly ("sÃ³" becomes "só"), with ftfy (needs the package `ftfy`).

    Lines that ftfy cannot change (plain ASCII without control characters and HTML entities) are skipped, and a line
    that a document repeats is processed once. At worst 2.5 s per MB, for very short distinct lines that all contain a
    non-ASCII character: each costs a call of ftfy.

    Args:
        config: An ftfy configuration; if set, the other arguments are ignored.
        unescape_html: Replace HTML entities: True, False, or "auto" (unless the text has a `<`).
        remove_terminal_escapes: Remove terminal colour codes.
        fix_encoding: Decode wrongly decoded text again; the next four refine this.
        restore_byte_a0: Allow a space to represent byte A0.
        replace_lossy_sequences: Repair sequences in which a byte was lost.
        decode_inconsistent_utf8: Repair sequences in otherwise correct text.
        fix_c1_controls: Read C1 control characters as Windows-1252.
        fix_latin_ligatures: Replace ligatures by their letters.
        fix_character_width: Replace full-width and half-width characters.
        uncurl_quotes: Replace curly quotation marks by straight ones.
        fix_line_breaks: Replace all kinds of line breaks by a newline.
        fix_surrogates: Join UTF-16 surrogates.
        remove_control_chars: Remove control characters that have no effect.
        normalization: A Unicode normal form, or None.
        max_decode_length: Maximum number of characters to repair at once.
        explain: Accepted for ftfy's configuration; has no effect here.

    Example:
        >>> UnicodeReformatter().modify_document("sÃ³")
        'só'
    """

    def __init__(
        self,
        config: TextFixerConfig | None = None,
        unescape_html: str | bool = "auto",
        remove_terminal_escapes: bool = True,
        fix_encoding: bool = True,
        restore_byte_a0: bool = True,
        replace_lossy_sequences: bool = True,
        decode_inconsistent_utf8: bool = True,
        fix_c1_controls: bool = True,
        fix_latin_ligatures: bool = False,
        fix_character_width: bool = False,
        uncurl_quotes: bool = False,
        fix_line_breaks: bool = False,
        fix_surrogates: bool = True,
        remove_control_chars: bool = True,
        normalization: Literal["NFC", "NFD", "NFKC", "NFKD"] | None = None,
        max_decode_length: int = 1000000,
        explain: bool = True,
    ) -> None:
        self._given = config
        self._settings: dict[str, Any] = {
            "unescape_html": unescape_html,
            "remove_terminal_escapes": remove_terminal_escapes,
            "fix_encoding": fix_encoding,
            "restore_byte_a0": restore_byte_a0,
            "replace_lossy_sequences": replace_lossy_sequences,
            "decode_inconsistent_utf8": decode_inconsistent_utf8,
            "fix_c1_controls": fix_c1_controls,
            "fix_latin_ligatures": fix_latin_ligatures,
            "fix_character_width": fix_character_width,
            "uncurl_quotes": uncurl_quotes,
            "fix_line_breaks": fix_line_breaks,
            "fix_surrogates": fix_surrogates,
            "remove_control_chars": remove_control_chars,
            "normalization": normalization,
            "max_decode_length": max_decode_length,
            "explain": explain,
        }

    @property
    def config(self) -> TextFixerConfig:
        """The configuration as ftfy expects it."""
        if self._given is not None:
            return self._given
        return _ftfy().TextFixerConfig(**self._settings)  # type: ignore[no-any-return]

    def check_environment(self) -> None:
        """Raise if ftfy is not installed."""
        require_module("ftfy", "UnicodeReformatter")

    def modify_column(self, column: pa.LargeStringArray) -> pa.Array:
        """The column repaired."""
        texts = text_column(column)
        suspicious = suspicious_rows(texts.data, texts.offsets) & texts.valid
        if not suspicious.any():
            return column
        config, mask = self.config, pa.array(suspicious)
        fixed = [_fixed(text, config).encode("utf-8", "replace") for text in column.filter(mask).to_pylist()]
        return pc.replace_with_mask(column, mask, pa.array(fixed, pa.large_binary()).cast(pa.large_string()))


_SUSPECT = re.compile(r"[^\t\n -%'-~]")
_SUSPECT_OR_RETURN = re.compile(r"[^\t\n\r -%'-~]")
"""Characters that ftfy can change, with and without carriage returns."""


def _fixed(text: str, config: TextFixerConfig) -> str:
    """The result of `ftfy.fix_text`, which works line by line: only suspicious lines are passed to it, each once."""
    fix_text = _ftfy().fix_text
    suspect = _SUSPECT if config.fix_line_breaks else _SUSPECT_OR_RETURN
    # From the line after the first "<" on, HTML entities are left alone.
    bracket = text.find("<") if config.unescape_html == "auto" else -1
    later = config if bracket < 0 else config._replace(unescape_html=False)
    known: dict[tuple[str, bool], str] = {}
    pieces, at = [], 0
    while (found := suspect.search(text, at)) is not None:
        start = text.rfind("\n", at, found.start()) + 1 or at
        end = text.find("\n", found.start()) + 1 or len(text)
        line, before = text[start:end], bracket < 0 or start <= bracket
        if (line, before) not in known:
            known[line, before] = fix_text(line, config=config if before else later)
        pieces += [text[at:start], known[line, before]]
        at = end
    return "".join([*pieces, text[at:]])


def _ftfy() -> Any:
    return optional_module("ftfy", "UnicodeReformatter")
