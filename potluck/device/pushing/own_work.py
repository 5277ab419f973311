"""What a device does for a parameter server: reads its own data, makes the whole model ready, and trains."""

from __future__ import annotations

import contextlib
import statistics
import time
import zlib
from collections.abc import Callable, Mapping

import torch

from potluck.advice import said
from potluck.datasets.class_names import difference
from potluck.datasets.own_data import LocalData, WantedData, held_out_name
from potluck.device.host.device_kinds import is_out_of_memory
from potluck.device.host.throttle import Throttle
from potluck.device.pushing.extremes import extreme_samples, ranges
from potluck.device.pushing.held_out_loss import HeldOutLoss
from potluck.device.pushing.local_trainer import LocalTrainer
from potluck.device.pushing.push_loop import PushLoop
from potluck.errors import DeviceError, InputError
from potluck.paramserver.messages import worker_link
from potluck.program.program import ProgramPair
from potluck.program.validity import decode
from potluck.settings.address import LinkAddress
from potluck.tensors.snapshot import parse
from potluck.types import COORDINATOR
from potluck.wire.carriers import open_link
from potluck.wire.link import Link
from potluck.wire.messages import Durable, Load, Loaded, Met, Repace, Welcome, Work
from potluck.wire.trust import Trust

_TRIAL_STEPS = 3  # after the first, which loads kernels: the fewest with a median


class OwnWork:
    """One device's part in a run around a parameter server."""

    def __init__(
        self, name: str, device: torch.device, data: Mapping[str, LocalData], bind: LinkAddress, trust: Trust,
        throttle: Throttle, fetch: Callable[[str, float], bytes],
    ) -> None:  # fmt: skip
        """`fetch` gets a blob by its digest, within so many seconds."""
        self._device, self._trust = device, trust
        self._name, self._data, self._bind, self._throttle, self._fetch = name, data, bind, throttle, fetch
        self._worker: PushLoop | None = None
        self._link: Link | None = None
        self._loaded: Loaded | None = None
        self._order: Load | None = None
        self.run = ""  # the run that it works for
        self.refused = False  # what its owner gave it does not do

    @property
    def incarnation(self) -> int:
        """Who it is for the server; 0 before it was let in."""
        return self._worker.incarnation if self._worker is not None else 0

    def load(self, order: Load, timeout_s: float) -> Loaded:
        """Makes the model and the data ready and sees how long a step takes; says what is wrong, if something is.

        Who has done so for this run before holds what it has: the server may need its last pushes again.
        """
        if self._loaded is not None and self._order is not None and self.run == order.run:
            if self._order != order:
                self.refused = True
                return Loaded(problem=f"{self._name} has begun with another job; restore it, or join again")
            return self._loaded
        try:
            data, held_out = self._samples(order, timeout_s), self._held_out(order)
        except InputError as error:
            self.refused = True
            return Loaded(problem=str(error))
        programs = decode(self._fetch(order.program, timeout_s))
        state = parse(self._fetch(order.state, timeout_s), "the weights to begin with")
        seed = (order.seed + zlib.crc32(self._name.encode())) % 2**32

        def trainer(of: dict[str, torch.Tensor], batch_size: int) -> LocalTrainer:
            begin = {name: tensor.clone() for name, tensor in state.items()}
            return LocalTrainer(
                programs, begin, order.optimizer, of, batch_size=batch_size, seed=seed,
                clip_norm=order.clip_norm, device=self._device,
            )  # fmt: skip

        try:
            step_s = self._tried(trainer, data, order)
            judge = self._judge(programs, held_out, order, state)
        except InputError as error:
            self.refused = True
            return Loaded(problem=str(error))
        self._worker = PushLoop(self._name, trainer(data, order.batch_size), self._throttle, timeout_s, judge)
        self.run, self._order = order.run, order
        classes = self._classes(order)
        self._loaded = Loaded(samples=_count(data), step_s=step_s, classes=classes)
        return self._loaded

    def meet(self, order: Work, welcome: Welcome) -> Met:
        """Opens a link for pushes; it has a name of its own, so that nobody takes what another incarnation sent."""
        if self._link is not None:
            self._link.close()
        name = worker_link(self._name, order.incarnation)
        self._link = open_link(welcome.carrier, name, self._bind, self._trust, welcome.bandwidth_bytes_s)
        self._link.adopt(order.term, {COORDINATOR: order.address}, order.window_bytes)
        return Met(incarnation=order.incarnation, address=self._link.address)

    def begin(self, order: Work) -> None:
        """Waits until the server listens; a LinkError if it cannot be reached."""
        if self._worker is None or self._link is None:
            raise InputError("told to train before anything was loaded; join again")
        self._worker.begin(self._link, order)

    def train(self, interrupted: Callable[[], bool]) -> None:
        """Trains until something else is to be done; a LinkError if the server cannot be reached."""
        if self._worker is not None:
            self._worker.run(interrupted)

    def hear(self, news: Repace | Durable) -> None:
        """From the listening thread: what concerns training, and need not interrupt it."""
        if self._worker is not None:
            self._worker.hear(news.pace if isinstance(news, Repace) else news)

    def leave(self, then: Callable[[], None]) -> bool:
        """Pushes what it has and then calls this; False where it does not train."""
        if self._worker is None or not self.incarnation:
            return False
        self._worker.leave(then)
        return True

    def interrupt(self) -> None:
        """From the listening thread: whatever waits for the server need not wait any more."""
        if self._link is not None:
            self._link.cancel("something else is to be done")

    def close(self) -> None:
        """Ends what runs in the background."""
        if self._worker is not None:
            self._worker.close()
        if self._link is not None:
            self._link.close()

    def _samples(self, order: Load, timeout_s: float) -> dict[str, torch.Tensor]:
        if order.share:
            return parse(self._fetch(order.share, timeout_s), "the samples")
        data = self._data.get(order.data)
        if data is None:
            here = ", ".join(sorted(self._data)) or "none"
            raise InputError(
                f"{self._name} has no data set {order.data!r} (it has: {here}); join with --data {order.data}=PATH"
            )
        return _fitted(data, order)

    def _held_out(self, order: Load) -> dict[str, torch.Tensor]:
        """What its owner gave it to judge by, if anything."""
        name = held_out_name(order.data)
        data = self._data.get(name) if order.data else None
        if data is None:
            return {}
        trained = self._classes(order)
        if data.classes and trained and data.classes != trained:
            raise InputError(f"{self._name}: {name} {difference(data.classes, order.data, trained)}")
        return _fitted(data, order)

    def _classes(self, order: Load) -> tuple[str, ...]:
        data = self._data.get(order.data)
        return () if order.share or data is None else data.classes

    def _judge(
        self, programs: ProgramPair, held_out: dict[str, torch.Tensor], order: Load, state: dict[str, torch.Tensor]
    ) -> HeldOutLoss | None:
        """Tried once, on its strangest samples: what is wrong with them should not end its training later."""
        if not held_out:
            return None
        name = held_out_name(order.data)
        if programs.judge is None:
            raise InputError(f"{self._name}: this job's loss cannot be worked out in evaluation; join without {name}")
        strangest = extreme_samples(held_out)
        judge = HeldOutLoss(programs.judge, strangest, _count(strangest), self._device)
        judge.begin(0, state)
        try:
            with self._throttle:
                judge.step()
        except (RuntimeError, ValueError, IndexError, MemoryError) as error:
            raise self._unfit(f"{name} cannot be judged by", error, held_out, "look at its samples") from error
        return HeldOutLoss(programs.judge, held_out, order.batch_size, self._device)

    def _tried(
        self, trainer: Callable[[dict[str, torch.Tensor], int], LocalTrainer], data: dict[str, torch.Tensor],
        order: Load,
    ) -> float:  # fmt: skip
        """Seconds of a step. What the model has no place for is found now, wherever in the data it is."""
        strangest = extreme_samples(data)
        try:
            with contextlib.suppress(DeviceError), self._throttle:  # not finite: that is for usual samples to say
                trainer(strangest, _count(strangest)).step()
            return self._step_s(trainer(data, order.batch_size))
        except (RuntimeError, ValueError, IndexError) as error:
            if is_out_of_memory(error):
                raise
            where = f"data {order.data}" if order.data else "its part of the data"
            fix = "correct its samples, or the sizes of the model"
            raise self._unfit(f"{where} cannot be trained on", error, data, fix) from error

    def _unfit(self, what: str, error: Exception, data: Mapping[str, torch.Tensor], fix: str) -> InputError:
        """Says too from where to where numbers go: that is what a model often has no place for."""
        numbers = ranges(data)
        return InputError(f"{self._name}: {what}: {said(error)}{f' ({numbers})' if numbers else ''}; {fix}")

    def _step_s(self, trainer: LocalTrainer) -> float:
        seconds = []
        for _ in range(_TRIAL_STEPS + 1):
            began = time.monotonic()
            with self._throttle:
                trainer.step()
            seconds.append(time.monotonic() - began)
        return statistics.median(seconds[1:])


def _fitted(data: LocalData, order: Load) -> dict[str, torch.Tensor]:
    fitted = data.fitted({name: WantedData(feed.shape, feed.dtype) for name, feed in order.feeds.items()})
    return {name: torch.from_numpy(fitted.arrays[name]) for name in order.feeds}


def _count(data: Mapping[str, torch.Tensor]) -> int:
    return len(next(iter(data.values())))
