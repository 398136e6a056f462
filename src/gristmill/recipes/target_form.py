"""Recipes in the form of NeMo Curator's configuration files: `_target_`, `${…}`, `???`, `stages` or `workflow`.

`_target_` is a name, not a path to import: the class at its end must be known to recipes, and the path before it must
belong to NeMo Curator or this package. Such a file becomes an ordinary `Recipe`, so every command treats it like one in
our own form. Sections that only concern Hydra are skipped.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gristmill.backends.registry import executor_names
from gristmill.errors import UnknownNameError, did_you_mean
from gristmill.recipes.interpolation import Interpolation
from gristmill.recipes.names import NAMES, WORKFLOWS
from gristmill.recipes.registry import SETTINGS_KEY, parameters_of, recipe_parameters, registered, stage_settings
from gristmill.recipes.yaml_source import Path, Problems, Source

TARGET = "_target_"
Entry = tuple[str, Mapping[str, Any]]
"""The name of a stage or a workflow, and its parameters."""
SKIPPED = ("defaults", "documentation", "hydra")
SECTIONS = ("backend", "execution_mode", "ray_client", "stages", "workflow")
MOST_STAGES = 1000
EXECUTION_MODES = ("batch", "streaming")

_PACKAGES = ("nemo_curator", "gristmill")
_MODALITIES = frozenset({"audio", "image", "interleaved", "math", "video"})
"""Parts of NeMo Curator whose classes may have the same names as those for text."""
_WITHOUT_EFFECT = frozenset({"_convert_", "_recursive_"})
"""Keys of Hydra that only control how values are passed; ours are always plain."""
_WRAPPERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "ScoreFilter": ("filter_obj", ("text_field", "score_field", "invert")),
    "Modify": ("modifier_fn", ("input_fields", "output_fields")),
}
"""Wrappers of filters and modifiers: the attribute of the wrapped object, and the options beside it."""
_CENTROID_DISTANCES = ("cosine_dist_to_cent", "l2_dist_to_cent")


@dataclass(frozen=True, slots=True)
class Configuration:
    """The content of a configuration file, in terms of our recipes.

    Attributes:
        stages: The names of the stages, with their parameters.
        workflow: The name and the parameters of the workflow to run instead.
        executor: The executor it requests, if any.
        executor_config: Settings for that executor.
        variables: The value of each variable that is used.
        ray_client: Settings of the cluster.
        lines: The lines of the stages and their parameters, by their places in a Gristmill recipe.
    """

    stages: Sequence[Entry]
    workflow: Entry | None
    executor: str | None
    executor_config: Mapping[str, Any]
    variables: Mapping[str, Any]
    ray_client: Mapping[str, Any] | None
    lines: Mapping[Path, int]


def read_targets(source: Source, given: Mapping[str, Any], *, text_field: str | None = None) -> Configuration:
    """Read a configuration file.

    Args:
        source: The parsed file.
        given: Values to set, by their places (`input_path`, `ray_client.num_cpus`). A place must exist; `+place` adds
            one, `++place` sets or adds, `~place` removes.
        text_field: The value of the variable `text_field`, where the file has one.

    Raises:
        RecipeError: Something is wrong; lists everything that is.

    Example:
        >>> found = read_targets(parse_yaml(text), {"input_path": "crawl/", "output_path": "clean/"})
        >>> found.stages[0]
        ('JsonlReader', {'file_paths': 'crawl/'})
    """
    problems = Problems(source)
    whole = copy.deepcopy(source.value)
    if text_field is not None and "text_field" in whole:
        whole["text_field"] = text_field
    for place, value in given.items():
        _assign(whole, place, value, problems)
    if "stages" in whole and "workflow" in whole:
        problems.add(("workflow",), "the recipe has 'stages' and a 'workflow'. Remove one of them.")
    _check_defaults(whole.get("defaults"), problems)
    resolved = Interpolation(whole, problems.add)
    sections = {name: resolved.value_at((name,)) for name in SECTIONS if name in whole}
    variables = [name for name in whole if name not in SECTIONS and name not in SKIPPED]
    for name in variables:
        near = did_you_mean(name, SECTIONS)
        if near and name not in resolved.used:
            problems.add((name,), f"nothing uses {name!r}.{near}")
    problems.raise_if_any()
    entries = _Entries(problems)
    if "stages" in sections:
        entries.add_stages(sections["stages"])
    workflow = _workflow(sections["workflow"], problems) if "workflow" in sections else None
    executor, config = _executor(sections, problems)
    ray_client = _ray_client(sections.get("ray_client"), problems)
    problems.raise_if_any()
    if executor is None and ray_client is not None and ray_client.get("num_cpus") is not None:
        config = {"num_cpus": ray_client["num_cpus"]}  # of the local executor, which replaces the cluster
    used = {name: resolved.value_at((name,)) for name in variables if name in resolved.used}
    return Configuration(entries.found, workflow, executor, config, used, ray_client, entries.lines)


def _assign(whole: dict[str, Any], place: str, value: Any, problems: Problems) -> None:
    """Set, add (`+`, `++`) or remove (`~`) the value at a place."""
    name = place.lstrip("+~")
    mark = place[: len(place) - len(name)]
    *around, last = name.replace("[", ".").replace("]", "").split(".")
    holder: Any = whole
    for step in around:
        if isinstance(holder, dict) and "+" in mark:
            holder.setdefault(step, {})
        holder = _inside(holder, step)
        if not isinstance(holder, dict | list):
            problems.add((), f"{name!r} cannot be set: there is no {step!r} that has parts.")
            return
    key: str | int = int(last) if isinstance(holder, list) and last.isdecimal() else last
    exists = key in holder if isinstance(holder, dict) else isinstance(key, int) and key < len(holder)
    if not exists and not ("+" in mark and isinstance(holder, dict)):
        has = [one for one in holder if one not in SKIPPED] if isinstance(holder, dict) else []
        takes = f" It has: {', '.join(has)}." if has else ""
        problems.add((), f"there is no variable {name!r} in this recipe.{did_you_mean(last, has)}{takes}")
    elif mark == "~":
        del holder[key]
    else:
        holder[key] = value


def _inside(holder: Any, step: str) -> Any:
    if isinstance(holder, list) and step.isdecimal() and int(step) < len(holder):
        return holder[int(step)]
    return holder.get(step) if isinstance(holder, dict) else None


def _check_defaults(value: Any, problems: Problems) -> None:
    """Refuse a list of defaults that would merge other files into this one."""
    for place, item in enumerate(value if isinstance(value, list) else []):
        names = list(item) if isinstance(item, dict) else [item]
        for name in names:
            if name != "_self_" and not str(name).removeprefix("override ").startswith("hydra/"):
                problems.add(
                    ("defaults", place), f"'defaults' names {name!r}, but a recipe is one file. Copy its values here."
                )


@dataclass(slots=True)
class _Entries:
    """Gathers the stages, and the lines on which they and their parameters are."""

    problems: Problems
    found: list[Entry] = field(default_factory=list)
    lines: dict[Path, int] = field(default_factory=dict)

    def add_stages(self, items: Any) -> None:
        if not isinstance(items, list) or not 0 < len(items) <= MOST_STAGES:
            self.problems.add(("stages",), f"'stages' must be a list of 1 to {MOST_STAGES:,} stages with '{TARGET}'.")
            return
        for place, item in enumerate(items):
            path: Path = ("stages", place)
            name, parameters = _target(item, path, self.problems)
            if name is None:
                continue
            if name in _WRAPPERS:
                self._unwrap(name, parameters, path)
            else:
                self._add(name, parameters, path, settings=_settings(name, parameters))

    def _unwrap(self, wrapper: str, parameters: dict[str, Any], path: Path) -> None:
        """One entry for each filter of a `ScoreFilter`, or each modifier of a `Modify`."""
        attribute, names = _WRAPPERS[wrapper]
        wrapped = parameters.pop(attribute, None)
        settings = {key: parameters.pop(key) for key in parameters_of(stage_settings) if key in parameters}
        parameters.pop("verbose", None)  # of logs only
        options = {name: parameters.pop(name) for name in names if name in parameters}
        for key in parameters:
            self.problems.add(
                (*path, key),
                f"{wrapper}: unknown parameter {key!r}.{did_you_mean(key, names)} It takes: {attribute}, "
                f"{', '.join(names)}.",
            )
        items = wrapped if isinstance(wrapped, list) else [wrapped]
        for number, item in enumerate(items):
            place: Path = (*path, attribute, number) if isinstance(wrapped, list) else (*path, attribute)
            name, own = _target(item, place, self.problems)
            if name is None:
                continue
            own_options = {}
            for option, value in options.items():
                if isinstance(value, list) and len(value) != len(items):
                    message = f"{wrapper}: {option} has {len(value)} values for {len(items)} of {attribute}."
                    self.problems.add((*path, option), message)
                    continue
                one = value[number] if isinstance(value, list) else value
                if one is not None:
                    own_options[option] = one
            self._add(name, {**own, **own_options}, place, settings=settings, around=path)

    def _add(
        self, name: str, parameters: dict[str, Any], path: Path, *, settings: Mapping[str, Any], around: Path = ()
    ) -> None:
        entry: Path = ("stages", len(self.found), name)
        lines = self.problems.source.lines
        for key in parameters:
            _refuse_targets(parameters[key], (*path, key), self.problems)
            line = lines.get((*path, key)) or lines.get((*around, key))
            if line is not None:
                self.lines[(*entry, key)] = line
        line = lines.get(path)
        if line is not None:
            self.lines[entry] = line
        plain = {key: value for key, value in settings.items() if value is not None}
        if isinstance(plain.get("resources"), dict):
            plain["resources"] = {key: value for key, value in plain["resources"].items() if key != TARGET}
        self.found.append((name, {**parameters, **({SETTINGS_KEY: plain} if plain else {})}))


def _target(item: Any, path: Path, problems: Problems) -> tuple[str | None, dict[str, Any]]:
    """The name that `_target_` stands for, None after a problem was reported, and the other keys."""
    if not isinstance(item, dict) or TARGET not in item:
        problems.add(path, f"expected a mapping with '{TARGET}', such as '{TARGET}: nemo_curator.….WordCountFilter'.")
        return None, {}
    target = item[TARGET]
    parameters = {key: value for key, value in item.items() if key != TARGET and key not in _WITHOUT_EFFECT}
    for key in ("_args_", "_partial_"):
        if parameters.pop(key, None):
            problems.add((*path, key), f"{key!r} is not supported: pass the parameters by name.")
    if not isinstance(target, str) or not target:
        problems.add((*path, TARGET), f"'{TARGET}' must be the name of a class, found {target!r}.")
        return None, {}
    *modules, name = target.split(".")
    if modules and modules[0] not in _PACKAGES:
        return target, parameters  # of user code: refused when the pipeline is built, unless it is allowed
    known = [*NAMES, *WORKFLOWS, *_WRAPPERS]
    if not _MODALITIES.isdisjoint(modules) or (modules and name not in known):
        problems.add(
            (*path, TARGET),
            f"'{TARGET}: {target}' is not a class that recipes can use.{did_you_mean(name, known)} 'gristmill stages' "
            "lists all of them.",
        )
        return None, {}
    return name, parameters


def _settings(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Takes out of the parameters what every stage has, unless the constructor of this one takes it itself."""
    given = [key for key in parameters_of(stage_settings) if key in parameters]
    if not given:
        return {}
    own: Mapping[str, Any] = {}
    if given != ["resources"]:
        try:
            own = recipe_parameters(registered(name))
        except UnknownNameError:
            own = {}  # user code: its parameters are known once it is allowed
    return {key: parameters.pop(key) for key in given if key not in own}


def _refuse_targets(value: Any, path: Path, problems: Problems) -> None:
    """Report objects inside parameters: only filters, modifiers, resources and rankings may be such."""
    if isinstance(value, Mapping):
        if TARGET in value:
            problems.add(path, f"a parameter cannot be an object ('{TARGET}: {value[TARGET]}'). Use plain values.")
            return
        for key, item in value.items():
            _refuse_targets(item, (*path, key), problems)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            _refuse_targets(item, (*path, place), problems)


def _workflow(items: Any, problems: Problems) -> Entry | None:
    items = [items] if isinstance(items, dict) else items
    if not isinstance(items, list) or len(items) != 1:
        problems.add(("workflow",), f"'workflow' must be a list with exactly one '- {TARGET}: …'.")
        return None
    path: Path = ("workflow", 0)
    name, parameters = _target(items[0], path, problems)
    if name is None:
        return None
    if name not in WORKFLOWS:
        problems.add(
            (*path, TARGET),
            f"{name!r} is not a workflow.{did_you_mean(name, WORKFLOWS)} There are: {', '.join(WORKFLOWS)}.",
        )
        return None
    if parameters.get("ranking_strategy") is not None:
        ranking = parameters.pop("ranking_strategy")
        parameters.update(_ranking(ranking, (*path, "ranking_strategy"), problems))
    else:
        parameters.pop("ranking_strategy", None)
    for key, value in parameters.items():
        _refuse_targets(value, (*path, key), problems)
    return name, parameters


def _ranking(value: Any, path: Path, problems: Problems) -> dict[str, Any]:
    """The options of a workflow that are equivalent to a `RankingStrategy`."""
    if isinstance(value, Mapping) and str(value.get(TARGET, "")).rpartition(".")[2] == "RankingStrategy":
        columns, ascending = value.get("metadata_cols") or [], value.get("ascending", True)
        first = ascending[0] if isinstance(ascending, list) and ascending else ascending
        if value.get("strategy", "sort") == "random":
            return {"which_to_keep": "random", "kmeans_random_state": value.get("random_seed", 42)}
        if columns and columns[0] in _CENTROID_DISTANCES:
            return {"which_to_keep": "easy" if first else "hard"}
        if len(columns) == 1 and first is False:
            return {"survivor": "best", "score_field": columns[0]}
    problems.add(
        path,
        "this ranking is not supported. Use the distance to the centroid, random, or one column with 'ascending: "
        "false', whose highest value is kept.",
    )
    return {}


def _executor(sections: Mapping[str, Any], problems: Problems) -> tuple[str | None, dict[str, Any]]:
    """The executor selected by `backend` and `execution_mode`; None for our default."""
    mode, name = sections.get("execution_mode"), sections.get("backend")
    if mode is not None and mode not in EXECUTION_MODES:
        problems.add(("execution_mode",), f"execution_mode must be batch or streaming, found {mode!r}.")
    if name is None and mode is not None:
        name = "xenna"  # what has modes there
    if name is not None and name not in executor_names():
        names = executor_names()
        hint = did_you_mean(str(name), names)
        problems.add(("backend",), f"there is no backend {name!r}.{hint} There are: {', '.join(names)}.")
    return name, {"execution_mode": mode} if mode is not None and name in ("xenna", "local") else {}


def _ray_client(value: Any, problems: Problems) -> dict[str, Any] | None:
    if value is None:
        return None
    path: Path = ("ray_client",)
    name: str = str(value.get(TARGET, "RayClient")).rpartition(".")[2] if isinstance(value, Mapping) else ""
    if name != "RayClient":
        problems.add(path, f"'ray_client' must be a mapping with the settings of a RayClient, found {value!r}.")
        return None
    return {key: item for key, item in value.items() if key not in (TARGET, *_WITHOUT_EFFECT)}
