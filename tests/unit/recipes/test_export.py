"""From a pipeline to a recipe and back."""

from __future__ import annotations

from typing import Any

import pytest

from gristmill.errors import RecipeError
from gristmill.pipeline import Pipeline
from gristmill.recipes import parse_recipe, to_recipe
from gristmill.stages.base import ProcessingStage
from gristmill.stages.resources import Resources
from gristmill.stages.text.io.reader import JsonlReader, ParquetReader
from gristmill.stages.text.io.writer import JsonlWriter, ParquetWriter
from gristmill.stages.text.modifiers import LineRemover, Modify, Slicer, UnicodeReformatter, UrlRemover

Stage = ProcessingStage[Any, Any]


def entries(*stages: Stage) -> list[tuple[str, dict[str, Any]]]:
    recipe = to_recipe(Pipeline("p", "for a test", list(stages)))
    again = parse_recipe(recipe.to_yaml())
    assert again.stages == recipe.stages
    assert (again.name, again.description) == ("p", "for a test")
    assert to_recipe(again.pipeline()) == recipe
    return [(entry.name, dict(entry.parameters)) for entry in recipe.stages]


def test_readers_and_writers() -> None:
    assert entries(
        JsonlReader("in/", fields=["text", "id"], blocksize="1GB"),
        ParquetReader(["a.parquet", "b.parquet"]),
        JsonlWriter("out/", compression="zstd"),
        ParquetWriter("out/", mode="overwrite"),
    ) == [
        ("JsonlReader", {"file_paths": "in/", "blocksize": "1GB", "fields": ["text", "id"]}),
        ("ParquetReader", {"file_paths": ["a.parquet", "b.parquet"]}),
        ("JsonlWriter", {"path": "out/", "compression": "zstd"}),
        ("ParquetWriter", {"path": "out/", "mode": "overwrite"}),
    ]


def test_modifiers_lose_their_wrapper() -> None:
    assert entries(
        Modify(UrlRemover()),
        Modify([Slicer(left=2, right="${end}")], "title"),
        Modify(UnicodeReformatter(normalization="NFC"), output_fields="clean"),
        Modify(LineRemover(["a", "b"])),
    ) == [
        ("UrlRemover", {}),
        ("Slicer", {"left": 2, "right": "${end}", "input_fields": "title"}),
        ("UnicodeReformatter", {"normalization": "NFC", "output_fields": "clean"}),
        ("LineRemover", {"patterns": ["a", "b"]}),
    ]


def test_settings_of_with() -> None:
    changed = Modify(UrlRemover()).with_(
        name="links", resources=Resources(cpus=2), batch_size=4, num_workers=3, time_limit_s=1.5
    )
    [(name, parameters)] = entries(changed)
    assert name == "UrlRemover"
    assert parameters == {
        "with": {
            "resources": {"cpus": 2, "gpu_memory_gb": 0.0, "gpus": 0.0},
            "batch_size": 4,
            "time_limit_s": 1.5,
            "num_workers": 3,
            "name": "links",
        }
    }


def test_settings_of_a_composite() -> None:
    assert entries(JsonlReader("in/").with_(batch_size=2)) == [
        ("JsonlReader", {"file_paths": "in/", "with": {"batch_size": 2}})
    ]


class Mine(ProcessingStage[Any, Any]):
    name = "mine"

    def process(self, task: Any) -> Any:
        return task


class JsonlReaderOfMine(JsonlReader):
    """Not the registered class, whatever its name."""


JsonlReaderOfMine.__name__ = "JsonlReader"


@pytest.mark.parametrize(
    ("stage", "part"),
    [
        (Mine(), "'mine' cannot be written as a recipe: Mine is not registered for recipes"),
        (JsonlReaderOfMine("in/"), "is not registered for recipes"),
        (Modify(str.upper), "is not registered for recipes"),
        (Modify([UrlRemover(), UrlRemover()]), "several parts"),
        (JsonlReader("in/").with_({"jsonl_reader": {"batch_size": 2}}), "cannot be derived from its attributes"),
    ],
)
def test_refused(stage: Stage, part: str) -> None:
    with pytest.raises(RecipeError) as caught:
        to_recipe(Pipeline("p", stages=[stage]))
    assert part in str(caught.value)
