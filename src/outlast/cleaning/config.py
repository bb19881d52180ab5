"""The ``[cleaning]`` table: what is done to documents before they are tokenized, and which are dropped.

In: the values of a recipe. Out: a frozen ``CleaningConfig``, by default one that changes nothing. All of it
is part of the data's identity.
"""

from typing import Literal

import pydantic

from outlast.config import table


@table
class CleaningConfig:
    unicode_form: Literal["none", "NFC", "NFKC"] = "none"
    """NFC makes one character of a letter and its accents; NFKC also replaces compatibility characters, such
    as the full-width forms, by the plain ones."""
    remove_control_characters: bool = False
    """Remove control characters, invisible formatting, byte order marks and noncharacters; other line and
    page breaks become a newline. Tab, newline and the joiners (U+200C, U+200D) stay."""
    min_characters: int = pydantic.Field(default=0, ge=0)
    """A shorter document is dropped."""
    max_characters: int | None = pydantic.Field(default=None, ge=1)
    """A longer document is dropped."""
    min_letter_share: float = pydantic.Field(default=0.0, ge=0.0, le=1.0)
    """A document is dropped if fewer of its characters, white space aside, are letters or their marks."""
    max_repeated_line_share: float = pydantic.Field(default=1.0, ge=0.0, le=1.0)
    """A document is dropped if more of its characters stand in lines that repeat an earlier line of it."""
    max_repeated_text_share: float = pydantic.Field(default=1.0, ge=0.0, le=1.0)
    """A document is dropped if more of its 24-byte windows repeat an earlier one: about four words of
    English, eight characters of Japanese."""
    languages: tuple[str, ...] = ()
    """Documents in other languages are dropped: codes such as "ja" or "en". Needs the extra `language`."""
    duplicates: Literal["keep", "exact", "near"] = "keep"
    """Documents that are dropped because an earlier one of the corpus is equal (exact) or nearly so (near,
    which needs the extra `dedup`). Held-out documents that lie apart count as the earliest."""
    near_duplicate_similarity: float = pydantic.Field(default=0.8, ge=0.5, le=0.95)
    """From which Jaccard similarity of their 24-byte windows, as estimated, two documents are near
    duplicates."""
    duplicate_lines: Literal["keep", "drop"] = "keep"
    """Whether lines are removed that stand in an earlier document, or earlier in the same one."""
    min_duplicate_line_characters: int = pydantic.Field(default=20, ge=1)
    """Shorter lines are never removed."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "CleaningConfig":
        if self.max_characters is not None and self.max_characters < self.min_characters:
            raise ValueError(
                f"max_characters is {self.max_characters}, below min_characters, {self.min_characters}"
            )
        return self

    @property
    def is_on(self) -> bool:
        """Whether documents can be changed or dropped at all."""
        return self != CleaningConfig()

    @property
    def needs_scan(self) -> bool:
        """Whether the fate of a document depends on others, so that the corpus is read once before."""
        return self.duplicates != "keep" or self.duplicate_lines == "drop"
