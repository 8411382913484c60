"""Full-text search over SearchDocument: a tsvector on PostgreSQL, FTS5 on SQLite, FULLTEXT on MariaDB and MySQL."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from django.db import connection

from shop.models import Product, SearchDocument

# Every word must occur; the last letters of it may be missing. The best match first, equal ones by id.
QUERIES = {
    "postgresql": """
        SELECT product_id FROM shop_searchdocument, to_tsquery('simple', %s) AS query
        WHERE vector @@ query ORDER BY ts_rank(vector, query) DESC, product_id LIMIT %s""",
    "sqlite": """
        SELECT rowid FROM shop_search_fts
        WHERE shop_search_fts MATCH %s ORDER BY bm25(shop_search_fts, 10.0, 1.0), rowid LIMIT %s""",
    "mysql": """
        SELECT product_id FROM shop_searchdocument
        WHERE MATCH (title, body) AGAINST (%s IN BOOLEAN MODE)
        ORDER BY MATCH (title) AGAINST (%s IN BOOLEAN MODE) DESC, product_id LIMIT %s""",
}


def index(products: Sequence[Product]) -> None:
    """Write or refresh the documents of these products. The full-text index follows in the same transaction."""
    documents = [SearchDocument(product=each, title=_plain(each.name), body=_plain(_body(each))) for each in products]
    unique = [] if connection.vendor == "mysql" else ["product"]
    SearchDocument.objects.bulk_create(
        documents,
        update_conflicts=True,
        unique_fields=unique or None,
        update_fields=["title", "body"],
    )


def _body(product: Product) -> str:
    return " ".join(filter(None, [product.artist, product.album, product.genre, product.composer]))


def _plain(text: str) -> str:
    """Text without accents, so that "Sao" finds "São" on every database."""
    return "".join(each for each in unicodedata.normalize("NFKD", text) if not unicodedata.combining(each))


def find(text: str, *, limit: int = 24) -> list[Product]:
    """Products with all the words of `text`, best match first. Nothing for a text without a word."""
    words = re.findall(r"\w+", _plain(text).replace("_", " "))
    if not words:
        return []
    with connection.cursor() as cursor:
        cursor.execute(QUERIES[connection.vendor], [*_match(words), limit])
        ids = [row[0] for row in cursor.fetchall()]
    found = Product.objects.in_bulk(ids)
    return [found[each] for each in ids if each in found]


def _match(words: list[str]) -> list[str]:
    if connection.vendor == "postgresql":
        return [" & ".join(f"{word}:*" for word in words)]
    if connection.vendor == "sqlite":
        return [" ".join(f'"{word}"*' for word in words)]
    return [" ".join(f"+{word}*" for word in words)] * 2
