"""The question that a guard model is asked about a text, and how its answer is read.

A guard model knows best how it wants to be asked: where its tokenizer has a chat template, that makes the question.
The thirteen categories are those of Ghosh et al., "AEGIS", arXiv:2404.05993.
"""

from __future__ import annotations

from typing import Any

from gristmill.errors import UsageError

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
    """Makes the question about a text.

    Args:
        tokenizer: The tokenizer of the guard model; its chat template makes the question. None, or one without a
            template, leaves that to words of our own.
        policy: The categories of unsafe content, one `number: name` per line; None for the thirteen of AEGIS. A chat
            template gets it as `policy` and `categories`; where it takes neither, a policy that was given goes before
            the template, and words of our own make the question.
        template: The whole question, with `{text}` and, if wanted, `{policy}` in it; goes before everything else.

    Raises:
        UsageError: The template has no place for the text.
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
        """The question about `text`."""
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
    """Refuse a template without a place for the text."""
    if template is not None and template.count(TEXT_MARK) != 1:
        raise UsageError(f"template={template!r}: give a text with {TEXT_MARK!r} once in it, where the document goes.")


def _own_start(tokenizer: Any) -> str:
    """The first token, if the tokenizer adds it by itself."""
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
