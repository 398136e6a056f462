"""The stage that applies modifiers: fields, nulls, marks of change, user-written modifiers, errors."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from gristmill.errors import StageDefinitionError, UsageError
from gristmill.stages.text.modifiers import (
    ColumnModifier,
    DocumentModifier,
    ModifiedColumn,
    Modify,
    NewlineNormalizer,
    PiiRedactor,
    Slicer,
    UrlRemover,
)
from gristmill.storage.json_records import JsonRecords
from gristmill.tasks import DocumentBatch
from gristmill.tasks.columns import RecordColumns, TableColumns


class Upper(DocumentModifier):
    def modify_document(self, text):
        return text.upper()


class Never(DocumentModifier):
    def modify_document(self, text):
        raise AssertionError("a document without a value was shown")


def shout(text):
    return text + "!"


def batch_of(**columns):
    table = pa.table(columns)
    return DocumentBatch.from_columns(TableColumns(table), rows=np.arange(table.num_rows) + 100)


def records_of(lines):
    buffer = np.frombuffer(lines, np.uint8)
    ends = np.flatnonzero(buffer == 10)
    records, bad, _ = JsonRecords.scan(buffer, np.concatenate([[0], ends[:-1] + 1]), ends)
    assert len(bad) == 0
    return DocumentBatch.from_columns(RecordColumns(records), rows=np.arange(len(ends)))


def texts(stage, batch, field="text"):
    return stage.process(batch).to_pyarrow()[field].to_pylist()


@pytest.mark.parametrize("modifier", [Upper(), str.upper, lambda text: text.upper()])
def test_user_written_modifiers_work(modifier):
    assert texts(Modify(modifier), batch_of(text=["a", None, ""])) == ["A", None, ""]


def test_null_is_never_shown_to_a_modifier():
    assert texts(Modify(Never()), batch_of(text=pa.nulls(2, pa.string()))) == [None, None]
    assert texts(Modify(UrlRemover()), batch_of(text=pa.nulls(2))) == [None, None]


def test_only_real_changes_are_marked_and_counted_in_characters():
    batch = batch_of(text=["é www.x.y", "same", None, "漢 http://z"])
    Modify(UrlRemover()).process(batch)
    (change,) = batch._tracking.trail.changes
    assert (change.field, change.rows.tolist(), change.characters.tolist()) == ("text", [100, 103], [-7, -8])


@pytest.mark.parametrize("modifier", [UrlRemover(), str.strip])
def test_a_batch_without_changes_is_handed_on_as_it_is(modifier):
    batch = batch_of(text=["same", None])
    assert Modify(modifier).process(batch) is batch


def test_untouched_records_stay_byte_for_byte():
    lines = b'{"text":"a\\u00e9  b", "n":1.0}\n{"text": "see www.x.y","n":  2}\n'
    written = bytes(Modify(UrlRemover()).process(records_of(lines)).columns.encode_jsonl())
    first, second = written.splitlines()
    assert first == lines.splitlines()[0]
    assert b'"n":  2' in second
    assert b"www" not in second


def test_texts_among_other_json_values_are_modified_alone():
    lines = b'{"text": "www.x.y a"}\n{"text": 5}\n{"text": ["www.x.y"]}\n'
    for modifier in (UrlRemover(), lambda value: value.replace("www.x.y", "") if isinstance(value, str) else value):
        written = bytes(Modify(modifier).process(records_of(lines)).columns.encode_jsonl()).splitlines()
        assert written[1:] == lines.splitlines()[1:]
        assert b'" a"' in written[0]


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_the_type_of_the_column_stays_but_for_views(kind):
    batch = batch_of(text=pa.array(["a www.x", "b"], pa.string()).cast(kind))
    column = Modify(UrlRemover()).process(batch).to_pyarrow()["text"]
    assert column.type == (pa.large_string() if kind == pa.string_view() else kind)
    assert column.to_pylist() == ["a ", "b"]


def test_modifiers_are_applied_in_order_and_may_read_each_other():
    stage = Modify([shout, Upper()], ["text", "loud"], ["loud", None])
    assert stage.name == "modifier_chain_of_shout_Upper"
    assert stage.inputs() == (["data"], ["text"])
    assert stage.outputs() == (["data"], ["loud"])
    result = stage.process(batch_of(text=["a", None])).to_pyarrow().to_pydict()
    assert result == {"text": ["a", None], "loud": ["A!", None]}


def test_one_field_serves_several_modifiers():
    batch = batch_of(text=["a\n\n\n\nb www.x "])
    for fields in ("text", ["text"], [["text"]]):
        assert texts(Modify([NewlineNormalizer(), UrlRemover(), Slicer()], fields), batch) == ["a\n\nb"]


def test_several_input_fields_come_as_keywords_and_need_an_output():
    def joined(title, text):
        return f"{title}: {text}"

    batch = batch_of(title=["t", None, "u"], text=["a", "b", None])
    assert texts(Modify(joined, [["title", "text"]], "whole"), batch, "whole") == ["t: a", None, None]
    assert texts(Modify(joined, [["title", "text"]], "text"), batch) == ["t: a", "b", None]
    with pytest.raises(UsageError, match="needs output_fields"):
        Modify(joined, [["title", "text"]])


def test_results_may_be_of_any_one_type():
    batch = batch_of(text=["a", "bb", None])
    assert texts(Modify(len, output_fields="size"), batch, "size") == [1, 2, None]
    with pytest.raises(UsageError, match="do not fit into one column"):
        Modify(lambda text: 1 if text == "a" else {"x": text}, output_fields="odd").process(batch)


def test_a_result_with_a_lone_surrogate_is_kept_as_valid_text():
    assert texts(Modify(lambda text: "a\ud800", output_fields="x"), batch_of(text=["b"]), "x") == ["a?"]


class Doubling(ColumnModifier):
    def modify_column(self, column):
        twice = pc.binary_join_element_wise(column, column, pa.scalar("", pa.large_string()))
        return ModifiedColumn(twice, {"size": pc.utf8_length(twice)}, {"seen": float(len(column))})

    def extra_columns(self):
        return ["size"]


def test_a_column_modifier_may_add_columns_and_figures():
    stage = Modify(Doubling())
    result = stage.process(batch_of(text=["ab", None])).to_pyarrow().to_pydict()
    assert result == {"text": ["abab", None], "size": [4, None]}
    assert stage.outputs() == (["data"], ["size", "text"])
    assert stage._consume_custom_metrics() == {"seen": 2}


class Short(ColumnModifier):
    def modify_column(self, column):
        return column.slice(1)


def test_a_column_modifier_that_loses_rows_is_refused():
    with pytest.raises(StageDefinitionError, match="one per row"):
        Modify(Short()).process(batch_of(text=["a", "b"]))


class OwnRule(UrlRemover):
    def modify_document(self, text):
        return "own"


def test_a_subclass_that_overrides_the_document_is_asked():
    assert texts(Modify(OwnRule()), batch_of(text=["www.x"])) == ["own"]


def test_the_name_of_a_modifier_without_super_is_its_class():
    class Plain(DocumentModifier):
        def __init__(self):
            self.x = 1

        def modify_document(self, text):
            return text

    assert Modify(Plain()).name == "Plain"
    assert Modify(PiiRedactor()).name == "pii_redactor"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([],), UsageError, "empty list"),
        ((5,), StageDefinitionError, "DocumentModifier or a function"),
        ((Upper,), StageDefinitionError, "pass an object"),
        ((Upper(), None), UsageError, "input_fields=None"),
        ((Upper(), 5), StageDefinitionError, "input_fields=5"),
        ((Upper(), ["a", "b"]), UsageError, "2 input fields for 1 modifiers"),
        (([Upper(), Upper()], "text", ["a", "b", "c"]), UsageError, "3 output fields"),
        ((Upper(), "text", 5), StageDefinitionError, "output_fields=5"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        Modify(*arguments)


def test_an_empty_batch_stays_empty():
    for modifier in (UrlRemover(), PiiRedactor(), str.upper, Slicer(3)):
        assert Modify(modifier).process(batch_of(text=pa.array([], pa.string()))).num_items == 0


def test_modifiers_travel_to_workers():
    for modifier in (UrlRemover(), PiiRedactor(["email"]), Slicer("a"), NewlineNormalizer()):
        again = pickle.loads(pickle.dumps(Modify(modifier)))
        assert texts(again, batch_of(text=["a x@y.io"])) == texts(Modify(modifier), batch_of(text=["a x@y.io"]))
