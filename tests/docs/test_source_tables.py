from __future__ import annotations

import pytest
from source_tables import PAGES, ROOT, read_page, updated_files

from datasets_rl import sources


def test_the_tables_of_sources_are_of_today():
    outdated = [path.relative_to(ROOT).as_posix() for path in updated_files()]
    assert outdated == [], "run: python docs/source_tables.py"


def test_each_source_with_a_catalog_has_a_page():
    named = {origin.name for origin in sources.importable_sources()[0] if origin.ids()} - {"demo"}
    missing = sorted(name for name in named if not (ROOT / PAGES / f"{name}.md").is_file())
    assert missing == [], "write docs/sources/NAME.md; docs/contributing/adding-a-source.md says what it has"


def test_a_page_without_its_comment_is_refused_with_what_is_expected(tmp_path):
    (tmp_path / "rig.md").write_text("# Rig\n\nArms of the lab.\n", "utf-8")
    with pytest.raises(ValueError, match=r"rig\.md begins with '# Rig.*'content: \.\.\.'"):
        read_page(tmp_path / "rig.md")
