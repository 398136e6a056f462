"""Make src/gristmill/kernels/signatures.txt: with which types kernels are called, and by which stages and filters.

Run it after a kernel was added or its arguments changed: `python -m tools.make_signatures`. Everything that a recipe
can name and that needs no file of the user's is run on documents of the shipped sample, in this process, so that the
calls can be seen. What only models and other rare paths call is taken from the probes of the hostile tests.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib
import os
import pkgutil
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.json
import pyarrow.parquet

import gristmill.kernels
import gristmill.pipeline.run
from gristmill import Pipeline
from gristmill.backends.local import LocalExecutor
from gristmill.errors import GristmillError
from gristmill.kernels.ahead import EVERYBODY, HEAD, LIST, names_in
from gristmill.kernels.compiler import all_kernels, stores
from gristmill.kernels.signatures import described
from gristmill.recipes.loader import SAMPLE_FILE
from gristmill.recipes.names import FILTER, MODIFIER, Registered
from gristmill.recipes.registry import all_registered, build_stage
from gristmill.stages.text.io.documents import DocumentReader, DocumentWriter
from tests.hostile import kernel_probes
from tools.make_stage_reference import NEEDED

DOCUMENTS = 200
GIVEN: dict[str, list[dict[str, Any]]] = {
    **{name: [settings] for name, settings in NEEDED.items()},
    "Decontamination": [{"benchmarks": str(SAMPLE_FILE), "fields": ["text"], "action": "cut"}],
    "HtmlExtractor": [{"method": "fast", "html_field": "text"}],
    "LinearClassifier": [{"model_path": "shipped:text_kind", "score_field": "scores"}],
    "LineRemover": [{"patterns": ["the"]}],
    "ExactDeduplication": [{}, {"survivor": "longest"}, {"key": "title", "key_field": "text"}],
    "LineDeduplication": [{"unit": unit} for unit in ("line", "paragraph", "sentence")],
    "SubstringDeduplication": [{}, {"unit": "byte", "min_length": 100}],
    "FuzzyDeduplication": [{}, *({"verify": how} for how in ("cluster", "signature", None)), {"char_ngrams": 20}],
    "SemanticDeduplication": [{}, {"eps": 0.2}],
    "UrlRules": [{"url_field": "text", "block": ["bücher.example"], "allow": ["example"]}],
}
"""What entries of recipes are made with, where it is not their defaults alone."""
# They hold others, by which their kernels go.
WRAPPERS = {"ScoreFilter", "Filter", "Score", "Modify"}

Call = tuple[str, str]
"""A kernel and its signature."""


def calls() -> set[Call]:
    """What was called since the last time."""
    found = set()
    for kernel in all_kernels:
        for signature in kernel.signatures:
            text = described(signature)
            if text is not None:
                found.add((stores[kernel].name, text))
        kernel._reset_overloads()
    return found


@contextlib.contextmanager
def planned() -> Iterator[set[str]]:
    """Collects the names of all stages of all plans that are run."""
    names: set[str] = set()
    run = gristmill.pipeline.run
    announced = run.announced_compilation

    def seen(events: Any, plan: Any) -> Any:
        names.update(names_in([stage for segment in plan.segments for stage in segment.stages]))
        return announced(events, plan)

    run.announced_compilation = seen
    try:
        yield names
    finally:
        run.announced_compilation = announced


def run(folder: Path, stages: list[Any], source: Path, suffix: str = "jsonl") -> tuple[set[Call], set[str]]:
    """What a pipeline called, and the names of its stages."""
    output = folder / "output"
    shutil.rmtree(output, ignore_errors=True)
    calls()
    with planned() as names:
        pipeline = Pipeline("signatures")
        for stage in (DocumentReader(str(source)), *stages, DocumentWriter(str(output), suffix)):
            pipeline.add_stage(stage)
        try:
            pipeline.run(LocalExecutor({"num_cpus": 0}), progress=False, report=False)
        except GristmillError as error:  # a model or a package that is not here; what was called until then counts
            print(f"{pipeline.stages[1].name}: {str(error)[:110]}")
    return calls(), names


def stages_of(entry: Registered) -> Iterator[Any]:
    """The stages that an entry of a recipe makes, those that need nothing that is not here."""
    for settings in GIVEN.get(entry.name, [{}]):
        if entry.kind == FILTER:
            settings = {**settings, "score_field": "score"}
        with contextlib.suppress(GristmillError):
            stage = build_stage(entry, settings, report=lambda path, message: print(entry.name, message))
            if stage is not None and not entry.name.endswith(("Reader", "Writer")):
                yield stage


def documents() -> bytes:
    """Lines of the sample, some of them three times: as they are, again, and with some words changed."""
    with gzip.open(SAMPLE_FILE) as opened:
        lines = [line for _, line in zip(range(DOCUMENTS), opened, strict=False)]
    again = [line.replace(b'"id": "', b'"id": "again ', 1) for line in lines]
    changed = [line.replace(b" of ", b" from ", 2).replace(b'"id": "', b'"id": "like ', 1) for line in lines]
    return b"".join([*lines, *again, *changed])


def users_of(runs: list[tuple[set[Call], set[str]]]) -> dict[Call, set[str]]:
    """Who needs each call, by runs of which each has its calls and the names of its stages.

    A stage is listed if every run with it made the call. So neither the stages that workflows share nor settings that
    are not the defaults have kernels compiled that a run will not use.
    """
    without = defaultdict(set)
    for found, names in runs:
        for call in set().union(*(calls for calls, _ in runs)) - found:
            without[call] |= names
    return {
        call: set().union(*(names for found, names in runs if call in found)) - without[call]
        for call in set().union(*(calls for calls, _ in runs))
    }


def signatures() -> dict[Call, set[str]]:
    """Every call that was seen, and who made it."""
    runs: list[tuple[set[Call], set[str]]] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        source = folder / "sample.jsonl"
        source.write_bytes(documents())
        pyarrow.parquet.write_table(pyarrow.json.read_json(source), folder / "sample.parquet")
        base, common = run(folder, [], source)
        base |= run(folder, [], folder / "sample.parquet", "parquet")[0]
        for entry, stage in ((one, stage) for one in all_registered() for stage in stages_of(one)):
            found, names = run(folder, [stage], source)
            runs.append((found - base, {entry.name} if entry.kind in (FILTER, MODIFIER) else names - common - WRAPPERS))
            print(f"{entry.name}: {len(found)} kernels")
    users = {call: {EVERYBODY} for call in base} | users_of(runs)
    for module in pkgutil.iter_modules(gristmill.kernels.__path__):
        importlib.import_module(f"gristmill.kernels.{module.name}")
    seen = {name for name, _ in users}
    calls()
    for number in range(8):
        for probe in kernel_probes.PROBES.values():
            probe(kernel_probes.column(number))
    for name, signature in calls():
        if name not in seen:
            users[name, signature] = set()
    return users


def sizes() -> dict[str, int]:
    """The size of each kernel's code, by which one may guess how long it takes to compile."""
    return {store.name: max(map(os.path.getsize, store.files()), default=0) for store in stores.values()}


def main() -> None:
    """Write the list."""
    users, size = signatures(), sizes()
    lines = [
        f"{name} | {types} | {' '.join(sorted(users[name, types]))}".rstrip()
        for name, types in sorted(users, key=lambda call: (-size[call[0]], call))
    ]
    LIST.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} lines")


if __name__ == "__main__":
    main()
