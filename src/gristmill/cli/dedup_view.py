"""What a deduplication found, for the eye."""

from __future__ import annotations

from typing import Any


def summary(facts: dict[str, Any]) -> list[str]:
    """The result in a few lines."""
    from gristmill.figures import plural

    read, found, groups = facts["documents"], facts["num_duplicates"], facts["clusters"]
    duplicates = f"{plural(found, 'duplicate')} of {plural(groups, 'other document')}" if found else "no duplicates"
    lines = [f"{plural(read, 'document')} read, {duplicates} found in {facts['total_time']:.1f} s"]
    if facts["perform_removal"]:
        lines.append(f"{plural(read - facts['quarantined'] - facts['num_removed'], 'document')} kept")
    if facts["empty"]:
        lines.append(f"{plural(facts['empty'], 'document')} with nothing to compare")
    if facts["quarantined"]:
        lines.append(
            f"{plural(facts['quarantined'], 'record')} could not be read: see 'gristmill quarantine {facts['output']}'"
        )
    lines += facts["damaged"]
    by_eps = facts.get("duplicates_by_eps")
    if by_eps:
        lines.append("duplicates by eps: " + ", ".join(f"{eps} → {count}" for eps, count in by_eps.items()))
    for name in ("precision", "recall"):
        share = facts.get(name) or {}
        if share.get("value") is not None:
            lines.append(f"estimated {name}: {share['value']:.4f} (95 %: {share['low']:.4f} to {share['high']:.4f})")
    lines.append(f"output: {facts['output']}")
    return lines
