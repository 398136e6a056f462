"""Have mkdocstrings show examples as code: its parser knows `Examples:`, the docstrings here say `Example:`."""

from __future__ import annotations

import re
from typing import Any

import griffe


class ExampleSections(griffe.Extension):
    """Renames the section in what is rendered; the source stays as it is."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called with everything that is loaded."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)
