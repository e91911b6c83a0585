"""The site has every page, and builds without a warning."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import datasets_rl
from datasets_rl.cli.commands import command_names

ROOT = Path(datasets_rl.__file__).parents[1]
NOTHING_STORED = datasets_rl.Settings(home=ROOT / "no-datasets")
COPIED = {"format.md", "recipes.md", "get-started/quickstart.md"}
"""Pages of the navigation that docs/generate.py makes."""


def test_the_navigation_has_every_page():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    named = re.findall(r"[\w/-]+\.md", navigation)
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    generated = {name for name in named if name in COPIED or name.startswith("contributing/")}

    assert sorted(named) == sorted(set(named))
    assert pages - generated == set(named) - generated


@pytest.fixture
def generate(monkeypatch):
    """The module that makes pages of the code."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    return importlib.import_module("generate")


def test_every_public_name_and_every_command_has_an_entry(generate):
    named = [name for names in generate.public_names().values() for name in names]
    homes = ["datasets_rl", *generate.MODULES.values()]
    public = {name for home in homes for name in importlib.import_module(home).__all__}

    assert sorted(named) == sorted(public - {"__version__"})
    assert [name for name, _ in generate.command_pages()] == list(command_names())


def test_a_link_to_a_file_of_the_repository_leads_to_its_page_or_to_the_repository(generate):
    text = "[a](../datasets_rl/format/FORMAT.md#rows), [b](../recipes/td3_bc.toml), [c](d4rl.md), [d](https://e.f)"

    assert generate.site_links(text, "docs/looking.md", "looking.md") == (
        "[a](format.md#rows), [b](https://github.com/datasets-rl/datasets-rl/blob/main/recipes/td3_bc.toml), "
        "[c](d4rl.md), [d](https://e.f)"
    )
    assert (
        generate.site_links("[a](docs/README.md)", "CONTRIBUTING.md", "contributing/README.md") == "[a](../README.md)"
    )


def test_each_page_of_the_api_begins_with_a_summary_and_the_base_class(generate):
    names = generate.public_names()
    page = generate.api_page("Samplers of steps", names["Samplers of steps"])
    first = [line.split("`")[1] for line in page.splitlines() if line.startswith("| [`")]

    assert first[0] == "Sampler"
    assert sorted(first) == sorted(names["Samplers of steps"])
    assert page.index("| [`RandomSampler`]") < page.index("::: datasets_rl.samplers.base.Sampler")
    assert all(len(found) < 10 for title, found in names.items() if title.startswith("Samplers"))


def test_a_class_that_is_made_of_a_catalog_is_described_in_the_api(generate):
    page = generate.api_page("Datasets", generate.public_names()["Datasets"])
    section = page.partition("\n## DSRLExperienceReplay\n")[2].partition("\n## ")[0]

    assert "| [`DSRLExperienceReplay`](#dsrlexperiencereplay) | Replay buffer of a DSRL dataset: safe" in page
    assert '    >>> dataset = DSRLExperienceReplay("OfflineCarCircle-v0", batch_size=256)' in section
    assert "**Args:** dataset_id: The id of the task in DSRL" in section


@pytest.mark.slow
def test_each_folder_of_the_site_has_an_index(generate):
    pages = generate.generated_pages()
    concepts = set(re.findall(r"\]\(([\w-]+\.md)\)", pages["concepts/README.md"]))

    assert concepts == {path.name for path in (ROOT / "docs" / "concepts").glob("*.md")}
    assert "(install.md)" in pages["get-started/README.md"]
    assert {f"api/{name}" for name in re.findall(r"\(([\w-]+\.md)\)", pages["api/README.md"])} | {"api/README.md"} == {
        name for name in pages if name.startswith("api/")
    }
    assert "sources/catalog/README.md" in pages


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocstrings")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "api" / "datasets" / "index.html").read_text(encoding="utf-8").count("load") > 3
    assert "hopper-medium-v2" in (tmp_path / "sources" / "catalog" / "d4rl" / "index.html").read_text(encoding="utf-8")
    assert "--dry-run" in (tmp_path / "commands" / "download" / "index.html").read_text(encoding="utf-8")
    for folder in ("api", "concepts", "get-started", "sources/catalog", "how-to", "tutorials", "sources", "commands"):
        assert (tmp_path / folder / "index.html").exists(), folder
    assert 'data-md-component="source"' not in (tmp_path / "index.html").read_text(encoding="utf-8")
    check_datasets(tmp_path)


def check_datasets(site):
    """Check that each dataset has a page, which the search finds by its title, and no navigation lists."""
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    ids = {one["location"]: one for one in index if one["location"].count("/") > 3 and "#" not in one["location"]}
    page = (site / "sources" / "catalog" / "d4rl" / "hopper-medium-v2" / "index.html").read_text(encoding="utf-8")

    assert sum("sources/catalog/" in name for name in ids) == len(datasets_rl.list_datasets(settings=NOTHING_STORED))
    assert max(len(one["text"]) for name, one in ids.items() if "sources/catalog/" in name) < 500
    assert "rlds download d4rl/hopper-medium-v2" in page
    assert "Hopper-v4.webp" in page
    assert 'md-tabs__item md-tabs__item--active">' in page
    assert "hopper-expert-v2" not in page
