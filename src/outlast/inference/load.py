"""Loading a model folder: its ``config.json`` says whether it is a model of text or of pictures."""

from pathlib import Path

from outlast.config import checked
from outlast.huggingface.images import MODEL_TYPES
from outlast.huggingface.load import read_config
from outlast.inference.pictures import ImageClassifier, load_classifier
from outlast.inference.text import Model, load_text_model
from outlast.storage import local_place


@checked
def load_model(folder: Path | str) -> Model | ImageClassifier:
    """Load a model folder, with every head it has: a ``Model`` of text, or an ``ImageClassifier``.

    Raises:
        OutlastError: files that are missing or damaged.
        ConfigError: a kind of model that is not known.
    """
    folder = local_place(folder)
    of_images = read_config(folder).get("model_type") in MODEL_TYPES
    return load_classifier(folder) if of_images else load_text_model(folder)
