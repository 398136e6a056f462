"""Differences between plans in words."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from gristmill.errors import ResumeError, VerificationError
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.plan_record import check_plan, compare, plan_digest, read_plan, write_plan


def plan(*stages: str, **parameters: Any) -> dict[str, Any]:
    return {
        "name": "p",
        "version": "1",
        "stages": [{"name": name, "type": "T", "parameters": dict(parameters), "code": "c"} for name in stages],
    }


def test_equal_plans_do_not_differ() -> None:
    assert compare(plan("a", "b"), plan("a", "b")) == []
    assert plan_digest(plan("a")) == plan_digest({**plan("a"), "description": "in other words"})
    assert plan_digest(plan("a")) != plan_digest(plan("b"))


def test_a_changed_parameter_is_named_with_both_values() -> None:
    old, new = plan("read", "words", "write"), plan("read", "words", "write")
    old["stages"][1]["parameters"] = {"min_words": 50, "gone": 1, "deep": {"x": 1, "y": 2}}
    new["stages"][1]["parameters"] = {"min_words": 100, "fresh": None, "deep": {"x": 1, "y": 3}}
    new["stages"][2]["code"] = "d"
    new["version"] = "2"
    assert compare(old, new) == [
        "stage 'words': parameter deep.y changed from 2 to 3",
        "stage 'words': parameter fresh was added (null)",
        "stage 'words': parameter gone was removed (it was 1)",
        "stage 'words': parameter min_words changed from 50 to 100",
        "stage 'write': its code changed",
        'the version of gristmill changed from "1" to "2"',
        "the first stage, 'read', is unchanged; only 'words' and what follows changed",
    ]


def test_added_removed_and_moved_stages_are_named() -> None:
    found = compare(plan("read", "a", "b", "c", "write"), plan("read", "c", "a", "new", "write"))
    assert found[:3] == [
        "stage 'b' was removed",
        "stage 'new' was added after 'a'",
        "stage 'c' was moved after 'read'",
    ]


def test_stages_that_only_came_last_keep_the_work_done() -> None:
    found = compare(plan("read", "a", "write"), plan("read", "a", "b", "write"))
    assert found[0] == "stage 'b' was added after 'a'"
    assert "run just the new stages with this output as their input" in found[-1]


def test_another_plan_in_the_output_is_an_error(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert read_plan(folder) is None
    assert check_plan(folder, plan("a")) == plan_digest(plan("a"))
    digest = write_plan(folder, plan("a", limit=(1, 2)))
    assert check_plan(folder, plan("a", limit=(1, 2))) == digest
    with pytest.raises(ResumeError, match="parameter limit changed") as caught:
        check_plan(folder, plan("a", limit=3))
    assert "--fresh" in str(caught.value)
    assert len(caught.value.facts["differences"]) == 1


def test_a_damaged_plan_is_named(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write(folder.record_path("plan"), b"{")
    with pytest.raises(VerificationError, match="damaged"):
        check_plan(folder, plan("a"))


def test_changed_code_is_named() -> None:
    old, new = plan("a"), plan("a")
    old["stages"][0]["code"] = {"__main__.A.process": "1", "helpers.clean": "2", "gone": "3"}
    new["stages"][0]["code"] = {"__main__.A.process": "1", "helpers.clean": "4", "__main__.B": "5"}
    assert compare(old, new)[0] == "stage 'a': its code changed: 'B', 'gone', 'helpers.clean'"
    old, new = plan("a"), plan("a")
    old["stages"][0]["parameters"] = {"filter_obj": [{"class": "F", "code": {"F.score": "1"}}]}
    new["stages"][0]["parameters"] = {"filter_obj": [{"class": "F", "code": {"F.score": "2"}}]}
    assert compare(old, new)[0] == "stage 'a': the code of parameter filter_obj changed: 'F.score'"


def test_moves_are_found_for_any_order() -> None:
    names = list("abcdef")
    for shift in range(1, 6):
        new = names[shift:] + names[:shift]
        old_plan, new_plan = plan(*names), plan(*new)
        before = copy.deepcopy((old_plan, new_plan))
        found = compare(old_plan, new_plan)
        assert found
        assert all("was moved" in line for line in found)
        assert (old_plan, new_plan) == before


def test_a_change_of_many_stages_is_said_once() -> None:
    names = [f"filter_{number}" for number in range(28)]
    old, new = plan("read", *names, "write"), plan("read", *names, "write")
    for before, after in zip(old["stages"][1:29], new["stages"][1:29], strict=True):
        before["parameters"], after["parameters"] = {"text_field": "text"}, {"text_field": "body"}
    new["stages"][3]["parameters"]["max"] = 5
    old["variables"], new["variables"] = {"text_field": "text", "x": 1}, {"text_field": "body", "x": 1}
    change = 'parameter text_field changed from "text" to "body"'
    assert compare(old, new) == [
        'variable text_field changed from "text" to "body"',
        f"stage 'filter_0': {change}, and 27 more stages with the same change",
        "stage 'filter_2': parameter max was added (5)",
        "the first stage, 'read', is unchanged; only 'filter_0' and what follows changed",
    ]
    for stage in new["stages"][3:]:
        stage["parameters"] = {"text_field": "text"} if "filter" in stage["name"] else {}
    assert compare(old, new)[1:3] == [f"stage 'filter_0': {change}", f"stage 'filter_1': {change}"]


def test_the_offer_to_keep_work_names_no_endless_list() -> None:
    names = [f"filter_{number}" for number in range(28)]
    found = compare(plan("read", "a", "b", *names, "write"), plan("read", "a", "B", *names, "write"))
    assert "only 'B' to 'filter_27' (29 stages) changed" in found[-1]


def test_variables_alone_change_nothing() -> None:
    assert plan_digest({**plan("a"), "variables": {"x": 1}}) == plan_digest({**plan("a"), "variables": {"x": 2}})
