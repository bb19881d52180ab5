"""An exported classifier that answers: class names and probabilities for pictures.

In: a folder as ``outlast export`` or transformers' ``save_pretrained`` writes it, and pictures as files,
bytes or arrays. Out: logits under transformers' name, or classes with their probabilities. A picture is shown
as the folder's image processor says, by the crop and resize that evaluation has; numbers of rows are rounded
up to a power of two, so few programs are compiled.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from outlast.config import checked
from outlast.errors import ConfigError, OutlastError
from outlast.huggingface.digests import checking
from outlast.huggingface.image_processor import PREPROCESSOR_NAME, ImageProcessor, read_image_processor
from outlast.huggingface.images import ImageModel, load_image_model, read_class_names
from outlast.images.config import ImagesConfig
from outlast.images.crops import evaluation_crop
from outlast.images.decode import Undecodable
from outlast.images.rows import show_picture
from outlast.logs import log
from outlast.models.params import Params, unflatten
from outlast.models.resnet import ModelState, classify
from outlast.models.resnet_config import ResNetConfig
from outlast.storage.regular import read_whole

BATCH_ROWS = 16
"""Pictures that go through the model together."""

Picture = str | Path | bytes | NDArray[np.uint8]


class Label(TypedDict):
    """One class for one picture."""

    score: float
    """Probability among all classes."""
    label: str


class ImageClassifier:
    """A ResNet with its classes. Made by ``load_model``.

    Attributes:
        classes: names in the order of the logits.
    """

    def __init__(
        self, model: ImageModel, classes: Sequence[str], processor: ImageProcessor | None, folder: Path
    ) -> None:
        self.config = model.config
        self.classes = tuple(classes)
        self.folder = folder
        self._processor = processor
        params, state = (
            unflatten({name: jnp.asarray(value) for name, value in arrays.items()})
            for arrays in (model.params, model.state)
        )
        self._params, self._state = params, state

    def __call__(self, pixel_values: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Return ``logits`` (rows, classes).

        Args:
            pixel_values: normalised, of shape (rows, channels, height, width), as transformers has them.

        Raises:
            OutlastError: an array of another shape or kind.
        """
        channels = self.config.num_channels
        floats = np.issubdtype(pixel_values.dtype, np.floating)
        if not floats or pixel_values.ndim != 4 or pixel_values.shape[1] != channels or not pixel_values.size:
            raise OutlastError(
                f"pixel_values is {pixel_values.dtype} of shape {pixel_values.shape}.",
                expected=f"floats of shape (rows, {channels}, height, width)",
            )
        rows = len(pixel_values)
        padded = np.zeros((1 << (rows - 1).bit_length(), *pixel_values.shape[1:]), np.float32)
        padded[:rows] = pixel_values
        images = jnp.asarray(padded.transpose(0, 2, 3, 1))
        return {"logits": np.asarray(_classify(self._params, self._state, images, config=self.config))[:rows]}

    @checked
    def predict(self, pictures: Picture | Sequence[Picture], *, top: int = 5) -> list[list[Label]]:
        """Return, for each picture, the likeliest classes, best first.

        Args:
            pictures: one or several: paths, the bytes of image files, or arrays uint8 (height, width, 3),
                RGB.
            top: number of classes; of fewer all are given.

        Raises:
            OutlastError: a picture that cannot be read; a folder that does not say how pictures are shown.
            ConfigError: ``top`` below 1.
        """
        if top < 1:
            raise ConfigError(f"Cannot give {top} classes.", expected="1 or more")
        several = [pictures] if isinstance(pictures, str | Path | bytes | np.ndarray) else list(pictures)
        answers: list[list[Label]] = []
        for first in range(0, len(several), BATCH_ROWS):
            pixels = np.stack([self.preprocess(one) for one in several[first : first + BATCH_ROWS]])
            logits = self(pixels)["logits"].astype(np.float64)
            shares = np.exp(logits - logits.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
            answers += [self._best(row, top) for row in shares]
        return answers

    def preprocess(self, picture: Picture) -> NDArray[np.float32]:
        """Return a picture as the model sees it: (3, image_size, image_size), normalised. Arguments and
        errors as of ``predict``.
        """
        if self._processor is None:
            raise OutlastError(
                "The folder does not say how pictures are shown to the model.",
                where=str(self.folder),
                expected=PREPROCESSOR_NAME,
                remedy="call the model with pixel_values of your own",
            )
        shown = self._processor
        config = ImagesConfig(image_size=shown.image_size, evaluation_resize=shown.shorter_side or 0)
        image = np.empty((shown.image_size, shown.image_size, 3), np.uint8)
        where = str(picture) if isinstance(picture, str | Path) else "a picture in memory"
        try:
            content = memoryview(_content(picture))
            show_picture(content, partial(evaluation_crop, config=config), image, config.max_pixels)
        except (Undecodable, OSError) as error:
            raise OutlastError(f"The picture cannot be read: {error}", where=where) from None
        mean: Any = np.array(shown.mean, np.float32)
        deviation: Any = np.array(shown.deviation, np.float32)
        normalised: NDArray[np.float32] = (image / np.float32(255) - mean) / deviation
        return np.ascontiguousarray(normalised.transpose(2, 0, 1))

    def _best(self, shares: NDArray[np.float64], top: int) -> list[Label]:
        best = np.argsort(-shares, kind="stable")[:top]
        return [Label(score=float(shares[number]), label=self.classes[number]) for number in best]


def load_classifier(folder: Path) -> ImageClassifier:
    """Load a folder with a ResNet. Errors as of ``load_model``."""
    with checking(folder):
        model, processor = load_image_model(folder), read_image_processor(folder)
        names = read_class_names(folder) or [f"LABEL_{number}" for number in range(model.config.num_classes)]
        classifier = ImageClassifier(model, names, processor, folder)
    for difference in processor.differences if processor else ():
        log.warning("its image processor: %s; answers may differ", difference)
    return classifier


def _content(picture: Any) -> bytes:
    """Return a picture as the bytes of a file; an array as a PPM."""
    if isinstance(picture, bytes):
        return picture
    if isinstance(picture, str | Path):
        return read_whole(picture)
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
        raise OutlastError(
            f"The picture is an array of {picture.dtype}, of shape {picture.shape}.",
            expected="uint8 (height, width, 3), RGB",
        )
    return b"P6 %d %d 255\n" % (picture.shape[1], picture.shape[0]) + picture.tobytes()


@partial(jax.jit, static_argnames="config")
def _classify(params: Params, state: ModelState, images: Array, *, config: ResNetConfig) -> Array:
    return classify(params, state, images, config=config, train=False)[0]
