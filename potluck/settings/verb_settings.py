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

from potluck.advice import did_you_mean
from potluck.errors import InputError
from potluck.settings import readers
from potluck.settings.address import ANY_PORT, Ports

DEFAULT_FILE = Path("potluck.toml")
PREFIX = "POTLUCK_"
# A device is heard twice a second: in less than a second, one late sign of life would be a loss. After 12 s it takes
# the coordinator for gone, and looks for it.
SILENCE_S = (1.0, 12.0)
NOT_SETTINGS = ("CONFIG", "DEBUG", "EXTENSIONS")  # variables of ours that no file may hold

S = TypeVar("S", bound="Settings")


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
    link_ports: Ports = ANY_PORT
    timeout: float = 300.0  # seconds
    silence: float = 2.7  # seconds
    return_seconds: float = 30.0
    between_losses: float = 150.0  # seconds
    copy_part: float = 0.1  # of a link
    checkpoint_seconds: float = 120.0
    replan_gain: float = 0.05  # of a round
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
        "local": readers.named_speeds,
        "bandwidth": readers.rate_bytes_s,
        "memory": readers.sizes,
        "threads": readers.whole(1),
        "plan": readers.path,
        "run_dir": readers.path,
        "carrier": readers.one_of("zmq", "gloo"),
        "listen": readers.listen,
        "devices": readers.whole(0),
        "no_local": readers.truth,
        "plain_network": readers.network,
        "link_ports": readers.ports,
        "timeout": readers.duration_s,
        "silence": readers.seconds_between(*SILENCE_S),
        "return_seconds": readers.duration_s,
        "between_losses": readers.duration_s,
        "copy_part": readers.part,
        "checkpoint_seconds": readers.duration_s,
        "replan_gain": readers.part,
        "profile_seconds": readers.duration_s,
        "profile_dir": readers.path,
        "plan_seconds": readers.duration_s,
        "tries": readers.whole(0),
        "chaos": readers.path,
        "sync": readers.text,
        "data": readers.named_paths,
        "json": readers.truth,
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
        if self.link_ports != ANY_PORT and self.carrier != "zmq":
            raise InputError("--link-ports: gloo chooses its ports itself; leave it out, or use --carrier zmq")
        count = len(self.local or ("own",))
        if len(self.memory) not in (1, count):
            raise InputError(f"--memory: {len(self.memory)} sizes for {count} local devices; give one, or one for each")


_OF_TRAINING = (  # what says nothing to a verb that only measures
    "plan", "run_dir", "plan_seconds", "tries", "chaos", "sync", "data", "silence", "return_seconds", "between_losses",
    "copy_part", "checkpoint_seconds", "replan_gain",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProfileSettings(TrainSettings):
    """How to measure; `potluck profile --help` says what each one means."""

    save: Path | None = None
    load: Path | None = None
    fresh: bool = False

    TABLE: ClassVar[str] = "profile"
    READERS: ClassVar[dict[str, Callable[[object], Any]]] = {
        **{k: reader for k, reader in TrainSettings.READERS.items() if k not in _OF_TRAINING},
        "save": readers.path,
        "load": readers.path,
        "fresh": readers.truth,
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
        "fleet": readers.path,
        "planner": readers.text,
        "plan_seconds": readers.duration_s,
        "out": readers.path,
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
    link_ports: Ports = ANY_PORT
    chaos: bool = False
    data: tuple[str, ...] = ()  # NAME=PATH
    plain_network: IPv4Network | None = None

    TABLE: ClassVar[str] = "join"
    READERS: ClassVar[dict[str, Callable[[object], Any]]] = {
        "name": readers.device_name,
        "device": readers.one_of("cpu", "cuda", "mps"),
        "threads": readers.whole(1),
        "speed": readers.one_speed,
        "memory": readers.size_bytes,
        "hold": readers.duration_s,
        "link_ports": readers.ports,
        "chaos": readers.truth,
        "data": readers.named_paths,
        "plain_network": readers.network,
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
