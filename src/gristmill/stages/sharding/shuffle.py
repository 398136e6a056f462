"""`ShuffleWorkflow`: writes all documents in random order, as shards and splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gristmill.errors import UsageError
from gristmill.stages.sharding.sharding_run import Source
from gristmill.stages.sharding.workflow import ShardingWorkflow


@dataclass(eq=False, repr=False)
class ShuffleWorkflow(ShardingWorkflow):
    """Writes all documents in a random order, as shards of equal size.

    Two passes over the data with files between them, so memory does not grow with it. The order depends on the seed,
    the names of the input files and the block size: it is the same for any number of workers and on every executor.
    JSONL records keep their bytes. The intermediate files take as much disk as the (uncompressed) documents, and are
    removed at the end.

    Args:
        output_path: Output folder for the shards.
        input_path: A file, folder, glob or URL, or a list of these.
        input_filetype: "jsonl" or "parquet"; detected from the file names by default.
        seed: Random seed of the order. It does not affect the splits.
        shard_size: Approximate bytes per shard before compression, such as "256MB" (the default). Shards are of equal
            size; documents are never cut, so a shard may be larger by up to one document.
        shard_documents: Instead, the maximum number of documents per shard.
        shard_tokens: Instead, the approximate number of tokens per shard.
        splits: Names and fractions, such as {"train": 0.98, "validation": 0.02}. Fractions refer to documents (to
            groups, with `split_field`), and hold on average.
        split_field: Documents with equal values in this column go to the same split, such as the cluster of
            near-duplicates; defaults to the id, otherwise each document is assigned separately. So is a document
            without a value.
        balance: "length" balances document lengths across shards.
        token_count_field: Column that holds the number of tokens of each document.
        tokenizer: Instead, a tokenizer folder or `tokenizer.json` to count them with.
        text_field: Column that holds the text, for the tokenizer.
        id_field: Column that holds document ids; defaults to `id` if present.
        license_field: Column that holds licences; defaults to `license` if present.
        output_filetype: "jsonl" or "parquet"; defaults to the input format.
        input_blocksize: See `blocksize` of the readers; 128 MiB by default.
        read_kwargs: See the readers.
        write_kwargs: See the writers.
        record_path: Where to keep the record of the run, instead of `OUTPUT.gristmill` beside the output.
        cache_path: Folder for intermediate files, on a disk; defaults to `steps` in the record.
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
            raise UsageError("ShuffleWorkflow has no input: set input_path.")
        paths = self.input_path if isinstance(self.input_path, str) else list(map(str, self.input_path))
        documents = self.document_source(paths, self.input_filetype)
        return [Source(0, "input", documents, self.placement(0, documents), self.tokenizer_stages())]
