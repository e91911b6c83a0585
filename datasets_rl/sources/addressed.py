"""Base class of the sources of addresses: the files have the layout of another source, which reads the files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from datasets_rl.errors import Argument, FetchError, InvalidArgumentError, Remedy, UnknownIdError
from datasets_rl.sources.address import is_quoted
from datasets_rl.sources.base import Entry, EpisodeReader, Listing, Option, Selection, Source
from datasets_rl.sources.flat.formats import ENDINGS
from datasets_rl.sources.selection import IMAGES

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Folder
    from datasets_rl.fetch.upstream import Upstream

LAYOUT = "layout"
"""Name of the option and of the metadata: the source whose layout the files have."""
_OWN_OPTIONS = frozenset({LAYOUT, "revision"})


class Addressed(Source):
    """Source of the files at any address of some schemes: the name of a dataset is the address."""

    selects = frozenset({"episodes"})
    restated = frozenset({"license", "citation", "homepage", "known_issues", "score", "time_limit"})

    @abstractmethod
    def address(self, name: str, selection: Selection) -> str:
        """Return the address of a name."""

    def ids(self) -> Sequence[str]:
        """Return no ids, because addresses cannot be listed."""
        return ()

    def entry(self, name: str) -> Entry:
        """Return an entry without further fields, which the files may state.

        Raises:
            UnknownIdError: If the name is not that of an address.
        """
        if not self.is_name(name):
            raise UnknownIdError(f"{self.name}/{name}", known=self.names)
        return Entry(self.name, name, homepage=self.homepage(name))

    names = "addresses"
    """What the names are, for the error about an unknown one."""

    def is_name(self, name: str) -> bool:
        """Return whether a name is that of an address."""
        return is_quoted(name)

    def homepage(self, name: str) -> str:
        """Return the page of a name, or an empty text if there is no page."""
        del name
        return ""

    @override
    def addresses(self, name: str) -> Sequence[str]:
        return (self.address(name, Selection()),)

    @property
    @override
    def all_options(self) -> tuple[Option, ...]:
        return self._options_of_all

    @cached_property
    def _options_of_all(self) -> tuple[Option, ...]:
        """The options of this source, and the options of every source of a layout that the files may have."""
        from datasets_rl.sources.recognition import recognizing_sources

        forms = dict.fromkeys(IMAGES.choices)
        found = {option.name: option for option in self.options}
        layouts = recognizing_sources()
        for source in layouts:
            forms |= dict.fromkeys(source.image_forms)
            for option in source.options:
                same = found.setdefault(option.name, option)
                if (same.choices, same.default) != (option.choices, option.default):
                    # The layout decides what the option means, and `resolve` checks the value.
                    found[option.name] = replace(same, choices=(), default="")
        choice = Option(
            LAYOUT, "Source whose layout the files at an address have. By default, the files show the layout."
        )
        return (choice, *found.values(), replace(IMAGES, choices=tuple(forms)))

    @override
    def resolve(self, name: str, selection: Selection, upstream: Upstream) -> Listing:
        from datasets_rl.sources.address_files import AddressFiles
        from datasets_rl.sources.recognition import recognized

        entry = self.entry(name)
        folder = self.files_at(name, selection, upstream)
        files = AddressFiles(folder, name, upstream)
        source, evidence = recognized(entry.id, files, selection.options.get(LAYOUT, ""))
        names = {option.name for option in source.all_options}
        others = {key: value for key, value in selection.options.items() if key in names or key not in _OWN_OPTIONS}
        inner = replace(selection, options=others)
        if not isinstance(source, Addressed):
            source.check(inner)
        listing = source.resolve_files(entry, folder, inner, upstream)
        if listing.copied is not None:
            return listing
        return replace(
            listing,
            params={LAYOUT: source.name, "evidence": evidence, "params": dict(listing.params)},
            entry=listing.entry or entry,
            revision=listing.revision or folder.revision,
        )

    @override
    def open(
        self, name: str, files: Mapping[str, Path], params: Mapping[str, Any] | None = None, *, dataset_id: str = ""
    ) -> EpisodeReader:
        from datasets_rl.sources import get_source

        params = params or {}
        if LAYOUT not in params:
            raise InvalidArgumentError(f"{self.name}/{name} is copied, not converted: it has no reader")
        reader = get_source(params[LAYOUT]).open(
            name, files, params["params"], dataset_id=dataset_id or f"{self.name}/{name}"
        )
        stated = {LAYOUT: params[LAYOUT], "layout_evidence": params["evidence"]}
        reader.metadata = {**reader.metadata, **stated}
        return reader

    def files_at(self, name: str, selection: Selection, upstream: Upstream) -> Folder:
        """List the file at an address, or the files below an address, with paths that begin with the name.

        Raises:
            FetchError: If the address serves no file and no list of files.
        """
        from datasets_rl.fetch.asset import Asset, Folder

        address = self.address(name, selection)
        if not name.lower().partition("?")[0].endswith(ENDINGS):
            try:
                return upstream.folder(name, (address,))
            except FetchError as error:
                if not address.startswith("http"):
                    raise
                error.hint = Remedy("give the address of one file, or a copy of the folder: {}", Argument("from_local"))
                raise
        asset = upstream.with_size(Asset((address,), f"{name}/{name.rpartition('/')[2]}"))
        return Folder(address, "", (asset,))
