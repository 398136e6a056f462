"""Deduplication of a corpus with known duplicates: what is found, on any number of workers, after any interruption."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from gristmill.backends.local import LocalExecutor
from gristmill.ledger.ask.ledger import Ledger
from gristmill.ledger.prove.verify import verify
from gristmill.recipes import load_recipe
from gristmill.recipes.loader import find_recipe
from gristmill.stages.deduplication import ExactDeduplicationWorkflow, FuzzyDeduplicationWorkflow
from tests.outputs import contents_of, record_of
from tests.planted_corpus import plant

KINDS = {"exact": ExactDeduplicationWorkflow, "fuzzy": FuzzyDeduplicationWorkflow}
STEPS = {"exact": 3, "fuzzy": 6}


@pytest.fixture(scope="module")
def corpus(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    builder = shared_data / "build_corpus.py"
    if builder.is_file():
        sizes = ["--mb", "4", "--seed", "3", "--shard-mb", "0.6"]
        command = [sys.executable, builder, "--pool", shared_data, "--out", folder, *sizes]
        subprocess.run(command, check=True, capture_output=True)
    else:
        plant(shared_data, folder)
    return folder


def truth_of(corpus: Path) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in map(json.loads, (corpus / "truth.jsonl").read_text().splitlines())}


def run(kind: str, corpus: Path, output: Path, workers: int = 0, **options: Any) -> dict[str, Any]:
    options = {"perform_removal": True, **options}
    workflow = KINDS[kind](input_path=str(corpus / "corpus-*.jsonl"), output_path=str(output), **options)
    facts: dict[str, Any] = workflow.run(executor=LocalExecutor({"num_cpus": workers}), progress=False).metadata
    return facts


def kept(output: Path) -> list[str]:
    texts = [path.read_text(encoding="utf-8") for path in sorted(output.glob("*.jsonl"))]
    return [json.loads(line)["id"] for text in texts for line in text.split("\n")[:-1]]


def removals(output: Path) -> dict[str, str]:
    """Removed document → survivor."""
    found = {}
    for path in sorted((record_of(output) / "ledger").glob("*.parquet")):
        for row in pq.read_table(path).to_pylist():
            assert row["outcome"] == "duplicate"
            found[row["id"]] = row["survivor"]
    return found


def contents(output: Path) -> dict[str, bytes]:
    """Everything that must not depend on how a run went: output and ledger."""
    found = contents_of(output)
    return {name: data for name, data in found.items() if name.startswith("record/ledger/") or "/" not in name}


@pytest.fixture(scope="module", params=["exact", "fuzzy"])
def finished(
    request: pytest.FixtureRequest, corpus: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    output = tmp_path_factory.mktemp("finished") / request.param
    run(request.param, corpus, output)
    return request.param, output


def test_every_planted_copy_is_found_and_nothing_else(corpus: Path, tmp_path: Path) -> None:
    run("exact", corpus, tmp_path)
    truth = truth_of(corpus)
    first: dict[int, str] = {}
    for document, row in truth.items():  # truth is in source order
        first.setdefault(row["group"], document)
    assert kept(tmp_path) == list(first.values())
    assert removals(tmp_path) == {
        document: first[row["group"]] for document, row in truth.items() if first[row["group"]] != document
    }
    assert verify(str(tmp_path)).problems == []


def test_near_duplicates_are_found_and_unrelated_documents_stay(corpus: Path, tmp_path: Path) -> None:
    facts = run("fuzzy", corpus, tmp_path)
    truth, lost_to = truth_of(corpus), removals(tmp_path)
    home = {document: lost_to.get(document, document) for document in truth}
    pairs = [json.loads(line) for line in (corpus / "pairs.jsonl").read_text().splitlines()]
    close = [pair for pair in pairs if pair["j_word5"] >= 0.8]
    assert len(close) > 15
    together = sum(home[pair["a"]] == home[pair["b"]] for pair in close)
    assert together >= 0.95 * len(close)
    far = [pair for pair in pairs if 0 < pair["j_word5"] < 0.7]
    assert not [pair for pair in far if home[pair["a"]] == home[pair["b"]]]
    by_group: dict[int, set[str]] = defaultdict(set)
    for document, row in truth.items():
        by_group[row["group"]].add(home[document])
    assert all(len(homes) == 1 for homes in by_group.values()), "a copy went another way than its original"
    garbage = {
        document
        for document, row in truth.items()
        if row["kind"] in ("garbage:symbols", "garbage:numbers") and document in lost_to
    }
    assert all(truth[document]["group"] == truth[lost_to[document]]["group"] for document in garbage)
    assert facts["precision"]["low"] > 0.9
    assert verify(str(tmp_path)).problems == []


@pytest.mark.parametrize("workers", [1, 2])
def test_any_number_of_workers_gives_the_same_bytes(
    finished: tuple[str, Path], corpus: Path, tmp_path: Path, workers: int
) -> None:
    kind, output = finished
    run(kind, corpus, tmp_path, workers)
    assert contents(tmp_path) == contents(output)


def test_the_order_of_listing_does_not_matter(finished: tuple[str, Path], corpus: Path, tmp_path: Path) -> None:
    kind, output = finished
    moved = tmp_path / "moved" / "elsewhere"
    moved.mkdir(parents=True)
    for path in sorted(corpus.glob("corpus-*.jsonl"), reverse=True):
        shutil.copy2(path, moved / path.name)
    workflow = KINDS[kind](
        input_path=[str(path) for path in sorted(moved.glob("*.jsonl"), reverse=True)],
        output_path=str(tmp_path / "out"),
        perform_removal=True,
    )
    workflow.run(executor=LocalExecutor({"num_cpus": 0}), progress=False)
    assert kept(tmp_path / "out") == kept(output)
    assert removals(tmp_path / "out") == removals(output)


_KILLED = """
import os, sys
from gristmill.backends.local import LocalExecutor
from gristmill.observe.events import PartitionCommitted, RunStarted
from gristmill.stages.deduplication import ExactDeduplicationWorkflow, FuzzyDeduplicationWorkflow

kind, source, output, step, partition = sys.argv[1:]
seen = [0, 0]

def watch(event):
    if isinstance(event, RunStarted):
        seen[0], seen[1] = seen[0] + 1, 0
    if isinstance(event, PartitionCommitted):
        seen[1] += 1
    if seen == [int(step), int(partition)]:
        os.kill(os.getpid(), 9)

workflow = {"exact": ExactDeduplicationWorkflow, "fuzzy": FuzzyDeduplicationWorkflow}[kind]
workflow(input_path=source, output_path=output, perform_removal=True).run(
    executor=LocalExecutor({"num_cpus": 0}), listeners=[watch], progress=False
)
"""


def test_killed_between_and_within_steps_it_goes_on_to_the_same_bytes(
    finished: tuple[str, Path], corpus: Path, tmp_path: Path
) -> None:
    kind, output = finished
    # Within the first step, within the removal, and at the beginning of every step between.
    moments = [(1, 2), *((step, 0) for step in range(2, STEPS[kind])), (STEPS[kind], 2)]
    for step, partition in moments:
        arguments = [kind, str(corpus / "corpus-*.jsonl"), str(tmp_path / "out"), str(step), str(partition)]
        done = subprocess.run([sys.executable, "-c", _KILLED, *arguments], check=False, capture_output=True)
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    run(kind, corpus, tmp_path / "out", 2)
    assert contents(tmp_path / "out") == contents(output)
    assert verify(str(tmp_path / "out")).problems == []


def test_parquet_and_jsonl_give_the_same_survivors(finished: tuple[str, Path], corpus: Path, tmp_path: Path) -> None:
    import pyarrow.json as pj

    kind, output = finished
    (tmp_path / "in").mkdir()
    for path in corpus.glob("corpus-*.jsonl"):
        pq.write_table(pj.read_json(path), tmp_path / "in" / f"{path.stem}.parquet", row_group_size=100)
    workflow = KINDS[kind](
        input_path=str(tmp_path / "in"),
        output_path=str(tmp_path / "out"),
        input_blocksize="300KB",
        perform_removal=True,
    )
    workflow.run(executor=LocalExecutor({"num_cpus": 0}), progress=False)
    found = [
        row for path in sorted((tmp_path / "out").glob("*.parquet")) for row in pq.read_table(path)["id"].to_pylist()
    ]
    assert found == kept(output)


def test_ids_of_one_step_serve_the_removal_of_another(corpus: Path, tmp_path: Path) -> None:
    from gristmill.stages.deduplication import TextDuplicatesRemovalWorkflow

    run("exact", corpus, tmp_path / "found", perform_removal=False, id_field="id")
    run("exact", corpus, tmp_path / "direct")
    TextDuplicatesRemovalWorkflow(
        str(corpus / "corpus-*.jsonl"),
        str(tmp_path / "found" / "ExactDuplicateIds"),
        str(tmp_path / "out"),
        id_field="id",
    ).run(executor=LocalExecutor({"num_cpus": 2}), progress=False)
    assert kept(tmp_path / "out") == kept(tmp_path / "direct")


def test_two_hundred_thousand_copies_and_one_long_document(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    line = json.dumps({"text": "the same words again and again in every document of this file"}) + "\n"
    (tmp_path / "in" / "copies.jsonl").write_text(line * 200_000)
    long = " ".join(f"word{number}" for number in range(1_500_000))
    (tmp_path / "in" / "long.jsonl").write_text(
        json.dumps({"text": long}) + "\n" + json.dumps({"text": long + " x"}) + "\n"
    )
    workflow = FuzzyDeduplicationWorkflow(
        input_path=str(tmp_path / "in"), output_path=str(tmp_path / "out"), perform_removal=True
    )
    facts = workflow.run(executor=LocalExecutor({"num_cpus": 0}), progress=False).metadata
    assert facts["num_removed"] == 200_000
    assert facts["pairs_compared"] == 200_000


@pytest.mark.slow
def test_documents_of_a_hundred_megabytes(tmp_path: Path) -> None:
    long = " ".join(f"word{number}" for number in range(8_500_000))
    (tmp_path / "in").mkdir()
    with (tmp_path / "in" / "long.jsonl").open("w") as file:
        for name, text in (("long", long), ("short", "a few words"), ("longer", long + " more")):
            file.write(json.dumps({"id": name, "text": text}) + "\n")
    workflow = FuzzyDeduplicationWorkflow(
        input_path=str(tmp_path / "in"), output_path=str(tmp_path / "out"), perform_removal=True
    )
    facts = workflow.run(executor=LocalExecutor({"num_cpus": 0}), progress=False).metadata
    assert (facts["documents"], facts["num_removed"]) == (3, 1)
    assert removals(tmp_path / "out") == {"longer": "long"}


_KILLED_IN_STEPS = """
import os, sys
from gristmill.backends.local import LocalExecutor
from gristmill.observe.events import PartitionCommitted, RunStarted
from gristmill.recipes import load_recipe
from gristmill.recipes.loader import find_recipe

source, output, step, partition = sys.argv[1:]
seen = [0, 0]

def watch(event):
    if isinstance(event, RunStarted):
        seen[0], seen[1] = seen[0] + 1, 0
    if isinstance(event, PartitionCommitted):
        seen[1] += 1
    if seen == [int(step), int(partition)]:
        os.kill(os.getpid(), 9)

values = {"input_path": source, "output_path": output}
pipeline = load_recipe(find_recipe("web_dedup"), variables=values).pipeline()
pipeline.run(LocalExecutor({"num_cpus": 0}), listeners=[watch], progress=False)
"""


def test_a_recipe_with_deduplications_killed_anywhere_goes_on_to_the_same_bytes(corpus: Path, tmp_path: Path) -> None:
    source = str(corpus / "corpus-*.jsonl")
    values = {"input_path": source, "output_path": str(tmp_path / "whole")}
    load_recipe(find_recipe("web_dedup"), variables=values).pipeline().run(
        LocalExecutor({"num_cpus": 0}), progress=False
    )
    # Exact duplicates in two steps, the filters, near-duplicates in five, and the output.
    for step, partition in [(1, 2), (2, 0), (3, 0), (3, 3), (4, 1), (6, 2), (8, 0), (9, 0), (9, 4)]:
        arguments = [source, str(tmp_path / "out"), str(step), str(partition)]
        done = subprocess.run([sys.executable, "-c", _KILLED_IN_STEPS, *arguments], check=False, capture_output=True)
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    values["output_path"] = str(tmp_path / "out")
    result = (
        load_recipe(find_recipe("web_dedup"), variables=values)
        .pipeline()
        .run(LocalExecutor({"num_cpus": 2}), progress=False)
    )
    assert result.report.partitions_done_before == 4
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    one, other = (Ledger(tmp_path / name).entries() for name in ("out", "whole"))
    assert {key: entry.comparable() for key, entry in one.items()} == {
        key: entry.comparable() for key, entry in other.items()
    }
    assert verify(str(tmp_path / "out")).problems == []
