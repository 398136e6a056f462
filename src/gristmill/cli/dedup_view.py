"""Formats the result of a deduplication for the terminal."""

from __future__ import annotations

from typing import Any


def summary(facts: dict[str, Any]) -> list[str]:
    """The result in a few lines."""
    from gristmill.figures import plural

    if "passages" in facts:
        return _passages(facts)
    read, found, groups = facts["documents"], facts["num_duplicates"], facts["clusters"]
    duplicates = f"{plural(found, 'duplicate')} of {plural(groups, 'other document')}" if found else "no duplicates"
    lines = [f"{plural(read, 'document')} read, {duplicates} found in {facts['total_time']:.1f} s"]
    if facts["perform_removal"]:
        lines.append(f"{plural(read - facts['quarantined'] - facts['num_removed'], 'document')} kept")
    if facts["empty"]:
        lines.append(f"{plural(facts['empty'], 'document')} with nothing to compare")
    lines += _troubles(facts)
    by_eps = facts.get("duplicates_by_eps")
    if by_eps:
        lines.append("duplicates by eps: " + ", ".join(f"{eps} → {count}" for eps, count in by_eps.items()))
    for name in ("precision", "recall"):
        share = facts.get(name) or {}
        if share.get("value") is not None:
            lines.append(f"estimated {name}: {share['value']:.4f} (95 %: {share['low']:.4f} to {share['high']:.4f})")
    lines.append(f"output: {facts['output']}")
    return lines


def _passages(facts: dict[str, Any]) -> list[str]:
    """What was cut from documents."""
    from gristmill.figures import plural

    verb = {"cut": "cut from", "mark": "marked in", "drop": "found in"}[facts["action"]]
    found = f"{plural(facts['passages'], 'passage')} {verb} them in {facts['total_time']:.1f} s"
    changed = f"{plural(facts['changed'], 'document')} changed, {plural(facts['num_removed'], 'document')} dropped"
    lines = [f"{plural(facts['documents'], 'document')} read, {found}", changed]
    return [*lines, *_troubles(facts), f"output: {facts['output']}"]


def _troubles(facts: dict[str, Any]) -> list[str]:
    """What could not be read."""
    from gristmill.figures import plural

    if not facts["quarantined"]:
        return list(facts["damaged"])
    count = plural(facts["quarantined"], "record")
    return [f"{count} could not be read: see 'gristmill quarantine {facts['output']}'", *facts["damaged"]]
