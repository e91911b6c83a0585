from __future__ import annotations

import pytest
from quick import nearest_tests


@pytest.mark.parametrize(
    ("path", "nearest", "source"),
    [
        ("datasets_rl/samplers/prioritized.py", "tests/samplers/test_prioritized.py", None),
        ("datasets_rl/returns.py", "tests/test_returns.py", None),
        ("datasets_rl/sources/minari/episodes.py", "tests/sources/test_minari.py", "minari"),
        ("cli/commands/info.py", "tests/cli/test_info.py", None),
        ("tests/samplers/test_random.py", "tests/samplers/test_random.py", None),
    ],
)
def test_the_first_tests_of_a_changed_file_are_its_own(path, nearest, source):
    tests, found = nearest_tests(path)
    assert (tests[0], found) == (nearest, source)


def test_tests_that_use_a_name_of_the_changed_module_follow():
    tests, _ = nearest_tests("datasets_rl/samplers/prioritized.py")
    assert "tests/conformance/test_samplers_and_writers.py" in tests[1:]
    assert "tests/samplers/test_permutation.py" not in tests


@pytest.mark.parametrize("path", ["README.md", "docs/train.md", "tests/servers.py"])
def test_a_file_without_own_tests_has_none(path):
    assert nearest_tests(path) == ([], None)
