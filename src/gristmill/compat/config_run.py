"""Runs NeMo Curator's configuration files: `python -m gristmill.compat.config_run --config-path … --config-name … k=v`.

Takes the arguments of NeMo Curator's own `config.run` and runs `gristmill run FILE --set k=v …`. Values set by `k=v`
are YAML; `+k=v` adds one that the file does not have, `~k` removes one, and those of `hydra` have no effect.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from gristmill.pipeline.pipeline import Pipeline

SAME_AS = {
    "code_filter_pipeline": "gristmill run code",
    "exact_deduplication_pipeline": "gristmill dedup exact --list-only",
    "fuzzy_deduplication_pipeline": "gristmill dedup fuzzy --list-only --char-ngrams 24",
    "heuristic_filter_english_pipeline": "gristmill run english",
    "heuristic_filter_non_english_pipeline": "gristmill run non-english",
    "semantic_deduplication_pipeline": "gristmill dedup semantic --which-to-keep easy",
}
"""The files shipped with NeMo Curator, and equivalent commands."""


def command_line(arguments: Sequence[str]) -> list[str]:
    """The equivalent arguments for `gristmill`.

    Example:
        >>> command_line(["--config-path", "conf", "--config-name", "clean", "input_path=in"])  # with conf/clean.yaml
        ['run', 'conf/clean.yaml', '--set', 'input_path=in']
    """
    parser = argparse.ArgumentParser(
        "python -m gristmill.compat.config_run", description="Run a configuration file of NeMo Curator on Gristmill."
    )
    parser.add_argument("--config-path", "-cp", default=".", metavar="FOLDER", help="the folder of the file")
    parser.add_argument("--config-name", "-cn", default="pipeline", metavar="NAME", help="its name (.yaml is optional)")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="values to set")
    given = parser.parse_intermixed_args(arguments)
    folder, name = Path(given.config_path), given.config_name
    path = next(
        (path for path in (folder / name, folder / f"{name}.yaml", folder / f"{name}.yml") if path.is_file()), None
    )
    if path is None:
        same = SAME_AS.get(Path(name).stem)
        hint = f" '{same}' does the same without a file." if same else ""
        parser.error(f"there is no {name!r} in {str(folder)!r}; relative folders start at the current one.{hint}")
    found = ["run", str(path)]
    for override in given.overrides:
        key, sign, value = override.partition("=")
        if not sign and not key.startswith("~"):
            parser.error(f"{override!r}: write KEY=VALUE, such as input_path=crawl/.")
        if not key.lstrip("+~").startswith(("hydra.", "hydra/")):
            found += ["--set", f"{key}={value or ('null' if key.startswith('~') else repr(''))}"]
    return found


def create_pipeline_from_yaml(cfg: Mapping[str, Any], *, log_config: bool = True) -> Pipeline:
    """The pipeline described by a configuration, which is a mapping (also one of OmegaConf).

    Args:
        cfg: The configuration, with `_target_` for each stage.
        log_config: Has no effect.

    Raises:
        RecipeError: Something is wrong; lists all problems.
    """
    from gristmill.recipes.loader import parse_recipe

    text = yaml.safe_dump(_plain(cfg), allow_unicode=True, sort_keys=False)
    return parse_recipe(text, origin="cfg").pipeline()


def _plain(value: Any) -> Any:
    """Mappings and lists of any kind as Python's own; OmegaConf resolves references when they are read."""
    if isinstance(value, Mapping):
        return {str(key): _plain(value[key]) for key in value}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(item) for item in value]
    return value


def main() -> None:
    """Run the file, and exit like `gristmill run`."""
    sys.argv = ["gristmill", *command_line(sys.argv[1:])]
    importlib.import_module("gristmill.cli.entry").main()  # by name: the command line is in a layer above this package


if __name__ == "__main__":
    main()
