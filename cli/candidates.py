"""Candidates for an id, a recipe, a step or a setting, found without importing anything slow.

Typer hands over the context of the command and the word that is completed, and drops the candidates that do not fit it.
Steps and recipes are found in the texts of their modules, whose import needs torch.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import typer

from .commands import command_names


def all_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of the catalogs and of the stored datasets; sources first, as long as several are possible."""
    from datasets_rl import sources

    if "/" not in incomplete:
        names = [name for name in sources.source_names() if name.startswith(incomplete)]
        if len(names) > 1:
            return [f"{name}/" for name in names]
    origins = [
        one for one in sources.importable_sources()[0] if f"{one.name}/".startswith(incomplete.partition("/")[0])
    ]
    ids = (f"{one.name}/{name}" for one in origins for name in one.ids())
    return sorted({*ids, *stored_ids(ctx)})


def stored_ids(ctx: typer.Context) -> list[str]:
    """Return the ids of the stored datasets, derived ones too."""
    from datasets_rl import store
    from datasets_rl.settings import Settings

    home = ctx.params.get("root") or ctx.find_root().params.get("root")
    home = Settings.from_env().home if home is None else home.expanduser().absolute()
    return [folder.relative_to(home).as_posix() for folder in store.stored_folders(home)]


def source_names() -> list[str]:
    """Return the names of the sources."""
    from datasets_rl import sources

    return list(sources.source_names())


def help_topics() -> list[str]:
    """Return what ``rlds help`` explains."""
    return ["environment", "exit-codes", *command_names()]


def setting_keys() -> list[str]:
    """Return the keys of the settings."""
    from datasets_rl.settings import SETTINGS

    return [*SETTINGS]


def recipe_names() -> list[str]:
    """Return the names of the recipes of this package."""
    return [path.stem for path in _folder("datasets_rl.recipes").glob("*.toml")]


def step_names() -> list[str]:
    """Return the names of the steps that recipes can name."""
    folder = _folder("datasets_rl") / "preprocessing"
    left_out = _literals(folder / "transforms.py")
    bases = {"Step"} | _descendants(folder, {"Step"})
    steps = {_snake(name) for name in _descendants(folder / "steps", bases) if name[0] != "_"}
    library = _folder("datasets_rl") / "transforms"
    public = _literals(library / "__init__.py")["__all__"] - left_out["_NO_STEPS"]
    named = {_snake(name.removesuffix("Transform")) for name in _descendants(library, {"Transform"}) & public}
    return sorted(steps | (named - left_out["SUPERSEDED"]))


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    return Path((spec.submodule_search_locations or [""])[0]) if spec is not None else Path()


def _descendants(folder: Path, bases: set[str]) -> set[str]:
    """Return the names of the classes in a folder that have an ancestor with one of these names."""
    texts = [path.read_text("utf-8") for path in folder.glob("*.py")]
    parents = {
        name: set(re.findall(r"\w+", listed))
        for text in texts
        for name, listed in re.findall(r"^class (\w+)\(([^)]*)\)", text, re.MULTILINE)
    }
    found = set(bases)
    while more := {name for name, direct in parents.items() if direct & found} - found:
        found |= more
    return found - bases


def _literals(path: Path) -> dict[str, set[str]]:
    """Return the texts in the constants of a module; of a dictionary, its keys."""
    found = {}
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            parts = node.value.keys if isinstance(node.value, ast.Dict) else [node.value]
            constants = (one for part in parts if part is not None for one in ast.walk(part))
            texts = {one.value for one in constants if isinstance(one, ast.Constant) and isinstance(one.value, str)}
            found[getattr(target, "id", "")] = texts
    return found


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
