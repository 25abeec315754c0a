"""Access tokens of Google's IAM as passwords of Redis."""

from __future__ import annotations

import datetime
from collections.abc import Callable

import google.auth.exceptions
import pytest
import redis

from tests.waiting import wait_until
from userlock.stores.redis.google_tokens import GoogleTokens

NOW = datetime.datetime(2026, 1, 2, 10, tzinfo=datetime.UTC)


class Google:
    """Google's credentials: each refresh gives another token, for an hour."""

    def __init__(
        self,
        clock: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        self.token = ""
        self.expiry: datetime.datetime | None = None
        self.refreshed = 0
        self.fails = False
        self._clock = clock

    def refresh(self, request: object) -> None:
        if self.fails:
            raise google.auth.exceptions.RefreshError("no metadata server: s3cret")
        self.refreshed += 1
        self.token = f"token-{self.refreshed}"
        self.expiry = (self._clock() + datetime.timedelta(hours=1)).replace(tzinfo=None)


class TestGoogleTokens:
    @pytest.fixture(autouse=True)
    def _account(self) -> None:
        self.now = NOW
        self.account = Google(lambda: self.now)
        self.tokens = GoogleTokens(self.account, now=lambda: self.now)
        assert self.tokens.get_credentials() == ("default", "token-1")

    def pass_minutes(self, minutes: int) -> None:
        self.now += datetime.timedelta(minutes=minutes)

    def test_a_token_is_used_until_shortly_before_its_end(self) -> None:
        self.pass_minutes(49)
        assert self.tokens.get_credentials() == ("default", "token-1")
        assert self.account.refreshed == 1
        self.pass_minutes(2)
        assert self.tokens.get_credentials()[1] in ("token-1", "token-2")
        wait_until(lambda: self.tokens.get_credentials() == ("default", "token-2"))
        assert self.account.refreshed == 2

    def test_one_that_has_ended_is_replaced_at_once(self) -> None:
        self.pass_minutes(120)
        assert self.tokens.get_credentials() == ("default", "token-2")

    def test_without_another_one_the_old_one_serves_to_its_end(self) -> None:
        self.account.fails = True
        self.pass_minutes(55)
        assert self.tokens.get_credentials() == ("default", "token-1")
        self.pass_minutes(6)
        with pytest.raises(redis.AuthenticationError, match=r"no access token .RefreshError.$"):
            self.tokens.get_credentials()
        self.account.fails = False
        assert self.tokens.get_credentials()[0] == "default"
