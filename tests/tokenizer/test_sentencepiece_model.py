"""The reader of sentencepiece's own file format: equal to the library, and a typed error for any damage."""

import contextlib
import io

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.errors import TokenizerError
from outlast.tokenizer.sentencepiece_model import PieceType, append_control_pieces, parse_model


@pytest.fixture(scope="module")
def content() -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the quick brown fox", "jumps over the lazy dog"] * 20),
        model_writer=model,
        vocab_size=330,
        hard_vocab_limit=False,
        byte_fallback=True,
        user_defined_symbols=["_X_"],
        control_symbols=["[CLS]"],
        normalization_rule_name="nfkc",
        add_dummy_prefix=False,
        minloglevel=2,
    )
    return model.getvalue()


def test_reads_what_the_library_reads(content: bytes) -> None:
    processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    model = parse_model(content)
    assert len(model.pieces) == processor.get_piece_size()
    for index, piece in enumerate(model.pieces):
        assert piece.text == processor.id_to_piece(index)
        assert piece.score == processor.get_score(index)
        assert (piece.type == PieceType.CONTROL) == processor.is_control(index)
        assert (piece.type == PieceType.BYTE) == processor.is_byte(index)
        assert (piece.type == PieceType.UNKNOWN) == processor.is_unknown(index)
    assert [piece.text for piece in model.pieces if piece.type == PieceType.USER_DEFINED] == ["_X_"]
    assert (model.kind, model.byte_fallback, model.normalization_rule) == ("unigram", True, "nfkc")
    assert (model.add_dummy_prefix, model.remove_extra_whitespaces) == (False, True)
    assert len(model.charsmap) > 100_000


def test_appended_pieces_are_read_by_the_library(content: bytes) -> None:
    name = "[" + "LONG" * 50 + "]"
    processor = sentencepiece.SentencePieceProcessor(model_proto=append_control_pieces(content, [name, "é"]))
    size = len(parse_model(content).pieces)
    assert [processor.id_to_piece(size), processor.id_to_piece(size + 1)] == [name, "é"]
    assert processor.is_control(size)
    assert size not in processor.encode(name)


def test_word_models_are_refused() -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the quick brown fox"]),
        model_writer=model,
        model_type="word",
        vocab_size=7,
        minloglevel=2,
    )
    with pytest.raises(TokenizerError, match="of the kind 'word'"):
        parse_model(model.getvalue())


@settings(max_examples=300)
@given(st.data())
def test_damage_is_a_typed_error_or_a_model(content: bytes, data: st.DataObject) -> None:
    damaged = bytearray(content[: data.draw(st.integers(0, len(content)))])
    for _ in range(data.draw(st.integers(0, 3))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(TokenizerError):
        parse_model(bytes(damaged))
