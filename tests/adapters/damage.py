"""Files damaged in transit."""

from __future__ import annotations

import zipfile
from pathlib import Path


def damaged(file: Path, member: str | None = None) -> None:
    """Damages the deflated data of a member of a zip (default: the first) so that it cannot be inflated."""
    with zipfile.ZipFile(file) as archive:
        info = archive.infolist()[0] if member is None else archive.getinfo(member)
    assert info.compress_type == zipfile.ZIP_DEFLATED
    content = bytearray(file.read_bytes())
    begin = info.header_offset + 30
    name, extra = (int.from_bytes(content[begin - 4 + 2 * k : begin - 2 + 2 * k], "little") for k in (0, 1))
    content[begin + name + extra] = 0xFF  # a kind of block that does not exist
    file.write_bytes(content)
