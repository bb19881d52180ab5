"""The verb ``import`` for image models: weights, running statistics, classes, and how pictures are shown.

In: a folder as transformers saves a ``ResNetForImageClassification``. Out: a run directory of no steps, as of
text. What the folder's image processor says becomes keys of ``[stream.images]`` and ``[objective]``.
"""

from pathlib import Path
from typing import Any

from outlast.huggingface.digests import checking
from outlast.huggingface.image_processor import PREPROCESSOR_NAME, read_image_processor
from outlast.huggingface.images import load_image_model, read_class_names
from outlast.huggingface.load import CONFIG_NAME
from outlast.images.config import ImagesConfig
from outlast.logs import log
from outlast.models.resnet_config import resnet_table
from outlast.objectives.config import ClassifyConfig
from outlast.recipe import make_recipe, plain_tables
from outlast.run.directory import PARAMS_PREFIX, STATE_PREFIX
from outlast.run.import_directory import RECIPE_NAME, check_place, write_import
from outlast.storage import open_store


def import_image_model(folder: Path, out: str) -> str:
    """Import a ResNet; return the URL of the run directory. Arguments and errors as ``import_model``."""
    with checking(folder):
        model = load_image_model(folder)
        classes = read_class_names(folder)
        tables = _shown(folder) | {"model": resnet_table(model.config, where=str(folder / CONFIG_NAME))}
    store = open_store(out)
    check_place(store)
    images = tables.pop("stream.images")
    recipe = make_recipe({**tables, "stream": {"packing": "images", "images": images}}, where=RECIPE_NAME)
    write_import(
        folder,
        store,
        fragment={"stream": {"packing": "images"}, "stream.images": images, **tables},
        described={"recipe": plain_tables(recipe), "classes": classes},
        data={},
        model=model.config.to_dict(),
        arrays={
            f"{prefix}{name}": value
            for prefix, arrays in ((PARAMS_PREFIX, model.params), (STATE_PREFIX, model.state))
            for name, value in arrays.items()
        },
    )
    log.info(
        "imported a resnet: stages of %s blocks, %d classes",
        list(model.config.depths),
        model.config.num_classes,
    )
    return store.url


def _shown(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the tables that the image processor decides; the defaults where there is none, said aloud."""
    processor = read_image_processor(folder)
    if processor is None:
        images, objective = ImagesConfig(), ClassifyConfig()
        log.warning(
            "there is no %s: %d pixels and ImageNet's mean and deviation are assumed",
            PREPROCESSOR_NAME,
            images.image_size,
        )
        size, side = images.image_size, images.resize
        mean, deviation = objective.pixel_mean, objective.pixel_deviation
    else:
        size, side = processor.image_size, processor.shorter_side
        mean, deviation = processor.mean, processor.deviation
        for difference in processor.differences:
            log.warning("its image processor: %s; accuracies may differ", difference)
    return {
        "stream.images": {"image_size": size, "evaluation_resize": side or 0},
        "objective": {"kind": "classification", "pixel_mean": list(mean), "pixel_deviation": list(deviation)},
    }
