"""The language of a text, by the library that also parses pages: fast, and good enough to choose stop words."""

from __future__ import annotations

# By code: the names under which jusText has its stop words, others as English calls them.
NAMES = {
    "af": "Afrikaans", "ar": "Arabic", "as": "Assamese", "az": "Azerbaijani", "ba": "Bashkir", "be": "Belarusian",
    "bg": "Bulgarian", "bn": "Bengali", "bo": "Tibetan", "br": "Breton", "ca": "Catalan", "ce": "Chechen",
    "cs": "Czech", "cv": "Chuvash", "cy": "Welsh", "da": "Danish", "de": "German", "dv": "Dhivehi",
    "el": "Greek", "en": "English",
    "eo": "Esperanto", "es": "Spanish", "et": "Estonian", "eu": "Basque", "fa": "Persian", "fi": "Finnish",
    "fo": "Faroese", "fr": "French", "fy": "West_Frisian", "ga": "Irish", "gd": "Scots_Gaelic", "gl": "Galician",
    "gu": "Gujarati", "ha": "Hausa", "he": "Hebrew", "hi": "Hindi", "hr": "Croatian", "hu": "Hungarian",
    "hy": "Armenian", "id": "Indonesian", "io": "Ido", "is": "Icelandic", "it": "Italian", "ja": "Japanese",
    "jv": "Javanese", "ka": "Georgian", "kk": "Kazakh", "km": "Khmer", "kn": "Kannada", "ko": "Korean", "ku": "Kurdish",
    "ky": "Kyrgyz", "la": "Latin", "lb": "Luxembourgish", "lt": "Lithuanian", "lv": "Latvian", "mg": "Malagasy",
    "mk": "Macedonian", "ml": "Malayalam", "mn": "Mongolian", "mr": "Marathi", "mt": "Maltese", "my": "Burmese",
    "ne": "Nepali", "nl": "Dutch", "no": "Norwegian_Bokmal", "or": "Oriya", "pa": "Punjabi", "pl": "Polish",
    "ps": "Pashto", "pt": "Portuguese", "rm": "Romansh", "ro": "Romanian", "ru": "Russian", "sa": "Sanskrit",
    "sc": "Sardinian", "sd": "Sindhi", "si": "Sinhala", "sk": "Slovak", "sl": "Slovenian", "so": "Somali",
    "sq": "Albanian", "sr": "Serbian", "sv": "Swedish", "sw": "Swahili", "ta": "Tamil", "te": "Telugu", "tg": "Tajik",
    "th": "Thai", "tk": "Turkmen", "tl": "Tagalog", "tr": "Turkish", "tt": "Tatar", "ug": "Uyghur", "uk": "Ukrainian",
    "ur": "Urdu", "uz": "Uzbek", "vi": "Vietnamese", "vo": "Volapuk", "yi": "Yiddish", "zh": "Chinese",
}  # fmt: skip

_SHORTEST, _SHORT, _LONGEST = 20, 200, 20_000
_LIKELY, _NEARLY, _FAR = 8, 1.12, 1 << 30


def language_code(text: str, declared: str | None = None) -> str | None:
    """The language code (ISO 639-1), or None if the text is too short or matches none.

    Args:
        text: The text.
        declared: The language declared by the page. It is trusted if the text is short, or matches it nearly as well as
            the most likely language.

    Example:
        >>> language_code("Alle Menschen sind frei und gleich an Würde und Rechten geboren. " * 3)
        'de'
    """
    from resiliparse.parse.lang import detect_fast

    text = text[:_LONGEST].strip()
    said = (declared or "").strip().lower().replace("_", "-").partition("-")[0]
    if len(text) < _SHORTEST or (len(text) < _SHORT and said in NAMES):
        return said if said in NAMES else None
    likely: list[tuple[str, int]] = detect_fast(text, n_results=_LIKELY)
    ranks = {code: rank for code, rank in likely if code in NAMES}
    if not ranks:
        return None
    best = likely[0][0]
    if best not in NAMES:
        return said if said in ranks else None
    return said if ranks.get(said, _FAR) <= _NEARLY * ranks[best] else best
