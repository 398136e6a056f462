"""The answer to "what happened to this document?", as values and as text."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gristmill import notebook

if TYPE_CHECKING:
    from gristmill.ledger.record.answer_cache import CachedAnswer

KEPT = "kept"
_MAX_SHOWN = 200
_MAX_FILES = 5
_MAX_PLACES = 5


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision about a document."""

    stage: str
    outcome: str
    reason: str
    score: float | None = None
    threshold: float | None = None
    survivor: str | None = None
    similarity: float | None = None
    cluster: int | None = None

    def __str__(self) -> str:
        verb = {"duplicate": "dropped as a duplicate"}.get(self.outcome, self.outcome)
        text = f"{verb} by stage {self.stage!r}: {self.reason}"
        if self.score is not None:
            text += f" (score {_number(self.score)}"
            text += f", threshold {_number(self.threshold)})" if self.threshold is not None else ")"
        if self.survivor is not None:
            alike = "" if self.similarity is None else f", similarity {_number(self.similarity)}"
            what = "it contains text of" if self.similarity is None else "it is similar to"
            what = "the survivor is" if self.outcome == "duplicate" else what
            text += f"; {what} {self.survivor!r}{alike}"
            text += "" if self.cluster is None else f", cluster {self.cluster}"
        return text


@dataclass(frozen=True, slots=True)
class Change:
    """A change that a stage made to a field of a document."""

    stage: str
    field: str
    characters: int

    def __str__(self) -> str:
        if self.characters == 0:
            return f"stage {self.stage!r} changed {self.field!r} without changing its length"
        verb = "added" if self.characters > 0 else "removed"
        return f"stage {self.stage!r} {verb} {abs(self.characters)} characters in {self.field!r}"


@dataclass(frozen=True, slots=True)
class Cut:
    """A passage that a stage cut from a field of a document, or marked in it.

    `start` and `end` count characters of the text that the stage received.
    """

    stage: str
    field: str
    reason: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class RecordedScore:
    """A score of a document, recorded because all scores were requested."""

    stage: str
    score: str
    value: float


@dataclass(slots=True)
class DocumentHistory:
    """What happened to one document.

    Attributes:
        status: `kept`, or the outcome of the decision that ended it: `dropped`, `duplicate`, `quarantined`.
        partition: The partition it was read in.
        row: Its row number there.
        id: Its id, if the ledger has the text.
        sources: The input files of the partition.
        files: The output files that contain it, if kept.
        decisions: The decisions on it, in the order of the stages.
        changes: Changes that stages made to it before that.
        cuts: The passages that stages cut from it or marked in it.
        scores: All its scores, if they were recorded.
        quarantine: Cause and detail of each of its records in the quarantine.
        answers: Answers of language models about it.
        notes: What limits this answer.
    """

    status: str
    partition: str
    row: int
    id: str | None = None
    sources: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    scores: list[RecordedScore] = field(default_factory=list)
    quarantine: list[dict[str, Any]] = field(default_factory=list)
    answers: list[CachedAnswer] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """What happened, in sentences."""
        where = f"row {self.row} of partition {self.partition}"
        if self.sources:
            where += f" ({', '.join(self.sources[:3])}{', …' if len(self.sources) > 3 else ''})"
        if self.status == KEPT:
            found = [f"kept, in {', '.join(self.files)}" if self.files else "kept"]
        else:
            found = [str(decision) for decision in self.decisions]
        found.append(f"read as {where}")
        found += [str(change) for change in self.changes]
        found += _cut_lines(self.cuts)
        found += [f"quarantined because: {item['detail']}" for item in self.quarantine if item.get("detail")]
        found += [_answer_line(answer) for answer in self.answers]
        found += [f"score {item.score!r} of stage {item.stage!r}: {_number(item.value)}" for item in self.scores]
        return found + self.notes


def _answer_line(answer: CachedAnswer) -> str:
    day = dt.datetime.fromtimestamp(answer.at, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    served = f" (served as {answer.served_by!r})" if answer.served_by not in ("", answer.model) else ""
    text = answer.text or ""
    said = "nothing" if answer.text is None else repr(text[:_MAX_SHOWN]) + ("…" if len(text) > _MAX_SHOWN else "")
    tokens = f"{answer.prompt_tokens:,} + {answer.completion_tokens:,} tokens"
    return f"stage {answer.stage!r} asked model {answer.model!r}{served} on {day}, {tokens}; it said {said}"


def _cut_lines(cuts: list[Cut]) -> list[str]:
    """One line per stage and reason with the first positions of its cuts."""
    groups: dict[tuple[str, str, str], list[Cut]] = {}
    for cut in cuts:
        groups.setdefault((cut.stage, cut.field, cut.reason), []).append(cut)
    lines = []
    for (stage, name, reason), found in groups.items():
        places = ", ".join(f"{cut.start}-{cut.end}" for cut in found[:_MAX_PLACES])
        more = ", …" if len(found) > _MAX_PLACES else ""
        number = f"{len(found)} passage{'' if len(found) == 1 else 's'}"
        lines.append(f"stage {stage!r} found {reason}: {number} of {name!r} (characters {places}{more})")
    return lines


@dataclass(slots=True)
class Why:
    """What a ledger knows about an id, a URL or a `partition#row`.

    Attributes:
        query: What was asked.
        documents: All documents that match; empty if none was ever seen.
        recorded: What documents can be looked up by: `ids`, `urls`.
        damaged: Input files that were not read completely; a document that was not found may have been in one of them.
        selection: A description of the documents that the run read, if not all.
    """

    query: str
    documents: list[DocumentHistory] = field(default_factory=list)
    recorded: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    selection: str = ""

    @property
    def seen(self) -> bool:
        """Whether any input document matches the query."""
        return bool(self.documents)

    @property
    def kept(self) -> bool:
        """Whether at least one such document is in the output."""
        return any(history.status == KEPT for history in self.documents)

    @property
    def status(self) -> str:
        """`kept`, `never seen`, or the outcome for the first document."""
        if not self.documents:
            return "never seen"
        return KEPT if self.kept else self.documents[0].status

    _repr_html_ = notebook.as_text

    def __str__(self) -> str:
        asked = _shown(self.query)
        if not self.documents:
            if not self.recorded:
                return (
                    f"Not found: {asked}. This run recorded neither ids nor URLs, because the documents have none in "
                    "the columns it looked at (--id-field, --url-field). Use PARTITION#ROW instead."
                )
            kinds = " or ".join({"ids": "id", "urls": "URL"}[kind] for kind in self.recorded)
            quoted = repr(self.query) if len(self.query) <= _MAX_SHOWN else asked
            read = "document that was read" if self.selection or self.damaged else "input document"
            text = f"Not found: no {read} has the {kinds} {quoted}."
            if self.selection:
                text += f" The run read only {self.selection}."
            if self.damaged:
                text += f" Damaged input files: {', '.join(self.damaged[:_MAX_FILES])}"
                text += ", …." if len(self.damaged) > _MAX_FILES else "."
            return text
        if len(self.documents) == 1:
            first, *rest = self.documents[0].lines()
            return "\n".join([f"{asked}: {first}", *(f"  {line}" for line in rest)])
        lines = [f"{asked}: {len(self.documents)} documents"]
        for number, history in enumerate(self.documents, start=1):
            first, *rest = history.lines()
            lines += [f" {number}. {first}", *(f"    {line}" for line in rest)]
        return "\n".join(lines)


def _shown(query: str) -> str:
    """The query as it was asked, or quoted and shortened if it would not fit on a line."""
    if len(query) > _MAX_SHOWN:
        return f"{query[:_MAX_SHOWN]!r}… ({len(query)} characters)"
    return query if query.isprintable() and query.strip() else repr(query)


def _number(value: float | None) -> str:
    return "none" if value is None else str(value) if isinstance(value, int) else f"{value:.6g}"


def whole_number(value: Any) -> Any:
    """A number that the ledger stores as a float, shown as a whole number if it is one."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
