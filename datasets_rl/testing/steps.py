"""The contract of the steps of recipes."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import cloudpickle
import numpy as np
import pytest
from numpy.typing import NDArray

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.images import compressed as compressed_images
from datasets_rl.format.images import encoded as encoded_images
from datasets_rl.format.images.compressed import CompressedImages
from datasets_rl.format.images.encoded import EncodedColumn
from datasets_rl.preprocessing.base import Step
from datasets_rl.preprocessing.functions import concatenate_batches
from datasets_rl.preprocessing.recipe import Recipe
from datasets_rl.preprocessing.tensors import unshare
from datasets_rl.read.compressed_frames import FrameDictionary, compress
from datasets_rl.ted.episode import StoredImages
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import Key, dotted_name
from datasets_rl.testing.contract import Contract, listed, only

__all__ = ["StepCase", "StepContract", "block_of", "fitted"]

PIXELS: Key = ("pixels",)
STATES: dict[Key, tuple[tuple[int, ...], str]] = {
    ("observation",): ((3,), "f4"),
    ("goal", "achieved"): ((2,), "f8"),
    ("goal", "desired"): ((2,), "f8"),
    PIXELS: ((6, 8, 3), "u1"),
    ("light",): ((1, 4, 4), "f4"),
    ("state_value",): ((1,), "f4"),
}
STEPS: dict[Key, tuple[tuple[int, ...], str]] = {
    ("action",): ((2,), "f4"),
    ("success",): ((1,), "?"),
    ("text",): ((), "i4"),
}
KINDS = ("steps", "states", "final_states")

Shape = tuple[int, bool, bool]
"""The steps of an episode, whether the final state is known, and whether the episode is terminated."""
FIVE: Sequence[Shape] = [(3, True, True), (1, True, True), (4, False, False), (2, True, False), (5, True, True)]
THREE: Sequence[Shape] = [(3, True, True), (4, False, False), (2, True, False)]
OTHERS: Sequence[Shape] = [(2, True, True), (3, True, False)]


def _random_shapes(count: int) -> list[list[Shape]]:
    draw = np.random.default_rng(7)
    return [
        [(int(draw.integers(1, 7)), bool(draw.integers(2)), bool(draw.integers(2))) for _ in range(draw.integers(1, 7))]
        for _ in range(count)
    ]


SEVERAL: Sequence[Sequence[Shape]] = [[(1, False, False)], [(1, True, True)], FIVE, *_random_shapes(3)]
"""Episodes of several lengths, with an episode of a single step."""


@dataclass(frozen=True)
class StepCase:
    """A step, or another element of a recipe, and the properties of the step."""

    make: Callable[[], Any]
    """Returns a new step, which changes the drawn episodes, see `block_of`."""
    separate: bool = False
    """Whether a state after a step differs from the state of the next step, so that both are stored."""
    ends_earlier: bool = False
    """Whether episodes end at other steps than before, with other final states, which may be known."""
    pixels: bool = False
    """Whether the step replaces stored images by pixels with the same values."""
    corrects: bool = False
    """Whether the step corrects recorded observations or actions, so that the values of an environment stay unchanged."""


def block_of(shapes: Sequence[Shape], seed: int = 0) -> EpisodeBatch:
    """Return a batch of random episodes with fields of every type.

    Args:
        shapes: The steps of each episode, whether the final state is known, and whether the episode is terminated.
        seed: Determines the values.

    Returns:
        Episodes with the states ``observation`` [3], ``goal.achieved`` [2], ``goal.desired`` [2], ``pixels`` [6, 8, 3],
        ``light`` [1, 4, 4] and ``state_value`` [1], with the fields of steps ``action`` [2], ``success`` [1] and ``text``,
        ``open`` or ``close``, and with the rewards and the flags.
    """
    draw = np.random.default_rng(seed)
    steps = np.array([one[0] for one in shapes])
    known = np.array([one[1] for one in shapes])
    count = int(steps.sum())
    ends = np.zeros((count, 1), bool)
    ends[np.cumsum(steps) - 1] = True
    terminated = ends & np.repeat([one[2] for one in shapes], steps)[:, None]

    def values(rows: int, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        if dtype == "u1":
            return draw.integers(0, 256, (rows, *shape)).astype(dtype)
        if dtype == "?":
            return draw.random((rows, *shape)) > 0.7
        if dtype == "i4":
            return draw.integers(0, 2, (rows, *shape)).astype(dtype)
        return draw.random((rows, *shape)).astype(dtype) * (1 if shape == (1, 4, 4) else 2) - (shape != (1, 4, 4))

    final_states = {key: values(len(shapes), *one) for key, one in STATES.items()}
    for array in final_states.values():
        array[~known] = 0
    return EpisodeBatch(
        lengths=steps,
        steps={
            **{key: values(count, *one) for key, one in STEPS.items()},
            ("next", "reward"): (draw.random((count, 1)) * 2 - 1).astype("f4"),
            ("next", "terminated"): terminated,
            ("next", "truncated"): ends & ~terminated,
        },
        states={key: values(count, *one) for key, one in STATES.items()},
        final_states=final_states,
        final_known=known,
        metadata={"source": np.arange(len(shapes)) * 3},
        vocabulary={("text",): ("open", "close")},
    )


def as_png(block: EpisodeBatch) -> EpisodeBatch:
    """Return the same episodes with images encoded as PNG."""
    from PIL import Image

    def png(pixels: NDArray[Any]) -> bytes:
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, "PNG")
        return out.getvalue()

    def images(values: Any, known: Any) -> EncodedColumn:
        held = [png(one) if is_known else b"" for one, is_known in zip(values, known, strict=True)]
        return EncodedColumn(held, values.shape[1:], Path("pictures"))

    rows: Any = images(block.states[PIXELS], [True] * block.count)
    ends: Any = images(block.final_states[PIXELS], block.final_known)
    return replace(block, states={**block.states, PIXELS: rows}, final_states={**block.final_states, PIXELS: ends})


def as_zstd(block: EpisodeBatch) -> EpisodeBatch:
    """Return the same episodes with compressed images."""
    dictionary = FrameDictionary()

    def images(values: Any) -> CompressedImages:
        data, ends = compress(values, dictionary)
        starts = np.append(np.zeros(1, np.int64), ends)[:-1]
        return CompressedImages(data, starts, ends, np.arange(len(ends)), dictionary, values.shape[1:], Path("frames"))

    rows: Any = images(block.states[PIXELS])
    ends: Any = images(block.final_states[PIXELS]).without(~block.final_known)
    return replace(
        block,
        states={**block.states, PIXELS: rows},
        final_states={**block.final_states, PIXELS: ends},
        compressed=frozenset([PIXELS]),
    )


FORMS = pytest.mark.parametrize("form", [as_png, as_zstd], ids=["encoded", "compressed"])


def as_pixels(block: EpisodeBatch) -> EpisodeBatch:
    """Return the same episodes with all images decoded."""
    decoded: dict[str, Any] = {
        kind: {key: np.asarray(one) for key, one in getattr(block, kind).items()} for kind in KINDS
    }
    return replace(block, **decoded)


def other_pixels(block: EpisodeBatch) -> EpisodeBatch:
    """Return the same episodes with other images."""

    def other(states: Any) -> dict[Key, Any]:
        return {key: values[::-1] ^ 3 if key == PIXELS else values for key, values in states.items()}

    finals = other(block.final_states)
    finals[PIXELS] = np.where(block.final_known[:, None, None, None], block.final_states[PIXELS] ^ 3, 0).astype("u1")
    return replace(block, states=other(block.states), final_states=finals)


def fitted(step: Any, *blocks: EpisodeBatch) -> Recipe:
    """Return a recipe of a single step that was fitted to these episodes."""
    recipe = Recipe([step])
    recipe.fit(lambda: iter(blocks))
    return recipe


def differences(left: EpisodeBatch | None, right: EpisodeBatch | None) -> list[str]:
    """Return what differs between episodes, to the last bit, and in the form of the stored images."""
    if left is None or right is None:
        return [] if left is right else ["the number of episodes"]
    found = ["how images are stored"] if left.compressed != right.compressed else []
    for kind in (*KINDS, "metadata"):
        mine, others = getattr(left, kind), getattr(right, kind)
        names = {key: key if isinstance(key, str) else dotted_name(key) for key in {**mine, **others}}
        found += [f"{kind}: {name}" for key, name in names.items() if _differ(mine.get(key), others.get(key))]
    found += [
        name for name in ("lengths", "final_known", "numbers") if _differ(getattr(left, name), getattr(right, name))
    ]
    return found


def _differ(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is not other
    if isinstance(one, StoredImages) or isinstance(other, StoredImages):
        return type(one) is not type(other) or not np.array_equal(np.asarray(one), np.asarray(other))
    return bool(one.dtype != other.dtype or one.shape != other.shape or one.tobytes() != other.tobytes())


def _rows(values: Any) -> set[bytes]:
    return {one.tobytes() for one in np.asarray(values)}


class StepContract(Contract):
    """What every step of a recipe must do. A subclass has `cases`, each with a step that changes the episodes of `block_of`."""

    cases: ClassVar[dict[str, StepCase]] = {}
    example = 'cases = {"half": StepCase(lambda: HalfRewards())}'

    def test_a_step_changes_its_input(self, case: StepCase) -> None:
        block = block_of(FIVE, seed=2)
        block = as_zstd(block) if case.pixels else block

        assert differences(block, fitted(case.make(), block)(block)), (
            "the step of this case changes nothing. Choose arguments that change the episodes of block_of, so that the"
            " other tests test something"
        )

    def test_the_output_does_not_depend_on_the_division_into_batches(self, case: StepCase) -> None:
        for number, shapes in enumerate(SEVERAL):
            block = block_of(shapes)
            recipe = fitted(case.make(), block, block_of([*shapes, *OTHERS], seed=1))
            places, cut = np.arange(len(block)), number % (len(block) + 1)
            parts = [block.select_episodes(one) for one in (places < cut, places >= cut) if one.any()]
            results = [one for one in map(recipe, [block, *parts]) if one is not None]
            # As for partial results: a state that one part stores separately is stored separately in all parts.
            apart = frozenset(key for one in results for key in one.steps if ("next", *key) in one.steps)
            results = [unshare(one, apart) for one in results]
            changed = differences(results[0], concatenate_batches(results[1:])) if results else []

            assert not changed, (
                f"{listed(changed)} of {len(block)} episodes in one batch differs from the result in two batches. Compute each"
                " episode from the episode alone, and from what `fit` computed"
            )

    def test_the_output_is_strict_ted_and_the_input_does_not_change(self, case: StepCase) -> None:
        for shapes in SEVERAL:
            block, twin = block_of(shapes), block_of(shapes)
            result = fitted(case.make(), block, block_of(OTHERS, seed=1))(block)
            changed = differences(block, twin)

            assert not changed, f"the step changes {listed(changed)} of the input. Return new arrays in a new batch"
            if result is not None:
                problems = [*ted_problems(result), *final_problems(result, block, ends_earlier=case.ends_earlier)]
                assert not problems, f"the result of {shapes} is not strict TED: {'; '.join(problems)}"

    def test_states_are_shared_where_the_step_commutes_with_time(self, case: StepCase) -> None:
        block = block_of([(3, True, True), (4, False, False), (2, True, False), (5, True, True)], seed=2)
        result = fitted(case.make(), block)(block)
        assert result is not None, "the step drops all of four episodes. Choose arguments that keep some"
        apart = [key for key in result.steps if ("next", *key) in result.steps]

        assert bool(apart) == case.separate, (
            f"the states {listed(apart)} are stored twice, at t and after t. Change the state of a step and the same state"
            " after the previous step alike, or state separate=True in the case"
        )

    def test_it_states_its_rule_for_environments(self, case: StepCase) -> None:
        step = fitted(case.make(), block_of(FIVE, seed=2)).steps[0]
        if type(step).to_json is not Step.to_json:
            return  # a function or a transform, for which the package has a rule

        assert type(step).for_environment is not Step.for_environment, (
            f"{type(step).__name__} has no rule for environments. Derive the class from DataStep if observations and actions stay,"
            " or override for_environment"
        )

    def test_observations_and_actions_stay_if_an_environment_needs_no_change(self, case: StepCase) -> None:
        """Steps may be dropped. A policy for the result must fit the environment."""
        block = block_of(FIVE, seed=2)
        recipe = fitted(case.make(), block)
        result = recipe(block)
        for key, kind in ((("observation",), "states"), (("action",), "steps")):
            fields = _one_step(block, key, kind)
            if (
                case.corrects
                or result is None
                or key not in getattr(result, kind)
                or not _leaves_alone(recipe.steps[0], fields)
            ):
                continue
            finals = block.final_states.get(key, getattr(block, kind)[key][:0])
            more = _rows(getattr(result, kind)[key]) - _rows(getattr(block, kind)[key]) - _rows(finals)
            assert not more, (
                f"the step changes {dotted_name(key)}, and for_environment returns None for this field. Return the step that changes"
                f" {dotted_name(key)} of an environment alike, or raise an InvalidArgumentError"
            )

    def test_a_pickled_step_keeps_its_fitted_parameters(self, case: StepCase) -> None:
        block = block_of(THREE)
        recipe = fitted(case.make(), block)
        sent = cloudpickle.loads(cloudpickle.dumps(recipe))
        changed = differences(sent(block), recipe(block))

        assert not changed, f"a pickled step returns another {listed(changed)}. Keep what `fit` computes in attributes"
        assert [*sent.fitted] == [*recipe.fitted], (
            "a pickled step lacks fitted parameters. Return these parameters in `fitted`"
        )

    @FORMS
    def test_stored_images_give_the_result_of_their_pixels_and_keep_their_form_where_unchanged(
        self, case: StepCase, form: Callable[[EpisodeBatch], EpisodeBatch]
    ) -> None:
        block = block_of(FIVE, seed=2)
        expected = fitted(case.make(), block)(block)
        result = fitted(case.make(), form(block))(form(block))
        assert expected is not None, "the step drops all of five episodes. Choose arguments that keep some"
        assert result is not None, "the step drops all episodes with stored images, and none of the same pixels"
        changed = differences(replace(as_pixels(result), compressed=expected.compressed), expected)

        assert not changed, (
            f"{listed(changed)} of stored images differs from the result of the pixels. Decode by np.asarray"
        )
        held = {key for key, values in result.states.items() if isinstance(values, CompressedImages)}
        assert result.compressed >= held, f"`compressed` of the result lacks {listed(held - result.compressed)}"
        given = _rows(block.states[PIXELS]) | _rows(block.final_states[PIXELS])
        for key, values in {**expected.steps, **expected.states}.items():
            is_image = values.shape[1:] == (6, 8, 3) and values.dtype == "u1"
            unchanged = is_image and _rows(values) <= given and not case.pixels
            for kind in ("steps", "states", *(["final_states"] if key in result.states else [])):
                column = getattr(result, kind).get(key)
                if column is not None:
                    assert isinstance(column, StoredImages) == unchanged, (
                        f"{kind} has {dotted_name(key)} as {type(column).__name__}. Leave stored images unchanged where no"
                        " pixel changes, and return pixels where a pixel changes"
                    )

    @FORMS
    @only(lambda case: not case.pixels)
    def test_images_that_a_step_does_not_use_are_not_decoded(
        self, case: StepCase, form: Callable[[EpisodeBatch], EpisodeBatch], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        block = block_of(FIVE, seed=2)
        results = [fitted(case.make(), one)(one) for one in (block, other_pixels(block))]
        if differences(*(None if one is None else _without_pixels(one) for one in results)) or _pixels_change(
            case, block
        ):
            return  # the step uses images
        stored = form(block)
        recipe = fitted(case.make(), stored)
        for module, decode in ((encoded_images, "_decode_images"), (compressed_images, "_decompress")):
            monkeypatch.setattr(
                module,
                decode,
                lambda *_: pytest.fail("the step decodes images without a use. Leave the column unchanged"),
            )
        recipe(stored)


def _one_step(block: EpisodeBatch, key: Key, kind: str) -> EpisodeBatch:
    """Return a step of an environment with a single field."""
    field = {key: getattr(block, kind)[key][:1]}
    return EpisodeBatch(
        lengths=np.array([1]),
        steps=field if kind == "steps" else {},
        states=field if kind == "states" else {},
        final_states={},
        final_known=np.array([False]),
        metadata={},
    )


def _leaves_alone(step: Step, fields: EpisodeBatch) -> bool:
    try:
        return step.for_environment(fields) is None
    except InvalidArgumentError:
        return False


def _without_pixels(block: EpisodeBatch) -> EpisodeBatch:
    rest: dict[str, Any] = {
        kind: {key: values for key, values in getattr(block, kind).items() if key != PIXELS} for kind in KINDS
    }
    return replace(block, **rest)


def _pixels_change(case: StepCase, block: EpisodeBatch) -> bool:
    result = fitted(case.make(), block)(block)
    if result is None or PIXELS not in result.states:
        return False
    given = _rows(block.states[PIXELS]) | _rows(block.final_states[PIXELS])
    images = result.states[PIXELS]
    return images.shape[1:] != block.states[PIXELS].shape[1:] or not _rows(images) <= given


def _flag_problems(block: EpisodeBatch) -> list[str]:
    flags: dict[str, Any] = {name: block.steps.get(("next", name)) for name in ("terminated", "truncated")}
    problems = [
        f"next.{name} is not bool [{block.count}, 1]"
        for name, values in flags.items()
        if values is None or values.dtype != bool or values.shape != (block.count, 1)
    ]
    ends = np.zeros(block.count, bool)
    ends[block.table.stops - 1] = True
    if not problems and not np.array_equal((flags["terminated"] | flags["truncated"])[:, 0], ends):
        problems.append("terminated or truncated is not True in the last step of each episode, and in no other step")
    return problems


def ted_problems(block: EpisodeBatch) -> list[str]:
    """Return how a batch breaks the rules of episodes."""
    problems = _flag_problems(block)
    reward = block.steps.get(("next", "reward"))
    if reward is None or reward.dtype.kind != "f" or reward.shape != (block.count, 1):
        problems.append(f"next.reward is not floating point [{block.count}, 1]")
    for key, values in (*block.steps.items(), *block.states.items()):
        if len(values) != block.count:
            problems.append(f"{dotted_name(key)} has {len(values)} rows, expected {block.count}")
    if block.states.keys() != block.final_states.keys():
        problems.append(f"states and final_states differ in {listed(block.states.keys() ^ block.final_states.keys())}")
        return problems
    for key, final in block.final_states.items():
        if (final.shape[1:], final.dtype) != (block.states[key].shape[1:], block.states[key].dtype):
            problems.append(f"the final states of {dotted_name(key)} have another shape or dtype than the states")
        elif np.asarray(final)[~block.final_known].any():
            problems.append(f"an unknown final state of {dotted_name(key)} is not zeros")
    if unknown := set(block.vocabulary) - {*block.steps, *block.states}:
        problems.append(f"vocabulary has {listed(unknown)}, which are not fields")
    return problems


def final_problems(result: EpisodeBatch, before: EpisodeBatch, *, ends_earlier: bool) -> list[str]:
    """Return which final states are known or unknown without a reason, by the numbers of the episodes."""
    known = dict(zip(before.numbers.tolist(), before.final_known.tolist(), strict=True))
    found = list(zip(result.numbers.tolist(), result.final_known.tolist(), strict=True))
    # A step may divide an episode: both parts have its number, and the state after the first part may be unknown.
    parts = Counter(result.numbers.tolist())
    lost = sorted(
        {number for number, is_known in found if known.get(number, True) and not is_known and parts[number] == 1}
    )
    problems = [f"the final states of the episodes {lost} are unknown, and were known before"] if lost else []
    made = sorted({number for number, is_known in found if is_known and not known.get(number, True)})
    if made and not ends_earlier:
        problems.append(
            f"the final states of the episodes {made} are known, and were unknown. State ends_earlier=True if so"
        )
    return problems
