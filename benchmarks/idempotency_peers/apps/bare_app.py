"""A paid request without any protection."""

from __future__ import annotations

import importlib
import json
import urllib.parse
from collections.abc import Iterable
from typing import Any

shop: Any = importlib.import_module("shop")


def _answer(environ: dict[str, Any]) -> tuple[int, object]:
    if environ["REQUEST_METHOD"] == "GET":
        query = dict(urllib.parse.parse_qsl(environ["QUERY_STRING"]))
        return 200, shop.orders(query.get("reference", ""))
    asked = json.loads(environ["wsgi.input"].read())
    key = environ["HTTP_IDEMPOTENCY_KEY"] if shop.HANDS_ON else None
    try:
        charge = shop.pay(asked["reference"], asked["cents"], key)
    except shop.Declined as error:
        return 402, {"error": str(error)}
    except shop.Unavailable as error:
        return 503, {"error": str(error)}
    return 201, {"order": shop.add_order(asked["reference"], charge), "charge": charge}


def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    status, said = _answer(environ)
    if environ["REQUEST_METHOD"] == "POST":
        shop.reach("answered")
    start_response(f"{status} -", [("Content-Type", "application/json")])
    return [json.dumps(said).encode()]
