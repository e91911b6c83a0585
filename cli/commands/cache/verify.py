"""``rlds cache verify``: check all stored datasets."""

from __future__ import annotations

from typing import Annotated

import typer

from ...options import Shell
from ...output import Result
from ..verify import check_datasets


def run(
    shell: Shell,
    deep: Annotated[bool, typer.Option("--deep", help="Run the slower checks of `rlds verify --deep`.")] = False,
) -> Result:
    """Check the manifests, and the sizes and checksums of all files, of all versions of all stored datasets.

    \b
    Examples:
      rlds cache verify
      rlds cache verify --deep
      rlds cache verify --json
    """
    from datasets_rl import store

    current = list(store.stored_folders(shell.settings.home))
    others = [
        version.folder
        for paths in map(store.paths_of, current)
        for version in store.versions_of(paths)
        if version != store.current_version(paths)
    ]
    if not current:
        shell.printer.note(f"no dataset is stored in {shell.settings.home}")
    return check_datasets(shell, map(str, (*current, *others)), deep=deep)
