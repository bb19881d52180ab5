"""Data sets whose tars stay in a bucket or on a server that others own; indexes and manifest lie here."""

import json
import urllib.request
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from outlast.errors import ConfigError, OutlastError, ShardError, StorageError
from outlast.images.config import ImagesConfig, ImageStreamConfig
from outlast.images.import_tars import import_tars
from outlast.images.manifest import (
    ImageManifest,
    parse_image_manifest,
    read_image_manifest,
    write_image_manifest,
)
from outlast.images.pixels import RawPixels
from outlast.images.records import FieldRules
from outlast.images.repack import repack_images
from outlast.images.stream import ImageStream
from outlast.images.verify import describe_images, summarize_images, verify_images
from outlast.storage import LocalStore, open_store
from outlast.storage.addresses import CONSENT, resolve
from outlast.storage.elsewhere import is_url, open_elsewhere
from outlast.storage.http import HttpStore
from support.files import serving_folder, serving_ranges
from support.gcs import GcsServer
from support.images import jpeg, write_tar
from support.s3 import S3Server


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    for shard in range(3):
        numbers = range(10 * shard, 10 * shard + 9)
        files = [part for n in numbers for part in ((f"{n}.jpg", jpeg(n)), (f"{n}.cls", str(n % 7).encode()))]
        write_tar(tmp_path / "tars" / f"t-{shard}.tar", files)
    return tmp_path / "tars"


@pytest.fixture(params=["s3", "gs"])
def bucket(request: pytest.FixtureRequest, tars: Path) -> str:
    kind = "s3" if request.param == "s3" else "gcs"
    request.getfixturevalue(f"{kind}_environment")
    server: S3Server | GcsServer = request.getfixturevalue(f"{kind}_server")
    if isinstance(server, S3Server):
        name = f"open-{uuid.uuid4().hex[:12]}"
        put_for_everybody(f"{server.url}/{name}", b"")
        for path in tars.glob("*.tar"):
            put_for_everybody(f"{server.url}/{name}/open/tars/{path.name}", path.read_bytes())
        return f"s3://{name}/open/tars"
    store = open_store(f"{server.new_bucket()}/open/tars")
    for path in tars.glob("*.tar"):
        store.create(path.name, [path.read_bytes()])
    return store.url


def put_for_everybody(url: str, content: bytes) -> None:
    headers = {"x-amz-acl": "public-read-write", "Content-Type": "application/octet-stream"}
    with urllib.request.urlopen(urllib.request.Request(url, content or None, headers, method="PUT")):
        pass


def batches(manifest: str, cache: Path) -> list[bytes]:
    config = ImageStreamConfig(
        manifest=manifest,
        packing="images",
        global_batch_size=3,
        images=ImagesConfig(image_size=16),
        cache_dir=str(cache),
    )
    stream = ImageStream(config, seed=1)
    return [b"".join(array.tobytes() for array in stream.batch(step).values()) for step in range(12)]


def test_tars_of_a_bucket_stay_there(
    bucket: str, tars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OUTLAST_ANONYMOUS_BUCKETS", "/".join(bucket.split("/")[:3]))
    caplog.set_level("INFO")
    out = tmp_path / "out"
    there = import_tars({"train": [f"{bucket}/t-*.tar"]}, str(out), FieldRules(), num_processes=1)
    assert any("3 stay where they are" in message for message in caplog.messages)
    assert not list(out.glob("*.tar"))
    assert len(list(out.glob("*.index.safetensors"))) == 3
    manifest, store = read_image_manifest(there)
    assert [entry.url for entry in manifest.shards("train")] == [f"{bucket}/t-{n}.tar" for n in range(3)]
    here = import_tars({"train": [f"{tars}/t-*.tar"]}, str(tars), FieldRules(), num_processes=1)
    copied = import_tars(
        {"train": [f"{bucket}/t-*.tar"]}, str(tmp_path / "copied"), FieldRules(), copy=True, num_processes=1
    )
    assert len(list((tmp_path / "copied").glob("*.tar"))) == 3
    assert {read_image_manifest(url)[0].fingerprint for url in (there, here, copied)} == {
        manifest.fingerprint
    }
    assert batches(there, tmp_path / "cache") == batches(here, tmp_path / "unused")
    assert verify_images(there) == []
    assert summarize_images(describe_images(there))["tars at"] == bucket
    again = repack_images(
        there, str(tmp_path / "again"), RawPixels(short_side=16, max_pixels=2**20), num_processes=1
    )
    assert verify_images(again) == []
    # Given again it goes on, and an import of copies is another one.
    (out / "manifest.json").unlink()
    assert import_tars({"train": [f"{bucket}/t-*.tar"]}, str(out), FieldRules(), num_processes=1) == there
    with pytest.raises(ShardError, match="another corpus or configuration"):
        import_tars({"train": [f"{bucket}/t-*.tar"]}, str(out), FieldRules(), copy=True, num_processes=1)
    with pytest.raises(StorageError, match="only read"):
        store.delete("t-0.tar")


def test_a_tar_that_changes_elsewhere_is_an_error_with_its_place(bucket: str, tmp_path: Path) -> None:
    there = import_tars(
        {"train": [f"{bucket}/t-*.tar"]}, str(tmp_path / "out"), FieldRules(), num_processes=1
    )
    store = open_store(bucket)
    content = bytearray(store.read("t-1.tar"))
    content[600] ^= 1
    store.replace("t-1.tar", [bytes(content)])
    with pytest.raises(ShardError, match="fail the manifest's sha256") as caught:
        batches(there, tmp_path / "cache")
    assert caught.value.where == f"{bucket}/t-1.tar"
    assert any("t-1.tar: has sha256" in problem for problem in verify_images(there))
    store.delete("t-1.tar")
    with pytest.raises(ShardError, match="missing") as caught:
        batches(there, tmp_path / "other")
    assert caught.value.where == f"{bucket}/t-1.tar"


@pytest.mark.parametrize("ranges", [True, False])
def test_tars_on_a_server_beside_local_ones(
    ranges: bool, tars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (serving_ranges if ranges else serving_folder)(tars) as url:
        host = url.partition("//")[2]
        line = {"train": [f"{url}/t-0.tar", f"{tars}/t-1.tar", f"{url}/t-2.tar"]}
        with pytest.raises(ConfigError, match="a private one"):
            import_tars(line, str(tmp_path / "out"), FieldRules(), num_processes=1)
        monkeypatch.setenv(CONSENT, host)
        there = import_tars(line, str(tmp_path / "out"), FieldRules(), num_processes=1)
        monkeypatch.delenv(CONSENT)
        with pytest.raises(ConfigError, match="a private one") as caught:
            read_image_manifest(there)
        assert f"{CONSENT}=127.0.0.1" in str(caught.value.remedy)
        for allowed in (host, "else.where, 127.0.0.1"):
            monkeypatch.setenv(CONSENT, allowed)
            assert verify_images(there) == []
        assert sorted(path.name for path in (tmp_path / "out").glob("*.tar")) == ["t-1.tar"]
        here = import_tars({"train": [f"{tars}/t-*.tar"]}, str(tars), FieldRules(), num_processes=1)
        assert batches(there, tmp_path / "cache") == batches(here, tmp_path / "unused")
        assert len(list((tmp_path / "cache").iterdir())) == 2, "the local one is no part of the cache"
        monkeypatch.delenv(CONSENT)
        # A manifest on the same server needs no consent: who named it named the server.
        LocalStore(tars).replace("manifest.json", [Path(there).read_bytes()])
        assert read_image_manifest(f"{url}/manifest.json")[1].read("t-0.tar")


def test_public_alone_holds_for_redirects_and_in_every_spelling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for host in (
        "127.0.0.1",
        "2130706433",
        "0x7f.1",
        "10.0.0.1",
        "192.168.1.1",
        "[::1]".strip("[]"),
        "::ffff:10.0.0.1",
    ):
        with pytest.raises(StorageError, match="a private one"):
            resolve(host, 80, public_only=True)
    assert resolve("8.8.8.8", 80, public_only=True)
    store = HttpStore("http://8.8.8.8/data", public_only=True)
    store.retry_seconds = 0.0
    with serving_folder(tmp_path) as url:
        monkeypatch.setattr(store, "_address", url)  # as if 8.8.8.8 had redirected here
        with pytest.raises(StorageError, match="a private one"):
            store.read("x")


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/t-0.tar",
        "/etc/t-0.tar",
        "http://user:word@host/t-0.tar",
        "https://host/t-0.tar?signature=1",
        "https://host/../t-0.tar",
        "https://host/other.tar",
        "s3://t-0.tar",
        "ftp://host/t-0.tar",
    ],
)
def test_a_manifest_leads_to_no_other_place(url: str, tars: Path, tmp_path: Path) -> None:
    here = import_tars({"train": [f"{tars}/t-0.tar"]}, str(tars), FieldRules(), num_processes=1)
    text = Path(here).read_bytes()
    manifest = parse_image_manifest(text, where=here)
    (entry,) = manifest.shards("train")
    led = replace(manifest, splits={"train": (replace(entry, url=url),)})
    assert isinstance(led, ImageManifest)
    write_image_manifest(LocalStore(tmp_path), led)
    with pytest.raises(OutlastError, match="no such place in a store"):
        read_image_manifest(str(tmp_path / "manifest.json"))
    assert json.loads((tmp_path / "manifest.json").read_text())["fingerprint"] == manifest.fingerprint


def test_link_local_addresses_are_refused_whatever_is_consented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONSENT, "169.254.169.254")
    assert is_url("http://169.254.169.254/t-0.tar")
    with pytest.raises(ConfigError, match="never contacted"):
        open_elsewhere(LocalStore(Path()), {"t-0.tar": "http://169.254.169.254/t-0.tar"})
