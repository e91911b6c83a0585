"""Every dataset of the catalogs has a page on the site, with what `rlds info` shows and what its environment states."""

from __future__ import annotations

import importlib
import json
import re
import shlex
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest
from PIL import Image

import datasets_rl
from datasets_rl import sources
from datasets_rl.cli.app import main
from datasets_rl.cli.commands import command_names
from datasets_rl.recipes.train import program_files

ROOT = Path(datasets_rl.__file__).parents[1]
DOCS = ROOT / "docs"
IMAGES = DOCS / "images" / "environments"
ENVIRONMENTS = json.loads((DOCS / "environments.json").read_text(encoding="utf-8"))
ON_VECTORS = ["bc", "td3_bc", "iql", "cql", "rebrac", "dt", "diffusion_policy", "act", "rlpd"]


@cache
def entries():
    """Return all entries of the catalogs by id, from the sources themselves."""
    found = (source.entry(name) for source in sources.importable_sources()[0] for name in source.ids())
    return {one.id: one for one in found}


def sample():
    """Return the first, the middle and the last id of each source."""
    of_sources = ([one for one in entries() if one.startswith(f"{name}/")] for name in sources.source_names())
    return sorted({ids[place] for ids in of_sources if ids for place in (0, len(ids) // 2, -1)})


SAMPLE = sample()


@pytest.fixture
def catalog_pages(monkeypatch):
    """The module that makes the pages."""
    monkeypatch.syspath_prepend(DOCS)
    return importlib.import_module("catalog_pages")


@pytest.fixture(scope="module")
def pages():
    """All pages, by path."""
    with pytest.MonkeyPatch.context() as environment:
        environment.syspath_prepend(DOCS)
        return importlib.import_module("catalog_pages").catalog_pages()


@pytest.fixture
def page(catalog_pages):
    """Return the page of an id, as one line of plain text."""
    infos = {one.id: one for found in catalog_pages.catalogs().values() for one in found}
    return lambda name: plain(catalog_pages.dataset_page(infos[name]))


def plain(text):
    return " ".join(re.sub(r"<(https?:[^>]*)>", r"\1", text).replace("\\|", "|").split())


def check(page, name):
    """Check a page against the entry of the catalog."""
    entry, text = entries()[name], page(name)
    stated = (entry.title, entry.description, entry.environment, entry.license, entry.citation, entry.homepage)
    origins = (basis.origin for figure, basis in entry.basis.items() if getattr(entry, figure) is not None)
    figures = (f"{number:,}" for number in (entry.steps, entry.episodes) if number is not None)
    scores = () if entry.score is None else (f"{entry.score.low:,.2f}", f"{entry.score.high:,.2f}", entry.score.origin)
    expected = (*stated, *origins, *figures, *scores, *entry.known_issues, *entry.tags)

    assert [one for one in map(plain, expected) if one not in text] == []
    assert f'load("{name}", ' in text
    assert ("**Deprecated**" in text) == entry.deprecated
    assert (f"![{ENVIRONMENTS.get(entry.environment, {}).get('made')}]" in text) == (entry.environment in ENVIRONMENTS)
    assert re.search(r"```bibtex @\w+\{", text)


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_the_page_of_a_dataset_states_what_its_catalog_states(page, every):
    for name in {*SAMPLE, *[*entries()][::every]}:
        check(page, name)


@pytest.mark.parametrize("name", SAMPLE)
def test_the_page_has_the_facts_of_the_command(name, page, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    monkeypatch.setenv("RLDS_CONFIG", str(tmp_path / "config.toml"))
    assert main(["info", name, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["catalog"]
    text = page(name)

    assert [one for one in shown["addresses"] if one not in text] == []
    for part in ("observation", "action"):
        space = shown[part]
        assert space, (
            f"state {part}, a SpaceSummary, in the entry of the source of {name}: its page cannot be made without"
        )
        assert str(space["shape"] or "") in text
        assert space["kind"] in text


def test_every_dataset_has_a_page_that_its_catalog_links_to(pages):
    tables = {name: text for name, text in pages.items() if name.count("/") == 2}
    linked = [
        f"sources/catalog/{target.replace('%28', '(').replace('%29', ')')}"
        for text in tables.values()
        for target in re.findall(r"^\| \[`[^`]+`\]\(([^)]+)\)", text, flags=re.MULTILINE)
    ]

    assert sorted(linked) == sorted(f"sources/catalog/{name}.md" for name in entries())
    assert set(linked) | set(tables) == set(pages)
    assert len({name.lower() for name in pages}) == len(pages), "names that a disk may hold to be the same"


def test_the_commands_of_a_page_name_its_dataset(page):
    for name in SAMPLE:
        commands = [shlex.split(line) for line in re.findall(r"``` (rlds [^`]*) ```", page(name))]
        assert [one[1] for one in commands][:1] == ["download"]
        assert all(one[1] in command_names() and name in one for one in commands)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("d4rl/hopper-medium-v2", ON_VECTORS, id="vectors and an environment of Gymnasium"),
        pytest.param("minari/mujoco/walker2d/expert-v0", ON_VECTORS, id="vectors, with the environment's own id"),
        pytest.param("atari_dqn/Pong/1", ["dqn_atari"], id="frames in gray"),
        pytest.param("minari/D4RL/antmaze/umaze-v1", [], id="observations of several fields"),
        pytest.param("d4rl/maze2d-umaze-v1", [], id="an environment that nothing here can make"),
        pytest.param("gen_dgrl/bigfish-10M", [], id="frames in color"),
        pytest.param("openml/magic", [], id="no environment"),
    ],
)
def test_programs_are_named_where_the_spaces_of_the_environment_fit(catalog_pages, name, expected):
    assert catalog_pages.fitting_programs(datasets_rl.DatasetInfo(name, sources.find(name), None)) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("d4rl/hopper-medium-v2", ["corl_locomotion", "iql_locomotion"]),
        ("d4rl/antmaze-umaze-v2", ["calql_antmaze", "cql_antmaze", "iql_antmaze"]),
        ("minari/D4RL/antmaze/umaze-v1", []),
        ("d4rl/pen-human-v1", []),
    ],
)
def test_recipes_of_papers_are_named_for_the_datasets_that_they_use(catalog_pages, name, expected):
    assert catalog_pages.paper_recipes(datasets_rl.DatasetInfo(name, sources.find(name), None)) == expected


@pytest.mark.parametrize(
    ("name", "observation", "action"),
    [
        ("d4rl/hopper-medium-v2", "state [11]", "continuous [3], from -1 to 1"),
        ("atari_dqn/Pong/1", "pixels [84, 84]", "discrete, 6 values"),
        ("demo/pendulum", "state [3]", "continuous [1], from -2 to 2"),
    ],
)
def test_the_fields_of_a_page_have_the_shapes_of_its_dataset(page, name, observation, action):
    """Those of Hopper and Pendulum are in Gymnasium's documentation, those of Atari in that of RL Unplugged."""
    fields = page(name).partition("## Fields")[2].partition("## ")[0]

    assert f"| `observation` | {observation} | | `action` | {action} |" in fields
    assert "known after the download" not in fields
    assert f"`rlds info {name}`" in fields


def test_shapes_that_only_the_files_have_are_announced_for_after_the_download(page):
    nested = [name for name, entry in entries().items() if name.startswith("openx/")]

    assert len(nested) > 60
    for name in nested:
        assert "known after the download" in page(name).partition("## Fields")[2].partition("## ")[0], name


def test_a_page_has_the_baselines_that_were_measured_on_its_dataset(page):
    results = (ROOT / "recipes" / "train" / "README.md").read_text(encoding="utf-8")
    first = results.index("| demo/pendulum |")
    rows = results[first : results.index("| local/", first)].strip().splitlines()
    text = page("demo/pendulum").partition("## Baselines")[2].partition("## ")[0]

    assert len(rows) > 5
    assert [row for row in rows if plain(row.split("|", 2)[2]) not in text] == []
    assert "local/" not in text
    assert "## Baselines" not in page("d4rl/hopper-medium-v2")


def test_one_page_has_all_datasets(catalog_pages, pages):
    text = pages["sources/catalog/README.md"]
    rows = re.findall(r'<tr><td><a href="([^"]+)/"><code>([^<]+)</code></a></td>', text)

    assert [name for _, name in rows] == [info.id for found in catalog_pages.catalogs().values() for info in found]
    assert "<th>used for</th>" in text
    assert text.count("<td>benchmark, safe</td>") == 38  # the datasets of DSRL
    assert all(f"sources/catalog/{unquote(path)}.md" == catalog_pages.dataset_path(name) for path, name in rows)


def test_the_guide_to_training_states_the_actions_that_the_programs_take(catalog_pages):
    """A program refuses the actions that it does not take; behavior cloning takes both kinds."""
    texts = {name: path.read_text(encoding="utf-8") for name, path in program_files().items()}
    refused = {name: "action_normalizer" in text or "needs discrete actions" in text for name, text in texts.items()}

    assert {name for name, kinds in catalog_pages.programs().items() if len(kinds) == 2} == {"bc"}
    assert all(refused[name] for name in texts)
    assert catalog_pages.programs()["dqn_atari"] == ("discrete",)


def test_images_are_of_environments_in_the_catalogs_and_small():
    used = {one["image"] for one in ENVIRONMENTS.values()}
    sizes = {path.name: path.stat().st_size for path in IMAGES.iterdir()}

    assert set(ENVIRONMENTS) <= {one.environment for one in entries().values()}
    assert used == set(sizes)
    assert sum(sizes.values()) < 500_000
    for name in ("Hopper-v4.webp", "PongNoFrameskip-v0.webp"):
        with Image.open(IMAGES / name) as image:
            assert image.format == "WEBP"
            assert max(image.size) <= 250


def test_the_page_of_a_source_has_its_fields_scores_and_license(catalog_pages):
    for name, infos in catalog_pages.catalogs().items():
        path = DOCS / "sources" / f"{name}.md"
        if not path.exists():
            assert name == "demo"
            continue
        text = path.read_text(encoding="utf-8")
        missing = {"## Fields", "## Scores"} - set(text.splitlines())
        assert not missing, f"add {' and '.join(sorted(missing))} to docs/sources/{name}.md"
        scores = re.split(r"^## Scores$", text, flags=re.MULTILINE)[1].split("\n## ")[0]
        assert re.search(r"^## (Corrections|Encoding of the columns)$", text, flags=re.MULTILINE), name
        assert re.search(r"^## License\b", text, flags=re.MULTILINE), name
        stated = " no reference returns" in scores
        unscored = all(one.score is None for one in infos)
        assert stated == unscored, (
            f'{path.name}: "no reference returns" is to be in Scores, if no id has a score, and only then'
        )


def test_the_pages_about_sources_say_where_their_datasets_are(catalog_pages):
    page = catalog_pages.with_catalogs("# D4RL\n\nText.\n", "d4rl")
    index = catalog_pages.with_catalogs("# Datasets\n\n## A\n", "README")

    assert page.startswith("# D4RL\n\n[Catalog: all 183 datasets](catalog/d4rl.md)")
    assert page.endswith("\n\nText.\n")
    assert index.endswith("\n## A\n")
    assert set(re.findall(r"\((catalog/\w+\.md)\)", index)) == {
        f"catalog/{name}.md" for name in ["README", *catalog_pages.catalogs()]
    }
    assert catalog_pages.with_catalogs("# Your own files\n", "local") == "# Your own files\n"
