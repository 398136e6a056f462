"""Reads from the files of a sentence-transformers model how its tokens become one vector."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gristmill.errors import UsageError

_KNOWN = {
    "pooling_mode_mean_tokens": "mean_pooling",
    "pooling_mode_lasttoken": "last_token",
    "pooling_mode_cls_token": "first_token",
}


@dataclass(frozen=True, slots=True)
class SentenceSettings:
    """How a sentence model makes its vector."""

    pooling: str = "mean_pooling"
    normalize: bool = False


def sentence_settings(folder: Path) -> SentenceSettings:
    """The settings in `modules.json` and the folders it names; mean pooling for a plain transformer without them.

    Raises:
        UsageError: The model has a step that is not supported, such as a dense layer.
    """
    listed = folder / "modules.json"
    if not listed.is_file():
        return SentenceSettings()
    pooling, normalize = "mean_pooling", False
    for module in json.loads(listed.read_text(encoding="utf-8")):
        kind = str(module["type"]).rsplit(".", 1)[-1]
        if kind == "Pooling":
            pooling = _pooling(_read(folder / module["path"] / "config.json"))
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer":
            raise UsageError(
                f"The sentence model in {folder} has a step {kind!r}, which is not supported. "
                "Use use_sentence_transformer=False with embedding_pooling=, or another model."
            )
    return SentenceSettings(pooling, normalize)


def _pooling(config: dict[str, Any]) -> str:
    named = config.get("pooling_mode")
    chosen = [name for key, name in _KNOWN.items() if config.get(key)]
    if isinstance(named, str):
        chosen = [{"mean": "mean_pooling", "lasttoken": "last_token", "cls": "first_token"}.get(named, named)]
    if len(chosen) != 1 or chosen[0] not in _KNOWN.values():
        raise UsageError(
            f"The pooling {config} of this sentence model is not supported; use mean, last or first token."
        )
    return chosen[0]


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found
