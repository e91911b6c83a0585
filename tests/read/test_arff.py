"""ARFF files as they exist in practice, and invalid ones."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from datasets_rl.errors import ConversionError
from datasets_rl.read import arff
from datasets_rl.read.arff import ArffFile, Attribute

HEADER = "@relation x\n@attribute n numeric\n@attribute c {a, b}\n@data\n"


@pytest.fixture
def opened(tmp_path):
    def run(text):
        path = tmp_path / "table.arff"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return ArffFile(path)

    return run


def values(file, wanted=(0, 1)):
    """Return all rows at once: numbers and category codes."""
    blocks = [*file.rows(wanted)]
    numbers = np.concatenate([block.numbers[0] for block in blocks])
    return numbers.tolist(), np.concatenate([block.codes[1] for block in blocks]).tolist()


def test_attributes_have_names_and_types(opened):
    file = opened(
        "% comment\n@RELATION 'a b'\n@attribute 'n, 1' REAL\n@Attribute c{x,'y z',?}\n@attribute s string\n"
        "@attribute d date 'yyyy'\n@data\n"
    )

    assert file.attributes == [
        Attribute("n, 1", "numeric"),
        Attribute("c", "nominal", ("x", "y z")),
        Attribute("s", "string"),
        Attribute("d", "date"),
    ]


def test_values_are_numbers_or_category_codes(opened):
    numbers, codes = values(opened(f"{HEADER}1,a\n-2.5e3,b\n?,?\n"))

    assert np.array_equal(numbers, [1, -2500, np.nan], equal_nan=True)
    assert codes == [0, 1, -1]


def test_categories_that_look_like_numbers_stay_text(opened):
    text = "@attribute n numeric\n@attribute c {1.5, 1.50, 01, 1}\n@data\n1,1.50\n2,1\n3,01\n4,1.5\n"

    assert values(opened(text))[1] == [1, 3, 2, 0]


@pytest.mark.parametrize("size", [1 << 23, 20, 8])
def test_blocks_may_end_anywhere(opened, monkeypatch, size):
    monkeypatch.setattr(arff, "_BLOCK_BYTES", size)
    rows = "".join(f"{row},{'ab'[row % 2]}\n" for row in range(50))

    file = opened(f"{HEADER}{rows}")

    assert values(file) == ([*range(50)], [row % 2 for row in range(50)])
    assert [block.start for block in file.rows((0,))] == np.cumsum(
        [0, *[block.count for block in file.rows((0,))][:-1]]
    ).tolist()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{HEADER}1,a\n1\n1,b,2\n", "row 1 has 1 fields, expected 2.*row 2 has 3 fields"),
        (f"{HEADER}1,c\nx,a\n", "row 0: c is 'c', expected one of a, b; row 1: n is 'x', expected a finite number"),
        (f"{HEADER}1,a\n{{0 1}}\n", "row 1 is sparse"),
        (f"{HEADER}nan,a\n", "n is 'nan'"),
        (f"{HEADER}inf,a\n", "n is 'inf'"),
        (f"{HEADER}0x1f,a\n", "n is '0x1f'"),
        (f"{HEADER}True,a\n", "n is 'True'"),
        ("@relation x\n@attribute n numeric\n", "it has no @data"),
        ("version https://git-lfs.github.com/spec/v1\n", "expected @attribute or @data"),
        ("@attribute\n@data\n", "expected @attribute NAME TYPE"),
        (HEADER.encode() + b"1,\xff\xfe\n", "UTF-8"),
    ],
)
def test_invalid_rows_are_refused_with_their_number(opened, text, says):
    with pytest.raises(ConversionError, match=says):
        values(opened(text))


def test_a_category_may_have_nan_in_its_name(opened):
    text = "@attribute n numeric\n@attribute c {banana, nan}\n@data\n1,nan\n?,banana\n"

    assert values(opened(text))[1] == [1, 0]


def test_an_overlong_row_is_refused_before_it_is_in_memory(opened, monkeypatch):
    monkeypatch.setattr(arff, "_BLOCK_BYTES", 100)

    with pytest.raises(ConversionError, match="a row has more than 100 bytes"):
        values(opened(f"{HEADER}{'1' * 1000}"))


def test_columns_that_are_not_selected_may_have_any_content(opened):
    text = "@attribute n numeric\n@attribute c {a}\n@attribute s string\n@data\n1,a,'any, text'\n"

    assert values(opened(text)) == ([1], [0])


def test_blanks_around_values_and_after_rows_are_ignored(opened):
    text = f"{HEADER}  1 , a \t\r\n2,b   \n"

    assert values(opened(text)) == ([1, 2], [0, 1])


@pytest.mark.parametrize("value", ["1_0", "\uff11\uff12", "1_000.5"])
def test_numbers_in_python_syntax_are_refused(opened, value):
    with pytest.raises(ConversionError, match=f"row 1: n is '{value}', expected a finite number"):
        values(opened(f"{HEADER}1,a\n{value},b\n"))


def test_a_numeric_attribute_may_state_its_range(opened):
    assert opened("@attribute n Integer [0, 10]\n@data\n1\n").attributes == [Attribute("n", "numeric")]


def test_undeclared_values_that_pandas_lets_pass_as_missing_are_refused(opened, monkeypatch):
    """As pandas 2 does it."""
    frame = pd.DataFrame({0: [1.0, 2.0], 1: pd.Categorical.from_codes([0, -1], ["a", "b", "?"])})
    monkeypatch.setattr(ArffFile, "_parse_frame", lambda *_: frame)

    with pytest.raises(ConversionError, match="row 1: c is 'z', expected one of a, b"):
        values(opened(f"{HEADER}1,a\n2,z\n"))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"{HEADER}1,'a'{' ' * 1_000_000}b\n", id="in a row"),
        pytest.param(f"@attribute n numeric\n@attribute c {{a{' ' * 1_000_000}b}}\n@data\n1,c\n", id="in the header"),
    ],
)
def test_a_million_blanks_are_read_in_linear_time(opened, text):
    """A regular expression that tries each blank as the end of a value would need a million squared steps."""
    with pytest.raises(ConversionError, match="expected one of"):
        values(opened(text))
