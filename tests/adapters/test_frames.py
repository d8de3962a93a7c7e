"""Frames: however the bytes are cut on their way, the same frames come out; sockets have short names."""

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courtier.adapters.process.frames import FRAME_BYTES_MAX, HEADER, FrameReader, connect_in, frame, socket_address

frames = st.lists(st.tuples(st.sampled_from([b"a", b"i", b"o", b"x"]), st.binary(max_size=40)), max_size=6)


@given(frames, st.lists(st.integers(1, 12), min_size=1))
def test_frames_come_whole_whatever_the_pieces(sent: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    stream = b"".join(frame(kind, content) for kind, content in sent)
    reader, found, place = FrameReader(), [], 0
    for turn in range(len(stream)):
        size = cuts[turn % len(cuts)]
        found += reader.feed(stream[place : place + size])
        place += size
    assert found == sent
    assert reader.feed(b"") == []


def test_a_frame_too_large_is_refused_before_it_is_held() -> None:
    reader = FrameReader()
    assert reader.feed(frame(b"i", b"x" * FRAME_BYTES_MAX)) == [(b"i", b"x" * FRAME_BYTES_MAX)]
    with pytest.raises(ValueError, match="bytes"):
        reader.feed(HEADER.pack(b"i", FRAME_BYTES_MAX + 1))


def test_a_socket_in_a_deep_folder_can_be_reached(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    folder = os.open(deep, os.O_PATH | os.O_DIRECTORY)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(socket_address(folder, "s"))
        os.close(folder)
        listener.listen(1)
        before = len(os.listdir("/proc/self/fd"))
        with connect_in(str(deep), "s") as client:
            client.sendall(b"hello")
            peer, _ = listener.accept()
            assert peer.recv(5) == b"hello"
            peer.close()
        with pytest.raises(OSError, match="No such file"):
            connect_in(str(deep), "nobody")
        assert len(os.listdir("/proc/self/fd")) == before
