"""Names, keys and values from outside are shown on the terminal, never obeyed."""

import http.server
import io
import json
import re
import tarfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from outlast.shards.document import FORMAT
from outlast.storage import Store
from support.command import RECIPE
from support.command_line import DATA, Outcome, Run, settings
from support.files import serving
from support.images import jpeg, write_tar

EVIL = "a\x1b[2J\x9b\u202e\r\nforged line"


def shows(outcome: Outcome) -> None:
    """Check that the hostile name was met, and neither orders a terminal nor begins a line."""
    said = outcome.out + outcome.err
    assert "forged" in said, outcome
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", said), outcome
    assert not re.search("^ *forged", said, re.MULTILINE), outcome


def prepare(outlast: Run, corpus: str | Path, out: Path, *overrides: str) -> Outcome:
    options = settings(*DATA[2:], f"corpus.path={corpus}", *overrides)
    return outlast("prepare", RECIPE, "--out", out, *options)


def _corpus_file(outlast: Run, folder: Path) -> Outcome:
    (folder / f"{EVIL}.txt").write_bytes(b"text \x00\x01\x02 " * 50)
    return prepare(outlast, folder, folder.with_name("out"), "corpus.include=*.txt")


def _passed_over(outlast: Run, folder: Path) -> Outcome:
    (folder / f"{EVIL}.txt").symlink_to("/nowhere")
    return prepare(outlast, folder, folder.with_name("out"), "corpus.include=*.txt")


def _json_lines(outlast: Run, folder: Path) -> Outcome:
    (folder / f"{EVIL}.txt").write_text('{"text": "x"}\n' * 9)
    return prepare(outlast, folder, folder.with_name("out"), "corpus.include=*.txt", "corpus.format=text")


def _tar_member(outlast: Run, folder: Path) -> Outcome:
    with tarfile.open(folder / "texts.tar", "w") as tar:
        member = tarfile.TarInfo(f"{EVIL}.txt")
        member.size = 400
        tar.addfile(member, io.BytesIO(b"\x00\x01\x02\x03" * 100))
    return prepare(outlast, folder, folder.with_name("out"))


def _image_member(outlast: Run, folder: Path) -> Outcome:
    tar = write_tar(folder / "images.tar", [(f"{EVIL}/{EVIL}.jpg", jpeg(0))])
    return outlast("shards", "import", tar, "--out", folder / "out", "--processes", "1")


def _recipe_key(outlast: Run, folder: Path) -> Outcome:
    recipe = folder / "run.toml"
    recipe.write_text(f"[corpus]\n{json.dumps(EVIL)} = 1\n")
    return outlast("recipe", "show", recipe)


def _recipe_name(outlast: Run, folder: Path) -> Outcome:
    return outlast("recipe", "show", folder / EVIL)


def _json_value(outlast: Run, folder: Path) -> Outcome:
    (folder / "manifest.json").write_text(json.dumps({"format": FORMAT, "version": EVIL}))
    return outlast("shards", "show", folder / "manifest.json")


def _json_key(outlast: Run, folder: Path) -> Outcome:
    (folder / "a.jsonl").write_text(f"{json.dumps({EVIL: 'x'})}\n" * 9)
    return prepare(
        outlast,
        folder,
        folder.with_name("out"),
        "corpus.format=jsonl",
        "corpus.include=*",
        f"corpus.text_field={EVIL}2",
    )


def _class_name(outlast: Run, folder: Path) -> Outcome:
    place = folder / "pictures" / EVIL.replace("\n", " ")
    place.mkdir(parents=True)
    (place / "0.jpg").write_bytes(jpeg(0))
    outlast("shards", "images", folder / "pictures", "--out", folder / "set", "--processes", "1")
    return outlast("shards", "show", folder / "set" / "manifest.json", "--json")


def _argument(outlast: Run, folder: Path) -> Outcome:
    return outlast("shards", EVIL)


@pytest.mark.parametrize(
    "meet",
    [
        *(_corpus_file, _passed_over, _json_lines, _tar_member, _image_member, _recipe_key, _recipe_name),
        *(_json_value, _json_key, _class_name, _argument),
    ],
)
def test_what_a_name_tells_a_terminal_is_shown(
    outlast: Run, tmp_path: Path, meet: Callable[[Run, Path], Outcome]
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    shows(meet(outlast, folder))


def answering(headers: dict[str, str]) -> AbstractContextManager[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    return serving(Handler)


def test_what_a_header_tells_a_terminal_is_shown(outlast: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "retry_seconds", 0.5)
    with answering({"Content-Encoding": EVIL.replace("\r\n", " ").replace("\u202e", "")}) as url:
        shows(outlast("shards", "show", f"{url}/manifest.json"))


def test_json_of_such_names_is_json(outlast: Run, tmp_path: Path) -> None:
    place = tmp_path / "pictures" / "a\x9b\x7f b"
    place.mkdir(parents=True)
    (place / "0.jpg").write_bytes(jpeg(0))
    outlast("shards", "images", tmp_path / "pictures", "--out", tmp_path / "set", "--processes", "1")
    shown = outlast("shards", "show", tmp_path / "set" / "manifest.json", "--json").out
    assert "a\x9b\x7f b" in json.dumps(json.loads(shown), ensure_ascii=False)
    assert "\\u009b\\u007f" in shown
