"""Reads a plan, and says whether it can be run. Each message names the field and the fix (docs/plan-format.md)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from potluck.compress.codec_registry import is_known, unknown_codec
from potluck.errors import PlanError
from potluck.plan.cost.memory import MemoryUse, peak_bytes
from potluck.plan.schedule.asked_schedule import check_schedule
from potluck.plan.schedule.holders import stage_of
from potluck.plan.schedule.known_schedules import schedule_named
from potluck.types import Block, Fleet, Member, ModelFacts, Plan, Stage

MAX_FILE_BYTES = 1 << 20
MAX_MICRO_BATCH_SIZE = 1_000_000
MAX_MICRO_BATCHES = 10_000
MAX_SUMS = 1_000_000

_FIX = {
    "version": "give 1, the only version there is",
    "micro_batch_size": "give a whole number of samples",
    "micro_batches": "give a whole number",
    "stages": "give a list of stages",
    "blocks": "give [first, end], two whole numbers",
    "group": 'give a list like [{"device": "name", "share": 1}]',
    "device": "give the name of a device",
    "share": "give a whole number",
    "sums": "give a whole number, 0 for none of it",
    "sharing": 'give "turns" or "samples"',
    "depth": "give a whole number, or leave it out",
    "schedule": 'give the name of a schedule, like "1f1b"',
    "late_weights": "give a whole number, 0 for none",
    "codec": "give the name of a codec, or leave it out",
}


def read_plan(path: Path) -> Plan:
    """The plan in a JSON file. Whether it fits a model and a fleet is `validate`'s question."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except OSError as e:
        raise PlanError(f"{path}: {e.strerror or e}; give the path of a plan file") from None
    if len(text) > MAX_FILE_BYTES:
        raise PlanError(f"{path}: more than {MAX_FILE_BYTES} bytes; give the path of a plan file")
    try:
        plan = msgspec.json.decode(text, type=Plan)
        _check_sizes(plan)
    except PlanError as e:
        raise PlanError(f"{path}: {str(e).removeprefix('plan: ')}") from None
    except msgspec.ValidationError as e:
        raise PlanError(f"{path}: {_what_is_wrong(str(e))}") from None
    except UnicodeDecodeError:
        raise PlanError(f"{path}: text that is not UTF-8; save the file as UTF-8") from None
    except RecursionError:
        raise PlanError(f"{path}: nested too deeply; remove the brackets that do not belong there") from None
    except msgspec.DecodeError as e:
        raise PlanError(f"{path}: {_where_malformed(text, str(e))}") from None
    return plan


def validate(
    plan: Plan,
    facts: ModelFacts,
    fleet: Fleet,
    batchnorm: Literal["refuse", "local"] = "refuse",
    *,
    snapshot: bool = False,
) -> None:
    """Raises PlanError, naming the field and the fix, unless the fleet can run the plan on the model.

    With `batchnorm="local"` a batch-coupled stage may be shared by samples, outside every equality claim. With
    `snapshot` the memory of a device must also hold its snapshots.
    """
    _check_sizes(plan)
    _check_blocks(plan, len(facts.blocks))
    _check_devices(plan, fleet)
    for index, stage in enumerate(plan.stages):
        _check_shares(plan, stage, f"stages[{index}]")
        if not is_known(stage.codec):
            raise _wrong(f"stages[{index}].codec", f"{ascii(stage.codec)[:80]} is {unknown_codec()}")
        _check_sharing(stage, facts.blocks[slice(*stage.blocks)], f"stages[{index}]", batchnorm)
    check_schedule(plan)
    _check_memory(plan, fleet, peak_bytes(plan, facts, snapshot=snapshot))


def _wrong(field: str, message: str) -> PlanError:
    return PlanError(f"plan: {field}: {message}")


def _check_sizes(plan: Plan) -> None:
    """Numbers that nobody means would otherwise cost hours or all memory further on."""
    if plan.micro_batch_size > MAX_MICRO_BATCH_SIZE:
        raise _wrong("micro_batch_size", f"more than {MAX_MICRO_BATCH_SIZE}; give a smaller one")
    if plan.micro_batches > MAX_MICRO_BATCHES:
        raise _wrong("micro_batches", f"more than {MAX_MICRO_BATCHES}; give fewer, or a larger micro_batch_size")


def _check_blocks(plan: Plan, n_blocks: int) -> None:
    end = 0
    for index, stage in enumerate(plan.stages):
        field, (start, stop) = f"stages[{index}].blocks", stage.blocks
        if start > end:
            raise _wrong(field, f"[{start}, {stop}] leaves a gap, block {end} is in no stage; start it at {end}")
        if start < end:
            raise _wrong(field, f"[{start}, {stop}] begins before block {end}, the first one left; start it at {end}")
        if stop <= start:
            raise _wrong(field, f"[{start}, {stop}] holds no block; end it at {start + 1} or later")
        if stop > n_blocks:
            raise _wrong(field, f"[{start}, {stop}] goes past the model's {n_blocks} blocks; end it at {n_blocks}")
        end = stop
    if end < n_blocks:
        last = plan.stages[-1].blocks
        field = f"stages[{len(plan.stages) - 1}].blocks"
        raise _wrong(field, f"{list(last)} leaves out the last of the model's {n_blocks} blocks; end it at {n_blocks}")


def _check_devices(plan: Plan, fleet: Fleet) -> None:
    names = [device.name for device in fleet.devices]
    holds: dict[str, int] = {}
    for index, stage in enumerate(plan.stages):
        if not stage.group:
            raise _wrong(f"stages[{index}].group", "is empty; give the stage at least one device")
        for place, member in enumerate(stage.group):
            field = f"stages[{index}].group[{place}].device"
            if member.device not in names:
                raise _wrong(field, f"{member.device!r} is not in the fleet; use one of {_some(names)}")
            if member.device in holds:
                first = holds[member.device]
                raise _wrong(field, f"{member.device!r} is already in stages[{first}]; use each device once")
            holds[member.device] = index


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _check_shares(plan: Plan, stage: Stage, field: str) -> None:
    if not 0 <= stage.late_weights <= plan.micro_batches:
        raise _wrong(f"{field}.late_weights", f"{stage.late_weights}; give 0 to {plan.micro_batches}")
    by_samples = stage.sharing == "samples"
    least = 2 if by_samples and len(stage.group) > 1 else 1
    for place, member in enumerate(stage.group):
        if member.share < least:
            why = "no work" if member.share < 1 else "too few rows to share by samples"
            fix = f"give at least {least}, or leave the device out"
            raise _wrong(f"{field}.group[{place}].share", f"{member.share} is {why}; {fix}")
        if not 0 <= member.sums <= MAX_SUMS:
            raise _wrong(f"{field}.group[{place}].sums", f"{member.sums}; give 0 to {MAX_SUMS}")
    if len(stage.group) > 1 and not any(member.sums for member in stage.group):
        raise _wrong(f"{field}.group", "nobody adds up the gradients; give at least one device sums above 0")
    name, wanted = ("micro_batch_size", plan.micro_batch_size) if by_samples else ("micro_batches", plan.micro_batches)
    total = sum(member.share for member in stage.group)
    if total != wanted:
        sums = f"{_sum(stage.group)} by {stage.sharing}, but {name} is {wanted}"
        change = f"add {wanted - total}" if total < wanted else f"take {total - wanted} away"
        raise _wrong(f"{field}.group", f"shares make {sums}; {change}")


def _sum(group: Sequence[Member]) -> str:
    total = str(sum(member.share for member in group))
    return " + ".join(str(member.share) for member in group) + f" = {total}" if 1 < len(group) <= 8 else total


def _check_sharing(stage: Stage, blocks: Sequence[Block], field: str, batchnorm: Literal["refuse", "local"]) -> None:
    if len(stage.group) == 1:
        return
    for block in blocks:
        name = f"block {block.index} ({block.label})"
        if block.exclusive:
            why = "changes a buffer in a way that cannot be put together from parts"
            raise _wrong(f"{field}.group", f"{name} {why}; give the stage one device")
        if block.coupled and stage.sharing == "samples" and batchnorm == "refuse":
            why = "lets one sample's result depend on the others of its micro-batch"
            raise _wrong(f"{field}.sharing", f'{name} {why}; share by turns, or allow it with batchnorm="local"')


def _check_memory(plan: Plan, fleet: Fleet, uses: dict[str, MemoryUse]) -> None:
    """Refuses the plan for the device that is most over its memory."""
    memory = {device.name: device.memory_bytes for device in fleet.devices if device.memory_bytes}
    over = {name: use.total - memory[name] for name, use in uses.items() if use.total > memory.get(name, use.total)}
    if not over:
        return
    name = max(over, key=lambda name: over[name])
    index, use = stage_of(plan, name), uses[name]
    term, size = max(use.terms().items(), key=lambda item: item[1])
    raise _wrong(
        f"stages[{index}]",
        f"{over[name]} bytes too many for {name!r}: it has {memory[name]} and needs {use.total}, {size} of them"
        f" {term}; {_less_memory(plan, index, term)}",
    )


def _less_memory(plan: Plan, index: int, term: str) -> str:
    """What makes the largest term smaller, in words."""
    stage, ways = plan.stages[index], []
    after = plan.depth(index + 1) if index + 1 < len(plan.stages) else 1
    shallowest = max(len(plan.stages) - index, after)
    schedule, depths = schedule_named(plan.schedule), (shallowest, plan.depth(index))
    fewest, most = (schedule.in_flight(depth, plan.micro_batches) for depth in depths)
    if term == "activations" and most > fewest:
        ways.append(f"lower its depth to {shallowest}")
    if term in ("activations", "communication"):
        if stage.sharing == "samples" and len(stage.group) > 1:
            ways.append("give it a smaller share")
        ways.append("use a smaller micro_batch_size")
    if stage.blocks[1] - stage.blocks[0] > 1:
        ways.append("move blocks to another stage")
    ways.append("use a device with more memory")
    return ", ".join(ways[:-1]) + (" or " if len(ways) > 1 else "") + ways[-1]


def _what_is_wrong(message: str) -> str:
    """A decoder's complaint as field, fault and fix, on one line."""
    at = re.search(r" - at `\$((?:\.[a-z_]+|\[\d+\])*)`$", message)
    complaint, path = (message[: at.start()], at[1].removeprefix(".")) if at else (message, "")
    inside = f"{path}." if path else ""
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", complaint, re.DOTALL):
        kind = Member if ".group[" in path else Stage if path else Plan
        known = ", ".join(kind.__struct_fields__)
        return f"{inside}{ascii(unknown[1])[1:-1][:80]}: unknown key; remove it, or use one of {known}"
    if missing := re.fullmatch(r"Object missing required field `(.*)`", complaint):
        return f"{inside}{missing[1]}: missing; {_FIX[missing[1]]}"
    fault = ascii(complaint.replace("`", ""))[1:-1][:120]
    fault = fault[:1].lower() + fault[1:]
    keys = re.findall(r"[a-z_]+", path)
    fix = _FIX.get(keys[-1] if keys else "", "give an object with micro_batch_size, micro_batches and stages")
    return f"{path or 'plan'}: {fault}; {fix}"


def _where_malformed(text: bytes, message: str) -> str:
    """Where the text stops being JSON: the last key before it, line and column."""
    found = re.search(r"\(byte (\d+)\)", message)
    at = int(found[1]) if found else len(text)
    keys = re.findall(rb'"([a-z_]+)"\s*:', text[:at])
    field = keys[-1].decode() if keys else "plan"
    line, column = text.count(b"\n", 0, at) + 1, at - (text.rfind(b"\n", 0, at) + 1) + 1
    why = "not JSON (nor are NaN, comments and trailing commas)" if found else "the file ends too early"
    return f"{field}: line {line}, column {column}: {why}; {_FIX.get(field, 'write it as in docs/plan-format.md')}"
