"""Test the decorator for views: sources of the lock id, and kinds of views."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

import flask
import pytest
from flask.testing import FlaskClient
from flask.views import MethodView, View

import userlock
from userlock.contrib.flask import UserLock, user_lock


@pytest.fixture
def app(service: userlock.LockService) -> flask.Flask:
    app = flask.Flask(__name__)
    app.secret_key = "for tests"
    UserLock(app, service=service)
    return app


@pytest.fixture
def client(app: flask.Flask) -> FlaskClient:
    return app.test_client()


def held() -> dict[str, Any]:
    scope = userlock.current_scope()
    assert scope is not None
    return {
        lock_id: {"batch": tenure._lease.priority == "batch"}
        for lock_id, tenure in scope.held.items()
    }


def test_the_id_comes_from_the_route(
    app: flask.Flask, client: FlaskClient, service: userlock.LockService
) -> None:
    @app.get("/users/<user_id>")
    @user_lock("user_id", priority="batch")
    def view(user_id: str) -> dict[str, Any]:
        assert user_id == "ann"
        return held()

    assert client.get("/users/ann").get_json() == {"ann": {"batch": True}}
    assert service.holder("ann") is None


def test_the_id_comes_from_the_session(app: flask.Flask, client: FlaskClient) -> None:
    @app.get("/me")
    @user_lock(session="user_id")
    def view() -> dict[str, Any]:
        return held()

    assert client.get("/me").status_code == 401
    with client.session_transaction() as session:
        session["user_id"] = "ann"
    assert list(client.get("/me").get_json()) == ["ann"]


def test_the_id_comes_from_a_function(app: flask.Flask, client: FlaskClient) -> None:
    @app.get("/me")
    @user_lock(lambda: flask.request.args.get("who"))
    def view() -> dict[str, Any]:
        return held()

    assert client.get("/me").status_code == 401, "nobody is signed in"
    assert client.get("/me?who=").status_code == 401, "an anonymous user"
    assert list(client.get("/me?who=ben").get_json()) == ["ben"]


@pytest.mark.parametrize("guarded", [True, False], ids=["", "the control"])
def test_strangers_take_no_place_in_the_queue(
    app: flask.Flask, client: FlaskClient, service: userlock.LockService, guarded: bool
) -> None:
    def is_hers(user_id: str) -> bool:
        return flask.request.headers.get("X-User") == user_id

    @app.get("/users/<user_id>")
    @user_lock("user_id", wait_timeout=0, allowed=is_hers if guarded else None)
    def view(user_id: str) -> dict[str, Any]:
        return held() if is_hers(user_id) else flask.abort(403)

    lease = service.acquire("ann")
    assert client.get("/users/ann").status_code == (403 if guarded else 503)
    service.release(lease)
    assert list(client.get("/users/ann", headers={"X-User": "ann"}).get_json()) == ["ann"]


@pytest.mark.parametrize("answer", [False, None, 1, "ann", object()])
def test_only_true_lets_in(app: flask.Flask, client: FlaskClient, answer: Any) -> None:
    """An object may be a coroutine, which has decided nothing."""

    @app.get("/users/<user_id>")
    @user_lock("user_id", allowed=lambda user_id: answer)
    def view(user_id: str) -> str:
        return "in"

    assert client.get("/users/ann").status_code == 403


class Method(MethodView):
    @user_lock("user_id")
    def get(self, user_id: str) -> dict[str, Any]:
        return held()


class Decorated(View):
    decorators: ClassVar = [user_lock("user_id")]

    def dispatch_request(self, **arguments: str) -> dict[str, Any]:
        return held()


@user_lock("user_id")
async def asynchronous(user_id: str) -> dict[str, Any]:
    await asyncio.sleep(0)
    return held()


@pytest.mark.parametrize("view", [Method.as_view("view"), Decorated.as_view("view"), asynchronous])
def test_other_kinds_of_views(
    app: flask.Flask, client: FlaskClient, service: userlock.LockService, view: Callable[..., Any]
) -> None:
    app.add_url_rule("/users/<user_id>", view_func=view)
    assert list(client.get("/users/ann").get_json()) == ["ann"]
    assert service.holder("ann") is None


def test_it_takes_a_bound_of_waiters(
    app: flask.Flask, client: FlaskClient, service: userlock.LockService
) -> None:
    service.acquire("ann")
    app.get("/me")(user_lock(lambda: "ann", max_waiting=0)(held))
    assert client.get("/me").status_code == 429


def test_an_argument_that_the_view_does_not_take() -> None:
    with pytest.raises(
        userlock.ConfigurationError,
        match=r"@user_lock\('usr_id'\): .*view\(\) takes .* \(it has: user_id\); did you mean "
        r"'user_id'\? To fix it: name an argument of the route",
    ):

        @user_lock("usr_id")
        def view(user_id: str) -> str:
            return user_id


def test_an_argument_that_the_route_does_not_have(app: flask.Flask) -> None:
    app.testing = True
    app.get("/users/<learner_id>")(user_lock("user_id")(lambda **arguments: "never"))
    with pytest.raises(userlock.ConfigurationError, match="it has: learner_id"):
        app.test_client().get("/users/ann")


@pytest.mark.parametrize(
    ("source", "options"),
    [
        *((None, {}), ("user_id", {"session": "user_id"}), (7, {}), (None, {"session": 7})),
        (lambda user_id: user_id, {}),  # a view: without parentheses
    ],
)
def test_anything_else_than_one_source_is_refused(source: Any, options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="user_lock takes"):
        user_lock(source, **options)
