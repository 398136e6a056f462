"""Prepares LaTeX files: decodes them, removes comments, and stores verbatim parts separately."""

from __future__ import annotations

import re
from collections.abc import Mapping

_ENCODINGS: Mapping[str, str] = {
    "latin1": "cp1252", "latin9": "iso8859-15", "ansinew": "cp1252", "cp1252": "cp1252", "applemac": "mac_roman",
    "cp1251": "cp1251", "koi8-r": "koi8-r", "latin2": "iso8859-2", "cp1250": "cp1250", "latin5": "iso8859-9",
}  # fmt: skip
_INPUT_ENCODING = re.compile(rb"\\usepackage\s*\[([\w-]{2,20})\]\s*\{inputenc\}")
_CONTROL = {code: None for code in range(32) if chr(code) not in "\t\n"} | {0x7F: None}
# The search for the end of a `\verb` is limited: unterminated ones must not take quadratic time.
_PIECES = re.compile(
    r"\\(?:begin[ ]?\{(?P<kind>verbatim\*?|Verbatim\*?|lstlisting\*?|minted|alltt|comment|filecontents\*?|CCSXML)\}"
    r"|(?:verb\*?|lstinline)(?P<mark>[^a-zA-Z*\s\[{])(?P<code>[^\n]{0,400}?)(?P=mark)"
    r"|.)"
    r"|%[^\n]*(?P<line>\n[ \t]*)?",
    re.DOTALL,
)
_OPTIONS = re.compile(r"(?:\[[^\]\n]{0,500}\]|\{[^}\n]{0,100}\})*")
ASIDE = "\x01"
"""Delimits the number of a verbatim part."""


def decoded(content: bytes) -> str:
    """The text of a LaTeX file, decoded as UTF-8, by its declared encoding, or as Western European."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        declared = _INPUT_ENCODING.search(content[:20_000])
        name = _ENCODINGS.get(declared[1].decode("ascii", "replace").lower(), "cp1252") if declared else "cp1252"
        text = content.decode(name, "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n").translate(_CONTROL)


def prepared(text: str, aside: list[tuple[str, bool]]) -> str:
    """`text` without comments; verbatim parts are moved to `aside` (with whether they are blocks) and numbered."""
    parts: list[str] = []
    endless: set[str] = set()
    at = 0
    while (found := _PIECES.search(text, at)) is not None:
        parts.append(text[at : found.start()])
        at = found.end()
        kind = found["kind"]
        if kind is not None and kind not in endless:
            end = text.find(f"\\end{{{kind}}}", at)
            if end < 0:
                endless.add(kind)
                continue
            content = text[at:end]
            at = end + len(kind) + 6
            if kind not in ("comment", "CCSXML", "filecontents", "filecontents*"):
                options = _OPTIONS.match(content)
                content = content[options.end() if options and kind != "alltt" else 0 :]
                parts.append(_set_aside(content.strip("\n"), True, aside))
        elif found["mark"] is not None:
            parts.append(_set_aside(found["code"], False, aside))
        elif found[0][0] != "%":
            parts.append(found[0])
        elif text.startswith("\n", at):
            parts.append("\n")  # a blank line below a comment ends a paragraph
    parts.append(text[at:])
    return "".join(parts)


def _set_aside(content: str, block: bool, aside: list[tuple[str, bool]]) -> str:
    aside.append((content, block))
    return f"{ASIDE}{len(aside) - 1}{ASIDE}"
