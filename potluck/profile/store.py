"""Profiles on disk: a cache of what was measured, and files that a user saves and loads."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec

from potluck.errors import InputError
from potluck.profile.plausibility import check_device, check_network, check_profile
from potluck.types import DeviceProfile, DeviceSpec, LinkProfile, Medium, Profile, Value

FORMAT: Final = 1  # one more whenever files of before cannot be read any more
MAX_FILE_BYTES = 64 * 2**20  # profiles of hundreds of devices fit, and no memory is at risk
# One more whenever devices take other kernels for the same program (in potluck/model: kernels.py, dense.py, layers.py,
# products.py), or times are measured in another way.
KERNELS = 6
T = TypeVar("T")


class DeviceKey(Value, frozen=True, kw_only=True):
    """What a device's profile holds for: another program, machine, torch or emulation needs another one."""

    program: str
    device: DeviceSpec
    host: str
    torch_version: str
    rows: tuple[int, ...]
    optimizer: str = ""  # its kind: an update is part of the profile
    kernels: int = KERNELS


class NetworkKey(Value, frozen=True, kw_only=True):
    """What the figures of links hold for."""

    devices: tuple[tuple[str, str], ...]  # name and host
    carrier: str
    bandwidth_bytes_s: float | None


class Network(Value, frozen=True, kw_only=True):
    """The links of a fleet, and what a commit takes on it."""

    links: tuple[LinkProfile, ...]
    medium: Medium
    commit_s: float


class _StoredDevice(Value, frozen=True, kw_only=True):
    key: DeviceKey
    profile: DeviceProfile
    format: Literal[1] = FORMAT


class _StoredNetwork(Value, frozen=True, kw_only=True):
    key: NetworkKey
    network: Network
    format: Literal[1] = FORMAT


class _SavedProfile(Value, frozen=True, kw_only=True):
    potluck_profile: Literal[1] = FORMAT
    profile: Profile


def default_dir(environment: Mapping[str, str]) -> Path:
    """Where profiles are kept: under XDG_CACHE_HOME, or ~/.cache."""
    base = environment.get("XDG_CACHE_HOME", "")
    return (Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache") / "potluck" / "profiles"


class Store:
    """A folder of profiles. A damaged file counts as missing, with a word to `note`; a full disk is no failure."""

    def __init__(self, folder: Path, note: Callable[[str], None] = lambda text: None) -> None:
        self.folder, self._note = folder, note

    def path(self, key: DeviceKey | NetworkKey) -> Path:
        name = f"{key.program[:8]}-{key.device.name}" if isinstance(key, DeviceKey) else "network"
        return self.folder / f"{name}-{hashlib.sha256(msgspec.json.encode(key)).hexdigest()[:16]}.json"

    def device(self, key: DeviceKey, blocks: int | None = None) -> DeviceProfile | None:
        """The profile measured before under this key; of so many blocks, if that is known."""
        stored = self._load(self.path(key), _StoredDevice, lambda found: check_device(found.profile, blocks))
        return stored.profile if stored is not None and stored.key == key else None

    def network(self, key: NetworkKey) -> Network | None:
        """The links measured before under this key."""
        names = [name for name, _ in key.devices]

        def check(found: _StoredNetwork) -> None:
            check_network(found.network.links, found.network.commit_s, names)

        stored = self._load(self.path(key), _StoredNetwork, check)
        return stored.network if stored is not None and stored.key == key else None

    def keep(self, key: DeviceKey | NetworkKey, value: DeviceProfile | Network) -> Path | None:
        """Writes a profile, whole or not at all; None if the folder cannot be written to."""
        stored: _StoredDevice | _StoredNetwork
        if isinstance(key, DeviceKey) and isinstance(value, DeviceProfile):
            stored = _StoredDevice(key=key, profile=value)
        elif isinstance(key, NetworkKey) and isinstance(value, Network):
            stored = _StoredNetwork(key=key, network=value)
        else:
            raise TypeError("the key is of another kind than the value")
        path = self.path(key)
        try:
            _write(path, msgspec.json.encode(stored))
        except OSError as error:
            self._note(f"{path}: the profile cannot be kept ({error.strerror}); it will be measured again")
            return None
        return path

    def drop(self, key: DeviceKey | NetworkKey) -> None:
        """Forgets what is kept under a key."""
        try:
            self.path(key).unlink(missing_ok=True)
        except OSError as error:
            self._note(f"{self.path(key)}: an old profile cannot be removed ({error.strerror}); remove it")

    def _load(self, path: Path, kind: type[T], check: Callable[[T], None]) -> T | None:
        try:
            found = msgspec.json.decode(_read(path), type=kind)
            check(found)
            return found
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, InputError, UnicodeDecodeError, RecursionError) as error:
            self._note(f"{path}: not a profile of this version ({_one_line(error)}); measured anew")
            return None


def save(profile: Profile, path: Path) -> None:
    """Writes a profile to a file of the user's; an InputError if that cannot be."""
    try:
        _write(path, msgspec.json.format(msgspec.json.encode(_SavedProfile(profile=profile)), indent=1) + b"\n")
    except OSError as error:
        raise InputError(f"--save: {path} cannot be written ({error.strerror}); give another file") from None


def load(path: Path, program: str | None = None, blocks: int | None = None) -> Profile:
    """The profile of a file; an InputError if it is none, or of another program or number of blocks than given."""
    try:
        found = msgspec.json.decode(_read(path), type=_SavedProfile).profile
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give a file made with --save") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, InputError, RecursionError) as error:
        raise InputError(f"{path}: not a profile ({_one_line(error)}); give a file made with --save") from None
    if program is not None and found.program != program:
        raise InputError(
            f"{path}: a profile of another model ({ascii(found.program[:12])[1:-1]}, this job's is {program[:12]}); "
            "measure again, or give the file of this model"
        )
    try:
        check_profile(found, blocks)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return found


def _read(path: Path) -> bytes:
    """The bytes of a file that is not absurdly large, nor one that never ends or keeps one waiting."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise InputError("it is no regular file")
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise InputError(f"it has more than {MAX_FILE_BYTES} bytes")
    return data


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _one_line(error: Any) -> str:
    """What is wrong on one line; what a terminal would obey is shown escaped."""
    return " ".join("".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(error)).split())[:200]
