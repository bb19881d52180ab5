"""Every request of a life on S3 fails: claim, restore, saves and retention of the real code, over the wire.

Once and for good; the answer an error, lost, or the request late or doubled. Whatever happens, the next life
finds at least what was acknowledged, right to the bit, and nothing that cannot be read. Then two processes
that both believe the run to be theirs, one of them with its commit under way while the other goes on.
"""

import threading
from collections import Counter

import pytest

from outlast.checkpoint.lineage import CommitKey
from outlast.checkpoint.restore import list_commits, restore_newest
from outlast.errors import Fenced, OutlastError
from outlast.storage import Store, open_store
from support.faults import Fault, FaultyProxy
from support.lives import arrays_of, begin, check_arrays, check_whole, live
from support.s3 import S3Server

FAULTS: tuple[Fault, ...] = ("503", "409", "403", "lost", "late", "twice")
WRITES = ("PUT", "DELETE", "POST")


def check_request(server: S3Server, proxy: FaultyProxy, fault: Fault, first: int, *, for_good: bool) -> int:
    """Let one life's request number ``first``, or all from there on, fail; return how many did.

    A late or doubled request is one that changes something; the others are any.
    """
    url = f"{server.new_bucket()}/run"
    store = open_store(url)
    assert live(store, [10, 20], host="first") == [10, 20]
    matching = (lambda method, _: method in WRITES) if fault in ("late", "twice") else (lambda *_: True)
    proxy.inject(
        lambda number: fault if number == first or (for_good and number > first) else None,
        matching=matching,
    )
    done = live(store)
    fired = len(proxy.injected)
    proxy.inject(())
    proxy.land()
    check_whole(open_store(url), max([20, *done]))
    return fired


@pytest.mark.parametrize("stride", [pytest.param(1, marks=[pytest.mark.long, pytest.mark.timeout(3000)]), 61])
@pytest.mark.parametrize("for_good", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_every_request_of_a_life_fails(
    s3_server: S3Server,
    far: pytest.MonkeyPatch,
    proxy: FaultyProxy,
    fault: Fault,
    for_good: bool,
    stride: int,
) -> None:
    if not for_good:
        far.setattr(Store, "retry_seconds", 5.0)
    first, cases = stride // 3, 0
    while check_request(s3_server, proxy, fault, first, for_good=for_good):
        first += stride
        cases += 1
    assert cases * stride > (20 if fault in ("late", "twice") else 60)


def test_a_zombie_s_commit_arrives_while_its_successor_saves(
    s3_server: S3Server, far: pytest.MonkeyPatch, proxy: FaultyProxy
) -> None:
    """The late commit of the first lands beyond the line: it is ignored, and taken away."""
    url = f"{s3_server.new_bucket()}/run"
    store = open_store(url)
    first, zombie = begin(store, "first")
    zombie.save(10, arrays_of(10), wait=True)
    proxy.holds = True
    proxy.inject(lambda _: "late", matching=lambda method, path: method == "PUT" and "/commits/" in path)
    with pytest.raises(OutlastError):
        zombie.save(20, arrays_of(20), wait=True)
    proxy.inject(())
    second, writer = begin(store, "second")
    assert (first.number, second.number, second.restored_step) == (1, 2, 10)
    writer.save(15, arrays_of(15), wait=True)
    proxy.land()
    assert store.exists(CommitKey(20, 1).name)
    rows = {(row.step, row.attempt): row.in_line for row in list_commits(store)}
    assert rows == {(10, 1): True, (15, 2): True, (20, 1): False}
    with pytest.raises(Fenced):
        zombie.save(30, arrays_of(30), wait=True)
    writer.save(20, arrays_of(20), wait=True)
    restored = restore_newest(store)
    assert restored is not None
    assert restored.commit.key == CommitKey(20, 2)
    check_arrays(restored.arrays, 20)
    assert not store.exists(CommitKey(20, 1).name), "its successor takes it away"


def test_two_live_writers_on_s3_do_not_mix(s3_server: S3Server, far: pytest.MonkeyPatch) -> None:
    """Both save the same steps at the same time, with other values; one history comes out, whole."""
    store = open_store(f"{s3_server.new_bucket()}/run")
    _, first = begin(store, "first")
    first.save(10, arrays_of(10), wait=True)
    _, second = begin(store, "second")
    ended: Counter[str] = Counter()

    def work(name: str, offset: int) -> None:
        writer = first if name == "first" else second
        try:
            for step in (20, 30, 40):
                writer.save(step, arrays_of(step + offset), wait=True)
        except Fenced:
            ended[name] += 1

    threads = [
        threading.Thread(target=work, args=("first", 1000)),
        threading.Thread(target=work, args=("second", 2000)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ended == {"first": 1}
    restored = restore_newest(store)
    assert restored is not None
    assert restored.skipped == []
    assert restored.commit.key == CommitKey(40, 2)
    check_arrays(restored.arrays, 2040)
