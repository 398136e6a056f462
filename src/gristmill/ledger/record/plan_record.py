"""The plan that made an output, kept as `plan.json`, and the differences between two plans in words.

A description is a plain dictionary: `format`, `name`, `version` (of the package), `stages` in order, each with `name`,
`type`, `parameters`, `for_dropped`, its declarations (`never_drops`, `role`) and, for user code, `code` (a digest of
everything it uses, by name); `variables` are those of a recipe, which change nothing by themselves but explain changes;
anything else is compared too. `replaces` has the digests of plans that a replay is about to replace; see
`gristmill.ledger.record.resume.adopt_plan`.

Records without `format`, of version 0.1, have digests of bytecode, so that the code that made their output cannot be
compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.errors import ResumeError, VerificationError
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.manifest import check_shape
from gristmill.ledger.record.shape import PLAN
from gristmill.storage.atomic import json_bytes

PLAN_FORMAT = 2
"""Written into every plan. Plans of version 0.1 have no number and lack the declarations of their stages."""

_SHORT = 40
# Do not change a single byte of output.
_NO_EFFECT = ("description", "created", "variables", "replaces", "format")
_OF_ITSELF = ("never_drops", "role", "bounds")
_LISTED = 2
"""Maximum number of stages with the same difference to list; more are summarized in one line."""
_NAMED = 5
UNCOMPARED_CODE = (
    "The finished partitions were made by an earlier version of Gristmill, whose record does not say whether your "
    "code has changed since; the rest of the plan is the same. If it has, start over with --fresh (fresh=True)."
)


def plan_digest(description: Mapping[str, Any]) -> str:
    """A hash of everything in a plan that can change its output."""
    effective = dict(description)
    for key in _NO_EFFECT:
        effective.pop(key, None)
    if "stages" in effective:
        effective["stages"] = list(map(dict, effective["stages"]))
        for stage in effective["stages"]:
            for key in _OF_ITSELF:
                stage.pop(key, None)
    text = json.dumps(effective, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def write_plan(folder: RunFolder, description: Mapping[str, Any]) -> str:
    """Write `description` to the record; returns its digest."""
    plain = json.loads(json.dumps(dict(description), default=str))
    folder.write(folder.record_path("plan"), json_bytes(plain))
    return plan_digest(plain)


def read_plan(folder: RunFolder) -> dict[str, Any] | None:
    """The plan that made the output; None if none is recorded.

    Raises:
        VerificationError: The file is damaged.
    """
    place = folder.record_path("plan")
    try:
        plan = json.loads(folder.read(place))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise VerificationError(
            f"{place} is damaged ({error}), so the plan that made this output is unknown. Start over with --fresh "
            "(fresh=True).",
            path=place,
        ) from error
    try:
        check_shape(plan, PLAN)
    except ValueError as error:
        raise VerificationError(
            f"{place} does not describe a plan: {error}. Start over with --fresh (fresh=True).", path=place
        ) from error
    return plan if "format" in plan else _of_version_0_1(plan)


def _of_version_0_1(plan: dict[str, Any]) -> dict[str, Any]:
    """A plan without a format number, completed with the current declarations of its stages."""
    keeping = tuple(f"gristmill.stages.text.{place}" for place in ("modifiers.", "io.", "modules.add_id."))
    filters = "gristmill.stages.text.filters.score_filter."
    for stage in plan.get("stages") or ():
        kind = str(stage.get("type", ""))
        stage["never_drops"] = kind.startswith(keeping) or kind == f"{filters}Score"
        stage["role"] = "score_filter" if kind == f"{filters}ScoreFilter" else ""
    return plan


def check_plan(folder: RunFolder, description: Mapping[str, Any]) -> str:
    """The digest of `description`, after checking that the existing output was made by the same plan.

    Raises:
        ResumeError: Another plan made it; the message names every difference.
    """
    differences = plan_changes(folder, description)
    if differences:
        lines = "\n".join(f"  - {line}" for line in differences)
        raise ResumeError(
            f"{folder.path} was written by another plan, so its finished partitions cannot be reused:\n{lines}\n"
            "Start over with --fresh (fresh=True), write to another folder, or restore the previous plan.",
            path=folder.path,
            differences=differences,
        )
    return plan_digest(json.loads(json.dumps(dict(description), default=str)))


def plan_changes(folder: RunFolder, description: Mapping[str, Any]) -> list[str]:
    """The differences from the plan that made the output, as from `compare`; empty if none is recorded."""
    old, new = read_plan(folder), json.loads(json.dumps(dict(description), default=str))
    if old is None or plan_digest(old) == plan_digest(new):
        return []
    if "format" not in old:
        old, new = _as_in_version_0_1(old), _as_in_version_0_1(new)
    return compare(old, new)


def _as_in_version_0_1(value: Any) -> Any:
    """A description without code, with bare class names for classes of this package, which may have moved."""
    if isinstance(value, list):
        return [_as_in_version_0_1(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: _as_in_version_0_1(item) for key, item in value.items() if key != "code"}
    for key in ("type", "class"):
        if str(found.get(key)).startswith("gristmill."):
            found[key] = found[key].rpartition(".")[2]
            if key == "class" and found[key].endswith("Filter"):
                found = _without_declarations(found)
    return found


def _without_declarations(described: dict[str, Any]) -> dict[str, Any]:
    """A filter without the statistics that its class declares, which objects of version 0.1 held themselves."""
    statistic = described.pop("_statistic", described.pop("statistic", None))
    kept = {key: item for key, item in described.items() if key not in ("_unique", "_total", "upper_reason")}
    # The length of n-grams and how words are split are not declarations.
    return {**kept, "statistic": statistic} if "NGrams" in described["class"] else kept


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Every difference between two plans as a sentence, and what it means for the finished work."""
    before, after = _stages(old), _stages(new)
    names_before, names_after = list(before), list(after)
    found = _variables(old.get("variables") or {}, new.get("variables") or {})
    gone = [name for name in names_before if name not in after]
    new_ones = [name for name in names_after if name not in before]
    if len(gone) > _NAMED:
        found.append(f"{len(gone)} stages were removed: {_listed(gone)}")
    else:
        found += [f"stage {name!r} was removed" for name in gone]
    if len(new_ones) > _NAMED:
        found.append(f"{len(new_ones)} stages were added: {_listed(new_ones)}")
    for name in new_ones if len(new_ones) <= _NAMED else ():
        place = names_after.index(name)
        where = f"after {names_after[place - 1]!r}" if place else "at the beginning"
        found.append(f"stage {name!r} was added {where}")
    found += _moved(names_before, names_after)
    found += _grouped({name: _stage_differences(before[name], after[name]) for name in names_after if name in before})
    for key in sorted({*old, *new}.difference(("stages", *_NO_EFFECT))):
        missing = object()
        was, now = old.get(key, missing), new.get(key, missing)
        if was != now:
            label = {"version": "the version of gristmill", "name": "the name of the pipeline"}.get(key, key)
            found += _value_differences(label, None if was is missing else was, None if now is missing else now)
    if found:
        note = _what_stays(before, after)
        found += [note] if note else []
    return found


def has_uncompared_code(plan: Mapping[str, Any] | None) -> bool:
    """Whether a recorded plan has user code that cannot be distinguished from the current one."""
    return plan is not None and "format" not in plan and '"code": {' in json.dumps(plan)


def _stages(plan: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    stages: dict[str, Mapping[str, Any]] = {}
    for number, stage in enumerate(plan.get("stages") or ()):
        stages.setdefault(str(stage.get("name", number)), stage)
    return stages


def _moved(before: Sequence[str], after: Sequence[str]) -> list[str]:
    left = [name for name in before if name in after]
    right = [name for name in after if name in before]
    found = []
    # Repeatedly removing the stage that is furthest from its place produces few moves.
    while left != right:
        name = max(right, key=lambda item: abs(left.index(item) - right.index(item)))
        at = after.index(name)
        where = f"after {after[at - 1]!r}" if at else "to the beginning"
        found.append(f"stage {name!r} was moved {where}")
        left.remove(name)
        right.remove(name)
    return found


def _variables(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The recipe variables whose values differ; added and removed ones show up in what they change."""
    return [
        f"variable {name} changed from {_shown(old[name])} to {_shown(new[name])}"
        for name in sorted({*old} & {*new})
        if old[name] != new[name]
    ]


def _grouped(differences: Mapping[str, Sequence[str]]) -> list[str]:
    """The differences of all stages, with those that many stages share in one line."""
    stages: dict[str, list[str]] = {}
    for name, lines in differences.items():
        for line in lines:
            stages.setdefault(line, []).append(name)
    found: list[str] = []
    for name, lines in differences.items():
        for line in lines:
            sharing = stages[line]
            if len(sharing) <= _LISTED:
                found.append(f"stage {name!r}: {line}")
            elif name == sharing[0]:
                found.append(f"stage {name!r}: {line}, and {len(sharing) - 1} more stages with the same change")
    return found


def _stage_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for key in sorted({*old, *new}.difference(("name", "parameters", "code", *_OF_ITSELF))):
        if old.get(key) != new.get(key):
            found += _value_differences(key, old.get(key), new.get(key))
    was, now = old.get("parameters") or {}, new.get("parameters") or {}
    for key in sorted({*was, *now}):
        if key not in was:
            found.append(f"parameter {key} was added ({_shown(now[key])})")
        elif key not in now:
            found.append(f"parameter {key} was removed (it was {_shown(was[key])})")
        elif was[key] != now[key]:
            found += _value_differences(f"parameter {key}", was[key], now[key])
    bounds: list[Sequence[str | None]] = new.get("bounds") or []
    for side, own in zip(("lower", "upper"), bounds[0] if len(bounds) == 1 else (), strict=False):
        if own is not None:  # the class's name for the bound, which is what the user wrote
            found = [line.replace(f"parameter filter_obj.{side} ", f"parameter {own} ") for line in found]
    return found + _code_differences("its code", old.get("code"), new.get("code"))


def _code_differences(label: str, old: Any, new: Any) -> list[str]:
    """Which functions, classes and values of the code changed."""
    if old == new:
        return []
    was, now = (code if isinstance(code, dict) else {} for code in (old, new))
    parts = [name for name in sorted({*was, *now}) if was.get(name) != now.get(name)]
    named = ", ".join(repr(name.removeprefix("__main__.")) for name in parts[:_NAMED])
    more = f" and {len(parts) - _NAMED} more" if len(parts) > _NAMED else ""
    return [f"{label} changed" + (f": {named}{more}" if named else "")]


def _value_differences(label: str, old: Any, new: Any) -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        found = []
        for key in sorted({*old, *new}):
            if key == "code":
                found += _code_differences(f"the code of {label}", old.get(key), new.get(key))
            elif old.get(key) != new.get(key):
                found += _value_differences(f"{label}.{key}", old.get(key), new.get(key))
        return found
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new) and len(_shown(old)) > _SHORT:
        # A long list would be truncated before the difference.
        pairs = [(place, was, now) for place, (was, now) in enumerate(zip(old, new, strict=True)) if was != now]
        return [
            line
            for place, was, now in pairs
            for line in _value_differences(f"{label}[{place}]" if len(old) > 1 else label, was, now)
        ]
    return [f"{label} changed from {_shown(old)} to {_shown(new)}"]


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."


def _what_stays(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """Which finished work is still valid if only later stages changed."""
    names, new_names = list(before), list(after)
    same = 0
    for old, new in zip(names, new_names, strict=False):
        if old != new or _stage_differences(before[old], after[new]):
            break
        same += 1
    if not same:
        return None
    # The writer ends every plan, so stages added before it are added at the end as far as documents are concerned.
    if same == len(names) - 1 and len(new_names) > len(names) and new_names[-1] == names[-1]:
        added = _some(new_names[same:-1])
        return (
            f"all earlier stages are unchanged, followed by {added}: run just the new stages with this "
            "output as their input to keep the work already done"
        )
    many = f"the first {same} stages up to {names[same - 1]!r} are unchanged"
    unchanged = many if same > 1 else f"the first stage, {names[0]!r}, is unchanged"
    changed = new_names[same:-1] if new_names[-1] == names[-1] else new_names[same:]
    if same < 2 or not changed:  # only the reader is the same
        return unchanged + (f"; only {new_names[same]!r} and what follows changed" if same < len(new_names) else "")
    listed = _some(changed)
    return (
        f"{unchanged}; only {listed} changed. If the new stages keep nothing that the old ones dropped, the work "
        f"already done can be kept: run a pipeline of just {listed} with this output as its input, into another folder"
    )


def _some(names: Sequence[str]) -> str:
    if len(names) > _NAMED:
        return f"{names[0]!r} to {names[-1]!r} ({len(names)} stages)"
    return ", ".join(map(repr, names))


def score_filters(stages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The score filters of a plan: `stage`, `filter`, `lower`, `upper`, `invert`, `parameters` (of both bounds).

    Raises:
        VerificationError: The filters of a stage are not described.
    """
    found = []
    for stage in stages:
        if stage.get("role") != "score_filter":
            continue
        try:
            filters, inverted = stage["parameters"]["filter_obj"], stage["parameters"]["invert"]
            named = stage.get("bounds") or [(None, None)] * len(filters)  # plans of version 0.1 have no names
            for one, invert, (own, other) in zip(filters, inverted, named, strict=True):
                # A filter written in Python has bounds under the names that it declares, or decides in its code.
                least, most = ("lower", "upper") if "lower" in one else (own, other)
                lower, upper = (one.get(key) if key else None for key in (least, most))
                check_shape([lower, upper], [(float, None)])
                name = str(stage["name"])
                found.append(
                    {
                        "stage": name,
                        "filter": str(one.get("name", name)),
                        "lower": lower,
                        "upper": upper,
                        "invert": bool(invert),
                        "parameters": (own, other),
                    }
                )
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise VerificationError(
                f"The plan in this record does not say which filters the stage {stage.get('name')!r} has "
                f"({type(error).__name__}: {error}). It was edited; start over with --fresh (fresh=True)."
            ) from error
    return found


def missing_scores(stages: Sequence[Mapping[str, Any]], *, after: str | None = None) -> dict[str, list[str]]:
    """The stages at which dropped documents end in a run with `scores="all"`, and the scorers after each of them.

    Dropped documents continue through filters and modifiers, so that every filter scores them. They end at a user stage
    that does not declare how to handle them: it might not process each document on its own.

    Args:
        stages: The stages as described in a plan.
        after: Only consider documents that this stage dropped; by default those of any stage.
    """
    found: dict[str, list[str]] = {}
    dropped = False
    for number, stage in enumerate(stages):
        name, way = str(stage.get("name")), stage.get("for_dropped")
        if dropped and way == "stop":
            behind = [str(one.get("name")) for one in stages[number + 1 :] if one.get("for_dropped") == "score"]
            found |= {name: behind} if behind else {}
            if after is not None:
                break
        may_drop = way in ("score", "stop") and not stage.get("never_drops")
        dropped = dropped or (may_drop if after is None else name == after)
    return found


def missing_scores_note(stages: Sequence[Mapping[str, Any]]) -> str | None:
    """One sentence for the report of a run with all scores; None if none are missing."""
    missing = missing_scores(stages)
    if not missing:
        return None
    scoring = max(missing.values(), key=len)
    return (
        f"scores='all': {_listed(scoring)} cannot score what was dropped before {_listed(list(missing))}, because "
        "custom stages do not receive dropped documents. If they handle each document on its own, set "
        "for_dropped = 'run' in their classes ('pass' if they only add columns that no filter reads)."
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:3]))
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
