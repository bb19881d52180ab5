"""The promise itself: the real command, killed with SIGKILL in any phase, ends with the same bits."""

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from outlast.checkpoint.inspect import verify_run
from outlast.run.checkpoints import digest_run
from support.command import Command
from support.command_lives import PHASES
from support.datasets import CloudCommand
from support.faults import FaultyProxy
from support.kills import KILLS_PER_RUN, RUNS_PER_STORE, SETTINGS, Run, Tally, aims_of
from support.s3 import S3Server, s3_variables

LONG_RUNS = [pytest.param(number, marks=pytest.mark.long) for number in range(1, RUNS_PER_STORE)]


@pytest.fixture(scope="module")
def digest_unbroken(
    compilation_cache: Path, manifest: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, object]:
    """Step and digest of a run that nobody disturbed. It also warms the compilation cache."""
    run_dir = tmp_path_factory.mktemp("runs") / "unbroken"
    CloudCommand(compilation_cache, {}).train(manifest, run_dir, *SETTINGS)
    return digest_run(str(run_dir))


@pytest.fixture(scope="module")
def tally() -> Tally:
    return Tally()


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def victim(
    request: pytest.FixtureRequest,
    store: str,
    run: int,
    compilation_cache: Path,
    manifest: Path,
    tmp_path: Path,
) -> Iterator[Run]:
    """A run to be killed, on a folder or, behind a proxy that can hold its requests, on S3."""
    with ExitStack() as stack:
        proxy, variables, run_dir = None, {}, str(tmp_path / "run")
        if store == "s3":
            server: S3Server = request.getfixturevalue("s3_server")
            request.getfixturevalue("s3_environment")
            proxy = stack.enter_context(FaultyProxy(server.host, server.port))
            variables, run_dir = s3_variables(proxy.url), f"{server.new_bucket()}/run"
        yield Run(
            command=CloudCommand(compilation_cache, variables),
            manifest=str(manifest),
            run_dir=run_dir,
            proxy=proxy,
            rng=random.Random(f"{store} {run}"),
        )


@pytest.mark.parametrize("run", [0, *LONG_RUNS])
def test_killed_in_any_phase_a_run_ends_with_the_same_bits(
    victim: Run,
    digest_unbroken: dict[str, object],
    tally: Tally,
    store: str,
    run: int,
) -> None:
    for aim in aims_of(store, run):
        phase = victim.kill(aim)
        sys.stdout.write(f"{store} run {run}: aimed at {aim}, hit {phase}\n")
        tally.kills[phase, store] += 1
        tally.aimed[aim, aim == phase] += 1
    output = victim.command.train(victim.manifest, victim.run_dir, *SETTINGS)
    assert "resuming from step" in output
    assert "bit-identical" in output
    assert digest_run(victim.run_dir) == digest_unbroken
    assert verify_run(victim.run_dir) == []
    tally.runs[store] += 1
    tally.resumes.append(victim.resumes)


@pytest.mark.long
def test_the_kills_hit_every_phase(tally: Tally, capsys: pytest.CaptureFixture[str]) -> None:
    """Comes after all the runs above; the table is the one in docs/results/reliability.md."""
    if sum(tally.runs.values()) < 2 * RUNS_PER_STORE:
        pytest.skip("not all of the runs were made, or not all ended well")
    with capsys.disabled():
        sys.stdout.write("\n" + "\n".join(tally.table()) + "\n")
    assert sum(tally.kills.values()) == 2 * RUNS_PER_STORE * KILLS_PER_RUN
    assert min(tally.resumes) >= KILLS_PER_RUN
    rare = {(phase, store) for store in tally.runs for phase in PHASES if tally.kills[phase, store] < 4}
    assert not rare


def test_another_seed_gives_another_digest(
    command: Command, manifest: Path, unbroken: tuple[int, str], tmp_path: Path
) -> None:
    """The tests above could fail: the digest does depend on what was trained."""
    command.train(manifest, tmp_path / "run", "training.seed=1", "training.total_steps=100")
    assert command.digest(tmp_path / "run") != unbroken
