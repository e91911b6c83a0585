"""Former names of classes, arguments and steps, which still work and issue a `DeprecationWarning`."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

__all__ = ["former_arguments", "former_names", "warn_deprecated"]

T = TypeVar("T")


def warn_deprecated(message: str) -> None:
    """Issue a `DeprecationWarning` at the line outside of this package that used a former name."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "datasets_rl":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, DeprecationWarning, stacklevel=level)


def former_names(module: Mapping[str, Any], renamed: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module whose classes had other names.

    Args:
        module: The globals of the module.
        renamed: The names of its classes by their former names.
    """

    def get(name: str) -> Any:
        if name not in renamed:
            raise AttributeError(f"module {module['__name__']!r} has no attribute {name!r}")
        warn_deprecated(f"{name} is called {renamed[name]} now")
        return module[renamed[name]]

    return get


def former_arguments(**renamed: str) -> Callable[[type[T]], type[T]]:
    """Return a decorator of a class whose constructor also accepts former names of its arguments.

    Args:
        **renamed: The names of arguments by their former names; the class has them as `former`.
    """

    def decorate(cls: type[T]) -> type[T]:
        init = cls.__init__

        @functools.wraps(init)
        def wrapped(self: T, *args: Any, **kwargs: Any) -> None:
            for name in renamed.keys() & kwargs.keys():
                if renamed[name] in kwargs:
                    raise TypeError(f"{cls.__name__} got {name} and {renamed[name]}, which are one argument")
                warn_deprecated(f"the argument {name} of {cls.__name__} is called {renamed[name]} now")
                kwargs[renamed[name]] = kwargs.pop(name)
            init(self, *args, **kwargs)

        cls.__init__ = wrapped  # type: ignore[assignment, method-assign]  # it accepts more names
        cls.former = renamed  # type: ignore[attr-defined]  # read by recipes
        return cls

    return decorate
