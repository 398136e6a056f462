"""The specification of the record holds for real runs: fields listed on the page are the fields in the files."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import xxhash

from gristmill import JsonlReader, JsonlWriter, Modify, Pipeline, ScoreFilter
from gristmill.ledger.record.layout import PARTITION_FILES, RECORD_FILES
from gristmill.stages.deduplication import (
    DecontaminationWorkflow,
    ExactDeduplication,
    ExactDeduplicationWorkflow,
    FuzzyDeduplicationWorkflow,
    LineDeduplicationWorkflow,
    SemanticDeduplicationWorkflow,
    SubstringDeduplicationWorkflow,
)
from gristmill.stages.deduplication.fuzzy.index import FuzzyIndex
from gristmill.stages.sharding import MixSource, Mixture, MixWorkflow, ShuffleWorkflow
from gristmill.stages.text.filters import LineQuality, WordCountFilter
from gristmill.stages.text.io.writer import TokenWriter
from gristmill.stages.text.modifiers import UrlRemover
from tests.token_files import make_tokenizer
from tools.make_cli_reference import PAGE

TEXT = (PAGE.parent / "formats.md").read_text(encoding="utf-8")
TYPES = {"int64": "int64", "int32": "int32", "text": "string", "float64": "double"}
KINDS: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "text": (str,),
    "time": (str,),
    "object": (dict,),
    "list": (list,),
    "null": (type(None),),
    "true": (bool,),
    "false": (bool,),
}


def section(title: str) -> dict[str, str]:
    """The fields in the table below a heading, with their types."""
    _, found, rest = TEXT.partition(f"# {title}\n")
    assert found, title
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| ", re.split(r"^#", rest, flags=re.MULTILINE)[0], re.MULTILINE)
    assert rows, title
    return dict(rows)


def check(found: dict[str, Any], *titles: str, may_lack: tuple[str, ...] = ()) -> None:
    """An object has the fields of the page (of all these tables) and no others, with values of their types."""
    listed = {name: kind for title in titles for name, kind in section(title).items()}
    title = ", ".join(titles)
    assert [name for name in found if name not in listed] == [], title
    assert [name for name in listed if name not in found and name not in may_lack] == [], title
    for name, value in found.items():
        # "list of objects" is a list, "text or null" one of two.
        words = [part.split()[0] for part in listed[name].split(" or ")]
        assert isinstance(value, tuple(kind for word in words for kind in KINDS[word])), (title, name, value)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs that leave every kind of file."""
    root = tmp_path_factory.mktemp("formats")
    source = root / "in"
    source.mkdir()
    sample = Path(__file__).resolve().parents[2] / "src" / "gristmill" / "recipes" / "sample" / "sample.jsonl.gz"
    lines = gzip.decompress(sample.read_bytes()).splitlines()[:120]
    menu = json.dumps(
        {"id": "menu", "text": "See https://example.org/a\nHome | About | Contact\nA line that stays here."}
    )
    (source / "web.jsonl").write_bytes(b"\n".join([*lines, lines[0], menu.encode(), b"{broken", b""]))
    (source / "cut.jsonl.gz").write_bytes(gzip.compress(b"".join(line + b"\n" for line in lines))[:4000])
    (source / "notes.txt").write_text("not read")
    stages = [
        JsonlReader(str(source)),
        Modify(UrlRemover()),
        LineQuality(),
        ScoreFilter(WordCountFilter(min_words=6)),
        ExactDeduplication(),
        JsonlWriter(str(root / "clean")),
    ]
    Pipeline("page", stages=stages).run(scores="all", error_budget=None, progress=False)
    tokenizer = make_tokenizer(root / "tokenizer", settings={"eos_token": "<|endoftext|>"})
    tokens = TokenWriter(str(root / "tokens"), str(tokenizer))
    Pipeline("tokens", stages=[JsonlReader(str(root / "clean")), tokens]).run(progress=False)
    return {name: root / f"{name}.gristmill" for name in ("clean", "tokens")}


def entry_of(record: Path, partition: str = "web") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((record / "manifest" / f"{partition}.json").read_text())
    return found


WORKFLOWS = {
    "exact": ["Duplicates: exact, fuzzy and semantic"],
    "fuzzy": ["Duplicates: exact, fuzzy and semantic", "Fuzzy duplicates"],
    "indexed": ["Duplicates: exact, fuzzy and semantic", "Fuzzy duplicates"],
    "semantic": ["Duplicates: exact, fuzzy and semantic", "Semantic duplicates"],
    "lines": ["Repeated lines and passages"],
    "passages": ["Repeated lines and passages"],
    "benchmarks": ["Benchmark items"],
}
"""Kinds of workflows, and the tables of the fields that each adds."""


@pytest.fixture(scope="module")
def workflows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The records of one workflow of each kind."""
    root = tmp_path_factory.mktemp("workflows")
    texts = [
        f"Sentence {number} has words that no other sentence of this file has: {number * 7}." for number in range(60)
    ]
    vectors = np.random.default_rng(0).standard_normal((60, 8)).round(3).tolist()
    rows = [
        {"id": str(number), "text": "\n".join(["A line that many documents have.", text] * 2), "embedding": vector}
        for number, (text, vector) in enumerate(zip(texts, vectors, strict=True))
    ]
    source = root / "in.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[0]]))
    (root / "items.jsonl").write_text("".join(json.dumps({"question": text}) + "\n" for text in [*texts[:2], "short"]))
    paths = {name: root / name for name in (*WORKFLOWS, "shuffle", "mix")}
    places = {name: {"input_path": str(source), "output_path": str(path)} for name, path in paths.items()}
    index = FuzzyIndex.create(str(root / "index"), FuzzyDeduplicationWorkflow(**places["fuzzy"]).index_settings())
    mixture = Mixture({"web": MixSource(str(source), epochs=1, license="CC0-1.0")})
    made = [
        ExactDeduplicationWorkflow(**places["exact"], perform_removal=True),
        FuzzyDeduplicationWorkflow(**places["fuzzy"], perform_removal=True),
        FuzzyDeduplicationWorkflow(**places["indexed"], perform_removal=True, against=index.path),
        SemanticDeduplicationWorkflow(**places["semantic"], embedding_field="embedding", eps=0.1, perform_removal=True),
        LineDeduplicationWorkflow(**places["lines"]),
        SubstringDeduplicationWorkflow(**places["passages"]),
        DecontaminationWorkflow(**places["benchmarks"], benchmarks=str(root / "items.jsonl")),
        ShuffleWorkflow(**places["shuffle"], seed=1),
        MixWorkflow(str(paths["mix"]), mixture),
    ]
    for workflow in made:
        workflow.run(progress=False)
    return {name: path.with_name(f"{name}.gristmill") for name, path in paths.items()}


def sealed(path: Path) -> dict[str, Any]:
    """A file of a record whose seal holds."""
    found: dict[str, Any] = json.loads(path.read_text())
    rest = {name: value for name, value in found.items() if name != "seal"}
    assert found["seal"] == xxhash.xxh3_64_hexdigest(json.dumps(rest, sort_keys=True).encode())
    return found


def test_summary_json(outputs: dict[str, Path]) -> None:
    summary = json.loads((outputs["tokens"] / "summary.json").read_text())
    check(summary, "`summary.json`")
    assert "summary.json" in json.loads((outputs["tokens"] / "run.json").read_text())["sealed"]


@pytest.mark.parametrize("kind", WORKFLOWS)
def test_deduplication_json(workflows: dict[str, Path], kind: str) -> None:
    found = sealed(workflows[kind] / "deduplication.json")
    times = [name for name in found if name.endswith("_time") and name != "total_time"]
    assert {name.removesuffix("_time") for name in times} <= {*found["steps"], "removal", "duplicate_ids"}
    may_lack = () if kind == "indexed" else ("num_retracted", "retracted")
    fields = {name: value for name, value in found.items() if name not in times}
    check(fields, "`deduplication.json`", *WORKFLOWS[kind], may_lack=may_lack)
    near = found.get("near_threshold", {})
    assert set(near) <= {"above", "below", "precision", "recall", "compared"}
    estimates = [
        place[name] for place in (found, near) for name in ("precision", "recall", "compared") if name in place
    ]
    assert all(set(estimate) == {"value", "low", "high", "sample"} for estimate in estimates)
    assert len(estimates) == (5 if "Fuzzy duplicates" in WORKFLOWS[kind] else 0)


def test_contamination_json(workflows: dict[str, Path]) -> None:
    found = sealed(workflows["benchmarks"] / "contamination.json")
    check(found, "`contamination.json`", may_lack=("eps", "model"))
    [benchmark] = found["benchmarks"]
    check(benchmark, "Keys of `benchmarks`")
    assert found["items"]
    for item in found["items"]:
        check(item, "Keys of `items`")
        assert all(set(place) == {"document", "share", "passage"} for place in item["found_in"])


@pytest.mark.parametrize("kind", ["shuffle", "mix"])
def test_dataset_json(workflows: dict[str, Path], kind: str) -> None:
    found = sealed(workflows[kind] / "dataset.json")
    check(found, "`dataset.json`", may_lack=() if kind == "mix" else ("unit",))
    [source] = found["sources"]
    only_mixed = ("license", "asked_share", "share", "epochs")
    check(source, "Keys of `sources`", may_lack=() if kind == "mix" else only_mixed)
    assert all(set(file) == {"file", "bytes", "stamp", "hash"} for file in source["files"])
    for shard in found["shards"]:
        check(shard, "Keys of `shards`")


def test_format_numbers(outputs: dict[str, Path], workflows: dict[str, Path]) -> None:
    listed = dict(re.findall(r"^\| `([\w./]+)` \| (\d) \|$", TEXT, re.MULTILINE))
    record = outputs["clean"]
    found = {name: json.loads((record / name).read_text())["format"] for name in ("run.json", "plan.json")}
    found["manifest/PARTITION.json"] = entry_of(record)["format"]
    for kind, name in (("exact", "deduplication"), ("benchmarks", "contamination"), ("mix", "dataset")):
        found[f"{name}.json"] = json.loads((workflows[kind] / f"{name}.json").read_text())["format"]
    assert {name: int(number) for name, number in listed.items()} == found


def test_every_file_of_a_record_is_on_the_page(outputs: dict[str, Path], workflows: dict[str, Path]) -> None:
    listed = section_paths()
    for record in (*outputs.values(), *workflows.values()):
        for file in record.rglob("*"):
            name = file.relative_to(record).as_posix()
            if file.is_file() and not name.startswith("steps/"):
                shape = re.sub(r"/[^/.]+(?=\.)", "/PARTITION", name)
                assert shape in listed, name
    for place in (*RECORD_FILES.values(), *(place.format("PARTITION") for place in PARTITION_FILES.values())):
        assert f"`{place}`" in TEXT or place == "stdin.jsonl", place


def section_paths() -> list[str]:
    return re.findall(
        r"^\| `([\w./]+)` \| ", TEXT.partition("## Layout")[2].partition("## `run.json`")[0], re.MULTILINE
    )


def test_run_json(outputs: dict[str, Path]) -> None:
    run = json.loads((outputs["clean"] / "run.json").read_text())
    check(run, "`run.json`")
    check(run["files"], "Keys of `files`")
    for stage in run["stages"]:
        check(stage, "Keys of `stages`")
        gone = sum(stage["dropped"].values()) + sum(stage["quarantined"].values())
        assert stage["rows_in"] + stage["created"] == stage["rows_out"] + gone
    check(run["history"], "Keys of `history`")
    seal = run.pop("seal")
    assert seal == xxhash.xxh3_64_hexdigest(json.dumps(run, sort_keys=True).encode())


def test_plan_json(outputs: dict[str, Path]) -> None:
    plan = json.loads((outputs["clean"] / "plan.json").read_text())
    check(plan, "`plan.json`", may_lack=("variables",))
    for stage in plan["stages"]:
        check(stage, "Keys of plan stages", may_lack=("code", "bounds"))


def test_manifest(outputs: dict[str, Path]) -> None:
    run_keys = list(section("Keys of `stages`"))
    for partition in ("web", "cut~gz"):
        entry = entry_of(outputs["clean"], partition)
        check(entry, "`manifest/PARTITION.json`", may_lack=() if partition == "cut~gz" else ("damaged",))
        for part in entry["source"]:
            check(part, "Keys of `source`", may_lack=("reading",))
        for file in (*entry["files"], *entry["records"].values()):
            check(file, "Keys of `files` in the manifest")
        assert set(entry["records"]) <= set(PARTITION_FILES)
        for stage in entry["stages"]:
            assert set(stage) - {"skipped"} == set(run_keys[: run_keys.index("touched") + 1])
    assert entry_of(outputs["clean"], "cut~gz")["damaged"]
    [data] = entry_of(outputs["clean"])["files"]
    content = (outputs["clean"].with_suffix("") / data["path"]).read_bytes()
    assert data["hash"] == "xxh3:" + xxhash.xxh3_128_hexdigest(content)


@pytest.mark.parametrize(
    ("output", "place"),
    [
        ("clean", "ledger/PARTITION.parquet"),
        ("clean", "ledger/PARTITION.changes.parquet"),
        ("clean", "ledger/PARTITION.cuts.parquet"),
        ("clean", "ledger/PARTITION.scores.parquet"),
        ("tokens", "documents/PARTITION.parquet"),
    ],
)
def test_tables(outputs: dict[str, Path], output: str, place: str) -> None:
    table = pq.read_table(outputs[output] / place.replace("PARTITION", "web"))
    assert table.num_rows
    found = {column.name: str(column.type).removeprefix("large_") for column in table.schema}
    found = {name: "string" if kind.startswith("dictionary") else kind for name, kind in found.items()}
    assert found == {name: TYPES[kind] for name, kind in section(f"`{place}`").items()}


def test_index(outputs: dict[str, Path]) -> None:
    hashes = np.frombuffer((outputs["clean"] / "index" / "web.ids").read_bytes(), "<u8")
    assert len(hashes) == entry_of(outputs["clean"])["row_numbers"]
    source = outputs["clean"].parent / "in" / "web.jsonl"
    first = json.loads(source.read_bytes().split(b"\n", 1)[0])
    assert hashes[0] == xxhash.xxh64_intdigest(first["id"].encode())
    assert hashes[-1] == 0  # the broken line


def test_quarantine_and_left_out(outputs: dict[str, Path]) -> None:
    record = outputs["clean"]
    [bad] = [json.loads(line) for line in (record / "quarantine" / "web.jsonl").read_text().splitlines()]
    check(bad, "`quarantine/PARTITION.jsonl`", may_lack=("id", "lost", "salvaged"))
    [damaged] = [json.loads(line) for line in (record / "quarantine" / "cut~gz.jsonl").read_text().splitlines()]
    check(damaged, "`quarantine/PARTITION.jsonl`", may_lack=("id",))
    for line in (record / "left_out.jsonl").read_text().splitlines():
        check(json.loads(line), "`left_out.jsonl`")
