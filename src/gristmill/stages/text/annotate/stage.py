"""The stage that asks a language model about every document."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import orjson
import pyarrow as pa

from gristmill.errors import PlanningError, UsageError, did_you_mean
from gristmill.execution.failures import quarantined_row
from gristmill.ledger.record.answer_cache import AnswerCache, Spent, answer_key, key_prefix, record_id
from gristmill.models.client.llm_client import AsyncLLMClient, GenerationConfig
from gristmill.models.client.openai_client import AsyncOpenAIClient
from gristmill.stages.base import ProcessingStage, Spec
from gristmill.stages.text.annotate.budget import Limits, SharedBudget, reset_budget
from gristmill.stages.text.annotate.prompts import PromptTemplate, chunks_of, spaced_chunks
from gristmill.stages.text.annotate.questions import INVALID, Failure, Figures, Messages, Question, Questioner
from gristmill.stages.text.annotate.structured import (
    AnswerSchema,
    InvalidAnswerError,
    Spaced,
    check_join,
    column_of,
    join_suits,
    joined,
)
from gristmill.storage.files import is_local
from gristmill.tasks.document import DocumentBatch

if TYPE_CHECKING:
    from gristmill.backends.base import WorkerMetadata

ANSWERS_FOLDER = "answers"
"""The folder of the cache in the record of an output."""
Owner = tuple[int, str, str]
"""The row of a question, and the whitespace before and after its chunk."""
_RESPONSE_FORMATS = ("json_schema", "json_object", "none")
_SHOWN_ANSWER = 4000
_GROUP = 16
"""Number of prompts rendered ahead: few, so that responses arriving meanwhile do not wait."""
_REPAIR = (
    "That answer cannot be used: {problem}\n"
    "Answer again with nothing but one JSON object that follows this JSON schema:\n{schema}"
)


class LLMStage(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Sends every document to a language model and stores the answers in columns.

    The model runs on a server that speaks OpenAI's protocol (vLLM, TGI, SGLang, llama.cpp, a paid service), or behind
    any other `client`. Answers are cached in the record of the output: an interrupted run resumes without paying for an
    answer twice, and after a prompt change, only requests that actually differ are sent. A document with an unusable
    answer is quarantined together with that answer.

    Args:
        prompt: Jinja template of the user message; its variables are the columns of the document. If documents are
            split into chunks, `chunk_index` and `chunk_count` are also available.
        model: Model name on the server.
        client: Client of the model; defaults to an `AsyncOpenAIClient` with the options below.
        base_url: URL of the server, usually ending in `/v1`; defaults to the environment variable OPENAI_BASE_URL.
        api_key_env: Environment variable that holds the API key; defaults to OPENAI_API_KEY, if set.
        system_prompt: Jinja template of the system message.
        generation_config: Sampling parameters: a `GenerationConfig` or its fields as a mapping.
        output_field: Column for the text of the answer; not used with `json_schema`.
        json_schema: JSON schema of an object that every answer must match. An invalid answer is sent back once for
            repair; if that fails, the document is quarantined.
        fields: Properties of the schema to keep: a list, or a mapping of properties to columns. None keeps all.
        response_format: How the schema is passed to the server: `json_schema`, `json_object` (which only requests
            JSON), or `none` for servers that support neither.
        text_field: Column to split into chunks; documents without text in it are skipped.
        max_chunk_chars: Split longer texts into chunks of at most this many characters.
        join: How to combine the answers to the chunks of a document: `concat`, `in_place` (with the original whitespace
            between them), `first`, `last`, `max`, `min`, `mean` or `most_frequent`; a mapping sets it per column.
            Required with `max_chunk_chars`.
        truncated: What to do with an answer that was cut off at `max_tokens`: `quarantine` its document, or `keep` it.
        max_concurrent_requests: Maximum number of concurrent requests per worker; reduced automatically while the
            server is overloaded. By default a stage has one worker.
        max_retries: Maximum number of retries per request.
        base_delay: Delay in seconds before the first retry; doubled for each further one.
        timeout_s: Timeout of one attempt in seconds.
        budget_tokens: Maximum number of tokens to spend on an output; the run stops before exceeding it. None for no
            limit.
        budget_cost: Maximum cost of an output; the run stops before exceeding it. Needs the prices.
        input_price: Price of a million tokens in requests.
        output_price: Price of a million tokens in answers.
        cache_dir: Local folder for the cache, instead of the record of the output.

    Example:
        >>> stage = LLMStage(
        ...     "Rate the educational value of this text from 0 to 5: {{ text }}",
        ...     model="my-model",
        ...     base_url="http://localhost:8000/v1",
        ...     json_schema={"type": "object", "properties": {"score": {"type": "integer"}}, "required": ["score"]},
        ...     fields={"score": "edu_score"},
        ... )
        >>> stage.inputs()[1], stage.outputs()[1]
        (['text'], ['edu_score'])
    """

    name = "llm"
    needs_own_worker = True
    notes_changes = True

    def __init__(
        self,
        prompt: str,
        *,
        model: str,
        client: AsyncLLMClient | None = None,
        base_url: str | None = None,
        api_key_env: str | None = None,
        system_prompt: str | None = None,
        generation_config: GenerationConfig | Mapping[str, Any] | None = None,
        output_field: str = "answer",
        json_schema: Mapping[str, Any] | None = None,
        fields: Mapping[str, str] | Sequence[str] | None = None,
        response_format: Literal["json_schema", "json_object", "none"] = "json_schema",
        text_field: str = "text",
        max_chunk_chars: int | None = None,
        join: str | Mapping[str, str] | None = None,
        truncated: Literal["quarantine", "keep"] = "quarantine",
        max_concurrent_requests: int = 64,
        max_retries: int = 5,
        base_delay: float = 1.0,
        timeout_s: float = 300.0,
        budget_tokens: int | None = None,
        budget_cost: float | None = None,
        input_price: float = 0.0,
        output_price: float = 0.0,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self.prompt = prompt
        self.system_prompt = system_prompt
        self.model = model
        self.generation_config = GenerationConfig.of(generation_config)
        self.output_field = output_field
        self.json_schema = dict(json_schema) if isinstance(json_schema, Mapping) else json_schema
        self.fields = fields
        self.response_format = response_format
        self.text_field = text_field
        self.max_chunk_chars = max_chunk_chars
        self.join = join
        self.truncated = truncated
        self.cache_dir = None if cache_dir is None else os.fspath(cache_dir)
        # How to reach the model and what to spend decide nothing about the answers: private, so no part of the plan.
        self._client = client
        self._options = {
            "max_concurrent_requests": max_concurrent_requests,
            "max_retries": max_retries,
            "base_delay": base_delay,
            "base_url": base_url,
            "api_key_env": api_key_env,
            "timeout": timeout_s,
        }
        self._limits = Limits(budget_tokens, budget_cost, input_price, output_price)
        self._record: str | None = None
        self._questioner: Questioner | None = None
        self._check_parameters()

    def _check_parameters(self) -> None:
        for parameter in ("prompt", "model"):
            value = getattr(self, parameter)
            if not isinstance(value, str) or not value.strip():
                raise UsageError(f"LLMStage({parameter}={value!r}): must be a non-empty string.")
        for parameter, known in (("response_format", _RESPONSE_FORMATS), ("truncated", ("quarantine", "keep"))):
            value = getattr(self, parameter)
            if value not in known:
                raise UsageError(
                    f"LLMStage({parameter}={value!r}): choose one of {', '.join(known)}."
                    f"{did_you_mean(str(value), known)}"
                )
        if self._client is not None and (self._options["base_url"] or self._options["api_key_env"]):
            raise UsageError("LLMStage: pass either client or base_url and api_key_env: a client has its own settings.")
        if self._client is not None and not isinstance(self._client, AsyncLLMClient):
            raise UsageError(f"LLMStage(client={self._client!r}): must be a client such as AsyncOpenAIClient.")
        if self.json_schema is None and self.fields is not None:
            raise UsageError("LLMStage(fields=…) needs json_schema: fields are its properties.")
        answers = (self.generation_config.extra_kwargs or {}).get("n", self.generation_config.n)
        if answers not in (None, 1):
            raise UsageError(
                f"LLMStage: generation_config asks for n={answers} answers, but a document has only one. Use "
                "several stages with different seeds and names."
            )
        self._limits.check()
        if self._limits.is_limited and self.generation_config.max_tokens is None:
            raise UsageError("LLMStage: a budget needs generation_config.max_tokens, the maximum length of an answer.")
        self._check_chunks()
        self._made_client()

    def _check_chunks(self) -> None:
        if self.max_chunk_chars is None:
            return
        if type(self.max_chunk_chars) is not int or self.max_chunk_chars < 1:
            raise UsageError(f"LLMStage(max_chunk_chars={self.max_chunk_chars!r}): must be at least 1, or None.")
        if self.join is None:
            raise UsageError(
                "LLMStage(max_chunk_chars=…) needs join, which combines the answers to the chunks of a document: "
                "join='concat' for texts, join='mean' for a score."
            )
        columns = self._columns()
        for column in self.join if isinstance(self.join, Mapping) else ():
            if column not in columns:
                raise UsageError(
                    f"LLMStage: join names {column!r}, which is not one of the columns {', '.join(columns)}."
                    f"{did_you_mean(column, columns)}"
                )
        for column, kind in columns.items():
            join = self._join_of(column)
            if not join_suits(join, kind):
                shown = "JSON" if kind is None else str(kind)
                raise UsageError(f"LLMStage: join={join!r} does not apply to column {column!r}, which holds {shown}.")

    # --- inputs and outputs ---

    @cached_property
    def _schema(self) -> AnswerSchema | None:
        return None if self.json_schema is None else AnswerSchema(self.json_schema, self.fields)

    @cached_property
    def _templates(self) -> tuple[PromptTemplate, PromptTemplate | None]:
        system = None if self.system_prompt is None else PromptTemplate(self.system_prompt, "system_prompt")
        return PromptTemplate(self.prompt), system

    def _columns(self) -> dict[str, pa.DataType | None]:
        """The columns that it writes, with their types; None for a column of JSON."""
        if self._schema is None:
            return {self.output_field: pa.large_string()}
        return {column: self._schema.type_of(name) for name, column in self._schema.columns.items()}

    def _join_of(self, column: str) -> str:
        join = self.join.get(column) if isinstance(self.join, Mapping) else self.join
        if join is None and self.max_chunk_chars is None:
            return "first"  # of one
        if join is None:
            raise UsageError(f"LLMStage: join is not set for column {column!r}.")
        check_join(join, f"LLMStage(join=…) for column {column!r}")
        return join

    def _variables(self) -> list[str]:
        found = {name for template in self._templates if template is not None for name in template.columns}
        return sorted(found | ({self.text_field} if self.max_chunk_chars is not None else set()))

    def inputs(self) -> Spec:
        """The columns that the templates use."""
        return ["data"], self._variables()

    def outputs(self) -> Spec:
        """The columns with the answers."""
        return ["data"], list(self._columns())

    def filled_columns(self) -> list[str]:
        """The answer columns that are not also read."""
        return [name for name in self._columns() if name not in self._variables()]

    def num_workers(self) -> int | None:
        """One: a single worker is enough to keep a server busy."""
        return 1

    @property
    def kept_elsewhere(self) -> str | None:  # type: ignore[override]
        """The folder of the cache, if it is not in the record of the output."""
        return None if self.cache_dir is None else os.path.abspath(self.cache_dir)

    @property
    def overlaps_calls(self) -> bool:  # type: ignore[override]
        """Whether the model is on a server; an in-process model is called from the thread that loaded it."""
        return isinstance(self._made_client(), AsyncOpenAIClient)

    # --- the life of a run ---

    def content_digest(self) -> str | None:
        """The digest of the client's files, if the model runs in this process."""
        return None if self._client is None else self._client.content_digest()

    def check_environment(self) -> None:
        """Reject an invalid template or schema, a missing package, or an API key that is not set."""
        self._variables()
        if self._schema is not None:
            self._schema.check()
        self._made_client().check_environment()

    def keep_record(self, folder: str) -> None:
        """Use the record of the output as the cache.

        Raises:
            PlanningError: The record is in an object store, where files cannot be appended to.
        """
        if self.cache_dir is None and not is_local(folder):
            raise PlanningError(
                f"Stage {self.name!r} caches the model's answers in the record of the output, {folder}, which is not "
                "a local folder. Set cache_dir='…' to a local folder that all workers share, or use a local folder "
                "for the record with --record (record_path=…).",
                stage=self.name,
            )
        self._record = folder

    def begin_run(self) -> None:
        """Compute the cost of the answers so far: a budget covers all runs on an output together."""
        folder = self._cache_folder()
        if self._limits.is_limited and folder is not None:
            cache = AnswerCache(folder)
            cache.refresh()
            reset_budget(self._budget_path(folder), cache.spent_by(self.name))
            cache.close()

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        """Open the cache; connections are opened by the first request."""
        folder = self._cache_folder()
        record = "" if self.cache_dir is None or self._record is None else record_id(self._record)
        cache = None if folder is None else AnswerCache(folder, record)
        path = None if folder is None or not self._limits.is_limited else self._budget_path(folder)
        schema = self._schema
        config, extra = self.generation_config, dict(self.generation_config.extra_kwargs or {})
        if schema is not None and self.response_format != "none":
            of_schema = schema.response_format() if self.response_format == "json_schema" else {"type": "json_object"}
            extra.setdefault("response_format", of_schema)
            config = replace(config, extra_kwargs=extra)
        self._prefix = self._key_prefix()
        self._questioner = Questioner(
            self._made_client(),
            cache,
            SharedBudget(path, self._limits),
            stage=self.name,
            model=self.model,
            config=config,
            prefix=self._prefix,
            check=str if schema is None else schema.parse,
            repair=None if schema is None else partial(_repair_message, orjson.dumps(schema.schema).decode()),
            keeps_truncated=self.truncated == "keep",
        )

    def teardown(self) -> None:
        """Close connections and the cache."""
        questioner, self._questioner = self._questioner, None
        if questioner is not None:
            questioner.close()

    def _made_client(self) -> AsyncLLMClient:
        return self._client if self._client is not None else AsyncOpenAIClient(**self._options)  # type: ignore[arg-type]

    def _cache_folder(self) -> str | None:
        if self.cache_dir is not None:
            return self.cache_dir
        return None if self._record is None else f"{self._record}/{ANSWERS_FOLDER}"

    def _budget_path(self, folder: str) -> str:
        return f"{folder}/{key_prefix(self.name, None).hex()[:16]}.budget"

    def _key_prefix(self) -> bytes:
        """What an answer depends on besides the messages; not streaming, nor the address of the server."""
        parameters = asdict(self.generation_config)
        del parameters["stream"]
        schema = None if self.json_schema is None else [self.json_schema, self.response_format]
        return key_prefix(self.model, [parameters, schema])

    # --- the work ---

    def process(self, batch: DocumentBatch) -> DocumentBatch:
        """The batch with the answers; documents without a usable answer are quarantined."""
        if self._questioner is None:
            self.setup()
        questioner: Any = self._questioner
        owners: list[Owner] = []
        keeps_space = self.join == "in_place"
        replies, figures = questioner.replies(self._questions(batch, owners))
        self._log(figures)
        rows: list[list[Any]] = [[] for _ in range(batch.num_items)]
        failures: dict[int, Failure] = {}
        for owner, (value, failure) in zip(owners, replies, strict=True):
            if failure is not None:
                failures.setdefault(owner[0], failure)
            row, before, after = owner
            rows[row].append(Spaced(value, before, after) if keeps_space and isinstance(value, str) else value)
        columns = self._columns()
        made: list[list[Any]] = []
        for row, values in enumerate(rows):
            if row not in failures:
                try:
                    made.append([self._joined(column, values) for column in columns])
                except InvalidAnswerError as error:
                    failures[row] = Failure(INVALID, str(error))
        for row, failure in failures.items():
            self._quarantine(batch, row, failure)
        if failures:
            kept = np.ones(batch.num_items, bool)
            kept[list(failures)] = False
            batch = batch.take(np.flatnonzero(kept))
        for at, (column, kind) in enumerate(columns.items()):
            array, is_json = column_of([values[at] for values in made], kind, self._join_of(column))
            if batch.columns.has(column):
                _note_changes(batch, column, array)
            batch = batch.with_column(column, array, is_json=is_json)
        return batch

    def _questions(self, batch: DocumentBatch, owners: list[Owner]) -> Iterator[list[Question]]:
        """The questions about each document, a few documents at a time; appends the position of each to `owners`."""
        names = self._variables()
        values = {name: batch.columns.python_values(name) for name in names}
        texts = batch.text(self.text_field).to_pylist() if self.text_field in names else None
        rows, partition = batch.rows.tolist(), batch.partition_id
        group: list[Question] = []
        keeps_space = self.join == "in_place"
        for row in range(batch.num_items):
            text = None if texts is None else texts[row]
            if texts is not None and (not text or (keeps_space and text.isspace())):
                continue
            document = {name: values[name][row] for name in names}
            pieces: list[tuple[str | None, str, str]] = [(text, "", "")]
            if text is not None and keeps_space:
                pieces = list(spaced_chunks(text, self.max_chunk_chars))
            elif text is not None:
                pieces = [(piece, "", "") for piece in chunks_of(text, self.max_chunk_chars)]
            for index, (piece, before, after) in enumerate(pieces):
                shown = {**document, "chunk_index": index, "chunk_count": len(pieces)}
                if piece is not None:
                    shown[self.text_field] = piece
                messages = self._messages(shown)
                group.append(Question(answer_key(self._prefix, messages), messages, (partition, rows[row])))
                owners.append((row, before, after))
            if len(group) >= _GROUP:
                yield group
                group = []
        yield group

    def _messages(self, values: Mapping[str, Any]) -> Messages:
        prompt, system = self._templates
        made = [] if system is None else [{"role": "system", "content": system.render(values)}]
        return [*made, {"role": "user", "content": prompt.render(values)}]

    @cached_property
    def _properties(self) -> dict[str, tuple[str | None, str]]:
        """For each column, its property in answers, and how the values of chunks are combined."""
        names = {} if self._schema is None else {column: name for name, column in self._schema.columns.items()}
        return {column: (names.get(column), self._join_of(column)) for column in self._columns()}

    def _joined(self, column: str, values: list[Any]) -> Any:
        """The value of a document, combined from the answers to its chunks."""
        name, join = self._properties[column]
        return joined(values if name is None else [value.get(name) for value in values], join)

    def _quarantine(self, batch: DocumentBatch, row: int, failure: Failure) -> None:
        detail = failure.detail
        if failure.text is not None:
            more = "…" if len(failure.text) > _SHOWN_ANSWER else ""
            detail = f"{detail}\nThe answer of {self.model}:\n{failure.text[:_SHOWN_ANSWER]}{more}"
        batch.note_quarantine(quarantined_row(batch, row, stage=self.name, cause=failure.cause, detail=detail))

    def running_metrics(self) -> Mapping[str, float]:
        """Tokens and cost of calls that have not returned yet."""
        questioner = self._questioner
        return {} if questioner is None else self._tokens(questioner.spent_by_running_calls)

    def _tokens(self, spent: Spent) -> dict[str, float]:
        return {
            "llm_prompt_tokens": float(spent.prompt_tokens),
            "llm_completion_tokens": float(spent.completion_tokens),
            "llm_cost": self._limits.cost_of(spent),
        }

    def _log(self, figures: Figures) -> None:
        self._log_metrics(
            {
                "llm_requests": float(figures.requests),
                "llm_cached_answers": float(figures.cached),
                **self._tokens(figures.spent),
                "llm_seconds": figures.seconds,
                "llm_repaired_answers": float(figures.repaired),
                "llm_overloads": float(figures.overloads),
            }
        )


def _note_changes(batch: DocumentBatch, column: str, made: pa.Array) -> None:
    """Record which texts of an existing column were replaced by answers."""
    pairs = list(zip(batch.column(column).to_pylist(), made.to_pylist(), strict=True))
    texts = np.array([isinstance(old, str) and isinstance(new, str) and old != new for old, new in pairs], bool)
    grown = [len(new) - len(old) if text else 0 for (old, new), text in zip(pairs, texts, strict=True)]
    batch.note_change(column, texts, np.array(grown, np.int64))


def _repair_message(schema: str, problem: str) -> str:
    return _REPAIR.format(problem=problem, schema=schema)
