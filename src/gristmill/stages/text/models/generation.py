"""Language models in this process: clients that answer concurrent requests in batches."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gristmill.errors import LLMRequestError, UsageError, did_you_mean, require_module
from gristmill.models.client.llm_client import Answer, AsyncLLMClient, ConversationFormatter, GenerationConfig, Messages
from gristmill.stages.text.models.model import check_positive
from gristmill.stages.text.models.sources import Secret, check_identifier, check_model, fetch_model, folder_digest, hide

_DTYPES = ("auto", "float32", "bfloat16", "float16")
_EXTRA = ("no_repeat_ngram_size", "repetition_penalty")


@dataclass(slots=True)
class Question:
    """One request of a batch."""

    messages: list[dict[str, Any]]
    config: GenerationConfig
    template: dict[str, Any]
    schema: Mapping[str, Any] | None = None


class InProcessClient(AsyncLLMClient):
    """A client whose model runs in this process: concurrent requests are answered in one batch.

    A subclass loads the model in `setup` and implements `answer_batch`, which runs in a separate thread.

    Args:
        model_identifier: A hub id, a local folder, or `package:NAME`.
        batch_size: Maximum number of requests per batch.
        cache_dir: Cache folder for downloads; None for the hub's default.
        hf_token: Access token for gated models; it is never shown.
    """

    def __init__(
        self,
        model_identifier: str,
        *,
        batch_size: int,
        cache_dir: str | None = None,
        hf_token: str | Secret | None = None,
    ) -> None:
        check_positive("batch_size", batch_size)
        # While one batch is answered, the next one gathers.
        super().__init__(max_concurrent_requests=2 * batch_size, max_retries=0)
        self.model_identifier = check_identifier(model_identifier)
        self.batch_size = batch_size
        self.cache_dir = cache_dir
        self._hf_token = hide(hf_token)
        self._waiting: list[tuple[Question, asyncio.Future[Answer]]] = []
        self._worker: asyncio.Task[None] | None = None
        self._thread: ThreadPoolExecutor | None = None

    @abstractmethod
    def answer_batch(self, questions: Sequence[Question]) -> list[Answer | LLMRequestError]:
        """An answer to each request, or the error if there is none."""

    def check_environment(self) -> None:
        """Reject a missing model."""
        check_model(self.model_identifier, cache_dir=self.cache_dir, token=self._hf_token, files=["*.safetensors"])

    def content_digest(self) -> str | None:
        """The digest of a local model folder."""
        return folder_digest(self.model_identifier)

    def fetched(self) -> Path:
        """The local folder of the model, downloaded if needed."""
        return fetch_model(self.model_identifier, cache_dir=self.cache_dir, token=self._hf_token)

    async def close(self) -> None:
        """Stop the thread and release the model."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown(wait=True)

    async def _answer_impl(
        self,
        *,
        messages: Messages,
        model: str,
        conversation_formatter: ConversationFormatter | None,
        generation_config: GenerationConfig,
    ) -> Answer:
        if model and model != self.model_identifier:
            raise UsageError(
                f"{type(self).__name__} has loaded {self.model_identifier!r}, but the request is for the model "
                f"{model!r}: use the same name for both."
            )
        conversation = [dict(message) for message in messages]
        if conversation_formatter is not None:
            conversation = [{"role": "user", "content": conversation_formatter.format_conversation(conversation)}]
        question = _question(conversation, generation_config)
        loop = asyncio.get_running_loop()
        place: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((question, place))
        if self._worker is None or self._worker.done() or self._worker.get_loop() is not loop:
            self._worker = loop.create_task(self._work())
        return await place

    async def _work(self) -> None:
        """Answer waiting requests, batch by batch, until none is left."""
        await asyncio.sleep(0)  # questions that were asked in the same moment join the first batch
        loop = asyncio.get_running_loop()
        while self._waiting:
            batch, self._waiting = self._waiting[: self.batch_size], self._waiting[self.batch_size :]
            batch = [entry for entry in batch if not entry[1].done()]
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="gristmill-model")
            try:
                answers = await loop.run_in_executor(self._thread, self.answer_batch, [asked for asked, _ in batch])
            except BaseException as error:
                for _, place in batch:
                    if not place.done():
                        place.set_exception(error)
                if not isinstance(error, Exception):
                    raise
                continue
            for (_, place), answer in zip(batch, answers, strict=True):
                if place.done():
                    continue
                if isinstance(answer, Answer):
                    place.set_result(answer)
                else:
                    place.set_exception(answer)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_waiting": [], "_worker": None, "_thread": None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model_identifier!r}, batch_size={self.batch_size})"


def answer_in_parts(
    questions: Sequence[Question],
    answer: Callable[[Sequence[Question]], list[Answer | LLMRequestError]],
    is_of_questions: Callable[[Exception], bool],
) -> list[Answer | LLMRequestError]:
    """Answer a batch, split into halves if it fails as a whole, so that one failing request does not affect the others.

    Args:
        questions: The batch.
        answer: Answers several requests, or raises.
        is_of_questions: Whether fewer requests at once may avoid an exception; others are raised.
    """
    try:
        return answer(questions)
    except Exception as error:
        if not is_of_questions(error):
            raise
        if len(questions) == 1:
            said = " ".join(str(error).split())[:300]
            return [LLMRequestError(f"The model cannot answer ({type(error).__name__}: {said}).", can_be_retried=False)]
    middle = len(questions) // 2
    return [
        *answer_in_parts(questions[:middle], answer, is_of_questions),
        *answer_in_parts(questions[middle:], answer, is_of_questions),
    ]


class TransformersClient(InProcessClient):
    """Runs a transformers model in this process, on a GPU if available, otherwise on the CPU.

    Meant for small models; for large ones, run a server. Sampling depends only on the request and the seed, not on
    other requests of the batch. (Batches are padded, which may change the last bits of a probability; use
    `batch_size=1` to rule that out.) A JSON schema is not enforced during generation: `LLMStage` checks the answer.
    Code that comes with a model is never run.

    Args:
        model_identifier: A hub id, a local folder, or `package:NAME`. Requests must use the same name.
        batch_size: Maximum number of requests per batch.
        dtype: Type of the weights: `float32`, `bfloat16`, `float16`, or `auto` for the fastest on the device.
        cache_dir: Cache folder for downloads; None for the hub's default.
        hf_token: Access token for gated models; it is never shown.

    Example:
        >>> TransformersClient("Qwen/Qwen2.5-0.5B-Instruct", batch_size=8)
        TransformersClient('Qwen/Qwen2.5-0.5B-Instruct', batch_size=8)
    """

    def __init__(
        self,
        model_identifier: str,
        *,
        batch_size: int = 16,
        dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto",
        cache_dir: str | None = None,
        hf_token: str | Secret | None = None,
    ) -> None:
        super().__init__(model_identifier, batch_size=batch_size, cache_dir=cache_dir, hf_token=hf_token)
        if dtype not in _DTYPES:
            raise UsageError(
                f"dtype={dtype!r}: must be one of {', '.join(_DTYPES)}.{did_you_mean(str(dtype), _DTYPES)}"
            )
        self.dtype = dtype
        self._model: Any = None
        self._tokenizer: Any = None

    def check_environment(self) -> None:
        """Reject a missing package or model."""
        for module in ("torch", "transformers"):
            require_module(module, "TransformersClient")
        super().check_environment()

    def setup(self) -> None:
        """Load the tokenizer and the network."""
        if self._model is not None:
            return
        self.check_environment()
        import torch

        from gristmill.stages.text.models.devices import choose_device, faster_type
        from gristmill.stages.text.models.loading import load_network, load_tokenizer

        folder = self.fetched()
        device = choose_device()
        auto = faster_type(device.type) or torch.float32
        kind = auto if self.dtype == "auto" else getattr(torch, self.dtype)
        self._tokenizer = load_tokenizer(folder, padding_side="left")
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token or self._tokenizer.unk_token
        self._model = load_network("AutoModelForCausalLM", folder, dtype=kind).to(device)

    async def close(self) -> None:
        """Stop the thread and release the model."""
        await super().close()
        self._model = self._tokenizer = None

    def answer_batch(self, questions: Sequence[Question]) -> list[Answer | LLMRequestError]:
        """The answers to a batch; requests with the same settings are generated together."""
        self.setup()
        answers: list[Answer | LLMRequestError | None] = [None] * len(questions)
        groups: dict[str, list[int]] = {}
        for place, question in enumerate(questions):
            groups.setdefault(repr(question.config), []).append(place)
        from gristmill.stages.text.models.devices import is_out_of_memory

        for places in groups.values():
            found = answer_in_parts([questions[place] for place in places], self._generate, is_out_of_memory)
            for place, answer in zip(places, found, strict=True):
                answers[place] = answer
        return [answer for answer in answers if answer is not None]

    def _generate(self, questions: Sequence[Question]) -> list[Answer | LLMRequestError]:
        config = questions[0].config
        prompts = [self._tokens(question) for question in questions]
        limit, wanted = self._longest(), config.max_tokens or 2048
        fits = [limit is None or len(prompt) + wanted <= limit for prompt in prompts]
        rows = [prompt for prompt, fit in zip(prompts, fits, strict=True) if fit for _ in range(config.n or 1)]
        made = iter(self._completed(rows, config, wanted) if rows else ())
        answers: list[Answer | LLMRequestError] = []
        for prompt, fit in zip(prompts, fits, strict=True):
            if not fit:
                told = f"The prompt has {len(prompt):,} tokens; with max_tokens={wanted:,} that is more than "
                told += f"the {limit:,} that {self.model_identifier} supports. Lower max_tokens, or split the document."
                answers.append(LLMRequestError(told, can_be_retried=False))
                continue
            texts, counts, reasons = zip(*(next(made) for _ in range(config.n or 1)), strict=True)
            answers.append(Answer(texts, self.model_identifier, len(prompt), sum(counts), reasons))
        return answers

    def _tokens(self, question: Question) -> list[int]:
        """The tokens of the prompt; without a chat template, messages are joined by blank lines."""
        if self._tokenizer.chat_template:
            text = self._tokenizer.apply_chat_template(
                question.messages, add_generation_prompt=True, tokenize=False, **question.template
            )
            found: list[int] = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
            return found
        text = "\n\n".join(str(message.get("content") or "") for message in question.messages)
        return list(self._tokenizer(text, verbose=False)["input_ids"])

    def _longest(self) -> int | None:
        found = getattr(self._model.config, "max_position_embeddings", None)
        return found if isinstance(found, int) and found > 0 else None

    def _completed(self, rows: list[list[int]], config: GenerationConfig, wanted: int) -> list[tuple[str, int, str]]:
        """The text, the number of tokens and the finish reason of each row."""
        import torch

        stops = [config.stop] if isinstance(config.stop, str) else list(config.stop or ())
        padded = self._tokenizer.pad({"input_ids": rows}, return_tensors="pt").to(self._model.device)
        options: dict[str, Any] = {name: value for name, value in (config.extra_kwargs or {}).items() if name in _EXTRA}
        if stops:
            width = padded["input_ids"].shape[1]
            options["stopping_criteria"] = [StopTexts(stops, self._tokenizer, width)]
        if config.temperature:
            options["logits_processor"] = [SeededSampling(config, len(rows), self._model.device)]
        with torch.inference_mode():
            made = self._model.generate(
                **padded,
                **options,
                do_sample=False,
                num_beams=1,
                temperature=None,
                top_p=None,
                top_k=None,
                max_new_tokens=wanted,
                pad_token_id=self._tokenizer.pad_token_id,
            )
        ends = self._model.generation_config.eos_token_id
        ends = set(ends) if isinstance(ends, list | tuple) else {ends}
        width = padded["input_ids"].shape[1]
        return [self._decoded(row[width:].tolist(), ends, stops, wanted) for row in made]

    def _decoded(self, tokens: list[int], ends: set[Any], stops: list[str], wanted: int) -> tuple[str, int, str]:
        end = next((place for place, token in enumerate(tokens) if token in ends), None)
        count = len(tokens) if end is None else end + 1
        text = self._tokenizer.decode(tokens[:count], skip_special_tokens=True)
        cuts = [place for place in map(text.find, stops) if place >= 0]
        if cuts:
            return text[: min(cuts)], count, "stop"
        return text, count, "stop" if end is not None or count < wanted else "length"

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_model": None, "_tokenizer": None}


class StopTexts:
    """Ends a row at one of the stop texts; the criterion of transformers does not support every tokenizer.

    Args:
        stops: The texts.
        tokenizer: Turns tokens into text.
        start: Number of tokens in the prompt.
    """

    def __init__(self, stops: Sequence[str], tokenizer: Any, start: int) -> None:
        self._stops, self._tokenizer, self._start = stops, tokenizer, start
        self._window = max(map(len, stops)) + 4  # a token is a character at least, but for parts of one

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        """Whether each row is done."""
        import torch

        ends = input_ids[:, self._start :][:, -self._window :]
        texts = self._tokenizer.batch_decode(ends, skip_special_tokens=True)
        found = [any(stop in text for stop in self._stops) for text in texts]
        return torch.tensor(found, dtype=torch.bool, device=input_ids.device)


class SeededSampling:
    """Makes greedy decoding sample from the model's distribution, with a random generator for each row.

    Adding Gumbel noise to the logarithms of probabilities and taking the largest draws from the distribution (Gumbel
    1954; Maddison et al., "A* Sampling", 2014). Each row has its own generator, so its samples do not depend on its
    neighbours, as they would with torch's shared generator.

    Args:
        config: Temperature, `top_k`, `top_p` and the seed; without a seed, every call samples anew.
        rows: Number of rows.
        device: Where the scores are.
    """

    def __init__(self, config: GenerationConfig, rows: int, device: Any) -> None:
        import torch
        from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

        self._warpers: list[Any] = [TemperatureLogitsWarper(float(config.temperature or 1.0))]
        if config.top_k:
            self._warpers.append(TopKLogitsWarper(config.top_k))
        if config.top_p is not None and config.top_p < 1.0:
            self._warpers.append(TopPLogitsWarper(config.top_p))
        self._generators = [torch.Generator(device) for _ in range(rows)]
        for row, generator in enumerate(self._generators):
            if config.seed is None:
                generator.seed()
            else:
                generator.manual_seed(config.seed + row % (config.n or 1))

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """The scores with noise; the largest is that of the sampled token."""
        import torch

        scores = scores.float()
        for warper in self._warpers:
            scores = warper(input_ids, scores)
        rows = zip(scores, self._generators, strict=True)
        waits = torch.stack([torch.empty_like(row).exponential_(generator=own) for row, own in rows])
        return scores - waits.log()


def _question(messages: list[dict[str, Any]], config: GenerationConfig) -> Question:
    """The request with its extra fields; those that only a server supports are rejected."""
    extra = dict(config.extra_kwargs or {})
    extra |= extra.pop("extra_body", None) or {}
    template = extra.pop("chat_template_kwargs", None) or {}
    wanted = extra.pop("response_format", None) or {}
    schema = wanted.get("json_schema", {}).get("schema") if wanted.get("type") == "json_schema" else None
    unknown = sorted(set(extra) - set(_EXTRA))
    if unknown:
        known = (*_EXTRA, "chat_template_kwargs", "response_format")
        raise UsageError(
            f"extra_kwargs has {unknown[0]!r}, which a model in this process does not "
            f"support.{did_you_mean(unknown[0], known)} Supported: {', '.join(known)}."
        )
    own = GenerationConfig(**{**vars(config), "extra_kwargs": extra or None})
    return Question(messages, own, dict(template), schema)
