"""Base class of the workflows for repeated text: options, the last step, and the report."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, get_args

from gristmill.errors import UsageError
from gristmill.ledger.record.manifest import Manifest
from gristmill.stages.deduplication.deduplication_workflow import DeduplicationWorkflow
from gristmill.stages.deduplication.key_ranges import KeyRanges, hash_cuts, range_count
from gristmill.stages.deduplication.repeated.counting import PartWriter, RepeatedParts
from gristmill.stages.deduplication.repeated.removal import Keep, RepeatRemoval
from gristmill.stages.deduplication.sorted_runs import RunFiles
from gristmill.stages.deduplication.workflow_steps import Stage, Steps
from gristmill.stages.text.cutting import Action, check_action


@dataclass(eq=False, repr=False)
class RepeatedTextWorkflow(DeduplicationWorkflow):
    """Base class of workflows that cut passages from documents; see `LineDeduplicationWorkflow` for the arguments."""

    removal: ClassVar[type[RepeatRemoval[Any]]]
    """The stage that removes repeated text."""
    perform_removal = True
    survivor = "first"
    score_field = None
    source_priority = None

    output_path: str
    input_path: str | Sequence[str] | None = None
    input_filetype: str | None = None
    input_blocksize: int | str | None = None
    input_file_extensions: Sequence[str] | None = None
    read_kwargs: Mapping[str, Any] | None = None
    write_kwargs: Mapping[str, Any] | None = None
    id_field: str | None = None
    text_field: str = "text"
    _: KW_ONLY
    keep: Keep = "first"
    action: Action = "cut"
    marks_field: str = "repeated"
    max_share: float | None = None
    cache_path: str | None = None
    files_per_partition: int | None = None
    output_filetype: str | None = None
    record_path: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_action(self.action, self.max_share, name=type(self).__name__)
        if self.keep not in get_args(Keep):
            raise UsageError(f"keep={self.keep!r}: must be 'first' or 'none'.")
        self.rule_of_text = self._rule_of_text()

    @abstractmethod
    def _rule_of_text(self) -> Any:
        """The rule for comparing; raises UsageError if options are invalid."""

    def _remover(self, steps: Steps, removals: RunFiles, *, step: str | None = None) -> Stage:
        return self.removal(
            removals,
            self.text_field,
            rule=self.rule_of_text,
            action=self.action,
            marks_field=self.marks_field,
            max_share=self.max_share,
            reason=self.reason,
        )

    def _count(self, steps: Steps, step: str, hashes: Stage, columns: Sequence[str]) -> None:
        """Run the step that writes the hashes of all documents."""
        reader = steps.source.reader([self.text_field, *columns])
        steps.run(step, [reader, hashes, steps.writer(step, PartWriter)], id_field=None)
        steps.check_input()

    def _listed(self, steps: Steps, counted: str, listed: str, repeated: RepeatedParts) -> RunFiles:
        """Run the step that lists the repeats among the hashes of the step `counted`."""
        found = steps.runs(counted)
        source = KeyRanges(found, hash_cuts(range_count(found.size)))
        steps.run(listed, [source, repeated, steps.writer(listed)], id_field=None)
        return steps.runs(listed)

    def _facts(self, steps: Steps, removals: RunFiles | None) -> dict[str, Any]:
        first = Manifest(steps.folder(self.first_step)).load().values()
        last = Manifest(self.folder).load().values()
        return {
            "documents": sum(entry.rows_read for entry in first),
            "quarantined": sum(entry.quarantined for entry in first),
            "damaged": [f"{file}." for entry in first for file in entry.damaged or ()],
            "passages": sum(entry.records["cuts"].rows or 0 for entry in last if "cuts" in entry.records),
            "changed": sum(count.changed for entry in last for count in entry.stages.values()),
            "num_removed": sum(entry.rows_dropped for entry in last),
            "perform_removal": True,
            "action": self.action,
            "output": self.output_path,
        }
