"""Claiming a run: who may, who must wait, who has lost it."""

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outlast.checkpoint.attempts import Attempt, claim_attempt
from outlast.checkpoint.config import CheckpointConfig
from outlast.checkpoint.lineage import claim_name, heartbeat_name
from outlast.checkpoint.liveness import Clock, ProcessIdentity, is_gone, same_machine, this_process
from outlast.checkpoint.save import CheckpointWriter
from outlast.errors import Fenced, RunError, StorageError, StoreUnreachable
from outlast.storage import Chunks, LocalStore, Store
from outlast.storage.checksummed_json import seal, unseal
from support.lives import arrays_of

Claim = Callable[[Store, str], Attempt]
LIMIT = CheckpointConfig().heartbeat_limit_seconds


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "run")


class Beating(Clock):
    """Time that passes while the owner goes on beating."""

    def __init__(self, clock: Clock, owner: Attempt) -> None:
        self.clock = clock
        self.owner = owner

    def now(self) -> float:
        return self.clock.now()

    def wall(self) -> float:
        return self.clock.wall()

    def sleep(self, seconds: float) -> None:
        self.clock.sleep(seconds)
        self.owner.beat()


def test_a_living_owner_elsewhere_is_not_replaced(
    store: LocalStore,
    claim: Claim,
    clock: Clock,
    machine: Callable[[str], ProcessIdentity],
    config: CheckpointConfig,
) -> None:
    owner = claim(store, "first")
    with pytest.raises(RunError, match="host first, pid 7"):
        claim_attempt(store, config=config, clock=Beating(clock, owner), process=machine("second"))
    owner.check_owned()


def test_a_silent_owner_is_replaced_after_its_limit_and_not_before(
    store: LocalStore, claim: Claim, clock: Clock
) -> None:
    owner = claim(store, "first")
    began = clock.now()
    successor = claim(store, "second")
    assert LIMIT <= clock.now() - began < 1.1 * LIMIT
    assert (owner.number, successor.number) == (1, 2)
    with pytest.raises(Fenced, match="Attempt 2 has claimed the run"):
        owner.check_owned()
    with pytest.raises(Fenced):
        owner.check_owned_locally()
    with pytest.raises(Fenced):
        owner.beat()
    successor.check_owned()


def test_the_owners_own_limit_counts_where_it_is_longer(
    store: LocalStore, claim: Claim, clock: Clock, machine: Callable[[str], ProcessIdentity]
) -> None:
    patient = CheckpointConfig(heartbeat_limit_seconds=600.0)
    claim_attempt(store, config=patient, clock=clock, process=machine("first"), start_heartbeat=False)
    began = clock.now()
    claim(store, "second")
    assert clock.now() - began >= 600


def test_an_owner_that_ended_is_replaced_at_once(store: LocalStore, claim: Claim, clock: Clock) -> None:
    claim(store, "first").close()
    began = clock.now()
    assert claim(store, "second").number == 2
    assert clock.now() == began


def test_an_owner_that_slept_and_was_not_replaced_goes_on(
    store: LocalStore, claim: Claim, clock: Clock
) -> None:
    owner = claim(store, "first")
    clock.sleep(10 * LIMIT)
    owner.check_owned_locally()
    with pytest.raises(RunError):
        claim_attempt(
            store,
            config=CheckpointConfig(),
            clock=Beating(clock, owner),
            process=this_process(),
            start_heartbeat=False,
        )


class MutedStore(LocalStore):
    """Heartbeats fail with this error while it is set."""

    error: type[StorageError] | None = None
    retry_seconds = 0.0

    def replace(self, name: str, content: Chunks) -> None:
        if self.error:
            raise self.error("injected")
        super().replace(name, content)


def test_an_owner_with_an_old_heartbeat_and_no_store_stops(
    tmp_path: Path, claim: Claim, clock: Clock
) -> None:
    store = MutedStore(tmp_path)
    owner = claim(store, "first")
    store.error = StoreUnreachable
    clock.sleep(LIMIT - 1)
    owner.check_owned_locally()
    clock.sleep(2)
    with pytest.raises(Fenced, match="the store is silent"):
        owner.check_owned_locally()


def test_a_full_disk_does_not_take_the_run_away(tmp_path: Path, claim: Claim, clock: Clock) -> None:
    store = MutedStore(tmp_path)
    owner = claim(store, "first")
    store.error = StorageError
    clock.sleep(2 * LIMIT)
    owner.check_owned_locally()
    store.error = None
    owner.beat()


def test_of_many_claimers_in_one_moment_one_wins(store: LocalStore, config: CheckpointConfig) -> None:
    owners: list[Attempt] = []
    refused: list[RunError] = []

    def work() -> None:
        try:
            owners.append(claim_attempt(store, config=config, report=lambda _: None))
        except RunError as error:
            refused.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(owners), len(refused)) == (1, 5)
    owners[0].close()


def test_a_killed_process_of_this_machine_is_replaced_without_waiting(
    store: LocalStore, config: CheckpointConfig
) -> None:
    program = (
        "import sys, time; from pathlib import Path; from outlast.storage import LocalStore\n"
        "from outlast.checkpoint.attempts import claim_attempt\n"
        "from outlast.checkpoint.config import CheckpointConfig\n"
        "claim_attempt(LocalStore(Path(sys.argv[1])), config=CheckpointConfig())\n"
        "print('claimed', flush=True)\n"
        "time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program, store.url], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"claimed\n"
        with pytest.raises(RunError, match=f"pid {process.pid}"):
            claim_attempt(store, config=config)
        process.kill()
        process.wait()
    attempt = claim_attempt(store, config=config, report=lambda _: None)
    assert attempt.number == 2
    attempt.close()


def test_a_pid_that_was_given_to_another_process_is_not_the_owner() -> None:
    ours = this_process()
    assert not is_gone(ours, ours)
    if ours.started is not None:
        earlier = ProcessIdentity(host=ours.host, pid=ours.pid, started="1", machine=ours.machine)
        assert is_gone(earlier, ours)
    elsewhere = ProcessIdentity(host="elsewhere", pid=2**22 + 5, started="1", machine=ours.machine)
    assert not is_gone(elsewhere, ours)
    assert not same_machine(elsewhere, ours)


def test_a_process_that_has_ended_and_was_not_collected_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        ours = this_process()
        theirs = ProcessIdentity(host=ours.host, pid=process.pid, started=None, machine=ours.machine)
        assert not is_gone(theirs, ours)
        process.kill()
        deadline = threading.Event()
        while not is_gone(theirs, ours):
            assert not deadline.wait(0.01)
        process.wait()
        assert is_gone(theirs, ours)


def test_a_damaged_claim_or_heartbeat_is_watched_not_believed(
    store: LocalStore, claim: Claim, clock: Clock
) -> None:
    claim(store, "first").close()
    for name in (claim_name(1), heartbeat_name(1)):
        content = bytearray(store.read(name))
        content[20] ^= 1
        store.replace(name, [bytes(content)])
    began = clock.now()
    assert claim(store, "second").number == 2
    assert clock.now() - began >= LIMIT


def test_history_tells_lives_and_steps(store: LocalStore, claim: Claim, clock: Clock) -> None:
    first = claim(store, "first")
    first.record_restored(0)
    clock.sleep(30)
    first.last_step = 17
    first.beat()
    claim(store, "second").close()
    lives = claim(store, "third").history()
    assert [(life.attempt, life.seconds, life.last_step, life.closed) for life in lives] == [
        (1, 30.0, 17, False),
        (2, 0.0, None, True),
    ]


@pytest.mark.parametrize("what", ["renamed", "emptied"])
def test_an_owner_whose_folder_is_gone_stops_and_makes_none(
    store: LocalStore, claim: Claim, tmp_path: Path, what: str
) -> None:
    owner = claim(store, "first")
    owner.beat()
    if what == "renamed":
        (tmp_path / "run").rename(tmp_path / "elsewhere")
    else:
        shutil.rmtree(tmp_path / "run" / "attempts")
    with pytest.raises(Fenced, match="claim of attempt 1 is gone") as caught:
        owner.beat()
    assert "put the folder back" in str(caught.value)
    with pytest.raises(Fenced):
        owner.check_owned_locally()
    owner.close()
    with pytest.raises(StorageError, match="renamed, emptied or deleted"):
        store.replace("metrics/000001-0000.jsonl", [b"{}"])
    assert not (tmp_path / "run" / "attempts").exists()
    assert not (tmp_path / "run" / "metrics").exists()


def test_a_save_into_a_folder_that_is_gone_makes_none(
    tmp_path: Path, start: Callable[[Store, str], tuple[Attempt, CheckpointWriter]]
) -> None:
    store = LocalStore(tmp_path / "run")
    _, writer = start(store, "first")
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    with pytest.raises(Fenced, match="renamed"):
        writer.save(10, arrays_of(10), wait=True)
    assert not (tmp_path / "run" / "data").exists()


@pytest.mark.parametrize(
    "name", ["host", "pid", "started", "machine", "wall", "heartbeat_limit_seconds", "now"]
)
@pytest.mark.parametrize("value", [None, [], "x", 2**70])
def test_a_sealed_claim_with_other_values_is_watched_like_any_other(
    tmp_path: Path, claim: Claim, name: str, value: Any
) -> None:
    store = LocalStore(tmp_path)
    claim(store, "first")
    for object_name in (claim_name(1), heartbeat_name(1)):
        document = unseal(store.read(object_name), where="")
        del document["sha256"]
        document[name] = value
        store.replace(object_name, [seal(document)])
    attempt = claim(store, "second")
    assert attempt.number == 2
    assert isinstance(attempt.history(), list)
