"""Test the output of `userlock outbox status` in docs/cli.md."""

from __future__ import annotations

import re

from tests.contract.outbox.operators.conftest import Shop
from tests.unit.cli.terminal import Terminal
from tests.unit.cli.test_docs import OUTBOX, run


class SMTPServerDisconnected(Exception):
    """As in smtplib."""


def test_status(shop: Shop, terminal: Terminal) -> None:
    def fail(user_id: str, cents: int = 0) -> None:
        raise shop.error or SMTPServerDisconnected

    once = shop.pay.retry
    send = shop.outbox.job(name="receipts.send", retry=once)(fail)
    close = shop.outbox.job(name="books.close", on_dead="block", retry=once)(fail)
    shop.kill(close, "ann", error=KeyError("x"))
    for owner in ("bob", "eve"):
        shop.kill(send, owner, error=SMTPServerDisconnected())
    shop.stage(send, "ann", cents=2000)
    shop.clock.advance(300)
    shop.stage(send, "zoe")
    shop.stage(send, "zoe", delay=900)
    shop.clock.advance(100)
    outcome, shown = run(terminal, OUTBOX)
    assert outcome.code == 1

    def without_keys(text: str) -> str:
        return re.sub(r"\bag[\w-]+", "KEY", text)

    assert without_keys(outcome.out) == without_keys(shown)
