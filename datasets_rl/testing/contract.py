"""What all contracts share: the cases of a subclass, and sentences for failures."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import pytest

__all__ = ["Contract", "listed", "only", "refusal", "to_write"]

_Test = TypeVar("_Test", bound=Callable[..., Any])


class Contract:
    """Base class of the contracts with tests that run for each case of a subclass."""

    cases: ClassVar[Mapping[str, Any]] = {}
    """The cases by name, which is a part of the ids of the tests."""
    example: ClassVar[str]
    """How a subclass states a case, for the error about a subclass without cases."""

    @classmethod
    def params(cls, test: Callable[..., Any]) -> Sequence[Any]:
        """Return the cases of a test, each as a `pytest.param`: the cases for which the condition of `only` holds."""
        holds: Callable[[Any], bool] = getattr(test, "condition", lambda _: True)
        return [pytest.param(case, id=name) for name, case in cls.cases.items() if holds(case)]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize a test with the cases. Pytest calls this for each test of the class."""
        if not self.cases:
            raise pytest.Collector.CollectError(
                f"{type(self).__name__} tests nothing, because the class has no cases. Set `{self.example}`"
            )
        if "case" in metafunc.fixturenames:
            none = pytest.param(
                None, id="none", marks=pytest.mark.skip("no case of the class has what the test is about")
            )
            metafunc.parametrize("case", self.params(metafunc.function) or [none], scope="class")


def only(condition: Callable[[Any], bool]) -> Callable[[_Test], _Test]:
    """Run a test of a contract only for the cases for which the condition holds."""

    def mark(test: _Test) -> _Test:
        test.condition = condition  # type: ignore[attr-defined]  # read by `Contract.params`
        return test

    return mark


@contextmanager
def refusal(error: type[Exception], message: str, otherwise: str) -> Iterator[None]:
    """Check that the block raises an error. Anything else fails the test with a sentence.

    Args:
        error: The class of the error.
        message: A regular expression that the text of the error matches.
        otherwise: What the author must do, as a sentence.
    """
    caught: Exception | None = None
    try:
        yield
    except Exception as raised:  # noqa: BLE001 -- the test reports errors of any class
        caught = raised
    if not isinstance(caught, error):
        found = "nothing" if caught is None else f"{type(caught).__name__}: {caught}"
        pytest.fail(f"{otherwise}. The call raises {found}")
    if re.search(message, str(caught)) is None:
        pytest.fail(f"{otherwise}. The text of the {type(caught).__name__} is {str(caught)!r}, without {message!r}")


def to_write(instance: object, what: str) -> NotImplementedError:
    """Return the error for a subclass of a contract that lacks a method."""
    return NotImplementedError(f"{type(instance).__name__} lacks {what}")


def listed(names: Any) -> str:
    """Return names as text in alphabetical order, keys with dots."""
    return ", ".join(sorted(name if isinstance(name, str) else ".".join(map(str, name)) for name in names)) or "none"
