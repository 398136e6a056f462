"""Common mistakes, each with what Gristmill answers: a contract that one can read.

A row has the mistake, the command or the script of the user, and the whole answer; `…` in an answer stands for what
differs from machine to machine. Commands and scripts are run in the folder that `desk` makes.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from gristmill.cli.main import cli
from gristmill.errors import GristmillError


@dataclass(frozen=True)
class Mistake:
    """One row of the table: the folder `out` is not there before; `without` are packages that are not installed."""

    mistake: str
    did: str
    answer: str
    without: Sequence[str] = ()


SHIPPED = "code, demo, english, grade, knowledge, non_english, rephrase, translate, web, web_crawl, web_dedup"

COMMAND_LINE = [
    Mistake(
        "a misspelt command",
        "gristmill verfy clean",
        "Unknown command 'verfy'. Did you mean 'verify'?",
    ),
    Mistake(
        "a misspelt option",
        "gristmill run english crawl out --worker 2",
        "No such option '--worker'. (Did you mean one of: …'--workers'?)",
    ),
    Mistake(
        "a misspelt recipe",
        "gristmill run englsh crawl out",
        f"There is no recipe 'englsh': no such file, and the shipped recipes are {SHIPPED}. Did you mean 'english'?",
    ),
    Mistake(
        "a recipe file that is not there",
        "gristmill run min.yaml crawl out",
        f"There is no recipe 'min.yaml': no such file, and the shipped recipes are {SHIPPED}. Did you mean "
        f"'mine.yaml'?",
    ),
    Mistake(
        "no output",
        "gristmill run mine.yaml crawl",
        "The recipe 'mine.yaml' needs an output: gristmill run mine.yaml INPUT OUTPUT",
    ),
    Mistake(
        "neither input nor output",
        "gristmill plan english",
        "The recipe 'english' needs an input and an output: gristmill plan english INPUT OUTPUT",
    ),
    Mistake(
        "standard output as output",
        "gristmill run mine.yaml crawl -",
        "OUTPUT is '-', but documents can only be written to files. Pass a folder.",
    ),
    Mistake(
        "standard input among other inputs",
        "gristmill run mine.yaml - crawl out",
        "'-' (standard input) cannot be combined with other inputs.",
    ),
    Mistake(
        "nothing on standard input",
        "gristmill run mine.yaml - out",
        "INPUT is '-', but standard input is empty. Check the command before the pipe.",
    ),
    Mistake(
        "several inputs without an output",
        "gristmill run mine.yaml crawl/a.jsonl crawl/b.jsonl",
        "The output …crawl/b.jsonl was not written by a run; it would be overwritten. Write to another place, …",
    ),
    Mistake(
        "a sample in percent",
        "gristmill run mine.yaml crawl out --sample 15",
        "Invalid value for '--sample': 15.0 is not in the range 0<x<=1.",
    ),
    Mistake(
        "one path too many",
        "gristmill why clean d1 d2",
        "Got unexpected extra argument (d2)",
    ),
    Mistake(
        "a misspelt variable",
        "gristmill run mine.yaml crawl out --set min_word=3",
        "mine.yaml, line 1: there is no variable 'min_word' in this recipe. Did you mean 'min_words'? "
        "It has: input_path, min_words, output_path.",
    ),
    Mistake(
        "a variable without its value",
        "gristmill run mine.yaml crawl out --set min_words",
        "--set 'min_words': expected KEY=VALUE, such as --set text_field=content.",
    ),
    Mistake(
        "a variable with a wrong value",
        "gristmill run mine.yaml crawl out --set min_words=six",
        "mine.yaml, line 5: WordCountFilter: min_words: expected a whole number, found 'six'.",
    ),
    Mistake(
        "a negative number of workers",
        "gristmill run mine.yaml crawl out --workers -1",
        "Invalid value for '--workers': -1 is not in the range x>=0.",
    ),
    Mistake(
        "memory in an unknown unit",
        "gristmill run mine.yaml crawl out --memory-budget 4GBB",
        "memory_budget='4GBB' is not a size. Pass a whole number of bytes, or text with a unit: KB, MB, GB, TB (powers "
        "of 1000) or KiB, MiB, GiB, TiB (powers of 1024), such as '128MB' or '1GiB'.",
    ),
    Mistake(
        "too little memory",
        "gristmill run mine.yaml crawl out --memory-budget 4MB --workers 2",
        "memory_budget='4MB' is below the idle footprint of this run (about …). Use at least …, or run in the "
        "calling process with --workers 0 (num_cpus=0).",
    ),
    Mistake(
        "a misspelt executor",
        "gristmill run mine.yaml crawl out --executor locl",
        "There is no executor 'locl'; available: local, ray_data, xenna, ray_actor_pool. Did you mean 'local'?",
    ),
    Mistake(
        "a misspelt setting of the executor",
        "gristmill run mine.yaml crawl out --set executor.num_cpu=2",
        "LocalExecutor has no setting 'num_cpu'; it has …. Did you mean 'num_cpus'?",
    ),
    Mistake(
        "a budget in words",
        "gristmill run mine.yaml crawl out --error-budget two",
        "Invalid value for '--error-budget': 'two' is neither a share such as 0.01 or 1% nor a count such as 50.",
    ),
]

INPUT = [
    Mistake(
        "a misspelt input",
        "gristmill run mine.yaml crawls out",
        "The input path 'crawls' matches no file (looked for …). Did you mean 'crawl'?",
    ),
    Mistake(
        "an empty folder",
        "gristmill run mine.yaml empty out",
        "The input folder 'empty' is empty (looked for …). Point file_paths at a folder with data.",
    ),
    Mistake(
        "another text column",
        "gristmill run mine.yaml content out",
        "Stage 'WordCountFilter' reads column 'text', which is missing (found: 'id', 'content', from all 1 records). "
        "Name the right one with text_field (--text-field), or add a stage before it that writes 'text'.",
    ),
    Mistake(
        "lists in the text column",
        "gristmill run mine.yaml lists out",
        "Stage 'WordCountFilter': column 'text' (text_field) holds lists in 1 records: use a text column.",
    ),
    Mistake(
        "CSV",
        "gristmill run mine.yaml tables out",
        "The input 'tables' holds no file with the extension .jsonl, .json, .ndjson; it holds 1 × .csv. Read those "
        "with CsvReader, or point file_paths at another folder.",
    ),
    Mistake(
        "a store that needs a package",
        "gristmill run mine.yaml gs://bucket/crawl out",
        "The store of 'gs://bucket/crawl' needs the package 'gcsfs', which is not installed: "
        "pip install 'gristmill[gcs]'.",
        without=["gcsfs"],
    ),
    Mistake(
        "CSV that is called JSONL",
        "gristmill run mine.yaml csv out",
        "…csv/a.jsonl cannot be read as JSONL: it is CSV. Rename it to end with .csv and read it with CsvReader.",
    ),
    Mistake(
        "UTF-16",
        "gristmill run mine.yaml utf_16 out",
        "…utf_16/a.jsonl cannot be read as JSONL: it is text in UTF-16. Convert it: `iconv -f UTF-16 -t UTF-8 "
        "…utf_16/a.jsonl > records.jsonl`.",
    ),
    Mistake(
        "Parquet that is called JSONL",
        "gristmill run mine.yaml parquet out",
        "…parquet/a.jsonl cannot be read as JSONL: it is Parquet. Rename it to end with .parquet and read it with "
        "ParquetReader.",
    ),
    Mistake(
        "JSONL that is called gzip",
        "gristmill run mine.yaml plain out",
        "…plain/a.jsonl.gz cannot be read as JSONL: it is not compressed. Rename it to end without .gz.",
    ),
    Mistake(
        "half a gzip file",
        "gristmill run mine.yaml torn out",
        "… records could not be processed; the error budget 0.01 allows 10. 1 input file damaged: …torn/a.jsonl.gz is "
        "damaged: the compressed stream stops before its end mark (near compressed byte …); nothing of it was kept, at "
        "least … records lost. Repair or remove it, or run with salvage=True (--salvage) to keep what can be read "
        "before "
        "the damage. See them with `gristmill quarantine …out`. To accept this many, raise --error-budget "
        "(error_budget) and run again; finished partitions are kept.",
    ),
    Mistake(
        "a folder with files of two formats",
        "gristmill run mine.yaml mixed out",
        "mixed holds JSONL files (a.jsonl) and Parquet files (…b.parquet), but JsonlReader reads only JSONL. Choose "
        "what to read: …; to read all of them, run once for each.",
    ),
]

OUTPUT = [
    Mistake(
        "the output inside the input",
        "gristmill run mine.yaml crawl crawl/out",
        "The output …crawl/out is inside the input folder …crawl, so the next run would read it as input. Write "
        "beside the input, or select the input files by a pattern that excludes the output.",
    ),
    Mistake(
        "the input as output",
        "gristmill run mine.yaml crawl crawl",
        "The output folder …crawl holds the input file …crawl/a.jsonl. Write to another folder.",
    ),
    Mistake(
        "a variable of the shell that is not set",
        "gristmill run mine.yaml crawl ''",
        "mine.yaml, line 6: JsonlWriter: JsonlWriter(path=''): not a folder name. Pass a folder; if the path comes "
        "from "
        "a "
        "variable, check that it is set.",
    ),
    Mistake(
        "a kind of store that there is not",
        "gristmill run mine.yaml crawl s33://bucket/clean",
        "Unknown kind of store: 's33' (s33://). Did you mean 's3'? Usual ones are s3://, gs://, "
        "az:// and https://; without '://' a path is on this machine.",
    ),
    Mistake(
        "one file for several",
        "gristmill run mine.yaml crawl out.jsonl",
        "The output …out.jsonl is a single file, but the input is 2 files in 2 partitions. Pass a folder to write to.",
    ),
    Mistake(
        "an output that cannot be written",
        "gristmill run mine.yaml crawl mine.yaml/out",
        "The output folder …mine.yaml/out cannot be created: …mine.yaml is a file. Check the output path.",
    ),
    Mistake(
        "another threshold for an output that is there",
        "gristmill run mine.yaml crawl clean --set min_words=9",
        "…clean was written by another plan, so its finished partitions cannot be reused:\n"
        "  - variable min_words changed from 6 to 9\n"
        "  - stage 'WordCountFilter': parameter min_words changed from 6 to 9\n"
        "  - the first stage, 'jsonl_reader', is unchanged; only 'WordCountFilter' and what follows changed\n"
        "Start over with --fresh (fresh=True), write to another folder, or restore the previous plan.",
    ),
    Mistake(
        "fewer files for an output that is there",
        "gristmill run mine.yaml crawl/a.jsonl clean",
        "1 of 2 finished partitions in the output (b; 3 rows written) are not among the 1 partitions of this run. "
        "Their "
        "input files still exist, so this run selects less or splits differently: check limit, file_paths, blocksize "
        "and "
        "files_per_partition. Refusing to keep rows whose input is gone: restore the input, write to another folder, "
        "or "
        "start over with --fresh (fresh=True).",
    ),
    Mistake(
        "an output that must not be there, and is",
        """
        from gristmill import JsonlReader, JsonlWriter, Pipeline

        Pipeline("copy", stages=[JsonlReader("crawl"), JsonlWriter("clean", mode="error")]).run()
        """,
        "clean already holds the output of a run, and the writer has mode='error'. Write to another folder, or use "
        "mode='ignore' to resume it or mode='overwrite' to replace it.",
    ),
    Mistake(
        "two runs in one output at the same time",
        """
        from gristmill import JsonlReader, JsonlWriter, Pipeline, ScoreFilter, processing_stage
        from gristmill.backends.local import LocalExecutor
        from gristmill.stages.text.filters import WordCountFilter

        def run(*stages):
            job = Pipeline("job", stages=[JsonlReader("crawl/a.jsonl"), *stages, JsonlWriter("out")])
            job.run(executor=LocalExecutor({"num_cpus": 0}))

        @processing_stage(name="meanwhile")
        def meanwhile(batch):
            run(ScoreFilter(WordCountFilter()))
            return batch

        run(meanwhile)
        """,
        "Another pipeline started to write to out during this run, so nothing of a is committed: the output must not "
        "become a mixture of two. Use a separate folder for each.",
    ),
]

RECIPES = [
    Mistake(
        "a bracket that is not closed",
        "gristmill run broken.yaml",
        "broken.yaml, line 4, column 1: this is not valid YAML: expected ',' or '}', but got '<stream end>'.",
    ),
    Mistake(
        "a misspelt filter",
        "gristmill run misspelt.yaml",
        "misspelt.yaml, line 4: WordsCountFilter: There is no stage, filter or modifier named 'WordsCountFilter'. Did "
        "you mean 'WordCountFilter'? 'gristmill stages' lists all of them.",
    ),
    Mistake(
        "a misspelt parameter",
        "gristmill run parameter.yaml",
        "parameter.yaml, line 4: WordCountFilter: unknown parameter 'min_word'. Did you mean 'min_words'? It takes: "
        "min_words, max_words, lang, text_field, score_field, invert.",
    ),
    Mistake(
        "a filter in its wrapper, as in Python",
        "gristmill run wrapped.yaml",
        "wrapped.yaml, line 4: ScoreFilter: There is no 'ScoreFilter' in recipes; a filter stands by itself: "
        "'- WordCountFilter: {min_words: 50, score_field: words}'. text_field, score_field and invert are given beside "
        "the filter's own parameters.",
    ),
    Mistake(
        "code in a recipe",
        "gristmill run code.yaml",
        "code.yaml, line 4: mine:Stage: 'mine:Stage' is an import path, and a recipe alone cannot run code. If you "
        "trust the module 'mine', allow it on the command line: --allow-code mine (in Python: "
        "pipeline(allow_code=['mine'])).",
    ),
    Mistake(
        "no writer",
        "gristmill run no_writer.yaml",
        "no_writer.yaml: the recipe has no writer, so its output would be lost. Add one at the end, such as: "
        "- DocumentWriter: {path: clean/}",
    ),
    Mistake(
        "the same filter twice",
        "gristmill run twice.yaml",
        "Several stages are named 'WordCountFilter', but reports identify stages by name. Rename one: "
        "stage.with_(name='WordCountFilter_2'), in a recipe 'with: {name: WordCountFilter_2}'.",
    ),
    Mistake(
        "a minimum above the maximum",
        "gristmill run bounds.yaml",
        "bounds.yaml, line 4: WordCountFilter: WordCountFilter would keep scores from 50 up to 5, which is an empty "
        "range. …",
    ),
    Mistake(
        "a share in percent for a filter",
        "gristmill run ratio.yaml",
        "ratio.yaml, line 4: NumbersFilter: NumbersFilter(max_number_to_text_ratio=15): this is a share: must be a "
        "number from 0 to 1 (15 % is 0.15).",
    ),
    Mistake(
        "scores in place of the text",
        "gristmill run score.yaml",
        "score.yaml, line 4: WordCountFilter: ScoreFilter: score_field='text' is the text column, which the scores "
        "would overwrite. Choose another column, such as 'text_score'.",
    ),
]

QUESTIONS = [
    Mistake(
        "a folder that no run has written",
        "gristmill verify crawl",
        "…crawl is not the output of a run: there is no record in …crawl.gristmill. Pass the output of a run, and "
        "--record (record_path=…) if its record is elsewhere.",
    ),
    Mistake(
        "an output that is not there",
        "gristmill why nowhere d1",
        "There is no …nowhere. Pass the output of a run, and --record (record_path=…) if its record is elsewhere.",
    ),
    Mistake(
        "an id that no document has",
        "gristmill why clean d17",
        "Not found: no input document has the id 'd17'.",
    ),
    Mistake(
        "an id of documents that have none",
        "gristmill why no_ids d1",
        "Not found: d1. This run recorded neither ids nor URLs, because the documents have none in the columns it "
        "looked at (--id-field, --url-field). Use PARTITION#ROW instead.",
    ),
    Mistake(
        "other thresholds without all scores",
        """
        from gristmill import Ledger

        Ledger("clean").rethreshold({"WordCountFilter": {"lower": 3}})
        """,
        "…clean was made with scores='decisive', so only the score that decided is recorded. Run once with "
        "scores='all' "
        "(--scores all) to try thresholds without reading any text.",
    ),
    Mistake(
        "an unknown filter",
        "gristmill stages WordsCount",
        "There is no stage, filter or modifier named 'WordsCount'. Did you mean 'WordCountFilter'? 'gristmill stages' "
        "lists all of them.",
    ),
]

MACHINE = [
    Mistake(
        "a package that is not installed",
        "gristmill run unicode.yaml",
        "UnicodeReformatter needs the package 'ftfy', which is not installed: pip install 'gristmill[unicode]'.",
        without=["ftfy"],
    ),
    Mistake(
        "Ray that is not installed",
        "gristmill plan mine.yaml crawl out --executor ray_data",
        "An executor on Ray needs the package 'ray', which is not installed: pip install 'gristmill[ray]'.",
        without=["ray"],
    ),
    Mistake(
        "a model that is not there",
        "gristmill run model.yaml",
        "nowhere is not a linear classifier (linear.json is missing). Create one with 'gristmill classifier train "
        "DATA.jsonl --kind linear --out DIR'.",
    ),
    Mistake(
        "a tokenizer that is not there",
        "gristmill run tokenizer.yaml",
        "There is no tokenizer at 'nowhere.json': pass the path of a tokenizer.json or SentencePiece .model file.",
    ),
    Mistake(
        "a language code of three letters",
        "gristmill run language.yaml",
        "FastTextLangId(lang='eng'): the model does not know this language. Did you mean 'en'? It knows "
        "176: af, …, zh.",
    ),
]

PYTHON = [
    Mistake(
        "a filter that is not wrapped",
        """
        from gristmill import Pipeline
        from gristmill.stages.text.filters import WordCountFilter

        pipeline = Pipeline(name="clean")
        pipeline.add_stage(WordCountFilter(min_words=80))
        """,
        "add_stage() takes a stage, but got the filter WordCountFilter. Write: "
        "add_stage(ScoreFilter(WordCountFilter(min_words=80))) (from gristmill import ScoreFilter)",
    ),
    Mistake(
        "a modifier that is not wrapped",
        """
        from gristmill import Pipeline
        from gristmill.stages.text.modifiers import UrlRemover

        Pipeline(name="clean").add_stage(UrlRemover())
        """,
        "add_stage() takes a stage, but got the modifier UrlRemover. Write: add_stage(Modify(UrlRemover())) "
        "(from gristmill import Modify)",
    ),
    Mistake(
        "a class in place of an object",
        """
        from gristmill import Pipeline, ScoreFilter
        from gristmill.stages.text.filters import WordCountFilter

        Pipeline(name="clean").add_stage(ScoreFilter(WordCountFilter))
        """,
        "ScoreFilter: filter_obj must be a DocumentFilter object, not the class WordCountFilter. Write: "
        "ScoreFilter(WordCountFilter(…))",
    ),
    Mistake(
        "a function that is not a stage",
        """
        from gristmill import Pipeline

        def shout(batch):
            return batch

        Pipeline(name="clean").add_stage(shout)
        """,
        "add_stage() takes a stage, but got the function shout. Write @processing_stage(name='shout') above its "
        "definition (from gristmill import processing_stage).",
    ),
    Mistake(
        "the decorator without its parameters",
        """
        from gristmill import processing_stage

        @processing_stage
        def shout(batch):
            return batch
        """,
        "@processing_stage needs a name. Write: @processing_stage(name='shout')",
    ),
    Mistake(
        "no reader",
        """
        from gristmill import JsonlWriter, Pipeline

        Pipeline("write", stages=[JsonlWriter("out")]).run()
        """,
        "The first stage, 'jsonl_writer', needs documents, but the pipeline has no reader. Add a JsonlReader or "
        "ParquetReader first, or call run(initial_tasks=[…]).",
    ),
    Mistake(
        "two readers",
        """
        from gristmill import JsonlReader, JsonlWriter, Pipeline

        Pipeline("both", stages=[JsonlReader("crawl"), JsonlReader("content"), JsonlWriter("out")]).run()
        """,
        "A reader must be the first stage: JsonlReader ('jsonl_reader') was found after 'jsonl_reader'. To read "
        "several "
        "places, pass file_paths=[…, …] to one reader.",
    ),
    Mistake(
        "a writer in the middle",
        """
        from gristmill import JsonlReader, JsonlWriter, Modify, Pipeline
        from gristmill.stages.text.modifiers import UrlRemover

        Pipeline("write", stages=[JsonlReader("crawl"), JsonlWriter("out"), Modify(UrlRemover())]).run()
        """,
        "Writer 'jsonl_writer' is followed by 'UrlRemover'; a writer must come last. To write twice, run two "
        "pipelines.",
    ),
    Mistake(
        "a frame in place of a batch",
        """
        from gristmill import JsonlReader, JsonlWriter, Pipeline, processing_stage

        @processing_stage(name="frame")
        def frame(batch):
            return batch.to_polars()

        Pipeline("frame", stages=[JsonlReader("crawl"), frame, JsonlWriter("out")]).run()
        """,
        "Stage 'frame' returned a polars.…DataFrame from process(); it must return a task (such as a DocumentBatch), a "
        "list or an iterator of tasks, or None. Wrap the data: return DocumentBatch(data=…). This is a bug in the "
        "stage; --ignore-failures does not apply. Committed output is intact: correct the stage and run the same "
        "command again to resume.",
    ),
    Mistake(
        "something in a stage that cannot be sent to a worker",
        """
        import threading

        from gristmill import JsonlReader, JsonlWriter, Pipeline, ProcessingStage
        from gristmill.backends.local import LocalExecutor

        class Counting(ProcessingStage):
            name = "counting"

            def __init__(self):
                self.lock = threading.Lock()

            def process(self, task):
                return task

        job = Pipeline("count", stages=[JsonlReader("crawl"), Counting(), JsonlWriter("out")])
        job.run(executor=LocalExecutor({"num_cpus": 2}))
        """,
        "Attribute 'lock' of stage 'counting' cannot be sent to a worker process: it is a lock (TypeError: cannot "
        "pickle "
        "'_thread.lock' object). Create such objects in setup(), which runs in the worker, instead of in __init__.",
    ),
    Mistake(
        "more processors than there are",
        """
        from gristmill import JsonlReader, JsonlWriter, Modify, Pipeline, Resources
        from gristmill.stages.text.modifiers import UrlRemover

        urls = Modify(UrlRemover()).with_(resources=Resources(cpus=9999))
        Pipeline("greedy", stages=[JsonlReader("crawl"), urls, JsonlWriter("out")]).run()
        """,
        "Stage 'UrlRemover' requests 9999 CPUs per worker, but a worker can have at most … here. Request fewer: "
        ".with_(resources=Resources(cpus=…)).",
    ),
]

MISTAKES = [*COMMAND_LINE, *INPUT, *OUTPUT, *RECIPES, *QUESTIONS, *MACHINE, *PYTHON]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents in `crawl`, the recipe `mine` and its output `clean`, inputs of other kinds, recipes with a fault."""
    desk = tmp_path_factory.mktemp("desk")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(desk)
        for name in ("crawl/a", "crawl/b"):
            _write(f"{name}.jsonl", [{"id": f"d{n}", "text": "one two three " * (n + 1)} for n in range(4)])
        _write("content/a.jsonl", [{"id": "a", "content": "the text is called otherwise"}])
        _write("nameless/a.jsonl", [{"text": "a text without an id " * 9}])
        _write("lists/a.jsonl", [{"id": "a", "text": ["one", "two"]}])
        for name in ("csv", "empty", "mixed", "parquet", "plain", "tables", "torn", "utf_16"):
            Path(name).mkdir()
        Path("csv/a.jsonl").write_text("id,text\n1,hello\n2,there\n")
        shutil.copy("csv/a.jsonl", "tables/a.csv")
        Path("utf_16/a.jsonl").write_text('{"id": "1", "text": "hello"}\n', encoding="utf-16")
        pq.write_table(pa.table({"id": ["1"], "text": ["hello"]}), "parquet/a.jsonl")
        shutil.copy("parquet/a.jsonl", "mixed/b.parquet")
        shutil.copy("crawl/a.jsonl", "mixed/a.jsonl")
        shutil.copy("crawl/a.jsonl", "plain/a.jsonl.gz")
        many = "".join(f'{{"text": "{hashlib.sha256(bytes(n)).hexdigest()}"}}\n' for n in range(400))
        whole = gzip.compress(many.encode())
        Path("torn/a.jsonl.gz").write_bytes(whole[: len(whole) // 2])
        _recipe("mine", "WordCountFilter: {min_words: '${min_words}'}", variables="{min_words: 6}")
        _recipe("misspelt", "WordsCountFilter: {min_words: 5}")
        _recipe("parameter", "WordCountFilter: {min_word: 5}")
        _recipe("wrapped", "ScoreFilter: {filter_obj: WordCountFilter}")
        _recipe("twice", "WordCountFilter: {min_words: 5}", "WordCountFilter: {min_words: 9}")
        _recipe("bounds", "WordCountFilter: {min_words: 50, max_words: 5}")
        _recipe("ratio", "NumbersFilter: {max_number_to_text_ratio: 15}")
        _recipe("unicode", "UnicodeReformatter")
        _recipe("model", "LinearClassifier: {model_path: nowhere}")
        _recipe("tokenizer", "TokenCountFilter: {tokenizer: nowhere.json}")
        _recipe("language", "FastTextLangId: {lang: eng}")
        _recipe("code", "mine:Stage: {}")
        _recipe("score", "WordCountFilter: {score_field: text}")
        Path("no_writer.yaml").write_text("name: x\nstages:\n  - JsonlReader: {file_paths: crawl}\n")
        Path("broken.yaml").write_text("name: x\nstages:\n  - JsonlReader: {file_paths: crawl\n")
        for source, output in (("crawl", "clean"), ("nameless", "no_ids")):
            assert CliRunner().invoke(cli, ["run", "mine.yaml", source, output, "-q"]).exit_code == 0
    return desk


def _write(path: str, documents: list[dict[str, Any]]) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("".join(json.dumps(document) + "\n" for document in documents))


def _recipe(name: str, *stages: str, variables: str | None = None) -> None:
    places = ("${input_path}", "${output_path}") if variables else ("crawl", "out")
    lines = [f"JsonlReader: {{file_paths: '{places[0]}'}}", *stages, f"JsonlWriter: {{path: '{places[1]}'}}"]
    head = [f"name: {name}", *([f"variables: {variables}"] if variables else []), "stages:"]
    Path(f"{name}.yaml").write_text("\n".join([*head, *(f"  - {line}" for line in lines)]) + "\n")


@pytest.mark.parametrize("row", MISTAKES, ids=lambda row: row.mistake)
def test_answer(row: Mistake, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(desk)
    shutil.rmtree("out", ignore_errors=True)
    for package in row.without:
        monkeypatch.setitem(sys.modules, package, None)
        for name in [name for name in sys.modules if name.startswith("gristmill.backends.ray")]:
            monkeypatch.delitem(sys.modules, name)  # an earlier test may have imported it with the package
    said = _answer_to_command(row.did) if row.did.startswith("gristmill ") else _answer_to_script(row.did)
    pattern = ".*".join(re.escape(part) for part in row.answer.split("…"))
    assert re.fullmatch(pattern, said, re.DOTALL), said
    assert "Unexpected error" not in said
    assert "Traceback" not in said


def _answer_to_command(line: str) -> str:
    """What a command says last: the error without the usage above it and the progress before it, or the answer."""
    done = CliRunner().invoke(cli, shlex.split(line)[1:], prog_name="gristmill")
    assert done.exit_code in (1, 2), done.output
    return (done.stderr.rpartition("Error: ")[2] or done.stdout).strip()


def _answer_to_script(text: str) -> str:
    indent = len(text) - len(text.lstrip()) - 1
    Path("script.py").write_text("\n".join(line[indent:] for line in text.strip("\n").splitlines()))
    with pytest.raises(GristmillError) as caught:
        runpy.run_path("script.py", run_name="__main__")
    return str(caught.value)


def test_there_are_at_least_forty() -> None:
    assert len(MISTAKES) >= 40
    assert len({row.did for row in MISTAKES}) == len({row.mistake for row in MISTAKES}) == len(MISTAKES)
