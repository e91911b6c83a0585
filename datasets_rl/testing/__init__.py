"""Contracts of the components: what each source, storage, sampler, writer, transform, step and export format must do.

    from datasets_rl.testing import SamplerContract

    class TestReturnSampler(SamplerContract):
        def make(self, generator=None):
            return ReturnSampler(generator)

A contract is a class with tests. Pytest runs the tests for each subclass with a name that begins with ``Test``. The suites of this package in
``tests/conformance`` inherit the contracts, and so do the tests of other packages. The names are listed in `__init__.pyi`.
"""

import pkgutil

from lazy_loader import attach_stub

from datasets_rl.libraries import importing

with importing("pytest", "testing", "datasets_rl.testing"):
    import pytest

# A failed assertion then shows the values beside the sentence, as in a module of tests.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
