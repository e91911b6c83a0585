"""The programs in the documentation run as printed, and the names in it exist."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

import datasets_rl
from datasets_rl import sources
from datasets_rl.exporting.formats import FORMATS

WITHOUT_PROGRAMS = {
    "beside-others.md",
    "how-to/README.md",
    "get-started/install.md",
    "concepts/rlds.md",
    "commands.md",
    "gpu.md",
    "performance.md",
}
DOCS = Path(datasets_rl.__file__).parents[1] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
WITH_PROGRAMS = [page for page in PAGES if page.parent.name != "tutorials"]
"""The pages whose programs run here; `test_tutorials.py` runs those of the tutorials, with the commands between them."""
LONG = {"get-started/first-policy.md", "how-to/prepare.md", "rlhf.md"}
"""Pages whose programs take seconds."""


def page_name(page):
    return page.relative_to(DOCS).as_posix()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def _environment(home, monkeypatch):
    """Store the datasets of the pages in a separate folder, because another version may have written the user's.

    Small networks are trained by one thread: those of parallel tests wait for each other.
    """
    monkeypatch.setenv("RLDS_HOME", str(home))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    "page",
    [pytest.param(one, marks=[pytest.mark.slow] * (page_name(one) in LONG)) for one in WITH_PROGRAMS],
    ids=page_name,
)
def test_the_programs_of_a_page_run_one_after_the_other(page):
    programs = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}
    for program in programs:
        exec(program, names)

    assert (
        programs or page.parent.name in {"contributing", "decisions", "sources"} or page_name(page) in WITHOUT_PROGRAMS
    )


def test_the_classes_of_the_pages_are_public_names():
    name = re.compile(r"`([A-Z]\w+(?:Storage|Sampler|Writer|Buffer|Ensemble|Batches))\b")
    unknown = {
        page_name(page): hidden
        for page in PAGES
        if (hidden := {*name.findall(page.read_text(encoding="utf-8"))} - {*datasets_rl.__all__})
    }

    assert unknown == {}


def test_the_names_that_sessions_import_exist():
    """Sessions of the Python prompt show data that no test can download; what they import is tested all the same."""
    texts = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    sessions = re.findall(r"^```pycon\n(.*?)^```$", texts, flags=re.MULTILINE | re.DOTALL)
    imports = re.findall(r"^>>> from (datasets_rl[\w.]*) import (.+)$", "\n".join(sessions), flags=re.MULTILINE)

    assert imports
    for module, names in imports:
        for name in names.split(", "):
            assert hasattr(importlib.import_module(module), name), f"{module} has no {name}"


def test_the_numbers_of_ids_on_the_pages_of_sources_are_those_of_the_catalogs():
    counts = {one.name: len(one.ids()) for one in sources.importable_sources()[0]}
    stated = {
        page.stem: int(number)
        for page in (DOCS / "sources").glob("*.md")
        for number in re.findall(r"^rlds list \w+ +# (\d+) ids", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    }

    assert len(stated) >= 4
    assert stated == {name: counts[name] for name in stated}


def documented_names():
    """Return the public names of the root and of the transforms, once for each object."""
    found = {}
    for home in (datasets_rl, importlib.import_module("datasets_rl.transforms")):
        for name in home.__all__:
            value = getattr(home, name)
            if inspect.getdoc(value) and name != "__version__":
                found.setdefault(id(value), (name, value))
    return dict(found.values())


def is_complete(text):
    """Return whether an example imports what it uses, and shows a result."""
    examples = doctest.DocTestParser().get_examples(text)
    return any(one.want for one in examples) and examples[0].source.startswith(("import ", "from "))


EXAMPLES = {name: value for name, value in documented_names().items() if is_complete(inspect.getdoc(value))}


def test_the_names_that_are_used_most_have_examples():
    assert len(EXAMPLES) >= 80
    assert {
        "load",
        "download",
        "verify",
        "ReplayBuffer",
        "Composite",
        "LazyTensorStorage",
        "CatFrames",
    } <= EXAMPLES.keys()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_of_docstrings_run(name):
    names = {"TensorDict": TensorDict, "torch": torch}
    example = doctest.DocTestParser().get_doctest(inspect.getdoc(EXAMPLES[name]), names, name, None, None)
    report: list[str] = []
    doctest.DocTestRunner().run(example, out=report.append)

    assert not report, "".join(report)


def test_the_table_of_what_exports_hold_has_a_column_for_each_format():
    page = (DOCS / "export.md").read_text(encoding="utf-8")
    (header,) = re.findall(r"^\| \| (npz, .*) \|$", page, flags=re.MULTILINE)
    columns = [name for cell in header.split(" | ") for name in cell.split(", ")]

    assert sorted(columns) == sorted(FORMATS), "give each format a column in the second table of docs/export.md"
