"""Messages of several libraries in one process: Protocol Buffers keeps ours and sentencepiece's apart."""

import io
from typing import Any

import numpy as np
import pytest

from outlast.interchange.tf_example import decode_example, encode_rows, values_of

pytestmark = pytest.mark.peers


def check_ours() -> None:
    message = encode_rows({"input_ids": ("int64", np.array([[1, 300]]))})[0]
    assert list(values_of(decode_example(message, "f")["input_ids"])) == [1, 300]


def test_sentencepieces_own_messages_are_read_beside_ours() -> None:
    import sentencepiece

    check_ours()
    proto: Any = pytest.importorskip("transformers.utils.sentencepiece_model_pb2_new")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c d e"] * 50), model_writer=model, vocab_size=9, minloglevel=2
    )
    assert len(proto.ModelProto.FromString(model.getvalue()).pieces) == 9
    check_ours()
