"""The names of this package that a recipe may use, and what they stand for.

Names are resolved only by this table; other names are looked up among user stages (see `user_stages`). Importing this
module loads no stage, so that a command can start its workers before it loads them.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

STAGE = "stage"
FILTER = "filter"
MODIFIER = "modifier"
KINDS = (STAGE, FILTER, MODIFIER)


@dataclass(frozen=True, slots=True)
class Registered:
    """What a name stands for: a stage, a filter (used through `ScoreFilter`) or a modifier (through `Modify`).

    `attribute` is its name in the module, if that is not `name`.
    """

    name: str
    module: str
    kind: str
    attribute: str = ""

    def load(self) -> Any:
        """The class itself (for user code, possibly a stage made by a decorator); imports its module.

        Raises:
            MissingExtraError: The class needs a package that is not installed.
        """
        module = importlib.import_module(self.module)
        return attrgetter(self.attribute)(module) if self.attribute else getattr(module, self.name)

    def documentation(self) -> str:
        """The docstring of the class, or of its constructor if the class has none."""
        cls = self.load()
        own = cls.__dict__.get("__doc__") or ""
        # A dataclass without a docstring gets its signature as one, which the table of parameters shows better.
        if isinstance(cls, type) and (not own or own.startswith(f"{cls.__name__}(")):
            own = getattr(cls.__dict__.get("__init__"), "__doc__", None) or ""
        return inspect.cleandoc(own)


_TEXT = "gristmill.stages.text"
_TABLE: dict[str, tuple[str, str]] = {
    f"{_TEXT}.io.documents": (STAGE, "DocumentReader DocumentWriter"),
    f"{_TEXT}.io.hugging_face": (STAGE, "HuggingFaceReader"),
    f"{_TEXT}.download.common_crawl.download": (STAGE, "CommonCrawlWARCReader"),
    f"{_TEXT}.download.common_crawl.stage": (STAGE, "CommonCrawlDownloadExtractStage"),
    f"{_TEXT}.io.reader": (STAGE, "JsonlReader ParquetReader"),
    f"{_TEXT}.io.reader.table_files": (STAGE, "ArrowReader CsvReader SqlReader"),
    f"{_TEXT}.io.reader.text": (STAGE, "ArchiveReader HtmlReader TextReader"),
    f"{_TEXT}.io.reader.wikipedia": (STAGE, "WikipediaReader"),
    f"{_TEXT}.download.wikipedia": (STAGE, "WikipediaDownloadExtractStage"),
    f"{_TEXT}.io.reader.warc": (STAGE, "WarcReader"),
    f"{_TEXT}.download.arxiv.stage": (STAGE, "ArxivDownloadExtractStage"),
    f"{_TEXT}.io.reader.dumps": (STAGE, "MailReader StackExchangeReader"),
    f"{_TEXT}.io.reader.pdf": (STAGE, "PdfExtractor PdfReader"),
    f"{_TEXT}.io.writer": (STAGE, "JsonlWriter ParquetWriter"),
    f"{_TEXT}.io.writer.tokens": (STAGE, "TokenWriter"),
    f"{_TEXT}.io.writer.megatron_tokenizer": (STAGE, "MegatronTokenizerWriter"),
    f"{_TEXT}.models.token_counter": (STAGE, "TokenCounter"),
    f"{_TEXT}.io.writer.tables": (STAGE, "ArrowWriter CsvWriter"),
    f"{_TEXT}.filters.heuristic.string": (
        FILTER,
        """
        BoilerPlateStringFilter BulletsFilter CommonEnglishWordsFilter EllipsisFilter LongWordFilter
        MeanWordLengthFilter NonAlphaNumericFilter NumbersFilter ParenthesesFilter PornographicUrlsFilter
        PunctuationFilter SubstringFilter SymbolsToWordsFilter UrlsFilter WhiteSpaceFilter WordCountFilter
        WordsWithoutAlphabetsFilter
        """,
    ),
    f"{_TEXT}.filters.heuristic.repetition": (
        FILTER,
        """
        RepeatedLinesByCharFilter RepeatedLinesFilter RepeatedParagraphsByCharFilter RepeatedParagraphsFilter
        RepeatingDuplicateNGramsFilter RepeatingTopNGramsFilter
        """,
    ),
    f"{_TEXT}.filters.heuristic.code": (
        FILTER,
        """
        AlphaFilter GeneralCommentToCodeFilter HTMLBoilerplateFilter NumberOfLinesOfCodeFilter
        PythonCommentToCodeFilter XMLHeaderFilter
        """,
    ),
    f"{_TEXT}.filters": (
        FILTER,
        """
        FastTextLangId FastTextQualityFilter HistogramFilter PerExtensionFilter TokenCountFilter
        TokenizerFertilityFilter
        """,
    ),
    f"{_TEXT}.filters.line_quality": (STAGE, "LineQuality"),
    f"{_TEXT}.filters.published.stages": (STAGE, "C4Quality FineWebQuality GopherQuality GopherRepetition"),
    f"{_TEXT}.filters.url.stage": (STAGE, "UrlRules"),
    f"{_TEXT}.modifiers": (
        MODIFIER,
        """
        BoilerPlateStringModifier FastTextLabelModifier GutenbergBoilerplate LineRemover MarkdownRemover
        NewlineNormalizer PiiRedactor QuotationRemover Slicer UnicodeReformatter UrlNormalizer UrlRemover
        """,
    ),
    f"{_TEXT}.classifiers": (
        STAGE,
        """
        AegisClassifier ContentTypeClassifier DistributedDataClassifier DomainClassifier FineWebEduClassifier
        FineWebMixtralEduClassifier FineWebNemotronEduClassifier InstructionDataGuardClassifier LinearClassifier
        MultilingualDomainClassifier PromptTaskComplexityClassifier QualityClassifier
        """,
    ),
    f"{_TEXT}.annotate": (STAGE, "LLMStage"),
    f"{_TEXT}.extraction": (STAGE, "HtmlExtractor"),
    f"{_TEXT}.embedders": (STAGE, "EmbeddingCreatorStage"),
    f"{_TEXT}.embedders.vllm": (STAGE, "VLLMEmbeddingModelStage"),
    "gristmill.stages.synthetic": (
        STAGE,
        """
        DistillStage DiverseQAPostProcessingStage DiverseQAStage EducationalGrade ExtractKnowledgeStage
        KnowledgeListPostProcessingStage KnowledgeListStage TranslationStage WikipediaParaphrasingStage
        """,
    ),
    f"{_TEXT}.modules": (STAGE, "AddId DocumentJoiner DocumentSplitter"),
    "gristmill.stages.deduplication": (
        STAGE,
        """
        Decontamination ExactDeduplication FuzzyDeduplication LineDeduplication SemanticDeduplication
        SubstringDeduplication
        """,
    ),
    "gristmill.stages.sharding": (STAGE, "ReservoirSampler StratifiedSampler"),
}
"""Module → what its classes are, and their names."""

NAMES = {name: Registered(name, module, kind) for module, (kind, names) in _TABLE.items() for name in names.split()}
"""Every name of this package that a recipe may use."""

WORKFLOWS = {
    "ExactDeduplicationWorkflow": "gristmill.stages.deduplication.exact.workflow",
    "FuzzyDeduplicationWorkflow": "gristmill.stages.deduplication.fuzzy.workflow",
    "SemanticDeduplicationWorkflow": "gristmill.stages.deduplication.semantic.workflow",
    "TextDuplicatesRemovalWorkflow": "gristmill.stages.deduplication.removal_workflow",
    "TextSemanticDeduplicationWorkflow": "gristmill.stages.deduplication.semantic.text_workflow",
}
"""The workflows that a recipe may run under `workflow`, and their modules."""
