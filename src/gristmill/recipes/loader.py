"""Recipes: found by name or path, read from YAML, fully checked before anything runs, turned into pipelines."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from gristmill.errors import UnknownNameError, did_you_mean
from gristmill.ledger.record.secrets import SECRET
from gristmill.recipes.yaml_source import (
    LARGEST_BYTES,
    Path,
    Problems,
    Report,
    Source,
    dump_yaml,
    parse_yaml,
    recipe_error,
)
from gristmill.storage.files import without_passwords

if TYPE_CHECKING:
    from gristmill.pipeline import Pipeline
    from gristmill.pipeline.workflow import WorkflowBase

KEYS = ("name", "description", "variables", "stages", "executor")
EXECUTOR_KEYS = ("name", "config")

SHIPPED = FilePath(__file__).parent / "shipped"
SAMPLE_FILE = SHIPPED.parent / "sample" / "sample.jsonl.gz"
"""The shipped sample of real documents."""

MOST_STAGES = 1000
"""More than any real recipe has: such a file is something else, or hostile."""

_REFERENCE = re.compile(r"\$\$\{|\$\{([^{}]*)\}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class StageEntry:
    """One item under `stages:`, its variables replaced."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A pipeline as data.

    Attributes:
        name: Name of the pipeline.
        description: What it is for.
        stages: Its stages in order.
        executor: The executor it requests, if any.
        executor_config: Settings for that executor.
        variables: The value of each variable.
        workflow: The deduplication workflow that the recipe runs instead of stages.
        ray_client: Settings of the Ray cluster to start for executors on Ray, if any.
        source: The text it came from; only used in messages.
    """

    name: str
    stages: tuple[StageEntry, ...] = ()
    description: str | None = None
    executor: str | None = None
    executor_config: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)
    workflow: StageEntry | None = None
    ray_client: Mapping[str, Any] | None = None
    source: Source = field(default_factory=lambda: Source(None, "recipe"), compare=False, repr=False)

    def pipeline(self, *, allow_code: Collection[str] = ()) -> Pipeline:
        """The pipeline, ready to run.

        Args:
            allow_code: Modules of user code whose stages the recipe may use (`mymodule:MyStage`); they are imported.

        Raises:
            RecipeError: A name or a parameter is wrong (lists everything that is), or the recipe is a workflow.
        """
        if self.workflow is not None:
            raise recipe_error(
                f"{self.source.origin}: the recipe runs a workflow ({self.workflow.name}), not a pipeline of stages; "
                "only 'gristmill run' and 'gristmill plan' accept it."
            )
        from gristmill.pipeline.pipeline import Pipeline
        from gristmill.recipes.names import NAMES
        from gristmill.recipes.registry import build_stage, registered

        problems = Problems(self.source)
        stages = []
        for place, entry in enumerate(self.stages):
            problems.inside = (("stages", place, entry.name), f"{entry.name}: ")
            try:
                found = NAMES.get(entry.name) or registered(entry.name, allow_code=allow_code)
                stage = build_stage(found, entry.parameters, report=problems.add)
            except UnknownNameError as error:
                problems.add((), error.message)
                continue
            if stage is not None:
                stages.append(stage)
        problems.raise_if_any()
        # Only those that explain a plan: no secrets, and no input or output paths.
        variables = {
            name: value
            for name, value in sorted(self.variables.items())
            if name not in ("input_path", "output_path") and not SECRET.search(name)
        }
        return Pipeline(self.name, self.description, stages, config={"variables": variables})

    def build_workflow(self) -> WorkflowBase:
        """The workflow, ready to run.

        Raises:
            RecipeError: A parameter is wrong (lists everything that is), or the recipe has stages instead.
        """
        from gristmill.recipes.registry import build_workflow

        if self.workflow is None:
            raise recipe_error(f"{self.source.origin}: the recipe has no workflow; call pipeline().")
        problems = Problems(self.source, (("workflow", 0), f"{self.workflow.name}: "))
        workflow = build_workflow(self.workflow.name, self.workflow.parameters, report=problems.add)
        problems.raise_if_any()
        assert workflow is not None
        return workflow

    def cluster(self, executor: str) -> AbstractContextManager[Any]:
        """A context with the Ray cluster that the recipe requests; does nothing for the local executor.

        Raises:
            RecipeError: A setting of the cluster is wrong; lists everything that is.
        """
        if self.ray_client is None or executor == "local":
            return nullcontext()
        from gristmill.core.client import RayClient
        from gristmill.recipes.registry import check_parameters, parameters_of

        found: list[tuple[Path, str]] = []
        accepted = check_parameters(self.ray_client, parameters_of(RayClient), found)
        problems = Problems(self.source, (("ray_client",), "ray_client: "))
        for path, message in found:
            problems.add(path, message)
        problems.raise_if_any()
        return RayClient(**accepted)

    def to_yaml(self, *, secrets: bool = True) -> str:
        """The recipe as text that `parse_recipe` reads; variables are replaced by their values.

        Args:
            secrets: Write the values of parameters and options that hold a token or a password, which must not be
                stored beside an output.
        """
        whole: dict[str, Any] = {"name": self.name}
        if self.description:
            whole["description"] = self.description
        whole["stages"] = []
        for entry in self.stages:
            parameters = _escaped(entry.parameters, secrets)
            whole["stages"].append({entry.name: parameters} if parameters else entry.name)
        if self.executor:
            whole["executor"] = {"name": self.executor, "config": _escaped(self.executor_config, secrets)}
        return dump_yaml(whole)


def find_recipe(name_or_path: str) -> FilePath:
    """The file that `name_or_path` means: a path if it looks like one or exists, else a shipped recipe.

    In the names of these, `-` is the same as `_`.

    Raises:
        RecipeError: There is neither such a file nor such a name.
    """
    path, shipped = FilePath(name_or_path), SHIPPED / f"{name_or_path.replace('-', '_')}.yaml"
    if path.is_file():
        return path
    if shipped.parent == SHIPPED and shipped.is_file():
        return shipped
    names = sorted(file.stem for file in SHIPPED.glob("*.yaml"))
    beside = {file.stem: str(file) for file in path.parent.glob("*.y*ml") if file.is_file()} if path.suffix else {}
    near = difflib.get_close_matches(path.stem, beside, n=1)
    hint = f" Did you mean {beside[near[0]]!r}?" if near else did_you_mean(name_or_path, names)
    raise recipe_error(
        f"There is no recipe {name_or_path!r}: no such file, and the shipped recipes are {', '.join(names)}.{hint}"
    )


def load_recipe(
    path: str | FilePath, *, variables: Mapping[str, Any] | None = None, text_field: str | None = None
) -> Recipe:
    """The recipe in a file.

    Args:
        path: The YAML file, or as text also the name of a shipped recipe.
        variables: Values that take precedence over the recipe's defaults.
        text_field: The value of the variable `text_field`, if the recipe has one.

    Raises:
        RecipeError: The file is missing or is not a recipe; lists everything that is wrong.
    """
    path = find_recipe(path) if isinstance(path, str) else path
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_BYTES + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise recipe_error(f"Cannot read the recipe {str(path)!r}: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise recipe_error(
            f"The recipe {str(path)!r} is not UTF-8 text: {error.reason} at byte {error.start}."
        ) from error
    if len(data) > LARGEST_BYTES:
        raise recipe_error(f"The recipe {str(path)!r} is larger than 4 MB. Check that it is the right file.")
    return parse_recipe(text, origin=str(path), variables=variables, text_field=text_field)


def parse_recipe(
    text: str,
    *,
    origin: str = "recipe",
    variables: Mapping[str, Any] | None = None,
    text_field: str | None = None,
) -> Recipe:
    r"""The recipe in a text.

    Args:
        text: YAML with `name`, `stages` and, if wanted, `description`, `variables` and `executor`; or in the form of
            NeMo Curator's configuration files, with `_target_`.
        origin: Name of the text in error messages.
        variables: Values that take precedence over the recipe's defaults.
        text_field: The value of the variable `text_field`, where the recipe has one.

    Raises:
        RecipeError: The text is not a recipe; lists everything that is wrong.

    Example:
        >>> recipe = parse_recipe(
        ...     "name: copy\nstages:\n- JsonlReader: {file_paths: '${input_path}'}", variables={"input_path": "docs/"}
        ... )
        >>> recipe.stages[0].parameters
        {'file_paths': 'docs/'}
    """
    source = parse_yaml(text, origin=origin)
    whole = source.value
    if not isinstance(whole, dict):
        raise recipe_error(f"{source.where(())}: a recipe is a mapping with 'name:' and 'stages:'.")
    listed = whole.get("stages")
    if "workflow" in whole or (
        isinstance(listed, list) and any("_target_" in item for item in listed if isinstance(item, dict))
    ):
        return _configuration(source, variables or {}, text_field)
    problems = Problems(source)
    for key in whole:
        if key not in KEYS:
            problems.add((key,), f"unknown key {key!r}.{did_you_mean(key, KEYS)} A recipe has: {', '.join(KEYS)}.")
    body = dict(whole)
    defaults = body.pop("variables", None) or {}
    used = used_variables(body)
    if text_field is not None and "text_field" in used:
        variables = {"text_field": text_field, **(variables or {})}
    known = _variables(defaults, variables or {}, used, problems)
    plain = substitute(body, known, report=problems.add, spare=known.keys() - used)
    for key in ("name", "description"):
        if not isinstance(plain.get(key), str | None):
            problems.add((key,), f"{key!r} must be text, found {plain[key]!r}.")
    stages = _stages(plain.get("stages"), problems)
    executor, config = _executor(plain.get("executor"), problems)
    problems.raise_if_any()
    name = plain.get("name") or FilePath(origin).stem
    return Recipe(name, stages, plain.get("description"), executor, config, known, source=source)


def _configuration(source: Source, variables: Mapping[str, Any], text_field: str | None) -> Recipe:
    """The recipe in a configuration file of NeMo Curator."""
    from gristmill.recipes.target_form import read_targets

    try:
        found = read_targets(source, variables, text_field=text_field)
    except RecursionError as error:
        raise recipe_error(f"{source.origin}: this is nested too deeply.") from error
    return Recipe(
        FilePath(source.origin).stem,
        tuple(StageEntry(*entry) for entry in found.stages),
        executor=found.executor,
        executor_config=found.executor_config,
        variables=found.variables,
        workflow=None if found.workflow is None else StageEntry(*found.workflow),
        ray_client=found.ray_client,
        source=Source(source.value, source.origin, {**source.lines, **found.lines}),
    )


def _variables(defaults: Any, given: Mapping[str, Any], used: set[str], problems: Problems) -> dict[str, Any]:
    """The value of each variable; `used` are the names that the recipe uses."""
    if not isinstance(defaults, dict):
        problems.add(("variables",), "'variables' must be a mapping of names to defaults.")
        defaults = {}
    for name in defaults:
        if not _VARIABLE.fullmatch(name):
            problems.add(
                ("variables", name), f"{name!r} is not a valid variable name: use letters, digits and underscores."
            )
    for name in used_variables(defaults):
        problems.add(("variables",), f"a default cannot use another variable (${{{name}}}).")
    choice = sorted(used.union(defaults))
    for name in given:
        if name not in choice:
            has = f"It has: {', '.join(choice)}." if choice else "It has no variables."
            problems.add((), f"there is no variable {name!r} in this recipe.{did_you_mean(name, choice)} {has}")
    return {**defaults, **given}


def _stages(items: Any, problems: Problems) -> tuple[StageEntry, ...]:
    if not isinstance(items, list) or not items:
        problems.add(("stages",), "'stages' must be a list with at least one '- StageName: {parameters}'.")
        return ()
    if len(items) > MOST_STAGES:
        problems.add(("stages",), f"'stages' has {len(items):,} entries; {MOST_STAGES:,} are the most.")
        return ()
    entries = []
    for place, item in enumerate(items):
        path: Path = ("stages", place)
        if isinstance(item, str):
            item = {item: None}
        if not isinstance(item, dict) or len(item) != 1:
            problems.add(path, "a stage is '- StageName: {parameters}'; parameters go below it, further to the right.")
            continue
        ((name, parameters),) = item.items()
        if not isinstance(parameters, dict | None):
            problems.add((*path, name), f"{name}: the parameters must be a mapping, 'name: value'.")
            continue
        entries.append(StageEntry(name, parameters or {}))
    return tuple(entries)


def _executor(value: Any, problems: Problems) -> tuple[str | None, Mapping[str, Any]]:
    if value is None or isinstance(value, str):
        return value, {}
    if not isinstance(value, dict):
        problems.add(("executor",), "'executor' must be a name, or a mapping with 'name' and 'config'.")
        return None, {}
    for key in value:
        if key not in EXECUTOR_KEYS:
            problems.add(("executor", key), f"unknown key {key!r}.{did_you_mean(key, EXECUTOR_KEYS)}")
    name, config = value.get("name"), value.get("config")
    if not isinstance(name, str | None):
        problems.add(("executor", "name"), f"the executor's name must be text, found {name!r}.")
    if not isinstance(config, dict | None):
        problems.add(("executor", "config"), "the executor's config must be a mapping.")
    return name, config or {}


def used_variables(value: Any) -> set[str]:
    """The names that appear as `${name}` anywhere in `value`.

    Example:
        >>> sorted(used_variables({"path": "${folder}/in", "n": ["${n}", "$${not_one}"]}))
        ['folder', 'n']
    """
    found: set[str] = set()
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            found.update(_REFERENCE.findall(item))
        elif isinstance(item, Mapping | list):
            waiting.extend(item.values() if isinstance(item, Mapping) else item)
    return found - {""}  # what `$${` leaves of itself


def substitute(
    value: Any, variables: Mapping[str, Any], *, path: Path = (), report: Report, spare: Collection[str] = ()
) -> Any:
    """`value` with its variables replaced; `$${` stands for a literal `${`.

    A text that consists of a single variable becomes its value, with its type; inside other text the value
    is written out, which only texts, numbers and booleans allow. `spare` are variables that nothing uses: a missing one
    may be a misspelling of one of them.
    """
    if isinstance(value, Mapping):
        return {
            key: substitute(item, variables, path=(*path, key), report=report, spare=spare)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [
            substitute(item, variables, path=(*path, place), report=report, spare=spare)
            for place, item in enumerate(value)
        ]
    if not isinstance(value, str) or "${" not in value:
        return value
    written = ""
    end = 0
    for match in _REFERENCE.finditer(value):
        name = match.group(1)
        found = variables.get(name, "") if name is not None else "${"
        if name is not None and name not in variables:
            report(path, _no_value(name, spare))
        elif name is not None and match.group() == value:
            return found
        elif not isinstance(found, str | int | float):
            report(
                path,
                f"the variable {name!r} is {found!r}, which cannot be inserted into text; it must be text or a number.",
            )
        text = str(found).lower() if isinstance(found, bool) else str(found)
        written += value[end : match.start()] + text
        end = match.end()
    return written + value[end:]


def _no_value(name: str, spare: Collection[str]) -> str:
    if _VARIABLE.fullmatch(name):
        return (
            f"the variable {name!r} has no value. Set it with --set {name}=VALUE, or add a default under "
            f"'variables:'.{did_you_mean(name, spare)}"
        )
    return f"'${{{name}}}' is not a variable: a name is letters, digits and underscores. Write '$${{' for '${{'."


def _escaped(value: Any, secrets: bool) -> Any:
    """`value` with every `${` written so that reading it returns the same text; secrets only if requested."""
    if isinstance(value, str):
        return (without_passwords(value) if not secrets and "://" in value else value).replace("${", "$${")
    if isinstance(value, Mapping):
        return {
            key: _escaped(item, secrets) if secrets or not SECRET.search(str(key)) else None
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_escaped(item, secrets) for item in value]
    return value
