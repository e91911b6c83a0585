"""The programs in the documentation run as printed, and the names in it exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import datasets_rl

DOCS = Path(datasets_rl.__file__).parents[1] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def _environment(home, monkeypatch):
    """Store the datasets of the pages in a separate folder, because another version may have written the user's."""
    monkeypatch.setenv("RLDS_HOME", str(home))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_programs_of_a_page_run_one_after_the_other(page):
    programs = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}
    for program in programs:
        exec(program, names)

    assert programs or page.parent.name in {"sources", "contributing"} or page.name == "README.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_classes_of_a_page_are_public_names(page):
    named = set(
        re.findall(r"`([A-Z]\w+(?:Storage|Sampler|Writer|Buffer|Ensemble|Batches))\b", page.read_text(encoding="utf-8"))
    )

    assert named <= set(datasets_rl.__all__)
