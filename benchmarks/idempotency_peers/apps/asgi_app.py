"""A paid request with asgi-idempotency-header, under FastAPI and uvicorn."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Awaitable, Callable
from typing import Any

shop: Any = importlib.import_module("shop")
anyio: Any = importlib.import_module("anyio")
fastapi: Any = importlib.import_module("fastapi")
middleware: Any = importlib.import_module("fastapi.middleware")
redis: Any = importlib.import_module("redis.asyncio")
package: Any = importlib.import_module("idempotency_header_middleware")
backends: Any = importlib.import_module("idempotency_header_middleware.backends")

Message = dict[str, Any]

backend = backends.RedisBackend(
    redis=redis.from_url(f"redis://{os.environ['SHOP_REDIS']}/0"), expiry=shop.KEEP_SECONDS
)
api = fastapi.FastAPI(
    middleware=[middleware.Middleware(package.IdempotencyHeaderMiddleware, backend=backend)]
)


def create_order(asked: dict[str, Any], idempotency_key: str) -> Any:
    try:
        charge = shop.pay(
            asked["reference"], asked["cents"], idempotency_key if shop.HANDS_ON else None
        )
    except shop.Declined as error:
        raise fastapi.HTTPException(402, str(error)) from None
    except shop.Unavailable as error:
        raise fastapi.HTTPException(503, str(error)) from None
    return {"order": shop.add_order(asked["reference"], charge), "charge": charge}


# As FastAPI reads types: annotations are strings here.
create_order.__annotations__ = {"asked": dict, "idempotency_key": str}
create_order.__defaults__ = (fastapi.Body(...), fastapi.Header(...))
api.post("/orders", status_code=201)(create_order)
api.get("/orders")(shop.orders)


async def app(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[..., Awaitable[None]]
) -> None:
    """Report that the answer is stored, before it is sent."""

    async def sends(message: Message) -> None:
        if message["type"] == "http.response.body" and scope["method"] == "POST":
            await anyio.to_thread.run_sync(functools.partial(shop.reach, "answered"))
        await send(message)

    await api(scope, receive, sends if scope["type"] == "http" else send)
