"""Questions and answers made up by a language model in several languages."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from gristmill.errors import UsageError
from gristmill.ledger.record.answer_cache import answer_key
from gristmill.models.client.llm_client import AsyncLLMClient, GenerationConfig, LLMClient
from gristmill.stages.base import CompositeStage, ProcessingStage, Spec
from gristmill.stages.synthetic.nemotron_cc.base import as_async, check_prompt, filled
from gristmill.stages.text.annotate.questions import Question
from gristmill.stages.text.annotate.stage import LLMStage, Owner
from gristmill.stages.text.models.model import check_positive
from gristmill.tasks.base import EmptyTask
from gristmill.tasks.document import DocumentBatch

_PROMPT, _SAMPLE, _TEXT = "_prompt", "_sample", "text"
_PER_BATCH = 1000


@dataclass(eq=False, repr=False)
class QAMultilingualSyntheticStage(CompositeStage[EmptyTask, DocumentBatch]):
    """The source of a pipeline that makes documents up: `num_samples` answers to a prompt, each in one of `languages`.

    The language of a sample follows from its number, so an interrupted run resumes with the same prompts. Asterisks of
    Markdown are removed from answers. Set a temperature: at 0, all answers in a language are the same.

    Args:
        prompt: The prompt, with `{language}` where the language goes.
        languages: The languages, in the words that the prompt needs.
        client: Reaches the model, as in `BaseSyntheticStage`.
        model_name: The model, as the server names it.
        num_samples: The number of documents.
        generation_config: Sampling parameters: a `GenerationConfig` or its fields as a mapping.
        name: How the stage is called in reports.

    Example:
        >>> stage = QAMultilingualSyntheticStage(
        ...     prompt="Ask and answer a question on biology in {language}.",
        ...     languages=["English", "French"],
        ...     client=None,
        ...     model_name="m",
        ...     num_samples=100,
        ... )
        >>> stage.outputs()[1]
        ['text']
    """

    prompt: str
    languages: Sequence[str]
    client: AsyncLLMClient | LLMClient | Literal["transformers", "vllm"] | None
    model_name: str
    num_samples: int
    generation_config: GenerationConfig | Mapping[str, Any] | None = None
    name: str = "QAMultilingualSyntheticStage"

    def __post_init__(self) -> None:
        check_prompt(self.prompt, owner=type(self).__name__, name="language")
        check_positive("num_samples", self.num_samples)
        if isinstance(self.languages, str) or not self.languages:
            raise UsageError(f"languages={self.languages!r}: pass a list of at least one language.")

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        """The prompts, and the stage that asks them."""
        return [
            _SamplePrompts(self.prompt, list(self.languages), self.num_samples),
            _SampleAnswers(self.model_name, self.client, self.generation_config).with_(name=self.name),
        ]

    def process(self, task: EmptyTask) -> DocumentBatch:
        """All documents at once, for use outside of a pipeline."""
        prompts, answers = self.decompose_and_apply_with()
        made: Any = prompts.process(task)
        tables = [answers.process(batch).to_pyarrow() for batch in made]  # type: ignore[union-attr]
        answers.teardown()
        return DocumentBatch("simple_synthetic_data", pa.concat_tables(tables))

    def _process_llm_response(self, response: Sequence[str]) -> str:
        """The text of a document, given the model's answers."""
        return without_asterisks(response[0]) if response else ""


class _SamplePrompts(ProcessingStage[EmptyTask, DocumentBatch]):
    """Makes a row for each sample, with its prompt."""

    name = "sample_prompts"

    def __init__(self, prompt: str, languages: list[str], num_samples: int) -> None:
        self.prompt, self.languages, self.num_samples = prompt, languages, num_samples

    def num_workers(self) -> int | None:
        return 1

    def outputs(self) -> Spec:
        return ["data"], [_SAMPLE, _PROMPT]

    def process(self, task: EmptyTask) -> list[DocumentBatch]:
        batches = []
        for start in range(0, self.num_samples, _PER_BATCH):
            numbers = range(start, min(start + _PER_BATCH, self.num_samples))
            prompts = [filled(self.prompt, self._language(number)) for number in numbers]
            table = pa.table({_SAMPLE: pa.array(numbers, pa.int64()), _PROMPT: pa.array(prompts, pa.large_string())})
            batches.append(DocumentBatch("simple_synthetic_data", table))
        return batches

    def _language(self, number: int) -> str:
        return random.Random(number).choice(self.languages)  # noqa: S311


class _SampleAnswers(LLMStage):
    """Asks each sample's prompt; equal prompts are asked again for every sample."""

    def __init__(self, model: str, client: Any, config: GenerationConfig | Mapping[str, Any] | None) -> None:
        super().__init__(
            f"{{{{ {_PROMPT} }}}}",
            model=model,
            client=as_async(client, model),
            generation_config=config,
            output_field=_TEXT,
            text_field=_PROMPT,
        )

    def inputs(self) -> Spec:
        return ["data"], [_SAMPLE, _PROMPT]

    def _questions(self, batch: DocumentBatch, owners: list[Owner]) -> Iterator[list[Question]]:
        samples = batch.column(_SAMPLE).to_pylist()
        for group in super()._questions(batch, owners):
            for question, owner in zip(reversed(group), reversed(owners), strict=False):
                question.key = answer_key(self._prefix + samples[owner[0]].to_bytes(8, "little"), question.messages)
            yield group

    def _joined(self, column: str, values: list[Any]) -> Any:
        return super()._joined(column, [None if value is None else without_asterisks(value) for value in values])

    def process(self, batch: DocumentBatch) -> DocumentBatch:
        return super().process(batch).select([_TEXT])


def without_asterisks(text: str) -> str:
    """The text without the asterisks by which models mark emphasis.

    Example:
        >>> without_asterisks("**Bold** and *so* on")
        'Bold and so on'
    """
    return text.replace("*", "")
