"""Recipes and records from strangers: no code, nothing outside the output, one clear sentence."""

from __future__ import annotations

import copy
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from click.testing import CliRunner

from gristmill.cli.main import cli
from gristmill.ledger.record.run_record import checksum
from tests.hostile.attempt import FULL
from tests.hostile.commands import Commands, serving
from tests.hostile.desk import GOOD, MB, RECIPE, RUN, lay_out

Note = Callable[[str, object], None]
PLAIN = RECIPE.format("Jsonl")


def stage(text: str) -> str:
    return PLAIN.replace("- WordCountFilter: {min_words: 3}", text)


def value(text: str) -> str:
    return PLAIN.replace("min_words: 3", f"min_words: {text}")


def lists(lines: int, start: str = "") -> str:
    first = f"{start}a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
    return first + "".join(f"{start}a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, lines))


NO_TAGS, NO_CODE = "is not allowed: a recipe holds plain values", "a recipe alone cannot run code"
RECIPES: dict[str, tuple[str, str]] = {
    "object": (PLAIN.replace("mine", "!!python/object/apply:os.system ['touch pwned']"), NO_TAGS),
    "object in stages": ("name: a\nstages: !!python/object/new:os.system [touch pwned]\n", NO_TAGS),
    "name": (PLAIN.replace("mine", "!!python/name:os.system"), NO_TAGS),
    "own tag": (value("!mine 3"), NO_TAGS),
    "binary": (value("!!binary aGFsbG8="), NO_TAGS),
    "ordered map": (stage("- WordCountFilter: !!omap [min_words: 3]"), NO_TAGS),
    "import path": (stage("- os.system: {command: touch pwned}"), NO_CODE),
    "import path by colon": (stage("- 'subprocess:Popen': {args: [touch, pwned]}"), NO_CODE),
    "its own permission": (PLAIN + "allow_code: [os]\n", "unknown key 'allow_code'"),
    "class": (stage("- __class__"), "There is no stage, filter or modifier named '__class__'"),
    "parameter": (stage("- WordCountFilter: {__class__: x}"), "unknown parameter '__class__'"),
    "executor": (PLAIN + "executor: {name: os.system}\n", "for 'os.system'"),
    "aliases": (lists(12) + PLAIN, "its aliases multiply"),
    "aliases in a value": (lists(12) + value("*a11"), "its aliases multiply"),
    "merged aliases": (
        "m0: &m0 {a: 1}\n"
        + "".join(f"m{n}: &m{n} {{<<: [{','.join([f'*m{n - 1}'] * 10)}]}}\n" for n in range(1, 9))
        + PLAIN,
        "its aliases multiply",
    ),
    "alias of itself": ("name: a\nstages: &s\n- *s\n", "an alias refers to a value that contains it"),
    "deep": ("name: a\nstages: " + "{a: " * 5000 + "1" + "}" * 5000, "nested too deeply"),
    "long number": (value("9" * 5000), "has 5,000 digits"),
    "long hexadecimal number": (value("0x" + "f" * 5000), "has 5,002 digits"),
    "nan": (value(".nan"), "expected a whole number, found nan"),
    "inf": (value("1e400"), "expected a whole number, found inf"),
    "same key": (PLAIN + "name: other\n", "the key 'name' is already on line 1"),
    "number as key": (stage("- WordCountFilter: {5: x}"), "a key must be text"),
    "list as key": (PLAIN + "? [a]\n: x\n", "a key must be text"),
    "variable that injects": (
        value("'${x}'") + "variables: {x: '3}\\n- JsonlWriter: {path: pwned'}\n",
        "expected a whole number",
    ),
    "environment": (PLAIN.replace("mine", "${HOME}"), "the variable 'HOME' has no value"),
    "expressions": (PLAIN.replace("mine", "${x.__class__}"), "is not a variable"),
    "variables of variables": (PLAIN + "variables: {x: '${y}${y}', y: '${x}'}\n", "cannot use another variable"),
    "NUL": ("\0\1\2", "the character U+0000 is not allowed"),
    "NUL in the input": (PLAIN.replace("file_paths: in", 'file_paths: "i\\0n"'), "contains a NUL character"),
    "NUL in the output": (PLAIN.replace("path: out", 'path: "o\\0ut"'), "contains a NUL character"),
    "output in the input": (PLAIN.replace("path: out", "path: in/out"), "is inside the input folder"),
    "output is the disk": (PLAIN.replace("path: out", "path: /"), "is the whole disk"),
    "output holds the input": (PLAIN.replace("path: out", "path: ."), "holds the input file"),
    "no store": (PLAIN.replace("path: out", "path: 'evil://x'"), "Unknown kind of store: 'evil'"),
    "two documents": (PLAIN + "---\n" + PLAIN, "this is not valid YAML"),
    "another version": ("%YAML 9.9\n---\n" + PLAIN, "this is not valid YAML"),
    "nothing": ("", "a recipe is a mapping"),
    "too many stages": (stage("- WordCountFilter\n" * 1000), "1,000 are the most"),
    "too large": (PLAIN + "#" * 5 * MB, "is larger than 4 MB"),
}


def test_hostile_recipes(run: Commands, tmp_path: Path, record_property: Note) -> None:
    """40 recipes that try code, bombs, injection or other folders: rejected with one sentence, nothing written."""
    desk = lay_out(tmp_path / "desk", {"good.jsonl": GOOD})
    before = sorted(os.listdir(desk))
    for name, (text, says) in RECIPES.items():
        (desk / "r.yaml").write_text(text)
        answer = run(desk, *RUN, seconds=120)
        assert answer.held(300 * MB), (name, answer)
        assert answer.code in (1, 2), (name, answer)
        assert says in answer.said, (name, answer)
        assert len(answer.said) < 2000, name
        assert sorted(os.listdir(desk)) == before, name
        assert os.listdir(desk / "in") == ["good.jsonl"], name
    record_property("tried", len(RECIPES))


@pytest.fixture(scope="module")
def run() -> Iterator[Commands]:
    with serving() as commands:
        yield commands


@pytest.fixture(scope="module")
def made(run: Commands, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output with a record of every kind, and a copy of both to compare with."""
    desk = lay_out(
        tmp_path_factory.mktemp("made") / "desk",
        {"a.jsonl": GOOD + b'{"id":"short","text":"x"}\nbad\n', "b.jsonl": GOOD.replace(b"good", b"other", 1)},
    )
    assert run(desk, *RUN, "--scores", "all").code == 3
    shutil.copytree(desk / "out", desk / "keep")
    shutil.copytree(desk / "out.gristmill", desk / "keep.gristmill")
    return desk


@pytest.fixture
def desk(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "desk")
    return tmp_path / "desk"


READ = [
    ["verify", "out"],
    ["why", "out", "good", "--diff"],
    ["why", "out", "short"],
    ["show", "out"],
    ["quarantine", "out"],
    ["diff", "out", "keep"],
    ["diff", "keep", "out"],
    ["rethreshold", "out", "--set", "WordCountFilter.min_words=1"],
]
WRITE = [[*RUN, "--scores", "all"], ["replay", "out", "--workers", "0"]]


def again(desk: Path) -> None:
    """The output and its record as they were."""
    for name in ("out", "out.gristmill"):
        shutil.rmtree(desk / name)
        shutil.copytree(desk / name.replace("out", "keep"), desk / name)


def sealed(name: str, record: Any) -> bytes:
    """A record with a valid checksum."""
    if isinstance(record, dict) and name.startswith("manifest"):
        record.pop("seal", None)
        record["seal"] = xxhash.xxh3_64_hexdigest(orjson.dumps(_small(record), option=orjson.OPT_SORT_KEYS))
    elif isinstance(record, dict) and name == "run.json":
        record["seal"] = checksum(record)
    return json.dumps(record).encode()


def _small(record: Any) -> Any:
    """Without integers that the fast writer rejects: then the checksum is wrong, which is also an attack."""
    return json.loads(re.sub(r"\d{20,}", "0", json.dumps(record)))


def places(record: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield place
    for key in record if isinstance(record, dict) else range(len(record)) if isinstance(record, list) else ():
        yield from places(record[key], (*place, key))


def changed(record: Any, place: tuple[str | int, ...], new: Any, *, remove: bool) -> Any:
    if not place:
        return new
    record = copy.deepcopy(record)
    inside = record
    for key in place[:-1]:
        inside = inside[key]
    if remove:
        del inside[place[-1]]
    else:
        inside[place[-1]] = new
    return record


LIES = [None, "../../../etc/passwd", -1, 2**70, [], {}, True, "\x1b[2J", 1e308, [None], {"a": None}, "", 0]


@pytest.mark.parametrize("name", ["manifest/a.json", "run.json", "plan.json"])
def test_no_value_of_a_record_is_trusted(
    desk: Path, name: str, monkeypatch: pytest.MonkeyPatch, record_property: Note
) -> None:
    """Any value of a manifest, run.json or plan.json replaced and resealed: each command rejects it with a sentence."""
    monkeypatch.chdir(desk)
    rng, tried = random.Random(2), 0
    good = json.loads((desk / "keep.gristmill" / name).read_bytes())
    everywhere = list(places(good))
    for place in everywhere if FULL else rng.sample(everywhere, 25):
        for remove in (False, True)[: 1 + bool(place)]:
            content = sealed(name, changed(good, place, rng.choice(LIES), remove=remove))
            (desk / "out.gristmill" / name).write_bytes(content)
            commands = READ if FULL else rng.sample(READ, 2)
            for command in [*commands, rng.choice(WRITE)] if tried % 7 == 0 else commands:
                answer = CliRunner().invoke(cli, command)
                tried += 1
                what = (command, place, content[:3000], answer.output)
                assert isinstance(answer.exception, SystemExit | None), what
                assert "Unexpected error" not in answer.output, what
                assert sorted(os.listdir(desk)) == ["in", "keep", "keep.gristmill", "out", "out.gristmill", "r.yaml"]
                if command in WRITE:
                    again(desk)
                    (desk / "out.gristmill" / name).write_bytes(content)
    record_property("tried", tried)


def tables() -> Iterator[bytes]:
    """Parquet that is not a ledger's."""
    rows = pa.array([2**62, -5], pa.int64())
    for columns in ({"x": [1]}, {"row": ["a"], "stage": [5]}, {"row": rows}, {"row": rows, "stage": ["a", "b"]}):
        target = pa.BufferOutputStream()
        pq.write_table(pa.table(columns), target)
        yield target.getvalue().to_pybytes()


def test_records_that_are_damaged(run: Commands, desk: Path, record_property: Note) -> None:
    """Ledgers, indexes and quarantines replaced along with their hashes: reported as damaged, never a traceback."""
    rng, tried = random.Random(6), 0
    record = desk / "keep.gristmill"
    for file in sorted(path.relative_to(record) for path in record.rglob("*") if path.is_file()):
        good = (record / file).read_bytes()
        flipped = bytearray(good)
        flipped[rng.randrange(len(good))] ^= 4
        lies = [b"", good[: len(good) // 2], b"[" * 200_000, b'{"row":"x"}\n', b"\xff\xfe" * 50, bytes(flipped)]
        lies += tables() if file.suffix == ".parquet" else []
        for content in lies if FULL else rng.sample(lies, 1):
            again(desk)
            (desk / "out.gristmill" / file).write_bytes(content)
            manifest = desk / "out.gristmill" / "manifest" / "a.json"
            if file.parts[0] != "manifest" and file.name.startswith("a."):
                entry = json.loads(manifest.read_bytes())
                for told in entry["records"].values():
                    if told["path"].endswith(f"/{file}"):
                        told |= {"size": len(content), "hash": "xxh3:" + xxhash.xxh3_128_hexdigest(content)}
                manifest.write_bytes(sealed("manifest", entry))
            for command in [*READ, *WRITE] if FULL else rng.sample(READ, 2):
                answer = run(desk, *command, seconds=120)
                tried += 1
                assert answer.held(500 * MB), (file, content[:200], command, answer)
    record_property("tried", tried)


def test_records_that_lead_elsewhere(run: Commands, desk: Path) -> None:
    """A manifest that names files through a link, a stored recipe that writes elsewhere: nothing there is touched."""
    (desk / "other").mkdir()
    (desk / "other" / "victim.jsonl").write_bytes(GOOD)
    (desk / "out" / "sub").symlink_to("../other")
    manifest = desk / "out.gristmill" / "manifest" / "a.json"
    entry = json.loads(manifest.read_bytes())
    entry["files"][0]["path"] = "sub/victim.jsonl"
    manifest.write_bytes(sealed("manifest", entry))
    with open(desk / "in" / "a.jsonl", "ab") as file:
        file.write(GOOD)
    for command in (READ[0], WRITE[0], [*WRITE[0], "--fresh"]):
        answer = run(desk, *command)
        assert answer.held(300 * MB), answer
        assert (desk / "other" / "victim.jsonl").read_bytes() == GOOD, command
    (desk / "out" / "sub").unlink(missing_ok=True)
    again(desk)
    (desk / "out.gristmill" / "recipe.yaml").write_text(PLAIN.replace("path: out", "path: elsewhere"))
    answer = run(desk, *WRITE[1])
    assert answer.held(300 * MB), answer
    assert not (desk / "elsewhere").exists(), answer
    for device in ("/dev/zero", str(desk / "pipe")):
        again(desk)
        if not device.startswith("/dev"):
            os.mkfifo(device)
        entry = json.loads(manifest.read_bytes())
        entry["source"][0] |= {"path": device, "end": -1, "size": -1}
        manifest.write_bytes(sealed("manifest", entry))
        answer = run(desk, *READ[1], seconds=60)
        assert answer.held(300 * MB), answer
