"""docs/guides/new_model.md: its file and its entry, in a copy of the package, make an architecture that
trains.

In: the two Python blocks of the page. Out: a run, an exported model and an answer, by the real command.
"""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.command import Command
from support.command_line import TINY

CHECKOUT = Path(__file__).parents[2]
PAGE = CHECKOUT / "docs" / "guides" / "new_model.md"
TABLE = "FAMILIES: dict[str, Family] = {\n"


@pytest.fixture(scope="module")
def exported(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Command, Path]:
    """The command of the extended package, and a model that it trained for three steps and exported."""
    folder = tmp_path_factory.mktemp("extended")
    package = folder / "src" / "outlast"
    shutil.copytree(CHECKOUT / "src" / "outlast", package, ignore=shutil.ignore_patterns("__pycache__"))
    file, entry = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (package / "models" / "electra.py").write_text(file)
    families = package / "models" / "families.py"
    text = families.read_text()
    assert text.count(TABLE) == 1
    families.write_text(text.replace(TABLE, TABLE + entry))
    command = Command(folder / "cache")
    paths = [str(folder / "src"), command.environment.get("PYTHONPATH", "")]
    command.environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    run = folder / "run"
    command.train(data / "manifest.json", run, *TINY, "model.architecture=electra")
    command.run("export", run, folder / "model")
    return command, folder / "model"


def test_the_new_architecture_trains_exports_and_answers(exported: tuple[Command, Path]) -> None:
    command, model = exported
    config = json.loads((model / "config.json").read_text())
    assert (config["architectures"], config["embedding_size"]) == (["ElectraForMaskedLM"], 16)
    (answers,) = json.loads(command.run("fill-mask", model, "import [MASK]", "--json"))
    assert sum(answer["score"] for answer in answers) > 0


@pytest.mark.peers
@pytest.mark.filterwarnings("default")
def test_transformers_computes_the_same(exported: tuple[Command, Path]) -> None:
    import torch
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    command, model = exported
    theirs: Any = AutoModelForMaskedLM.from_pretrained(model).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    text = "import [MASK]"
    ids = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        logits = theirs(**ids).logits[0]
    place = ids["input_ids"][0].tolist().index(tokenizer.mask_token_id)
    probabilities = torch.softmax(logits[place].double(), -1)
    (answers,) = json.loads(command.run("fill-mask", model, text, "--json"))
    for answer in answers:
        np.testing.assert_allclose(answer["score"], float(probabilities[answer["token"]]), rtol=1e-4)
