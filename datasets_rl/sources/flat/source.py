"""Base class of the sources of flat rows, which declare the layout of the files."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from datasets_rl.sources.base import EpisodeReader, Source
from datasets_rl.sources.flat.rules import RULES

if TYPE_CHECKING:
    from datasets_rl.sources.flat.layout import Layout

__all__ = ["FlatSource"]


class FlatSource(Source):
    """Source of files of flat rows: arrays with a row for each step of all episodes of a file in order."""

    layout: Layout
    """Which arrays are which fields, and how episodes end."""
    rules: Mapping[str, str] = RULES
    """Rule and text of each decision that is recorded, in this order."""
    reader = "datasets_rl.sources.flat.reader:FlatReader"

    @override
    def own_arrays(self) -> set[str]:
        layout = self.layout
        return super().own_arrays() | {field.array for field in layout.fields} | {layout.marks, layout.starts}

    @override
    def open(
        self, name: str, files: Mapping[str, Path], params: Mapping[str, Any] | None = None, *, dataset_id: str = ""
    ) -> EpisodeReader:
        # The readers import numpy, and listing ids does not need numpy.
        kind: type[Any] = pkgutil.resolve_name(self.reader)
        facts = self.reader_facts(name, params or {})
        reader: EpisodeReader = kind(dataset_id or f"{self.name}/{name}", self.layout, self.kind.lower(), files, facts)
        reader.rules = self.rules
        return reader
