"""Candidates for an id, a recipe, a step or a setting, found without importing anything slow.

Typer passes the context of the command and the word that is completed, and drops the candidates that do not fit the
word. Steps and recipes are found in the texts of their modules, because an import needs torch.
"""

from __future__ import annotations

import importlib.util
import runpy
from pathlib import Path

import typer

from datasets_rl.disk import expand_home

from .commands import command_names


def all_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of the catalogs and of the stored datasets, or the sources as long as several are possible."""
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
    """Return the ids of the stored datasets, including derived datasets."""
    from datasets_rl import store
    from datasets_rl.settings import Settings

    home = ctx.params.get("root") or ctx.find_root().params.get("root")
    home = Settings.from_env().home if home is None else expand_home(home).absolute()
    return [folder.relative_to(home).as_posix() for folder in store.stored_folders(home)]


def source_names() -> list[str]:
    """Return the names of the sources."""
    from datasets_rl import sources

    return list(sources.source_names())


def checks() -> list[str]:
    """Return the names of the checks of an audit, and of the checks that compare datasets."""
    of_dataset = (path.stem for path in (_folder("datasets_rl") / "auditing" / "checks").glob("[a-z]*.py"))
    return [*sorted(of_dataset), "conventions", "shared_episodes"]


def audit_levels() -> list[str]:
    """Return how sure a finding can be, the surest first."""
    return ["proof", "strong", "hint"]


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
    path = _folder("datasets_rl") / "preprocessing" / "steps" / "__init__.py"
    return [*runpy.run_path(str(path))["STEPS"]] if path.exists() else []


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    return Path((spec.submodule_search_locations or [""])[0]) if spec is not None else Path()
