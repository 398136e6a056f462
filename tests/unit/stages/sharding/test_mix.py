"""Mixing: the shares that were asked for, deterministic, with every document accounted for."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gristmill.backends.local import LocalExecutor
from gristmill.cli.main import cli
from gristmill.errors import MissingColumnError, PlanningError, UsageError
from gristmill.ledger.prove.verify import verify
from gristmill.stages.sharding import Cap, MixSource, Mixture, MixWorkflow, Tier
from gristmill.stages.sharding.mix_steps import cap_cuts
from tests.outputs import record_of
from tests.unit.stages.sharding.jobs import contents, lines_of, records, run, write


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    more: dict[str, Any] = {
        "domain": lambda at: f"d{at % 7 if at % 3 else 0}",
        "quality": lambda at: (at * 37 % 100) / 100,
        "license": lambda _: "MIT",
    }
    for name, count in (("web", 600), ("books", 40), ("code", 300)):
        write(folder, name, records(name, count, **more))
    return folder


def make(data: Path, output: Path, wishes: dict[str, dict[str, Any]], **options: Any) -> MixWorkflow:
    sources = {name: MixSource(str(data / f"{name}.jsonl"), **wish) for name, wish in wishes.items()}
    names = ("unit", "budget", "temperature", "max_epochs", "on_id_overlap")
    asked = {"unit": "tokens", **{name: options.pop(name) for name in names if name in options}}
    if asked["unit"] == "tokens":
        options.setdefault("token_count_field", "token_count")
    return MixWorkflow(str(output), Mixture(sources, **asked), **{"input_blocksize": 8000, **options})


def rows_of(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines_of(output)]


def amounts_of(output: Path, name: str) -> tuple[int, int]:
    mine = [row for row in rows_of(output) if row["id"].startswith(name)]
    return len(mine), sum(row["token_count"] for row in mine)


def test_token_shares_are_those_asked_for(data: Path, tmp_path: Path) -> None:
    wishes = {"web": {"weight": 0.5}, "books": {"weight": 0.2}, "code": {"weight": 0.3}}
    workflow = make(data, tmp_path / "out", wishes, budget=8000)
    plan = workflow.plan(LocalExecutor({"num_cpus": 0}), progress=False)
    assert not list((tmp_path / "out").iterdir())
    facts = run(workflow)
    for source, share in zip(facts["sources"], (0.5, 0.2, 0.3), strict=True):
        documents, tokens = amounts_of(tmp_path / "out", source["name"])
        assert (source["documents"], source["tokens"]) == (documents, tokens)
        assert abs(tokens - 8000 * share) <= 17  # half of the longest document
    for planned, source in zip(plan.facts()["sources"], facts["sources"], strict=True):
        for key in ("documents", "bytes", "tokens"):
            assert planned[key] == source[key]
        assert planned["epochs"] == pytest.approx(source["epochs"])
    assert verify(str(tmp_path / "out")).problems == []
    assert any("Repeats: books" in note for note in facts["notes"])
    again = workflow.plan(LocalExecutor({"num_cpus": 0}), progress=False)
    assert again.facts()["sources"] == plan.facts()["sources"]
    assert [path.name for path in (record_of(tmp_path / "out") / "steps").iterdir()] == ["documents"]


def test_epochs_repeat_whole_sources_and_a_part(data: Path, tmp_path: Path) -> None:
    run(make(data, tmp_path / "out", {"books": {"epochs": 2.5}}))
    counts = Counter(row["id"] for row in rows_of(tmp_path / "out"))
    assert set(counts.values()) == {2, 3}
    assert len(counts) == 40
    total = sum(row["token_count"] for row in records("books", 40))
    assert abs(amounts_of(tmp_path / "out", "books")[1] - 2.5 * total) <= 17


def test_repeated_documents_are_spread_and_stay_in_one_split(data: Path, tmp_path: Path) -> None:
    run(make(data, tmp_path / "out", {"books": {"epochs": 6}}, splits={"train": 0.7, "test": None}))
    ids = [row["id"] for row in rows_of(tmp_path / "out")]
    assert sum(one == two for one, two in pairwise(ids)) < 30
    sides = [
        {json.loads(line)["id"] for line in lines_of(tmp_path / "out", pattern)}
        for pattern in ("train-*.jsonl", "test-*.jsonl")
    ]
    assert not sides[0] & sides[1]


def test_tiers_prefer_good_documents(data: Path, tmp_path: Path) -> None:
    tiers = (Tier(0.8, 2), Tier(0.5, 1), Tier(0.2, 0))
    run(make(data, tmp_path / "out", {"web": {"epochs": 1, "tier_field": "quality", "tiers": tiers}}))
    counts = Counter(row["id"] for row in rows_of(tmp_path / "out"))
    for row in map(json.loads, (data / "web.jsonl").read_text().splitlines()):
        assert counts[row["id"]] == (2 if row["quality"] >= 0.8 else 1 if row["quality"] >= 0.5 else 0)


def test_no_domain_exceeds_its_cap(data: Path, tmp_path: Path) -> None:
    facts = run(make(data, tmp_path / "out", {"web": {"epochs": 1, "cap": Cap("domain", 400)}}))
    by_domain: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    for row in rows_of(tmp_path / "out"):
        by_domain[row["domain"]] += row["token_count"]
    for row in map(json.loads, (data / "web.jsonl").read_text().splitlines()):
        whole[row["domain"]] += row["token_count"]
    for domain, tokens in whole.items():
        assert by_domain[domain] <= 400
        assert by_domain[domain] > min(tokens, 400) - 34
    assert facts["sources"][0]["documents"] < 600


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(0, 1000), st.integers(0, 9)), max_size=40, unique_by=lambda x: x[1]
    ),
    st.integers(1, 30),
)
def test_caps_are_those_of_a_plain_count(given: list[tuple[int, int, int]], most: int) -> None:
    groups, keys, amounts = (
        np.array([row[at] for row in given], kind) for at, kind in enumerate((np.uint64, np.uint64, np.int64))
    )
    found = {row["group"]: row["from_key"] for row in cap_cuts(groups, keys, amounts, most).to_pylist()}
    expected: dict[int, int] = {}
    sums: Counter[int] = Counter()
    for group, key, amount in sorted(given, key=lambda row: row[1]):
        sums[group] += amount
        if sums[group] > most:
            expected.setdefault(group, key)
    assert found == expected


def test_the_same_documents_are_taken_again(data: Path, tmp_path: Path) -> None:
    wishes = {"web": {"weight": 0.5}, "code": {"weight": 0.5}}
    for name in ("one", "two"):
        run(make(data, tmp_path / name, wishes, budget=3000, seed=5))
    run(make(data, tmp_path / "three", wishes, budget=3000, seed=6))
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert {row["id"] for row in rows_of(tmp_path / "one")} != {row["id"] for row in rows_of(tmp_path / "three")}


def test_a_larger_budget_keeps_what_a_smaller_one_took(data: Path, tmp_path: Path) -> None:
    taken = []
    for budget in (1000, 2000):
        run(make(data, tmp_path / str(budget), {"web": {"budget": budget}}))
        taken.append({row["id"] for row in rows_of(tmp_path / str(budget))})
    assert taken[0] < taken[1]


def test_what_is_taken_is_not_what_comes_first_in_the_shuffle(data: Path, tmp_path: Path) -> None:
    run(make(data, tmp_path / "half", {"web": {"epochs": 0.5}}))
    run(make(data, tmp_path / "whole", {"web": {"epochs": 1}}))
    half = {row["id"] for row in rows_of(tmp_path / "half")}
    places = [at for at, row in enumerate(rows_of(tmp_path / "whole")) if row["id"] in half]
    assert 250 < np.mean(places) < 350


def test_bytes_and_documents_are_units_too(data: Path, tmp_path: Path) -> None:
    facts = run(make(data, tmp_path / "b", {"web": {"budget": "20KB"}}, unit="bytes"))
    assert abs(facts["totals"]["bytes"] - 20_000) < 200
    assert any("bytes of documents as written, not tokens" in note for note in facts["notes"])
    facts = run(make(data, tmp_path / "d", {"web": {"budget": 123}}, unit="documents"))
    assert facts["totals"]["documents"] == 123


def test_sources_that_share_ids_are_refused(data: Path, tmp_path: Path) -> None:
    write(tmp_path, "copy", records("web", 5))
    wishes = {
        "web": MixSource(str(data / "web.jsonl"), epochs=1),
        "copy": MixSource(str(tmp_path / "copy.jsonl"), epochs=1),
    }
    with pytest.raises(PlanningError, match=r"web and copy share 5 ids.*on_id_overlap: keep"):
        run(MixWorkflow(str(tmp_path / "out"), Mixture(wishes)))
    facts = run(MixWorkflow(str(tmp_path / "out"), Mixture(wishes, on_id_overlap="keep")))
    assert facts["totals"]["documents"] == 605
    assert any("web and copy share 5 ids" in note for note in facts["notes"])


def test_an_empty_source_is_refused_before_anything_is_written(data: Path, tmp_path: Path) -> None:
    write(tmp_path, "empty", [])
    for path in (str(tmp_path / "empty.jsonl"), str(tmp_path / "nothing/")):
        with pytest.raises(PlanningError, match="'empty'"):
            run(MixWorkflow(str(tmp_path / "out"), Mixture({"empty": MixSource(path, weight=1)})))
    assert not list((tmp_path / "out").iterdir())


def test_columns_that_are_not_there_are_named(data: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingColumnError, match=r"sources\.web\.cap\.field='host'"):
        run(make(data, tmp_path / "out", {"web": {"epochs": 1, "cap": Cap("host", 5)}}))
    with pytest.raises(UsageError, match="set token_count_field"):
        MixWorkflow("out", Mixture({"web": MixSource("x", weight=1)}, unit="tokens"))


def test_the_record_says_what_came_from_where(data: Path, tmp_path: Path) -> None:
    run(make(data, tmp_path / "out", {"web": {"epochs": 0.5, "license": "CC-BY-4.0"}, "code": {"epochs": 1}}))
    record = json.loads((record_of(tmp_path / "out") / "dataset.json").read_text())
    web, code = record["sources"]
    assert (web["license"], web["licenses"]) == ("CC-BY-4.0", {"MIT": web["documents"]})
    assert web["epochs"] == pytest.approx(0.5, abs=0.01)
    assert code["epochs"] == 1
    assert record["settings"]["mixture"]["sources"]["web"]["epochs"] == 0.5


RECIPE = """\
output: {output}
token_count_field: token_count
budget: 4000
sources:
  web: {{path: {data}/web.jsonl, weight: 3}}
  code: {{path: {data}/code.jsonl, weight: 1}}
"""


def test_the_command(data: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "mix.yaml"
    recipe.write_text(RECIPE.format(output=tmp_path / "out", data=data))
    plan = CliRunner().invoke(cli, ["mix", str(recipe), "--workers", "0", "--plan"])
    assert plan.exit_code == 0, plan.output
    assert "web" in plan.output
    assert "75.0 %" in plan.output
    result = CliRunner().invoke(cli, ["mix", str(recipe), "--workers", "0", "--json", "-q"])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["sources"][0]["share"] == pytest.approx(0.75, abs=0.005)


def test_the_output_can_be_an_argument(data: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "mix.yaml"
    recipe.write_text(RECIPE.format(output=tmp_path / "unused", data=data))
    result = CliRunner().invoke(cli, ["mix", str(recipe), str(tmp_path / "mixed"), "--workers", "0", "-q"])
    assert result.exit_code == 0, result.output
    assert list((tmp_path / "mixed").glob("*.jsonl"))
    assert not (tmp_path / "unused").exists()
    recipe.write_text(recipe.read_text().replace(f"output: {tmp_path / 'unused'}\n", ""))
    result = CliRunner().invoke(cli, ["mix", str(recipe), "--workers", "0"])
    assert result.exit_code == 2
    assert "gristmill mix RECIPE OUTPUT" in result.output


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("weigth: 2", "line 5: unknown key 'weigth'"),
        ("weight: .nan", "source 'web': weight is nan"),
        ("weight: -1", "source 'web': weight is -1"),
        ("weight: 1, tiers: {field: q}", "line 5: tiers need 'field' (a column) and 'levels'"),
        ("weight: 1, cap: {field: q, amount: lots}", "line 5: cap.amount='lots' is not a size"),
        ("weight: 1, cap: 5", "line 5: sources.web.cap must be a mapping"),
    ],
)
def test_recipes_that_cannot_work(data: Path, tmp_path: Path, change: str, told: str) -> None:
    recipe = tmp_path / "mix.yaml"
    recipe.write_text(RECIPE.format(output=tmp_path / "out", data=data).replace("weight: 3", change))
    result = CliRunner().invoke(cli, ["mix", str(recipe), "--workers", "0"])
    assert result.exit_code == 2, result.output
    assert told in result.output
    assert not (tmp_path / "out").exists()


def test_tokens_are_counted_by_a_tokenizer_and_records_keep_their_bytes(data: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    tokenizer = Tokenizer(WordLevel({"text": 0, "?": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    (tmp_path / "tokenizer").mkdir()
    tokenizer.save(str(tmp_path / "tokenizer" / "tokenizer.json"))
    wishes = {"web": {"weight": 0.5}, "code": {"weight": 0.5}}
    facts = run(
        make(data, tmp_path / "out", wishes, budget=4000, token_count_field=None, tokenizer=str(tmp_path / "tokenizer"))
    )
    for source in facts["sources"]:
        assert source["tokens"] == amounts_of(tmp_path / "out", source["name"])[1]  # "text 7 " is two of them
        assert abs(source["tokens"] - 2000) <= 17
    known = {line for path in data.iterdir() for line in path.read_text().splitlines()}
    assert set(lines_of(tmp_path / "out")) <= known
