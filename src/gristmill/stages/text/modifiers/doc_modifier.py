"""The base classes of modifiers: a function of one document, or of a whole column at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import pyarrow as pa


class DocumentModifier(ABC):
    """Changes one document at a time. Subclass it, implement `modify_document`, and pass it to `Modify`.

    `Modify` calls it in a worker, once per document; documents without a value (null) are skipped.

    Example:
        >>> class Upper(DocumentModifier):
        ...     def modify_document(self, text):
        ...         return text.upper()
        >>> Modify(Upper())
        Modify(name='Upper')
    """

    wrapper: ClassVar[str] = "Modify"
    """The stage that applies the modifier, for the error message if a modifier is passed in place of a stage."""
    _name: str | None = None

    @abstractmethod
    def modify_document(self, *args: Any, **values: Any) -> Any:
        """The new value, from one input field or several passed by name."""

    def check_environment(self) -> None:  # noqa: B027 (most have nothing to check)
        """Called in the driver when a run is planned: raise if a package or file is missing."""

    @property
    def name(self) -> str:
        """Name of the modifier in reports."""
        return self._name if self._name is not None else type(self).__name__


@dataclass(slots=True)
class ModifiedColumn:
    """What a column modifier may return in addition to the new values.

    Attributes:
        values: One new value per row.
        columns: Further columns to add, one value per row each; `ColumnModifier.extra_columns` announces them.
        metrics: Metrics for the stage's report.
    """

    values: pa.Array
    columns: Mapping[str, pa.Array] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


class ColumnModifier(DocumentModifier):
    """Changes a whole column in one call, which lets built-in modifiers run at native speed.

    Implement `modify_column`; `modify_document` is derived from it. The column is one contiguous chunk of large
    strings, in which null means that a document has no text; null must stay null, and the number of rows must not
    change.

    Example:
        >>> import pyarrow.compute as pc
        >>> class Upper(ColumnModifier):
        ...     def modify_column(self, column):
        ...         return pc.utf8_upper(column)
        >>> Upper().modify_document("grist")
        'GRIST'
    """

    @abstractmethod
    def modify_column(self, column: pa.LargeStringArray) -> pa.Array | ModifiedColumn:
        """The new values of all documents; called in a worker, once per batch."""

    def modify_document(self, text: str) -> Any:
        """The new value of one document."""
        import pyarrow as pa

        if not text.isascii():
            # A lone surrogate has no bytes in UTF-8.
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        given = self.modify_column(pa.array([text], pa.large_string()))
        return (given.values if isinstance(given, ModifiedColumn) else given)[0].as_py()

    def extra_columns(self) -> list[str]:
        """The names of the columns this modifier adds besides the one it changes."""
        return []


def has_column_path(modifier: DocumentModifier) -> bool:
    """Whether to use `modify_column`: a subclass may override `modify_document` alone."""
    for kind in type(modifier).__mro__:
        if "modify_column" in kind.__dict__:
            return True
        if "modify_document" in kind.__dict__:
            return False
    return False
