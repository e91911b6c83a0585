"""Pages of the site about the datasets in the catalogs: a table for each source, and a page for each id.

The facts are from `rlds info`. `docs/environment_images.py` writes the images, and the spaces of each environment.
"""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from datasets_rl import DatasetInfo, Settings, cite, list_datasets, sources
from datasets_rl.cli.info_page import catalog_facts
from datasets_rl.cli.output import size_text

DOCS = Path(__file__).parent
REPOSITORY = "https://github.com/datasets-rl/datasets-rl/blob/main"
RESULTS = "recipes/train/README.md"
NOTHING_STORED = Settings(home=DOCS / "no-datasets")
"""Settings that show the catalogs alone, without the datasets of this machine."""
PIXELS = (84, 84)
"""Shape of the frames that `dqn_atari` reads."""
_SHOWN_ELSEWHERE = {"title", "description", "deprecated"}
_UNSUITABLE = {
    "gc_iql": "an environment with goals",
    "gcbc": "an environment with goals",
    "hiql": "an environment with goals",
    "ope": "a trained policy",
}
"""Programs that need more than a dataset and its environment."""
_COLUMNS = (
    "dataset",
    "steps",
    "download",
    "episodes",
    "environment",
    "observation",
    "action",
    "used for",
    "scores 0 and 1",
    "license",
)
"""The columns of a catalog, those first that are worth the width of a phone."""
_OF_SOURCES = {"scores 0 and 1", "license"}
"""The columns that only the catalog of a source has."""
_FIGURES = {"steps", "episodes", "download"}
_RECIPES = {r"antmaze-": "antmaze", r"(Ant|HalfCheetah|Hopper|Walker2d)-v2": "locomotion"}
"""The start of an environment of D4RL, and the last word of the recipes that papers state for its datasets."""
_DETAILS = {"bytes": "download_bytes"}
_EXCLUDED = "{ data-search-exclude }"
"""Leaves a section out of the search, which would else have 800 sections with this title."""


def catalog_pages() -> dict[str, str]:
    """Return the tables of the catalogs and the pages of the datasets, by path on the site."""
    pages = {f"sources/catalog/{name}.md": catalog_page(name, infos) for name, infos in catalogs().items()}
    pages["sources/catalog/README.md"] = all_datasets_page()
    return pages | {dataset_path(one.id): dataset_page(one) for infos in catalogs().values() for one in infos}


@cache
def catalogs() -> dict[str, tuple[DatasetInfo, ...]]:
    """Return the datasets of every source that has a catalog, without the datasets of this machine."""
    found = {name: list_datasets(source=name, settings=NOTHING_STORED).infos for name in sources.source_names()}
    return {name: infos for name, infos in found.items() if infos}


def with_catalogs(markdown: str, name: str) -> str:
    """Return a page of `docs/sources` with a link to the catalog of its source, or, in the index, to all catalogs.

    Args:
        markdown: The page.
        name: The name of the source, or ``README``.
    """
    found = catalogs()
    if name == "README":
        lines = [f"- [{source}](catalog/{source}.md): {_counted(infos)}" for source, infos in found.items()]
        head = f"\n## Catalogs\n\n[The {_total()} datasets of all catalogs](catalog/README.md), to filter and to sort, with a page for each.\n"
        text = "\n".join([head, *lines, "\n## "])
        return markdown.replace("\n## ", text, 1)
    if name not in found:
        return markdown
    title, rest = markdown.split("\n", 1)
    return f"{title}\n\n[Catalog: all {len(found[name])} datasets](catalog/{name}.md), with a page for each.\n{rest}"


def _total() -> int:
    return sum(map(len, catalogs().values()))


def all_datasets_page() -> str:
    """Return the table of the datasets of all sources.

    It is written as HTML, which takes a tenth of the time of the same table in Markdown. Its links are therefore those of
    the finished site.
    """
    titles = [title for title in _COLUMNS if title not in _OF_SOURCES]
    head = "".join(f"<th{_style(title)}>{title}</th>" for title in titles)
    lines = [
        "---\nhide: [toc]\n---\n# All datasets",
        "",
        f"The {_total()} datasets that `rlds list` shows. A figure with a tilde is estimated or was recorded once. The page of the",
        "dataset names its origin. A click on the head of a column sorts by this column.",
        "",
        '<div class="catalog" data-search-exclude data-sources>',
        f"<table><thead><tr>{head}</tr></thead><tbody>",
        *(_html_row(one, titles) for infos in catalogs().values() for one in infos),
        "</tbody></table>",
        "</div>",
    ]
    return "\n".join(lines) + "\n"


def _html_row(info: DatasetInfo, titles: Sequence[str]) -> str:
    cells = {title: html.escape(text) for title, text in _cells(info).items()}
    path = quote(dataset_path(info.id).removeprefix("sources/catalog/").removesuffix(".md"))
    cells["dataset"] = f'<a href="{path}/"><code>{html.escape(info.id)}</code></a>'
    return f"<tr>{''.join(f'<td{_style(title)}>{cells[title]}</td>' for title in titles)}</tr>"


def _style(title: str) -> str:
    return ' style="text-align: right;"' if title in _FIGURES else ""


def _counted(infos: Sequence[DatasetInfo]) -> str:
    environments = {one.environment for one in infos} - {""}
    datasets = f"{len(infos)} datasets" if len(infos) > 1 else "a dataset"
    return f"{datasets} of {len(environments)} environments" if len(environments) > 1 else datasets


def catalog_page(name: str, infos: Sequence[DatasetInfo]) -> str:
    """Return the table of the datasets of a source."""
    about = f" [About this source](../{name}.md)." if _source_title(name) else ""
    licenses = list(dict.fromkeys(one.license for one in infos))
    same = f" The license of all: {licenses[0]}." if len(licenses) == 1 else ""
    lines = [
        f"---\nhide: [toc]\n---\n# {name}",
        "",
        f"The {len(infos)} datasets that `rlds list --source {name}` shows, each with a page.{about} A figure with a tilde is",
        "estimated or was recorded once. The page of the dataset, or `rlds info ID`, names its origin. The column of scores has",
        f"the returns of the normalized scores 0 and 1, where known.{same}",
        "",
    ]
    rows = [_cells(one) for one in infos]
    shown = [title for title in _COLUMNS if any(row[title] for row in rows) and not (title == "license" and same)]
    table = [
        # The search finds the pages of the datasets, and ids in the tables would be second results.
        '<div class="catalog" data-search-exclude markdown>\n',
        f"| {' | '.join(shown)} |",
        f"| {' | '.join('---:' if title in _FIGURES else '---' for title in shown)} |",
        *(f"| {' | '.join(table_cell(row[title]) for title in shown)} |" for row in rows),
        "\n</div>",
    ]
    return "\n".join([*lines, *table, *_issue_lines(infos)]) + "\n"


def _cells(info: DatasetInfo) -> dict[str, str]:
    """Return the row of a dataset, by the columns of the table."""
    score = "" if info.score is None else f"{info.score.low:,.6g}&nbsp;and&nbsp;{info.score.high:,.6g}"
    figures = [_figure(info, name) for name in ("steps", "bytes", "episodes")]
    spaces = [space.short if space else "" for space in (info.observation, info.action)]
    cells = (
        _link_in_catalog(info.id),
        *figures,
        info.environment,
        *spaces,
        ", ".join(info.used_for),
        score,
        info.license,
    )
    return dict(zip(_COLUMNS, cells, strict=True))


def _link_in_catalog(dataset_id: str) -> str:
    path = dataset_path(dataset_id).removeprefix("sources/catalog/")
    return f"[`{dataset_id.partition('/')[2]}`]({quote(path)})"


def _figure(info: DatasetInfo, name: str) -> str:
    value = getattr(info, _DETAILS.get(name, name))
    if value is None:
        return ""
    shown = size_text(value) if name == "bytes" else f"{value:,}"
    return shown if info.basis[name].kind == "exact" else f"~ {shown}"


def _issue_lines(infos: Sequence[DatasetInfo]) -> list[str]:
    issues: dict[str, list[str]] = {}
    for info in infos:
        for issue in info.known_issues:
            issues.setdefault(issue, []).append(info.id)
    if not issues:
        return []
    shown = {
        issue: "all" if len(ids) == len(infos) else ", ".join(map(_link_in_catalog, ids))
        for issue, ids in issues.items()
    }
    rows = [f"| {table_cell(issue)} | {ids} |" for issue, ids in shown.items()]
    head = f"## Known issues {_EXCLUDED}\n\n| issue of the upstream's data | datasets |\n| --- | --- |"
    return ["", head, *rows]


def dataset_path(dataset_id: str) -> str:
    """Return the path of the page of a dataset on the site."""
    return f"sources/catalog/{dataset_id}.md"


def dataset_page(info: DatasetInfo) -> str:
    """Return the page of a dataset: what `rlds info` shows before the download, and how to get and use it."""
    up = "../" * info.id.count("/")
    blocks = [
        f"---\nsearch: {{ boost: {0.15 if info.deprecated else 0.3} }}\n---",
        f"# {info.id}",
        _way_up(info, up),
        *_image(info, up),
        f"{info.title}. The environment is {info.environment}." if info.environment else f"{info.title}.",
        *_note(info),
        f"## Facts {_EXCLUDED}",
        info.description,
        _facts_table(info),
        *_section("Known issues of the upstream's data", "\n".join(f"- {issue}" for issue in info.known_issues)),
        *_section("Download and load", _load_text(info, up)),
        *_section("Fields", _fields_text(info, up)),
        *_section("Preprocess", _preprocess_text(info, up)),
        *_section("Train", _train_text(info, up)),
        *_section("Baselines", _baseline_text(info)),
        *_section("Cite", _cite_text(info, up)),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _section(title: str, text: str) -> list[str]:
    return [f"## {title} {_EXCLUDED}", text] if text else []


def _way_up(info: DatasetInfo, up: str) -> str:
    """Return the links to the pages above: all sources, this source, its catalog."""
    source = info.id.partition("/")[0]
    title = _source_title(source)
    links = [f"[Datasets]({up}../README.md)", *([f"[{title}]({up}../{source}.md)"] if title else [])]
    count = len(catalogs()[source])
    links.append(f"[{source}: all {count}]({up}{source}.md)" if count > 1 else f"[{source}]({up}{source}.md)")
    return f"{' / '.join(links)}\n{{ .way-up data-search-exclude }}"


@cache
def _source_title(source: str) -> str:
    """Return the title of the page about a source. Empty without such a page."""
    path = DOCS / "sources" / f"{source}.md"
    return path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") if path.exists() else ""


def _note(info: DatasetInfo) -> list[str]:
    return ["**Deprecated**: its authors replaced it by a newer version."] if info.deprecated else []


def _facts_table(info: DatasetInfo) -> str:
    facts = [(name, text) for name, text in catalog_facts(info) if text and name not in _SHOWN_ELSEWHERE]
    rows = [f"| {name} | {table_cell(_linked(text))} |" for name, text in facts]
    return "\n".join(['<div class="facts" markdown>\n', "| | |\n| --- | --- |", *rows, "\n</div>"])


def _linked(text: str) -> str:
    """Return a text with its addresses of the web as links."""
    return re.sub(r"(?<![\w<(])https?://[^\s,;()]*[^\s,;().]", r"<\g<0>>", text)


@cache
def _environments() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((DOCS / "environments.json").read_text(encoding="utf-8"))
    return found


def _image(info: DatasetInfo, up: str) -> list[str]:
    """Return the image of the environment, with a description."""
    found = _environments().get(info.environment)
    if found is None:
        return []
    instead = "" if found["made"] == info.environment else f", in place of `{info.environment}`"
    image = f"![{found['made']}]({up}../../images/environments/{found['image']})"
    caption = f"The environment `{found['made']}`{instead}, drawn by {found['library']}; not an image of the dataset"
    return [
        f'<figure class="environment" data-search-exclude markdown>\n{image}\n<figcaption markdown>{caption}</figcaption>\n</figure>'
    ]


def _load_text(info: DatasetInfo, up: str) -> str:
    lines = [
        "```",
        f"rlds download {shlex.quote(info.id)}",
        "```",
        "",
        "```python",
        "from datasets_rl import load",
        "",
        f'dataset = load("{info.id}", batch_size=256)  # downloads the dataset at the first call',
        "batch = dataset.sample()",
        "```",
        "",
        f"[A stored dataset and its batches]({up}../../get-started/first-dataset.md).",
    ]
    return "\n".join(lines)


def _fields_text(info: DatasetInfo, up: str) -> str:
    """Return the shapes of a step that the catalog states, and the place of the other shapes."""
    later = "known after the download"
    nested = info.observation is not None and info.observation.shape is None
    observation, action = (later if space is None else space.text for space in (info.observation, info.action))
    rows = [
        f"| `observation` | {observation}{f', with keys and shapes that are {later}' if nested else ''} |",
        f"| `action` | {action} |",
        '| `("next", "observation")` | as `observation` |',
        '| `("next", "reward")` | `[1]` |',
        '| `("next", "terminated" / "truncated" / "done")` | `[1]`, bool |',
    ]
    table = "\n".join(["| key | a step |\n| --- | --- |", *rows])
    source = info.id.partition("/")[0]
    more = f" What else its source stores is on [its page]({up}../{source}.md#fields)." if _source_title(source) else ""
    return f"{table}\n\n`rlds info {shlex.quote(info.id)}` shows the type and the shape of every field once it is stored.{more}"


def _baseline_text(info: DatasetInfo) -> str:
    """Return the results of training programs on the dataset, and on what was derived from it.

    Empty without results.
    """
    head, rule, *rows = baselines()
    named = [row for row in rows if row.split(" | ")[0].removeprefix("| ").partition("@")[0] == info.id]
    if not named:
        return ""
    link = f"[the table of the programs]({REPOSITORY}/{RESULTS}#results)"
    return "\n".join([f"From {link}, which says how each number was made.", "", head, rule, *named])


@cache
def baselines() -> tuple[str, ...]:
    """Return the lines of the table of results, each with its dataset."""
    text = (DOCS.parent / RESULTS).read_text(encoding="utf-8").split("<!-- results -->")[1].split("<!-- end")[0]
    lines, dataset = [], ""
    for line in text.strip().splitlines():
        dataset = line.split("|")[1].strip() or dataset
        lines.append(re.sub(r"^\|[^|]*\|", f"| {dataset} |", line))
    return tuple(lines)


def _preprocess_text(info: DatasetInfo, up: str) -> str:
    """Return the recipes by which papers preprocess the dataset."""
    names = paper_recipes(info)
    if not names:
        return ""
    links = ", ".join(f"[`{name}`]({up}../../recipes.md#{name})" for name in names)
    command = f"rlds preprocess {info.id} --recipe {names[0]}"
    note = f"Policies of the result are evaluated in an environment [that is preprocessed alike]({up}../../train.md#the-environment)."
    return f"Recipes of papers that use this dataset: {links}.\n\n```\n{command}\n```\n\n{note}"


def paper_recipes(info: DatasetInfo) -> list[str]:
    """Return the names of the recipes that papers state for a dataset.

    The last word of a name is the kind of the tasks.
    """
    kinds = [
        word for start, word in _RECIPES.items() if info.id.startswith("d4rl/") and re.match(start, info.environment)
    ]
    names = sorted(path.stem for path in (DOCS.parent / "recipes").glob("*.toml"))
    return [name for name in names if name.rpartition("_")[2] in kinds]


def _train_text(info: DatasetInfo, up: str) -> str:
    """Return the programs that train on the dataset, where its environment can be made to evaluate them."""
    programs = fitting_programs(info)
    if not programs:
        return ""
    names = ", ".join(f"`{name}`" for name in programs)
    score = "" if info.score is None else ", with normalized scores"
    return (
        f"These [programs]({up}../../train.md) read such observations and actions, and evaluate the policy in the "
        f"environment{score}: {names}.\n\n```\nrlds train {programs[0]} --dataset {info.id}\n```"
    )


def fitting_programs(info: DatasetInfo) -> list[str]:
    """Return the training programs that a dataset fits: by the spaces of the dataset and of the environment.

    Programs evaluate policies, so that an environment which cannot be made has none. Programs on vectors need observations
    and actions of the same shape as the dataset's, and `dqn_atari` needs frames in gray.
    """
    found = _environments().get(info.environment)
    if found is None or info.observation is None or info.action is None:
        return []
    if info.observation.kind == "pixels":
        return ["dqn_atari"] * (info.observation.shape == PIXELS and info.action.kind == "discrete")
    spaces = [(found["observation"], info.observation), (found["action"], info.action)]
    if any(space is None or stated.shape != tuple(space) or len(space) != 1 for space, stated in spaces):
        return []
    unsuitable = {*_UNSUITABLE, "dqn_atari"}
    return [name for name, actions in programs().items() if info.action.kind in actions and name not in unsuitable]


@cache
def programs() -> dict[str, tuple[str, ...]]:
    """Return the kinds of actions of each training program, as in docs/train.md."""
    text = (DOCS / "train.md").read_text(encoding="utf-8").split("| program | algorithm | actions |")[1]
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([a-z, ]+) \|$", text.split("\n\n")[0], flags=re.MULTILINE)
    return {name: tuple(actions.split(", ")) for name, actions in rows}


def _cite_text(info: DatasetInfo, up: str) -> str:
    entries = "\n\n".join(one.bibtex for one in cite(info.id, settings=NOTHING_STORED))
    return f"`rlds cite {shlex.quote(info.id)}` prints it, see [how to cite]({up}../../sharing.md).\n\n```bibtex\n{entries}\n```"


def table_cell(text: str) -> str:
    """Return a text for a cell of a table: on a single line, with escaped bars."""
    return " ".join(text.replace("|", "\\|").split())
