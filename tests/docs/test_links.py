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


def anchors(page):
    """Return the anchors of the headings of a page, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    named = {anchor(heading) for heading in re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)}
    return named | set(re.findall(r'<a id="([^"]+)">', text))


def anchor(heading):
    return re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-")


def test_every_link_to_a_heading_leads_to_it():
    missing = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for path, heading in re.findall(r"\]\(([^)\s:#]*)#([^)\s]+)\)", text):
            target = (page.parent / path).resolve() if path else page
            if target.suffix == ".md" and heading not in anchors(target):
                missing.append(f"{page.name}: {path}#{heading}")

    assert not missing, "\n".join(["", *missing])


def test_the_index_of_how_to_lists_every_question():
    folder = ROOT / "docs" / "how-to"
    pages = sorted(set(folder.glob("*.md")) - {folder / "README.md"})
    questions = {
        f"{page.name}#{one}"
        for page in pages
        for one in anchors(page) - {anchor(page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# "))}
    }
    index = (folder / "README.md").read_text(encoding="utf-8")

    assert questions == set(re.findall(r"\(([\w-]+\.md#[^)]+)\)", index))
    assert len(questions) > 60


def test_every_question_is_two_links_away_from_the_home_page():
    """Through the index of the questions: a page from which a user needs to guess the next one is no way."""
    home, index = ROOT / "docs" / "README.md", ROOT / "docs" / "how-to" / "README.md"
    text = index.read_text(encoding="utf-8")
    found = {(index.parent / path, heading) for path, heading in re.findall(r"\]\(([^)\s#]+)#([^)\s]+)\)", text)}
    pages = {path for path in (ROOT / "docs" / "how-to").glob("*.md") if path != index}

    assert index in set(links(home))
    assert len(found) >= 85
    assert {path for path, _ in found} == pages
    assert [(path.name, heading) for path, heading in found if heading not in anchors(path)] == []


def test_the_page_about_performance_names_every_benchmark():
    named = set(re.findall(r"`(test_\w+\.py)`", (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")))

    assert named == {path.name for path in (ROOT / "tests" / "bench").glob("test_*.py")}


def test_the_index_of_the_documentation_lists_every_page():
    pages = {page for page in PAGES if page.parent != ROOT} - {ROOT / "docs" / "README.md"}

    assert pages <= {*links(ROOT / "docs" / "README.md")}
