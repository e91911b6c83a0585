"""The size of an export, before it is written."""

from exports import write_images

from datasets_rl.exporting import Content


def test_the_disk_needs_room_for_pixels(tmp_path):
    stored = write_images(tmp_path / "toy", form="compressed")
    content = Content(stored)

    assert content.bytes > content.steps * 32 * 32 * 3
    assert content.bytes < Content(write_images(tmp_path / "raw")).bytes * 1.5
