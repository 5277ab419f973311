"""Settings of the verbs: flags over POTLUCK_* variables over a TOML file over defaults. Whatever is wrong is named.

A file has one table per verb, like `[train]` and `[join]`, with the flags' names as keys (`run_dir` for --run-dir).
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Mapping
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from potluck import units
from potluck.advice import did_you_mean
from potluck.errors import InputError
from potluck.settings.address import plain_network, split_address
from potluck.types import DeviceSpec

DEFAULT_FILE = Path("potluck.toml")
PREFIX = "POTLUCK_"
NOT_SETTINGS = ("CONFIG", "DEBUG", "EXTENSIONS")  # variables of ours that no file may hold

S = TypeVar("S", bound="Settings")


def _text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError(f"{value!r} is a {_kind(value)}; give a text")
    return str(value)


def _texts(value: object) -> str:
    """A list in TOML is what commas are on the command line."""
    return ",".join(_text(item) for item in value) if isinstance(value, list) else _text(value)


def _truth(value: object) -> bool:
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise InputError(f"{value!r} is neither true nor false; give one of them")


def _whole(least: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        number = int(value) if isinstance(value, str) and value.isdecimal() else value
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise InputError(f"{value!r} does not do; give a whole number, at least {least}")
        return number

    return read


def _one_of(*choices: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if value not in choices:
            raise InputError(f"{value!r} is not known; {did_you_mean(str(value), sorted(choices))}")
        return str(value)

    return read


def _path(value: object) -> Path:
    return Path(_text(value)).expanduser()


def _speeds(value: object) -> tuple[tuple[str, float], ...]:
    if isinstance(value, dict):  # local = {desk = 1, pi = 0.25}
        value = [f"{name}={_text(speed)}" for name, speed in value.items()]
    found = units.speeds(_texts(value))
    for name, _ in found:
        _device_name(name)
    return found


def _device_name(value: object) -> str:
    return DeviceSpec(name=_text(value)).name  # which refuses what cannot be a name


def _sizes(value: object) -> tuple[int, ...]:
    return tuple(units.size_bytes(item.strip()) for item in _texts(value).split(","))


def _named_paths(value: object) -> tuple[str, ...]:
    """NAME=PATH, several in a list."""
    return tuple(_text(item) for item in value) if isinstance(value, list | tuple) else (_text(value),)


def _one_speed(value: object) -> float:
    found = units.speeds(_text(value))
    if len(found) > 1:
        raise InputError(f"{value!r} names several; give one speed, like 0.5")
    return found[0][1]


def _listen(value: object) -> str:
    host, port = split_address(_text(value), port_needed=False)
    return f"{host}:{port}"


class Settings:
    """What the settings of every verb have in common: a table in the file, and a reader for each key.

    A reader takes a flag's or variable's text, or a TOML value.
    """

    TABLE: ClassVar[str]
    READERS: ClassVar[dict[str, Callable[[object], Any]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainSettings(Settings):
    """How to train; `potluck train --help` says what each one means."""

    local: tuple[tuple[str, float], ...] | None = None  # (name, speed) of each emulated device
    bandwidth: float | None = None  # bytes per second
    memory: tuple[int, ...] = (0,)  # bytes, for all local devices or for each; 0: not limited
    threads: int | None = None
    plan: Path | None = None
    run_dir: Path | None = None
    carrier: str = "zmq"
    listen: str | None = None
    devices: int = 0
    no_local: bool = False
    plain_network: IPv4Network | None = None
    timeout: float = 300.0  # seconds
    profile_seconds: float = 15.0
    profile_dir: Path | None = None
    plan_seconds: float = 2.0
    tries: int = 0
    chaos: Path | None = None
    sync: str | None = None
    data: tuple[str, ...] = ()  # NAME=PATH
    json: bool = False

    TABLE: ClassVar[str] = "train"
    READERS: ClassVar[dict[str, Callable[[object], Any]]] = {
        "local": _speeds,
        "bandwidth": lambda value: units.rate_bytes_s(_text(value)),
        "memory": _sizes,
        "threads": _whole(1),
        "plan": _path,
        "run_dir": _path,
        "carrier": _one_of("zmq", "gloo"),
        "listen": _listen,
        "devices": _whole(0),
        "no_local": _truth,
        "plain_network": lambda value: plain_network(_text(value)),
        "timeout": lambda value: units.duration_s(_text(value)),
        "profile_seconds": lambda value: units.duration_s(_text(value)),
        "profile_dir": _path,
        "plan_seconds": lambda value: units.duration_s(_text(value)),
        "tries": _whole(0),
        "chaos": _path,
        "sync": _text,
        "data": _named_paths,
        "json": _truth,
    }

    def __post_init__(self) -> None:
        if self.data and self.sync is None:
            raise InputError("--data names data that stays on a device; that needs --sync, like --sync ours")
        if self.sync is not None and self.carrier != "zmq":
            raise InputError("--sync: only zmq carries pushes; leave out --carrier")
        if self.sync is not None and (self.plan is not None or self.tries):
            raise InputError("--sync: every device trains the whole model; leave out --plan and --tries")
        if self.no_local and self.local is not None:
            raise InputError("--no-local and --local contradict each other; give one of them")
        if self.no_local and not self.devices:
            raise InputError("--no-local leaves nobody to train; say with --devices how many join from elsewhere")
        if self.listen is not None and not self.devices:
            raise InputError("--listen: nobody is expected; say with --devices how many devices will join")
        count = len(self.local or ("own",))
        if len(self.memory) not in (1, count):
            raise InputError(f"--memory: {len(self.memory)} sizes for {count} local devices; give one, or one for each")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProfileSettings(TrainSettings):
    """How to measure; `potluck profile --help` says what each one means."""

    save: Path | None = None
    load: Path | None = None
    fresh: bool = False

    TABLE: ClassVar[str] = "profile"
    READERS: ClassVar[dict[str, Callable[[object], Any]]] = {
        **{
            k: reader
            for k, reader in TrainSettings.READERS.items()
            if k not in ("plan", "run_dir", "plan_seconds", "tries", "chaos", "sync", "data")
        },
        "save": _path,
        "load": _path,
        "fresh": _truth,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.load is not None and (self.save is not None or self.fresh):
            raise InputError("--load shows a profile and measures nothing; leave out --save and --fresh")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanSettings(ProfileSettings):
    """How to plan; `potluck plan --help` says what each one means."""

    fleet: Path | None = None
    planner: str = "potluck"
    plan_seconds: float = 5.0
    out: Path | None = None

    TABLE: ClassVar[str] = "plan"
    READERS: ClassVar[dict[str, Callable[[object], Any]]] = {
        **{key: reader for key, reader in ProfileSettings.READERS.items() if key != "save"},
        "fleet": _path,
        "planner": _text,
        "plan_seconds": lambda value: units.duration_s(_text(value)),
        "out": _path,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fleet is not None and (self.local is not None or self.devices or self.bandwidth is not None):
            raise InputError("--fleet describes all devices and links; leave out --local, --devices and --bandwidth")
        if self.load is not None and (self.local is not None or self.devices or self.bandwidth is not None):
            raise InputError("--load has its own devices and links; leave out --local, --devices and --bandwidth")


@dataclasses.dataclass(frozen=True, kw_only=True)
class JoinSettings(Settings):
    """How a device joins; `potluck join --help` says what each one means."""

    name: str | None = None
    device: str = "cpu"
    threads: int | None = None
    speed: float = 1.0
    memory: int = 0  # bytes; 0: not limited
    hold: float = 300.0  # seconds
    chaos: bool = False
    data: tuple[str, ...] = ()  # NAME=PATH
    plain_network: IPv4Network | None = None

    TABLE: ClassVar[str] = "join"
    READERS: ClassVar[dict[str, Callable[[object], Any]]] = {
        "name": _device_name,
        "device": _one_of("cpu", "cuda", "mps"),
        "threads": _whole(1),
        "speed": _one_speed,
        "memory": lambda value: units.size_bytes(_text(value)),
        "hold": lambda value: units.duration_s(_text(value)),
        "chaos": _truth,
        "data": _named_paths,
        "plain_network": lambda value: plain_network(_text(value)),
    }


VERBS: tuple[type[Settings], ...] = (TrainSettings, ProfileSettings, PlanSettings, JoinSettings)


def config_file(flag: Path | None, environment: Mapping[str, str]) -> Path | None:
    """The file to read: the one given, else that of POTLUCK_CONFIG, else ./potluck.toml if there is one."""
    if flag is not None:
        return flag
    given = environment.get(PREFIX + "CONFIG")
    if given:
        return Path(given)
    return DEFAULT_FILE if DEFAULT_FILE.is_file() else None


def settle(kind: type[S], flags: Mapping[str, object], environment: Mapping[str, str], file: Path | None = None) -> S:
    """The settings of a verb; of `flags`, those that are None were not given."""
    values = _from_file(kind, file)
    values |= _from_environment(kind, environment)
    for key, value in flags.items():
        if value is not None:
            values[key] = _read(kind, key, value, f"--{key.replace('_', '-')}")
    return kind(**values)


def _read(kind: type[Settings], key: str, value: object, where: str) -> Any:
    try:
        return kind.READERS[key](value)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _from_environment(kind: type[Settings], environment: Mapping[str, str]) -> dict[str, Any]:
    known = {PREFIX + key.upper() for verb in VERBS for key in verb.READERS}
    known |= {PREFIX + name for name in NOT_SETTINGS}
    for name in environment:
        if name.startswith(PREFIX) and name not in known:
            hint = did_you_mean(name, sorted(known), prefix=PREFIX)
            raise InputError(f"{name}: unknown variable, correct or unset it; {hint}")
    given = {key: (PREFIX + key.upper(), environment.get(PREFIX + key.upper())) for key in kind.READERS}
    return {key: _read(kind, key, text, name) for key, (name, text) in given.items() if text}


def _from_file(kind: type[Settings], file: Path | None) -> dict[str, Any]:
    """The values of the verb's table; every other table is checked too, as devices started here will read them."""
    if file is None:
        return {}
    tables = {verb.TABLE: verb for verb in VERBS}
    found: dict[str, Any] = {}
    for table, content in _parse(file).items():
        if table not in tables or not isinstance(content, dict):
            if not isinstance(content, dict):
                raise InputError(f"{file}: {table}: a key outside any table; put it under [train] or [join]")
            raise InputError(f"{file}: [{table}]: unknown table; {did_you_mean(table, sorted(tables))}")
        readers = tables[table].READERS
        for key, value in content.items():
            if key not in readers:
                raise InputError(f"{file}: {table}.{key}: unknown key; {did_you_mean(key, sorted(readers))}")
            read = _read(tables[table], key, value, f"{file}: {table}.{key}")
            if table == kind.TABLE:
                found[key] = read
    return found


def _parse(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}); give the path of a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: not TOML ({error}); write keys as in docs/configuration.md") from None


def _kind(value: object) -> str:
    names = {bool: "truth value", list: "list", dict: "table"}
    return names.get(type(value), type(value).__name__)
