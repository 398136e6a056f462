"""Mixtures as YAML: the sources of a training set and how much of each; see `docs/how-to/shuffle-and-mix.md`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from gristmill.errors import GristmillError, InputNotFoundError, RecipeError, UsageError, did_you_mean
from gristmill.recipes.yaml_source import Path, Source, parse_yaml, recipe_error
from gristmill.stages.sharding.mix import MixWorkflow
from gristmill.stages.sharding.mixture import Cap, MixSource, Mixture, Tier, parse_amount

_MIXTURE = ("unit", "budget", "temperature", "max_epochs", "on_id_overlap")
_WORKFLOW = (
    "seed", "shard_size", "shard_documents", "shard_tokens", "splits", "split_field", "balance", "token_count_field",
    "tokenizer", "text_field", "id_field", "license_field", "output_filetype",
)  # fmt: skip
_TOP = ("name", "output", "compression", "sources", *_MIXTURE, *_WORKFLOW)
_SOURCE = ("path", "weight", "epochs", "budget", "max_epochs", "tiers", "cap", "filetype", "license")


def load_mixture(path: str | os.PathLike[str], *, output: str | None = None, **options: Any) -> MixWorkflow:
    """The workflow that a YAML file describes.

    Args:
        path: The file.
        output: Where to write, instead of the output in the file.
        **options: Options of `MixWorkflow` that a file does not have, such as `record_path`.

    Raises:
        RecipeError: The file cannot be used as it is written; lists every problem with its line.

    Example:
        >>> load_mixture("mix.yaml", output="mixed/").run()
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        raise InputNotFoundError(f"There is no recipe {os.fspath(path)}.", path=os.fspath(path)) from None
    except UnicodeDecodeError as error:
        raise recipe_error(f"{os.fspath(path)} is not UTF-8 text: {error}.") from error
    return make_mixture(parse_yaml(text, origin=os.fspath(path)), output=output, **options)


def make_mixture(source: Source, *, output: str | None = None, **options: Any) -> MixWorkflow:
    """The workflow that a parsed YAML text describes.

    Raises:
        RecipeError: The text cannot be used as it is written.
    """
    reading = _Reading(source)
    top = reading.mapping((), _TOP, source.value)
    sources = reading.mapping(("sources",), None, top.get("sources")) if "sources" in top else {}
    if not sources:
        reading.problem((), "there are no sources. Add 'sources:' with at least one name and its path.")
    made = {name: reading.one_source(name, value) for name, value in sources.items()}
    target = output or top.get("output")
    if not isinstance(target, str) or not target:
        reading.problem(
            ("output",), "name the folder to write to: 'output: FOLDER' in the recipe, or gristmill mix RECIPE OUTPUT."
        )
    reading.stop()
    chosen = {key: top[key] for key in _WORKFLOW if top.get(key) is not None}
    if top.get("compression") is not None:
        chosen["write_kwargs"] = {"compression": top["compression"]}
    counts = "tokens" if "token_count_field" in chosen or "tokenizer" in chosen else "bytes"
    asked = {"unit": counts, **{key: top[key] for key in _MIXTURE if top.get(key) is not None}}
    try:
        assert isinstance(target, str)
        return MixWorkflow(target, Mixture(made, **asked), **{**chosen, **options})
    except (UsageError, TypeError) as error:
        told = error.message if isinstance(error, GristmillError) else str(error)
        raise recipe_error(f"{source.origin}: {told}") from error


class _Reading:
    """Reads the parts of a mixture and collects every problem."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.problems: list[str] = []

    def problem(self, path: Path, text: str) -> None:
        """Record a problem at a place."""
        self.problems.append(f"{self.source.where(path)}: {text}")

    def stop(self) -> None:
        """Raise what was found.

        Raises:
            RecipeError: There is a problem.
        """
        if self.problems:
            raise RecipeError("\n".join(self.problems), problems=self.problems)

    def mapping(self, path: Path, known: tuple[str, ...] | None, value: Any) -> dict[str, Any]:
        """The keys and values at a place; unknown keys are problems."""
        if not isinstance(value, Mapping):
            self.problem(path, f"{'.'.join(map(str, path)) or 'the recipe'} must be a mapping.")
            return {}
        for key in value:
            if known is not None and key not in known:
                self.problem(
                    (*path, key), f"unknown key {key!r}; known are {', '.join(known)}.{did_you_mean(key, known)}"
                )
        return dict(value)

    def one_source(self, name: str, value: Any) -> MixSource:
        """The source at a place."""
        path: Path = ("sources", name)
        given = self.mapping(path, _SOURCE, {"path": value} if isinstance(value, str) else value)
        tiers, field = self._tiers((*path, "tiers"), given.pop("tiers", None))
        cap = self._cap((*path, "cap"), given.pop("cap", None))
        where = given.pop("path", None)
        if not isinstance(where, str | list) or not where or not all(isinstance(one, str) for one in where):
            self.problem(path, "path is missing: set it to a file, a folder, a glob, or a list of these.")
            where = "missing"
        given = {key: one for key, one in given.items() if key in _SOURCE}
        return MixSource(where, tier_field=field, tiers=tiers, cap=cap, **given)

    def _tiers(self, path: Path, value: Any) -> tuple[tuple[Tier, ...], str | None]:
        if value is None:
            return (), None
        given = self.mapping(path, ("field", "levels"), value)
        levels = given.get("levels")
        if not isinstance(given.get("field"), str) or not isinstance(levels, list) or not levels:
            self.problem(path, "tiers need 'field' (a column) and 'levels' (a list of {min, rate}).")
            return (), None
        made = []
        for place, level in enumerate(levels):
            read = self.mapping((*path, "levels", place), ("min", "rate"), level)
            made.append(Tier(read.get("min"), read.get("rate", 1.0)))
        return tuple(made), given["field"]

    def _cap(self, path: Path, value: Any) -> Cap | None:
        if value is None:
            return None
        given = self.mapping(path, ("field", "amount"), value)
        try:
            if isinstance(given.get("field"), str) and given.get("amount") is not None:
                return Cap(given["field"], parse_amount(given["amount"], "cap.amount"))
            self.problem(path, "cap needs 'field' (a column) and 'amount' (the maximum per value).")
        except UsageError as error:
            self.problem(path, error.message)
        return None
