"""The input of the converter: a stack of texts, read from the top; finds groups and arguments in it."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

_BORDERS = re.compile(r"\\.|[{}\[\]]", re.DOTALL)
_BLANK = re.compile(r"[ \t]*\n?[ \t]*")
_ONE_TOKEN = re.compile(r"\\[a-zA-Z@]+|\\.|\x01\d+\x01|[^\s\\{}]", re.DOTALL)
_IF = re.compile(r"\\(if(?!f\b|thenelse\b|def\b)[a-zA-Z@]*|else|fi)(?![a-zA-Z@])")
_NAME = re.compile(r"\s{0,9}\{([^{}\\]{1,80})\}")


class Frame:
    """A piece of text being read; `closed` is called once at its end, `outer` is a frame of the same text."""

    __slots__ = ("at", "closed", "end", "macro", "missing", "pairs", "text")

    def __init__(
        self,
        text: str,
        at: int = 0,
        end: int | None = None,
        *,
        outer: Frame | None = None,
        macro: str | None = None,
        closed: Callable[[], None] | None = None,
    ) -> None:
        self.text = text
        self.at = at
        self.end = len(text) if end is None else end
        self.pairs: dict[int, int] | None = None if outer is None else outer.pairs
        self.missing: dict[str, tuple[int, int]] = {} if outer is None else outer.missing
        self.macro = macro
        self.closed = closed

    def partner(self, at: int) -> int:
        """Where the group that begins at `at` ends in this frame; -1 if it does not."""
        if self.pairs is None:
            self.pairs = _pairs(self.text) if len(self.text) > 500 else _known_pairs(self.text)
        found = self.pairs.get(at, -1)
        return found if found < self.end else -1

    def lacks(self, mark: str) -> bool:
        """Whether `mark` is known not to follow, to avoid repeated searches to the end."""
        first, last = self.missing.get(mark, (0, 0))
        return first <= self.at and self.end <= last

    def note_missing(self, mark: str) -> None:
        """Remember that `mark` does not follow."""
        self.missing[mark] = self.at, self.end

    def skip_branch(self, *, to_else: bool) -> None:
        r"""Skip to the end of the condition being read, or to its `\else`."""
        if self.lacks("fi"):
            return
        level = 0
        for found in _IF.finditer(self.text, self.at, self.end):
            if found[1] == "fi":
                level -= 1
            elif found[1] != "else":
                level += 1
            if level < 0 or (found[1] == "else" and level == 0 and to_else):
                self.at = found.end()
                return
        self.note_missing("fi")

    def skip_to(self, mark: str) -> None:
        """Skip `mark`, if it follows."""
        if self.lacks(mark):
            return
        at = self.text.find(mark, self.at, self.end)
        if at < 0:
            self.note_missing(mark)
        else:
            self.at = at + len(mark)

    def skip(self, pattern: re.Pattern[str]) -> None:
        """Skip a match at the current position, if there is one."""
        found = pattern.match(self.text, self.at, self.end)
        if found is not None:
            self.at = found.end()


def _pairs(text: str) -> dict[int, int]:
    """Where every group in braces and brackets ends; one pass, so that no group is ever searched for again."""
    pairs: dict[int, int] = {}
    opened: list[int] = []
    for found in _BORDERS.finditer(text):
        sign = found[0]
        if sign in "{[":
            opened.append(found.start())
        elif sign == "]":
            if opened and text[opened[-1]] == "[":
                pairs[opened.pop()] = found.start()
        elif sign == "}":
            while opened and text[opened[-1]] == "[":
                opened.pop()
            if opened:
                pairs[opened.pop()] = found.start()
    return pairs


_known_pairs = lru_cache(2048)(_pairs)


class Input:
    """The stack: expansions of macros and files are read before what follows them."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.active: dict[str, int] = {}

    def push(self, frame: Frame) -> None:
        """Read `frame` before everything else."""
        if frame.macro is not None:
            self.active[frame.macro] = self.active.get(frame.macro, 0) + 1
        self.frames.append(frame)

    def pop(self) -> None:
        """Leave the top frame."""
        frame = self.frames.pop()
        if frame.macro is not None:
            self.active[frame.macro] -= 1
        if frame.closed is not None:
            frame.closed()

    def _next_frame(self) -> Frame | None:
        """The frame in which the next argument begins; frames with a `closed` callback are never left for it."""
        while self.frames:
            frame = self.frames[-1]
            found = _BLANK.match(frame.text, frame.at, frame.end)
            at = found.end() if found is not None else frame.at
            if at < frame.end:
                frame.at = at
                return frame
            if frame.closed is not None or len(self.frames) == 1:
                return None
            self.pop()
        return None

    def span(self) -> tuple[Frame, int, int] | None:
        """Read the next argument: a group without its braces, or one token."""
        frame = self._next_frame()
        if frame is None:
            return None
        at = frame.at
        if frame.text[at] == "{":
            end = frame.partner(at)
            if end < 0:
                return None
            frame.at = end + 1
            return frame, at + 1, end
        found = _ONE_TOKEN.match(frame.text, at, frame.end)
        if found is None:
            return None
        frame.at = found.end()
        return frame, at, frame.at

    def argument(self) -> str:
        """The text of the next argument; empty if there is none."""
        span = self.span()
        return "" if span is None else span[0].text[span[1] : span[2]]

    def option(self, *, adjacent: bool = False) -> str | None:
        """The text of an argument in brackets, if one follows; with `adjacent`, without space before it."""
        frame = self.frames[-1] if adjacent and self.frames else self._next_frame()
        if frame is None or not frame.text.startswith("[", frame.at, frame.end):
            return None
        end = frame.partner(frame.at)
        if end < 0:
            return None
        content = frame.text[frame.at + 1 : end]
        frame.at = end + 1
        return content

    def skip_options(self) -> None:
        """Skip all arguments in brackets that follow."""
        while self.option() is not None:
            pass

    def skip_arguments(self, count: int) -> None:
        """Skip options and `count` arguments, which are groups; the first of several may be a command."""
        self.skip_options()
        for number in range(count):
            frame = self._next_frame()
            if frame is None or frame.text[frame.at] not in ("{\\" if number == 0 and count > 1 else "{"):
                return
            self.span()
            while self.option(adjacent=True) is not None:
                pass

    def group(self, closed: Callable[[], None]) -> bool:
        """Read the next argument in place, and call `closed` at its end; False if there is none."""
        span = self.span()
        if span is None:
            return False
        frame, start, end = span
        self.push(Frame(frame.text, start, end, outer=frame, closed=closed))
        return True

    def environment_name(self) -> str | None:
        r"""The name in braces after `\begin` or `\end`."""
        frame = self.frames[-1]
        found = _NAME.match(frame.text, frame.at, frame.end)
        if found is None:
            return None
        frame.at = found.end()
        return found[1].strip()
