"""A device of the simulated world: the real state machine, and numbers that stand for tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from potluck.control.agent_events import (
    AgentEvent,
    AgentOrder,
    Applied,
    Assemble,
    Assembled,
    Cancel,
    Copied,
    Decide,
    GaveUp,
    Halt,
    HeldLongEnough,
    Keep,
    Leave,
    MakeCopy,
    Paused,
    Reported,
    Reports,
    ReportState,
    RunEvaluation,
    RunSurvey,
    Say,
    Seek,
    Tell,
    Train,
    TrainState,
)
from potluck.control.agent_machine import AgentState, agent_transition
from potluck.plan.schedule.known_schedules import schedule_named
from potluck.recover.copies import wards
from potluck.simulate.numbers_for_tensors import Numbers, trained
from potluck.simulate.surroundings import Surroundings
from potluck.simulate.world import Violation
from potluck.types import COORDINATOR, Held, Move
from potluck.wire.messages import Begin, Committed, Prepare, Ready

PEER_S = 6.0  # after which a peer that does not answer is told
VERDICT_S = 30.0
HOLD_S = 60.0  # in which the coordinator may come back
_SEEK_S = 0.3
_COPY_S = (0.1, 2.0)


class Device:
    """One process on one device."""

    def __init__(self, name: str, around: Surroundings) -> None:
        self.name, self._around, self._world = name, around, around.world
        self.state = AgentState(me=name)
        self.alive, self.connection, self.frozen_until = True, 0, 0.0  # connection 0: there is none
        self._numbers: Numbers = {}
        self._next: Numbers = {}  # being put together
        self._copies: dict[Held, Numbers] = {}
        self._pieces: dict[tuple[int, Move], Numbers] = {}
        self._signals: dict[tuple[int, int], dict[str, int]] = {}  # (term, round) → whose part is here, and its term
        self._work = 0  # number of what is under way
        self._applying = False
        self._cancelled = False
        self._walked = (-1, -1)  # term, and the newest round whose other devices were heard
        self._decided: list[int] = []  # rounds whose verdict came and is not obeyed yet
        self._seeking = 0
        self._waiting: list[Callable[[], None]] = []  # deeds of the time that it is frozen

    # --- what a wrong device would do otherwise

    def taken_as(self, term: int) -> int:
        """The term that a peer's part of a round counts for."""
        return term

    def given(self, numbers: Numbers) -> Numbers:
        """What others get of what is here."""
        return numbers

    def put_together(self, parts: Iterable[Numbers]) -> Numbers:
        """The state for the next term."""
        return {name: number for part in parts for name, number in part.items()}

    def commit(self, numbers: Numbers, round: int) -> Numbers:
        """What a round makes of the state."""
        late = schedule_named(self._force().plan.schedule).staleness > 0
        return {name: trained(number, round, late=late) for name, number in numbers.items()}

    def copied(self, numbers: Numbers, held: Held) -> Numbers:
        """A copy of the state that is trained."""
        return dict(numbers)

    # --- what reaches it

    def tell(self, event: AgentEvent) -> None:
        """Something happens here, now or once it is thawed."""
        self._do(lambda: self._step(event))

    def take_piece(self, term: int, move: Move, numbers: Numbers) -> None:
        """A peer, or the coordinator, gives some of a state."""
        self._pieces[term, move] = numbers
        self._do(self._look_at_pieces)

    def take_signal(self, term: int, round: int, peer: str) -> None:
        """A peer's part of a round."""
        self._signals.setdefault((self.taken_as(term), round), {})[peer] = term
        self._do(self._look_at_signals)

    def take_copy(self, held: Held, numbers: Numbers) -> None:
        """A ward's copy."""
        force = self.state.force
        if force is not None and held.term == force.term:  # the link is bound to the term
            self._do(lambda: self._keep_copy(held, numbers))

    def freeze(self, seconds: float) -> None:
        """Does nothing for some time; what comes meanwhile waits."""
        self.frozen_until = max(self.frozen_until, self._world.now + seconds)
        self._world.after(seconds + 1e-6, self._thaw)

    def kill(self) -> None:
        """It ends, and everything it held with it."""
        self.alive = False
        self._waiting.clear()

    # --- inside

    def _do(self, deed: Callable[[], None]) -> None:
        if not self.alive:
            return
        if self._world.now < self.frozen_until:
            self._waiting.append(deed)
        else:
            deed()

    def _thaw(self) -> None:
        if self._world.now < self.frozen_until:
            return
        deeds, self._waiting = self._waiting, []
        for deed in deeds:
            self._do(deed)

    def _later(self, seconds: float, deed: Callable[[], None], *, work: bool = True) -> None:
        """Does something later, unless what was under way has ended by then."""
        number = self._work
        self._world.after(seconds, lambda: self._do(lambda: deed() if not work or number == self._work else None))

    def _step(self, event: AgentEvent) -> None:
        self.state, orders = agent_transition(self.state, event)
        for order in orders:
            self._around.failpoint(self.name, order)
            if not self.alive:
                return
            self._obey(order)

    def _end_work(self, event: AgentEvent) -> None:
        self._work += 1
        self._step(event)

    def _obey(self, order: AgentOrder) -> None:
        match order:
            case Tell():
                self._around.to_coordinator(self.name, order.message)
            case Assemble():
                self._assemble(order.prepare)
            case Train():
                self._train(order.begin)
            case Decide():
                self._decided.append(order.verdict.round)
                self._look_at_verdicts()
            case Cancel():
                self._cancelled = True
                if not self._applying:  # which waits for nobody
                    self._give_up()
            case Halt():
                pass  # nothing has to be woken here
            case TrainState():
                self._numbers = {} if order.held is None else self._next
            case Keep():
                self._copies = {held: numbers for held, numbers in self._copies.items() if held in order.copies}
            case MakeCopy():
                self._copy(order.held)
            case ReportState():
                self._around.state_to_coordinator(self.name, order.round, dict(self._numbers))
                self._end_work(Reported())
            case Seek():
                self._seeking += 1
                self._seek(self._seeking, self._world.now + HOLD_S)
            case Leave():
                self.kill()
            case Say():
                pass  # nobody listens
            case RunEvaluation() | RunSurvey():
                raise NotImplementedError("nothing is evaluated or measured here")

    # --- putting a state together

    def _assemble(self, prepare: Prepare) -> None:
        self._work += 1
        self._cancelled = False
        self._decided.clear()
        for move in prepare.moves:
            if move.source == self.name and move.target != self.name:
                self._give(prepare.term, move)
        self._later(PEER_S, lambda: self._missed("a peer did not give what it holds", self._givers()))
        self._look_at_pieces()

    def _givers(self) -> list[str]:
        """Devices whose pieces are missing."""
        force = self._force()
        mine = [m for m in force.moves if m.target == self.name and m.source not in (self.name, COORDINATOR)]
        return [move.source for move in mine if (force.term, move) not in self._pieces]

    def _give(self, term: int, move: Move) -> None:
        numbers = self.given(self._read(move.held, move.names))
        target = self._around.devices[move.target]
        self._world.carry(self.name, move.target, lambda: target.take_piece(term, move, numbers))

    def _read(self, held: Held, names: Iterable[str]) -> Numbers:
        found = self._numbers if held == self.state.live else self._copies.get(held)
        if found is None:
            raise Violation(f"{self.name} was asked for {held}, which it does not hold")
        return {name: found[name] for name in names}

    def _look_at_pieces(self) -> None:
        prepare = self.state.force
        if prepare is None or self.state.busy != "assembling":
            return
        mine = [move for move in prepare.moves if move.target == self.name]
        if any(m.source != self.name and (prepare.term, m) not in self._pieces for m in mine):
            return
        parts = [self._read(m.held, m.names) if m.source == self.name else self._pieces[prepare.term, m] for m in mine]
        self._next = self.put_together(parts)
        self._pieces = {key: part for key, part in self._pieces.items() if key[0] > prepare.term}
        self._end_work(Assembled(term=prepare.term))

    # --- training

    def _train(self, begin: Begin) -> None:
        self._work += 1
        self._cancelled = False
        force = self._force()
        while [b.round for b in self.state.in_hand][:1] < [begin.round - 1] and self._decided:
            self._obey_verdict(resting=False)
        self._check(begin.round, force)
        term = force.term
        for peer in force.plan.devices:
            if peer != self.name:
                self._signal(peer, term, begin.round)
        self._later(PEER_S, lambda: self._missed("a peer did not answer", self._unheard()))
        self._look_at_signals()

    def _give_up(self) -> None:
        """What is open is given up, but for rounds that are committed."""
        while self._decided:
            self._obey_verdict(resting=False)
        self._end_work(GaveUp())

    def _missed(self, why: str, peers: Sequence[str]) -> None:
        self._end_work(GaveUp(why=why, peer=peers[0] if peers else None))

    def _unheard(self) -> list[str]:
        """Peers whose signal for the round in hand is missing."""
        force = self._force()
        here = self._signals.get((force.term, self.state.in_hand[-1].round), {})
        return [d for d in force.plan.devices if d != self.name and d not in here]

    def _check(self, round: int, force: Prepare) -> None:
        """Every tensor is what it must be before this round."""
        live = self.state.live
        if live is None:
            raise Violation(f"{self.name} trains round {round} and holds nothing")
        names = self._around.model.names(force.plan, live.stage)
        if names != set(self._numbers):
            raise Violation(f"{self.name} trains {sorted(self._numbers)}, its stage is {sorted(names)}")
        if not 0 <= round - live.round <= schedule_named(force.plan.schedule).staleness:
            raise Violation(f"{self.name} trains round {round} with weights of {live.round} rounds")
        right = self._around.expected[live.round]
        wrong = [name for name, number in self._numbers.items() if number != right[name]]
        if wrong:
            raise Violation(f"{self.name} trains round {round} with other numbers of {sorted(wrong)}")

    def _force(self) -> Prepare:
        if self.state.force is None:
            raise Violation(f"{self.name} trains without a plan")
        return self.state.force

    def _signal(self, peer: str, term: int, round: int) -> None:
        other = self._around.devices.get(peer)
        if other is not None:
            self._world.carry(self.name, peer, lambda: other.take_signal(term, round, self.name))

    def _look_at_signals(self) -> None:
        force = self.state.force
        if force is None or self.state.busy != "training" or not self.state.in_hand or self._cancelled:
            return
        begin = self.state.in_hand[-1]
        if (force.term, begin.round) == self._walked:
            return
        here = self._signals.get((force.term, begin.round), {})
        if not {d for d in force.plan.devices if d != self.name} <= set(here):
            return
        for peer, term in here.items():
            if term != force.term:
                raise Violation(f"{self.name} used what {peer} sent in term {term} in term {force.term}")
        self._walked = force.term, begin.round
        self._signals = {key: who for key, who in self._signals.items() if key > self._walked}
        self._work += 1
        self._later(self._world.random.uniform(0.05, 0.3), lambda: self._report(begin, force))

    def _report(self, begin: Begin, force: Prepare) -> None:
        self._work += 1
        if force.own_commit:
            self._step(Reports(ready=Committed(ready=Ready(round=begin.round), loss=0.0, gradient_norm=0.0)))
            self._decided.append(begin.round)
            self._obey_verdict(resting=True)
            return
        for round in [b.round for b in self.state.in_hand]:
            if self.state.open_rounds.awaited(round) and (round < begin.round or not begin.follows):
                self._step(Reports(ready=Ready(round=round)))
        if begin.follows:
            self._end_work(Paused())
            return
        self._later(VERDICT_S, lambda: self._end_work(GaveUp(why="no verdict")))
        self._look_at_verdicts()

    def _look_at_verdicts(self) -> None:
        """Where everything is ready and no round follows, each verdict is obeyed as it comes."""
        begins = self.state.in_hand
        if self._applying or not self._decided or not begins or begins[-1].follows or self.state.busy != "training":
            return
        if self.state.open_rounds.awaited(begins[-1].round):
            return
        self._work += 1
        self._applying = True
        self._later(self._world.random.uniform(0.005, 0.1), self._apply)

    def _apply(self) -> None:
        self._applying = False
        resting = len(self.state.in_hand) == 1
        self._obey_verdict(resting=resting)
        if not resting and self._cancelled:
            self._give_up()
        elif not resting:
            self._later(VERDICT_S, lambda: self._end_work(GaveUp(why="no verdict")))
            self._look_at_verdicts()

    def _obey_verdict(self, *, resting: bool) -> None:
        round = self._decided.pop(0)
        if not self.state.in_hand or self.state.in_hand[0].round != round:
            raise Violation(f"{self.name} commits round {round}, which it does not train")
        self._numbers = self.commit(self._numbers, round)
        self._applied(Applied(round=round, resting=resting))

    def _applied(self, event: Applied) -> None:
        if event.resting:
            self._end_work(event)
        else:
            self._step(event)

    # --- copies

    def _copy(self, held: Held) -> None:
        force = self._force()
        numbers = self.copied(self._numbers, held)
        self._keep_copy(held, numbers)
        guardian = force.guardian
        if guardian is not None and guardian in self._around.devices:
            other = self._around.devices[guardian]
            if self.name in wards(force.plan, guardian):
                seconds = self._world.random.uniform(*_COPY_S)
                self._world.carry(
                    self.name, guardian, lambda: other.take_copy(held, numbers) if self.alive else None, seconds
                )

    def _keep_copy(self, held: Held, numbers: Numbers) -> None:
        self._copies[held] = numbers
        self._step(Copied(held=held))

    # --- the coordinator is gone

    def _seek(self, number: int, deadline: float) -> None:
        if number != self._seeking or self.connection or not self.state.sought:
            return
        if self._around.connect(self.name):
            return
        if self._world.now > deadline:
            self._step(HeldLongEnough())
            return
        self._world.after(_SEEK_S, lambda: self._do(lambda: self._seek(number, deadline)))
