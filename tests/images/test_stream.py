"""Batches of images: the right pictures, exact on resume, elastic over processes and threads, and what stands
in for an image that does not decode.
"""

import itertools
import json
import logging
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlast.errors import ConfigError, ShardError
from outlast.images.config import ImagesConfig, ImageStreamConfig
from outlast.images.crops import draw_numbers, training_crop
from outlast.images.decode import open_picture
from outlast.images.manifest import read_image_manifest
from outlast.images.pixels import RawPixels
from outlast.images.repack import repack_images
from outlast.images.rows import ImageRows
from outlast.images.stream import ImageStream, open_images
from outlast.stream.config import StreamConfig
from outlast.stream.loader import TokenStream
from outlast.stream.order import Order
from support.files import serving_folder
from support.images import jpeg, picture, write_images

SHARDS = (20, 13, 31, 9)
NUM_EXAMPLES = sum(SHARDS[:-1])
BROKEN = (3, 22, 40)
IS_LIKE = 25
"""Mean difference of a picture and its JPEG, cropped alike. Different pictures differ by 80."""


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_images(tmp_path_factory.mktemp("images"), SHARDS)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_images(tmp_path_factory.mktemp("broken"), SHARDS, broken=(*BROKEN, NUM_EXAMPLES + 2))


def make_stream(manifest: str, **options: Any) -> ImageStream:
    arguments: dict[str, Any] = {"global_batch_size": 12, "prefetch_batches": 3, **options}
    processes: dict[str, Any] = {"seed": 0} | {
        name: arguments.pop(name)
        for name in ("seed", "split", "process_index", "process_count")
        if name in arguments
    }
    images: dict[str, Any] = {"image_size": 24, "max_undecodable": 0.2}
    images |= {name: arguments.pop(name) for name in [*arguments] if hasattr(ImagesConfig, name)}
    config = ImageStreamConfig(
        manifest=manifest, packing="images", images=ImagesConfig(**images), **arguments
    )
    return ImageStream(config, **processes)


def take(stream: ImageStream, start: int, count: int) -> list[bytes]:
    batches = itertools.islice(stream.batches_from(start), count)
    return [batch["images"].tobytes() + batch["labels"].tobytes() for batch in batches]


def test_an_epoch_holds_every_image_once_and_the_next_in_another_order(manifest: str) -> None:
    stream = make_stream(manifest, global_batch_size=8)
    assert stream.num_examples == NUM_EXAMPLES == 8 * 8
    epochs = [
        np.concatenate([stream.batch(step)["labels"] for step in range(8 * epoch, 8 * epoch + 8)]).tolist()
        for epoch in range(3)
    ]
    assert all(sorted(epoch) == list(range(NUM_EXAMPLES)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_a_row_shows_the_crop_of_its_numbers(manifest: str) -> None:
    stream = make_stream(manifest, crop="padded", image_size=32)
    batch = stream.batch(5)
    assert batch["images"].shape == (12, 32, 32, 3)
    assert (batch["images"].dtype, batch["labels"].dtype) == (np.uint8, np.int32)
    numbers = draw_numbers(stream._key, 5, 1, 0, 12).tolist()  # pyright: ignore[reportPrivateUsage]
    mirrored = 0
    for image, number, row in zip(batch["images"], batch["labels"].tolist(), numbers, strict=True):
        pixels = picture(number, 40 + number % 7, 30 + number % 5)
        crop = training_crop(pixels.shape[1], pixels.shape[0], stream.rows.config, row)
        box, expected = crop.box, np.zeros((32, 32, 3), np.uint8)
        part = pixels[box.top : box.top + box.height, box.left : box.left + box.width]
        expected[crop.top : crop.top + box.height, crop.left : crop.left + box.width] = part
        expected = expected[:, ::-1] if crop.is_mirrored else expected
        mirrored += crop.is_mirrored
        assert np.abs(image.astype(int) - expected).mean() < IS_LIKE, number
        assert np.abs(image.astype(int) - expected[::-1]).mean() > IS_LIKE, "the measure tells"
    assert 0 < mirrored < 12


def test_every_position_restored_into_a_fresh_reader_gives_the_same_tail(manifest: str) -> None:
    num_steps = 14  # into the third epoch
    whole = take(make_stream(manifest), 0, num_steps)
    for start in range(num_steps):
        assert take(make_stream(manifest), start, num_steps - start) == whole[start:], start


@pytest.mark.parametrize("lanes", [1, 2])
def test_threads_and_prefetch_change_nothing(manifest: str, lanes: int) -> None:
    identity = {"num_lanes": lanes, "window_examples": 20}
    whole = take(make_stream(manifest, decode_threads=1, reader_threads=1, **identity), 0, 9)
    for decode, readers, prefetch in ((2, 1, 1), (7, 3, 9), (1, 4, 2)):
        options = {"decode_threads": decode, "reader_threads": readers, "prefetch_batches": prefetch}
        assert take(make_stream(manifest, **options, **identity), 0, 9) == whole
        assert take(make_stream(manifest, **options, **identity), 4, 5) == whole[4:]


@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_the_rows_of_all_processes_are_the_batch(broken: str, count: int) -> None:
    whole = [make_stream(broken).batch(step) for step in range(7)]
    for index in range(count):
        own = make_stream(broken, process_index=index, process_count=count)
        rows = slice(index * 12 // count, (index + 1) * 12 // count)
        for step, batch in enumerate(whole):
            for name, array in own.batch(step).items():
                assert np.array_equal(array, batch[name][rows]), (step, index, name)


def test_an_undecodable_image_is_replaced_by_the_next_of_its_window(
    manifest: str, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"num_lanes": 2, "window_examples": 16}
    sound, damaged = make_stream(manifest, **options), make_stream(broken, **options)
    replaced = 0
    for step in range(11):
        batch, expected = damaged.batch(step), sound.batch(step)
        for row, label in enumerate(expected["labels"].tolist()):
            if label not in BROKEN:
                assert batch["labels"][row] == label, "no other row moves"
                assert np.array_equal(batch["images"][row], expected["images"][row])
                continue
            replaced += 1
            lane = row // 6
            assert isinstance(sound.order, Order)
            (span,) = sound.order.spans(step * 6 + row % 6, 1)
            window = sound.order.window(lane, span.epoch, span.window)
            labels = [
                sum(SHARDS[:s]) + r
                for s, r in zip(window.shards.tolist(), window.records.tolist(), strict=True)
            ]
            following = (labels * 2)[span.offset + 1 :]
            assert batch["labels"][row] == next(label for label in following if label not in BROKEN)
    assert replaced >= 5
    assert len(damaged.rows.undecodable) == len(BROKEN)
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == len(BROKEN)
    for number in BROKEN:
        assert any(f"'{number:06d}.jpg'" in text and "shard-0000" in text for text in warnings), warnings
    assert all("another takes its place" in text for text in warnings)


def test_in_evaluation_no_image_is_said_to_take_the_place_of_another(
    broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in make_stream(broken).evaluation_batches():
        pass
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == len(BROKEN)
    assert all("counts with weight 0" in text and "takes its place" not in text for text in warnings)


def test_a_replaced_row_is_the_same_after_a_resume_and_with_any_threads(broken: str) -> None:
    whole = take(make_stream(broken), 0, 12)
    for start, threads in itertools.product((1, 5, 8), (1, 3)):
        assert take(make_stream(broken, decode_threads=threads), start, 12 - start) == whole[start:]


def test_too_many_undecodable_images_stop_the_run(broken: str) -> None:
    stream = make_stream(broken, max_undecodable=0.03)
    # The second one stops it; threads that are at work may have found more by then.
    with pytest.raises(ShardError, match=r"[2-9] of 64 images could not be decoded") as caught:
        take(stream, 0, 6)
    assert "shard-0000" in str(caught.value.where)
    assert "stream.images.max_undecodable" in str(caught.value)


def test_a_window_without_a_picture_stops_the_run(tmp_path: Path) -> None:
    url = write_images(tmp_path, [4, 4, 1], broken=range(8))
    stream = make_stream(url, global_batch_size=2, max_undecodable=1.0, window_examples=4)
    with pytest.raises(ShardError, match="None of the images of a window") as caught:
        stream.batch(0)
    assert "shard-0000" in str(caught.value.where)


def test_evaluation_counts_every_example_once(broken: str) -> None:
    stream = make_stream(broken, split="validation", global_batch_size=4, image_size=16)
    batches = list(stream.evaluation_batches())
    weights = np.concatenate([batch["example_weights"] for batch in batches])
    labels = np.concatenate([batch["labels"] for batch in batches])
    indices = np.concatenate([batch["example_index"] for batch in batches])
    assert weights.tolist() == [1, 1, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0], "the third is broken, three fill up"
    expected = [NUM_EXAMPLES + number for number in range(9)]
    assert labels[weights == 1].tolist() == [label for label in expected if label != NUM_EXAMPLES + 2]
    assert indices[:9].tolist() == list(range(9))
    again = list(
        make_stream(
            broken, split="validation", global_batch_size=4, image_size=16, seed=7
        ).evaluation_batches()
    )
    for first, second in zip(batches, again, strict=True):
        assert all(np.array_equal(first[name], second[name]) for name in first)


def test_evaluation_shows_the_middle_of_the_picture(manifest: str) -> None:
    stream = make_stream(manifest, split="validation", global_batch_size=9, image_size=28)
    images = stream.batch(0)["images"], next(stream.evaluation_batches())["images"]
    number = NUM_EXAMPLES
    found = open_picture(memoryview(jpeg(number, 40 + number % 7, 30 + number % 5)), max_pixels=10**6)
    assert images[1][0].shape == (28, 28, 3)
    side = min(found.width, found.height) * 28 // 32
    pixels = picture(number, found.width, found.height)
    top, left = (found.height - side) // 2, (found.width - side) // 2
    middle = pixels[top : top + side, left : left + side]
    rows = np.arange(28) * side // 28
    assert np.abs(images[1][0].astype(int) - middle[rows][:, rows]).mean() < IS_LIKE


def test_open_images_is_the_stream(manifest: str) -> None:
    options: dict[str, Any] = {"global_batch_size": 6, "image_size": 20}
    found = list(itertools.islice(open_images(manifest, start_step=3, seed=4, **options), 3))
    stream = make_stream(manifest, seed=4, max_undecodable=0.01, **options)
    for step, batch in enumerate(found, 3):
        assert all(np.array_equal(batch[name], stream.batch(step)[name]) for name in ("images", "labels"))


def test_every_key_of_the_tables_is_an_argument_and_others_are_refused(manifest: str) -> None:
    keys: dict[str, Any] = {"crop": "padded", "padding": 2, "flip": False, "decode_threads": 1}
    found = next(open_images(Path(manifest), global_batch_size=6, image_size=20, window_examples=8, **keys))
    expected = make_stream(manifest, global_batch_size=6, image_size=20, window_examples=8, **keys).batch(0)
    assert np.array_equal(found["images"], expected["images"])
    mistakes: list[dict[str, Any]] = [{"imagesize": 20}, {"images": 20}]
    for mistake in mistakes:
        with pytest.raises(ConfigError, match="did you mean 'image_size'"):
            open_images(manifest, global_batch_size=6, **mistake)
    with pytest.raises(ConfigError, match="did you mean 'reader_threads'"):
        open_images(manifest, global_batch_size=6, readerthreads=2)
    with pytest.raises(
        ConfigError, match=r"zzz: unknown argument; known: .*flip, global_batch_size, image_size"
    ):
        open_images(manifest, global_batch_size=6, zzz=2)
    with pytest.raises(ConfigError, match="belongs to text"):
        open_images(manifest, global_batch_size=6, sequence_length=20)


def test_a_remote_set_gives_the_same_bytes(manifest: str, tmp_path: Path) -> None:
    expected = take(make_stream(manifest), 0, 6)
    with serving_folder(Path(manifest).parent) as url:
        remote = make_stream(f"{url}/manifest.json", cache_dir=str(tmp_path))
        assert take(remote, 0, 6) == expected
    entries = read_image_manifest(manifest)[0].shards("train")
    names = {name for entry in entries for name in (entry.sha256, entry.index.sha256)}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_pixels_give_the_same_rows(broken: str, tmp_path: Path) -> None:
    def stored(short_side: int) -> str:
        store = RawPixels(short_side=short_side, max_pixels=2**26)
        return repack_images(broken, str(tmp_path / f"{short_side}"), store, num_processes=1)

    whole, shrunk = stored(100), stored(20)
    assert take(make_stream(whole, crop="padded"), 0, 7) == take(make_stream(broken, crop="padded"), 0, 7)
    for step in range(6):
        first, second = (make_stream(url, crop="center").batch(step) for url in (shrunk, broken))
        assert np.array_equal(first["labels"], second["labels"]), "also where one stands in for another"
        differences = np.abs(first["images"].astype(int) - second["images"]).mean(axis=(1, 2, 3))
        assert (differences < IS_LIKE).all()


def test_flipped_bits_and_wrong_tables_are_refused(manifest: str, tmp_path: Path) -> None:
    copy = write_images(tmp_path / "copy", SHARDS)
    damaged = bytearray((tmp_path / "copy" / "shard-000001.tar").read_bytes())
    damaged[5000] ^= 1
    (tmp_path / "copy" / "shard-000001.tar").write_bytes(damaged)
    with pytest.raises(ShardError, match="fails the manifest's sha256"):
        [make_stream(copy).batch(step) for step in range(6)]
    with pytest.raises(ShardError, match="holds 'images', not text"):
        TokenStream(StreamConfig(manifest=manifest), seed=0)
    with pytest.raises(ConfigError, match="cannot be packed as blocks"):
        ImageStream(ImageStreamConfig(manifest=manifest), seed=0)
    with pytest.raises(ConfigError, match=r"set stream\.global_batch_size to 10 or 15"):
        make_stream(manifest, process_count=5)


def test_identity_holds_what_changes_examples_and_survives_json(manifest: str) -> None:
    identity = make_stream(manifest).identity
    assert json.loads(json.dumps(identity)) == identity
    for name, value in {"crop": "padded", "scale": (0.2, 1.0), "flip": False, "max_pixels": 99999}.items():
        assert make_stream(manifest, **{name: value}).identity != identity, name
    for name, value in {"decode_threads": 3, "max_undecodable": 0.5, "prefetch_batches": 9}.items():
        assert make_stream(manifest, **{name: value}).identity == identity, name


KILLED = """
import sys
from outlast.images.stream import ImageStream
from outlast.images.config import ImagesConfig, ImageStreamConfig
config = ImageStreamConfig(manifest=sys.argv[1], packing="images", global_batch_size=12,
                           cache_dir=sys.argv[2], images=ImagesConfig(image_size=24))
for step, batch in enumerate(ImageStream(config, seed=0).batches_from(0)):
    print(step, flush=True)
"""


@pytest.mark.parametrize("steps", [0, 3])
def test_a_killed_reader_leaves_nothing_to_clean(manifest: str, tmp_path: Path, steps: int) -> None:
    expected = take(make_stream(manifest), 0, 6)
    cache = tmp_path / "cache"
    with serving_folder(Path(manifest).parent) as url:
        line = [sys.executable, "-c", KILLED, f"{url}/manifest.json", str(cache)]
        process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
        with process:
            assert process.stdout is not None
            while int(process.stdout.readline()) < steps:
                pass
            process.send_signal(signal.SIGKILL)
        assert take(make_stream(f"{url}/manifest.json", cache_dir=str(cache)), 0, 6) == expected
    assert all(len(path.name) == 64 for path in cache.iterdir()), "verified files and nothing else"


def test_padding_has_what_a_batch_of_evaluation_has(manifest: str) -> None:
    rows = make_stream(manifest).rows
    assert isinstance(rows, ImageRows)
    padding = rows.padding(2)
    assert {name: (array.shape, str(array.dtype)) for name, array in padding.items()} == {
        "images": ((2, 24, 24, 3), "uint8"),
        "labels": ((2,), "int32"),
        "example_weights": ((2,), "float32"),
    }
    assert not any(array.any() for array in padding.values())
