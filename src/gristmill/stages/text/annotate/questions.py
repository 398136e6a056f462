"""Gets a response to every request: from the cache, otherwise from the model, within the budget."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
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
"""For servers that do not report token counts; few texts have more tokens than this estimate."""
_UNANSWERED = 64
"""Number of failed requests in a row after which a server is considered down."""
_OTHERS_S, _LOOK_S = 60.0, 0.1
"""How long requests of other workers may stay unchanged in a budget, and how often that is looked at."""


@dataclass(slots=True)
class Question:
    """A request, with the partition and row of its document."""

    key: bytes
    messages: Messages
    source: tuple[str, int]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no usable response; `text` is the response, if there was one."""

    cause: str
    detail: str
    text: str | None = None
    passing: bool = False


Reply = tuple[Any, Failure | None]


@dataclass(slots=True)
class Figures:
    """Tokens and time used by a call of the stage; `seconds` excludes time counted by other calls."""

    requests: int = 0
    cached: int = 0
    repaired: int = 0
    overloads: int = 0
    spent: Spent = field(default_factory=Spent)
    begun: float = field(default_factory=time.monotonic)
    seconds: float = 0.0


@dataclass(slots=True)
class _Call:
    """The questions of one batch.

    Attributes:
        items: Yields the next question that needs the model, with its cached answer if that is not usable as is; None
            lets other work continue. It fills `replies` with cached answers along the way.
        asked: Positions in `replies` for each question.
        under_way: Number of questions in progress.
        is_exhausted: There are no more questions.
        stop: Why no more questions may be sent.
        done: Set when all work is done.
    """

    items: Iterator[tuple[Question, CachedAnswer | None] | None]
    done: asyncio.Future[None]
    replies: list[Reply | None] = field(default_factory=list)
    asked: dict[bytes, list[int]] = field(default_factory=dict)
    figures: Figures = field(default_factory=Figures)
    under_way: int = 0
    is_exhausted: bool = False
    stop: Exception | None = None


class Questioner:
    """One per worker: the client with its connections, the cache, the budget and the event loop.

    One coroutine per concurrent request processes questions one after another. When a batch runs out of questions, the
    coroutines continue with the next batch, if another thread has called `replies` for it, so that the server stays
    busy while the last answers to a batch are awaited. Cache, templates and budget belong to the thread of the event
    loop.

    Args:
        client: Client of the model.
        cache: Cache of answers; None for no cache.
        budget: Limit on tokens and cost.
        stage: The name of the stage.
        model: The model to ask.
        config: Sampling parameters.
        prefix: Prefix of every cache key.
        check: Turns the text of an answer into a value, or raises `InvalidAnswerError`.
        repair: Returns the message that requests a corrected answer, given the problem; None for no second attempt.
        keeps_truncated: Accept answers that were cut off at `max_tokens`.
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
        self._client, self._cache, self._budget = client, cache, budget
        self._stage, self._model, self._config, self._prefix = stage, model, config, prefix
        self._check, self._repair, self._keeps_truncated = check, repair, keeps_truncated
        self._loop: BackgroundLoop | None = None
        self._starting = threading.Lock()
        self._is_set_up = False
        self._calls: deque[_Call] = deque()
        self._workers: set[asyncio.Task[None]] = set()
        self._at_server: dict[bytes, asyncio.Future[CachedAnswer]] = {}
        self._recent: dict[bytes, CachedAnswer] = {}  # recorded since the cache was last refreshed
        self._under_way = 0
        self._overloads = 0
        self._unanswered = 0
        self._freed = asyncio.Event()
        self._running: list[Figures] = []
        self._counted_to = 0.0

    def close(self) -> None:
        """Close connections and files, and stop the event loop."""
        if self._loop is not None:
            self._loop.run(self._client.close())
            self._loop.close()
            self._loop = None
        if self._cache is not None:
            self._cache.close()
        self._budget.close()

    @property
    def spent_by_running_calls(self) -> Spent:
        """The amount spent so far by calls that have not returned yet."""
        return sum((figures.spent for figures in list(self._running)), Spent())

    def replies(self, questions: Iterable[Sequence[Question]]) -> tuple[list[Reply], Figures]:
        """A value or a failure for each question, in order; may be called from several threads.

        Args:
            questions: The questions in small groups; each group is created once the previous one was sent.

        Raises:
            LLMServerError: The server is unreachable or rejects all requests, or answered none of the questions.
            LLMBudgetError: The next question could exceed the budget.
        """
        with self._starting:
            if self._loop is None:
                self._loop = BackgroundLoop()
        call = self._loop.run(self._begun(questions))
        if not call.is_exhausted and call.stop is None:
            with self._starting:
                if not self._is_set_up:
                    self._client.setup()
                    self._is_set_up = True
            self._loop.run(self._finished(call))
        self._raise_if_stopped(call)
        if call.figures.requests and self._cache is not None:
            self._cache.sync()
        return [reply for reply in call.replies if reply is not None], call.figures

    def _raise_if_stopped(self, call: _Call) -> None:
        if isinstance(call.stop, LLMBudgetError):
            left = sum(reply is None for reply in call.replies) + sum(item is not None for item in call.items)
            raise LLMBudgetError(
                f"{call.stop} {left:,} of {len(call.replies):,} requests of this batch are still open. All answers so "
                "far are cached: raise the budget and run the same command again to resume.",
                **{**call.stop.facts, "open_requests": left},
            )
        if call.stop is not None:
            raise call.stop
        failures = [(call.replies[places[0]] or (None, None))[1] for places in call.asked.values()]
        lost = [failure for failure in failures if failure is not None and failure.passing]
        if lost and len(lost) == len(failures) and not call.figures.cached:
            raise _nothing_answered(len(lost), lost[-1].detail)

    # --- in the event loop ---

    async def _begun(self, questions: Iterable[Sequence[Question]]) -> _Call:
        """Begin a call; the client is set up (which may load a model) unless all answers are cached."""
        if self._cache is not None:
            self._cache.refresh()
            self._recent.clear()
        call = _Call(iter(()), asyncio.get_running_loop().create_future())
        call.items = self._open_questions(call, questions)
        if not self._is_set_up:
            try:
                for item in call.items:
                    if item is not None:
                        call.items = itertools.chain((item,), call.items)
                        return call
            except Exception as error:  # a template that cannot be rendered
                call.stop = error
            call.is_exhausted = True
        return call

    async def _finished(self, call: _Call) -> None:
        self._running.append(call.figures)
        self._calls.append(call)
        try:
            while len(self._workers) < self._client.max_concurrent_requests:
                worker = asyncio.create_task(self._work())
                self._workers.add(worker)
                worker.add_done_callback(self._workers.discard)
            await call.done
        except asyncio.CancelledError:
            for worker in self._workers:
                worker.cancel()
            raise
        finally:
            now = time.monotonic()
            call.figures.seconds = now - max(self._counted_to, min(figures.begun for figures in self._running))
            self._counted_to = now
            self._running.remove(call.figures)
        call.figures.overloads = self._client.limit.overloads - self._overloads
        self._overloads = self._client.limit.overloads

    def _open_questions(
        self, call: _Call, groups: Iterable[Sequence[Question]]
    ) -> Iterator[tuple[Question, CachedAnswer | None] | None]:
        for group in groups:
            for question, answer in zip(group, self._cached([one.key for one in group]), strict=True):
                place = len(call.replies)
                call.replies.append(None)
                if answer is not None:
                    call.figures.cached += 1
                    try:
                        call.replies[place] = (self._value(answer.text, answer.finish_reason), None)
                        continue
                    except (InvalidAnswerError, _UnusableError):
                        pass
                if question.key not in call.asked:
                    call.asked[question.key] = [place]
                    yield question, answer
                elif call.replies[call.asked[question.key][0]] is None:
                    call.asked[question.key].append(place)
                else:
                    call.replies[place] = call.replies[call.asked[question.key][0]]
            yield None

    def _cached(self, keys: Sequence[bytes]) -> Sequence[CachedAnswer | None]:
        if self._cache is None:
            return [None] * len(keys)
        found = self._cache.find(keys)
        return [answer or self._recent.get(key) for key, answer in zip(keys, found, strict=True)]

    async def _work(self) -> None:
        """Process questions until none is left; after a stop, only requests in progress are awaited and kept."""
        while self._calls:
            call = self._calls[0]
            try:
                item = None if call.stop is not None else next(call.items)
            except StopIteration:
                call.is_exhausted, item = True, None
            except Exception as error:  # a template that cannot be rendered
                call.stop, item = error, None
            if call.is_exhausted or call.stop is not None:
                if self._calls and self._calls[0] is call:
                    self._calls.popleft()
                call.is_exhausted = True
                self._note_end(call)
            elif item is None:
                await asyncio.sleep(0)
            else:
                call.under_way += 1
                try:
                    await self._settle(call, *item)
                finally:
                    call.under_way -= 1
                    self._note_end(call)

    @staticmethod
    def _note_end(call: _Call) -> None:
        if call.is_exhausted and not call.under_way and not call.done.done():
            call.done.set_result(None)

    async def _settle(self, call: _Call, question: Question, cached: CachedAnswer | None) -> None:
        try:
            reply = await self._reply(call, question, cached)
        except LLMRequestError as error:
            if isinstance(error, LLMServerError):
                call.stop = call.stop or error
                return
            cause = NO_ANSWER if error.can_be_retried else REFUSED
            reply = (None, Failure(cause, str(error), passing=error.can_be_retried))
            self._unanswered += error.can_be_retried
            if self._unanswered >= max(_UNANSWERED, self._client.max_concurrent_requests):
                call.stop = call.stop or _nothing_answered(self._unanswered, str(error))
                return
        except Exception as error:
            call.stop = call.stop or error
            return
        for place in call.asked[question.key]:
            call.replies[place] = reply

    async def _reply(self, call: _Call, question: Question, answer: CachedAnswer | None) -> Reply:
        messages = question.messages
        if answer is None:
            answer = await self._asked(call, question.key, messages, question.source)
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
            second = await self._asked(call, key, again, question.source)
        try:
            value = self._value(second.text, second.finish_reason)
        except _UnusableError as error:
            return None, Failure(error.cause, f"{problem}; asked to repair it: {error}", second.text or answer.text)
        except InvalidAnswerError as error:
            return None, Failure(INVALID, f"{problem}; asked to repair it: {error}", second.text)
        call.figures.repaired += 1
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

    async def _asked(self, call: _Call, key: bytes, messages: Messages, source: tuple[str, int]) -> CachedAnswer:
        """The answer of the model, or of the same question in progress for another batch."""
        while (other := self._at_server.get(key)) is not None:
            await asyncio.wait((other,))
            if not other.cancelled() and other.exception() is None:
                return other.result()
        if key in self._recent:
            return self._recent[key]
        asking = self._at_server[key] = asyncio.get_running_loop().create_future()
        try:
            answer = await self._paid(call, key, messages, source)
        except BaseException:
            asking.cancel()
            raise
        finally:
            del self._at_server[key]
        asking.set_result(answer)
        return answer

    async def _paid(self, call: _Call, key: bytes, messages: Messages, source: tuple[str, int]) -> CachedAnswer:
        """The answer of the model; reserved in the budget first, recorded immediately."""
        worst = worst_case(messages, self._config)
        await self._reserve(call, worst)
        spent = Spent()
        self._under_way += 1
        try:
            call.figures.requests += 1
            answer = await self._client.answer(messages=messages, model=self._model, generation_config=self._config)
            self._unanswered = 0
            spent = _spent(answer, messages)
            call.figures.spent += spent
            if self._cache is None:
                text = answer.texts[0] if answer.texts else None
                reason = answer.finish_reasons[0] if answer.finish_reasons else ""
                return CachedAnswer(key.hex(), self._stage, self._model, answer.model, text, reason, 0, 0, 0.0, source)
            made = self._cache.add(key, answer, stage=self._stage, model=self._model, spent=spent, source=source)
            self._recent[key] = made
            return made
        finally:
            self._under_way -= 1
            self._budget.settle(worst, spent)
            self._freed.set()

    async def _reserve(self, call: _Call, worst: Spent) -> None:
        """Wait until the worst case of a request fits the budget beside the requests in progress.

        Raises:
            LLMBudgetError: It does not fit even without other requests.
        """
        others, since, looks = Spent(), time.monotonic(), 0
        while not self._budget.reserve(worst):
            if call.stop is not None:
                raise call.stop
            if self._under_way:
                self._freed.clear()
                await self._freed.wait()
                continue
            if others != (others := self._budget.reserved):
                since = time.monotonic()
            looks = 0 if others.tokens else looks + 1
            if looks == 2 or time.monotonic() > since + _OTHERS_S:
                break
            await asyncio.sleep(_LOOK_S)  # another worker may be between two requests
        else:
            return
        spent, limits = self._budget.spent, self._budget.limits
        raise LLMBudgetError(
            f"Stage {self._stage!r} has spent {limits.describe(spent)}, and the next request may use up to "
            f"{worst.tokens:,} tokens, so it stopped before exceeding the budget.",
            stage=self._stage,
            file=None,
            row=None,
            traceback=None,
            can_be_ignored=False,
            spent_tokens=spent.tokens,
            spent_cost=limits.cost_of(spent),
        )


class _UnusableError(Exception):
    """An unusable answer for which a retry would not help."""

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause


def _nothing_answered(requests: int, detail: str) -> LLMServerError:
    return LLMServerError(
        f"The model server answered none of {requests:,} requests. Last error: {detail} Check the server, then run the "
        "same command again to resume. If it answers others, --ignore-failures quarantines these documents.",
        can_be_retried=False,
    )


def _spent(answer: Answer, messages: Messages) -> Spent:
    """The number of tokens of an answer, estimated from its bytes if the server does not report it."""
    prompt, completion = answer.prompt_tokens, answer.completion_tokens
    if prompt is None:
        prompt = sum(len(message["content"].encode()) for message in messages) // _BYTES_PER_TOKEN + 1
    if completion is None:
        completion = sum(len((text or "").encode()) for text in answer.texts) // _BYTES_PER_TOKEN + 1
    return Spent(prompt, completion)
