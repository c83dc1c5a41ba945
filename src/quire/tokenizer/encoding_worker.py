"""The main function of a process that encodes texts, which encoding_subprocess.py starts."""

from __future__ import annotations

import msgspec
import tokenizers

from quire.errors import is_failure
from quire.framed_child import Answer, end_self_after, serve_frames
from quire.tokenizer.control_names import EncodeText, careful_encoder, plain_encoder
from quire.tokenizer.encoding_subprocess import Failure, Question

MEMORY_BYTES = 4 << 30  # for a text, besides what the process has at its start


def main() -> None:
    """Encode the texts that arrive on stdin, until it ends."""
    serve_frames(_begin, MEMORY_BYTES)


def _begin(spec: bytes) -> Answer:
    backend = tokenizers.Tokenizer.from_str(spec.decode())
    plain, careful = plain_encoder(backend), careful_encoder(backend)

    def answer(frame: bytes) -> bytes:
        seconds, question = msgspec.msgpack.decode(frame, type=tuple[float, Question])
        end_self_after(2 * seconds)
        return msgspec.msgpack.encode(_ids(careful if question.is_broken else plain, question))

    return answer


def _ids(encode: EncodeText, question: Question) -> list[int] | Failure:
    try:
        return encode(question.text, question.add_special_tokens)
    except BaseException as error:  # a panic of the library, too
        if not is_failure(error):
            raise
        return Failure(str(error))


if __name__ == "__main__":
    main()
