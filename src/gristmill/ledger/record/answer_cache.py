"""Caches paid answers in files, so that none is paid for twice.

Each worker process appends to its own file; a record is written in one call as soon as its answer arrives. Records that
are truncated or whose checksum does not match are ignored. Memory use is 32 bytes per answer: half of its key, and its
location.
"""

from __future__ import annotations

import os
import struct
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from gristmill.storage.files import is_local

if TYPE_CHECKING:
    from gristmill.ledger.record.layout import RunFolder
    from gristmill.models.client.llm_client import Answer

KEY_BYTES = 16
ENDING = ".answers"
_MAGIC = b"gristmill answers 1\n"
_HEAD = struct.Struct("<IQ16sQII")  # size of the payload, checksum of the rest, key, stage, tokens in and out
_AFTER_CHECKSUM = 12
_MOST = 1 << 31
_ELSEWHERE = "elsewhere.json"


@dataclass(frozen=True, slots=True)
class Spent:
    """Tokens that were paid for, in prompts and in answers."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.prompt_tokens + other.prompt_tokens, self.completion_tokens + other.completion_tokens)

    @property
    def tokens(self) -> int:
        """The total."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """An answer as it was recorded.

    Attributes:
        key: The digest of model, messages and parameters, in hexadecimal digits.
        stage: The stage that asked.
        model: The model that was asked.
        served_by: The model that answered, as the server names it.
        text: The answer; None if it returned no text.
        finish_reason: Why the text ended.
        prompt_tokens: Tokens of the prompt.
        completion_tokens: Tokens of the answer.
        at: When it arrived, in seconds since 1970.
        source: The partition and row of the document that it was first asked for.
        record: The record of the output with that document, if the answer is stored elsewhere.
    """

    key: str
    stage: str
    model: str
    served_by: str
    text: str | None
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    at: float
    source: tuple[str, int]
    record: str = ""


def key_prefix(model: str, parameters: Any) -> bytes:
    """The part that all keys of a stage share."""
    return blake2b(orjson.dumps([model, parameters], option=orjson.OPT_SORT_KEYS), digest_size=32).digest()


def answer_key(prefix: bytes, messages: Sequence[Any]) -> bytes:
    """The digest that identifies an answer."""
    return blake2b(prefix + orjson.dumps(messages), digest_size=KEY_BYTES).digest()


class AnswerCache:
    """The recorded answers in a folder, and a file for new ones.

    Several processes may use one folder: each sees what others have written when it calls `refresh`.

    Args:
        folder: A local folder; created with the first answer.
        record: The record of the output that asks, for a folder that is not in it.

    Example:
        >>> cache = AnswerCache("out.gristmill/answers")
        >>> cache.find([b"0123456789abcdef"])
        [None]
    """

    def __init__(self, folder: str, record: str = "") -> None:
        self.folder = folder
        self.record = record
        self.spent: dict[int, Spent] = {}
        self._files: list[str] = []
        self._numbers: dict[str, int] = {}
        self._open: dict[int, int] = {}
        self._read_to: dict[int, int] = {}
        self._hashes: npt.NDArray[np.uint64] = np.empty(0, np.uint64)
        self._places: npt.NDArray[np.int64] = np.empty((0, 3), np.int64)  # file, offset, size of the record
        self._own: int | None = None
        self._own_number = -1

    def __len__(self) -> int:
        return len(self._hashes)

    # --- reading ---

    def refresh(self) -> None:
        """Load what this process or others recorded since the last call."""
        try:
            with os.scandir(self.folder) as entries:
                found = sorted((entry.name, entry.stat().st_size) for entry in entries if entry.name.endswith(ENDING))
        except FileNotFoundError:
            return
        hashes: list[bytes] = []
        places: list[int] = []
        for name, size in found:
            number = self._number(name)
            begin = self._read_to.get(number, 0)
            if size > begin:
                self._read_to[number] = self._scan(number, begin, size, hashes, places)
        if hashes:
            new = np.frombuffer(b"".join(hashes), np.uint64)
            order = np.argsort(new, kind="stable")
            # After existing equal keys, so that the first answer seen stays the first.
            at = np.searchsorted(self._hashes, new[order], side="right")
            self._hashes = np.insert(self._hashes, at, new[order])
            self._places = np.insert(self._places, at, np.array(places, np.int64).reshape(-1, 3)[order], axis=0)

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            self._numbers[name] = len(self._files)
            self._files.append(name)
        return self._numbers[name]

    def _scan(self, number: int, begin: int, size: int, hashes: list[bytes], places: list[int]) -> int:
        """Collect complete records from `begin`; returns the position of the next one."""
        step, buffer, first = 1 << 20, b"", begin
        at = begin
        if begin == 0:
            if os.pread(self._descriptor(number), len(_MAGIC), 0) != _MAGIC:
                return size  # not a file of this format: skipped from now on
            at = first = len(_MAGIC)
        head = _HEAD.size
        sums: dict[int, list[int]] = {}
        while at + head <= size:
            if at + head > first + len(buffer) or at < first:
                first, buffer = at, os.pread(self._descriptor(number), step, at)
                if len(buffer) < head:
                    break
            length, _, key, stage, prompt, completion = _HEAD.unpack_from(buffer, at - first)
            if length > _MOST or at + head + length > size:
                break
            hashes.append(key[:8])
            places += (number, at, head + length)
            sums.setdefault(stage, [0, 0])
            sums[stage][0] += prompt
            sums[stage][1] += completion
            at += head + length
        for stage, (prompt, completion) in sums.items():
            self.spent[stage] = self.spent.get(stage, Spent()) + Spent(prompt, completion)
        return at

    def _descriptor(self, number: int) -> int:
        if number not in self._open:
            self._open[number] = os.open(os.path.join(self.folder, self._files[number]), os.O_RDONLY | os.O_CLOEXEC)
        return self._open[number]

    def find(self, keys: Sequence[bytes]) -> list[CachedAnswer | None]:
        """The recorded answer for each key, or None."""
        if not len(self._hashes) or not keys:
            return [None] * len(keys)
        halves = np.frombuffer(b"".join(key[:8] for key in keys), np.uint64)
        at = np.searchsorted(self._hashes, halves)
        hit = at < len(self._hashes)
        hit[hit] = self._hashes[at[hit]] == halves[hit]
        found: list[CachedAnswer | None] = [None] * len(keys)
        for place in np.flatnonzero(hit).tolist():
            found[place] = self._at(int(at[place]), keys[place])
        return found

    def _at(self, place: int, key: bytes) -> CachedAnswer | None:
        """The answer at this index position or, if others share half of the key, at one of the next."""
        half = self._hashes[place]
        while place < len(self._hashes) and self._hashes[place] == half:
            number, offset, size = self._places[place].tolist()
            record = os.pread(self._descriptor(number), size, offset)
            if record[_AFTER_CHECKSUM : _AFTER_CHECKSUM + KEY_BYTES] == key:
                answer = _unpacked(record)
                if answer is not None:
                    return answer
            place += 1
        return None

    def answers(self) -> Iterator[CachedAnswer]:
        """Every recorded answer, file by file."""
        self.refresh()
        for number, offset, size in sorted(map(tuple, self._places.tolist())):
            answer = _unpacked(os.pread(self._descriptor(number), size, offset))
            if answer is not None:
                yield answer

    def spent_by(self, stage: str) -> Spent:
        """The cost of the recorded answers of this stage, in tokens."""
        return self.spent.get(_stage_hash(stage), Spent())

    # --- writing ---

    def add(
        self, key: bytes, answer: Answer, *, stage: str, model: str, spent: Spent, source: tuple[str, int] = ("", -1)
    ) -> CachedAnswer:
        """Record an answer: once this returns, it survives the end of the process."""
        text = answer.texts[0] if answer.texts else None
        reason = answer.finish_reasons[0] if answer.finish_reasons else ""
        at = time.time()
        payload = orjson.dumps([stage, model, answer.model, text, reason, at, *source, *filter(None, [self.record])])
        prompt, completion = (min(count, 0xFFFFFFFF) for count in (spent.prompt_tokens, spent.completion_tokens))
        rest = _HEAD.pack(0, 0, key, _stage_hash(stage), prompt, completion)[_AFTER_CHECKSUM:] + payload
        record = struct.pack("<IQ", len(payload), xxhash.xxh3_64_intdigest(rest)) + rest
        self._append(record)
        return CachedAnswer(
            key.hex(), stage, model, answer.model, text, reason, prompt, completion, at, source, self.record
        )

    def _append(self, record: bytes) -> None:
        if self._own is None:
            os.makedirs(self.folder, exist_ok=True)
            name = f"{time.time_ns():020d}-{os.getpid()}-{uuid.uuid4().hex[:8]}{ENDING}"
            self._own = os.open(
                os.path.join(self.folder, name),
                os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC,
                0o644,
            )
            record = _MAGIC + record
        view = memoryview(record)
        while view:
            view = view[os.write(self._own, view) :]

    def sync(self) -> None:
        """Make sure that recorded answers also survive a failure of the machine."""
        if self._own is not None:
            os.fsync(self._own)

    def close(self) -> None:
        """Close all files."""
        for descriptor in (*self._open.values(), *([] if self._own is None else [self._own])):
            os.close(descriptor)
        self._open, self._own = {}, None


def _stage_hash(stage: str) -> int:
    return xxhash.xxh3_64_intdigest(stage.encode())


def _unpacked(record: bytes) -> CachedAnswer | None:
    """The answer in a record; None if the record is damaged."""
    if len(record) < _HEAD.size:
        return None
    length, checksum, key, _, prompt, completion = _HEAD.unpack_from(record)
    if len(record) != _HEAD.size + length or xxhash.xxh3_64_intdigest(record[_AFTER_CHECKSUM:]) != checksum:
        return None
    stage, model, served, text, reason, at, partition, row, *rest = orjson.loads(record[_HEAD.size :])
    return CachedAnswer(
        key.hex(), stage, model, served, text, reason, prompt, completion, at, (partition, row), *rest[:1]
    )


def record_id(record: str) -> str:
    """The name of an output's record in answers that are stored elsewhere."""
    return os.path.realpath(record) if is_local(record) else record.rstrip("/")


def note_elsewhere(folder: RunFolder, places: Mapping[str, str]) -> None:
    """Store in the record of an output where stages keep answers."""
    folder.write(f"{folder.record_path('answers')}/{_ELSEWHERE}", orjson.dumps(dict(places)))


def noted_elsewhere(folder: RunFolder) -> dict[str, str]:
    """The folders, by stage, of answers that are not in the record of the output."""
    try:
        found = orjson.loads(folder.read(f"{folder.record_path('answers')}/{_ELSEWHERE}"))
    except (FileNotFoundError, ValueError):
        return {}
    return {str(stage): str(place) for stage, place in found.items()} if isinstance(found, dict) else {}
