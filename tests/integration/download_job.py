"""A pipeline that downloads, as a program that tests run and kill."""

from __future__ import annotations

import gzip
import os
import sys

from gristmill.backends.local import LocalExecutor
from gristmill.pipeline import Pipeline
from gristmill.stages.text.download.base import (
    DocumentDownloader,
    DocumentDownloadExtractStage,
    DocumentExtractor,
    DocumentIterator,
    URLGenerator,
)
from gristmill.stages.text.io.writer import JsonlWriter


class Listed(URLGenerator):
    def __init__(self, urls):
        self.urls = urls

    def generate_urls(self):
        return self.urls


class Lines(DocumentIterator):
    def iterate(self, file_path):
        with gzip.open(file_path, "rt") as lines:
            for number, line in enumerate(lines):
                yield {"id": f"{os.path.basename(file_path)}-{number}", "line": line.strip()}

    def output_columns(self):
        return ["id", "line"]


class Cut(DocumentExtractor):
    def extract(self, record):
        if record["line"].startswith("00"):
            return None
        if record["line"].startswith("deadbeef"):
            os.kill(os.getpid(), 9)
        return {"id": record["id"], "text": record["line"][:20]}

    def input_columns(self):
        return ["id", "line"]

    def output_columns(self):
        return ["id", "text"]


def pipeline(folder, urls):
    stage = DocumentDownloadExtractStage(Listed(urls), DocumentDownloader(folder + "/downloads"), Lines(), Cut())
    return Pipeline("web", stages=[stage, JsonlWriter(folder + "/out")])


if __name__ == "__main__":
    folder, workers, *urls = sys.argv[1:]
    pipeline(folder, urls).run(LocalExecutor(config={"num_cpus": int(workers)}), progress=False)
