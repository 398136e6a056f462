"""`ShuffleWorkflow`: all documents in random order, cut into shards and splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gristmill.errors import UsageError
from gristmill.stages.sharding.sharding_run import Source
from gristmill.stages.sharding.workflow import ShardingWorkflow


@dataclass(eq=False, repr=False)
class ShuffleWorkflow(ShardingWorkflow):
    """Writes all documents in a random order, as shards of equal size.

    Two passes over the data with files between them, so memory does not grow with it. The order follows from the seed,
    the names of the input files and the block size: it is the same for any number of workers and on every executor.
    JSONL records keep their bytes. The intermediate files take as much disk as the (uncompressed) documents, and are
    removed at the end.

    Args:
        output_path: The folder for the shards.
        input_path: A file, a folder, a glob, a URL, or a list of these.
        input_filetype: "jsonl" or "parquet"; found out by the names of the files when not given.
        seed: Another seed gives another order. It does not change the splits.
        shard_size: About how many bytes a shard holds before compression, such as "256MB" (the default). Shards are of
            equal size; a document is never cut, so one may be larger by up to a document.
        shard_documents: Instead, how many documents a shard holds at most.
        shard_tokens: Instead, about how many tokens a shard holds.
        splits: Names and fractions, such as {"train": 0.98, "validation": 0.02}. Fractions are of documents (of
            groups, with `split_field`), and hold on average.
        split_field: Documents with the same value in this column go to the same split, such as the cluster of
            near-duplicates; by default the id, or else each document by itself. A document without a value is assigned
            by itself.
        balance: "length" gives every shard the same mix of document lengths.
        token_count_field: A column with the number of tokens of each document.
        tokenizer: Instead, a tokenizer folder or `tokenizer.json` to count them with.
        text_field: The column with the text, for the tokenizer.
        id_field: The column with the documents' ids, by default `id` where there is one.
        license_field: The column with licences, by default `license` where there is one.
        output_filetype: "jsonl" or "parquet"; by default as the input.
        input_blocksize: As `blocksize` of the readers; 128 MiB by default.
        read_kwargs: As in the readers.
        write_kwargs: As in the writers.
        record_path: Where the record of the run is kept, instead of beside the output in `OUTPUT.gristmill`.
        cache_path: Where intermediate files go, on a disk; by default to `steps` in the record.
        keep_steps: Keep the intermediate files.

    Example:
        >>> workflow = ShuffleWorkflow("shuffled/", input_path="clean/", shard_size="500MB", seed=17)
        >>> workflow.run().get_metadata("totals")
    """

    name = "shuffle"

    input_path: str | Sequence[str] | None = None
    input_filetype: str | None = None

    def _sources(self) -> list[Source]:
        if not self.input_path:
            raise UsageError("ShuffleWorkflow has no input: give input_path.")
        paths = self.input_path if isinstance(self.input_path, str) else list(map(str, self.input_path))
        documents = self.document_source(paths, self.input_filetype)
        return [Source(0, "input", documents, self.placement(0, documents), self.tokenizer_stages())]
