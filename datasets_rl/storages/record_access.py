"""The records of a stored dataset, for compiled loops that read them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class RecordAccess:
    """The arrays that compiled loops read, and where the fields are."""

    records: NDArray[np.int64]
    """All records, words [(N + 1) * stride]."""
    finals: NDArray[np.int64]
    """The final states of each episode, words [E, width - stride]."""
    known: NDArray[np.bool_]
    """Whether the final states of each episode are known, [E]."""
    firsts: NDArray[np.int64]
    """The first row of each episode, [E]."""
    lasts: NDArray[np.int64]
    """The last row of each episode, [E]."""
    stride: int
    """Words of a record."""
    width: int
    """Words of a window."""
    episode: int
    """Byte of a record at which its episode is, an int32."""
    folder: str
    passes: dict[Any, Any] = field(default_factory=dict)
    """What was compiled for these records."""
