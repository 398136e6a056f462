"""`import nemo_curator` finds Gristmill, and says so where it does not have a name."""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
import types
from pathlib import Path

import cloudpickle
import pytest

from gristmill import compat
from gristmill.errors import NotSupportedError, UsageError
from gristmill.execution import stage_pickling
from gristmill.tasks.document import DocumentBatch

pytestmark = pytest.mark.filterwarnings("error")


def _python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "GRISTMILL_COMPAT"}
    return subprocess.run(
        [sys.executable, "-c", code], env={**environment, **variables}, capture_output=True, text=True, check=False
    )


def test_classes_are_those_of_gristmill(curator: None) -> None:
    from nemo_curator.stages.text.filters.score_filter import ScoreFilter  # type: ignore[import-not-found]

    from gristmill.stages.text.filters.score_filter import ScoreFilter as Ours

    module = importlib.import_module("nemo_curator.stages.text.filters.score_filter")
    assert ScoreFilter is Ours
    assert module.__spec__ is not None
    assert module.__spec__.name == "nemo_curator.stages.text.filters.score_filter"
    assert "ScoreFilter" in dir(module)


def test_names_that_live_elsewhere_are_found(curator: None) -> None:
    from nemo_curator.stages.text.filters.heuristic.code.code import AlphaFilter  # type: ignore[import-not-found]
    from nemo_curator.stages.text.modifiers.string.slicer import Slicer  # type: ignore[import-not-found]
    from nemo_curator.tasks.sentinels import SentinelTask  # type: ignore[import-not-found]
    from nemo_curator.utils.performance_utils import StagePerfStats  # type: ignore[import-not-found]

    assert AlphaFilter.__name__ == "AlphaFilter"
    assert Slicer.__name__ == "Slicer"
    assert SentinelTask().num_items == 0
    assert StagePerfStats.__name__ == "StagePerfStats"


def test_names_of_its_first_releases_are_found(curator: None) -> None:
    from nemo_curator.stages.text.modules import (  # type: ignore[import-not-found]
        AddId,
        DocumentSplitter,
        Modify,
        ScoreFilter,
    )

    from gristmill.stages.text import filters, modifiers, modules

    assert (ScoreFilter, Modify) == (filters.ScoreFilter, modifiers.Modify)
    assert (AddId, DocumentSplitter) == (modules.AddId, modules.DocumentSplitter)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("backends.experimental.ray_actor_pool.executor", "RayActorPoolExecutor"),
        ("backends.experimental.ray_data.executor", "RayDataExecutor"),
        ("stages.text.filters.heuristic_filter", "WordCountFilter"),
        ("stages.text.filters.fasttext_filter", "FastTextQualityFilter"),
        ("stages.text.filters.code", "PythonCommentToCodeFilter"),
        ("stages.text.filters.repetition", "RepeatedLinesFilter"),
        ("stages.text.modifiers.c4", "BoilerPlateStringModifier"),
        ("stages.text.modifiers.unicode_reformatter", "UnicodeReformatter"),
        ("stages.text.modifiers.url_remover", "UrlRemover"),
    ],
)
def test_modules_of_its_first_releases_are_found(curator: None, module: str, name: str) -> None:
    found = getattr(importlib.import_module(f"nemo_curator.{module}"), name)
    assert found.__module__.startswith("gristmill.")


def test_where_a_workflow_leaves_its_files_is_known(curator: None, tmp_path: Path) -> None:
    """Also by a class that is missing itself."""
    exact = importlib.import_module("nemo_curator.stages.deduplication.exact.workflow")
    fuzzy = importlib.import_module("nemo_curator.stages.deduplication.fuzzy.workflow")
    identification = importlib.import_module("nemo_curator.stages.deduplication.exact.identification")
    (tmp_path / "in.jsonl").write_text('{"text": "one"}\n{"text": "one"}\n')
    exact.ExactDeduplicationWorkflow(str(tmp_path / "out"), str(tmp_path / "in.jsonl")).run()
    assert (tmp_path / "out" / identification.ExactDuplicateIdentification.name).is_dir()
    assert (tmp_path / "out" / exact.ID_GENERATOR_OUTPUT_FILENAME).is_file()
    assert fuzzy.FuzzyDeduplicationWorkflow.id_generator_file == fuzzy.ID_GENERATOR_OUTPUT_FILENAME
    with pytest.raises(NotSupportedError, match="ExactDeduplicationWorkflow"):
        identification.ExactDuplicateIdentification(text_field="text", output_path="out")


def test_a_star_import_brings_the_public_names(curator: None) -> None:
    found: dict[str, object] = {}
    exec("from nemo_curator.tasks import *", found)
    assert {"DocumentBatch", "EmptyTask", "Task"} <= found.keys()


def test_a_missing_name_raises_when_it_is_used(curator: None) -> None:
    from nemo_curator.stages.text.experimental.translation.evaluation.faith import (  # type: ignore[import-not-found]
        FaithEvalFilter,
    )
    from nemo_curator.stages.text.io.writer.lance import LanceWriter  # type: ignore[import-not-found]

    def annotated(stage: FaithEvalFilter | None) -> None: ...

    again = pickle.loads(pickle.dumps(LanceWriter))
    for use in (
        lambda: LanceWriter("out"),
        lambda: again("out"),
        lambda: LanceWriter.commit,
        lambda: types.new_class("Mine", (LanceWriter,)),
        lambda: list(LanceWriter),
        lambda: "a" in LanceWriter,
        lambda: isinstance("a", LanceWriter),
        lambda: os.fspath(LanceWriter),
    ):
        with pytest.raises(NotSupportedError, match=r"no nemo_curator.*lance\.LanceWriter.*ParquetWriter"):
            use()
    with pytest.raises(NotImplementedError, match="LLMStage grades translations"):
        FaithEvalFilter(source_lang="en")


def test_a_name_that_nobody_has_is_an_import_error(curator: None) -> None:
    with pytest.raises(ImportError):
        importlib.import_module("nemo_curator.no_such_module")
    module = importlib.import_module("nemo_curator.stages.text.filters")
    with pytest.raises(AttributeError, match="Did you mean 'ScoreFilter'"):
        module.ScoreFiltr  # noqa: B018


def test_it_is_off_unless_asked_for() -> None:
    done = _python(
        "import sys, gristmill.pipeline, gristmill.tasks.document;"
        "assert not [name for name in sys.modules if name.startswith('gristmill.compat')];"
        "import nemo_curator"
    )
    assert "No module named 'nemo_curator'" in done.stderr


def test_the_variable_switches_it_on_with_the_import_of_gristmill() -> None:
    done = _python(
        "import gristmill, sys; print('numpy' in sys.modules); import nemo_curator.pipeline as p; print(p.Pipeline)",
        GRISTMILL_COMPAT="1",
    )
    assert done.stdout.splitlines()[0] == "False", done.stderr
    assert "gristmill.pipeline" in done.stdout


def test_it_refuses_where_the_real_package_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nemo_curator").mkdir()
    (tmp_path / "nemo_curator" / "__init__.py").write_text("real = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError, match=r"nemo_curator is installed.*force"):
        compat.install()
    assert not compat.is_installed()
    compat.install(force=True)
    try:
        assert not hasattr(importlib.import_module("nemo_curator"), "real")
    finally:
        compat.uninstall()
    assert importlib.import_module("nemo_curator").real
    del sys.modules["nemo_curator"]


def test_the_switch_travels_with_the_stages(curator: None) -> None:
    importlib.import_module("nemo_curator")

    class Uses:
        def __call__(self) -> str:
            from nemo_curator.utils.hash_utils import get_deterministic_hash  # type: ignore[import-not-found]

            return str(get_deterministic_hash(["a"]))

    hashes = importlib.import_module("nemo_curator.stages.text.io.writer.utils")
    for uses in (Uses(), lambda: str(hashes.get_deterministic_hash(["a"]))):
        code = cloudpickle.dumps(stage_pickling._Prepared(stage_pickling.before_loading, uses))
        done = _python(f"import pickle, sys; print(pickle.loads({code!r})())")
        assert done.stdout.strip() == Uses()(), done.stderr


def test_everything_is_as_before_afterwards(curator: None) -> None:
    importlib.import_module("nemo_curator")
    assert DocumentBatch.shows_pandas
    compat.uninstall()
    assert not DocumentBatch.shows_pandas
    assert not stage_pickling.before_loading
    with pytest.raises(ImportError):
        importlib.import_module("nemo_curator")
