"""Errors of specs that are also instances of the exceptions of TorchRL."""

from datasets_rl.errors import InvalidArgumentError


class AttributeNameError(InvalidArgumentError, AttributeError):
    """Raised when an attribute of a composite is set like a key."""


class NotInSpecError(InvalidArgumentError, AssertionError):
    """Raised when a value is not in a spec."""


class NotSupportedBySpecError(InvalidArgumentError, NotImplementedError):
    """Raised when the specs of a class do not support an operation."""


class AxisError(InvalidArgumentError, IndexError):
    """Raised when a spec does not have an axis."""


class WrongDtypeError(InvalidArgumentError, TypeError):
    """Raised when a value has another dtype, or another type, than a spec."""
