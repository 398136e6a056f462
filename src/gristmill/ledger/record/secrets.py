"""What is never written into a record, which others can read: the values of names that stand for secrets.

They are left out and not replaced by a digest: another password is not a change of a plan, many expire within hours.
"""

from __future__ import annotations

import re

SECRET = re.compile(
    r"^token$|(^|[_-])((hf|auth|access|session|bearer|refresh)_?token|(api|access|account|private)_?key|password|passwd|"
    r"secret(_?access)?(_?key)?|credentials?|connection_string)$",
    re.IGNORECASE,
)
