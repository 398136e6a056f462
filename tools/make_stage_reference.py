"""Make docs/reference/stages.md from the registered names; a test compares the two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gristmill.cli.catalog import description
from gristmill.recipes.names import FILTER, MODIFIER, STAGE, Registered
from gristmill.recipes.registry import all_registered
from gristmill.stages.text.filters.published.c4 import REASONS
from gristmill.stages.text.filters.rule import ColumnFilter

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "stages.md"

HEAD = """# Stages, filters and modifiers

Everything a recipe can name. Made by `tools/make_stage_reference.py`; change the docstrings, not this page.
`gristmill stages NAME` shows one with its whole text. In Python a filter is used as `ScoreFilter(NAME(…))` and a
modifier as `Modify(NAME(…))`; in a recipe the name alone is enough. What the filters measure and how they compare with
other tools is described in [Filters](../explanation/filters.md).
"""

TITLES = {STAGE: "Stages", FILTER: "Filters", MODIFIER: "Modifiers"}
# Parameters that every filter or modifier has in a recipe, and none needs to be told again.
SHARED = {
    FILTER: ("text_field", "score_field", "invert"),
    MODIFIER: ("input_fields", "output_fields"),
    STAGE: (),
}
PUBLISHED = ("FineWebQuality", "GopherQuality", "GopherRepetition", "UrlRules")
# Filters that cannot be made without a file of the user's; their own tests have such files.
LONGEST_DEFAULT = 80
"""Longer texts, such as prompts, are cut."""
NEED_FILES = (
    "FastTextQualityFilter",
    "HistogramFilter",
    "PerExtensionFilter",
    "TokenCountFilter",
    "TokenizerFertilityFilter",
)
# What the others need to be made.
NEEDED: dict[str, dict[str, Any]] = {
    "SubstringFilter": {"substring": "a", "position": "any"},
    "GeneralCommentToCodeFilter": {"language": "text/x-c"},
}


def reference() -> str:
    """The whole page."""
    parts = [HEAD]
    for kind in (STAGE, FILTER, MODIFIER):
        parts.append(f"## {TITLES[kind]}\n")
        if SHARED[kind]:
            parts.append(f"Each also takes {', '.join(f'`{name}`' for name in SHARED[kind])}.\n")
        parts.extend(_entry(entry) for entry in all_registered() if entry.kind == kind)
    return "\n".join(parts)


def _entry(entry: Registered) -> str:
    known = description(entry)
    first = known["documentation"].split("\n\n")[0].replace("\n", " ")
    lines = [f"### {entry.name}\n", f"{first}\n"]
    own = [parameter for parameter in known["parameters"] if parameter["name"] not in SHARED[entry.kind]]
    if own:
        lines.append("| parameter | value | default |")
        lines.append("|---|---|---|")
        lines += [
            f"| `{one['name']}` | {one['type']} | {'required' if one['required'] else _value(one['default'])} |"
            for one in own
        ]
        lines.append("")
    reasons = _reasons(entry)
    if reasons:
        lines.append(f"Reasons: {', '.join(f'`{reason}`' for reason in reasons)}.\n")
    return "\n".join(lines)


def _value(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str) and len(value) > LONGEST_DEFAULT:
        value = f"{value[:LONGEST_DEFAULT]}…"
    return f"`{value!r}`"


def _reasons(entry: Registered) -> tuple[str, ...]:
    """Every reason that a filter can give; with its defaults, where it can be made without a file."""
    if entry.kind == FILTER:
        if entry.name in NEED_FILES:
            known = (entry.load().lower_reason, entry.load().upper_reason)
            return tuple(one for one in known if one not in (ColumnFilter.lower_reason, ColumnFilter.upper_reason))
        made = entry.load()(**NEEDED.get(entry.name, {}))
        return tuple(made.reasons())
    if entry.name == "C4Quality":
        return tuple(REASONS.values())
    if entry.name in PUBLISHED:
        return tuple(dict.fromkeys(reason for rule in entry.load()().filters.rules for reason in rule.reasons()))
    return ()


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
    print(PAGE)
