"""The streams under PyTorch: every batch once and in order, whatever the workers and the processes."""

import itertools
import multiprocessing
import pickle
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlast import open_images, open_stream
from outlast.errors import ConfigError, ShardError
from outlast.storage import LocalStore
from support.datasets import write_counting_data
from support.images import write_images

torch: Any = pytest.importorskip("torch", reason="torch is not installed (pip install outlast[examples])")

from torch.utils.data import DataLoader, IterableDataset  # noqa: E402

from outlast.pytorch import ImageDataset, StreamDataset, TensorBatch  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # on a machine of two cores
    # Tests before these may have used jax, which warns of every fork; what reads batches knows no jax.
    pytest.mark.filterwarnings("ignore:os.fork"),
]

TEXT: dict[str, Any] = {"global_batch_size": 6, "sequence_length": 12, "seed": 3}
IMAGES: dict[str, Any] = {"global_batch_size": 4, "image_size": 16, "seed": 3}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("text")
    write_counting_data(LocalStore(folder), [[30, 7, 44], [101], [3, 3]])
    return str(folder / "manifest.json")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_images(tmp_path_factory.mktemp("images"), [9, 8, 5])


def steps_of(batches: Iterable[TensorBatch]) -> list[int]:
    return [batch.step for batch in batches]


def assert_equal(found: Iterable[TensorBatch], expected: Iterable[dict[str, Any]]) -> None:
    for batch, arrays in zip(found, expected, strict=True):
        assert batch.keys() == arrays.keys()
        assert all(np.array_equal(batch[name].numpy(), array) for name, array in arrays.items())


@pytest.mark.parametrize(
    ("start", "num_workers"),
    [(None, 0), ("fork", 1), ("fork", 3), ("spawn", 3), ("forkserver", 1), ("forkserver", 3)],
)
def test_every_batch_comes_once_and_in_order(text: str, start: str | None, num_workers: int) -> None:
    dataset = StreamDataset(Path(text), start_step=2, stop_step=13, **TEXT)
    loader = DataLoader(dataset, batch_size=None, num_workers=num_workers, multiprocessing_context=start)
    found = list(loader)
    assert steps_of(found) == list(range(2, 13))
    assert_equal(found, itertools.islice(open_stream(text, start_step=2, **TEXT), 11))


@pytest.mark.parametrize("num_workers", [0, 3])
def test_images_are_the_same(images: str, num_workers: int) -> None:
    dataset = ImageDataset(images, stop_step=7, **IMAGES)
    assert_equal(
        DataLoader(dataset, batch_size=None, num_workers=num_workers),
        itertools.islice(open_images(images, **IMAGES), 7),
    )


@pytest.mark.parametrize("persistent", [False, True])
def test_an_iteration_that_is_left_begins_where_it_is_told(text: str, persistent: bool) -> None:
    dataset = StreamDataset(text, **TEXT)
    loader = DataLoader(dataset, batch_size=None, num_workers=3, persistent_workers=persistent)
    assert steps_of(itertools.islice(loader, 5)) == [0, 1, 2, 3, 4]
    assert steps_of(itertools.islice(loader, 2)) == [0, 1]
    dataset.start_step = 7
    assert steps_of(itertools.islice(loader, 4)) == [7, 8, 9, 10]
    with pytest.raises(ConfigError, match="start_step"):
        dataset.start_step = -1


@pytest.mark.parametrize("num_workers", [0, 2, 3])
def test_an_evaluation_shows_each_example_once_over_workers_and_processes(
    text: str, images: str, num_workers: int
) -> None:
    for kind, manifest, options in (
        (StreamDataset, text, {**TEXT, "global_batch_size": 8}),
        (ImageDataset, images, {**IMAGES, "split": "validation"}),
    ):
        rows = int(options["global_batch_size"]) // 2
        seen: list[int] = []
        counts: set[int] = set()
        for index in range(2):
            dataset = kind(manifest, evaluation=True, process_index=index, process_count=2, **options)
            batches = list(DataLoader(dataset, batch_size=None, num_workers=num_workers))
            counts.add(len(batches))
            for batch in batches:
                assert len(batch["example_index"]) == rows
                seen += batch["example_index"][batch["example_weights"] == 1].tolist()
        assert sorted(seen) == list(range(len(seen)))
        assert len(seen) == (21 if kind is StreamDataset else 5)
        assert len(counts) == 1, "every process has as many batches"


def test_processes_share_the_rows_of_every_batch(text: str) -> None:
    parts = [
        list(
            DataLoader(
                StreamDataset(text, stop_step=5, process_index=index, process_count=2, **TEXT),
                batch_size=None,
                num_workers=2,
            )
        )
        for index in range(2)
    ]
    for ours, theirs, whole in zip(*parts, open_stream(text, **TEXT), strict=False):
        rows = np.concatenate([part["input_ids"].numpy() for part in (ours, theirs)])
        assert np.array_equal(rows, whole["input_ids"])


RANKS = """
import sys, torch
from torch.utils.data import DataLoader
from outlast.pytorch import StreamDataset

def main():
    manifest, rank, place = sys.argv[1:]
    torch.distributed.init_process_group("gloo", init_method="file://" + place, rank=int(rank), world_size=2)
    dataset = StreamDataset(manifest, global_batch_size=6, sequence_length=12, seed=3, stop_step=4)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")
    for batch in loader:
        print(batch.step, batch["input_ids"].tolist())

if __name__ == "__main__":
    main()
"""


def test_the_rank_is_that_of_torch_distributed(text: str, tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(RANKS)
    command = [sys.executable, str(tmp_path / "ranks.py"), text]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "place")], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=200)[0].splitlines() for rank in ranks]
    for index, lines in enumerate(outputs):
        expected = open_stream(text, process_index=index, process_count=2, **TEXT)
        assert lines == [f"{step} {next(expected)['input_ids'].tolist()}" for step in range(4)]


def test_a_process_that_nobody_counted_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ConfigError, match=r"4 processes[\s\S]*init_process_group"):
        StreamDataset(text, **TEXT)
    StreamDataset(text, process_index=1, process_count=3, **TEXT)
    with pytest.raises(ConfigError, match="one alone is given"):
        StreamDataset(text, process_index=1, **TEXT)


def test_a_mistake_shows_at_once(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sequence_lenght: unknown key; did you mean 'sequence_length'"):
        StreamDataset(text, global_batch_size=4, sequence_lenght=64)
    with pytest.raises(ShardError, match="no manifest"):
        StreamDataset(tmp_path / "manifest.json", global_batch_size=4)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_of_batches_are_refused(text: str, num_workers: int) -> None:
    loader = DataLoader(StreamDataset(text, **TEXT), num_workers=num_workers)
    with pytest.raises(ConfigError, match=r"batches already[\s\S]*batch_size=None"):
        next(iter(loader))


def test_the_state_of_an_iterator_is_its_next_step(text: str) -> None:
    """As torchdata's StatefulDataLoader asks for it, in each worker."""
    first: Any = iter(StreamDataset(text, **TEXT))
    assert steps_of(itertools.islice(first, 3)) == [0, 1, 2]
    second: Any = iter(StreamDataset(text, **TEXT))
    second.load_state_dict(first.state_dict())
    assert_equal([next(second)], itertools.islice(open_stream(text, start_step=3, **TEXT), 1))


def test_a_batch_keeps_its_step_on_its_way(text: str) -> None:
    batch = next(iter(StreamDataset(text, start_step=5, **TEXT)))
    assert pickle.loads(pickle.dumps(batch)).step == 5


class Plain(IterableDataset[Any]):
    """A data set as one would write it first: the iterator of ``open_stream``, or the call in each worker."""

    def __init__(self, manifest: str, *, evaluation: bool) -> None:
        self.manifest, self.evaluation = manifest, evaluation

    def __iter__(self) -> Any:
        return open_stream(self.manifest, evaluation=self.evaluation, **TEXT)


class Begun(IterableDataset[Any]):
    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        return self.batches


@pytest.mark.parametrize("evaluation", [False, True])
def test_a_plain_stream_in_several_workers_is_refused(text: str, evaluation: bool) -> None:
    plain = Plain(text, evaluation=evaluation)
    for dataset in (plain, Begun(iter(plain))):  # made in each worker; made here, read in each worker
        loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")
        with pytest.raises(ConfigError, match=r"would come 2 times[\s\S]*outlast.pytorch.StreamDataset"):
            list(itertools.islice(loader, 3))
    alone = DataLoader(plain, batch_size=None, num_workers=1)
    found = [batch["input_ids"].numpy() for batch in itertools.islice(alone, 3)]
    expected = open_stream(text, evaluation=evaluation, **TEXT)
    assert all(np.array_equal(ids, next(expected)["input_ids"]) for ids in found)


def test_a_stream_that_was_begun_before_the_fork_is_refused(text: str) -> None:
    batches = open_stream(text, **TEXT)
    next(batches)
    found: Any = multiprocessing.get_context("fork").SimpleQueue()

    def read() -> None:
        try:
            next(batches)
        except ConfigError as error:
            found.put(str(error))

    child = multiprocessing.get_context("fork").Process(target=read)
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert "forked from one that was reading" in found.get()
    assert next(batches)["input_ids"].shape == (6, 12)
