"""Links: their label, or nothing where a link shows a picture or puts the page into a category."""

from __future__ import annotations

import re

# The namespaces of files and categories in the languages with the most articles; English names work everywhere.
_UNSEEN = frozenset(
    re.split(
        r"[\n ]+",
        """afbeelding archivo berkas bestand bild bildo catagóir categoria categorie category categoría catégorie
        datei datoteka delwedd dosiero dosya fasciculus ficheiro fichier fil file fitxategi fitxer fișier flokkur
        fájl gambar grafika image imagem imagen imagine imago imatge immagine irudi kategooria kategori kategoria
        kategorie kategorija kategorio kategória kateqoriya kuva kép luokka lêer media mynd obrázok pilt plik
        resim skrá slika soubor surat súbor sənəd tiedosto turkum vaizdas íomhá şəkil αρχείο εικόνα κατηγορία
        датотека зображення изображение картинка категория категорија категорія санат слика сурет файл կատեգորիա
        պատկեր קובץ קטגוריה תמונה تصنيف تصویر رده صورة ملف پرونده चित्र श्रेणी চিত্র বিষয়শ্রেণী หมวดหมู่ ไฟล์
        カテゴリ ファイル 分类 分類 图像 圖像 文件 檔案 画像 그림 분류 파일""",
    )
) | {"tập tin", "hình", "thể loại"}
_LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z]{2,}){0,2}|simple|map-bms|roa-[a-z]+|be-x-old|zh-min-nan")
_PROJECTS = frozenset(("voy", "doi", "rfc", "iso", "mw", "cia", "wmf", "wmuk", "dab", "hdl", "bug", "nom", "orl"))
"""Short prefixes that lead to other sites and no language, whose label is shown."""


def link_text(inside: str) -> str:
    """What a reader sees of the link with `inside` between its brackets."""
    target, bar, label = inside.partition("|")
    prefix, colon, name = target.partition(":")
    if colon:
        prefix = prefix.strip()
        if not prefix:  # [[:Category:Anarchism]] is a link to it
            target = name
        elif prefix.lower().replace("_", " ") in _UNSEEN or _is_language(prefix, name):
            return ""
    return label if bar and label.strip() else target.strip()


def _is_language(prefix: str, name: str) -> bool:
    """Whether a link leads to the same page in another language, which stands beside the page and not in it."""
    return name[:1] != " " and prefix not in _PROJECTS and _LANGUAGE.fullmatch(prefix) is not None
