"""TOML of users: errors, and the limit of nesting."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasets_rl.read.toml import MAX_DEPTH, parse_toml


def arrays(depth):
    return f"x = {'[' * depth}{']' * depth}"


def inline_tables(depth):
    return f"x = {'{ y = ' * depth}1{' }' * depth}"


def dotted_keys(depth):
    return f"{'.'.join(['x'] * depth)} = 1"


WAYS = [arrays, inline_tables, dotted_keys]


@pytest.mark.parametrize(
    ("way", "depth"), [*product(WAYS, [MAX_DEPTH + 2, 400, 2_000, 5_000]), (arrays, 50_000), (inline_tables, 50_000)]
)
def test_nesting_that_would_exhaust_the_stack_is_refused(way, depth):
    with pytest.raises(ValueError, match=f"nested more than {MAX_DEPTH} deep"):
        parse_toml(way(depth))


@given(st.sampled_from(WAYS), st.integers(1, MAX_DEPTH - 1))
def test_moderate_nesting_is_read(way, depth):
    found = parse_toml(way(depth))["x"]

    for _ in range(depth - 1):
        found = found[0] if isinstance(found, list) else next(iter(found.values()))
    assert found in ([], {"y": 1}, 1)


@given(st.text(max_size=40))
def test_any_text_is_a_document_or_a_value_error(text):
    try:
        assert isinstance(parse_toml(text), dict)
    except ValueError as error:
        assert str(error)  # noqa: PT017 -- both outcomes are right
