"""What a submit brings that no decision needs: environment and script. Stored once per content, by its hash."""

import hashlib

import msgspec


class Payload(msgspec.Struct, frozen=True):
    """environment: (name, value) pairs as submitted. script: content of a batch script, None for a command."""

    environment: list[tuple[bytes, bytes]]
    script: bytes | None = None


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Payload)


def encode_payload(payload: Payload) -> tuple[str, bytes]:
    """The hash that names it, and its bytes."""
    content = _ENCODER.encode(payload)
    return hashlib.sha256(content).hexdigest(), content


def decode_payload(content: bytes) -> Payload:
    return _DECODER.decode(content)
