"""BibTeX entries of datasets: the papers, and the sources that publish the datasets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, count
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

_SPECIAL = re.compile(r"[&%$#_~^]")


@dataclass(frozen=True, slots=True)
class Citation:
    """Entry of a bibliography."""

    key: str
    bibtex: str
    """The BibTeX entry."""
    of: tuple[str, ...]
    """The ids of the datasets that cite the entry."""

    def __str__(self) -> str:
        """Return the BibTeX entry."""
        return self.bibtex

    def add_to(self, entries: dict[str, str]) -> Citation:
        """Add the entry to a bibliography, the entry of each key, and return the citation with a key that no other entry has.

        Upstreams choose keys such as ``example``.
        """
        keys = chain([self.key], (f"{self.key}_{number}" for number in count(2)))
        named = (replace(self, key=key, bibtex=self.bibtex.replace(self.key, key, 1)) for key in keys)
        return next(one for one in named if entries.setdefault(one.key, one.bibtex) == one.bibtex)


def cite(
    dataset: str | Path, *, root: Path | str | None = None, settings: Settings | None = None
) -> tuple[Citation, ...]:
    r"""Return the citations of a dataset: the papers, and the source that publishes the dataset. No network is used.

        >>> print(*cite("d4rl/hopper-medium-v2"), sep="\n\n")

    A derived dataset has the citations of the original dataset. A merged dataset and a mixture have the citations of all
    members. A copy of a published dataset has the citations of the original and of the publication. Some upstreams state
    the papers only in the files of a dataset, so that a stored dataset may have more citations.

    Args:
        dataset: An id, the folder of a stored dataset, or the file of a mixture.
        root: The folder of the source, by default ``<RLDS_HOME>/<source>``.
        settings: The settings, by default from the environment.

    Raises:
        UnknownIdError: If there is no such dataset.
        InvalidArgumentError: If no citation is known, or the file is not a mixture.
    """
    path = expand_home(dataset)
    if path.suffix == ".toml" and path.is_file():
        citations = _merge(
            citation
            for member in read_mixture(path)[0]
            for citation in cite(member.dataset, root=root, settings=settings)
        )
    else:
        citations = _merge(_citations(dataset, root, settings))
    if not citations:
        raise InvalidArgumentError(
            f"no citation of {dataset} is known: neither the files nor the catalog state a citation",
            hint="add an entry to citations.bib of the source. For your own dataset, add a citation to dataset.toml, and "
            "convert the dataset again",
        )
    return citations


def _citations(dataset: str | Path, root: Path | str | None, settings: Settings | None) -> Iterator[Citation]:
    id_or_path = store.id_or_path(dataset)
    try:
        folder = locate(id_or_path, root=root, settings=settings)
    except NotADatasetError:
        if isinstance(id_or_path, Path):
            raise
        entry = sources.find(id_or_path)
        cited = [*_of_id(entry.id)]
        yield from cited
        if entry.citation and not cited:
            yield from _stated(entry.id, entry.citation, entry.homepage)
        return
    yield from manifest_citations(Manifest.read(folder))


def manifest_citations(manifest: Manifest) -> Iterator[Citation]:
    """Yield the citations of a stored dataset, with repetitions, first the citations of the original."""
    copied = manifest.copied_from
    ids = [copied["id"]] if isinstance(copied.get("id"), str) else [manifest.id]
    joined_ids = (*ids, *_merged_ids(manifest.history))
    ids = [*dict.fromkeys(name for joined in joined_ids for name in joined.split(" + "))]
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
    """Yield the BibTeX entries in the citation of a catalog. Other texts become the note of an entry."""
    stated = bibtex_entries(citation)
    for key, bibtex in stated.items():
        yield Citation(key, bibtex, (dataset_id,))
    if not stated:
        yield _misc(dataset_id, dataset_id, note=citation, url=homepage)


def _merged_ids(history: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the ids of all datasets that were merged."""
    for run in history:
        for member in run.get("merged", ()):
            yield str(member.get("id", ""))
            yield from _merged_ids(member.get("history", ()))


def _of_id(dataset_id: str, stated: str = "") -> Iterator[Citation]:
    """Yield entries from the bibliography of a source: entries for the id, and papers with an arXiv number in a text."""
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
    with suppress(UnknownIdError, InvalidArgumentError):  # the package of the source is not installed
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
    return _SPECIAL.sub(lambda match: f"\\{match[0]}{'{}' if match[0] in '~^' else ''}", plain)


def _merge(citations: Iterable[Citation]) -> tuple[Citation, ...]:
    """Return each entry once, in order, with all datasets that cite the entry."""
    merged: dict[str, Citation] = {}
    for citation in citations:
        earlier = merged.get(citation.key, replace(citation, of=()))
        merged[citation.key] = replace(earlier, of=tuple(dict.fromkeys((*earlier.of, *citation.of))))
    return tuple(merged.values())
