"""Retries of a task and the rate of a queue: functions of time, without a clock or I/O.

Times are microseconds. Sources: RetryConfig, RateLimits, HttpRequest and AppEngineHttpRequest in
the reference of the v2 API. Where it leaves the numbers of the throttling open, they are ours.
"""

from dataclasses import dataclass

from userlock_emulator.tasks.clock import NEVER

MICROSECONDS = 1_000_000

# The slowest rate of a queue whose target keeps answering 429 or 503, as a part of its own rate.
_MOST_THROTTLED = 1 / 64


@dataclass(frozen=True, kw_only=True)
class Retry:
    """The retry settings of a task. Times are microseconds.

    Attributes:
        max_attempts: attempts in all, the first included; -1: any number.
        max_duration: the time since the first attempt after which retries end; 0: none.
        min_backoff: the first interval.
        max_backoff: the longest interval.
        max_doublings: the number of times that the interval doubles, before it grows linearly.
    """

    max_attempts: int
    max_duration: int
    min_backoff: int
    max_backoff: int
    max_doublings: int

    def interval(self, retry: int) -> int:
        """Return the time before a retry, the first being number 1.

        With 10 s, at most 300 s and 3 doublings: 10, 20, 40, 80, 160, 240, 300, 300 …
        """
        doublings = min(retry - 1, self.max_doublings)
        # A longer shift is beyond any interval; its number would have billions of digits.
        grown = self.min_backoff << min(doublings, 64)
        return min(grown * max(retry - doublings, 1), self.max_backoff)

    def exhausted(self, attempts: int, since_first: int) -> bool:
        """Return whether no further attempt follows.

        Both bounds have to be reached, if both are set.
        """
        if self.max_attempts < 0 and not self.max_duration:
            return False
        enough = self.max_attempts < 0 or attempts >= self.max_attempts
        return enough and since_first >= self.max_duration


class TokenBucket:
    """The rate of a queue: each dispatch takes a token, and tokens come back over time.

    Args:
        rate: tokens per second.
        burst: the most tokens that it holds. It begins full.
    """

    def __init__(self, rate: float, burst: int, now: int) -> None:
        self.rate = rate
        self.burst = burst
        self._tokens = float(burst)
        self._at = now

    def change(self, rate: float, burst: int, now: int) -> None:
        """Go on with another rate."""
        self._refill(now)
        self.rate, self.burst = rate, burst
        self._tokens = min(self._tokens, burst)

    def drain(self, now: int) -> None:
        """Take all tokens."""
        self._refill(now)
        self._tokens = 0.0

    def take(self, now: int) -> bool:
        """Take a token, if there is one."""
        self._refill(now)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def ready(self, now: int) -> int:
        """Return the time at which there is a token."""
        self._refill(now)
        if self._tokens >= 1:
            return now
        seconds = (1 - self._tokens) / self.rate
        # One microsecond more, so that rounding does not lead to one more look.
        return min(now + int(seconds * MICROSECONDS) + 1, NEVER) if seconds < 1e9 else NEVER

    def _refill(self, now: int) -> None:
        if now > self._at:  # the wall clock may be set back
            self._tokens += (now - self._at) / MICROSECONDS * self.rate
            self._tokens = min(self._tokens, float(self.burst))
        self._at = now


class Throttle:
    """The factor by which a queue is slower, because its target answers 429 or 503.

    It halves with each such answer, and doubles with each success.
    """

    def __init__(self) -> None:
        self.factor = 1.0

    def slow_down(self) -> None:
        """Note that the target is overloaded."""
        self.factor = max(self.factor / 2, _MOST_THROTTLED)

    def speed_up(self) -> None:
        """Note that the target has succeeded."""
        self.factor = min(self.factor * 2, 1.0)


def burst_of(rate: float) -> int:
    """Return the burst size that goes with a rate; 100 for the default rate, as the service has."""
    return max(1, min(100, int(rate + 0.999999)))
