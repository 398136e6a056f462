"""Measure the size and plainness of the source against its goals: `make house`.

Prints one line per measure with its goal and its present value; the exit code is 1 when a goal is missed.

- **Functions, files, stack.** `gristmill run english` on three documents of the shipped sample (one is kept, two are
  dropped) with `--workers 0`, in a fresh process with the kernels already compiled. A function counts once by its file
  and qualified name when it is entered after the start of `main()`; comprehensions, lambdas and generator expressions
  count as functions of their own, class bodies and modules do not, nor what runs only because a module is imported.
  A file counts when one of its functions does. The stack counts the frames of this package alone.
- **The report** of that run has a measure of its own: the functions that are entered only below one of `report/`, and
  their files. They do not count for the run.
- **Private fields.** Places outside `tasks/` and `tracking/` that read or write a private name which `tasks/` defines
  on a task, on anything but `self`; a name that a class of the same file has too is taken for that class's.
  `_metadata` and `_stage_perf` are parameters of the public constructor.
- **Size.** Python files of the package and their lines; the files directly in `backends/` that are not an engine.
- **Metaphors.** Nouns of `METAPHORS` that are words of a class's or module's name in the rooms of `ENGINE`; those of
  them that are not everyday words also count in the names of functions, arguments, attributes and variables.
- **Name sniffing.** Places that decide by the prefix of a module path: `startswith` on a `__module__` or with a text
  that begins with the package's name, and comparisons of a `__module__` or any value with such a text. `EXCEPTED` lists
  files in which it decides nothing about a stage, with the reason.
"""

from __future__ import annotations

import ast
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "gristmill"
DOCUMENTS = ("c4:131", "dict_devil:213030", "movie_reviews:neg/cv933_24953.txt#5")
"""Ids of documents in the shipped sample: `english` keeps the first and drops the others for different reasons."""

PUBLIC_PRIVATE = frozenset({"_metadata", "_stage_perf"})
OWNERS = ("tasks", "tracking")
PACKAGE = "gristmill"
REPORT = f"report{os.sep}"
MOST_FUNCTIONS = 500
NEW_LOCALS = 2
"""The flag of code objects that are functions: class bodies and modules lack it."""

ENGINE = ("backends", "core", "execution", "ledger", "observe", "pipeline", "tasks", "tracking")
METAPHORS = {
    *("leaf", "husk", "parcel", "sealed", "receipt", "mailbox", "lane", "nursery"),
    *("farewell", "fate", "carried", "followed", "trail"),
}
EVERYDAY = {"shell", "order", "hand", "watch", "note"}
"""Metaphors as nouns of the engine, yet usual words for a sort order or a note that is taken."""

EXCEPTED = {
    "ledger/record/plan_record.py": "reads records of version 0.1, which name classes by where they were",
}


@dataclass(frozen=True, slots=True)
class Measure:
    """One line of the table; `places` says where the value comes from, if it can be said in short."""

    name: str
    goal: int
    value: int
    places: tuple[str, ...] = ()

    @property
    def is_met(self) -> bool:
        """Whether the value is at most the goal."""
        return self.value <= self.goal


def static_measures() -> list[Measure]:
    """What is read off the source without running it."""
    private, sniffing = private_uses(), name_sniffing()
    nouns, contract = metaphors(), contract_files()
    return [
        Measure("uses of a task's private fields outside tasks/ and tracking/", 0, len(private), tuple(private)),
        Measure("source files", 638, len(modules())),
        Measure("source lines", 108_700, sum(len(_text(path).splitlines()) for path in modules())),
        Measure("files in backends/ without the engines", 5, len(contract), tuple(contract)),
        Measure("metaphors in the engine", 5, len(nouns), tuple(nouns)),
        Measure("decisions by the prefix of a module path", 0, len(sniffing), tuple(sniffing)),
    ]


@cache
def _entered() -> dict[str, list[str]]:
    """The functions that a small run enters, and its deepest stack, as `file:name`."""
    with tempfile.TemporaryDirectory() as place:
        # By way of a shell: a process takes its peak of memory over from a large parent, as pytest is, and a run whose
        # own peak cannot be seen for that measures itself in another way.
        command = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, __file__, "--count", place]
        environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
        counted: dict[str, list[str]] = {}
        # The first run compiles the kernels that are not compiled yet. On a busy machine a run takes long enough to
        # look at itself once, which a small run does not: the shortest of three counts.
        for number in ("1", "2", "3", "4"):
            done = subprocess.run([*command, number], check=False, env=environment, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"The run that is counted failed:\n{done.stderr}")
            found = json.loads((Path(place) / "counted.json").read_text(encoding="utf-8"))
            if number != "1" and (not counted or len(found["functions"]) < len(counted["functions"])):
                counted = found
            if counted and len(counted["functions"]) <= MOST_FUNCTIONS:
                break
    return counted


def functions_entered() -> list[str]:
    """The functions that a small run enters, as `file:name`."""
    return _entered()["functions"]


def run_measures() -> list[Measure]:
    """What a small run enters."""
    functions, stack, shown = _entered()["functions"], _entered()["stack"], _entered()["report"]
    files, pages = (sorted({name.split(":")[0] for name in names}) for names in (functions, shown))
    return [
        Measure("functions entered by a small run", MOST_FUNCTIONS, len(functions), tuple(functions)),
        Measure("files entered by a small run", 75, len(files), tuple(files)),
        Measure("deepest stack of a small run", 20, len(stack), tuple(stack)),
        Measure("functions entered by the report of a small run", 100, len(shown), tuple(shown)),
        Measure("files entered by the report of a small run", 12, len(pages), tuple(pages)),
    ]


# --- what is read off the source ---


@cache
def modules() -> tuple[Path, ...]:
    """Every Python file of the package."""
    return tuple(sorted(SOURCE.rglob("*.py")))


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(_text(path), str(path))


def _at(path: Path, line: int, what: str) -> str:
    return f"{path.relative_to(SOURCE).as_posix()}:{line} {what}"


def contract_files() -> list[str]:
    """The files of `backends/` that are not an engine's."""
    return sorted(path.name for path in (SOURCE / "backends").glob("*.py") if not is_engine(path))


def is_engine(path: Path) -> bool:
    """Whether a file holds an executor made from another class, as a small engine does that needs no folder."""
    kinds = [node for node in _tree(path).body if isinstance(node, ast.ClassDef)]
    return any(ast.unparse(base).endswith("Executor") for kind in kinds for base in kind.bases)


def private_names() -> set[str]:
    """The private names that classes of `tasks/` define on tasks."""
    kinds, found = {"Task"}, set[str]()
    classes = [
        node for path in (SOURCE / "tasks").rglob("*.py") for node in _tree(path).body if isinstance(node, ast.ClassDef)
    ]
    for _ in classes:  # a base may stand behind its subclass
        kinds |= {one.name for one in classes if any(ast.unparse(base).split("[")[0] in kinds for base in one.bases)}
    for one in classes:
        if one.name in kinds:
            found |= {name for name in _defined(one) if _is_private(name)}
    return found - PUBLIC_PRIVATE


def _defined(kind: ast.ClassDef) -> Iterator[str]:
    """Names of methods, of fields in the class's body, and of attributes that are set in a method."""
    for node in ast.walk(kind):
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
    for node in kind.body:
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def _own_fields(kind: ast.ClassDef) -> Iterator[str]:
    for node in ast.walk(kind):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_uses() -> list[str]:
    """Where a task's private names are used outside the rooms that own them."""
    names, found = private_names(), []
    for path in modules():
        if path.relative_to(SOURCE).parts[0] in OWNERS:
            continue
        own = {name for kind in ast.walk(_tree(path)) if isinstance(kind, ast.ClassDef) for name in _own_fields(kind)}
        nodes = (
            node for node in ast.walk(_tree(path)) if isinstance(node, ast.expr) and _used_name(node) in names - own
        )
        found += [_at(path, node.lineno, ast.unparse(node)) for node in nodes]
    return found


def _used_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        return "" if own else node.attr
    if isinstance(node, ast.Call) and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
        by_text = ast.unparse(node.func) in ("getattr", "setattr", "hasattr", "delattr")
        return str(node.args[1].value) if by_text else ""
    return ""


def metaphors() -> list[str]:
    """The nouns that are still used, each with the first place."""
    found: dict[str, str] = {}
    for path in modules():
        if path.relative_to(SOURCE).parts[0] not in ENGINE:
            continue
        for name, line, is_type in _identifiers(path):
            for word in {singular for part in _words(name) for singular in (part, part.removesuffix("s"))}:
                if word in METAPHORS or (word in EVERYDAY and is_type):
                    found.setdefault(word, _at(path, line, name))
    return [f"{word}: {place}" for word, place in sorted(found.items())]


def _identifiers(path: Path) -> Iterator[tuple[str, int, bool]]:
    """Every name that the file defines, its line, and whether it is a class's or the module's."""
    yield path.stem, 1, True
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.ClassDef):
            yield node.name, node.lineno, True
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno, False
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno, False
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno, False
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno, False


def _words(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def name_sniffing() -> list[str]:
    """Where something is decided by the prefix of a module path."""
    found = []
    for path in modules():
        if path.relative_to(SOURCE).as_posix() in EXCEPTED:
            continue
        named = _paths_by_name(_tree(path))
        nodes = (node for node in ast.walk(_tree(path)) if isinstance(node, ast.expr) and _sniffs(node, named))
        found += [_at(path, node.lineno, ast.unparse(node)) for node in nodes]
    return found


def _paths_by_name(tree: ast.Module) -> set[str]:
    """Variables of the module that hold module paths of this package, as a text or several."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if not isinstance(node.value, ast.Dict) and _holds_path(node.value, set()):
                found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def _holds_path(node: ast.AST, named: set[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in named
    if isinstance(node, ast.Tuple | ast.Set | ast.List):
        return any(_holds_path(one, named) for one in node.elts)
    if isinstance(node, ast.JoinedStr):
        return bool(node.values) and _holds_path(node.values[0], named)
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(f"{PACKAGE}.")


def _reads_module(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Attribute) and one.attr == "__module__" for one in ast.walk(node))


def _sniffs(node: ast.AST, named: set[str]) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "startswith":
        return _reads_module(node.func.value) or any(_holds_path(one, named) for one in node.args)
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        ours = any(isinstance(one, ast.Constant) and one.value == PACKAGE for one in sides)
        return any(_holds_path(one, named) for one in sides) or (ours and any(_reads_module(one) for one in sides))
    return False


# --- what a run enters ---


class Count:
    """A profile function that remembers the functions entered and the deepest stack."""

    def __init__(self) -> None:
        self.functions: set[str] = set()
        self.report: set[str] = set()
        self.stack: list[str] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Called by the interpreter for every call and return."""
        name = self._name(frame) if event == "call" else ""
        if not name:
            return
        stack, imports = [], False
        at: FrameType | None = frame
        while at is not None:
            code = at.f_code
            imports = imports or (code.co_name == "<module>" and code.co_filename.startswith(str(SOURCE)))
            stack.append(self._name(at))
            at = at.f_back
        if imports:
            return
        own = [one for one in stack if one]
        if any(one.startswith(REPORT) for one in own):
            self.report.add(name)
            return
        self.functions.add(name)
        if len(own) > len(self.stack):
            self.stack = own

    @staticmethod
    def _name(frame: FrameType) -> str:
        code = frame.f_code
        if not (code.co_flags & NEW_LOCALS and code.co_filename.startswith(f"{SOURCE}{os.sep}")):
            return ""
        return f"{code.co_filename[len(str(SOURCE)) + 1 :]}:{code.co_qualname}"


def count(place: Path, number: str) -> None:
    """Run the recipe in this process and write what was entered into `place`."""
    sample = SOURCE / "recipes" / "sample" / "sample.jsonl.gz"
    source = place / "documents.jsonl"
    with gzip.open(sample, "rt", encoding="utf-8", newline="\n") as lines:
        chosen = {record["id"]: line for line in lines if (record := json.loads(line))["id"] in DOCUMENTS}
    source.write_text("".join(chosen[name] for name in DOCUMENTS), encoding="utf-8")

    from gristmill.cli import entry

    output = place / f"output-{number}"
    sys.argv = ["gristmill", "run", "english", str(source), str(output), "--workers", "0"]
    entry.leave = sys.exit  # this process goes on
    counted = Count()
    threading.setprofile(counted)
    sys.setprofile(counted)
    try:
        entry.main()
    except SystemExit as ended:
        if ended.code:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    kept = [json.loads(line)["id"] for path in output.glob("*.jsonl") for line in path.open(encoding="utf-8")]
    if kept != [DOCUMENTS[0]]:
        raise RuntimeError(f"Expected to keep {DOCUMENTS[0]!r} alone, kept {kept}: choose other documents.")
    shown = sorted(counted.report - counted.functions)
    found = {"functions": sorted(counted.functions), "stack": counted.stack, "report": shown}
    (place / "counted.json").write_text(json.dumps(found), encoding="utf-8")


def report() -> int:
    """Print the table, and with `--places` where each missed goal is missed; 1 when there is one."""
    measures = run_measures() + static_measures()
    print(f"{'measure':64} {'goal':>8} {'now':>8}")
    for one in measures:
        print(f"{one.name:64} {f'<= {one.goal}':>8} {one.value:>8}  {'' if one.is_met else 'missed'}")
    if "--places" in sys.argv:
        for one in measures:
            if not one.is_met and one.places:
                print(f"\n{one.name}:", *one.places, sep="\n  ")
    return int(not all(one.is_met for one in measures))


if __name__ == "__main__":
    if "--count" in sys.argv:
        count(Path(sys.argv[-2]), sys.argv[-1])
    else:
        sys.exit(report())
