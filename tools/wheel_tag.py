"""Mark a wheel that brings compiled kernels as one for this Python and this kind of processor; run by hatchling.

A wheel without them runs everywhere and says so.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WheelTag(BuildHookInterface):  # type: ignore[type-arg]
    """What hatchling calls before it builds a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Set the tag. The kernels need nothing of the C library that numba does not: its oldest is ours."""
        compiled = Path(self.root, "src", "gristmill", "kernels", "compiled")
        if version == "standard" and any(compiled.glob("*.kernel")):
            python = f"cp{sys.version_info.major}{sys.version_info.minor}"
            build_data["pure_python"] = False
            build_data["tag"] = f"{python}-{python}-manylinux_2_17_{platform.machine()}"
