"""A paid request with django-idempotency-key, under gunicorn, and its answers in a database."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterable
from typing import Any

shop: Any = importlib.import_module("shop")
django: Any = importlib.import_module("django")
conf: Any = importlib.import_module("django.conf")

conf.settings.configure(
    ALLOWED_HOSTS=["127.0.0.1"],
    SECRET_KEY="none",  # noqa: S106 (nothing is signed)
    ROOT_URLCONF=__name__,
    MIDDLEWARE=["idempotency_key.middleware.ExemptIdempotencyKeyMiddleware"],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": os.environ["SHOP_ORDERS"] + ".answers",
            "OPTIONS": {"timeout": 30},
        }
    },
    CACHES={
        "default": {
            "BACKEND": "django.core.cache.backends.db.DatabaseCache",
            "LOCATION": "answers",
            "TIMEOUT": shop.KEEP_SECONDS,  # Django's default: 300
            "OPTIONS": {"MAX_ENTRIES": 1_000_000},  # Django's default: 300
        }
    },
    IDEMPOTENCY_KEY={
        "CONFLICT_STATUS_CODE": None,  # the stored status instead of 409
        "STORAGE": {"CLASS": "idempotency_key.storage.CacheKeyStorage"},
        "LOCK": {
            "CLASS": "idempotency_key.locks.redis.MultiProcessRedisLock",
            "LOCATION": f"redis://{os.environ['SHOP_REDIS']}/1",
        },
    },
)
django.setup()
http: Any = importlib.import_module("django.http")
urls: Any = importlib.import_module("django.urls")
decorators: Any = importlib.import_module("idempotency_key.decorators")
importlib.import_module("django.core.management").call_command("createcachetable")


@decorators.idempotency_key  # type: ignore[untyped-decorator]
def orders(request: Any) -> Any:
    if request.method == "GET":
        return http.JsonResponse(shop.orders(request.GET.get("reference", "")), safe=False)
    asked = json.loads(request.body)
    key = request.headers["Idempotency-Key"] if shop.HANDS_ON else None
    try:
        charge = shop.pay(asked["reference"], asked["cents"], key)
    except shop.Declined as error:
        return http.JsonResponse({"error": str(error)}, status=402)
    except shop.Unavailable as error:
        return http.JsonResponse({"error": str(error)}, status=503)
    order = shop.add_order(asked["reference"], charge)
    return http.JsonResponse({"order": order, "charge": charge}, status=201)


urlpatterns = [urls.path("orders", orders)]
_django: Any = importlib.import_module("django.core.wsgi").get_wsgi_application()


def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Report that the answer is stored, before it is sent."""
    response: Iterable[bytes] = _django(environ, start_response)
    if environ["REQUEST_METHOD"] == "POST":
        shop.reach("answered")
    return response
