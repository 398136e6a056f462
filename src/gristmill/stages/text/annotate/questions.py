"""Gets an answer for every question: from the cache, else from the model, within the budget."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gristmill.errors import LLMBudgetError, LLMRequestError, LLMServerError
from gristmill.ledger.record.answer_cache import AnswerCache, CachedAnswer, Spent, answer_key
from gristmill.models.client.event_loop import BackgroundLoop
from gristmill.models.client.llm_client import Answer, AsyncLLMClient, GenerationConfig
from gristmill.stages.text.annotate.budget import SharedBudget, worst_case
from gristmill.stages.text.annotate.structured import InvalidAnswerError

Messages = list[dict[str, str]]

NO_ANSWER, REFUSED = "llm_no_answer", "llm_request_refused"
INVALID, NO_TEXT, TRUNCATED = "llm_invalid_answer", "llm_no_text", "llm_answer_truncated"
"""Causes under which documents are quarantined."""
_BYTES_PER_TOKEN = 3
"""For servers that do not count tokens; few texts have more tokens than this suggests."""


@dataclass(slots=True)
class Question:
    """What to ask, and the partition and row of the document that it is about."""

    key: bytes
    messages: Messages
    source: tuple[str, int]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no usable answer; `text` is the answer, if there was one."""

    cause: str
    detail: str
    text: str | None = None
    passing: bool = False


Reply = tuple[Any, Failure | None]


@dataclass(slots=True)
class Figures:
    """What a call of the stage took."""

    requests: int = 0
    cached: int = 0
    repaired: int = 0
    overloads: int = 0
    spent: Spent = field(default_factory=Spent)


class Questioner:
    """One per worker: the client with its connections, the cache, the budget and the event loop.

    Args:
        client: Reaches the model.
        cache: Keeps answers; None keeps none.
        budget: Limits what is spent.
        stage: The name of the stage.
        model: The model to ask.
        config: How it generates.
        prefix: Begins every key.
        check: Turns the text of an answer into a value, or raises `InvalidAnswerError`.
        repair: The message that asks for a better answer, given what is wrong; None asks no second time.
        keeps_truncated: Accept answers that end because they reached `max_tokens`.
    """

    def __init__(
        self,
        client: AsyncLLMClient,
        cache: AnswerCache | None,
        budget: SharedBudget,
        *,
        stage: str,
        model: str,
        config: GenerationConfig,
        prefix: bytes,
        check: Callable[[str], Any],
        repair: Callable[[str], str] | None,
        keeps_truncated: bool,
    ) -> None:
        self.figures = Figures()
        self._client, self._cache, self._budget = client, cache, budget
        self._stage, self._model, self._config, self._prefix = stage, model, config, prefix
        self._check, self._repair, self._keeps_truncated = check, repair, keeps_truncated
        self._loop: BackgroundLoop | None = None
        self._under_way = 0
        self._freed: asyncio.Event | None = None
        self._stop: LLMServerError | LLMBudgetError | None = None

    def close(self) -> None:
        """Close connections and files, and end the event loop."""
        if self._loop is not None:
            self._loop.run(self._client.close())
            self._loop.close()
            self._loop = None
        if self._cache is not None:
            self._cache.close()
        self._budget.close()

    def replies(self, questions: Sequence[Question]) -> list[Reply]:
        """A value or a failure for each question, in their order.

        Raises:
            LLMServerError: The server cannot be reached or refuses everything, or answered none of the questions.
            LLMBudgetError: The next question could exceed the budget.
        """
        self.figures = Figures()
        if self._cache is not None:
            self._cache.refresh()
        found: list[Reply | None] = [None] * len(questions)
        open_ones: dict[bytes, list[int]] = {}
        cached: dict[bytes, CachedAnswer] = {}
        keys = [question.key for question in questions]
        for place, answer in enumerate(self._cached(keys)):
            if answer is not None:
                self.figures.cached += 1
                try:
                    found[place] = (self._value(answer.text, answer.finish_reason), None)
                    continue
                except (InvalidAnswerError, _UnusableError):
                    cached[keys[place]] = answer
            open_ones.setdefault(keys[place], []).append(place)
        if open_ones:
            if self._loop is None:
                self._client.setup()
                self._loop = BackgroundLoop()
            work = self._all([questions[places[0]] for places in open_ones.values()], cached)
            replies = self._loop.run(work)
            self._raise_if_stopped(replies, len(questions))
            for reply, places in zip(replies, open_ones.values(), strict=True):
                for place in places:
                    found[place] = reply
            if self._cache is not None:
                self._cache.sync()
        return [reply for reply in found if reply is not None]

    def _cached(self, keys: Sequence[bytes]) -> list[CachedAnswer | None]:
        return [None] * len(keys) if self._cache is None else self._cache.find(keys)

    def _raise_if_stopped(self, replies: Sequence[Reply | None], total: int) -> None:
        stop, self._stop = self._stop, None
        left = sum(reply is None for reply in replies)
        if isinstance(stop, LLMBudgetError):
            raise LLMBudgetError(
                f"{stop} {left:,} of {total:,} requests of this batch are still open. All answers so far are kept: "
                "raise the budget and run the same command again to resume.",
                **{**stop.facts, "open_requests": left},
            )
        if stop is not None:
            raise stop
        failures = [reply[1] for reply in replies if reply is not None]
        lost = [failure for failure in failures if failure is not None and failure.passing]
        if lost and len(lost) == len(failures):
            raise LLMServerError(
                f"The model server answered none of {len(lost):,} requests. The last one: {lost[-1].detail} Check the "
                "server, then run the same command again to resume.",
                can_be_retried=False,
            )

    # --- in the event loop ---

    async def _all(self, questions: Sequence[Question], cached: dict[bytes, CachedAnswer]) -> list[Reply | None]:
        replies: list[Reply | None] = [None] * len(questions)
        places = iter(range(len(questions)))
        self._freed = asyncio.Event()
        overloads = self._client.limit.overloads
        workers = min(self._client.max_concurrent_requests, len(questions))
        await asyncio.gather(*(self._work(questions, cached, replies, places) for _ in range(workers)))
        self.figures.overloads = self._client.limit.overloads - overloads
        return replies

    async def _work(
        self,
        questions: Sequence[Question],
        cached: dict[bytes, CachedAnswer],
        replies: list[Reply | None],
        places: Iterator[int],
    ) -> None:
        """Take the next question until there is none; after a stop only what is under way is awaited and kept."""
        for place in places:
            if self._stop is not None:
                return
            question = questions[place]
            try:
                replies[place] = await self._reply(question, cached.get(question.key))
            except (LLMServerError, LLMBudgetError) as error:
                self._stop = self._stop or error
            except LLMRequestError as error:
                cause = NO_ANSWER if error.can_be_retried else REFUSED
                replies[place] = (None, Failure(cause, str(error), passing=error.can_be_retried))

    async def _reply(self, question: Question, answer: CachedAnswer | None) -> Reply:
        messages = question.messages
        if answer is None:
            answer = await self._asked(question.key, messages, question.source)
        try:
            return self._value(answer.text, answer.finish_reason), None
        except _UnusableError as error:
            return None, Failure(error.cause, str(error), answer.text)
        except InvalidAnswerError as error:
            problem = str(error)
        if self._repair is None:
            return None, Failure(INVALID, problem, answer.text)
        again = [
            *messages,
            {"role": "assistant", "content": answer.text or ""},
            {"role": "user", "content": self._repair(problem)},
        ]
        key = answer_key(self._prefix, again)
        second = self._cached([key])[0]
        if second is None:
            second = await self._asked(key, again, question.source)
        try:
            value = self._value(second.text, second.finish_reason)
        except _UnusableError as error:
            return None, Failure(error.cause, f"{problem}; asked to repair it: {error}", second.text or answer.text)
        except InvalidAnswerError as error:
            return None, Failure(INVALID, f"{problem}; asked to repair it: {error}", second.text)
        self.figures.repaired += 1
        return value, None

    def _value(self, text: str | None, finish_reason: str) -> Any:
        if not text:
            raise _UnusableError(NO_TEXT, f"the model returned no text (finish_reason={finish_reason!r})")
        if finish_reason == "length" and not self._keeps_truncated:
            raise _UnusableError(
                TRUNCATED,
                f"the answer was cut off at max_tokens={self._config.max_tokens}; raise it, or accept such answers "
                "with truncated='keep'",
            )
        return self._check(text)

    async def _asked(self, key: bytes, messages: Messages, source: tuple[str, int]) -> CachedAnswer:
        """The answer of the model; reserved in the budget before, recorded at once."""
        worst = worst_case(messages, self._config.max_tokens or 0)
        await self._reserve(worst)
        spent = Spent()
        self._under_way += 1
        try:
            self.figures.requests += 1
            answer = await self._client.answer(messages=messages, model=self._model, generation_config=self._config)
            spent = _spent(answer, messages)
            self.figures.spent += spent
            if self._cache is None:
                text = answer.texts[0] if answer.texts else None
                reason = answer.finish_reasons[0] if answer.finish_reasons else ""
                return CachedAnswer(key.hex(), self._stage, self._model, answer.model, text, reason, 0, 0, 0.0, source)
            return self._cache.add(key, answer, stage=self._stage, model=self._model, spent=spent, source=source)
        finally:
            self._under_way -= 1
            self._budget.settle(worst, spent)
            if self._freed is not None:
                self._freed.set()

    async def _reserve(self, worst: Spent) -> None:
        """Wait until the worst case of a request fits beside what is under way.

        Raises:
            LLMBudgetError: Nothing is under way, and it does not fit.
        """
        assert self._freed is not None
        while not self._budget.reserve(worst):
            if self._stop is not None:
                raise self._stop
            if self._under_way == 0:
                spent, limits = self._budget.spent, self._budget.limits
                raise LLMBudgetError(
                    f"Stage {self._stage!r} has spent {limits.describe(spent)}, and the next request may take up to "
                    f"{worst.tokens:,} tokens, so it stopped before the budget is exceeded.",
                    stage=self._stage,
                    file=None,
                    row=None,
                    traceback=None,
                    can_be_ignored=False,
                    spent_tokens=spent.tokens,
                    spent_cost=limits.cost_of(spent),
                )
            self._freed.clear()
            await self._freed.wait()


class _UnusableError(Exception):
    """An answer that asking again would not improve."""

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause


def _spent(answer: Answer, messages: Messages) -> Spent:
    """The tokens of an answer, estimated by their bytes where the server does not say."""
    prompt, completion = answer.prompt_tokens, answer.completion_tokens
    if prompt is None:
        prompt = sum(len(message["content"].encode()) for message in messages) // _BYTES_PER_TOKEN + 1
    if completion is None:
        completion = sum(len((text or "").encode()) for text in answer.texts) // _BYTES_PER_TOKEN + 1
    return Spent(prompt, completion)
