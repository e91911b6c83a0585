"""Convert the raw files of every source, and apply recipes, in a process of its own: prints the digest of each result.

    python lock_conversions.py write FOLDER              the raw files of all cases
    python lock_conversions.py convert FOLDER HOME JOBS ORDER [SOURCE...]

ORDER is "listed" or "reversed": in which order the file system lists the entries of a folder.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from raw.case import cases_of_sources
from typing_extensions import Self

from datasets_rl import Recipe, Selection, downloading, preprocess
from datasets_rl.build import engines
from datasets_rl.build.engines.local import LocalEngine
from datasets_rl.errors import DatasetsRLError
from datasets_rl.format.manifest import Manifest
from datasets_rl.preprocessing import make
from datasets_rl.preprocessing.recipe import shipped_recipes
from datasets_rl.settings import Settings

RECIPES = (
    "normalize:[observation,action]",
    "normalize_quantiles:[observation,action]",
    "normalize_range:observation",
    "scale_by_returns:1000",
    "returns_to_go:0.99",
    "reward_sum",
    "n_step_targets:3",
    "cat_frames:4,dim=-1",
    "keep_top_returns:20",
    "cast:float16,observation",
    "split:train,validation=0.2",
)
"""Steps for the demo dataset, besides the recipes of the package. What the demo has no fields for is passed over."""


def cases(sources: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield the name and the case of every case."""
    for source, number, case in cases_of_sources():
        if not sources or source in sources:
            yield f"{source}-{number}", case


def reverse_listings() -> None:
    """Make every listing of a folder come in the reverse order of names."""

    def scandir(real: Callable[..., Any], *args: Any) -> Any:
        with real(*args) as entries:
            found = sorted(entries, key=lambda entry: entry.name, reverse=True)
        return _Entries(found)  # as an open listing, which os.walk asks for the next entry

    os.scandir = partial(scandir, os.scandir)  # type: ignore[assignment]
    listdir = os.listdir
    os.listdir = lambda *args: sorted(listdir(*args), reverse=True)  # type: ignore[assignment,misc]


class _Entries:
    """What `os.scandir` returns: an iterator and a context."""

    def __init__(self, found: list[Any]) -> None:
        self._found = iter(found)

    def __iter__(self) -> Iterator[Any]:
        return self._found

    def __next__(self) -> Any:
        return next(self._found)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing."""


def convert(folder: Path, home: Path, jobs: int, order: str, sources: list[str]) -> dict[str, Any]:
    """Return the digests of all conversions and recipes."""
    if order == "reversed":
        reverse_listings()
    engines.MIN_PARALLEL_BYTES = 0
    make._PART_BYTES = 1 << 16  # several parts of a small dataset
    settings = replace(Settings.from_env(), home=home, jobs=jobs, progress=False)
    digests: dict[str, Any] = {}
    for name, case in cases(sources):
        for dotted, value in case.small.items():
            module, _, attribute = dotted.rpartition(".")
            setattr(__import__(module, fromlist=["_"]), attribute, value)
        try:
            stored = downloading.download(
                case.id,
                root=home / name,
                from_local=folder / name,
                selection=Selection(options=case.options),
                settings=settings,
                # Each start of processes takes seconds: once for each source.
                engine=LocalEngine(jobs) if jobs > 1 and name.endswith("-0") else None,
            )
        except (DatasetsRLError, ImportError) as error:
            digests[name] = f"{type(error).__name__}: {error}"[:200]
            continue
        digests[name] = {file.path: file.digest for file in Manifest.read(stored).files}
    demo = downloading.download("demo/pendulum", settings=settings)
    recipes = [*((recipe.name, recipe) for recipe in shipped_recipes()), *((text, None) for text in RECIPES)]
    for number, (text, recipe) in enumerate(recipes):
        try:
            applied = recipe or Recipe.inline([text])
            several = jobs if number % 5 == 0 else 1
            made = preprocess(demo, applied, out=home / "recipes" / str(number), jobs=several, settings=settings)
        except DatasetsRLError as error:
            digests[text] = f"{type(error).__name__}: {error}"[:200]
            continue
        digests[text] = {file.path: file.digest for file in Manifest.read(made).files}
    return digests


def main() -> None:
    """Run the command line."""
    command, folder, *rest = sys.argv[1:]
    if command == "write":
        for name, case in cases([]):
            (Path(folder) / name).mkdir(parents=True)
            case.write(Path(folder) / name)
        return
    home, jobs, order, *sources = rest
    print(json.dumps(convert(Path(folder), Path(home), int(jobs), order, sources)))


if __name__ == "__main__":
    main()
