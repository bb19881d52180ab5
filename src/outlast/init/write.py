"""From what was found to a commented recipe, and the commands that follow.

In: what ``text`` or ``pictures`` found, and where the recipe is to lie. Out: the file, never one that was
there. Sizes are fitted to the data by a table: little text makes a small vocabulary and a small model.
"""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from outlast.corpus.config import CorpusConfig
from outlast.corpus.source import is_remote
from outlast.errors import ConfigError
from outlast.init.pictures import PicturesFound, look_at_pictures
from outlast.init.text import TextFound, look_at_text
from outlast.recipe.shipped import shipped_recipe

Command = tuple[str, ...]


class Written(NamedTuple):
    """What was found, and what comes next.

    Attributes:
        found: in lines for a person.
        commands: what comes next, each the words behind ``outlast``.
    """

    found: list[str]
    commands: list[Command]


class _Sizes(NamedTuple):
    """What goes with so much text at most."""

    text_bytes: float
    preset: str
    vocab_size: int
    sequence_length: int
    global_batch_size: int
    epochs: int
    most_steps: int
    learning_rate: float


_SIZES = (
    _Sizes(2**20, "tiny", 1000, 64, 16, 20, 2000, 1e-3),
    _Sizes(16 * 2**20, "tiny", 4000, 128, 32, 10, 5000, 1e-3),
    _Sizes(256 * 2**20, "small", 8000, 128, 64, 8, 20_000, 8e-4),
    _Sizes(4 * 2**30, "base", 16_000, 256, 128, 4, 100_000, 4e-4),
    _Sizes(float("inf"), "base", 32_000, 512, 256, 1, 500_000, 4e-4),
)
_LEAST_STEPS = 200
_BYTES_PER_TOKEN = 3
_BYTES_AND_SPECIAL = 261
_FEWEST_FOR_SENTENCEPIECE = 2**20
_SMALL_SIDE = 64
_MANY_PICTURES = 100_000


@dataclass(frozen=True)
class _Places:
    """Where things lie, as the recipe and as the commands name them."""

    recipe: Path
    data: Path
    run: Path

    def from_recipe(self, path: str | Path) -> str:
        """Return a path as it stands in the recipe: relative where it lies below the recipe's folder."""
        if is_remote(str(path)):
            return str(path)
        folder, place = self.recipe.absolute().parent, Path(path).expanduser().absolute()
        return place.relative_to(folder).as_posix() if place.is_relative_to(folder) else str(place)


def write_shipped(name: str, out: Path) -> Written:
    """Write one of the recipes that the package has. Raises ConfigError: no such recipe, or a file there."""
    _create(out, shipped_recipe(name, str(out)))
    return Written([f"the recipe {name}; its head has the commands"], [("recipe", "show", str(out))])


def write_for_text(path: str, out: Path) -> Written:
    """Look at text and write a recipe for it. Raises as ``look_at_text``; ConfigError: a file is there."""
    _refuse_existing(out)
    places = _places(out)
    found = look_at_text(path, _own_files(path, places))
    _create(out, _text_recipe(found, places))
    commands: list[Command] = [("prepare", str(out), "--out", str(places.data)), _train(places)]
    return Written(found.describe(), commands)


def write_for_pictures(path: str, out: Path) -> Written:
    """Look at pictures and write a recipe for them. Raises as ``look_at_pictures``; ConfigError."""
    _refuse_existing(out)
    places = _places(out)
    found = look_at_pictures(path)
    _create(out, _pictures_recipe(found, places))
    return Written(found.describe(), [_pack(found, places), _train(places)])


def _places(out: Path) -> _Places:
    """Choose folders for data and run beside the recipe, none that another recipe uses."""
    taken = any((out.parent / name).exists() for name in ("data", "run"))
    prefix = f"{out.stem}-" if taken else ""
    return _Places(out, out.parent / f"{prefix}data", out.parent / f"{prefix}run")


def _own_files(path: str, places: _Places) -> tuple[str, ...]:
    """Return the patterns of what lies in the corpus' folder and is none of it: recipe, data and run."""
    root = Path(path).expanduser().absolute()
    folder = places.recipe.absolute().parent
    if is_remote(path) or not folder.is_relative_to(root):
        return ()
    inside = folder.relative_to(root)
    names = (places.recipe.name, f"{places.data.name}/**", f"{places.run.name}/**")
    return tuple((inside / name).as_posix() for name in names)


def _pack(found: PicturesFound, places: _Places) -> Command:
    held_out = ("--validation", found.validation) if found.validation else ()
    return ("shards", "images", found.source, *held_out, "--out", str(places.data))


def _train(places: _Places) -> Command:
    return ("train", str(places.recipe), "--run-dir", str(places.run))


def _refuse_existing(out: Path) -> None:
    if out.exists():
        raise ConfigError(
            "This exists, and nothing is overwritten.", where=str(out), remedy="name another --out"
        )


def _create(out: Path, text: str) -> None:
    _refuse_existing(out)
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"The recipe cannot be written: {error.strerror}.", where=str(out)) from None


def _text_recipe(found: TextFound, places: _Places) -> str:
    sizes = next(sizes for sizes in _SIZES if found.text_bytes <= sizes.text_bytes)
    num_tokens = found.text_bytes / _BYTES_PER_TOKEN
    batch_tokens = sizes.sequence_length * sizes.global_batch_size
    steps = min(max(round(sizes.epochs * num_tokens / batch_tokens), _LEAST_STEPS), sizes.most_steps)
    steps = round(steps, -2)
    held_out = found.corpus.validation_fraction
    rest = "of the documents, chosen by their text" if held_out else "too few documents to hold any out"
    tokenizer, why = _tokenizer(found, sizes)
    return _commented(
        [*found.describe(), "", "All keys: outlast recipe schema --markdown. What this file comes to:", ""],
        places,
        [
            ("corpus", _corpus_keys(found.corpus, places, f"held out: {held_out:.0%} {rest}")),
            (
                "tokenizer",
                [(key, value, why if key == "library" else "") for key, value in tokenizer.items()],
            ),
            (
                "stream",
                [
                    ("manifest", places.from_recipe(places.data / "manifest.json"), "what prepare makes"),
                    ("sequence_length", sizes.sequence_length, "tokens in an example"),
                    ("global_batch_size", sizes.global_batch_size, "examples in a step"),
                ],
            ),
            (
                "model",
                [
                    ("architecture", "roberta", "or bert, bigbird, modernbert"),
                    ("preset", sizes.preset, "tiny, small, base, large: for so much text"),
                    ("max_positions", sizes.sequence_length, "the longest text the model will read"),
                ],
            ),
            (
                "optimizer",
                [
                    ("learning_rate", sizes.learning_rate, "the highest"),
                    ("warmup_steps", steps // 10, "until it is reached"),
                ],
            ),
            (
                "training",
                [
                    (
                        "total_steps",
                        steps,
                        f"about {steps * batch_tokens / num_tokens:.0f} times through the text",
                    ),
                    *_evaluations(steps, held_out),
                ],
            ),
        ],
    )


def _corpus_keys(config: CorpusConfig, places: _Places, held_out: str) -> list[tuple[str, Any, str]]:
    plain = CorpusConfig()
    notes = {
        "path": "below this file's folder, or absolute",
        "documents": "a file is a document" if config.documents == "file" else "blank lines part them",
        "include": "the most frequent ending",
        "exclude": "what this recipe makes",
        "undecodable": "and count them",
        "text_field": "the field that holds the text",
        "validation_fraction": held_out,
    }
    shown = ["path", "format", *(["documents"] if config.documents != "auto" else []), "encoding"]
    shown += ["text_field"] if config.format == "jsonl" else []
    others = ("include", "exclude", "undecodable", "validation_fraction")
    shown += [key for key in others if getattr(config, key) != getattr(plain, key)]
    values = {key: getattr(config, key) for key in shown}
    values["path"] = places.from_recipe(values["path"])
    return [(key, value, notes.get(key, "")) for key, value in values.items()]


def _evaluations(steps: int, held_out: float) -> list[tuple[str, Any, str]]:
    if not held_out:
        return []
    return [("evaluation_interval_steps", max(steps // 5, 1), "held-out loss now and then")]


def _tokenizer(found: TextFound, sizes: _Sizes) -> tuple[dict[str, Any], str]:
    """Return the table and why it is so."""
    if found.is_spaced or found.text_bytes < _FEWEST_FOR_SENTENCEPIECE:
        # Bytes and the special pieces are in any vocabulary. Each word becomes a piece in the end, each
        # character of several bytes one or two: text that holds few of them gives no larger vocabulary.
        most = _BYTES_AND_SPECIAL + (found.num_words if found.is_spaced else 2 * found.num_characters)
        vocab_size = min(sizes.vocab_size, most)
        table = {"library": "tokenizers", "kind": "bpe", "byte_level": True, "vocab_size": vocab_size}
        return table, "pieces of bytes: nothing is unknown"
    vocab_size = max(sizes.vocab_size, round(found.num_characters * 1.25, -2) + 500)
    table = {"library": "sentencepiece", "kind": "unigram", "vocab_size": vocab_size}
    return table, "the script has no spaces between words"


def _pictures_recipe(found: PicturesFound, places: _Places) -> str:
    small = found.short_side <= _SMALL_SIDE
    batch = 128 if found.num_images >= 12_800 else 32
    while batch > found.num_images:
        batch //= 2
    if small:
        side = max(found.short_side - found.short_side % 4, 8)
        model: list[tuple[str, Any, str]] = [
            ("preset", "resnet18", ""),
            ("stem", "small", "for small pictures"),
            ("depths", [1, 1, 1], "blocks of each stage"),
            ("widths", [32, 64, 128], "channels of each stage"),
        ]
    else:
        side = min(found.short_side // 32 * 32, 224)
        preset = "resnet50" if found.num_images >= _MANY_PICTURES else "resnet18"
        model = [("preset", preset, "resnet18, resnet34 or resnet50")]
    crop = "padded" if small else "random_resized"
    return _commented(
        [*found.describe(), "", "All keys: outlast recipe schema --markdown. What this file comes to:", ""],
        places,
        [
            (
                "stream",
                [
                    (
                        "manifest",
                        places.from_recipe(places.data / "manifest.json"),
                        "what shards images makes",
                    ),
                    ("packing", "images", ""),
                    ("global_batch_size", batch, "pictures in a step"),
                ],
            ),
            ("stream.images", [("image_size", side, "pixels"), ("crop", crop, "what training shows")]),
            ("model", [("architecture", "resnet", ""), *model]),
            ("objective", [("kind", "classification", ""), ("label_smoothing", 0.1, "")]),
            (
                "optimizer",
                [
                    ("name", "sgd", ""),
                    ("learning_rate", round(0.1 * batch / 128, 6), "the highest"),
                    ("weight_decay", 5e-4, ""),
                    ("schedule", "cosine", ""),
                    ("warmup_epochs", 1, "until it is reached"),
                ],
            ),
            ("training", [("epochs", 30, "passes over the pictures")]),
        ],
        first=_pack(found, places),
    )


def _commented(
    head: Sequence[str],
    places: _Places,
    tables: Sequence[tuple[str, list[tuple[str, Any, str]]]],
    first: Command | None = None,
) -> str:
    prepare = first or ("prepare", str(places.recipe), "--out", str(places.data))
    lines = [f"# {line}".rstrip() for line in head]
    for words in (prepare, _train(places), ("recipe", "show", str(places.recipe))):
        lines.append(f"#   {shlex.join(['outlast', *words])}")
    for name, keys in tables:
        lines += ["", f"[{name}]"]
        settings = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value, _ in keys]
        width = max(map(len, settings))
        for setting, (_, _, note) in zip(settings, keys, strict=True):
            lines.append(f"{setting:<{width}}  # {note}" if note else setting)
    return "\n".join(lines) + "\n"
