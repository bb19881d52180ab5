"""JPEGs cut into tiles without loss, by jpegtran: the same coefficients, coded anew with restart markers.

In: the bytes of an image file. Out: a baseline JPEG with a tile index whose pixels are the same to the last
bit, which is checked; None for whatever cannot be had so: other formats, CMYK, 12 bits, arithmetic coding,
damaged files. Metadata stay (Exif, ICC); what stands behind the end of the picture does not.
"""

import shutil
import signal
import subprocess
from dataclasses import dataclass

from outlast.errors import ConfigError, OutlastError
from outlast.images.jpeg import read_head
from outlast.images.tiles import add_tile_index, choose_interval, read_grid

_PROGRAM = "jpegtran"
_FROM_OUTSIDE = (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)
"""Signals that a program does not bring upon itself."""
_MOST_SCANS = "100"
"""A progressive JPEG has about ten; one of thousands is made to keep a decoder busy."""


@dataclass(frozen=True, kw_only=True)
class TiledJpegs:
    """A store of JPEGs in tiles.

    Attributes:
        max_pixels: a larger picture is left as it is.
    """

    max_pixels: int
    field: None = None
    """The name of an image stays."""

    def versions(self) -> dict[str, str]:
        """Return what the bytes depend on beside this package. Raises ConfigError without jpegtran."""
        try:
            found = subprocess.run([_path(), "-version"], capture_output=True, check=True, timeout=60)
        except (OSError, subprocess.SubprocessError) as error:
            raise ConfigError(f"{_PROGRAM} cannot be run: {error}", remedy=_REMEDY) from None
        lines = (found.stderr + found.stdout).decode(errors="replace").splitlines()
        return {_PROGRAM: lines[0] if lines else "unknown"}

    def convert(self, content: bytes) -> bytes | None:
        """Return a JPEG in tiles, None where the image has to stay as it is.

        Raises:
            ConfigError: there is no jpegtran.
            OutlastError: somebody ended it.
        """
        head, grid = read_head(memoryview(content)), read_grid(memoryview(content))
        if head is None or grid is None or not head.is_plain or head.width * head.height > self.max_pixels:
            return None
        interval = choose_interval(grid)
        if interval is None:
            return None
        command = [_path(), "-copy", "all", "-optimize", "-maxscans", _MOST_SCANS, "-restart", f"{interval}B"]
        # A warning has the exit status 2: what one program reads with a guess, another may read otherwise.
        transcoded = subprocess.run(command, input=content, capture_output=True, check=False)
        if (
            -transcoded.returncode in _FROM_OUTSIDE
        ):  # says nothing of the picture, which another try would store
            raise OutlastError(
                f"{_PROGRAM} was ended by {signal.Signals(-transcoded.returncode).name}.",
                remedy="the same line again goes on; is there memory enough?",
            )
        tiled = add_tile_index(transcoded.stdout) if transcoded.returncode == 0 else None
        return tiled if tiled is not None and _are_same(content, tiled) else None


_REMEDY = "install libjpeg-turbo's programs: apt-get install libjpeg-turbo-progs, or brew install jpeg-turbo"


def _path() -> str:
    path = shutil.which(_PROGRAM)
    if path is None:
        raise ConfigError(f"There is no {_PROGRAM}, which cuts JPEGs into tiles.", remedy=_REMEDY)
    return path


def _are_same(first: bytes, second: bytes) -> bool:
    import numpy as np
    import simplejpeg

    try:
        one, other = (simplejpeg.decode_jpeg(content, "RGB") for content in (first, second))
    except ValueError:
        return False
    return np.array_equal(one, other)
