"""Answers as values: JSON that matches a schema, combined over the chunks of a document, as columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import orjson
import pyarrow as pa

from gristmill.errors import UsageError, did_you_mean, require_module

_FENCE = re.compile(r"\A\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*\Z", re.DOTALL | re.IGNORECASE)
_ARROW = {"string": pa.large_string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_SHOWN = 300


class InvalidAnswerError(ValueError):
    """An answer is not JSON, or does not match the schema."""


class AnswerSchema:
    """The required form of an answer, and the column of each of its fields.

    Args:
        schema: A JSON schema for an object, with its `properties`.
        fields: Properties to keep, mapped to their columns; a list uses the same names. None keeps all.

    Raises:
        UsageError: The schema does not describe an object, or a field is not a property of it.

    Example:
        >>> grade = AnswerSchema({"type": "object", "properties": {"score": {"type": "integer"}}})
        >>> grade.parse('{"score": 4}')
        {'score': 4}
    """

    def __init__(self, schema: Mapping[str, Any], fields: Mapping[str, str] | Sequence[str] | None = None) -> None:
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        if not isinstance(properties, Mapping) or not properties or schema.get("type", "object") != "object":
            raise UsageError(
                "json_schema must describe an object and list its properties: "
                "{'type': 'object', 'properties': {'score': {'type': 'integer'}}, 'required': ['score']}."
            )
        if isinstance(fields, str):
            raise UsageError(f"fields={fields!r} is a single string; pass a list of properties: fields=[{fields!r}].")
        chosen = list(properties) if fields is None else fields
        self.columns = dict(chosen) if isinstance(chosen, Mapping) else {one: one for one in chosen}
        for name in self.columns:
            if name not in properties:
                raise UsageError(
                    f"fields names {name!r}, which is not a property of json_schema.{did_you_mean(name, properties)} "
                    f"Its properties: {', '.join(map(str, properties))}.",
                    field=name,
                )
        if len(set(self.columns.values())) < len(self.columns):
            raise UsageError(f"fields={dict(self.columns)!r}: two properties fill the same column.")
        self.schema = dict(schema)
        self._properties = properties

    @cached_property
    def _validator(self) -> Any:
        require_module("jsonschema", "A JSON schema for answers")
        from jsonschema import SchemaError, validators
        from referencing import Registry

        cls = validators.validator_for(self.schema, default=validators.Draft202012Validator)
        try:
            cls.check_schema(self.schema)
        except SchemaError as error:
            raise UsageError(f"json_schema is not a valid JSON schema: {error.message}.") from error
        return cls(self.schema, registry=Registry())  # which looks nothing up on the network

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "_validator"}

    def check(self) -> None:
        """Reject an invalid schema."""
        assert self._validator is not None

    def parse(self, text: str) -> dict[str, Any]:
        """The values in an answer; a Markdown fence around the JSON is ignored.

        Raises:
            InvalidAnswerError: It is not JSON, does not match the schema, or does not fit its columns.
            UsageError: The schema has a reference that leads nowhere.
        """
        from referencing.exceptions import Unresolvable

        fenced = _FENCE.match(text)
        try:
            values = orjson.loads(fenced[1] if fenced else text)
        except ValueError as error:
            raise InvalidAnswerError(f"not valid JSON: {error}") from error
        try:
            problem = next(self._validator.iter_errors(values), None)
        except RecursionError as error:
            raise InvalidAnswerError("nested too deeply") from error
        except Unresolvable as error:
            raise UsageError(f"json_schema has the reference {error.ref!r}, which leads nowhere.") from error
        if problem is not None:
            where = "/".join(map(str, problem.absolute_path)) or "the answer"
            raise InvalidAnswerError(f"{where}: {problem.message[:_SHOWN]}")
        if not isinstance(values, dict):
            raise InvalidAnswerError("the answer: not a JSON object")
        for name in self.columns:
            try:
                column_of([values.get(name)], self.type_of(name), "first")
            except (pa.ArrowException, OverflowError, TypeError) as error:
                raise InvalidAnswerError(f"{name}: cannot be stored ({str(error)[:_SHOWN]})") from error
        return values

    def type_of(self, name: str) -> pa.DataType | None:
        """The Arrow type of a property; None if it is kept as JSON."""
        described = self._properties[name]
        kind = described.get("type") if isinstance(described, Mapping) else None
        if isinstance(kind, list):  # ["string", "null"]
            kinds = [one for one in kind if one != "null"]
            kind = kinds[0] if len(kinds) == 1 else None
        if kind is None and isinstance(described, Mapping) and isinstance(described.get("enum"), list):
            kind = "string" if all(isinstance(one, str) for one in described["enum"]) else None
        if kind == "array":
            items = described.get("items")
            inner = items.get("type") if isinstance(items, Mapping) else None
            return pa.large_list(_ARROW[inner]) if isinstance(inner, str) and inner in _ARROW else None
        return _ARROW.get(kind) if isinstance(kind, str) else None

    def response_format(self) -> dict[str, Any]:
        """The request field that makes a server enforce the schema."""
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": self.schema, "strict": True}}


# --- joining the answers to the chunks of a document ---


class Spaced(str):
    """An answer with the whitespace around its chunk in the document."""

    before: str
    after: str

    def __new__(cls, text: str, before: str, after: str) -> Spaced:
        """The stripped answer."""
        made = super().__new__(cls, text.strip())
        made.before, made.after = before, after
        return made


def _in_place(values: list[Any]) -> str:
    return "".join(f"{one.before}{one}{one.after}" if isinstance(one, Spaced) else str(one) for one in values)


def _concat(values: list[Any]) -> Any:
    if all(isinstance(one, list) for one in values):
        return [item for one in values for item in one]
    if not all(isinstance(one, str) for one in values):
        raise InvalidAnswerError("join='concat' joins texts or lists, not numbers")
    return "\n\n".join(one.strip("\n") for one in values)


def _mean(values: list[Any]) -> float:
    return float(sum(values) / len(values))


def _most_frequent(values: list[Any]) -> Any:
    keys = [orjson.dumps(one) for one in values]
    return values[keys.index(max(keys, key=keys.count))]


JOINS: Mapping[str, Callable[[list[Any]], Any]] = {
    "concat": _concat,
    "in_place": _in_place,
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
    "max": max,
    "min": min,
    "mean": _mean,
    "most_frequent": _most_frequent,
}
"""Functions that combine the values of all chunks of a document."""
_ON_NUMBERS = ("mean", "max", "min")


def check_join(join: str, parameter: str) -> None:
    """Reject an unknown way to combine values.

    Raises:
        UsageError: It is unknown.
    """
    if join not in JOINS:
        raise UsageError(f"{parameter}={join!r}: choose one of {', '.join(JOINS)}.{did_you_mean(join, JOINS)}")


def joined(values: list[Any], join: str) -> Any:
    """The value of a document, combined from its chunks; chunks without a value are ignored."""
    found = [one for one in values if one is not None]
    if not found:
        return None
    if len(values) == 1 and not isinstance(found[0], Spaced):
        return found[0]
    return JOINS[join](found)


def join_suits(join: str, kind: pa.DataType | None) -> bool:
    """Whether values of this type can be combined in this way."""
    if join in _ON_NUMBERS:
        return kind is not None and (pa.types.is_integer(kind) or pa.types.is_floating(kind))
    if join == "in_place":
        return kind is not None and pa.types.is_large_string(kind)
    if join == "concat":
        return kind is not None and (pa.types.is_large_string(kind) or pa.types.is_large_list(kind))
    return True


def column_of(values: list[Any], kind: pa.DataType | None, join: str) -> tuple[pa.Array, bool]:
    """The values as a column, and whether it holds JSON."""
    if kind is None:
        texts = [None if value is None else orjson.dumps(value).decode() for value in values]
        return pa.array(texts, pa.large_string()), True
    if join == "mean" and pa.types.is_integer(kind):
        kind = pa.float64()
    if pa.types.is_floating(kind):  # Arrow refuses whole numbers that have no exact float
        values = [None if value is None else float(value) for value in values]
    return pa.array(values, kind), False
