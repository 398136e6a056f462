"""Values that are never written to a record, which others may read: those whose names indicate secrets.

They are omitted and not replaced by a digest: a new password does not change a plan, and many expire within hours.
"""

from __future__ import annotations

import re

SECRET = re.compile(
    r"^(token|auth|pass|pwd|pw)$|(^|[^a-z]|(?-i:(?<=[a-z])(?=[A-Z])))((hf|auth|access|session|bearer|refresh|"
    r"sas|security)[_-]?token|(api|access|account|private|shared)[_-]?key|password|passwd|passphrase|pwd|"
    r"secret([_-]?access)?([_-]?key)?|credentials?|connection[_-]?string|authorization|cookie)$",
    re.IGNORECASE,
)
