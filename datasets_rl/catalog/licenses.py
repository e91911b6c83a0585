"""Identifiers of licenses at spdx.org, by the names that sources state."""

from __future__ import annotations

import re

_SPDX = (
    "Apache-2.0",
    "BSD-3-Clause",
    "CC0-1.0",
    "CC-BY-4.0",
    "CC-BY-NC-4.0",
    "CC-BY-NC-ND-4.0",
    "CC-BY-NC-SA-4.0",
    "CC-BY-SA-4.0",
    "MIT",
)


def spdx_id(name: str) -> str:
    """Return the identifier of a license, ``CC-BY-4.0`` of "CC BY 4.0". Empty for a license without one."""
    return _BY_LETTERS.get(_letters(name), "")


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


_BY_LETTERS = {_letters(one): one for one in _SPDX}
