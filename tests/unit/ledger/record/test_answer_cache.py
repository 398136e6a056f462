"""Answers are found again, by any process; what is damaged is not."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.ledger.record.answer_cache import AnswerCache, Spent, answer_key, key_prefix
from gristmill.models.client import Answer

PREFIX = key_prefix("m", {"temperature": 0})


def _key(text: str) -> bytes:
    return answer_key(PREFIX, [{"role": "user", "content": text}])


def _add(cache: AnswerCache, *texts: str, stage: str = "llm") -> None:
    for text in texts:
        answer = Answer((f"to {text}",), "m-served", 3, 4, ("stop",))
        cache.add(_key(text), answer, stage=stage, model="m", spent=Spent(3, 4), source=("part", 7))


def _texts(cache: AnswerCache, *texts: str) -> list[str | None]:
    return [None if found is None else found.text for found in cache.find([_key(text) for text in texts])]


def test_another_process_finds_what_was_recorded(tmp_path: Path) -> None:
    folder = str(tmp_path / "answers")
    writer = AnswerCache(folder)
    reader = AnswerCache(folder)
    reader.refresh()
    assert _texts(reader, "a") == [None]
    _add(writer, "a", "b")
    reader.refresh()
    assert _texts(reader, "b", "x", "a") == ["to b", None, "to a"]
    _add(writer, "c")
    _add(reader, "d", stage="other")
    reader.refresh()
    assert _texts(reader, "a", "b", "c", "d") == ["to a", "to b", "to c", "to d"]
    assert (reader.spent_by("llm"), reader.spent_by("other")) == (Spent(9, 12), Spent(3, 4))
    found = reader.find([_key("a")])[0]
    assert found is not None
    assert (found.model, found.served_by, found.source, found.prompt_tokens) == ("m", "m-served", ("part", 7), 3)
    assert sorted(one.text or "" for one in reader.answers()) == ["to a", "to b", "to c", "to d"]
    writer.close()
    reader.close()


@settings(max_examples=30)
@given(cut=st.integers(0, 200), flipped=st.integers(0, 199))
def test_a_torn_or_damaged_record_is_ignored(tmp_path_factory: object, cut: int, flipped: int) -> None:
    folder = tmp_path_factory.mktemp("answers")  # type: ignore[attr-defined]
    writer = AnswerCache(str(folder))
    _add(writer, "a", "b")
    writer.close()
    (path,) = folder.iterdir()
    data = path.read_bytes()
    path.write_bytes(data[: max(0, len(data) - cut)])
    torn = AnswerCache(str(folder))
    torn.refresh()
    assert _texts(torn, "a")[0] in ("to a", None)
    assert _texts(torn, "b") == [None] if cut else ["to b"]
    torn.close()
    damaged = bytearray(data)
    damaged[flipped % len(damaged)] ^= 0xFF
    path.write_bytes(bytes(damaged))
    cache = AnswerCache(str(folder))
    cache.refresh()
    assert all(
        text in (None, expected) for text, expected in zip(_texts(cache, "a", "b"), ["to a", "to b"], strict=True)
    )
    cache.close()


def test_what_was_appended_after_a_torn_tail_is_in_another_file(tmp_path: Path) -> None:
    first = AnswerCache(str(tmp_path))
    _add(first, "a", "b")
    first.close()
    (path,) = tmp_path.iterdir()
    os.truncate(path, path.stat().st_size - 3)
    second = AnswerCache(str(tmp_path))
    second.refresh()
    _add(second, "b", "c")
    second.refresh()
    assert _texts(second, "a", "b", "c") == ["to a", "to b", "to c"]
    second.close()


def test_keys_depend_on_everything_that_decides_an_answer() -> None:
    keys = {
        _key("a"),
        _key("b"),
        answer_key(key_prefix("m2", {"temperature": 0}), [{"role": "user", "content": "a"}]),
        answer_key(key_prefix("m", {"temperature": 1}), [{"role": "user", "content": "a"}]),
        answer_key(PREFIX, [{"role": "system", "content": ""}, {"role": "user", "content": "a"}]),
    }
    assert len(keys) == 5
    assert key_prefix("m", {"a": 1, "b": 2}) == key_prefix("m", {"b": 2, "a": 1})
