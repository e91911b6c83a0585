"""The writer of tokenized datasets."""

from __future__ import annotations

import numpy as np
import pytest

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.rlhf.stored import TokenWriter


def test_rows_that_do_not_fit_are_refused_with_all_problems(tmp_path):
    writer = TokenWriter(tmp_path)
    writer.append({"tokens": np.zeros((2, 5), np.int64), "mask": np.zeros((2, 5), np.bool_)})

    with pytest.raises(InvalidArgumentError) as caught:
        writer.append({"tokens": np.zeros((2, 4), np.int64), "mask": np.zeros((3, 5), np.bool_)})
    writer.discard()

    assert str(caught.value) == (
        "rows 2 to 3 have the fields tokens <i8 [4], mask |b1 [5], expected tokens <i8 [5], mask |b1 [5], and have 2 of "
        "tokens, 3 of mask, expected the same number of rows of each column"
    )
