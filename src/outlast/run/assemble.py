"""From a recipe of any kind to the parts of its run."""

from outlast.recipe import ImageRecipe, Recipe
from outlast.run.images import assemble_images
from outlast.run.parts import RunParts, assemble


def assemble_run(recipe: Recipe | ImageRecipe) -> RunParts:
    """Check a recipe against its data and make the parts of the run. Raises ConfigError, ShardError."""
    return assemble_images(recipe) if isinstance(recipe, ImageRecipe) else assemble(recipe)
