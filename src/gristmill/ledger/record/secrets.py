"""Values that are never written to a record, which others may read: those whose names indicate secrets.

They are omitted and not replaced by a digest: a new password does not change a plan, and many expire within hours.
"""

from __future__ import annotations

import re

SECRET = re.compile(
    r"^token$|(^|[_-])((hf|auth|access|session|bearer|refresh)_?token|(api|access|account|private)_?key|password|passwd|"
    r"secret(_?access)?(_?key)?|credentials?|connection_string)$",
    re.IGNORECASE,
)
