"""Links between the pages of the project lead to files, and the index of the documentation is complete."""

from __future__ import annotations

import re
from pathlib import Path

import datasets_rl

ROOT = Path(datasets_rl.__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def links(page):
    """Return the files that a page links to, with the text of each link; links in code are ignored."""
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"\w+:|#", target):
            yield (page.parent / target.partition("#")[0]).resolve()


def test_every_link_leads_to_a_file():
    missing = [f"{page.name}: {path}" for page in PAGES for path in links(page) if not path.exists()]

    assert not missing, "\n".join(["", *missing])


def test_the_index_of_the_documentation_lists_every_page():
    pages = {page for page in PAGES if page.parent != ROOT} - {ROOT / "docs" / "README.md"}

    assert pages <= {*links(ROOT / "docs" / "README.md")}
