"""Base class of the sources of folders of users: the id is any name, under which the user stores a folder."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from datasets_rl.errors import FetchError, Remedy, UnknownIdError
from datasets_rl.sources.base import Entry, Listing, Selection, Source

if TYPE_CHECKING:
    from datasets_rl.fetch.upstream import Upstream

_ID = re.compile(r"(?:\w[-\w.]*/)*\w[-\w.]*", re.ASCII)


class OwnFolders(Source):
    """Source of the folders of a user, under any name."""

    @property
    @abstractmethod
    def wanted(self) -> Remedy:
        """Which folder the user has to give, for errors about a name that has no files."""

    def ids(self) -> Sequence[str]:
        """Return no ids, because the folders of a user cannot be listed."""
        return ()

    def entry(self, name: str) -> Entry:
        """Return an entry without further fields.

        Raises:
            UnknownIdError: If the id is not made up of letters, digits, dots, dashes and underscores, joined by slashes.
        """
        if not _ID.fullmatch(name):
            raise UnknownIdError(
                f"{self.name}/{name}", known="names of letters, digits, '.', '-' and '_', joined by '/'"
            )
        return Entry(self.name, name)

    def resolve(self, name: str, selection: Selection, upstream: Upstream) -> Listing:
        """Group the files of the folder into shards, see `Source.resolve`."""
        entry = self.entry(name)
        try:
            folder = upstream.folder(name, ())
        except FetchError as error:
            if error.failures:
                error.hint = self.wanted
                raise
            # No address was tried: this is a name that nothing was stored under.
            unknown = UnknownIdError(entry.id, known="the stored datasets")
            unknown.hint = self.wanted
            raise unknown from error
        return self.resolve_files(entry, folder, selection, upstream)
