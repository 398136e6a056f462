"""NeMo Curator's configuration files as recipes: what they become, and what is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from gristmill.errors import RecipeError
from gristmill.recipes.loader import Recipe, StageEntry, load_recipe, parse_recipe
from gristmill.stages.deduplication import TextSemanticDeduplicationWorkflow
from tests import target_recipes as files

PLACED = {"input_path": "in/", "output_path": "out/"}
READER = {"_target_": files.target("JsonlReader"), "file_paths": "${input_path}"}
WRITER = {"_target_": files.target("JsonlWriter"), "path": "${output_path}"}


def parsed(whole: dict[str, Any], **variables: Any) -> Recipe:
    return parse_recipe(files.text(whole), origin="mine.yaml", variables={**PLACED, **variables})


def with_stages(*stages: Any, **top: Any) -> dict[str, Any]:
    return {**files.PATHS, **top, "stages": [READER, *stages, WRITER]}


def problems(whole: dict[str, Any], **variables: Any) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        parsed(whole, **variables).pipeline()
    found: list[str] = caught.value.facts["problems"]
    return found


@pytest.mark.parametrize("name", ["english", "non_english"])
def test_a_cascade_is_the_same_as_the_shipped_one(name: str) -> None:
    ours = load_recipe(name, variables=PLACED).stages
    theirs = parsed(files.heuristic(name)).stages
    assert theirs[1:-1] == ours[1:-1]
    assert theirs[0] == StageEntry(
        "JsonlReader", {"file_paths": "in/", "files_per_partition": None, "blocksize": None, "fields": None}
    )
    assert parsed(files.heuristic(name)).name == "mine"


def test_a_file_becomes_a_recipe_in_our_form() -> None:
    recipe = parsed(files.heuristic("english"))
    assert parse_recipe(recipe.to_yaml()).stages == recipe.stages


def test_variables_are_set_by_name_by_place_added_and_removed() -> None:
    whole = with_stages(limits={"words": 50})
    whole["stages"].insert(
        1,
        {
            "_target_": "nemo_curator.stages.text.filters.ScoreFilter",
            "filter_obj": {"_target_": files.target("WordCountFilter"), "min_words": "${limits.words}"},
        },
    )
    assert parsed(whole).stages[1] == StageEntry("WordCountFilter", {"min_words": 50})
    changes = {"limits.words": 20, "stages.0.file_paths": ["a", "b"], "+stages.0.files_per_partition": 2, "~limits": 0}
    del changes["~limits"]
    recipe = parsed(whole, **changes)
    assert recipe.stages[1].parameters == {"min_words": 20}
    assert recipe.stages[0].parameters == {"file_paths": ["a", "b"], "files_per_partition": 2}
    assert recipe.variables["limits"] == {"words": 20}
    [message] = problems(whole, **{"~limits.words": None})
    assert "there is no 'limits.words'" in message
    message = problems(whole, word=3)[0]
    assert "there is no variable 'word'" in message


def test_text_field() -> None:
    recipe = parse_recipe(files.text(files.heuristic("english")), variables=PLACED, text_field="content")
    assert {entry.parameters["text_field"] for entry in recipe.stages[1:-1]} == {"content"}


def test_lists_of_filters_and_modifiers_become_stages_of_their_own() -> None:
    scored = {
        "_target_": "nemo_curator.stages.text.filters.ScoreFilter",
        "filter_obj": [
            {"_target_": files.target("WordCountFilter"), "min_words": 1},
            {"_target_": files.target("UrlsFilter")},
        ],
        "text_field": ["title", "text"],
        "score_field": [None, "urls"],
        "invert": True,
    }
    modified = {
        "_target_": "nemo_curator.stages.text.modifiers.Modify",
        "modifier_fn": [{"_target_": files.target("UrlRemover")}, {"_target_": files.target("NewlineNormalizer")}],
        "input_fields": "text",
    }
    recipe = parsed(with_stages(scored, modified))
    assert recipe.stages[1:-1] == (
        StageEntry("WordCountFilter", {"min_words": 1, "text_field": "title", "invert": True}),
        StageEntry("UrlsFilter", {"text_field": "text", "score_field": "urls", "invert": True}),
        StageEntry("UrlRemover", {"input_fields": "text"}),
        StageEntry("NewlineNormalizer", {"input_fields": "text"}),
    )
    assert len(recipe.pipeline().stages) == 6
    scored["text_field"] = ["title"]
    assert "text_field has 1 values for 2 of filter_obj" in problems(with_stages(scored))[0]


def test_resources_and_settings_that_every_stage_has() -> None:
    resources = {"_target_": "nemo_curator.stages.resources.Resources", "cpus": 2.0}
    whole = with_stages(
        {
            "_target_": "nemo_curator.stages.text.filters.ScoreFilter",
            "filter_obj": {"_target_": files.target("WordCountFilter")},
            "resources": resources,
            "batch_size": 3,
            "name": "words",
            "verbose": True,
        },
        {"_target_": files.target("AddId"), "id_field": "id", "resources": {"cpus": 0.5}, "batch_size": 2},
    )
    pipeline = parsed(whole).pipeline()
    words, ids = pipeline.stages[1:3]
    assert (words.name, words.resources.cpus, words.batch_size) == ("words", 2.0, 3)
    assert (ids.resources.cpus, ids.batch_size) == (0.5, 2)


@pytest.mark.parametrize(
    ("top", "executor", "config"),
    [
        ({}, None, {}),
        ({"backend": "ray_data"}, "ray_data", {}),
        ({"backend": "xenna", "execution_mode": "batch"}, "xenna", {"execution_mode": "batch"}),
        ({"execution_mode": "streaming"}, "xenna", {"execution_mode": "streaming"}),
        ({"ray_client": {**files.RAY, "num_cpus": 3}}, None, {"num_cpus": 3}),
        ({"backend": "${where}", "where": "local"}, "local", {}),
    ],
)
def test_executors(top: dict[str, Any], executor: str | None, config: dict[str, Any]) -> None:
    recipe = parsed(with_stages(**top))
    assert (recipe.executor, recipe.executor_config) == (executor, config)


@pytest.mark.parametrize(
    ("whole", "part"),
    [
        (with_stages({"_target_": "os.system", "command": "true"}), "'os.system' is an import path"),
        (with_stages({"_target_": "nemo_curator.os.system"}), "is not a class that recipes can use"),
        (with_stages({"_target_": "nemo_curator.stages.text.io.JsonlReadr"}), "Did you mean 'JsonlReader'?"),
        (with_stages({"_target_": "nemo_curator.stages.audio.io.JsonlReader"}), "is not a class"),
        (with_stages({"_target_": ["JsonlReader"]}), "must be the name of a class"),
        (with_stages({"JsonlReader": {}}), "expected a mapping with '_target_'"),
        (with_stages({**READER, "_args_": [1]}), "'_args_' is not supported"),
        (with_stages({**READER, "fields": {"_target_": "builtins.list"}}), "cannot be an object"),
        (with_stages({**READER, "colour": 1}), "line 8: JsonlReader: unknown parameter 'colour'"),
        (
            with_stages({"_target_": "nemo_curator.x.ScoreFilter", "filter_ob": {}}),
            "ScoreFilter: unknown parameter 'filter_ob'.",
        ),
        (with_stages(backend="dask"), "there is no backend 'dask'"),
        (with_stages(execution_mode="slow"), "execution_mode must be batch or streaming"),
        (with_stages(backnd="xenna"), "nothing uses 'backnd'. Did you mean 'backend'?"),
        (with_stages(defaults=["_self_", "other_file"]), "'defaults' names 'other_file'"),
        (with_stages(ray_client=3), "'ray_client' must be a mapping"),
        (with_stages(workflow=[]), "'stages' and a 'workflow'"),
        ({**files.PATHS, "workflow": []}, "exactly one"),
        ({**files.PATHS, "workflow": [READER]}, "'JsonlReader' is not a workflow"),
        (with_stages(where="${oc.env:HOME}", backend="${where}"), "resolver 'oc.env'"),
    ],
)
def test_what_is_refused(whole: dict[str, Any], part: str) -> None:
    assert any(part in message for message in problems(whole)), problems(whole)


@pytest.mark.parametrize("depth", [50, 150, 250, 320])
def test_deep_nesting_is_a_recipe_or_an_error(depth: int) -> None:
    text = files.text({**files.PATHS, "stages": [{**READER, "fields": "DEEP"}, WRITER]})
    text = text.replace("DEEP", "[" * depth + "]" * depth)
    with pytest.raises(RecipeError):
        parse_recipe(text, variables=PLACED).pipeline()


def test_required_values_are_named_all_at_once() -> None:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(files.text(files.code()), origin="code.yaml")
    assert [message.partition("the variable ")[2].split()[0] for message in caught.value.facts["problems"]] == [
        "'input_path'",
        "'path_to_tokenizer'",
        "'output_path'",
    ]
    # What nothing uses is not required.
    parsed({**files.heuristic("english"), "unused": "???"})


def test_user_code_needs_to_be_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kept_stages.py").write_text(
        "from gristmill.stages.text.filters import DocumentFilter\n"
        "class Keeps(DocumentFilter):\n"
        "    def __init__(self, share: float = 1.0):\n"
        "        super().__init__()\n"
        "    def score_document(self, text): return 1.0\n"
        "    def keep_document(self, score): return True\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    wrapped = {
        "_target_": "nemo_curator.stages.text.filters.ScoreFilter",
        "filter_obj": {"_target_": "kept_stages.Keeps", "share": 0.5},
    }
    recipe = parsed(with_stages(wrapped))
    with pytest.raises(RecipeError, match="--allow-code kept_stages"):
        recipe.pipeline()
    assert len(recipe.pipeline(allow_code=["kept_stages"]).stages) == 3


# --- workflows ---


@pytest.mark.parametrize("make", [files.exact, files.fuzzy, files.semantic], ids=lambda make: make.__name__)
def test_workflows_are_built(make: Any) -> None:
    variables = {"cache_path": "cache/"} if "cache_path" in make() else {}
    recipe = parsed(make(), **variables)
    workflow: Any = recipe.build_workflow()
    assert (workflow.input_path, workflow.output_path) == ("in/", "out/")
    assert type(workflow).__name__ == recipe.workflow.name  # type: ignore[union-attr]
    with pytest.raises(RecipeError, match="runs a workflow"):
        recipe.pipeline()


def test_options_of_the_semantic_file() -> None:
    workflow: Any = parsed(files.semantic(), cache_path="cache/").build_workflow()
    assert isinstance(workflow, TextSemanticDeduplicationWorkflow)
    assert (workflow.which_to_keep, workflow.eps, workflow.model_inference_batch_size) == ("easy", 0.01, 256)


@pytest.mark.parametrize(
    ("ranking", "wanted"),
    [
        ({"metadata_cols": ["cosine_dist_to_cent", "id"], "ascending": [False, False]}, {"which_to_keep": "hard"}),
        ({"metadata_cols": [], "strategy": "random", "random_seed": 7}, {"which_to_keep": "random"}),
        ({"metadata_cols": ["quality"], "ascending": False}, {"survivor": "best", "score_field": "quality"}),
        ({"metadata_cols": ["quality"], "ascending": True}, None),
    ],
)
def test_rankings(ranking: dict[str, Any], wanted: dict[str, Any] | None) -> None:
    whole = copy.deepcopy(files.semantic())
    whole["workflow"][0]["ranking_strategy"] = {"_target_": "nemo_curator.x.RankingStrategy", **ranking}
    if wanted is None:
        with pytest.raises(RecipeError, match="this ranking is not supported"):
            parsed(whole, cache_path="cache/")
        return
    workflow = parsed(whole, cache_path="cache/").build_workflow()
    assert {name: getattr(workflow, name) for name in wanted} == wanted


def test_a_wrong_option_of_a_workflow_names_its_line() -> None:
    whole = files.exact()
    whole["workflow"][0]["assign_ids"] = True
    with pytest.raises(RecipeError, match=r"line \d+: ExactDeduplicationWorkflow: unknown parameter 'assign_ids'"):
        parsed(whole).build_workflow()


def test_the_cluster_is_for_executors_on_ray() -> None:
    recipe = parsed(files.exact())
    with recipe.cluster("local") as nothing:
        assert nothing is None
    client: Any = recipe.cluster("ray_data")
    assert (client.num_cpus, client.num_gpus) == (None, 4)
    with pytest.raises(RecipeError, match="ray_client: unknown parameter 'cpus'"):
        parsed({**files.exact(), "ray_client": {"cpus": 1}}).cluster("ray_data")
