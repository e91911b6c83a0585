"""Recognition of the source whose layout files have, from the files alone: by evidence, and never by a guess."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from datasets_rl.errors import Argument, Call, ConversionError, InvalidArgumentError, Remedy, join_names
from datasets_rl.format.current import CURRENT_FILE
from datasets_rl.sources import importable_sources
from datasets_rl.sources.flat.formats import formats_of
from datasets_rl.sources.foreign import PAGE

if TYPE_CHECKING:
    from datasets_rl.sources import Source
    from datasets_rl.sources.address_files import AddressFiles

_POINTER = f"/{CURRENT_FILE}"


def recognizing_sources() -> list[Source]:
    """Return the sources that recognize files: a class that only inherits the layout of another class is not asked."""
    return [source for source in importable_sources()[0] if {"recognize", "arrays"} & vars(type(source)).keys()]


def recognized(dataset_id: str, files: AddressFiles, chosen: str = "") -> tuple[Source, str]:
    """Return the source whose layout files have, and the evidence.

    Args:
        dataset_id: The id, for messages.
        files: The files.
        chosen: The name of the source that the user chose among several sources, or empty if there was no choice.

    Raises:
        InvalidArgumentError: If no source of the chosen name recognizes files.
        ConversionError: If the files have the layout of no source, of several, or not of the chosen source. The error has
            the evidence for each.
    """
    sources = recognizing_sources()
    if chosen and chosen not in {source.name for source in sources}:
        known = ", ".join(source.name for source in sources)
        raise InvalidArgumentError(f"layout is {chosen!r}, expected one of {known}")
    found = {source.name: (source, evidence) for source in sources if (evidence := source.recognize(files))}
    stored = [path.removesuffix(_POINTER) for path in files.paths if path.endswith(_POINTER)]
    foreign = [] if found else files.foreign
    if not found and not stored and not any(one.has_tables for _, one in foreign):
        last = ((source, source.recognize_last(files)) for source in sources)
        found = {source.name: (source, evidence) for source, evidence in last if evidence}
    if chosen and chosen in found:
        return found[chosen]
    if len(found) == 1 and not chosen:
        return next(iter(found.values()))
    seen = " and of ".join(f"{name} ({evidence})" for name, (_, evidence) in found.items())
    if found and not chosen:
        choose = Argument("selection", Call("Selection", options={"layout": next(iter(found))}))
        raise ConversionError(
            dataset_id, [f"its files have the layouts of {seen}"], hint=Remedy("choose one with {}", choose)
        )
    names = ", ".join(map(unquote, files.paths[:5])) or "none"
    if chosen:
        others = f"they have the layout of {seen}" if seen else f"the first are {names}"
        raise ConversionError(dataset_id, [f"its files do not have the layout of {chosen}: {others}"])
    if stored:
        raise ConversionError(
            dataset_id,
            [f"it has stored datasets, and no files of a source: {join_names(stored)}"],
            hint="name one of them, or the folder of files to convert",
        )
    problems = [f"no source knows the layout of its {_count_text(len(files.paths))}. The first are {names}"]
    if empty := [path for path in files.paths if files.size_of(path) == 0]:
        problems.append(f"{join_names(empty)} {'is' if len(empty) == 1 else 'are'} empty (0 bytes)")
    problems += [f"{path} is {one.title}" for path, one in foreign]
    ways = [*dict.fromkeys(one.way for _, one in foreign)]
    if not files.is_local and not foreign and formats_of(files.paths):
        # The formats of files of a user are read from files on this machine.
        hint = (
            "name a file or a folder of them in the address, or download the files and name the path of the copy: of files "
            "elsewhere, only npz files are read without a layout of a source"
        )
        raise ConversionError(dataset_id, problems, hint=hint)
    address = Remedy(
        "name a file or a folder of them in the address. Of other files, read the episodes and store them with "
        "EpisodeWriter, see {}",
        PAGE,
    )
    raise ConversionError(dataset_id, problems, hint="; ".join(ways) or address)


def _count_text(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"
