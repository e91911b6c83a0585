"""Image transforms, compared pixel by pixel."""

from __future__ import annotations

from math import floor

import pytest
import torch
from tensordict import TensorDict

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs.infer import spec_from_data
from datasets_rl.transforms import (
    CatFrames,
    CenterCrop,
    Crop,
    GrayScale,
    RandomShift,
    Resize,
    ToTensorImage,
    UnaryTransform,
)


def image(*shape, dtype=torch.float32):
    """An image of consecutive numbers."""
    count = torch.Size(shape).numel()
    return torch.arange(count).reshape(shape).to(dtype)


def through(transform, value):
    lead = value.shape[:-3]
    return transform(TensorDict({"pixels": value}, lead))["pixels"]


class TestToTensor:
    def test_channels_come_first_and_bytes_become_floats(self):
        value = torch.tensor([[[0, 51, 255], [102, 0, 0]]], dtype=torch.uint8)
        made = through(ToTensorImage(), value)

        assert made.shape == (3, 1, 2)
        torch.testing.assert_close(made, torch.tensor([[[0.0, 0.4]], [[0.2, 0.0]], [[1.0, 0.0]]]))

    def test_floats_are_not_scaled_by_default(self):
        value = torch.full((2, 2, 3), 51.0)

        assert (through(ToTensorImage(), value) == 51).all()
        torch.testing.assert_close(through(ToTensorImage(from_int=True), value), torch.full((3, 2, 2), 0.2))
        assert (through(ToTensorImage(from_int=False), value.byte()) == 51).all()

    def test_a_single_image_may_get_an_axis(self):
        value = torch.zeros(4, 5, 3, dtype=torch.uint8)

        assert ToTensorImage(unsqueeze=True).transform_value(value).shape == (1, 3, 4, 5)
        assert ToTensorImage(unsqueeze=True).transform_value(value.unsqueeze(0)).shape == (1, 3, 4, 5)

    def test_channels_that_are_already_first_are_kept_on_request(self):
        value = torch.zeros(3, 4, 5)

        assert ToTensorImage(shape_tolerant=True).transform_value(value).shape == (3, 4, 5)
        assert ToTensorImage().transform_value(value).shape == (5, 3, 4)

    def test_less_than_three_axes_are_refused(self):
        with pytest.raises(InvalidArgumentError, match=r"an image has shape \[4, 5\]"):
            ToTensorImage().transform_value(torch.zeros(4, 5))


class TestCrops:
    """An image of 4 rows of 5 pixels."""

    def test_a_rectangle(self):
        made = through(Crop(2, 3, top=1, left=2), image(1, 4, 5))

        assert made.tolist() == [[[7, 8, 9], [12, 13, 14]]]

    def test_pixels_outside_are_zero(self):
        made = through(Crop(3, 3, top=2, left=-1), image(1, 4, 5) + 1)

        assert made.tolist() == [[[0, 11, 12], [0, 16, 17], [0, 0, 0]]]

    def test_a_center_crop(self):
        assert through(CenterCrop(2, 3), image(1, 4, 5)).tolist() == [[[6, 7, 8], [11, 12, 13]]]
        assert through(CenterCrop(2), image(1, 4, 5)).tolist() == [[[7, 8], [12, 13]]]
        assert through(CenterCrop((1, 1)), image(1, 4, 5)).tolist() == [[[12]]]

    def test_a_center_crop_larger_than_the_image(self):
        """The end gets more padding than the beginning, as in torchvision."""
        assert through(CenterCrop(3, 2), image(1, 2, 1) + 1).tolist() == [[[1, 0], [2, 0], [0, 0]]]
        assert through(CenterCrop(4, 2), image(1, 1, 2) + 1).tolist() == [[[0, 0], [1, 2], [0, 0], [0, 0]]]

    @pytest.mark.parametrize("size", [(0, 1), ((1, 2, 3), None), (1.5, None)])
    def test_sizes_are_integers(self, size):
        with pytest.raises(InvalidArgumentError, match="expected two integers >= 1"):
            CenterCrop(*size)


class TestGray:
    def test_channels_are_weighed(self):
        value = torch.tensor([1.0, 2.0, 3.0]).reshape(3, 1, 1)

        torch.testing.assert_close(through(GrayScale(), value).item(), 0.2989 + 2 * 0.587 + 3 * 0.114)

    def test_bytes_stay_bytes(self):
        value = torch.tensor([255, 255, 255], dtype=torch.uint8).reshape(1, 3, 1, 1)

        assert through(GrayScale(), value).tolist() == [[[[254]]]]
        assert through(GrayScale(), value).dtype == torch.uint8

    def test_one_channel_is_gray_already(self):
        value = image(2, 1, 4, 4)

        assert through(GrayScale(), value) is not None
        assert torch.equal(through(GrayScale(), value), value)
        with pytest.raises(InvalidArgumentError, match=r"expected \[\.\.\., 3, H, W\]"):
            through(GrayScale(), image(2, 4, 4))


def triangle(value, size):
    """Resize one line in plain Python, with a triangular filter scaled to the output pixels."""
    count, made = len(value), []
    scale = count / size
    width = max(scale, 1)
    for place in range(size):
        center = (place + 0.5) * scale
        first, last = max(0, floor(center - width + 0.5)), min(count, floor(center + width + 0.5))
        weights = [max(0, 1 - abs((one + 0.5 - center) / width)) for one in range(first, last)]
        made.append(sum(weight * value[first + one] for one, weight in enumerate(weights)) / sum(weights))
    return made


class TestResize:
    def test_halving_averages_pixels(self):
        made = through(Resize(2, 1, interpolation="nearest"), image(1, 4, 2))

        assert made.tolist() == [[[0], [4]]]

    @pytest.mark.parametrize(("count", "size"), [(8, 3), (9, 4), (3, 7), (5, 2)])
    def test_downscaled_images_have_no_aliasing(self, count, size):
        """As by default in torchvision, each pixel is the weighted mean of the pixels that it covers."""
        line = torch.rand(count)
        made = through(Resize(1, size), line.reshape(1, 1, count))

        torch.testing.assert_close(made.reshape(-1), torch.tensor(triangle(line.tolist(), size)))

    def test_axes_before_the_channels_are_kept(self):
        value = torch.rand(2, 3, 3, 8, 6)
        made = through(Resize(4, 5), value)

        assert made.shape == (2, 3, 3, 4, 5)
        torch.testing.assert_close(made[1, 2], through(Resize((4, 5)), value[1, 2]))

    @pytest.mark.parametrize(("mode", "far"), [("nearest", 0), ("nearest-exact", 0), ("bilinear", 1), ("bicubic", 12)])
    def test_bytes_and_integers_are_rounded(self, mode, far):
        """Bytes are rounded and clamped between the two passes, as in torchvision."""
        torch.manual_seed(0)
        value = torch.randint(256, (2, 3, 9, 7), dtype=torch.uint8)
        wanted = through(Resize(5, 11, mode), value.float())
        as_bytes, as_whole = (through(Resize(5, 11, mode), one) for one in (value, value.long()))

        assert (as_bytes.dtype, as_whole.dtype) == (torch.uint8, torch.int64)
        assert (as_bytes - wanted.clamp(0, 255)).abs().max() <= far
        assert (as_whole - wanted).abs().max() <= 0.5 + 1e-3

    def test_an_image_of_the_right_size_is_not_copied(self):
        value = torch.rand(2, 3, 4, 5)

        assert Resize(4, 5).transform_value(value) is value

    def test_other_filters_are_refused(self):
        with pytest.raises(InvalidArgumentError, match="interpolation is 'lanczos', expected one of nearest"):
            Resize(4, interpolation="lanczos")

    def test_transforms_of_torchvision_are_callables(self):
        """Like transforms of torchvision v2, this one accepts [..., C, H, W]."""
        flip = UnaryTransform(["pixels"], fn=lambda value: value.flip(-1))

        assert through(flip, image(1, 1, 2)).tolist() == [[[1, 0]]]


CHANNELS_FIRST = [
    lambda **options: CatFrames(2, -3, **options),
    lambda **options: Resize(8, **options),
    lambda **options: Crop(4, **options),
    lambda **options: CenterCrop(4, **options),
    lambda **options: RandomShift(1, **options),
]
CHANNELS_LAST = [
    lambda **options: CatFrames(2, -1, **options),
    lambda **options: RandomShift(1, channels_last=True, **options),
    ToTensorImage,
]


class TestLayout:
    """The wrong layout is an error, instead of a stack of rows or a shift of channels."""

    @pytest.mark.parametrize("channels", [1, 3, 4])
    @pytest.mark.parametrize("make", CHANNELS_FIRST)
    def test_images_with_channels_last_are_refused(self, make, channels):
        data = TensorDict({"pixels": torch.zeros(2, 21, 16, channels, dtype=torch.uint8)}, [2])

        with pytest.raises(
            InvalidArgumentError, match=r"expects images \[..., C, H, W\], but \[21, 16, \d\] is the shape"
        ):
            make()(data)
        with pytest.raises(InvalidArgumentError, match="is the shape of an image"):
            make().transform_spec(spec_from_data(data))
        make(check_layout=False)(data)

    @pytest.mark.parametrize("channels", [1, 3, 4])
    @pytest.mark.parametrize("make", CHANNELS_LAST)
    def test_images_with_channels_first_are_refused(self, make, channels):
        data = TensorDict({"pixels": torch.zeros(2, channels, 21, 16, dtype=torch.uint8)}, [2])

        with pytest.raises(
            InvalidArgumentError, match=r"expects images \[..., H, W, C\], but \[\d, 21, 16\] is the shape"
        ):
            make()(data)
        make(check_layout=False)(data)

    def test_gray_images_with_channels_last_are_refused(self):
        with pytest.raises(InvalidArgumentError, match=r"expected \[..., 3, H, W\] or \[..., 1, H, W\]"):
            GrayScale()(TensorDict({"pixels": torch.zeros(2, 21, 16, 3)}, [2]))

    @pytest.mark.parametrize("shape", [(3, 21, 16), (12, 21, 16), (3, 3, 3), (64, 4, 4), (1, 9, 3)])
    def test_shapes_with_channels_first_are_accepted(self, shape):
        data = TensorDict({"pixels": torch.rand(2, *shape)}, [2])

        assert CatFrames(2, -3)(data)["pixels"].shape == (2, 2 * shape[0], *shape[1:])
        assert Resize(8)(data)["pixels"].shape == (2, shape[0], 8, 8)

    def test_frames_of_both_layouts_have_the_same_stacks(self):
        images = torch.randint(0, 255, (5, 21, 16, 3), dtype=torch.uint8)
        last = CatFrames(3, -1)(TensorDict({"pixels": images}, [5]))["pixels"]
        first = CatFrames(3, -3)(TensorDict({"pixels": images.movedim(-1, -3)}, [5]))["pixels"]

        assert torch.equal(last.movedim(-1, -3), first)

    @pytest.mark.parametrize("make", [*CHANNELS_FIRST[1:], *CHANNELS_LAST[1:], GrayScale])
    def test_vectors_are_refused(self, make):
        with pytest.raises(
            InvalidArgumentError, match=r"reads pixels, which has shape \[7\] for each step, expected at"
        ):
            make()(TensorDict({"pixels": torch.rand(2, 5, 7)}, [2, 5]))
