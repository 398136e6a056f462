"""What the redactor finds, what it leaves alone, and that text around it stays as it was."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.errors import UsageError
from gristmill.kernels.pii_scan import ACCOUNT_SIZES, CLASSES, find_candidates
from gristmill.kernels.text_column import text_column
from gristmill.stages.text.modifiers import Modify, PiiRedactor
from gristmill.stages.text.modifiers.pii import KINDS
from gristmill.tasks import DocumentBatch
from tests.pace import assert_grows_with_length

FOUND = [
    # e-mail
    ("Mail john.doe@example.com now", "Mail <EMAIL> now"),
    ("<a href='mailto:o'brien+news@mail.example.co.uk'>", "<a href='mailto:<EMAIL>'>"),
    ("Contact: JOHN_DOE@EXAMPLE.ORG.", "Contact: <EMAIL>."),
    ("联系邮箱foo@bar.com。", "联系邮箱<EMAIL>。"),
    ("jürgen.müller@firma.de, ok", "<EMAIL>, ok"),
    ("(a@b.io)", "(<EMAIL>)"),
    ("see...foo@bar.com", "see...<EMAIL>"),
    ("x@sub-domain.example.museum", "<EMAIL>"),
    ("a@b.com;c@d.com c@d.net", "<EMAIL>;<EMAIL> <EMAIL>"),
    ("user@xn--mller-kva.de", "<EMAIL>"),
    ("**foo@bar.com**", "**<EMAIL>**"),
    # IPv4
    ("from 192.168.1.254 to", "from <IPV4> to"),
    ("http://8.8.8.8:53/dns", "http://<IPV4>:53/dns"),
    ("[10.0.0.1/24]", "[<IPV4>/24]"),
    ("The host is 172.16.254.1.", "The host is <IPV4>."),
    ("10.0.0.1 gateway\n127.0.0.1 localhost", "<IPV4> gateway\n<IPV4> localhost"),
    ("hosts: 1.1.1.1, 8.8.8.8", "hosts: <IPV4>, <IPV4>"),
    # IPv6
    ("at 2001:0db8:85a3:0000:0000:8a2e:0370:7334 now", "at <IPV6> now"),
    ("ping fe80::1ff:fe23:4567:890a%eth0", "ping <IPV6>%eth0"),
    ("http://[2001:db8::1]:80/", "http://[<IPV6>]:80/"),
    ("server: 2a02:8109:9340:136c::1.", "server: <IPV6>."),
    ("fe80::1", "<IPV6>"),
    # phone
    ("Call +49 (0)30 1234567 today", "Call <PHONE> today"),
    ("+1-800-555-0199", "<PHONE>"),
    ("+44 20 7946 0958, London", "<PHONE>, London"),
    ("+33 1 23 45 67 89", "<PHONE>"),
    ("+14155552671", "<PHONE>"),
    ("0049 30 1234567", "<PHONE>"),
    ("(555) 234-5678", "<PHONE>"),
    ("(555)234-5678", "<PHONE>"),
    ("555-234-5678", "<PHONE>"),
    ("1.555.234.5678 x12", "<PHONE>"),
    ("01 23 45 67 89", "<PHONE>"),
    ("020 7946 0958", "<PHONE>"),
    ("(030) 123 4567", "<PHONE>"),
    ("0171-1234567", "<PHONE>"),
    ("Tel.: 555 123 4567", "Tel.: <PHONE>"),
    ("phone number 5551234567", "phone number <PHONE>"),
    ("Tél: 04 72 00 00 00", "Tél: <PHONE>"),
    ("call us at (02) 9876 5432", "call us at <PHONE>"),
    # IBAN
    ("IBAN DE89 3704 0044 0532 0130 00 please", "IBAN <IBAN> please"),
    ("GB82WEST12345698765432", "<IBAN>"),
    ("FR14 2004 1010 0505 0001 3M02 606.", "<IBAN>."),
    ("NO9386011117947", "<IBAN>"),
    # cards
    ("Visa 4111 1111 1111 1111 exp 12/25", "Visa <CREDIT_CARD> exp 12/25"),
    ("4111 1111 1111 1111 12/25", "<CREDIT_CARD> 12/25"),
    ("5500-0000-0000-0004", "<CREDIT_CARD>"),
    ("378282246310005", "<CREDIT_CARD>"),
    ("3782 822463 10005", "<CREDIT_CARD>"),
    ("6011111111111117.", "<CREDIT_CARD>."),
    ("3530111333300000", "<CREDIT_CARD>"),
    ("30569309025904", "<CREDIT_CARD>"),
    ("2223003122003222", "<CREDIT_CARD>"),
]

LEFT_ALONE = [
    "x\n\n6.3.1.4. Searching", "## 5.1.4.2 Network cards",
    "user@localhost", "@handle said", "a @ b.com", "icon@2x.png", "react@17.0.2", "pkg@1.2.3", "@@@@", "x@y",
    "foo@.com", "foo@bar..com", "foo@-bar.com", "1@2.3", "version 1.2.3.4", "v1.2.3.4", "Ver. 10.0.1.2",
    "Firefox/1.5.0.7", "Chrome/91.0.4472.124", "section 3.2.1.1", "1.2.3", "1.2.3.4.5", "256.1.1.1",
    "1.3.6.1.4.1.311", "01.02.03.04", "libfoo-1.2.3.4", "1.2.3.4-rc1", "0.1.2.3", "12:30:45", "00:1B:44:11:3A:B7",
    "std::vector", "abc::def", "a::b", "::", "1:2:3", "dead::beef", "10:20:30:40", "2021-03-04", "04.03.2021 12:30",
    "1999-2003", "2021-03-04 12:30:45", "20210304123000", "1,234,567,890", "1.234.567.890", "12 345 678",
    "ISBN 978-3-16-148410-0", "ISBN 0-306-40615-2", "9783161484100", "123-45-6789", "5551234567",
    "1234567890123456", "4111 1111 1111 1112", "4111111111111112", "1111 1111 1111 1111", "0000 0000 0000 0000",
    "3.14159265358979323846", "0.4111111111111111", "12345678901234567890123", "555-1234", "1600000000000000",
    "DE89 3704 0044 0532 0130 01", "AB12 3456", "GB82WEST1234569876543", "GB82WEST123456987654321",
    "ZZ89370400440532013000", "fax 2021-03-04", "550e8400-e29b-41d4-a716-446655440000", "+5 000 000",
    "x+12345678901", "10/12/2020", "call 911", "4.5e10", "100.000.000", "1-2-3-4-5-6-7-8", "2020/12/31",
    "$1,000.00", "A4 297 x 210", "€ 12.345.678,90", "page 12-345",
]  # fmt: skip


def redact(text, **options):
    return PiiRedactor(**options).modify_document(text)


@pytest.mark.parametrize(("text", "wanted"), FOUND)
def test_real_forms_are_redacted(text, wanted):
    assert redact(text) == wanted


@pytest.mark.parametrize("text", LEFT_ALONE)
def test_other_numbers_and_words_are_left_alone(text):
    assert redact(text) == text


@pytest.mark.parametrize(("text", "wanted"), FOUND)
def test_a_redacted_text_has_nothing_more_to_redact(text, wanted):
    assert redact(wanted) == wanted


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([text for text, _ in FOUND] + LEFT_ALONE + ["漢", "🙂", "\n", ""]), max_size=8))
def test_documents_do_not_influence_each_other(texts):
    column = pa.array([None, *texts, None], pa.large_string())
    got = PiiRedactor().modify_column(column).values
    got.validate(full=True)
    assert got.to_pylist() == [None, *(redact(text) for text in texts), None]


def test_lines_of_a_document_are_redacted_one_by_one():
    text = "\n".join(text for text, _ in FOUND)
    assert redact(text) == "\n".join(wanted for _, wanted in FOUND)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="0123456789 -./()+:@abfGBDE%éx\n", max_size=120))
def test_any_text_gives_valid_text_and_keeps_what_is_not_redacted(text):
    got = PiiRedactor(replacement="\x00").modify_column(pa.array([text], pa.large_string())).values
    got.validate(full=True)
    at = 0
    for piece in got[0].as_py().split("\x00"):
        at = text.index(piece, at) + len(piece)


def test_a_card_number_has_to_pass_luhn():
    rng = random.Random(7)
    digits = [4] + [rng.randrange(10) for _ in range(14)]
    redacted = [last for last in range(10) if redact("".join(map(str, [*digits, last]))) == "<CREDIT_CARD>"]
    assert len(redacted) == 1


def test_kinds_and_replacements_can_be_chosen():
    text = "ann@example.com 10.0.0.1 +1 555 234 5678"
    assert redact(text, kinds=["email"]) == "<EMAIL> 10.0.0.1 +1 555 234 5678"
    assert redact(text, kinds="ipv4", replacement="") == "ann@example.com  +1 555 234 5678"
    assert redact(text, replacement="█") == "█ █ █"
    assert redact(text, replacement={"email": "[mail]"}) == "[mail] <IPV4> <PHONE>"
    assert redact(text, kinds=[]) == text


def test_only_public_addresses_when_asked():
    text = "10.0.0.1 8.8.8.8 fe80::1 2a00:1450:4001:81b::200e"
    assert redact(text, only_public_ips=True) == "10.0.0.1 <IPV4> fe80::1 <IPV6>"


def test_an_unknown_kind_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match="Did you mean 'email'"):
        PiiRedactor(["emial"])
    with pytest.raises(UsageError, match="does not know"):
        PiiRedactor(replacement={"name": "x"})


def test_counts_become_columns_and_figures():
    stage = Modify(PiiRedactor(count_field_prefix="pii_"))
    assert stage.outputs() == (["data"], sorted(["text", *(f"pii_{kind}" for kind in KINDS)]))
    batch = DocumentBatch(data=pa.table({"text": ["a@b.com c@d.com", "8.8.8.8", None, "plain"]}))
    result = stage.process(batch).to_pyarrow()
    assert result["text"].to_pylist() == ["<EMAIL> <EMAIL>", "<IPV4>", None, "plain"]
    assert result["pii_email"].to_pylist() == [2, 0, 0, 0]
    assert result["pii_ipv4"].to_pylist() == [0, 1, 0, 0]
    figures = stage._consume_custom_metrics()
    assert figures["redacted_email"] == 2
    assert figures["redacted_phone"] == 0


def test_more_candidates_than_expected_are_all_found():
    assert redact("a@b.io " * 5000) == "<EMAIL> " * 5000


HOSTILE = {
    "digits": lambda size: "1" * size,
    "spaced digits": lambda size: "1 " * (size // 2),
    "signs": lambda size: "@" * size,
    "colons": lambda size: ":" * size,
    "dots": lambda size: "a." * (size // 4) + "@" + "a." * (size // 4),
    "numbers": lambda size: "1.2.3.4." * (size // 8),
    "accounts": lambda size: "DE12 " * (size // 5),
    "plus": lambda size: "+1 " * (size // 3),
    "groups": lambda size: "4111 " * (size // 5),
}


@pytest.mark.parametrize("shape", HOSTILE)
def test_no_shape_of_text_makes_it_slow(shape):
    redact("warm")
    assert_grows_with_length(redact, HOSTILE[shape](200_000), HOSTILE[shape](800_000))


def test_the_scan_counts_what_does_not_fit():
    data = pa.array(["a@b.io c@d.io"], pa.large_string())
    texts = text_column(data)
    one = [np.full(1, -7, np.int64) for _ in range(3)]
    assert find_candidates(texts.data, texts.offsets, CLASSES, ACCOUNT_SIZES, *one) == 2
    assert one[1].tolist() == [0]
