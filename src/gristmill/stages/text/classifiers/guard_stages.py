"""What goes before and after a guard model that answers in words: asking about each text, and reading the answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.stages.base import ProcessingStage
from gristmill.stages.text.classifiers.guard_prompt import GuardPrompt, check_template, read_answer
from gristmill.stages.text.models.loading import load_tokenizer
from gristmill.stages.text.models.secrets import Secret, hide
from gristmill.stages.text.models.sources import CONFIG_FILES, fetch_model, model_folder
from gristmill.tasks.document import DocumentBatch

if TYPE_CHECKING:
    from gristmill.backends.base import NodeInfo, WorkerMetadata

HIDDEN_TEXT_FIELD = "_curator_hidden_text"


class FormatAegisPromptStage(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Adds the question about each text as a column.

    Args:
        text_field: The column with the text.
        max_chars: How many characters of a text the question contains at the most.
        prompt_field: The column for the question.
        policy: The categories of unsafe content, one per line; None for the thirteen of AEGIS.
        template: The whole question, with `{text}` and, if wanted, `{policy}` in it; None asks in the way of the model.
        models: The models whose chat template makes the question: the first that has one.
        cache_dir: Where downloads are kept; None for the default of the hub.
        hf_token: An access token for gated models.

    Example:
        >>> FormatAegisPromptStage("text", template="{policy} {text}").prompt_field
        '_curator_hidden_text'
    """

    notes_changes = True
    name = "format_aegis_prompt"
    fork_safe = True

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
        """The question."""
        return ["data"], [self.prompt_field]

    def setup_on_node(self, _node_info: NodeInfo | None = None, _worker_metadata: WorkerMetadata | None = None) -> None:
        """Download the tokenizers, whose chat templates make the question, once per node."""
        for model in self.models if self.template is None else ():
            fetch_model(model, cache_dir=self.cache_dir, token=self._hf_token, files=CONFIG_FILES)

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        """Find the chat template in local files."""
        self._prompt = GuardPrompt(self._tokenizer(), policy=self.policy, template=self.template)

    def teardown(self) -> None:
        """Forget the tokenizer."""
        self._prompt = None

    def _tokenizer(self) -> Any:
        """The first tokenizer with a chat template; None if there is none."""
        for model in self.models if self.template is None else ():
            folder = model_folder(model, cache_dir=self.cache_dir)
            if not (folder / "tokenizer_config.json").is_file():
                continue  # an adapter without a tokenizer of its own
            tokenizer = load_tokenizer(folder)
            if tokenizer.chat_template:
                return tokenizer
        return None

    def process(self, batch: DocumentBatch) -> DocumentBatch:
        """The batch with a question about each document."""
        text = batch.text(self.text_field)
        if self.max_chars is not None:
            text = pc.utf8_slice_codeunits(text, 0, self.max_chars)
        if self._prompt is None:
            self.setup()
        prompt: Any = self._prompt
        prompts = [prompt(value or "") for value in text.to_pylist()]
        return batch.with_column(self.prompt_field, pa.array(prompts, pa.large_string()))


class PostProcessAegisResponsesStage(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Reads the label out of each answer.

    Args:
        label_field: The column for the label.
        raw_output_field: The column with the answer.
        keep_raw_output: Keep the answer.
        aegis_prompt_field: The column with the question.
        keep_aegis_prompt_field: Keep the question.
    """

    notes_changes = True
    name = "postprocess_aegis_responses"
    fork_safe = True

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
