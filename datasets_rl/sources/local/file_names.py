"""The names of the data files of a folder, and what the names say against reading each file.

names                                      question
ep_1.csv, ep_1 (1).csv                     is one file a copy of the other?
ep_1.csv, backup/ep_1.csv                  the same
data.csv, data.csv.gz                      the same
ep_0.parquet, ep_1.parquet, ep_2.csv       is the table an episode, too?
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from datasets_rl.errors import ConversionError
from datasets_rl.read.streams import first_problems
from datasets_rl.sources.flat.formats import FORMATS

_VERSION = r"copy|old|older|backup|bak|orig|original"
_COPY = re.compile(
    rf"(?:(?:{_VERSION})(?: of)?[ _-]+)?(?P<name>.+?)(?: ?\(\d+\)|[ _-]+(?:{_VERSION})(?:[ _-]?\d+)?)?", re.IGNORECASE
)
"""Name that a file manager or a person gives a copy of a file."""
_NUMBER = re.compile(r"\d+")


def check_names(name: str, data: Sequence[str], others: Collection[str]) -> None:
    """Check that no data file may be a copy of another, and that no table beside may be a further data file.

    Args:
        name: The id of the dataset, for messages.
        data: The paths of the data files, or of the folders that are files of arrays.
        others: The paths of the other files of the folder.

    Raises:
        ConversionError: If so. The error names every such file.
    """
    problems = [*_copies(data), *_further_tables(data, others)]
    if problems:
        hint = 'remove one of the two, or state in dataset.toml which files are data, such as files = "*"'
        raise ConversionError(name, first_problems(problems), hint=hint)


def _copies(data: Sequence[str]) -> Iterator[str]:
    known: dict[str, str] = {}
    for path in data:
        bare = without_ending(path)
        if bare in known:
            yield f"{known[bare]} and {path} may have the same rows"
        known.setdefault(bare, path)
    for path in data:
        folder, _, last = path.rpartition("/")
        match = _COPY.fullmatch(_stem(path))
        original = f"{folder}{'/' * bool(folder)}{match['name']}" if match else ""
        parts = folder.split("/") if folder else []
        above = ["/".join([*parts[:place], *parts[place + 1 :], last]) for place in range(len(parts))]
        for other in (original, *map(without_ending, above)):
            if other != without_ending(path) and other in known:
                yield f"{path} may be a copy of {known[other]}"
                break


def _further_tables(data: Sequence[str], others: Collection[str]) -> Iterator[str]:
    series = {_NUMBER.sub("#", without_ending(path)): path for path in data}
    known = {*map(without_ending, data)}
    tables = tuple(ending for form in FORMATS.values() if form.is_table for ending in form.endings)
    for path in others:
        bare = without_ending(path)
        first = series.get(_NUMBER.sub("#", bare), "")
        if path.lower().endswith(tables) and _NUMBER.search(bare) and first and bare not in known:
            yield f"{path} is not read beside {first}, and may have further rows by its name"


def without_ending(path: str) -> str:
    """Return a path without the ending of its format."""
    endings = (ending for form in FORMATS.values() for ending in form.endings if path.lower().endswith(ending))
    bare = path[: -len(max(endings, key=len, default="")) or None]
    return bare.removesuffix(".zarr")


def _stem(path: str) -> str:
    return without_ending(path).rpartition("/")[2]
