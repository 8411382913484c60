"""The full-text index over SearchDocument, each database's own kind. All three follow the rows by themselves."""

from typing import Any

from django.db import migrations

CREATE = {
    "postgresql": [
        """
        ALTER TABLE shop_searchdocument ADD COLUMN vector tsvector GENERATED ALWAYS AS (
            setweight(to_tsvector('simple', title), 'A') || setweight(to_tsvector('simple', body), 'B')
        ) STORED
        """,
        "CREATE INDEX shop_search_vector ON shop_searchdocument USING gin (vector)",
    ],
    "sqlite": [
        """
        CREATE VIRTUAL TABLE shop_search_fts USING fts5(
            title, body, content='shop_searchdocument', content_rowid='product_id', tokenize='unicode61'
        )
        """,
        """
        CREATE TRIGGER shop_search_insert AFTER INSERT ON shop_searchdocument BEGIN
            INSERT INTO shop_search_fts (rowid, title, body) VALUES (new.product_id, new.title, new.body);
        END
        """,
        # FTS5 keeps no copy of the text: to forget a row it has to be told what the row said.
        """
        CREATE TRIGGER shop_search_delete AFTER DELETE ON shop_searchdocument BEGIN
            INSERT INTO shop_search_fts (shop_search_fts, rowid, title, body)
            VALUES ('delete', old.product_id, old.title, old.body);
        END
        """,
        """
        CREATE TRIGGER shop_search_update AFTER UPDATE ON shop_searchdocument BEGIN
            INSERT INTO shop_search_fts (shop_search_fts, rowid, title, body)
            VALUES ('delete', old.product_id, old.title, old.body);
            INSERT INTO shop_search_fts (rowid, title, body) VALUES (new.product_id, new.title, new.body);
        END
        """,
    ],
    "mysql": [
        "ALTER TABLE shop_searchdocument ADD FULLTEXT INDEX shop_search_all (title, body)",
        "ALTER TABLE shop_searchdocument ADD FULLTEXT INDEX shop_search_title (title)",
    ],
}
DROP = {
    "postgresql": ["ALTER TABLE shop_searchdocument DROP COLUMN vector"],
    "sqlite": [
        "DROP TRIGGER shop_search_insert",
        "DROP TRIGGER shop_search_delete",
        "DROP TRIGGER shop_search_update",
        "DROP TABLE shop_search_fts",
    ],
    "mysql": [
        "ALTER TABLE shop_searchdocument DROP INDEX shop_search_all",
        "ALTER TABLE shop_searchdocument DROP INDEX shop_search_title",
    ],
}


def create(apps: Any, schema_editor: Any) -> None:
    for statement in CREATE[schema_editor.connection.vendor]:
        schema_editor.execute(statement)


def drop(apps: Any, schema_editor: Any) -> None:
    for statement in DROP[schema_editor.connection.vendor]:
        schema_editor.execute(statement)


class Migration(migrations.Migration):
    dependencies = [("shop", "0001_initial")]
    # On PostgreSQL and SQLite the migration as a whole is one transaction; MariaDB refuses DDL inside one.
    operations = [migrations.RunPython(create, drop, atomic=False)]
