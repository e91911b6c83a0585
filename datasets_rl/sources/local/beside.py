"""Images and videos beside the data files that no row shows."""

from __future__ import annotations

from collections.abc import Mapping

from datasets_rl.errors import ConversionError
from datasets_rl.sources.flat.arrays import ArrayFile
from datasets_rl.sources.flat.ends import Ends
from datasets_rl.sources.flat.plan import Plan
from datasets_rl.sources.flat.videos import VideosFile

IMAGES, VIDEOS = "images-left-out", "videos-left-out"
RULES: Mapping[str, str] = {
    IMAGES: "images are in the folder, and no column has their paths: they were left out",
    VIDEOS: "videos are in the folder, and nothing says which rows they show: they were left out",
}
"""Text of each counted decision, by rule."""
_NEAR_FRAMES, _NEAR_PART = 2, 50
"""A video and a table of the same rows may differ by 2 frames, or by one in 50."""


def check_shown(file: ArrayFile, plan: Plan, ends: Ends, images: int, files: int) -> None:
    """Check that images and videos in the folder are not those of the rows, unless the user states the fields.

    Args:
        file: One of the files.
        plan: The plan of the file.
        ends: The episodes of the file.
        images: The number of images in the folder that no column names.
        files: The number of data files.

    Raises:
        ConversionError: If there are about as many images as rows, or videos as episodes, or frames of a video as rows.
    """
    if plan.layout.fields:
        return
    problems = []
    if images >= max(2, files * ends.steps // 2):
        problems.append(f"{images:,} images are in the folder, and no column has their paths")
    episodes, videos = int((ends.lengths > 0).sum()), unshown_videos(file)
    if len(videos) > 1 and episodes and len(videos) % (files * episodes) == 0:
        problems.append(
            f"{len(videos):,} videos are in the folder, and nothing says which of {episodes:,} episodes each shows"
        )
    elif len(videos) == 1 and files == 1 and isinstance(file, VideosFile):
        frames = file.length_of(videos[0])
        if frames and abs(frames - ends.steps) <= max(_NEAR_FRAMES, ends.steps // _NEAR_PART):
            problems.append(f"{videos[0]} has {frames:,} frames, expected {ends.steps:,}, one for each row")
    if problems:
        hint = "add a column of their paths, or state the fields in dataset.toml, [fields], to leave the images out"
        raise ConversionError(file.name, problems, hint=hint)


def unshown_videos(file: ArrayFile) -> list[str]:
    """Return the paths of the videos in the folder, if the rows of a file are frames of none of them."""
    return file.videos if isinstance(file, VideosFile) and not file.cameras else []
