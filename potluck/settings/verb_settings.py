"""Settings of the verbs: flags over POTLUCK_* variables over a TOML file over defaults. Whatever is wrong is named.

A file has one table per verb, like `[train]` and `[join]`, with the flags' names as keys (`run_dir` for --run-dir).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from ipaddress import IPv4Network
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, get_origin, get_type_hints

from potluck.advice import did_you_mean
from potluck.errors import InputError
from potluck.settings import values
from potluck.settings.address import ANY_PORT, Ports

DEFAULT_FILE = Path("potluck.toml")
PREFIX = "POTLUCK_"
# A device is heard twice a second: in less than a second, one late sign of life would be a loss. After 12 s it takes
# the coordinator for gone, and looks for it.
SILENCE_S = (1.0, 12.0)
NOT_SETTINGS = ("CONFIG", "DEBUG", "EXTENSIONS")  # variables of ours that no file may hold

S = TypeVar("S", bound="Settings")


class Settings:
    """What the settings of every verb have in common: a table in the file, and a reader for each key."""

    TABLE: ClassVar[str]
    NOT_HERE: ClassVar[tuple[str, ...]] = ()  # settings of the class it is made from that make no sense here

    @classmethod
    def readers(cls) -> dict[str, values.Reader]:
        """By key of the table: every setting is annotated with its own."""
        hints = get_type_hints(cls, include_extras=True)
        return {k: h.__metadata__[0] for k, h in hints.items() if get_origin(h) is Annotated and k not in cls.NOT_HERE}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainSettings(Settings):
    """How to train; `potluck train --help` says what each one means."""

    local: Annotated[tuple[tuple[str, float], ...] | None, values.named_speeds] = None  # (name, speed) each
    bandwidth: Annotated[float | None, values.rate] = None  # bytes per second
    memory: Annotated[tuple[int, ...], values.sizes] = (0,)  # bytes, for all local devices or for each; 0: not limited
    threads: Annotated[int | None, values.whole(1)] = None
    staleness: Annotated[int | None, values.whole(0)] = None  # None: the job's own
    plan: Annotated[Path | None, values.path] = None
    run_dir: Annotated[Path | None, values.path] = None
    carrier: Annotated[str, values.one_of("zmq", "gloo")] = "zmq"
    listen: Annotated[str | None, values.listen] = None
    devices: Annotated[int, values.whole(0)] = 0
    no_local: Annotated[bool, values.truth] = False
    plain_network: Annotated[IPv4Network | None, values.network] = None
    link_ports: Annotated[Ports, values.ports] = ANY_PORT
    timeout: Annotated[float, values.duration] = 300.0  # seconds
    silence: Annotated[float, values.seconds_between(*SILENCE_S)] = 2.7  # seconds
    return_seconds: Annotated[float, values.duration] = 30.0
    between_losses: Annotated[float, values.duration] = 150.0  # seconds
    copy_part: Annotated[float, values.part] = 0.1  # of a link
    checkpoint_seconds: Annotated[float, values.duration] = 120.0
    replan_gain: Annotated[float, values.part] = 0.05  # of a round
    profile_seconds: Annotated[float, values.duration] = 15.0
    profile_dir: Annotated[Path | None, values.path] = None
    plan_seconds: Annotated[float, values.duration] = 2.0
    tries: Annotated[int, values.whole(0)] = 0
    chaos: Annotated[Path | None, values.path] = None
    sync: Annotated[str | None, values.text] = None
    data: Annotated[tuple[str, ...], values.named_paths] = ()  # NAME=PATH
    json: Annotated[bool, values.truth] = False

    TABLE: ClassVar[str] = "train"

    def __post_init__(self) -> None:
        if self.data and self.sync is None:
            raise InputError("--data names data that stays on a device; that needs --sync, like --sync ours")
        if self.sync is not None and self.carrier != "zmq":
            raise InputError("--sync: only zmq carries pushes; leave out --carrier")
        if self.sync is not None and self.staleness is not None:
            raise InputError("--sync: how late a push is, its policy says; leave out --staleness")
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


_OF_TRAINING = (  # what says nothing to a verb that does not train
    "plan", "run_dir", "tries", "chaos", "sync", "data", "silence", "return_seconds", "between_losses", "copy_part",
    "checkpoint_seconds", "replan_gain",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProfileSettings(TrainSettings):
    """How to measure; `potluck profile --help` says what each one means."""

    save: Annotated[Path | None, values.path] = None
    load: Annotated[Path | None, values.path] = None
    fresh: Annotated[bool, values.truth] = False

    TABLE: ClassVar[str] = "profile"
    NOT_HERE: ClassVar[tuple[str, ...]] = (*_OF_TRAINING, "plan_seconds", "staleness")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.load is not None and (self.save is not None or self.fresh):
            raise InputError("--load shows a profile and measures nothing; leave out --save and --fresh")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanSettings(ProfileSettings):
    """How to plan; `potluck plan --help` says what each one means."""

    fleet: Annotated[Path | None, values.path] = None
    planner: Annotated[str, values.text] = "potluck"
    plan_seconds: Annotated[float, values.duration] = 5.0
    out: Annotated[Path | None, values.path] = None

    TABLE: ClassVar[str] = "plan"
    NOT_HERE: ClassVar[tuple[str, ...]] = (*_OF_TRAINING, "save")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fleet is not None and (self.local is not None or self.devices or self.bandwidth is not None):
            raise InputError("--fleet describes all devices and links; leave out --local, --devices and --bandwidth")
        if self.load is not None and (self.local is not None or self.devices or self.bandwidth is not None):
            raise InputError("--load has its own devices and links; leave out --local, --devices and --bandwidth")


@dataclasses.dataclass(frozen=True, kw_only=True)
class JoinSettings(Settings):
    """How a device joins; `potluck join --help` says what each one means."""

    name: Annotated[str | None, values.device_name] = None
    device: Annotated[str, values.one_of("cpu", "cuda", "mps")] = "cpu"
    threads: Annotated[int | None, values.whole(1)] = None
    speed: Annotated[float, values.one_speed] = 1.0
    memory: Annotated[int, values.size] = 0  # bytes; 0: not limited
    hold: Annotated[float, values.duration] = 300.0  # seconds
    link_ports: Annotated[Ports, values.ports] = ANY_PORT
    chaos: Annotated[bool, values.truth] = False
    data: Annotated[tuple[str, ...], values.named_paths] = ()  # NAME=PATH
    plain_network: Annotated[IPv4Network | None, values.network] = None

    TABLE: ClassVar[str] = "join"


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
    found = _from_file(kind, file) | _from_environment(kind, environment)
    readers = kind.readers()
    for key, value in flags.items():
        if value is not None:
            found[key] = values.read(readers[key], value, f"--{key.replace('_', '-')}")
    return kind(**found)


def _from_environment(kind: type[Settings], environment: Mapping[str, str]) -> dict[str, Any]:
    known = {PREFIX + key.upper() for verb in VERBS for key in verb.readers()}
    known |= {PREFIX + name for name in NOT_SETTINGS}
    for name in environment:
        if name.startswith(PREFIX) and name not in known:
            hint = did_you_mean(name, sorted(known), prefix=PREFIX)
            raise InputError(f"{name}: unknown variable, correct or unset it; {hint}")
    named = {key: PREFIX + key.upper() for key in kind.readers()}
    given = {key: name for key, name in named.items() if environment.get(name)}
    return {key: values.read(kind.readers()[key], environment[name], name) for key, name in given.items()}


def _from_file(kind: type[Settings], file: Path | None) -> dict[str, Any]:
    """The values of the verb's table; every other table is checked too, as devices started here will read them."""
    if file is None:
        return {}
    tables = {verb.TABLE: verb for verb in VERBS}
    found: dict[str, dict[str, Any]] = {}
    for table, content in values.read_toml(file, "TOML", "docs/configuration.md").items():
        if not isinstance(content, dict):
            raise InputError(f"{file}: {table}: a key outside any table; put it under [train] or [join]")
        if table not in tables:
            raise InputError(f"{file}: [{table}]: unknown table; {did_you_mean(table, sorted(tables))}")
        found[table] = values.read_table(content, tables[table].readers(), f"{file}: {table}.")
    return found.get(kind.TABLE, {})
