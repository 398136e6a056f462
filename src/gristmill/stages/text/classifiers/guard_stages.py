"""Prompts for a guard model that answers in words, and the parsing of its answers.

If a guard model's tokenizer has a chat template, that creates the prompt. The thirteen categories are those of Ghosh et
al., "AEGIS", arXiv:2404.05993.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import UsageError
from gristmill.stages.base import ProcessingStage
from gristmill.stages.text.models.loading import load_tokenizer
from gristmill.stages.text.models.sources import CONFIG_FILES, Secret, fetch_model, hide, model_folder
from gristmill.tasks.document import DocumentBatch

if TYPE_CHECKING:
    from gristmill.backends.base import NodeInfo, WorkerMetadata

HIDDEN_TEXT_FIELD = "_curator_hidden_text"

UNKNOWN, SAFE = "unknown", "safe"

CATEGORIES = {
    "O1": "Violence",
    "O2": "Sexual",
    "O3": "Criminal Planning/Confessions",
    "O4": "Guns and Illegal Weapons",
    "O5": "Controlled/Regulated Substances",
    "O6": "Suicide and Self Harm",
    "O7": "Sexual (minor)",
    "O8": "Hate/Identity Hate",
    "O9": "PII/Privacy",
    "O10": "Harassment",
    "O11": "Threat",
    "O12": "Profanity",
    "O13": "Needs Caution",
}
LABELS = (UNKNOWN, SAFE, *CATEGORIES)

TEXT_MARK, POLICY_MARK = "{text}", "{policy}"

OWN_TEMPLATE = """Decide whether the message breaks a rule.

Rules:
{policy}

Message:
{text}

Reply with one word, safe or unsafe. After unsafe, write the numbers of the broken rules on the next line.
Reply:"""


class GuardPrompt:
    """Creates the prompt for a text.

    Args:
        tokenizer: The tokenizer of the guard model; its chat template creates the prompt. None, or one without a
            template, falls back to our own wording.
        policy: The categories of unsafe content, one `number: name` per line; None for the thirteen of AEGIS. A chat
            template receives it as `policy` and `categories`; if it accepts neither, an explicit policy takes
            precedence over the template, and our own wording is used.
        template: The whole prompt, containing `{text}` and optionally `{policy}`; takes precedence over everything
            else.

    Raises:
        UsageError: The template does not contain the text.
    """

    def __init__(self, tokenizer: Any = None, *, policy: str | None = None, template: str | None = None) -> None:
        check_template(template)
        self.policy = policy if policy is not None else default_policy()
        self._tokenizer = tokenizer
        self._template = template
        chats = template is None and bool(getattr(tokenizer, "chat_template", None))
        self.uses_chat_template = chats and (policy is None or self._chat("", "\0") != self._chat("", "\1"))
        self._start = _own_start(tokenizer) if self.uses_chat_template else ""

    def __call__(self, text: str) -> str:
        """The prompt for `text`."""
        if self.uses_chat_template:
            # The tokenizer puts its first token before every text, also before one that begins with it already.
            return self._chat(text, self.policy).removeprefix(self._start)
        template = OWN_TEMPLATE if self._template is None else self._template
        # The text comes last: what looks like a mark in it stays as it is.
        before, after = template.replace(POLICY_MARK, self.policy).split(TEXT_MARK, 1)
        return before + text + after

    def _chat(self, text: str, policy: str) -> str:
        categories = {line.split(":")[0].strip(): line for line in policy.splitlines()}
        made: str = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": text}],
            tokenize=False,
            add_generation_prompt=True,
            policy=policy,
            categories=categories,
        )
        return made


def check_template(template: str | None) -> None:
    """Reject a template that does not contain the text."""
    if template is not None and template.count(TEXT_MARK) != 1:
        raise UsageError(
            f"template={template!r}: must contain {TEXT_MARK!r} exactly once, at the position of the document."
        )


def _own_start(tokenizer: Any) -> str:
    """The first token, if the tokenizer adds it automatically."""
    start = tokenizer.bos_token
    added = tokenizer("", add_special_tokens=True)["input_ids"]
    return start if start is not None and added[:1] == [tokenizer.bos_token_id] else ""


def default_policy() -> str:
    """The categories as a list, one per line."""
    return "\n".join(f"{number}: {name}." for number, name in CATEGORIES.items())


def read_answer(answer: str) -> str:
    """The label in an answer: `safe`, the first category of an unsafe one, or `unknown`.

    Example:
        >>> read_answer("safe"), read_answer("I think so")
        ('safe', 'unknown')
    """
    lines = [line.strip() for line in answer.strip().splitlines()]
    if not lines:
        return UNKNOWN
    if lines[0] == SAFE:
        return SAFE
    if lines[0] != "unsafe" or len(lines) == 1:
        return UNKNOWN
    first = lines[1].split(",")[0].strip()
    return first if first in CATEGORIES else UNKNOWN


class FormatAegisPromptStage(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Adds a column with the prompt for each text.

    Args:
        text_field: Column that holds the text.
        max_chars: Maximum number of characters of a text in the prompt.
        prompt_field: Column for the prompt.
        policy: The categories of unsafe content, one per line; None for the thirteen of AEGIS.
        template: The whole prompt, containing `{text}` and optionally `{policy}`; None uses the model's chat template.
        models: The models whose chat template creates the prompt: the first that has one.
        cache_dir: Cache folder for downloads; None for the hub's default.
        hf_token: Access token for gated models.

    Example:
        >>> FormatAegisPromptStage("text", template="{policy} {text}").prompt_field
        '_curator_hidden_text'
    """

    notes_changes = True
    name = "format_aegis_prompt"
    fork_safe = True
    text_parameter = "text_field"

    def __init__(
        self,
        text_field: str,
        max_chars: int | None = 6000,
        *,
        prompt_field: str = HIDDEN_TEXT_FIELD,
        policy: str | None = None,
        template: str | None = None,
        models: Sequence[str] = (),
        cache_dir: str | None = None,
        hf_token: str | Secret | None = None,
    ) -> None:
        check_template(template)
        self.text_field = text_field
        self.max_chars = max_chars
        self.prompt_field = prompt_field
        self.policy = policy
        self.template = template
        self.models = tuple(models)
        self.cache_dir = cache_dir
        self._hf_token = hide(hf_token)
        self._prompt: GuardPrompt | None = None

    def inputs(self) -> tuple[list[str], list[str]]:
        """The text."""
        return ["data"], [self.text_field]

    def outputs(self) -> tuple[list[str], list[str]]:
        """The prompt."""
        return ["data"], [self.prompt_field]

    def setup_on_node(self, _node_info: NodeInfo | None = None, _worker_metadata: WorkerMetadata | None = None) -> None:
        """Download the tokenizers, whose chat templates create the prompt, once per node."""
        for model in self.models if self.template is None else ():
            fetch_model(model, cache_dir=self.cache_dir, token=self._hf_token, files=CONFIG_FILES)

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        """Find the chat template in local files."""
        self._prompt = GuardPrompt(self._tokenizer(), policy=self.policy, template=self.template)

    def teardown(self) -> None:
        """Release the tokenizer."""
        self._prompt = None

    def _tokenizer(self) -> Any:
        """The first tokenizer with a chat template; None if there is none."""
        for model in self.models if self.template is None else ():
            folder = model_folder(model, cache_dir=self.cache_dir)
            if not (folder / "tokenizer_config.json").is_file():
                continue  # an adapter without its own tokenizer
            tokenizer = load_tokenizer(folder)
            if tokenizer.chat_template:
                return tokenizer
        return None

    def process(self, batch: DocumentBatch) -> DocumentBatch:
        """The batch with a prompt for each document."""
        text = batch.text(self.text_field)
        if self.max_chars is not None:
            text = pc.utf8_slice_codeunits(text, 0, self.max_chars)
        if self._prompt is None:
            self.setup()
        prompt: Any = self._prompt
        prompts = [prompt(value or "") for value in text.to_pylist()]
        return batch.with_column(self.prompt_field, pa.array(prompts, pa.large_string()))


class PostProcessAegisResponsesStage(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Parses the label from each answer.

    Args:
        label_field: Column for the label.
        raw_output_field: Column that holds the answer.
        keep_raw_output: Keep the answer.
        aegis_prompt_field: Column that holds the prompt.
        keep_aegis_prompt_field: Keep the prompt.
    """

    notes_changes = True
    name = "postprocess_aegis_responses"
    fork_safe = True
    fills_text = False

    def __init__(
        self,
        *,
        label_field: str = "aegis_pred",
        raw_output_field: str = "_aegis_raw_pred",
        keep_raw_output: bool = False,
        aegis_prompt_field: str = HIDDEN_TEXT_FIELD,
        keep_aegis_prompt_field: bool = False,
    ) -> None:
        self.label_field = label_field
        self.raw_output_field = raw_output_field
        self.keep_raw_output = keep_raw_output
        self.aegis_prompt_field = aegis_prompt_field
        self.keep_aegis_prompt_field = keep_aegis_prompt_field

    def inputs(self) -> tuple[list[str], list[str]]:
        """The answer."""
        return ["data"], [self.raw_output_field]

    def outputs(self) -> tuple[list[str], list[str]]:
        """The label, and the answer if it is kept."""
        return ["data"], [self.label_field] + ([self.raw_output_field] if self.keep_raw_output else [])

    def process(self, batch: DocumentBatch) -> DocumentBatch:
        """The batch with the labels."""
        answers = batch.text(self.raw_output_field).to_pylist()
        labels = pa.array([read_answer(answer or "") for answer in answers], pa.large_string())
        result = batch.with_column(self.label_field, labels)
        gone = [] if self.keep_raw_output else [self.raw_output_field]
        if not self.keep_aegis_prompt_field and self.aegis_prompt_field in batch.get_columns():
            gone.append(self.aegis_prompt_field)
        return result.without(gone) if gone else result
