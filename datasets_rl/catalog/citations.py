"""The BibTeX of datasets: of their papers, and of the sources that publish them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from datasets_rl import sources, store
from datasets_rl.catalog.mixture_file import read_mixture
from datasets_rl.disk import expand_home
from datasets_rl.errors import InvalidArgumentError, NotADatasetError, UnknownIdError
from datasets_rl.format.manifest import Manifest
from datasets_rl.settings import Settings
from datasets_rl.sources.base import bibtex_entries
from datasets_rl.store.find import locate

_SPECIAL = re.compile(r"[&%$#_]")


@dataclass(frozen=True, slots=True)
class Citation:
    """Entry of a bibliography."""

    key: str
    bibtex: str
    """The BibTeX entry."""
    of: tuple[str, ...]
    """The ids of the datasets that it is cited for."""

    def __str__(self) -> str:
        """Return the BibTeX entry."""
        return self.bibtex


def cite(
    dataset: str | Path, *, root: Path | str | None = None, settings: Settings | None = None
) -> tuple[Citation, ...]:
    r"""Return what to cite for a dataset: its papers, and the source that publishes it. No network.

        >>> print(*cite("d4rl/hopper-medium-v2"), sep="\n\n")

    A derived dataset cites the dataset that it was made of, a merged one and a mixture those of all members, and a copy
    of a published dataset the original and the publication. Some upstreams state the papers in their files only, so that
    a stored dataset may cite more than one that is not stored.

    Args:
        dataset: An id, the folder of a stored dataset, or the file of a mixture.
        root: The folder of the source; by default ``<RLDS_HOME>/<source>``.
        settings: The settings; by default those of the environment.

    Raises:
        UnknownIdError: If there is no such dataset.
        InvalidArgumentError: If nothing is known to cite, or the file is not a mixture.
    """
    path = expand_home(dataset)
    if path.suffix == ".toml" and path.is_file():
        citations = _merge(
            one for member in read_mixture(path)[0] for one in cite(member.dataset, root=root, settings=settings)
        )
    else:
        citations = _merge(_citations(dataset, root, settings))
    if not citations:
        raise InvalidArgumentError(
            f"nothing is known to cite for {dataset}; its files and its catalog state no citation",
            hint="add an entry to citations.bib of its source; or, to a dataset of your own, a citation in its dataset.toml, "
            "and convert it again",
        )
    return citations


def _citations(dataset: str | Path, root: Path | str | None, settings: Settings | None) -> Iterator[Citation]:
    found = store.id_or_path(dataset)
    try:
        folder = locate(found, root=root, settings=settings)
    except NotADatasetError:
        if isinstance(found, Path):
            raise
        entry = sources.find(found)
        cited = [*_of_id(entry.id)]
        yield from cited
        if entry.citation and not cited:
            yield from _stated(entry.id, entry.citation, entry.homepage)
        return
    yield from manifest_citations(Manifest.read(folder))


def manifest_citations(manifest: Manifest) -> Iterator[Citation]:
    """Yield what to cite for a stored dataset, with repetitions; the original first."""
    copied = manifest.copied_from
    ids = [copied["id"]] if isinstance(copied.get("id"), str) else [manifest.id]
    ids = [*dict.fromkeys(name for one in (*ids, *_merged_ids(manifest.history)) for name in one.split(" + "))]
    stated = bibtex_entries(manifest.citation)
    for name in ids:
        yield from _of_id(name, manifest.citation)
    for key, bibtex in stated.items():
        yield Citation(key, bibtex, (manifest.id,))
    known = stated or any(_bibliography(name) for name in ids)
    if manifest.citation and not known:
        yield _misc(ids[0], ids[0], note=manifest.citation, url=manifest.homepage)
    if isinstance(copied.get("address"), str):
        yield _published(copied["address"])


def _stated(dataset_id: str, citation: str, homepage: str) -> Iterator[Citation]:
    """Yield the entries of BibTeX in the citation of a catalog; an entry with the text as its note if it has none."""
    stated = bibtex_entries(citation)
    for key, bibtex in stated.items():
        yield Citation(key, bibtex, (dataset_id,))
    if not stated:
        yield _misc(dataset_id, dataset_id, note=citation, url=homepage)


def _merged_ids(history: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the ids of all datasets that were merged at some time."""
    for run in history:
        for member in run.get("merged", ()):
            yield str(member.get("id", ""))
            yield from _merged_ids(member.get("history", ()))


def _of_id(dataset_id: str, stated: str = "") -> Iterator[Citation]:
    """Yield the entries of the source of an id: those for the id, and those whose arXiv number a text states."""
    base = sources.split_derived(dataset_id)[0]
    bibliography = _bibliography(base)
    name = base.partition("/")[2]
    keys = sources.get_source(base.partition("/")[0]).citations(name) if bibliography else ()
    for key, bibtex in bibliography.items():
        eprint = re.search(r"eprint\s*=\s*\{([\d.]+)\}", bibtex)
        if key in keys or (eprint is not None and eprint[1] in stated):
            yield Citation(key, bibtex, (base,))
    if base.startswith("hf/"):
        yield _published(f"hf://datasets/{name}")


def _bibliography(dataset_id: str) -> Mapping[str, str]:
    with suppress(UnknownIdError, InvalidArgumentError):  # the source is another package's, which is not installed
        return sources.get_source(dataset_id.partition("/")[0]).bibliography
    return {}


def _published(address: str) -> Citation:
    name, _, revision = address.removeprefix("hf://datasets/").partition("@")
    note = f"Dataset on the Hugging Face hub{f', revision {revision}' if revision else ''}"
    return _misc(f"hf/{name}", name, note=note, url=f"https://huggingface.co/datasets/{name}")


def _misc(dataset_id: str, title: str, *, note: str, url: str = "") -> Citation:
    """Return an entry for a dataset without a paper."""
    fields = {"title": f"{{{_escape(title)}}}", "note": _escape(note), "url": url}
    lines = [f"  {name} = {{{value}}}" for name, value in fields.items() if value]
    key = re.sub(r"\W+", "_", dataset_id).strip("_")
    return Citation(key, f"@misc{{{key},\n" + ",\n".join(lines) + "\n}", (dataset_id,))


def _escape(text: str) -> str:
    plain = " ".join(text.replace("\\", " ").replace("{", "(").replace("}", ")").split())
    return _SPECIAL.sub(lambda found: f"\\{found[0]}", plain)


def _merge(citations: Iterable[Citation]) -> tuple[Citation, ...]:
    """Return each entry once, in order, with all datasets that it is cited for."""
    merged: dict[str, Citation] = {}
    for one in citations:
        earlier = merged.get(one.key)
        merged[one.key] = one if earlier is None else replace(earlier, of=tuple(dict.fromkeys((*earlier.of, *one.of))))
    return tuple(merged.values())
