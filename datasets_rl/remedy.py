"""What a user can do about an error, as data: Python and the command line each spell it in their own words.

    Remedy("download it again with {}", Argument("force", True))

reads "download it again with force=True" in Python. The command line prints its option instead (``cli/remedies.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Argument:
    """Keyword argument of a public function: ``force=True``."""

    name: str
    value: Any = ...
    """Its value; ``...`` if the user chooses it."""

    def __str__(self) -> str:
        """Return the argument as Python code."""
        return f"{self.name}={_python_code(self.value)}"


@dataclass(frozen=True, init=False)
class Call:
    """Call of a public function: ``datasets_rl.download('d4rl/x', force=True)``.

    Args:
        function: Its name in the package, with dots.
        values: The positional arguments.
        named: The keyword arguments.
    """

    function: str
    arguments: tuple[Any, ...]
    """The values of the positional arguments, then an `Argument` for each of the others."""

    def __init__(self, function: str, *values: Any, **named: Any) -> None:
        object.__setattr__(self, "function", function)
        object.__setattr__(self, "arguments", (*values, *(Argument(name, value) for name, value in named.items())))

    def __str__(self) -> str:
        """Return the call as Python code."""
        return f"datasets_rl.{self.function}({', '.join(map(_python_code, self.arguments))})"


@dataclass(frozen=True, init=False)
class Remedy:
    """What to do next about an error; false if it is empty.

    Args:
        text: A sentence with ``{}`` for each action. It is a literal: names and paths of the user are actions.
        actions: Arguments, calls, other remedies, and plain values.
    """

    text: str
    actions: tuple[Any, ...]

    def __init__(self, text: str, *actions: Any) -> None:
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "actions", actions)

    @classmethod
    def from_hint(cls, hint: str | Remedy) -> Remedy:
        """Return the remedy of a hint, which may be a text without actions."""
        if isinstance(hint, Remedy):
            return hint
        return cls("{}", hint) if hint else cls("")

    def text_with(self, spell: Callable[[Any], str]) -> str:
        """Return the text, in which `spell` writes each argument and call, as Python code or as a command."""
        actions = (one.text_with(spell) if isinstance(one, Remedy) else spell(one) for one in self.actions)
        return self.text.format(*actions)

    def __bool__(self) -> bool:
        return bool(self.text)

    def __str__(self) -> str:
        """Return the remedy in the words of Python."""
        return self.text_with(str)


def _python_code(value: Any) -> str:
    if value is ...:
        return "..."
    if isinstance(value, (Argument, Call)):
        return str(value)
    return repr(str(value) if isinstance(value, Path) else value)
