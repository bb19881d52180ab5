"""Which libraries a configuration needs, and that they are there.

In: a ``CleaningConfig``. Out: their versions. What they compute may differ from version to version, so one
build uses one version throughout.
"""

import unicodedata
from importlib.metadata import version

from outlast.cleaning.config import CleaningConfig
from outlast.cleaning.language import known_languages
from outlast.cleaning.signatures import Signatures
from outlast.config import nearest
from outlast.errors import ConfigError


def library_versions(config: CleaningConfig) -> dict[str, str]:
    """Return the versions of what the result depends on: Unicode's tables, and the optional libraries.

    Raises:
        ConfigError: a library is missing, or a language is unknown to it.
    """
    if not config.is_on:
        return {}
    versions = {"unicode": unicodedata.unidata_version}
    if config.duplicates == "near":
        Signatures(config)
        versions["rensa"] = version("rensa")
    if config.languages:
        known = known_languages()
        for language in config.languages:
            if language not in known:
                raise ConfigError(
                    f"The language {language!r} is not known{nearest(language, known)}.",
                    where="cleaning.languages",
                )
        versions["py3langid"] = version("py3langid")
    return versions
