"""A plan in words: what holds a round up, why it is cut where it is, why shares are what they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from potluck.metrics.lanes import busy_part
from potluck.plan.cost.memory import peak_bytes
from potluck.plan.cost.round_time import CostModel
from potluck.plan.cost.tables import Tables, ends
from potluck.plan.cost.traffic import Messages, PlannedMessage
from potluck.plan.events.event_simulation import Simulated, simulate
from potluck.plan.groups import uncoupled
from potluck.plan.schedule.action_list import late_weights
from potluck.types import COORDINATOR, RAW, LinkProfile, ModelFacts, Plan, Profile, Stage

_NEARLY_ALL = 0.85  # of a round: who is that busy is the bottleneck, whatever else
_A_LOT = 0.5
_MUCH = 0.2


class Explainer:
    """Answers for one plan."""

    def __init__(self, plan: Plan, facts: ModelFacts, profile: Profile, simulated: Simulated) -> None:
        self.plan, self.facts, self.profile, self.simulated = plan, facts, profile, simulated
        self.tables = Tables(profile)
        self.cost = CostModel(
            uncoupled(facts), profile, plan.micro_batch_size, plan.micro_batches, tables=self.tables,
            schedule=plan.schedule,
        )  # fmt: skip
        self._cost_s = self._seconds(plan)

    def bottleneck(self) -> str:
        """What holds a round up."""
        round_s = self.simulated.round_s
        busy = {d: busy_part(s, round_s) for d, s in self.simulated.busy_s.items()}
        device = max(busy, key=lambda d: busy[d])
        stage = next(i for i, s in enumerate(self.plan.stages) if any(m.device == device for m in s.group))
        wires = self.line_parts()
        line = max(wires, key=lambda pair: wires[pair], default=None)
        if line is not None and wires[line] > max(busy[device], _A_LOT):
            return (
                f"the way {line[0]} → {line[1]} is the bottleneck: it carries tensors {wires[line]:.0%} of a round, "
                f"while the busiest device, {device}, computes {busy[device]:.0%}"
            )
        where = f"{device} (stage {stage + 1}) computes {busy[device]:.0%} of a round"
        if busy[device] >= _NEARLY_ALL:
            return f"{where} and is the bottleneck"
        reduce = self._reduce_part()
        if reduce is not None and reduce[1] > _MUCH:
            return f"summing gradients in stage {reduce[0] + 1} takes {reduce[1]:.0%} of a round; {where}"
        part, words = max(self._hindrances())
        if part > _MUCH:
            return f"{words.format(f'{part:.0%}')}; {where}"
        if len(self.plan.stages) > 1:
            return f"{where}, the most of all; the rest goes into filling and draining the pipeline, and waiting"
        return f"{where}, the most of all"

    def _hindrances(self) -> list[tuple[float, str]]:
        """What would be saved of a round if links took no time, if samples did not, and if committing did not."""
        between = self._without_wires(lambda link: COORDINATOR not in (link.source, link.target))
        samples = self._without_wires(lambda link: link.source == COORDINATOR)
        return [
            (between, "sending between devices, to and fro, holds a round up for {} of it"),
            (samples, "a round waits for samples from the coordinator: {} of it"),
            (self.tables.commit_s(len(self.plan.devices)) / self.simulated.round_s, "committing takes {} of a round"),
        ]

    def _without_wires(self, chosen: Callable[[LinkProfile], bool]) -> float:
        """The part of a round that is saved if some links take no time, by simulation."""
        links = tuple(
            replace(link, bandwidth_bytes_s=None, latency_s=0.0) if chosen(link) else link
            for link in self.profile.links
        )
        free = simulate(self.plan, self.facts, replace(self.profile, links=links)).round_s
        return 1 - free / self.simulated.round_s

    def line_parts(self) -> dict[tuple[str, str], float]:
        """(sender, receiver) → the part of a round for which tensors occupy the way; on a shared medium, or a line that
        several links share, of all."""
        sent: dict[tuple[str, str], float] = {}
        messages = Messages(self.plan, self.facts, self.tables)
        for parcel in self._parcels(messages):
            shared = self.profile.medium == "shared"
            trunk = self.tables.trunk(parcel.source, parcel.target)
            pair = ("everybody", "everybody") if shared else ends(trunk) or (parcel.source, parcel.target)
            sent[pair] = sent.get(pair, 0.0) + parcel.transfer_s
        return {pair: seconds / self.simulated.round_s for pair, seconds in sent.items() if seconds}

    def _parcels(self, messages: Messages) -> Sequence[PlannedMessage]:
        found = [parcel for _, parcel in messages.feeds()]
        for device in self.plan.devices:
            for kind in ("send_outputs", "send_gradients"):
                for j in range(self.plan.micro_batches):
                    found += messages.leaving(device, kind, j)
            for phase in ("reduce", "sum"):
                found += messages.summing(device, phase)[0]
        return found

    def _reduce_part(self) -> tuple[int, float] | None:
        """The stage that takes longest to sum gradients, and the part of a round that takes."""
        line = self.cost.of_plan(self.plan)
        seconds = [station.reduce_s for station in line]
        place = max(range(len(seconds)), key=lambda p: seconds[p])
        return (place, seconds[place] / self.simulated.round_s) if seconds[place] else None

    def cuts(self) -> list[str]:
        """Why each cut is where it is: what crosses it, and what a round would take one block to either side."""
        lines = []
        for p in range(1, len(self.plan.stages)):
            at = self.plan.stages[p].blocks[0]
            codec = self.plan.stages[p - 1].codec
            out, back = self.cost.stations.edges.at_cuts(codec)[at]
            coded = "" if codec == RAW else f" by codec {codec}"
            block = self.facts.blocks[at]
            others = [words for shift in (-1, 1) if (words := self._one_off(p, shift)) is not None]
            why = "; ".join(others) if others else "neither stage has a block to spare"
            lines.append(f"cut before block {at} ({block.label}), {(out + back) / 1e3:,.1f} kB a sample{coded}: {why}")
        return lines

    def _one_off(self, p: int, shift: int) -> str | None:
        """What happens if the cut before stage p moves by one block, in words; None if a stage would be empty."""
        (start, middle), (_, stop) = self.plan.stages[p - 1].blocks, self.plan.stages[p].blocks
        if not start < middle + shift < stop:
            return None
        stages = list(self.plan.stages)
        stages[p - 1] = replace(stages[p - 1], blocks=(start, middle + shift))
        stages[p] = replace(stages[p], blocks=(middle + shift, stop))
        moved = replace(self.plan, stages=tuple(stages))
        where = f"one block {'earlier' if shift < 0 else 'later'}"
        if not self._may_share(stages[p - 1]) or not self._may_share(stages[p]):
            return f"{where}, a block that must not be shared so would be"
        over = self._over(moved)
        if over is not None and self._over(self.plan) is None:
            return f"{where} does not fit {over}"
        change = self._seconds(moved) / self._cost_s - 1
        if abs(change) < 0.0005:
            return f"{where} takes the same time"
        return f"{where} takes {abs(change):.1%} {'longer' if change > 0 else 'less'}"

    def _may_share(self, stage: Stage) -> bool:
        held = self.facts.blocks[slice(*stage.blocks)]
        if len(stage.group) == 1:
            return True
        return not any(b.exclusive or (b.coupled and stage.sharing == "samples") for b in held)

    def shares(self) -> list[str]:
        """Why each group shares its stage as it does."""
        lines = []
        for p, stage in enumerate(self.plan.stages):
            if len(stage.group) > 1:
                unit = "rows of every micro-batch" if stage.sharing == "samples" else "micro-batches of every round"
                given = ", ".join(f"{m.device} {m.share}" for m in stage.group)
                busy = [self._busy_s(stage, m.device, m.share) for m in stage.group]
                even = "so all are busy about as long" if max(busy) < 1.15 * min(busy) else self._uneven(stage, busy)
                lines.append(f"stage {p + 1} by {stage.sharing}, {unit}: {given}; {even}")
        return lines

    def _uneven(self, stage: Stage, busy: Sequence[float]) -> str:
        slow, fast = (stage.group[f(range(len(busy)), key=busy.__getitem__)] for f in (max, min))
        ratio = f"{slow.device} is busy {max(busy) / min(busy):.1f} times as long as {fast.device}"
        if self._busy_s(stage, fast.device, fast.share + 1) < max(busy):
            return f"{ratio}, which could take some of it"
        return f"{ratio}, which one more would make slower"

    def _busy_s(self, stage: Stage, device: str, share: int) -> float:
        """Seconds of compute in a round."""
        tables = self.tables.devices[device]
        if stage.sharing == "samples":
            return self.plan.micro_batches * tables.step_s(stage.blocks, share)
        return share * tables.step_s(stage.blocks, self.plan.micro_batch_size)

    def depths(self) -> list[str]:
        """What is unusual about depths, recomputation and weight gradients."""
        lines, count = [], len(self.plan.stages)
        depths = [self.plan.depth(p) for p in range(count)]
        deeper = [p for p in range(count) if depths[p] > count - p]
        under_way = [self.cost.schedule.in_flight(k, self.plan.micro_batches) for k in depths]
        if count > 1 and min(under_way) == self.plan.micro_batches:
            lines.append("all forwards come before the first backward")
        elif deeper:
            stages = ", ".join(f"stage {p + 1}: {depths[p]} for {count - p}" for p in deeper)
            lines.append(f"more micro-batches under way than stages to the end, to hide waiting: {stages}")
        for p, stage in enumerate(self.plan.stages):
            if stage.recompute:
                lines.append(f"stage {p + 1} runs forward twice to save memory")
            if late_weights(self.plan, p):
                lines.append(
                    f"stage {p + 1} sends its gradients first and works out those of its weights while it waits"
                )
        return lines

    def _over(self, plan: Plan) -> str | None:
        """A device without the memory for a plan."""
        uses = peak_bytes(plan, self.facts, tables=self.tables)
        for name, use in uses.items():
            limit = self.profile.device(name).device.memory_bytes
            if limit and use.total > limit:
                return name
        return None

    def _seconds(self, plan: Plan) -> float:
        return float(self.cost.seconds([self.cost.of_plan(plan)])[0])


def bound_words(round_s: float, bound_s: float) -> str:
    """How far a plan is from the bound that no plan can beat."""
    if bound_s <= 0:
        return "no lower bound is known"
    above = round_s / bound_s - 1
    near = "which this plan reaches" if above < 0.005 else f"and this plan is {above:.0%} above it"
    return f"no plan can take less than {1e3 * bound_s:,.1f} ms a round, {near}"
