"""The contract of export formats: what a format cannot hold, and how a format is written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np

from datasets_rl.errors import MissingDependencyError
from datasets_rl.exporting.content import Content, names_of
from datasets_rl.progress import Report


class ExportFormat(ABC):
    """A format of another project. Those of this package are the files of `datasets_rl.exporting.formats`."""

    name: ClassVar[str]
    """The name that users give, also the name of the module."""
    title: ClassVar[str]
    """Description of the written files, for listings."""
    suffix: ClassVar[str] = ""
    """Suffix of the file, which is an HDF5 file, because the record of the export is an attribute of the file. Empty if a
    folder is written."""
    library: ClassVar[str] = ""
    """The optional library that writes the format. Empty if not needed."""
    extra: ClassVar[str] = ""
    """The extra of datasets-rl that installs the library."""
    holds_images: ClassVar[bool] = True
    """Whether a dataset whose observations are images can be written. If not, `problems` names a reason."""
    image_forms: ClassVar[tuple[str, ...]] = ()
    """How images can be written, if users can choose by `Content.images`."""

    def problems(self, content: Content) -> Iterator[str]:  # noqa: ARG002 -- formats that hold everything have none
        """Yield why the dataset cannot be written in this format at all."""
        yield from ()

    def losses(self, content: Content) -> Iterator[str]:  # noqa: ARG002 -- formats that hold everything have none
        """Yield what the dataset has and the format cannot hold, a sentence each."""
        yield from ()

    def estimate_bytes(self, content: Content) -> int:
        """Return the size of the export in bytes, about."""
        return content.bytes

    @abstractmethod
    def write(self, content: Content, target: Path, progress: Report) -> None:
        """Write the file, or the existing empty folder, batch by batch of episodes.

        Args:
            content: What to write.
            target: The temporary path of the file or the folder.
            progress: Counts the steps.
        """

    def check_library(self) -> None:
        """Check that the library that writes the format is installed.

        Raises:
            MissingDependencyError: If the library is not installed.
        """
        from importlib.util import find_spec

        if self.library and find_spec(self.library) is None:
            raise MissingDependencyError(self.library, self.extra, f"exporting to {self.name}")


def final_losses(content: Content, instead: str) -> Iterator[str]:
    """Yield that unknown final states become something else in a format that has a final state for every episode."""
    unknown = int((~content.known).sum())
    if unknown and content.states:
        yield f"the final observation of {unknown:,} of {len(content.known):,} episodes is unknown: {instead}"


def dropped_final_losses(content: Content) -> Iterator[str]:
    """Yield the loss of known final states in a format without final states."""
    known = int(content.known.sum())
    if known and content.states:
        yield f"the observation after the last action of {known:,} episodes is left out"


def next_losses(content: Content) -> Iterator[str]:
    """Yield that separately stored values under "next" are left out."""
    if fields := content.next_fields:
        yield f"{names_of(fields)}: stored separately from the values of the following step, and left out"


def metadata_losses(content: Content, *kept: str) -> Iterator[str]:
    """Yield one loss that names the metadata of episodes that the format leaves out.

    The metadata `kept`, the numbers ``source`` and ``file``, and flags that are False for all episodes are not a loss.
    """
    others = [name for name in content.metadata_names if name not in {"source", "file", *kept}]
    if names := [name for name in others if content.metadata(name).dtype != np.bool_ or content.metadata(name).any()]:
        yield f"metadata of episodes is left out: {', '.join(names[:6])}"
