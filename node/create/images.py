"""Images as samples: a file or cell becomes the number of its class and the bytes of its pixels.

All samples of a swarm have the same length. Images are untrusted: their kind and number of pixels are
read from the header and checked before any pixel is decoded. Any error of the library after that becomes
a `BadRow`.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from ..training.task_names import NO_TOKENIZER, PixelSettings
from ..util.first_line import first_line
from ..util.regular_files import read_regular
from .class_labels import DEFAULT_COLUMN as DEFAULT_LABEL
from .class_labels import ClassLabels, is_label_type
from .class_metadata import ClassNames
from .columns import Columns
from .formats import needs
from .rows import BadRow
from .tokens import TokenBytes

DEFAULT_COLUMN = "image"

MAX_IMAGE_BYTES = 64 << 20
_KINDS = ("PNG", "JPEG", "WEBP", "BMP")
# Pixels of an image: a large camera has 60 million. Decoded, a pixel takes up to four bytes, and a
# multiple of that while the image is rotated and scaled.
MAX_PIXELS = 1 << 26
_TRANSPARENT_MODES = frozenset({"RGBA", "LA", "PA", "P"})
_SIXTEEN_BIT_MODE = "I;16"
_WHITE = (255, 255, 255, 255)
# Position of the canvas's size in an extended WebP file, which begins with RIFF, the length, WEBPVP8X.
_WEBP_CANVAS = slice(24, 30)


class ImageColumns(Columns):
    """The images of a source, and the class of each if the swarm has classes.

    The class of an image file is that of the innermost folder on its path below the given folder that
    has the name of a class. In Parquet and Arrow files one column contains images, as bytes or as
    `datasets` writes them (a table with `bytes`), and another the name or the number of the class.
    """

    content = "images"
    remedy = (
        "name the column with `image`, and the column of the class with `label`, or leave the file out "
        "with `exclude`"
    )
    images = True

    def __init__(self, image: str | None, label: str | None, settings: PixelSettings) -> None:
        """Raise `ValueError` if `label` is given and the settings have no classes."""
        if label is not None and not settings.classes:
            raise ValueError("`label` is given, but [task_settings] has no `classes`")
        self.parts = []
        self.settings = settings
        self._image = image or DEFAULT_COLUMN
        self.label = (label or DEFAULT_LABEL) if settings.classes else None
        self.names = tuple(filter(None, (self._image, self.label)))
        self._labels = ClassLabels(settings.classes)

    @property
    def facts(self) -> tuple[Any, ...]:
        """Everything that the sample of a row depends on, as in `Columns`."""
        settings = self.settings
        return self.names, settings.size, settings.channels, settings.classes

    def accepts(self, arrow: Any, name: str, kind: Any) -> bool:
        """Whether a column may have this Arrow type, as in `Columns`."""
        types = arrow.types
        if types.is_dictionary(kind):
            kind = kind.value_type
        if name == self.label and name != self._image:
            return is_label_type(types, kind)
        if types.is_struct(kind):
            names = [kind.field(number).name for number in range(kind.num_fields)]
            if "bytes" not in names:
                return False
            kind = kind.field(names.index("bytes")).type
        return types.is_binary(kind) or types.is_large_binary(kind)

    def of_file(self, classes: ClassNames | None) -> ImageColumns:
        """Return the columns of a file that states these classes, as in `Columns`."""
        made = copy(self)
        if self.label is not None:
            made._labels = self._labels.of_file(classes)
        return made

    def class_of(self, sample: bytes) -> int | None:
        """Return the number of the class in a sample, as in `Columns`."""
        width = self.settings.label_bytes
        return int.from_bytes(sample[:width], "little") if width else None

    def subject_of(self, sample: bytes) -> bytes:
        """Return the image without its class."""
        return sample[self.settings.label_bytes :]

    def text(self, row: Mapping[str, Any]) -> bytes | BadRow:
        """Return the bytes of a row's sample."""
        value = row[self._image]
        if isinstance(value, dict):
            value = value.get("bytes")
        if not isinstance(value, bytes):
            return BadRow(f"holds no image in the column {self._image!r}")
        return self._sample(value, None if self.label is None else row[self.label])

    def file(self, path: Path, name: PurePath) -> bytes | BadRow:
        """Return the bytes of a file's sample. Raises `OSError` as files do."""
        data = read_regular(path, MAX_IMAGE_BYTES)
        folders = name.parts[-2::-1]
        if self.label is not None and not folders:
            return BadRow("is not in a folder that is named after a class")
        known = (folder for folder in folders if folder in self._labels.classes)
        label = next(known, folders[0] if folders else None)
        return self._sample(data, label)

    def _sample(self, data: bytes, label: Any) -> bytes | BadRow:
        number = 0
        if self.label is not None:
            found = self._labels.number(label)
            if isinstance(found, BadRow):
                return found
            number = found
        image = decode_image(data, self.settings)
        if isinstance(image, BadRow):
            return image
        return number.to_bytes(self.settings.label_bytes, "little") + image


class ImageTokenizer:
    """A stand-in for a tokenizer: every byte counts as a token."""

    vocabulary = 256
    token_bytes: TokenBytes = 1
    needs_utf8 = False
    definition = NO_TOKENIZER

    def encode(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        """Return the bytes themselves."""
        return [np.frombuffer(text, np.uint8) for text in texts]

    def line_ends(self) -> np.ndarray:
        """Return no line end: there are no lines."""
        return np.zeros(256, bool)

    def end_token(self) -> None:
        """Return None: an image ends where its bytes do."""


def decode_image(data: bytes, settings: PixelSettings) -> bytes | BadRow:
    """Return the middle square of an image, scaled: size × size × channels bytes.

    The image is rotated as its EXIF tag says; transparent parts become white; of an animation the first
    picture is taken. Raises `UserError` if Pillow is not installed.
    """
    if len(data) > MAX_IMAGE_BYTES:
        return BadRow(f"has more than {MAX_IMAGE_BYTES >> 20} MB")
    pillow = library()
    canvas = _webp_canvas(data)
    if canvas is not None and canvas > MAX_PIXELS:
        return _too_large(canvas)
    bomb = pillow.Image.DecompressionBombWarning
    try:
        with (
            warnings.catch_warnings(action="error", category=bomb),
            pillow.Image.open(io.BytesIO(data), formats=_KINDS) as image,
        ):
            pixels = image.width * image.height
            if pixels > MAX_PIXELS:
                return _too_large(pixels)
            image.load()
            return _scaled(pillow, image, settings)
    except MemoryError:
        raise
    except (bomb, pillow.Image.DecompressionBombError):
        return _too_large(None)
    except pillow.UnidentifiedImageError:
        return BadRow(f"is not an image of a known kind ({', '.join(_KINDS)})")
    # Pillow and the libraries under it raise many kinds of errors for an invalid file.
    except Exception as error:
        reason = first_line(error, 100)
        return BadRow(f"is a damaged image ({reason})")


def _scaled(pillow: Any, image: Any, settings: PixelSettings) -> bytes:
    mode = "L" if settings.channels == 1 else "RGB"
    image = pillow.ImageOps.exif_transpose(image)
    if image.mode.startswith(_SIXTEEN_BIT_MODE):
        image = pillow.Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    transparent = image.mode in _TRANSPARENT_MODES or "transparency" in image.info
    # Cropped before scaling: otherwise pixels outside the square would blend into its edges.
    shorter = min(image.size)
    left, top = ((length - shorter) // 2 for length in image.size)
    image = image.crop((left, top, left + shorter, top + shorter))
    side = (settings.size, settings.size)
    image = image.convert("RGBA" if transparent else mode)
    image = image.resize(side, pillow.Image.Resampling.LANCZOS)
    if transparent:
        background = pillow.Image.new("RGBA", side, _WHITE)
        image = pillow.Image.alpha_composite(background, image).convert(mode)
    return image.tobytes()


def library() -> Any:
    """Return Pillow with its modules that are used here. Raises `UserError` if it is not installed."""
    try:
        import PIL
        import PIL.Image
        import PIL.ImageOps
    except ImportError:
        raise needs("Pillow", "an image", "diffusion") from None
    return PIL


def _webp_canvas(data: bytes) -> int | None:
    """Return the number of pixels in the canvas of an extended WebP file; None for other files. Opening
    such a file allocates the canvas, so its size must be known before."""
    if data[:4] != b"RIFF" or data[8:16] != b"WEBPVP8X" or len(data) < _WEBP_CANVAS.stop:
        return None
    canvas = data[_WEBP_CANVAS]
    width, height = (int.from_bytes(part, "little") + 1 for part in (canvas[:3], canvas[3:]))
    return width * height


def _too_large(pixels: int | None) -> BadRow:
    return BadRow(
        f"has {'too many' if pixels is None else f'{pixels:,}'} pixels; the limit is {MAX_PIXELS:,}"
    )
