"""The token that a TCP client must show. Made once, readable by the owner only; never logged."""

import os
import secrets
from pathlib import Path


def api_token(home: Path) -> str:
    """The token of this home, made if it is not there yet."""
    path = home / "token"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text().strip()
    token = secrets.token_urlsafe(32)
    with os.fdopen(descriptor, "w") as file:
        file.write(token + "\n")
    return token
