"""Pieces of episodes, batches, and partial builds of other writers give the same bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from raw.images import encoded, scene
from stored_data import columns

from datasets_rl.errors import ConversionError, IntegrityError
from datasets_rl.format import row_sink, writer
from datasets_rl.format.schema import Column
from datasets_rl.format.statistics import Moments
from datasets_rl.format.writer import DatasetWriter
from datasets_rl.ted.episode import EncodedImages, Episode, TextStates
from datasets_rl.ted.episode_batch import EpisodeBatch

F4, U1, I4 = np.dtype("f4"), np.dtype("u1"), np.dtype("i4")
WORD = Column(("word",), I4, (), text=True)
FRAME = Column(("frame",), U1, (40, 40, 3), shared=True)
CAMERA = Column(("camera",), U1, (16, 16, 3), shared=True, form="encoded")
WORDS = ("lift", "", "push", "ö")


def episode(number, steps, known, *, more=(WORD, FRAME)):
    """Return an episode with unique values."""
    dice = np.random.default_rng([number, steps])
    last = (np.arange(steps) == steps - 1)[:, None]
    whole = Episode(
        {
            ("action",): dice.normal(size=(steps, 2)).astype(F4),
            ("next", "reward"): dice.normal(size=(steps, 1)).astype(F4),
            ("next", "terminated"): last & bool(number % 2),
            ("next", "truncated"): last & (not number % 2),
        },
        {("observation",): dice.normal(size=(steps + known, 3)).astype(F4)},
        metadata={"source": np.int64(number), "seed": np.uint64(2**63 + number)},
    )
    steps_more, states_more = {}, {}
    if WORD in more:
        steps_more[WORD.key] = TextStates.from_texts([WORDS[one] for one in dice.integers(0, 4, steps)])
    if FRAME in more:
        states_more[FRAME.key] = dice.integers(0, 256, (steps + known, 40, 40, 3), U1)
    if CAMERA in more:
        images = [encoded(scene(16, 16, seed=int(one))) for one in dice.integers(0, 99, steps + known)]
        states_more[CAMERA.key] = EncodedImages(images)
    return replace(whole, steps=whole.steps | steps_more, states=whole.states | states_more)


def back_to_back(episodes):
    """Return the same episodes as one batch."""
    lengths = np.array([len(one) for one in episodes])
    known = np.array([one.final_known for one in episodes])
    numbers = {word: number for number, word in enumerate(WORDS)}

    def values(column):
        if isinstance(column, TextStates):
            return np.array([numbers[column.vocabulary[code]] for code in column.codes], I4)
        return column

    keys = episodes[0].states
    return EpisodeBatch(
        lengths,
        {key: np.concatenate([values(one.steps[key]) for one in episodes]) for key in episodes[0].steps},
        {key: np.concatenate([one.states[key][: len(one)] for one in episodes]) for key in keys},
        {
            key: np.stack(
                [one.states[key][-1] if one.final_known else np.full_like(one.states[key][0], 7) for one in episodes]
            )
            for key in keys
        },
        known,
        {name: np.array([one.metadata[name] for one in episodes]) for name in episodes[0].metadata},
        {WORD.key: WORDS},
    )


def written(folder, write, of):
    folder.mkdir()
    one = DatasetWriter(folder, of, name="toy/data")
    try:
        write(one)
        return one.finish()
    finally:
        one.discard()


def same(left, right):
    """Assert that every byte of every file is equal, and the statistics up to the order of summation."""
    assert {one.path: one.digest for one in left.files} == {one.path: one.digest for one in right.files}
    assert (left.steps, left.episodes, left.final_unknown) == (right.steps, right.episodes, right.final_unknown)
    for key, one in left.statistics.items():
        for name, value in one.items():
            np.testing.assert_allclose(np.array(value, float), np.array(right.statistics[key][name], float), rtol=1e-9)


SHAPES = st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=8)


@settings(max_examples=40, deadline=None)
@example(shapes=[(1, False), (3, False), (5, False), (6, False)], cuts=[], capacity=8)
@example(shapes=[(1, False), (2, False), (2, False)], cuts=[1], capacity=2)
@given(shapes=SHAPES, cuts=st.lists(st.integers(0, 8), max_size=4), capacity=st.integers(1, 20))
def test_batches_and_partials_give_the_bytes_of_pieces(shapes, cuts, capacity, tmp_path_factory):
    home = tmp_path_factory.mktemp("parts")
    episodes = [episode(number, *shape) for number, shape in enumerate(shapes)]
    of = [*columns(), WORD, FRAME]
    bounds = sorted({0, len(episodes), *(cut for cut in cuts if cut < len(episodes))})
    groups = [episodes[start:stop] for start, stop in pairwise(bounds)]

    def pieces(to):
        for one in episodes:
            to.append(one)

    def blocks(to):
        for group in groups:
            to.extend(back_to_back(group))

    def parts(to):
        for number, group in enumerate(groups):
            folder = home / f"part-{number}"
            folder.mkdir()
            other = DatasetWriter(folder, of, name="toy/data")
            for one in group:
                other.append(one)
            commit = other.commit()
            other.discard()
            to.append_partial(folder, commit)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "_BLOCK_STEPS", capacity)
        patch.setattr(row_sink, "_COPY_BYTES", 300)
        whole = written(home / "pieces", pieces, of)
        same(written(home / "parts", parts, of), whole)
        # A batch adds all its texts at once, and therefore in another order.
        texts = {file.path for file in whole.files if "texts" in file.path or file.path in {"rows.npy", "digests.npy"}}
        blocked = written(home / "blocks", blocks, of)
        same(
            *(
                replace(one, files=tuple(file for file in one.files if file.path not in texts))
                for one in (blocked, whole)
            )
        )
        left, right = (np.load(home / name / "rows.npy") for name in ("pieces", "blocks"))
        for name in set(left.dtype.names) - {"word"}:
            assert np.array_equal(left[name], right[name]), name
        spoken = [
            np.array(json.loads((home / name / "word.texts.json").read_text()))[rows["word"]]
            for name, rows in (("pieces", left), ("blocks", right))
        ]
        assert np.array_equal(*spoken)


def test_partials_of_images_and_of_open_episodes_are_joined(tmp_path):
    of = [*columns(), CAMERA]
    first, second = (episode(number, 6, True, more=(CAMERA,)) for number in range(2))

    def cut(one, start, stop):
        last = stop == len(one)
        states = {
            key: EncodedImages(values.images[start : None if last else stop])
            if isinstance(values, EncodedImages)
            else values[start : None if last else stop]
            for key, values in one.states.items()
        }
        return Episode({key: values[start:stop] for key, values in one.steps.items()}, states, not last, one.metadata)

    def pieces(to):
        to.append(first)
        to.append(second)

    def parts(to):
        for number, group in enumerate(
            ([cut(first, 0, 2)], [cut(first, 2, 3)], [cut(first, 3, 6), cut(second, 0, 4)], [cut(second, 4, 6)])
        ):
            folder = tmp_path / str(number)
            folder.mkdir()
            other = DatasetWriter(folder, of, name="toy/data")
            for one in group:
                other.append(one)
            commit = other.commit()
            other.discard()
            to.append_partial(folder, commit)

    same(written(tmp_path / "parts", parts, of), written(tmp_path / "pieces", pieces, of))


def test_a_truncated_partial_is_refused(tmp_path):
    folder = tmp_path / "part"
    folder.mkdir()
    other = DatasetWriter(folder, columns(), name="toy/data")
    other.append(episode(1, 9, True, more=()))
    commit = other.commit()
    other.discard()
    with (folder / "rows.npy").open("r+b") as file:
        file.truncate(300)

    with pytest.raises(IntegrityError, match="the file has fewer than 9 rows"):
        written(tmp_path / "whole", lambda to: to.append_partial(folder, commit), columns())


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"lengths": np.array([3, 0])}, "one without a step"),
        ({"steps": {("action",): np.zeros((5, 2), F4)}}, "steps has next.reward as nothing, expected float32"),
        (
            {"final_states": {("observation",): np.zeros((1, 3), F4)}},
            r"final_states has observation as float32 \[1, 3\], expected float32 \[2, 3\]",
        ),
        ({"states": {("observation",): np.zeros((5, 3))}}, "states has observation as float64"),
    ],
    ids=["empty", "missing", "few", "wide"],
)
def test_blocks_that_do_not_fit_are_refused(tmp_path, changes, problem):
    good = back_to_back([episode(0, 3, True, more=()), episode(1, 2, False, more=())])
    with pytest.raises(ConversionError, match=problem):
        written(tmp_path / "toy", lambda to: to.extend(replace(good, vocabulary={}, **changes)), columns())


def test_the_episodes_of_a_batch_equal_the_input():
    given_ones = [episode(0, 3, True), episode(1, 1, False), episode(2, 4, False)]
    block = back_to_back(given_ones)

    for one, other in zip(block, given_ones, strict=True):
        assert one.final_known == other.final_known
        assert one.metadata == other.metadata
        for key, values in other.states.items():
            assert np.array_equal(one.states[key], values)
        assert [one.steps[WORD.key].vocabulary[code] for code in one.steps[WORD.key].codes] == [
            other.steps[WORD.key].vocabulary[code] for code in other.steps[WORD.key].codes
        ]
    two = block.select_episodes(np.array([2, 0]))
    assert two.lengths.tolist() == [4, 3]
    assert np.array_equal(two.states[("observation",)][:4], given_ones[2].states[("observation",)])
    assert np.array_equal(two.next_states(("observation",))[4:7], given_ones[0].states[("observation",)][1:])
    assert not two.next_states(("observation",))[3].any() or not two.final_known[0]


def test_merged_moments_of_partials_equal_those_of_all_rows():
    dice = np.random.default_rng(0)
    values = dice.normal(5, 3, (1000, 2))
    values[3, 1] = np.nan
    whole, merged = Moments((2,)), Moments((2,))
    whole.update(values)
    for start, stop in ((0, 1), (1, 1), (1, 700), (700, 1000)):
        part = Moments((2,))
        part.update(values[start:stop])
        merged.merge(part.state())

    for name, value in whole.to_json().items():
        np.testing.assert_allclose(merged.to_json()[name], value, rtol=1e-12)
