"""A store that goes away: training goes on, nothing is lost, and silence is never taken for damage."""

import itertools
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from outlast.checkpoint.attempts import claim_attempt
from outlast.checkpoint.config import CheckpointConfig
from outlast.checkpoint.restore import restore_newest
from outlast.checkpoint.save import CheckpointWriter
from outlast.errors import StorageError, StoreUnreachable
from outlast.storage import Store, open_store
from outlast.storage.remote import ObjectStore
from support.datasets import STEPS, TINY, CloudCommand
from support.faults import Fault, FaultyProxy
from support.s3 import S3Server, s3_variables

State = dict[str, NDArray[np.float32]]


def state_of(step: int) -> State:
    rng = np.random.default_rng(step)
    return {f"params/{name}": rng.standard_normal((30, 7), dtype=np.float32) for name in "abc"}


BUSY = pytest.param("429", marks=pytest.mark.long)
"""Asked again as 503 is. The ordinary suite has it in test_store.py and in stores/test_corpus.py."""


def start(url: str) -> CheckpointWriter:
    store = open_store(url)
    config = CheckpointConfig(part_bytes=900, heartbeat_seconds=1000, heartbeat_limit_seconds=2000)
    attempt = claim_attempt(store, config=config, report=lambda _: None, start_heartbeat=False)
    attempt.record_restored(0)
    return CheckpointWriter(store, config, attempt, {"seed": 1}, {}, report=lambda _: None)


def wait_for_commit(url: str, step: int, limit_seconds: float = 120) -> None:
    store = open_store(url)
    deadline = time.monotonic() + limit_seconds
    while not store.exists(f"commits/{step:012d}-1.json"):
        assert time.monotonic() < deadline, f"no commit of step {step}"
        time.sleep(0.01)


def test_training_goes_on_while_the_store_is_away(
    s3_server: S3Server,
    s3_environment: pytest.MonkeyPatch,
    proxy: FaultyProxy,
    compilation_cache: Path,
    local_manifest: str,
    unbroken: tuple[int, str],
) -> None:
    """Away from the first commit on for as long as all steps take; saves come late, and nothing is lost."""
    command = CloudCommand(compilation_cache, s3_variables(proxy.url))
    run_dir = f"{s3_server.new_bucket()}/run"
    process = command.start_training(local_manifest, run_dir, *TINY)
    wait_for_commit(run_dir, 3)
    proxy.go_down()
    time.sleep(3)
    assert process.poll() is None
    refused = len(proxy.injected)
    proxy.come_up()
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert refused > 3
    assert command.digest(run_dir) == unbroken
    assert "as it was written" in command.run("checkpoint", "verify", run_dir)


def test_unreachable_at_restore_is_no_fresh_start(
    s3_server: S3Server,
    s3_environment: pytest.MonkeyPatch,
    proxy: FaultyProxy,
    compilation_cache: Path,
    local_manifest: str,
    unbroken: tuple[int, str],
) -> None:
    """The claim succeeds, then the store is away: the run ends with a named error, and goes on later."""
    run_dir = f"{s3_server.new_bucket()}/run"
    patient = CloudCommand(compilation_cache, s3_variables(proxy.url))
    patient.train(local_manifest, run_dir, *TINY, "training.total_steps=30", "training.seed=0")
    before = {info.name for info in open_store(run_dir).list("commits/")}
    impatient = CloudCommand(compilation_cache, s3_variables(proxy.url), patience_seconds=1.0)
    for matching in (lambda _, path: "/commits/" in path, lambda _, path: "/data/" in path):
        proxy.inject(lambda _: "503", matching=matching)
        output = impatient.train(local_manifest, run_dir, *TINY, expect=1)
        assert "does not answer" in output
        assert "new run" not in output
        assert len(proxy.injected) > 1, "it asked again"
    proxy.come_up()
    assert {info.name for info in open_store(run_dir).list("commits/")} == before
    patient.train(local_manifest, run_dir, *TINY)
    assert patient.digest(run_dir) == unbroken
    assert unbroken[0] == STEPS


def test_a_save_that_fails_is_followed_by_one_that_succeeds(
    s3_server: S3Server, far: pytest.MonkeyPatch, proxy: FaultyProxy
) -> None:
    url = f"{s3_server.new_bucket()}/run"
    writer = start(url)
    assert writer.save(1, state_of(1), wait=True)
    proxy.go_down()
    with pytest.raises(StorageError):
        writer.save(2, state_of(2), wait=True)
    assert writer.num_failed == 1
    proxy.come_up()
    restored = restore_newest(open_store(url), report=fail)
    assert restored is not None
    assert restored.commit.step == 1
    assert writer.save(3, state_of(3), wait=True)
    restored = restore_newest(open_store(url), report=fail)
    assert restored is not None
    assert same(restored.arrays, state_of(3))


@pytest.mark.parametrize("fault", ["503", BUSY, "reset", "lost", "short"])
def test_every_request_of_a_save_fails_once(
    s3_server: S3Server, far: pytest.MonkeyPatch, proxy: FaultyProxy, fault: Fault
) -> None:
    """One answer after another, over the wire: the save succeeds, and what is restored is what was saved."""
    far.setattr(Store, "retry_seconds", 20.0)
    url = f"{s3_server.new_bucket()}/run"
    writer = start(url)
    for step in itertools.count(1):
        proxy.inject(lambda number, step=step: fault if number == step - 1 else None)
        assert writer.save(step, state_of(step), wait=True)
        reached = bool(proxy.injected)
        proxy.come_up()
        restored = restore_newest(open_store(url), report=fail)
        assert restored is not None
        assert same(restored.arrays, state_of(step))
        if not reached:
            assert step > 8
            break


@pytest.mark.parametrize("fault", ["503", BUSY, "reset", "short", "stall"])
def test_every_request_of_a_restore_fails(
    s3_server: S3Server, far: pytest.MonkeyPatch, proxy: FaultyProxy, fault: Fault
) -> None:
    """Once: the same arrays. For good: a named error, never an older checkpoint and never none."""
    far.setattr(Store, "retry_seconds", 20.0)
    url = f"{s3_server.new_bucket()}/run"
    writer = start(url)
    for step in (1, 2):
        writer.save(step, state_of(step), wait=True)
    proxy.inject(())
    restore_newest(open_store(url), report=fail)
    num_requests = len(proxy.seen)
    assert num_requests > 6
    every = range(num_requests) if fault != "stall" else range(0, num_requests, 4)
    for number in every:
        proxy.inject(lambda asked, number=number: fault if asked == number else None)
        restored = restore_newest(open_store(url), report=fail)
        assert restored is not None
        assert same(restored.arrays, state_of(2)), f"request {number}"
        assert proxy.injected == [fault]
    far.setattr(Store, "retry_seconds", 0.15)
    far.setattr(ObjectStore, "silence_seconds", 0.3)
    for number in every:
        proxy.inject(lambda asked, number=number: fault if asked >= number else None)
        with pytest.raises(StoreUnreachable):
            restore_newest(open_store(url), report=fail)


def same(arrays: dict[str, NDArray[np.generic]], expected: State) -> bool:
    return arrays.keys() == expected.keys() and all(
        np.array_equal(arrays[name], expected[name]) for name in arrays
    )


def fail(message: str) -> None:
    raise AssertionError(f"silence was taken for damage: {message}")
