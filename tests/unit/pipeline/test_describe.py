"""What a plan is described by: every parameter and all code that decides what comes out, the same in every process."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import itertools
import json
import linecache
import re
import sys
import textwrap
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from gristmill.ledger.record.plan_record import compare
from gristmill.pipeline.describe import describe_plan, describe_stage
from gristmill.pipeline.planner import expand
from gristmill.pipeline.user_code import describe_value
from gristmill.recipes.registry import all_registered, parameters_of
from gristmill.stages.base import ProcessingStage
from gristmill.stages.text.filters import DocumentFilter, ScoreFilter, WordCountFilter
from gristmill.stages.text.modifiers import Modify
from gristmill.tasks import DocumentBatch


class Holder(ProcessingStage[DocumentBatch, DocumentBatch]):
    """A stage of a user that keeps a value under some name."""

    name = "holder"

    def __init__(self, value: Any, under: str = "value") -> None:
        self._model: Any = None
        self._memory: dict[str, int] = {}
        setattr(self, under, value)

    def setup(self, worker_metadata: Any = None) -> None:
        self._model = object()

    def process(self, task: DocumentBatch) -> DocumentBatch:
        return task


class Cut(DocumentFilter):
    """A filter in the style of the field: all that it is given is private."""

    def __init__(self, cut: float) -> None:
        super().__init__()
        self._cut = cut

    def score_document(self, text: str) -> float:
        return float(len(text))

    def keep_document(self, score: float) -> bool:
        return score >= self._cut


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass(slots=True)
class Settings:
    least: int


class Node:
    def __init__(self, value: int) -> None:
        self.value = value
        self.next: Node | None = self


def many_kinds() -> list[Any]:
    """Stages whose description must be the same in every process."""
    values = [{"a", "b", "c"}, Node(1), Settings(1), Cut(1).keep_document, re.compile("a"), object(), Colour.RED]
    in_set = Modify(lambda text: text if text in {"x", "y", "z"} else "")
    return [Holder(values), ScoreFilter(Cut(1)), in_set]


# --- values ---


@pytest.mark.parametrize("under", ["value", "_value", "limit", "path", "mode", "schema", "hints", "pad_token"])
def test_a_value_counts_under_any_name(under: str) -> None:
    assert describe_stage(Holder(1, under)) == describe_stage(Holder(1, under))
    assert describe_stage(Holder(1, under)) != describe_stage(Holder(2, under))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (re.compile("a"), re.compile("b")),
        (re.compile("a"), re.compile("a", re.IGNORECASE)),
        (Colour.RED, Colour.BLUE),
        (Settings(1), Settings(2)),
        (Node(1), Node(2)),
        (Path("a"), Path("b")),
        (b"a", b"b"),
        (1j, 2j),
        (np.float32(1), np.float32(2)),
        (np.array([1, 2]), np.array([1, 3])),
        (np.array(["a", None], object), np.array(["b", None], object)),
        (pd.DataFrame({"a": [1]}), pd.DataFrame({"a": [2]})),
        ({"a", "b"}, {"a", "c"}),
        ([*range(5000)], [*range(4999), 0]),
        (functools.partial(max, 1), functools.partial(max, 2)),
        (Cut(1).keep_document, Cut(2).keep_document),
    ],
)
def test_values_of_every_kind_are_told_apart(one: Any, other: Any) -> None:
    for under in ("value", "_value"):
        described = describe_stage(Holder(one, under))
        assert described == describe_stage(Holder(one, under))
        assert described != describe_stage(Holder(other, under))
        assert len(json.dumps(described)) < 5000


def test_what_is_kept_at_work_and_secrets_do_not_count() -> None:
    stage = Holder(1)
    before = describe_stage(stage)
    stage.setup()
    assert describe_stage(stage) == before
    described = json.dumps(describe_stage(Holder("swordfish", "_api_key")))
    assert "swordfish" not in described
    assert describe_stage(Holder("a", "hf_token")) == describe_stage(Holder("b", "hf_token"))


def test_private_parameters_of_a_filter_are_named_when_they_change() -> None:
    old, new = (describe_plan([ScoreFilter(Cut(cut))]) for cut in (1.0, 2.0))
    assert compare(old, new) == ["stage 'Cut': parameter filter_obj._cut changed from 1.0 to 2.0"]


# Which files are read, as the last two say of HuggingFaceReader, is seen by the partitions.
_DO_NOT_COUNT = {"path", "file_paths", "cache_dir", "hf_token", "limit", "config_name", "split", "url_limit"}
# How files arrive changes nothing in them.
_DO_NOT_COUNT |= {"download_dir", "keep_downloads", "max_bytes_per_second", "use_aws_to_download", "verbose"}
_DO_NOT_COUNT |= {"extractor_max_calls_per_worker"}
# How a model is asked, and what may be spent, changes no answer.
_DO_NOT_COUNT |= {"api_key_env", "max_concurrent_requests", "max_retries", "base_delay", "timeout_s"}
_DO_NOT_COUNT |= {"budget_tokens", "budget_cost", "input_price", "output_price"}
# Only its post-processing uses them.
_DO_NOT_COUNT |= {f"DiverseQAStage.{name}" for name in ("tokenizer", "prefix", "max_num_pairs")}
_NEEDED = {"GeneralCommentToCodeFilter": {"language": "text/x-python"}, "LineRemover": {"patterns": ["a"]}}
_NEEDED |= {"SubstringFilter": {"substring": "a", "position": "any"}, "FastTextQualityFilter": {"model_path": "m"}}
_NEEDED |= {"TokenCountFilter": {"hf_model_name": "m"}, "TokenizerFertilityFilter": {"path_to_tokenizer": "t.model"}}
# A seed counts where there is a sample, and looking for files of a format needs files.
_NEEDED |= {name: {"file_paths": "a", "sample": 0.5} for name in ("JsonlReader", "ParquetReader")}
_NEEDED |= {
    f"{name}Reader": {"file_paths": "a", "sample": 0.5}
    for name in ["Archive", "Arrow", "Csv", "Html", "Mail", "Pdf", "Sql", "StackExchange", "Text", "Warc", "Wikipedia"]
}
_NEEDED |= {
    "CommonCrawlDownloadExtractStage": {"start_snapshot": "2024-10", "end_snapshot": "2024-10", "download_dir": "a"}
}
_NEEDED |= {"HuggingFaceReader": {"path": "a", "sample": 0.5}}
_NEEDED |= {"MegatronTokenizerWriter": {"path": "a", "model_identifier": "m"}}
_NEEDED |= {"ReservoirSampler": {"count": 5}, "StratifiedSampler": {"field": "kind", "count": 5}}
_NEEDED |= {
    name: {"model_name": "m", "base_url": "http://a/v1"}
    for name in (
        "DistillStage",
        "DiverseQAStage",
        "ExtractKnowledgeStage",
        "KnowledgeListStage",
        "WikipediaParaphrasingStage",
    )
}
_NEEDED |= {"DocumentReader": {"file_paths": "a", "sample": 0.5, "filetype": "jsonl"}}


def _others(name: str, value: Any) -> list[Any]:
    if name == "lang":
        return ["zh"]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1, value / 2 + 0.01]
    return ["b", 3, 0.3, ["b"], True]


def test_every_parameter_of_what_we_ship_counts() -> None:
    """Each stage, filter and modifier once for every parameter with another value, where one is accepted."""

    def described(cls: type[Any], **given: Any) -> Any:
        made = cls(**given)
        stages = expand([made]) if isinstance(made, ProcessingStage) else None
        return describe_value(made) if stages is None else [describe_stage(stage) for stage in stages]

    looked_at, unseen = 0, []
    for entry in all_registered():
        cls = entry.load()
        parameters = parameters_of(cls)
        plain = {name: "a" for name, one in parameters.items() if one.default is inspect.Parameter.empty}
        plain = _NEEDED.get(entry.name, plain)
        before = described(cls, **plain)
        for name, parameter in parameters.items():
            for other in _others(name, parameter.default):
                try:
                    after = described(cls, **{**plain, name: other})
                except Exception:  # another type is wanted
                    continue
                looked_at += 1
                counts = _DO_NOT_COUNT.isdisjoint({name, f"{entry.name}.{name}"})
                if after == before and counts and other != parameter.default:
                    unseen.append(f"{entry.name}({name}={other!r})")
                break
    assert looked_at > 200
    assert not unseen, "\n".join(unseen)


# --- code ---


_numbers = itertools.count()


def _module(name: str, source: str, *, has_source: bool = True) -> types.ModuleType:
    """A module whose source is known, as that of a cell in a notebook is, or not, as that of code run by `exec`."""
    made = types.ModuleType(name)
    source = textwrap.dedent(source)
    file = f"<{name} {next(_numbers)}>" if has_source else "<string>"
    if has_source:
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), made.__dict__)
    return made


def _names(function: Any) -> dict[str, str]:
    described: dict[str, str] = describe_value(function)["code"]
    return described


_SCRIPT = """
    import re
    import helpers
    from helpers import clean
    {before}
    def mine(text):
        return {expression}
"""


@pytest.mark.parametrize(
    ("expression", "before", "after"),
    [
        ("text + 'a'", "", "text + 'b'"),
        ("text if text in words else ''", "words = {'a'}", "words = {'b'}"),
        ("found.sub('', text)", "found = re.compile('a')", "found = re.compile('b')"),
        ("text * number", "number = 1", "number = 2"),
        ("sorted(text, key=lambda letter: number)", "number = 1", "number = 2"),
        ("outer(text)", "def outer(t): return inner(t)\n    def inner(t): return t + 'a'",
         "def outer(t): return inner(t)\n    def inner(t): return t + 'b'"),
        ("tool.run(text)", "class Tool:\n        def run(self, t): return t + 'a'\n    tool = Tool()",
         "class Tool:\n        def run(self, t): return t + 'b'\n    tool = Tool()"),
        ("table['x'](text)", "def one(t): return t + 'a'\n    table = {'x': one}",
         "def one(t): return t + 'b'\n    table = {'x': one}"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("has_source", [True, False])
def test_what_code_uses_counts(
    monkeypatch: pytest.MonkeyPatch, expression: str, before: str, after: str, has_source: bool
) -> None:
    monkeypatch.setitem(sys.modules, "helpers", _module("helpers", "def clean(text): return text"))
    if not before:  # the expression itself changes
        sources = [_SCRIPT.format(before="", expression=one) for one in (expression, after)]
    else:
        sources = [_SCRIPT.format(before=one, expression=expression) for one in (before, after)]
    old, same, new = (
        _names(_module("script", source, has_source=has_source).mine) for source in (sources[0], sources[0], sources[1])
    )
    assert old == same
    assert old != new


@pytest.mark.parametrize("expression", ["clean(text)", "helpers.clean(text)", "helpers.LEAST * text"])
def test_helpers_of_other_modules_count(monkeypatch: pytest.MonkeyPatch, expression: str) -> None:
    found = []
    for version in ("a", "b"):
        helpers = _module("helpers", f"LEAST = ord('{version}')\ndef clean(text): return text + '{version}'")
        monkeypatch.setitem(sys.modules, "helpers", helpers)
        found.append(_names(_module("script", _SCRIPT.format(before="", expression=expression)).mine))
    old, new = found
    changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    assert changed == ["helpers.LEAST" if "LEAST" in expression else "helpers.clean"]


@pytest.mark.parametrize(
    ("statement", "changes"),
    [
        ("import kit", ["kit/__init__.py"]),
        ("import kit.tools.cut as cut", ["kit/__init__.py", "kit/tools/cut.py", "kit/least.py"]),
        ("from kit.tools import cut", ["kit/tools/cut.py", "kit/least.py"]),
        ("from kit.tools.cut import short", ["kit/least.py"]),
    ],
)
def test_local_modules_count_that_are_imported_when_code_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str, changes: list[str]
) -> None:
    (tmp_path / "kit" / "tools").mkdir(parents=True)
    files = {
        "kit/__init__.py": "raise RuntimeError('describing code must not run it')\n",
        "kit/least.py": "LEAST = 1\n",
        "kit/tools/cut.py": "def short(text):\n    from ..least import LEAST\n    return text[LEAST:]\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    function = _module("script", f"def mine(text):\n        {statement}\n        return text\n").mine
    before = _names(function)
    assert _names(function) == before
    for name in changes:
        (tmp_path / name).write_text("N = 2\n" + files[name], encoding="utf-8")
        after = _names(function)
        label = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        assert [key for key in after if after[key] != before[key]] == [f"module {label}"]
        before = after


def test_installed_and_missing_modules_are_not_read_when_code_imports_them() -> None:
    source = (
        "def mine(text):\n    import json, click, numpy.linalg, gristmill.errors, nowhere.at.all\n    return text\n"
    )
    assert [name for name in _names(_module("script", source).mine) if name.startswith("module")] == []


def test_the_way_code_is_written_does_not_count() -> None:
    one = _module("m", "def f(t):\n  return [t, 'a']\n")
    other = _module("m", '# A list.\n\ndef f(t: str) -> list[str]:\n    return [  # of two\n        t, "a"]\n')
    assert _names(one.f) == _names(other.f)


def test_another_version_of_python_does_not_count() -> None:
    """The digests of a function that uses what versions of Python have written differently."""
    module = _module(
        "m",
        """
        LEAST = 3
        class Cut:
            def run(self, text, *rest, least=LEAST, **more):
                async def inner(x: int = 1): return [y for y in x if y] or {}
                def generic(): return f"{text!r:>{least}} {text['a']}" + "[]"
                with open(text) as file: return file, inner, generic, (lambda: 1), -1, text[1:], LEAST
    """,
    )
    assert _names(module.Cut) == {
        "m.Cut": "89196ed8bed0080f",
        "m.Cut.run": "a4a70139d23b953e",
        "m.LEAST": "4e07408562bedb8b",
    }


def test_code_that_was_edited_since_it_was_loaded_counts_by_its_bytecode() -> None:
    module = _module("m", "def f(t):\n  return t + 'a'\n")
    linecache.cache[module.f.__code__.co_filename] = (0, None, ["\n", "\n", "def f(t):\n", "  return 1\n"], "m")
    assert _names(module.f) == _names(_module("m", "def f(t):\n  return t + 'a'\n", has_source=False).f)


def test_what_does_nothing_does_not_count() -> None:
    one = _module("m", "text = 1\nseen = 0\ndef f(t):\n  'Says a.'\n  global seen\n  seen += 1\n  return t.text\n")
    other = _module("m", "text = 2\nseen = 5\ndef f(t):\n  'Says b.'\n  global seen\n  seen += 1\n  return t.text\n")
    assert _names(one.f) == _names(other.f)


def test_closures_count_and_circles_end() -> None:
    def made(least: int) -> Callable[[str], str]:
        def again(text: str) -> str:
            return text if len(text) > least else table["again"](text)

        table = {"again": again, "node": Node(1)}
        return again

    assert _names(made(1)) == _names(made(1))
    assert _names(made(1)) != _names(made(2))


def test_many_functions_that_know_each_other_take_no_time() -> None:
    source = "\n".join(f"def f{n}(t): return table[{n}](t)" for n in range(60))
    module = _module("m", f"{source}\ntable = [{', '.join(f'f{n}' for n in range(60))}]")
    assert len(_names(module.f0)) == 61


def test_lambdas_of_one_line_are_told_apart() -> None:
    one = describe_stage(Modify([lambda t: t.lower(), lambda t: t.strip()]))
    other = describe_stage(Modify([lambda t: t.strip(), lambda t: t.lower()]))
    assert one != other


def test_our_own_code_counts_by_the_version_alone() -> None:
    described = describe_plan([ScoreFilter(WordCountFilter(lang="zh"))])
    assert "code" not in described["stages"][0]
    assert described["stages"][0]["parameters"]["filter_obj"][0]["code"] is None
    assert described["version"]
