"""`potluck profile`: what a job's model costs each device, and what the links carry."""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec

from potluck.cli.session import emit, failures_as_json
from potluck.cli.targets import check_writable
from potluck.cli.verbs.measured import measured
from potluck.profile.cells import only
from potluck.profile.store import save
from potluck.settings.verb_settings import ProfileSettings
from potluck.types import DeviceProfile, LinkProfile, ModelFacts, Profile
from potluck.units import size_text

_MANY_BLOCKS = 60  # lines of a table: of more blocks the first and last half of so many are shown


def profile(job_file: str, settings: ProfileSettings) -> int:
    """Measures, or reads a saved profile, and shows it; returns the exit code."""
    with failures_as_json(settings.json):
        if settings.save is not None:
            check_writable(settings.save, "--save", replaced=True)
        it = measured(job_file, settings)
        found, rows, where = it.profile, it.job.micro_batch, it.where
        if settings.save is not None:
            save(found, settings.save)
            where = str(settings.save)
    if settings.json:
        emit({**msgspec.to_builtins(found), "micro_batch": rows, "kept": where})
    else:
        for line in profile_lines(found, it.facts, rows):
            click.echo(line)
        click.echo(f"kept in {where}")
    return 0


def profile_lines(found: Profile, facts: ModelFacts, rows: int) -> list[str]:
    """The profile as tables; a star marks what was not measured."""
    if any(all(cell.rows != rows for cell in device.blocks[0].timings) for device in found.devices):
        rows = found.devices[0].blocks[0].timings[-1].rows
    lines = [f"micro-batch of {rows}; forward + backward in ms; * filled in from other measurements"]
    lines += _block_table(found.devices, facts, rows)
    for device in found.devices:
        lines += _device_lines(device, rows)
    lines += _link_lines(found)
    return lines


def _block_table(devices: Sequence[DeviceProfile], facts: ModelFacts, rows: int) -> list[str]:
    width = max(12, *(len(d.device.name) + 2 for d in devices))
    labels = [f"{block.index:3} {block.label[:34]}" for block in facts.blocks]
    wide = max(len(label) for label in labels)
    lines = [" " * wide + "".join(f"{d.device.name:>{width}}" for d in devices) + f"{'kept':>12}"]
    for index, label in enumerate(labels):
        if _MANY_BLOCKS // 2 <= index < len(labels) - _MANY_BLOCKS // 2:
            if index == _MANY_BLOCKS // 2:
                lines.append(f"  … {len(labels) - 2 * index} more, in the file that --save writes")
            continue
        cells = [only(d.blocks[index], rows) for d in devices]
        texts = [f"{1e3 * c.forward_s:.2f}+{1e3 * c.backward_s:.2f}{'' if c.measured else '*'}" for c in cells]
        kept = size_text(max(c.kept_bytes for c in cells))
        lines.append(label.ljust(wide) + "".join(f"{t:>{width}}" for t in texts) + f"{kept:>12}")
    return lines


def _device_lines(device: DeviceProfile, rows: int) -> list[str]:
    cells = [only(block, rows) for block in device.blocks]
    step_ms = 1e3 * sum(c.forward_s + c.backward_s for c in cells)
    every = [cell for block in device.blocks for cell in block.timings]
    filled = sum(not cell.measured for cell in every)
    spec = device.device
    working = max(cell.working_bytes for cell in cells)
    memory = size_text(spec.memory_bytes) if spec.memory_bytes else "not limited"
    counts = ", ".join(str(r) for r in sorted({cell.rows for cell in every}))
    threads = f"{spec.threads} thread{'s' if spec.threads > 1 else ''}"
    return [
        f"{spec.name}: {spec.kind}, {threads}, speed {spec.speed:g}, memory {memory}"
        + (f" ({device.host})" if device.host else ""),
        f"  whole model {step_ms:.1f} ms a micro-batch, update {1e3 * sum(b.update_s for b in device.blocks):.1f} ms, "
        f"keeps {size_text(sum(c.kept_bytes for c in cells))}, works with {size_text(working)}",
        f"  rows {counts}: {len(every) - filled} cells measured, {filled} filled in; "
        f"message {1e6 * device.message_s:.0f} µs; idle {size_text(device.idle_bytes)}",
    ]


def _link_lines(found: Profile) -> list[str]:
    lines = [f"links: {'both directions at once' if found.medium == 'full' else found.medium + ' duplex'}; "
             f"a commit takes {1e3 * found.commit_s:.1f} ms"]  # fmt: skip
    return lines + [f"  {_link_text(link)}" for link in found.links] + _trunk_lines(found)


def _trunk_lines(found: Profile) -> list[str]:
    """Lines that several links share."""
    shared: dict[str, list[LinkProfile]] = {}
    for link in found.links:
        if link.trunk:
            shared.setdefault(link.trunk, []).append(link)
    return [f"  one line for all: {_rate_text(links[0])} {name}" for name, links in shared.items()]


def _link_text(link: LinkProfile) -> str:
    star = "" if link.measured else " *"
    shared = ", shared" if link.trunk else ""
    return f"{link.source} → {link.target}: {_rate_text(link)}{shared}, {1e3 * link.latency_s:.2f} ms{star}"


def _rate_text(link: LinkProfile) -> str:
    return "no limit" if link.bandwidth_bytes_s is None else f"{8e-6 * link.bandwidth_bytes_s:,.0f} Mbit/s"
