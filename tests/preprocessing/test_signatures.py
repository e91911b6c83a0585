"""Arguments of transforms, checked by the signatures in the source code."""

from __future__ import annotations

import inspect

import pytest

from datasets_rl import transforms
from datasets_rl.preprocessing.signatures import argument_problems, transform_names
from datasets_rl.preprocessing.transforms import transforms_by_name


def test_the_names_of_transforms_are_those_of_the_classes():
    names = transform_names()

    assert {name: cls.__name__ for name, cls in transforms_by_name().items() if name} == {
        name: names[name] for name in transforms_by_name() if name
    }


@pytest.mark.parametrize("class_name", sorted({*transform_names().values()} - {"RunningMeanStd"}))
def test_the_parameters_in_the_source_code_are_those_of_the_class(class_name):
    """What a class inherits from another module is not looked up: only the class itself checks these arguments."""
    cls = getattr(transforms, class_name)
    problems = argument_problems(class_name, [], {"no_such": 1})

    owner = next(one for one in cls.__mro__ if "__init__" in vars(one))
    own = owner.__module__ == cls.__module__
    parameters = [*inspect.signature(cls.__init__).parameters.values()][1:] if own else []
    plain = [one for one in parameters if one.kind not in {one.VAR_POSITIONAL, one.VAR_KEYWORD}]
    takes_others = not own or any(one.kind is one.VAR_KEYWORD for one in parameters)
    names = ", ".join(one.name for one in plain) or "none"
    unknown = [] if takes_others else [f"it has no argument 'no_such' (its arguments: {names})"]
    assert problems == unknown + [f"{one.name} is missing" for one in plain if one.default is one.empty]


@pytest.mark.parametrize(
    ("class_name", "positional", "named", "problems"),
    [
        ("Resize", [64], {}, []),
        ("Resize", [[64, 48]], {"interpolation": "nearest"}, []),
        ("Resize", ["abc"], {}, ["w is 'abc', expected an integer or a list"]),
        ("Resize", [64.5], {"h": True}, ["w is 64.5, expected an integer or a list", "h is True, expected an integer"]),
        ("Resize", [], {}, ["w is missing"]),
        ("RewardScaling", [0, 1.5], {}, []),
        ("RewardScaling", [[0.0, 1.0], 2], {"standard_normal": True}, []),
        ("RewardScaling", [0, "large"], {}, ["scale is 'large', expected a number, or a list of numbers"]),
        ("ClipTransform", [], {"in_keys": "next.reward", "low": -1}, []),
        ("ClipTransform", [], {"low": "a"}, ["low is 'a', expected a number or a list of numbers"]),
        ("TargetReturn", [3.0], {"mode": "reduce"}, []),
        ("TargetReturn", [3.0], {"mode": "grow"}, ["mode is 'grow', expected 'reduce', 'constant'"]),
        ("DTypeCastTransform", ["float32", "float16"], {"in_keys": ["observation"]}, []),
        ("ExcludeTransform", ["info", "extra"], {}, []),
        ("SignTransform", [], {"in_keys": ["next.reward"]}, []),
        ("GAE", [0.9], {"lmbda": "large"}, ["lmbda is 'large', expected a number, or a list of numbers"]),
    ],
)
def test_values_that_no_parameter_takes_are_named_with_what_is_expected(class_name, positional, named, problems):
    assert argument_problems(class_name, positional, named) == problems
