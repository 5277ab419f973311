"""How a term starts: every device is told what to put together, and given what only the coordinator has."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

from potluck.coordinator.contexts import TermContext
from potluck.errors import LinkError
from potluck.recover.copies import guardians, unmeasured, wards
from potluck.recover.placement import Restart
from potluck.tensors.state_transfer import send_state
from potluck.types import COORDINATOR
from potluck.wire.messages import Prepare


def start_term(term: TermContext, restart: Restart, devices: Sequence[str]) -> None:
    """Tells every device what to put together for its stage, and gives what only the coordinator has."""
    run, plan = term.run, term.plan
    peers = {d: run.roster.links[d] for d in sorted(devices)}
    guarded = guardians(plan) if term.copies else {}
    run.link.adopt(term.term, peers)
    unknown = unmeasured(run.copy_rules)
    for device in peers:
        others = {d: a for d, a in peers.items() if d != device} | {COORDINATOR: run.link.address}
        run.roster.send(
            device,
            Prepare(
                run=run.folder.run_id, term=term.term, round=restart.round, plan=plan, program=run.digest, peers=others,
                moves=tuple(m for m in restart.moves if device in (m.source, m.target)), optimizer=run.optimizer,
                seed=run.job.seed, clip_norm=run.job.clip_norm, own_commit=term.alone,
                window_bytes=term.layout.window_bytes(), guardian=guarded.get(device),
                copy_line=run.copy_lines.get((device, guarded[device]), unknown) if device in guarded else None,
                wards=wards(plan, device) if term.copies else (),
            ),
        )  # fmt: skip
    # Not here: who is lost meanwhile must be noticed.
    threading.Thread(target=_give, args=(term, restart), name="potluck-giving", daemon=True).start()


def _give(term: TermContext, restart: Restart) -> None:
    """What only the coordinator has; if a device does not take it, it will not be prepared."""
    run = term.run
    with contextlib.suppress(LinkError):
        for move in restart.moves:
            if move.source == COORDINATOR:
                state = run.model.some(term.layout, move.names)
                send_state(run.link, move.target, restart.round, state, run.timeout_s, move.held, term=term.term)
