"""Texts that make careless programs slow: each pattern as long as asked for."""

from __future__ import annotations

from collections.abc import Callable

_REPEATED = {
    # characters and white space
    "one letter": "a",
    "space": " ",
    "newline": "\n",
    "carriage return": "\r\n",
    "tab": "\t",
    "NUL": "\0",
    "wide": "漢",
    "emoji": "👩‍👩‍👧‍👦",
    "combining marks": "e\u0301\u0327",
    "no-break space": "\u00a0",
    "line separator": "\u2028",
    "control": "\x01",
    "letters and spaces": "a ",
    "short lines": "a\n",
    "blank lines": "a\n\n",
    "bidi": "\u202e\u202c",
    "wrong decoding": "Ã©â€™",
    "twice wrong decoding": "ÃƒÂ©",
    "digits": "7",
    "punctuation": ".",
    "ellipses": "...",
    "unicode ellipses": "…",
    "dashes": "-",
    "capital": "ABC ",
    "ligature": "ﬁ",
    "half width": "ｶﾞ",
    "private use": "\ue000",
    "replacement": "\ufffd",
    # words and lines
    "same word": "word ",
    "word with dots": "a.b.",
    "word with marks": "a'b-c_",
    "hyphens": "a-",
    "bullets": "• x\n",
    "dash lines": "- x\n",
    "read more": "read more ",
    "lorem": "lorem ipsum ",
    "policy": "terms of use cookie policy ",
    "citation": "[1][2] ",
    "open brackets": "[",
    "closed brackets": "]",
    "braces": "{",
    "javascript": "javascript ",
    "hashes": "#",
    "pipes": "|",
    "stars": "*",
    "underscores": "_",
    "backticks": "`",
    "links": "[a](b) ",
    "open links": "[a](",
    "images": "![",
    "sentences": "A b. ",
    # quotes and escapes
    "double quotes": '"',
    "single quotes": "'",
    "escaped quotes": '\\"',
    "escaped single quotes": "\\'",
    "backslashes": "\\",
    "triple quotes": '"""',
    "prefixed quotes": 'rb"',
    "quote and newline": '"\n',
    "escape and newline": '"\\\n',
    "quotation lines": '“a” "b"\n',
    # addresses and numbers
    "addresses": "http://a.b/c ",
    "open addresses": "http://",
    "schemes": "http:",
    "www": "www.",
    "e-mail": "a@b.c ",
    "at": "a@",
    "dots and at": "a.@.",
    "telephone": "+1 555-",
    "card": "4111 1111 ",
    "account": "DE89 3704 ",
    "network": "1.2.3.",
    "hex": "fe80::",
    "colons": ":",
    "slashes": "/",
    # code and markup
    "comment open": "<!--",
    "tag open": "<a ",
    "tag with quote": '<a b="',
    "tags": "<a>",
    "closed tags": "</a>",
    "nested": "<div><p>",
    "declaration": "<!a",
    "marked": "<![a",
    "instruction": "<?a",
    "script": "<script>",
    "entity": "&a",
    "entities": "&amp;",
    "number entity": "&#1",
    "c comment": "/*",
    "c comments": "/**/",
    "line comment": "//\n",
    "hash comments": "#a\n",
    "brackets": "(",
    "parentheses": "()",
    "indent": " x\n",
    "python": "def f():\n '''d'''\n",
    "lambda": "lambda:",
    "not": "not ",
    "minus": "-1",
    "attribute": "a.",
    "subscript": "a[",
    "fstring": 'f"{',
}


def _deep_indentation(size: int) -> str:
    lines, length, depth = [], 0, 0
    while length < size:
        lines.append(" " * depth + "if x:\n")
        length += len(lines[-1])
        depth += 1
    return "".join(lines)[:size]


def _different_words(size: int) -> str:
    return " ".join(f"w{n}" for n in range(size // 5))[:size]


def _different_lines(size: int) -> str:
    return "".join(f"é{n}\n" for n in range(size // 5))[:size]


def _different_lines_with_returns(size: int) -> str:
    return "".join(f"w{n}\r\n" for n in range(size // 6))[:size]


def _different_tags(size: int) -> str:
    return "".join(f"<t{n}>" for n in range(size // 7))[:size]


def _different_names(size: int) -> str:
    return "".join(f"x{n}\n" for n in range(size // 5))[:size]


def _growing_words(size: int) -> str:
    return " ".join("a" * n for n in range(1, int((2 * size) ** 0.5)))[:size]


def _tags_in_tags(size: int) -> str:
    half = "".join(f"<t{n}>" for n in range(size // 14))
    return (half + "</x>" * (size // 8))[:size]


PATTERNS: dict[str, Callable[[int], str]] = {
    **{name: (lambda size, part=part: (part * (size // len(part) + 1))[:size]) for name, part in _REPEATED.items()},  # type: ignore[misc]
    "deep indentation": _deep_indentation,
    "different words": _different_words,
    "different lines": _different_lines,
    "different lines with returns": _different_lines_with_returns,
    "different tags": _different_tags,
    "different names": _different_names,
    "growing words": _growing_words,
    "tags in tags": _tags_in_tags,
    "long line, then quotes": lambda size: "x" * (size // 2) + '"' * (size // 2),
    "letters, then @": lambda size: "a" * (size - 1) + "@",
    "spaces, then a letter": lambda size: " " * (size - 1) + "a",
}
