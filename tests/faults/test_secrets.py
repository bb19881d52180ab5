"""No secret of the environment is ever said or written, least of all where something fails."""

from pathlib import Path

import pytest

from support.canaries import CANARIES, canaries_in, files_of
from support.command import RECIPE
from support.datasets import CORPUS, TINY, CloudCommand
from support.faults import FaultyProxy
from support.s3 import SECRET_KEY, S3Server, free_port, s3_variables


def failing_lines(command: CloudCommand, url: str, local_manifest: str, folder: Path) -> str:
    """Return what every verb that touches a store says when it fails, with and without --debug."""
    keys = [part for key in CORPUS for part in ("--set", key)]
    lines = [
        ["prepare", RECIPE, "--out", f"{url}/data", *keys],
        command.training(local_manifest, f"{url}/run", *TINY),
        command.training(f"{url}/data/manifest.json", folder / "run", *TINY),
        ["evaluate", f"{url}/run"],
        ["export", f"{url}/run", folder / "model"],
        ["checkpoint", "list", f"{url}/run", "--debug"],
        ["shards", "show", f"{url}/data/manifest.json", "--debug"],
    ]
    processes = [command.start(*line) for line in lines]
    said: list[str] = []
    for process, line in zip(processes, lines, strict=True):
        output, _ = process.communicate(timeout=200)
        assert process.returncode == 1, (line, output)
        assert "outlast: " in output
        said.append(output)
    return "".join(said)


@pytest.mark.parametrize("failure", ["unreachable", "refused"])
def test_failing_commands_keep_secrets(
    s3_server: S3Server, compilation_cache: Path, local_manifest: str, tmp_path: Path, failure: str
) -> None:
    with FaultyProxy(s3_server.host, s3_server.port) as proxy:
        proxy.inject(lambda _: "403")
        endpoint = proxy.url if failure == "refused" else f"http://127.0.0.1:{free_port()}"
        variables = {**s3_variables(endpoint), **CANARIES}
        command = CloudCommand(compilation_cache, variables, patience_seconds=1.0)
        said = failing_lines(command, s3_server.new_bucket(), local_manifest, tmp_path)
    assert ("denies access" if failure == "refused" else "does not answer") in said
    assert canaries_in({"output": said.encode(), **files_of(tmp_path), **files_of(compilation_cache)}) == []


def test_an_address_without_encryption_is_named_at_once(compilation_cache: Path) -> None:
    """It is a mistake of the configuration, not a store that is away: no waiting, and the way out."""
    command = CloudCommand(compilation_cache, s3_variables("http://127.0.0.1:9"))
    del command.environment["AWS_ALLOW_HTTP"]
    said = command.run("checkpoint", "list", "s3://bucket/run", expect=1)
    assert "AWS_ALLOW_HTTP=true" in said
    assert SECRET_KEY not in said


def test_a_canary_is_found_where_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "leak").write_text(f"key = {SECRET_KEY!r}")
    assert canaries_in(files_of(tmp_path)) == [str(tmp_path / "leak")]
