"""The notes of changes become the section of a version, and wrong notes are reported."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path):
    """A folder with the program, its notes and a changelog."""
    shutil.copy(ROOT / "changes.py", tmp_path)
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes" / "README.md").write_text("how to write a note")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\nThe format.\n\n## 0.1.0, 2026-01-01\n\n* The first.\n")
    return tmp_path


def run(folder, *arguments):
    return subprocess.run(
        [sys.executable, "changes.py", *arguments], cwd=folder, check=False, capture_output=True, text=True
    )


def test_the_notes_become_the_newest_section_in_the_order_of_the_headings(project):
    (project / "changes" / "b.fixed.md").write_text("A fault\nof two lines.\n")
    (project / "changes" / "a.datasets.md").write_text("A source.\n")

    done = run(project, "0.2.0")

    text = (project / "CHANGELOG.md").read_text()
    head, new, old = text.split("\n## ")
    assert done.returncode == 0
    assert head == "# Changelog\n\nThe format.\n"
    assert new.startswith("0.2.0, 20")
    assert new.split("\n", 1)[1] == "\n### Datasets\n\n* A source.\n\n### Fixed\n\n* A fault\n  of two lines.\n"
    assert old == "0.1.0, 2026-01-01\n\n* The first.\n"
    assert [path.name for path in (project / "changes").iterdir()] == ["README.md"]


def test_wrong_notes_are_all_reported_and_nothing_is_written(project):
    (project / "changes" / "note.md").write_text("Without a section.")
    (project / "changes" / "empty.fixed.md").write_text("\n")
    before = (project / "CHANGELOG.md").read_text()

    done = run(project, "0.2.0")

    assert done.returncode == 1
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == ["empty.fixed.md", "note.md"]
    assert (project / "CHANGELOG.md").read_text() == before


def test_the_notes_of_this_repository_are_right():
    errors = runpy.run_path(str(ROOT / "changes.py"))["errors"]

    assert list(errors(ROOT / "changes")) == []


def test_the_page_about_notes_lists_every_section():
    text = (ROOT / "changes" / "README.md").read_text()
    sections = runpy.run_path(str(ROOT / "changes.py"))["SECTIONS"]

    assert [line for line in text.splitlines() if line.startswith("| `")] == [
        f"| `{section}` | {heading} |" for section, heading in sections.items()
    ]


def test_the_citation_states_the_version_of_the_package():
    version = next(line for line in (ROOT / "pyproject.toml").read_text().splitlines() if line.startswith("version = "))

    number = version.split('"')[1]
    assert f"version: {number}\n" in (ROOT / "CITATION.cff").read_text()
