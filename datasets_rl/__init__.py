"""Offline-RL datasets as verified, memory-mapped TED replay buffers.

The public names are listed in `__init__.pyi`. Each is imported when it is first used: `import datasets_rl` loads no torch.
"""

from __future__ import annotations

from typing import Any

import lazy_loader

_public_name, _, _names = lazy_loader.attach_stub(__name__, __file__)

__all__ = sorted([*_names, "__version__"])  # noqa: PLE0605 -- a list, as the stub has it


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used.

    Raises:
        AttributeError: If there is no such name.
    """
    if name == "__version__":
        from importlib.metadata import version

        return version("datasets-rl")
    if name in _names:
        return _public_name(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
