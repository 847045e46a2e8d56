"""Answers pip's question for metadata from the distribution's ``PKG-INFO``.

pip downloads no source distribution without asking its build backend for metadata, and the real one would compile it
for an answer.
"""

from email import message_from_bytes
from pathlib import Path
from shutil import copyfile


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: object = None) -> str:
    """The hook of PEP 517, called in the folder of the distribution."""
    information = message_from_bytes(Path("PKG-INFO").read_bytes())
    folder = Path(metadata_directory, f"{information['Name']}-{information['Version']}.dist-info")
    folder.mkdir()
    copyfile("PKG-INFO", folder / "METADATA")
    return folder.name


def build_wheel(wheel_directory: str, config_settings: object = None, metadata_directory: str | None = None) -> str:
    """The hook of PEP 517 that each backend has.

    Raises:
        NotImplementedError: always; nothing is to be built.
    """
    raise NotImplementedError("this distribution is downloaded for its files")
