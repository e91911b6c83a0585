"""The source of docs/contributing/adding-a-source.md, pasted as it is into a copy of the repository, passes the tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import datasets_rl

ROOT = Path(datasets_rl.__file__).parents[1]
PAGE = (ROOT / "docs" / "contributing" / "adding-a-source.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r'^```\w+ title="(.*?)"\n(.*?)^```$', PAGE, flags=re.MULTILINE | re.DOTALL))
NOT_COPIED = {".git", ".venv", "site", "build", "dist"}
"""What the root of a checkout may have beside the repository."""
CACHES = shutil.ignore_patterns("__pycache__", "*_cache", ".hypothesis", "*.egg-info")
PACKAGE_OF_OTHERS = {"pyproject.toml", "example.py"}
DOCUMENTED = (
    "tests/docs/test_catalog_pages.py",
    "tests/docs/test_site.py",
    "tests/docs/test_links.py",
    "tests/docs/test_source_tables.py",
)
LISTED = ("tests/catalog", "tests/sources/test_figures.py", "tests/sources/test_catalog.py", "tests/cli/test_list.py")
CONVERTED = ("tests/conformance/test_sources.py", "--timeout", "600", "-k", "arm", "-m", "slow or not slow")


@pytest.fixture(scope="module")
def pasted(tmp_path_factory):
    """A copy of the repository with the blocks of the page in their files, and the rows in the tables."""
    tree = tmp_path_factory.mktemp("pasted") / "datasets-rl"
    tree.mkdir()
    for path in ROOT.iterdir():
        if path.is_dir() and path.name not in NOT_COPIED | CACHES(str(ROOT), [path.name]):
            shutil.copytree(path, tree / path.name, ignore=CACHES)
        elif path.is_file() and path.name not in NOT_COPIED:
            shutil.copy(path, tree)
    for path, text in BLOCKS.items():
        if path not in PACKAGE_OF_OTHERS:
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_text(text, encoding="utf-8")
    run(tree, "docs/source_tables.py")
    return tree


def run(tree, *words):
    """Run a module or a file of Python in a copy of the repository, without the settings of this run."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RLDS_", "PYTEST_"))}
    done = subprocess.run(
        # An option of the interpreter asks for the real Python: pytest rewrites plugins before they are imported.
        [sys.executable, "-s", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**environment, "PYTHONPATH": str(tree)},
        cwd=tree,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_has_every_file_that_its_table_names():
    table = PAGE.partition("| file | content |\n")[2].partition("\n\n")[0]
    named = set(re.findall(r"^\| `([^`]+)` \|", table, flags=re.MULTILINE))

    assert {*BLOCKS} == named - {"datasets_rl/datasets/arm.py"} | PACKAGE_OF_OTHERS


@pytest.mark.slow
@pytest.mark.timeout(1200)  # nothing of the copy is compiled yet
@pytest.mark.parametrize(
    "words",
    [
        ("ruff", "check", "--no-cache", "datasets_rl/sources/arm", "tests/raw/arm.py", "tests/oracles/arm.py"),
        (
            "ruff",
            "format",
            "--no-cache",
            "--check",
            "datasets_rl/sources/arm",
            "tests/raw/arm.py",
            "tests/oracles/arm.py",
        ),
        *(("pytest", "-q", "-p", "no:cacheprovider", *tests) for tests in (DOCUMENTED, LISTED, CONVERTED)),
    ],
    ids=["ruff", "format", "documentation", "catalogs", "conformance"],
)
def test_the_source_of_the_page_passes_as_a_part_of_this_package(pasted, words):
    printed = run(pasted, "-m", *words)

    if "arm" in words:
        assert int(re.search(r"(\d+) passed", printed)[1]) > 20
