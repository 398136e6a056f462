"""Order the sections of the documentation: a page appears by lying in its folder, without an entry in mkdocs.yml."""

from __future__ import annotations

from typing import Any

SECTIONS = ("tutorial", "cookbook", "how-to", "reference", "explanation", "decisions")


def on_nav(nav: Any, **_: Any) -> Any:
    """Called by mkdocs with the navigation it built from the folders; puts the home page and the sections in order."""
    nav.items.sort(key=position)
    for section in nav.items:
        for item in getattr(section, "children", None) or ():
            if item.title == "Api":
                item.title = "API"
    return nav


def position(item: Any) -> tuple[int, str]:
    """Where an entry belongs: the home page, the known sections, then whatever else there is by name."""
    if getattr(item, "is_homepage", False):
        return -1, ""
    name = (item.title or "").lower().replace(" ", "-")
    return (SECTIONS.index(name) if name in SECTIONS else len(SECTIONS)), name
