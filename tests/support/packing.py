"""Create archives in memory, with headers that a test can change."""

import io
import tarfile
import zipfile


def make_zip(
    files: dict[str, bytes], *, prepare=lambda info: None, method=zipfile.ZIP_DEFLATED
) -> bytes:
    """A zip archive of these files. prepare: changes each header before it is written."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = method
            prepare(info)
            archive.writestr(info, data)
    return buffer.getvalue()


def make_tar(
    files: dict[str, bytes], *, prepare=lambda info: None, form=tarfile.PAX_FORMAT
) -> bytes:
    """A tar archive of these files. prepare: as for `make_zip`."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            prepare(info)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()
