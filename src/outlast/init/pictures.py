"""What a folder of pictures is: how many, of which classes and sizes, and whether some are held out.

In: what ``outlast shards images`` takes, or a folder of its splits. Out: ``PicturesFound``.
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import median

from outlast.errors import ConfigError, CorpusError
from outlast.images.decode import Undecodable, open_picture
from outlast.images.sources import Plan, plan_shards
from outlast.storage.regular import read_whole

_LOOKED_AT = 64
_MOST_PIXELS = 2**26
_TRAIN = ("train", "training")
_HELD_OUT = ("validation", "valid", "val", "dev", "test")


@dataclass(frozen=True, kw_only=True)
class PicturesFound:
    """A folder of pictures, as it was found.

    Attributes:
        source: the pictures to train on.
        validation: those that are held out; None where they lie in no folder of their own.
        short_side: the median of the shorter sides, in pixels.
    """

    source: str
    validation: str | None
    num_images: int
    num_classes: int
    short_side: int

    def describe(self) -> list[str]:
        """Return what was found in lines for a person."""
        held_out = f"held out: {self.validation}" if self.validation else "none are held out"
        return [
            f"{self.num_images} pictures of {self.num_classes} classes in {self.source}; {held_out}",
            f"the shorter side of most is about {self.short_side} pixels",
        ]


def look_at_pictures(path: str) -> PicturesFound:
    """Look at pictures. Raises CorpusError, ConfigError."""
    root = Path(path).expanduser()
    folders = (
        {folder.name.lower(): folder for folder in root.iterdir() if folder.is_dir()} if root.is_dir() else {}
    )
    source = next((str(folders[name]) for name in _TRAIN if name in folders), str(root))
    validation = None
    if source != str(root):
        validation = next((str(folders[name]) for name in _HELD_OUT if name in folders), None)
    plan = plan_shards({"train": source}, most_images=2**20, most_bytes=2**62, seed=0)
    if plan.classes is None or len(plan.classes) < 2:
        raise ConfigError(
            "The pictures do not name two classes or more.",
            where=source,
            expected="a folder for each class",
            remedy="name the folder above those of the classes",
        )
    num_images = sum(len(share.files) or share.stop_row - share.first_row for share in plan.shares)
    return PicturesFound(
        source=source,
        validation=validation,
        num_images=num_images,
        num_classes=len(plan.classes),
        short_side=_short_side(plan, source),
    )


def _short_side(plan: Plan, source: str) -> int:
    files = [file.path for share in plan.shares for file in share.files]
    sides: list[int] = []
    for path in files[:: max(len(files) // _LOOKED_AT, 1)]:
        try:
            picture = open_picture(memoryview(read_whole(path)), max_pixels=_MOST_PIXELS)
        except Undecodable:
            continue
        sides.append(min(picture.height, picture.width))
    if files and not sides:
        raise CorpusError("No picture can be decoded.", where=source, remedy="look at one of them")
    return round(median(sides)) if sides else 224
