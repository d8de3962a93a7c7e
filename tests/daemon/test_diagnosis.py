"""What doctor finds out by itself."""

import shutil
import tempfile
from pathlib import Path

from courtier.daemon.diagnosis import closed_to_others


def test_a_program_behind_a_closed_folder_is_closed_to_others() -> None:
    room = Path(tempfile.mkdtemp(prefix="courtier-test-", dir="/tmp"))
    try:
        program = room / "program"
        program.write_text("")
        program.chmod(0o755)
        room.chmod(0o700)
        assert closed_to_others(str(program)) == str(room)
        room.chmod(0o711)
        assert closed_to_others(str(program)) is None
        program.chmod(0o700)
        assert closed_to_others(str(program)) == str(program)
        link = room / "link"
        link.symlink_to(program)
        assert closed_to_others(str(link)) == str(program)
    finally:
        shutil.rmtree(room)
