"""Pages of the site that are generated from the code: commands, API, catalogs and recipes.

MkDocs calls the `on_*` functions. A page of `docs/` links to files of the repository by path. On the site, such a
link leads to the page made of the file, or to the file in the repository.
"""

from __future__ import annotations

import inspect
import json
import posixpath
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from catalog_pages import REPOSITORY, catalog_pages, table_cell, with_catalogs

from datasets_rl.cli.frame import make_app
from datasets_rl.cli.help_page import split_help
from datasets_rl.cli.options import GLOBALS
from datasets_rl.preprocessing.recipe import shipped_recipes

ROOT = Path(__file__).parents[1]
COPIED = {
    "datasets_rl/format/FORMAT.md": "format.md",
    "CONTRIBUTING.md": "contributing/README.md",
    "CHANGELOG.md": "contributing/changelog.md",
    "SECURITY.md": "contributing/security.md",
    "CODE_OF_CONDUCT.md": "contributing/code-of-conduct.md",
}
"""The pages of the site that are files outside of `docs/`, by path in the repository."""
NOTEBOOKS = {"recipes/quickstart.ipynb": "get-started/quickstart.md"}
"""The pages of the site that are notebooks."""
MODULES = {
    "Transforms": "datasets_rl.transforms",
    "Errors": "datasets_rl.errors",
    "Texts for learning from human feedback": "datasets_rl.rlhf",
    "Data of vision-language-action models": "datasets_rl.vla",
    "Locks of datasets": "datasets_rl.lockfile",
    "Statements for papers": "datasets_rl.citing",
}
"""Modules with further public names, by subject."""
INDEXES = {"Get started": "get-started", "Concepts": "concepts"}
"""The sections of `docs/README.md` that are the index pages of folders on the site."""
_LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")
_CODE = re.compile(r"`[^`\n]+`")
_SHORT_CODE = re.compile(r"<code>([^<\n]{1,24})</code>")
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_TYPE = re.compile(r" <(?:list\[)?\w+\]?>$")
"""What Typer adds to the name of an argument."""


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    for path, content in generated_pages().items():
        files.append(File.generated(config, path, content=content))
    return files


def on_config(config: Any) -> Any:
    """Add the generated pages to the navigation: each to the section of its folder."""
    sections = {title: section for entry in config.nav for title, section in entry.items()}
    sections["Datasets"].append({"Catalogs": []})
    folders = {
        "commands": sections["Command line"],
        "api": sections["API"],
        "sources/catalog": sections["Datasets"][-1]["Catalogs"],
    }
    for title, folder in INDEXES.items():
        sections[title].insert(0, f"{folder}/README.md")
    for path in generated_pages():
        # The index of a folder opens its section.
        entries = folders.get(posixpath.dirname(path), [])
        entries.insert(0 if path.endswith("README.md") else len(entries), path)
    return config


def on_nav(nav: Any, config: Any, files: Any) -> Any:
    """Show the pages of the datasets within the section of the catalogs, which lists only the tables."""
    del config
    for catalog in nav.pages:
        folder = catalog.file.src_uri.removesuffix(".md") + "/"
        if catalog.file.src_uri.startswith("sources/catalog/"):
            for file in files.documentation_pages():
                if file.src_uri.startswith(folder):
                    file.page.parent = catalog.parent
    return nav


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the page with its links on the site, and with the links that only the site has."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation", "toc"]
    folder, name = posixpath.split(page.file.src_uri)
    if folder == "sources":
        markdown = with_catalogs(markdown, name.removesuffix(".md"))
    origin = {copied: path for path, copied in COPIED.items()}.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return site_links(markdown, origin, page.file.src_uri)


def on_page_content(html: str, **_: Any) -> str:
    """Return the page with a class for short code, such as names, which the browser keeps on a single line."""
    return _SHORT_CODE.sub(r'<code class="short">\1</code>', html)


def on_post_page(output: str, **_: Any) -> str:
    """Return the page without the mark by which the theme's script asks GitHub for the stars of the repository."""
    return output.replace(' data-md-component="source"', "")


def site_links(markdown: str, origin: str, target: str) -> str:
    """Return a page with links to files of the repository that lead to pages of the site, or to the repository.

    Args:
        markdown: The page. Links in fenced code are left unchanged.
        origin: The path of the file in the repository, which its links are relative to.
        target: The path of the page on the site.
    """

    def replaced(match: re.Match[str]) -> str:
        path, hash_mark, anchor = match[2].partition("#")
        if not path or re.match(r"\w+:", path):
            return match[0]
        return f"{match[1]}{_site_link(path, origin, target)}{hash_mark}{anchor}{match[3]}"

    pieces = _FENCED.split(markdown)
    # GitHub needs a backslash before a bar in the code of a table, and Python-Markdown shows this backslash.
    pieces[::2] = [_CODE.sub(lambda code: code[0].replace("\\|", "|"), _LINK.sub(replaced, one)) for one in pieces[::2]]
    return "".join(pieces)


def _site_link(path: str, origin: str, target: str) -> str:
    in_repository = posixpath.normpath(posixpath.join(posixpath.dirname(origin), path))
    on_site = (COPIED | NOTEBOOKS).get(in_repository, in_repository.removeprefix("docs/"))
    if on_site == in_repository and origin.startswith("docs/") and (ROOT / in_repository).exists():
        return f"{REPOSITORY}/{in_repository}"
    if on_site == in_repository and origin in COPIED:
        return f"{REPOSITORY}/{in_repository}"
    return posixpath.relpath(on_site, posixpath.dirname(target) or ".")


@cache
def generated_pages() -> dict[str, str]:
    """Return the generated pages by path on the site."""
    pages = {copied: (ROOT / path).read_text(encoding="utf-8") for path, copied in COPIED.items()}
    pages |= {f"commands/{name}.md": page for name, page in command_pages()}
    pages |= {f"{folder}/README.md": index_page(title, folder) for title, folder in INDEXES.items()}
    pages |= {"api/README.md": api_index()}
    pages |= {f"api/{_slug(title)}.md": api_page(title, names) for title, names in public_names().items()}
    pages |= catalog_pages()
    pages |= {copied: notebook_page(path) for path, copied in NOTEBOOKS.items()}
    return pages | {"recipes.md": recipes_page()}


def index_page(title: str, folder: str) -> str:
    """Return a section of the index of the documentation as a page of a folder, with links from there."""
    text = (ROOT / "docs" / "README.md").read_text(encoding="utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]
    moved = _LINK.sub(lambda link: f"{link[1]}{posixpath.relpath(link[2], folder)}{link[3]}", text)
    return f"# {title}\n{moved}"


def notebook_page(path: str) -> str:
    """Return a notebook as a page, without outputs."""
    cells = json.loads((ROOT / path).read_text(encoding="utf-8"))["cells"]
    text = [("".join(cell["source"]), cell["cell_type"] == "code") for cell in cells]
    blocks = [f"```python\n{source}\n```" if is_code else source for source, is_code in text]
    blocks.insert(1, f"This page is a notebook, to be run cell by cell: [`{path}`]({REPOSITORY}/{path}).")
    return "\n\n".join(blocks) + "\n"


def public_names() -> dict[str, list[str]]:
    """Return the public names by subject: the names in the table of the package, and the names of `MODULES`.

    Where a subject of the table has the title of a module, the names of the module are all listed there.
    """
    table = (ROOT / "datasets_rl" / "__init__.pyi").read_text(encoding="utf-8")
    sections = re.split(r"^# ", table, flags=re.MULTILINE)[1:]
    names = {text.splitlines()[0]: sorted(re.findall(r"\bas (\w+)", text)) for text in sections}
    elsewhere = {name for title, listed in names.items() if title not in MODULES for name in listed}
    return names | {title: sorted({*import_module(module).__all__} - elsewhere) for title, module in MODULES.items()}


def _value(name: str) -> Any:
    """Return the value of a public name, of the package or of a module in `MODULES`."""
    homes = map(import_module, ["datasets_rl", *MODULES.values()])
    return next(getattr(home, name) for home in homes if name in home.__all__)


def api_index() -> str:
    """Return the page with all public names by subject."""
    rows = [
        f"| [{title}]({_slug(title)}.md) | {' '.join(f'`{name}`' for name in names)} |"
        for title, names in public_names().items()
    ]
    head = "# API\n\n| subject | names |\n| --- | --- |"
    return "\n".join([head, *rows]) + "\n"


def api_page(title: str, names: list[str]) -> str:
    """Return the page of the public names of a subject, the general names first.

    Names that stand for another name are listed at the end.
    """
    defined = {name: path for name in sorted(names, key=_depth) if (path := _definition(name))}
    made = [name for name in names if name not in defined and getattr(_value(name), "__name__", "") == name]
    others = [f"| `{name}` | `{_original(_value(name))}` |" for name in names if name not in {*defined, *made}]
    table = ["\n## Other names\n\n| name | stands for |\n| --- | --- |", *others] if others else []
    lines = [
        f"# {title}\n\nEach name is imported from `{MODULES.get(title, 'datasets_rl')}`.\n",
        "| name | summary |\n| --- | --- |",
        *(f"| [`{name}`][{path}] | {table_cell(_summary(name))} |" for name, path in defined.items()),
        *(f"| [`{name}`](#{name.lower()}) | {table_cell(_summary(name))} |" for name in made),
        "",
        *(f"::: {path}\n" for path in defined.values()),
        *(f"## {name}\n\n{_made_section(name)}\n" for name in made),
    ]
    return "\n".join([*lines, *table]) + "\n"


def _depth(name: str) -> int:
    """Return the number of classes that a class is derived from, 0 for a function."""
    return len(getattr(_value(name), "__mro__", ()))


def _summary(name: str) -> str:
    return (inspect.getdoc(_value(name)) or "").split("\n\n")[0]


def _definition(name: str) -> str | None:
    """Return the path of the class or the function of a name, or None for a second name of something."""
    value = _value(name)
    module = sys.modules.get(getattr(value, "__module__", ""))
    is_defined = module is not None and re.search(rf"^(class|def) {name}\b", inspect.getsource(module), re.MULTILINE)
    return f"{value.__module__}.{name}" if is_defined else None


def _original(value: Any) -> str:
    """Return the original of another name: the name of a class, or a value."""
    return str(getattr(value, "__name__", repr(value)))


def _made_section(name: str) -> str:
    """Return the docstring of a class that is made at run time, as Markdown. mkdocstrings reads only files."""
    return re.sub(r"^(Args|Raises):\n\s+", r"**\1:** ", inspect.getdoc(_value(name)) or "", flags=re.MULTILINE)


def command_pages() -> Iterator[tuple[str, str]]:
    """Yield the name and the page of every command."""
    root: Any = typer.main.get_command(make_app())
    for name, command in sorted(root.commands.items()):
        members = sorted(getattr(command, "commands", {}).items())
        below = [f"## rlds {name} {one}\n\n{_help(member)}" for one, member in members]
        yield name, "\n\n".join([f"# rlds {name}", _help(command), *below]) + "\n"


def _help(command: Any) -> str:
    """Return the description, the examples, the arguments and the options of a command, without common options."""
    paragraphs, examples = split_help(command.help or "")
    context = command.make_context(command.name, [], resilient_parsing=True)
    shared = {option for _, names, _, _ in GLOBALS.values() for option in names} | {"--help"}
    own = [one for one in command.get_params(context) if not shared & set(one.opts)]
    records = filter(None, (one.get_help_record(context) for one in own))
    rows = [f"| `{table_cell(_TYPE.sub('', name))}` | {table_cell(meaning)} |" for name, meaning in records]
    blocks = [*paragraphs, "```\n" + "\n".join(examples) + "\n```" if examples else ""]
    blocks += ["| argument or option | meaning |\n| --- | --- |\n" + "\n".join(rows)] if rows else []
    return "\n\n".join(block for block in blocks if block)


def recipes_page() -> str:
    """Return the recipes of this package, with their steps."""
    lines = [
        "# Recipes of this package",
        "",
        "`rlds preprocess ID --recipe NAME` stores the result of a recipe, `dataset.derive(NAME)` does so in Python.",
        "[Preprocessing](preprocess.md) explains steps and recipes of your own.",
    ]
    for recipe in shipped_recipes():
        text = (ROOT / "recipes" / f"{recipe.name}.toml").read_text(encoding="utf-8")
        lines += ["", f"## {recipe.name}", "", f"{recipe.summary}.", "", "```toml", text.rstrip(), "```"]
    return "\n".join(lines) + "\n"


def _slug(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower()).strip("-")
