"""A run of the load test: a site of its own, traffic, the verdict."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from sample_app.seed import BONUS
from sample_app.stack import Stack
from tools.load.browser import Browser
from tools.load.memory import LEAK_BYTES, Watch, leak_bytes
from tools.load.traffic import COACHES, COUNTED, Traffic


@dataclass
class Outcome:
    """The observations; `faults` is empty if all requirements held."""

    seconds: float
    answers: int
    requests: list[dict[str, object]]
    leak_bytes: float
    kilobytes: tuple[int, int]
    accepted: dict[str, int]
    faults: list[str] = field(default_factory=list)


def run(stack: Stack, seconds: float) -> Outcome:
    """Send mixed traffic to a running site for `seconds`, and return the verdict.

    The same workers must still run at the end: a restarted one would hide a leak.
    """
    traffic = Traffic(stack.site_address)
    traffic.prepare()
    workers = stack.worker_pids
    clients = traffic.clients()
    began = time.monotonic()
    with (
        ThreadPoolExecutor(len(clients)) as pool,
        Watch(workers, lambda: traffic.answers.count) as watch,
    ):
        running = [pool.submit(each) for each in clients]
        time.sleep(seconds)
        traffic.stop()
        for each in running:
            each.result()
    took = time.monotonic() - began
    outcome = Outcome(
        seconds=round(took, 1),
        answers=traffic.answers.count,
        requests=traffic.answers.table(),
        leak_bytes=round(leak_bytes(watch.samples)),
        kilobytes=(watch.samples[0].kilobytes, watch.samples[-1].kilobytes),
        accepted=dict(traffic.accepted),
    )
    for answer in traffic.answers.unintended[:5]:
        outcome.faults.append(f"{answer.what} was answered {answer.status}: {answer.text[:200]}")
    if outcome.leak_bytes > LEAK_BYTES:
        outcome.faults.append(
            f"each request adds {outcome.leak_bytes:,.0f} bytes of memory in the workers"
        )
    if stack.worker_pids != workers:
        outcome.faults.append("a worker has died")
    outcome.faults += _missing(stack, traffic)
    return outcome


def _missing(stack: Stack, traffic: Traffic) -> list[str]:
    """Return the accepted updates that the site does not have."""
    found = []
    browser = Browser(stack.site_address)
    for name in COUNTED:
        browser.post("/sign-in", "/sign-in", learner=name)
        learner = json.loads(browser.get(name, f"/api/learners/{name}").text)["learner"]
        if learner["exercises_done"] != traffic.accepted[name]:
            found.append(
                f"{name} has {learner['exercises_done']} rounds, "
                f"{traffic.accepted[name]} were accepted"
            )
    for coach in COACHES:
        browser.post("/sign-in", "/sign-in", coach=coach)
        page = browser.get("/coach", "/coach").text
        left = int(page.split('id="bonus-left">')[1].split("<")[0])
        if BONUS - left != traffic.accepted[coach]:
            found.append(
                f"{coach} has given {BONUS - left} points, {traffic.accepted[coach]} were accepted"
            )
    return found
