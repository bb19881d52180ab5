# The public names, in the order of the journey: written here and nowhere else. `__init__.py` reads this file.
# ruff: noqa: I001
__all__: list[str]

from outlast.version import __version__ as __version__

from outlast.recipe import Recipe as Recipe
from outlast.recipe import make_recipe as make_recipe
from outlast.recipe import read_recipe as read_recipe
from outlast.prepare.build import prepare_data as prepare_data
from outlast.stream.loader import open_stream as open_stream
from outlast.images.stream import open_images as open_images
from outlast.run.import_model import import_model as import_model
from outlast.run.train import train_run as train_run
from outlast.run.evaluate import evaluate_run as evaluate_run
from outlast.run.export import export_run as export_run
from outlast.inference.load import load_model as load_model
from outlast.inference.text import Model as Model
from outlast.inference.text import fill_mask as fill_mask
from outlast.inference.pictures import ImageClassifier as ImageClassifier

from outlast.errors import OutlastError as OutlastError
from outlast.errors import ConfigError as ConfigError
from outlast.errors import CorpusError as CorpusError
from outlast.errors import TokenizerError as TokenizerError
from outlast.errors import ShardError as ShardError
from outlast.errors import StorageError as StorageError
from outlast.errors import CheckpointError as CheckpointError
from outlast.errors import RunError as RunError
from outlast.errors import Preempted as Preempted
from outlast.errors import Interrupted as Interrupted
