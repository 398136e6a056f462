"""The start of a text that is all a truncating tokenizer needs, so that the rest of a long text costs nothing."""

from __future__ import annotations

import json
import re
from typing import Any

# Characters per token that are enough for nearly every text; one that needs more is encoded again as a whole.
_CHARS_PER_TOKEN = 8
# How far before that a place to cut is looked for.
_REACH = 256
# Between two plain words no normaliser looks across the gap, and no token of a splitting tokenizer reaches over it.
_LAST_GAP = re.compile(r".*[A-Za-z0-9](?=[ \n][A-Za-z0-9])", re.DOTALL)
_SPLITTING = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}


def start_of(text: str, limit: int) -> str:
    """The start of a text that most likely gives at least `limit` tokens, up to the end of a word; else all of it.

    Example:
        >>> start_of("ab " * 1000, 4) == "ab " * 10 + "ab", start_of("a" * 1000, 4) == "a" * 1000
        (True, True)
    """
    size = limit * _CHARS_PER_TOKEN
    if len(text) <= size:
        return text
    first = max(0, size - _REACH)
    found = _LAST_GAP.match(text[first : size + 2])
    return text if found is None else text[: first + found.end()]


def splits_at_spaces(tokenizer: Any) -> bool:
    """Whether the tokens of a word depend on that word alone, as the configuration of the compiled tokenizer says."""
    return _splits(json.loads(tokenizer.to_str()).get("pre_tokenizer"))


def _splits(step: dict[str, Any] | None) -> bool:
    if step is None:
        return False
    kind = step.get("type")
    if kind == "Sequence":
        return any(_splits(inner) for inner in step.get("pretokenizers", ()))
    if kind == "ByteLevel":
        return bool(step.get("use_regex", True))
    if kind == "Metaspace":
        return bool(step.get("split", True))
    return kind in _SPLITTING
