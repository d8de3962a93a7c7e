"""Every hypothesis strategy of the suite, so that a new field is drawn everywhere at once."""

from hypothesis import strategies as st

from courtier.domain.devices import Box, Device, DeviceMode
from courtier.domain.snapshot import BoxRoom, DeviceRoom
from courtier.domain.workloads import Request

GIB = 1 << 30
SIZES = {"L4": 22 * GIB, "A100-40GB": 40 * GIB, "A100-80GB": 80 * GIB}


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    models = draw(st.lists(st.sampled_from(sorted(SIZES)), min_size=1, max_size=6))
    devices = []
    for index, model in enumerate(models):
        kinds = [
            "nvlink" if models[other] == model else draw(st.sampled_from(["pix", "sys"]))
            for other in range(len(models))
        ]
        links = tuple((f"GPU-{other}", kinds[other]) for other in range(len(models)) if other != index)
        devices.append(Device(f"GPU-{index}", index, model, SIZES[model], GIB // 2, index % 2, links))
    return Box("box", draw(st.integers(1, 64)), draw(st.integers(1, 256)) * GIB, tuple(devices))


@st.composite
def requests(draw: st.DrawFn) -> Request:
    memory = draw(st.none() | st.integers(1, 200).map(lambda size: size * GIB))
    split = memory is not None and draw(st.booleans())
    return Request(
        gpus=draw(st.integers(0, 7)),
        gpu_model=draw(st.sampled_from([None, None, "a100", "L4", "a100-80gb", "h100"])),
        gpu_memory_bytes=memory,
        split=split,
        cpus=draw(st.integers(1, 70)),
        memory_bytes=draw(st.none() | st.integers(1, 300).map(lambda size: size * GIB)),
    )


def empty_rooms(box: Box) -> tuple[DeviceRoom, ...]:
    return tuple(DeviceRoom(d, True, False, None, d.memory_bytes_usable, 0) for d in box.devices)


@st.composite
def rooms(draw: st.DrawFn, box: Box) -> tuple[DeviceRoom, ...]:
    """Rooms of a box in use."""
    found = []
    for device in box.devices:
        kind = draw(st.sampled_from(["empty", "whole", "shared", "reclaiming"]))
        usable = device.memory_bytes_usable
        if kind == "shared":
            free = draw(st.integers(0, usable - 1))
            found.append(DeviceRoom(device, True, False, DeviceMode.SHARED, free, 1))
        elif kind == "whole":
            found.append(DeviceRoom(device, True, False, DeviceMode.WHOLE, 0, 1))
        else:
            found.append(DeviceRoom(device, kind == "empty", kind != "empty", None, usable, 0))
    return tuple(found)


def box_room(box: Box) -> BoxRoom:
    return BoxRoom(box.cpus, box.cpus, box.memory_bytes, box.memory_bytes)
