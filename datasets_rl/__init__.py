"""Offline-RL datasets as verified, memory-mapped TED replay buffers.

The public names are listed in `__init__.pyi`. Each name is imported at its first use: `import datasets_rl` loads no
torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

import lazy_loader


class _Finder:
    """Finder that is asked for the modules of this package which no other finder has found.

    A checkout has `datasets_rl.cli` and `datasets_rl.recipes` beside this folder. The wheel has them inside. With the root
    of the checkout on `__path__`, a walk over all modules would find this package inside this package, without an end.
    """

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Return where `datasets_rl.cli` or `datasets_rl.recipes` is.

        Raises:
            ImportError: If the name is near a public name. Of ``from datasets_rl import name``, Python would leave out what
                the `AttributeError` of `__getattr__` says.
        """
        package, _, child = name.rpartition(".")
        if package != __name__:
            return None
        if child in {"cli", "recipes"} and (file := Path(__file__).parents[1] / child / "__init__.py").is_file():
            return spec_from_file_location(name, file)
        if meant := _meant(child):
            raise ImportError(f"cannot import name {child!r} from {__name__!r}{meant}", name=__name__)
        return None


class _NoNameError(AttributeError):
    """Raised for a name that does not exist. Near names are looked up when a person reads the error."""

    def __init__(self, name: str) -> None:
        # Without `obj`, the interpreter adds no second suggestion.
        super().__init__(name, name=name, obj=None)

    def __str__(self) -> str:
        return f"module {__name__!r} has no attribute {self.name!r}{_meant(str(self.name))}"


sys.meta_path.append(_Finder)

_public_name, _, _names = lazy_loader.attach_stub(__name__, __file__)

__all__ = sorted([*_names, "__version__"])  # noqa: PLE0605 -- a list, as the stub has it

_MODULES = ("errors", "lockfile", "rlhf", "transforms", "vla")
"""The modules that users import, too."""


def __getattr__(name: str) -> Any:
    """Import a public name or module at its first use.

    Raises:
        AttributeError: If there is no such name. The error names the module with this name, or similar names.
    """
    if name == "__version__":
        from importlib.metadata import version

        return version("datasets-rl")
    if name in _names:
        return _public_name(name)
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    raise _NoNameError(name)


def _meant(name: str) -> str:
    """Return the end of an error: what a name may mean, or nothing."""
    nearest = [] if name.startswith("_") else _nearest_names(name)
    return f". Did you mean {' or '.join(nearest)}?" if nearest else ""


def _nearest_names(name: str) -> list[str]:
    """Return the full names of the same name in a module, or of similar names. The modules are read, not imported."""
    import ast
    import difflib

    names = {public: f"{__name__}.{public}" for public in __all__}
    for module in _MODULES:
        folder = Path(__file__).parent / module
        file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
        for statement in ast.parse(file.read_text("utf-8")).body:
            match statement:
                case ast.Assign([ast.Name("__all__")], listed):
                    names |= {public: f"{__name__}.{module}.{public}" for public in ast.literal_eval(listed)}
    if name in names:
        return [names[name]]
    names["open"] = names["load"]  # as in other libraries: `open_dataset`
    folded = {public.lower(): full for public, full in names.items()}
    words = [word for word in name.split("_") if word in names]
    return [folded[near] for near in words or difflib.get_close_matches(name.lower(), folded, n=2, cutoff=0.7)]


def __dir__() -> list[str]:
    return __all__
