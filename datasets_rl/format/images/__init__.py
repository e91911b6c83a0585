"""How images are stored: a file for each form of images.

Other code asks the form of a field, `Column.image_form`, and compares no names of forms.

    base          the contract: `ImageForm` of a field, and `FieldWriter` of the files of a field
    raw           pixels, and all values that are not images
    encoded       PNG or JPEG files
    compressed    without loss, with a dictionary of the images of a field
    video         frames of video files, which video_files stores
    separate      what encoded and compressed images share: separate bytes for each image
    columns       what readers see of images that are not pixels
    cache, loops  decoded images that are kept, and loops over images
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datasets_rl.format.images.base import ImageForm

FORMS: Mapping[str, str] = {
    "raw": "raw:RawForm",
    "encoded": "encoded:EncodedForm",
    "compressed": "compressed:CompressedForm",
    "video": "video:VideoForm",
}
"""The module and the class of each form by name. Only modules of forms that a dataset has are imported."""


@cache
def form_class(name: str) -> type[ImageForm]:
    """Return the form with a name.

    Raises:
        KeyError: If there is no such form.
    """
    module, _, attribute = FORMS[name].partition(":")
    form: type[ImageForm] = getattr(import_module(f"{__name__}.{module}"), attribute)
    return form
