"""What the worker and its owner tell each other: MessagePack frames, each behind its length, over a socket pair.

The worker imports this: it must stay light, and bring nothing but msgspec along.
"""

import socket
import struct

import msgspec

LENGTH = struct.Struct(">I")
FRAME_BYTES_MAX = 16 << 20


class Message(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """One frame; the first field on the wire is the name of its class."""


class Discover(Message, frozen=True):
    """Asks for a `Described` of each GPU, their `Links`, and `Done` after at most so long."""

    budget_ms: int


class Watch(Message, frozen=True):
    """Asks to stay and read these GPUs: (uuid, PCI bus id or None)."""

    gpus: list[tuple[str, str | None]]


class Look(Message, frozen=True):
    """Asks for one `Seen` of one watched GPU."""

    uuid: str


class Started(Message, frozen=True):
    """How the initialisation ended: NVML's return code, its text, and the file that was loaded where one was.

    `code` 0 is success; `binding` False: nvidia-ml-py itself could not be imported.
    """

    code: int
    text: str
    library_path: str | None
    driver_version: str | None = None
    gpus: int = 0
    binding: bool = True


class Described(Message, frozen=True):
    """One GPU as the driver describes it; `code` says why it could not be (then only `index` counts)."""

    index: int
    code: int = 0
    text: str = ""
    uuid: str = ""
    name: str = ""
    minor: int | None = None
    pci_bus_id: str | None = None
    memory_supported: bool = False
    memory_bytes_total: int = 0
    memory_bytes_reserved: int | None = None
    numa_node: int | None = None
    cpus: list[int] = []
    mig: bool = False


class Links(Message, frozen=True):
    """How one GPU reaches others: (index, kind of domain.devices.LINK_KINDS)."""

    index: int
    links: list[tuple[int, str]]


class Done(Message, frozen=True):
    """The end of a discovery."""


class Seen(Message, frozen=True):
    """One look. A metric that is None stands in `errors` with NVML's code (3: the driver does not support it).

    processes are (pid, bytes or None), None where the driver has no list. fault is a word of domain Reading.fault.
    """

    uuid: str
    fault: str | None = None
    memory_bytes_used: int | None = None
    utilization_percent: int | None = None
    temperature_celsius: int | None = None
    power_milliwatts: int | None = None
    processes: list[tuple[int, int | None]] | None = None
    errors: dict[str, int] = {}


class Xid(Message, frozen=True):
    """An error event of the driver on one GPU."""

    uuid: str
    code: int


FromWorker = Started | Described | Links | Done | Seen | Xid
ToWorker = Discover | Watch | Look

_encoder = msgspec.msgpack.Encoder()
decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode
decode_to_worker = msgspec.msgpack.Decoder(ToWorker).decode


def frame(message: Message) -> bytes:
    content = _encoder.encode(message)
    return LENGTH.pack(len(content)) + content


class Frames:
    """Cuts a byte stream into the contents of frames. Raises ValueError on a frame too large."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        self._buffer += data
        contents = []
        while len(self._buffer) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._buffer)
            if length > FRAME_BYTES_MAX:
                raise ValueError(f"a frame of {length} bytes")
            if len(self._buffer) < LENGTH.size + length:
                break
            contents.append(bytes(self._buffer[LENGTH.size : LENGTH.size + length]))
            del self._buffer[: LENGTH.size + length]
        return contents


def receive(connection: socket.socket, frames: Frames) -> list[bytes] | None:
    """The contents of what has come; None at the end of the stream. Raises OSError, ValueError."""
    data = connection.recv(1 << 16)
    return frames.feed(data) if data else None
