"""A value that must not be seen: it travels to workers, and shows nothing when printed, logged or compared."""

from __future__ import annotations

from typing import Any


class Secret:
    """An access token in a wrapper that never shows it.

    Example:
        >>> str(Secret("hf_abc")), Secret("hf_abc").reveal()
        ('***', 'hf_abc')
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value itself, for the library that needs it."""
        return self._value

    def __repr__(self) -> str:
        return "***"

    def __reduce__(self) -> tuple[Any, ...]:
        return Secret, (self._value,)


def hide(token: Any) -> Secret | bool | None:
    """The token in a wrapper; True and False (use the stored login, or none) and None stay as they are."""
    if token is None or isinstance(token, bool | Secret):
        return token
    return Secret(str(token))


def show(token: Any) -> str | bool | None:
    """The token as libraries take it."""
    return token.reveal() if isinstance(token, Secret) else token
