"""What decides how a text becomes tokens, as a value, so that two classifiers can tell whether theirs are the same."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from gristmill.errors import ModelNotFoundError
from gristmill.stages.text.models.sources import model_folder, tokenizer_digest


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """The settings of a tokenizer stage that its token columns depend on.

    The padding side and the order of the rows are no part of it: token lists are stored without padding.
    """

    model_identifier: str
    cache_dir: str | None = None
    text_field: str = "text"
    max_chars: int | None = None
    max_seq_length: int | None = None
    unk_token: bool = False
    init_options: str = "{}"

    def gives_same_tokens(self, other: TokenSettings) -> bool:
        """Whether both would make the same tokens, as far as can be told from files that are already here."""
        for name in ("text_field", "max_chars", "max_seq_length", "unk_token", "init_options"):
            if getattr(self, name) != getattr(other, name):
                return False
        if (self.model_identifier, self.cache_dir) == (other.model_identifier, other.cache_dir):
            return True
        if self.max_seq_length is None:
            return False  # the limit comes from the model then, and may differ
        try:
            mine = tokenizer_digest(model_folder(self.model_identifier, cache_dir=self.cache_dir))
            theirs = tokenizer_digest(model_folder(other.model_identifier, cache_dir=other.cache_dir))
        except ModelNotFoundError:
            return False
        return mine == theirs

    def digest(self, tokenizer: str, max_seq_length: int | None) -> str:
        """A digest of the settings with the tokenizer's own digest and the limit that came to apply."""
        facts: list[Any] = [
            tokenizer, self.text_field, self.max_chars, max_seq_length, self.unk_token, self.init_options,
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(facts, default=int).encode()).hexdigest()[:32]
