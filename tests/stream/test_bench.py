"""What limits a stream is measured and named, within the time given; nothing stays behind."""

import json
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from outlast.cli.main import main
from outlast.storage import LocalStore
from outlast.stream.bench import measure_stream
from outlast.stream.config import StreamConfig
from support.datasets import write_counting_data
from support.faults import FaultyProxy
from support.files import serving_folder
from support.images import write_images


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_slow_store_is_the_limit_and_nothing_is_kept(tmp_path: Path, elsewhere: Path) -> None:
    write_counting_data(LocalStore(tmp_path / "data"), [[400]] * 6)
    with (
        serving_folder(tmp_path / "data") as url,
        FaultyProxy("127.0.0.1", int(url.rpartition(":")[2])) as proxy,
    ):
        proxy.inject(lambda _: "delayed", matching=lambda _, path: "train" in path)
        config = StreamConfig(manifest=f"{proxy.url}/manifest.json", global_batch_size=4, sequence_length=32)
        rates = measure_stream(config, seconds=2.0, step_seconds=0.001)
    assert rates.limit == "store"
    assert rates.verdict.startswith("The limit is store: ")
    assert "stream.cache_dir" in rates.verdict
    assert rates.latency_seconds >= 0.3
    assert rates.first_batch_seconds is not None
    assert rates.first_batch_seconds >= 0.3
    assert rates.decode_examples_per_second is not None
    assert rates.store_examples_per_second < rates.decode_examples_per_second
    assert 0 <= rates.waiting_share < 1
    assert list(elsewhere.iterdir()) == []


def test_the_limit_is_the_slowest_part(tmp_path: Path) -> None:
    manifest = write_images(tmp_path, [30, 30, 4])
    line = ["stream", "bench", manifest, "--seconds", "1", "--batch", "8", "--image-size", "64", "--json"]
    done = CliRunner().invoke(main, line, catch_exceptions=False)
    assert done.exit_code == 0
    rates = json.loads(done.stdout)
    # Which of them it is, is a matter of the machine: that it is the slowest is not.
    alone = {
        "disk": rates["store_examples_per_second"],
        "decoding": rates["decode_examples_per_second"],
        "memory": rates["copy_examples_per_second"],
    }
    assert rates["limit"] == min(alone, key=lambda name: alone[name])
    assert rates["verdict"].startswith(
        f"The limit is {rates['limit']}: {min(alone.values()):,.0f} examples/s"
    )
    assert rates["examples_per_second"] > 0
    printed = CliRunner().invoke(main, line[:-1], catch_exceptions=False).stdout
    assert "The limit is " in printed
    assert "disk megabytes per second" in printed
    assert not any(word in printed for word in ("the store", "store megabytes", "cache_dir"))


def test_the_cache_that_is_named_is_kept(tmp_path: Path) -> None:
    write_counting_data(LocalStore(tmp_path / "data"), [[400]] * 3)
    with serving_folder(tmp_path / "data") as url:
        config = StreamConfig(
            manifest=f"{url}/manifest.json",
            global_batch_size=4,
            sequence_length=32,
            cache_dir=str(tmp_path / "kept"),
        )
        assert measure_stream(config, seconds=1.0).examples_per_second > 0
    assert len(list((tmp_path / "kept").iterdir())) == 3
