"""A core install reads, filters and writes without pandas, torch or ray; run by the interpreter of .venv-core."""

from __future__ import annotations

import gzip
import importlib.util
import json
import tempfile
import unittest
from pathlib import Path

SAMPLE = Path(__file__).resolve().parents[2] / "src" / "gristmill" / "recipes" / "sample" / "sample.jsonl.gz"
EXTRAS = ("cosmos_xenna", "pandas", "ray", "torch", "transformers")
MIN_WORDS = 50


class CoreInstall(unittest.TestCase):
    """What works with nothing but the core dependencies."""

    def test_the_environment_holds_no_extra(self) -> None:
        self.assertEqual([name for name in EXTRAS if importlib.util.find_spec(name)], [])

    def test_read_filter_write(self) -> None:
        from gristmill.pipeline import Pipeline
        from gristmill.stages.text.filters import ScoreFilter, WordCountFilter
        from gristmill.stages.text.io.reader import JsonlReader
        from gristmill.stages.text.io.writer import JsonlWriter

        with gzip.open(SAMPLE, "rt", encoding="utf-8") as lines:
            given = [json.loads(line) for line in lines]
        with tempfile.TemporaryDirectory() as folder:
            pipeline = Pipeline(name="core")
            pipeline.add_stage(JsonlReader(file_paths=str(SAMPLE)))
            pipeline.add_stage(ScoreFilter(WordCountFilter(min_words=MIN_WORDS)))
            pipeline.add_stage(JsonlWriter(path=folder))
            pipeline.run()
            kept = [json.loads(line) for path in Path(folder).glob("*.jsonl") for line in path.open(encoding="utf-8")]
        by_id = {record["id"]: record for record in given}
        self.assertTrue(0 < len(kept) < len(given))
        for record in kept:
            self.assertEqual(record, by_id[record["id"]])


if __name__ == "__main__":
    unittest.main()
