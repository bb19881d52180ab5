"""The whole journey by URL alone: the real command against S3, GCS and Azure, with data behind http.

Canaries stand for the secrets in the environment; nothing that is said or written may hold one.
"""

import json
from pathlib import Path

import pytest

from outlast.storage import open_store
from outlast.training.ranking import read_evaluations
from support.azure import AzureServer, azure_variables
from support.canaries import CANARIES, canaries_in, files_of, objects_of
from support.datasets import STEPS, TINY, CloudCommand
from support.files import serving_folder
from support.gcs import GcsServer, gcs_variables
from support.s3 import S3Server, s3_variables


def test_everything_on_s3(
    s3_server: S3Server,
    s3_environment: pytest.MonkeyPatch,
    compilation_cache: Path,
    local_manifest: str,
    unbroken: tuple[int, str],
    tmp_path: Path,
) -> None:
    command = CloudCommand(compilation_cache, {**s3_variables(s3_server.url), **CANARIES})
    bucket = s3_server.new_bucket()
    manifest, run_dir = command.prepare(f"{bucket}/data"), f"{bucket}/runs/first"
    assert fingerprint(command, manifest) == fingerprint(command, local_manifest)
    assert "as it was written" in command.run("shards", "verify", manifest)
    said = command.train(manifest, run_dir, *TINY)
    assert command.digest(run_dir) == unbroken
    rows = json.loads(command.run("checkpoint", "list", run_dir, "--json"))
    assert rows[0]["step"] == STEPS
    assert {row["state"] for row in rows} == {"committed"}
    assert "as it was written" in command.run("checkpoint", "verify", run_dir)
    kept = read_evaluations(open_store(run_dir))[STEPS]
    part = ("--set", "training.evaluation_examples=16")  # as in training; else all
    assert json.loads(command.run("evaluate", run_dir, "--json", *part)) == kept
    said += command.run("export", run_dir, tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").exists()
    written = {**objects_of(bucket), **files_of(tmp_path / "model"), **files_of(compilation_cache)}
    assert len(written) > 20
    assert canaries_in({"output": said.encode(), **written}) == []


def test_the_same_on_gcs(
    gcs_server: GcsServer, compilation_cache: Path, unbroken: tuple[int, str], tmp_path: Path
) -> None:
    command = CloudCommand(compilation_cache, gcs_variables(gcs_server.url, tmp_path))
    bucket = gcs_server.new_bucket()
    manifest, run_dir = command.prepare(f"{bucket}/data"), f"{bucket}/runs/first"
    command.train(manifest, run_dir, *TINY)
    assert command.digest(run_dir) == unbroken
    assert "as it was written" in command.run("checkpoint", "verify", run_dir)


def test_the_same_on_azure(
    azure_server: AzureServer, compilation_cache: Path, unbroken: tuple[int, str]
) -> None:
    command = CloudCommand(compilation_cache, azure_variables(azure_server))
    container = azure_server.new_container()
    manifest, run_dir = command.prepare(f"{container}/data"), f"{container}/runs/first"
    command.train(manifest, run_dir, *TINY)
    assert command.digest(run_dir) == unbroken
    assert "as it was written" in command.run("checkpoint", "verify", run_dir)


def test_data_behind_http(
    local_command: CloudCommand, local_manifest: str, unbroken: tuple[int, str], tmp_path: Path
) -> None:
    with serving_folder(Path(local_manifest).parent) as url:
        assert "as it was written" in local_command.run("shards", "verify", f"{url}/manifest.json")
        local_command.train(f"{url}/manifest.json", tmp_path / "run", *TINY)
    assert local_command.digest(tmp_path / "run") == unbroken


def fingerprint(command: CloudCommand, manifest: str) -> str:
    return str(json.loads(command.run("shards", "show", manifest, "--json"))["fingerprint"])
