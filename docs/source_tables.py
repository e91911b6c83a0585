"""The rows of sources in the tables of the README and of the documentation, and in the site's navigation.

The comment at the head of ``docs/sources/<name>.md`` has the text of a source, the class has the options, and the
catalog the number of ids. ``python docs/source_tables.py`` writes the rows. Rows keep their order, and a new source is the last.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from datasets_rl import sources

ROOT = Path(__file__).parents[1]
PAGES = Path("docs/sources")


@dataclass(frozen=True)
class Page:
    """What the tables state about a source.

    Attributes:
        name: Name of the source.
        title: Title of its page.
        facts: The comment at the head of the page: ``content``, and perhaps ``other ids`` and ``layout``.
    """

    name: str
    title: str
    facts: dict[str, str]

    def ids(self) -> str:
        """Return the number of ids in the catalog, and which other ids there are."""
        count, others = len(sources.get_source(self.name).ids()), self.facts.get("other ids")
        return ", ".join(filter(None, [str(count or ""), others]))

    def options(self) -> str:
        """Return the options that only this source has."""
        return ", ".join(f"`--{option.name}`" for option in sources.get_source(self.name).options)


def read_page(path: Path) -> Page:
    """Read the head of the page of a source.

    Raises:
        ValueError: If the page does not begin with a title and a comment that states its content.
    """
    head = re.match(r"# (.+)\n\n<!--\n((?:[a-z ]+: .+\n)+)-->\n", path.read_text("utf-8"))
    facts = dict(line.split(": ", 1) for line in head[2].splitlines()) if head else {}
    if head is None or "content" not in facts or not facts.keys() <= {"content", "other ids", "layout"}:
        raise ValueError(
            f"{path} begins with {path.read_text('utf-8')[:80]!r}, expected a title, an empty line, and the comment "
            "'<!--', 'content: ...', perhaps 'other ids: any other' and 'layout: ...', '-->'"
        )
    return Page(path.stem, head[1], facts)


@dataclass(frozen=True)
class Table:
    """A table with a row for each source.

    Attributes:
        path: The file, from the root.
        name: Pattern of a row. Its group is the name of the source.
        row: The row of a page, or None if the table has no row for this source.
    """

    path: str
    name: str
    row: Callable[[Page], str | None]

    def updated(self, text: str, pages: dict[str, Page]) -> str:
        """Return the text of the file with the rows of today."""
        lines = text.split("\n")
        places = [number for number, line in enumerate(lines) if re.match(self.name, line)]
        names = [match[1] for line in lines if (match := re.match(self.name, line))]
        rows = [self.row(pages[name]) for name in dict.fromkeys([*names, *pages]) if name in pages]
        lines[places[0] : places[-1] + 1] = [row for row in rows if row is not None]
        return "\n".join(lines)


def _layout(page: Page) -> str | None:
    layout = page.facts.get("layout")
    return layout and f"| [{page.name}]({page.name}.md) | {layout} |"


TABLES = [
    Table(
        "README.md",
        r"\| \[`(\w+)`\]\(docs/sources/",
        lambda page: f"| [`{page.name}`](docs/sources/{page.name}.md) | {page.facts['content']} | {page.ids()} |",
    ),
    Table(
        "docs/README.md",
        r"\| \[.*\]\(sources/(?!README|addresses)(\w+)\.md\)",
        lambda page: (
            f"| [{page.title}](sources/{page.name}.md) | {page.facts['content'].removeprefix(f'{page.title}: ')} |"
        ),
    ),
    Table(
        "docs/sources/README.md",
        r"\| \[`(\w+)`\]",
        lambda page: (
            f"| [`{page.name}`]({page.name}.md) | {page.facts['content']} | {page.ids()} | {page.options()} |".replace(
                "|  |", "| |"
            )
        ),
    ),
    Table("docs/sources/addresses.md", r"\| \[(\w+)\]\(", _layout),
    Table(
        "mkdocs.yml",
        r" +- sources/(?!README|addresses)(\w+)\.md",
        lambda page: f"      - sources/{page.name}.md",
    ),
]


def updated_files() -> dict[Path, str]:
    """Return the text of each file with outdated rows."""
    pages = [
        read_page(path) for path in sorted((ROOT / PAGES).glob("*.md")) if path.stem not in {"README", "addresses"}
    ]
    by_name = {page.name: page for page in pages}
    texts = {ROOT / table.path: (ROOT / table.path).read_text("utf-8") for table in TABLES}
    after = {ROOT / table.path: table.updated(texts[ROOT / table.path], by_name) for table in TABLES}
    return {path: text for path, text in after.items() if text != texts[path]}


if __name__ == "__main__":
    for path, text in updated_files().items():
        path.write_text(text, "utf-8")
        print(path.relative_to(ROOT))
