"""`Case`, a small dataset of a source, and `Fault`, a corruption of its files, as `datasets_rl.testing` has them; all cases."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator

from datasets_rl import sources
from datasets_rl.testing import SourceCase as Case
from datasets_rl.testing import SourceFault as Fault

__all__ = ["Case", "Fault"]


def cases_of_sources() -> Iterator[tuple[str, int, Case]]:
    """Yield the source, the number and the case of every case: ``CASES`` of the modules here that are named as a source."""
    for name in sources.source_names():
        if importlib.util.find_spec(f"raw.{name}") is not None:
            for number, case in enumerate(importlib.import_module(f"raw.{name}").CASES):
                yield name, number, case
