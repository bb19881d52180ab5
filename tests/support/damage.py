"""Damage to a folder of shards: one random thing that happens to files.

In: the folder of a data set, an older one of the same shape, a source of randomness. Out: the folder damaged,
and the name of what was done.
"""

import random
import shutil
from pathlib import Path

KINDS = ("flip", "cut", "lengthen", "delete", "swap", "older", "zeros", "manifest flip", "manifest cut")


def damage(folder: Path, older: Path, rng: random.Random) -> str:
    """Damage a data set in one random way; return which."""
    kind = rng.choice(KINDS)
    target = rng.choice(shards_of(folder))
    if kind.startswith("manifest"):
        target = folder / "manifest.json"
    content = bytearray(target.read_bytes())
    match kind.removeprefix("manifest "):
        case "flip":
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            target.write_bytes(content)
        case "cut":
            target.write_bytes(content[: rng.randrange(len(content))])
        case "lengthen":
            target.write_bytes(bytes(content) + rng.randbytes(rng.randint(1, 50)))
        case "zeros":
            begin = rng.randrange(len(content) - 64)
            content[begin : begin + 64] = bytes(64)
            target.write_bytes(content)
        case "delete":
            target.unlink()
        case "swap":
            first, second = rng.sample(shards_of(folder), 2)
            first.rename(folder / "aside")
            second.rename(first)
            (folder / "aside").rename(second)
        case _:
            shutil.copyfile(older / target.name, target)
    return kind


def shards_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))
