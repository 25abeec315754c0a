"""A paid request with AWS Lambda Powertools, an invocation per process, as on Lambda."""

from __future__ import annotations

import contextlib
import http.server
import importlib
import json
import os
import socketserver
import sys
import time
import urllib.parse
from typing import Any

shop: Any = importlib.import_module("shop")
idempotency: Any = importlib.import_module("aws_lambda_powertools.utilities.idempotency")
errors: Any = importlib.import_module("aws_lambda_powertools.utilities.idempotency.exceptions")

#: Lambda's default.
_TIMEOUT_SECONDS = 3


def _layer() -> Any:
    if "SHOP_DYNAMODB" in os.environ:
        boto3: Any = importlib.import_module("boto3")
        client = boto3.client("dynamodb", endpoint_url=os.environ["SHOP_DYNAMODB"])
        with contextlib.suppress(client.exceptions.ResourceInUseException):
            client.create_table(
                TableName="idempotency",
                BillingMode="PAY_PER_REQUEST",
                KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            )
        dynamodb = importlib.import_module(f"{idempotency.__name__}.persistence.dynamodb")
        return dynamodb.DynamoDBPersistenceLayer(table_name="idempotency", boto3_client=client)
    redis: Any = importlib.import_module("redis")
    cache = importlib.import_module(f"{idempotency.__name__}.persistence.cache")
    host, _, port = os.environ["SHOP_REDIS"].partition(":")
    client = redis.Redis(host=host, port=int(port), decode_responses=True)
    return cache.CachePersistenceLayer(client=client)


_VALIDATED = {"payload_validation_jmespath": "body"} if "SHOP_DYNAMODB" in os.environ else {}
config = idempotency.IdempotencyConfig(
    event_key_jmespath='headers."Idempotency-Key"',
    raise_on_no_idempotency_key=True,
    expires_after_seconds=shop.KEEP_SECONDS,
    # With the cache layer the same request would be refused: it drops the hash on completion.
    **_VALIDATED,
)


class Context:
    """The part of Lambda's context that the package uses."""

    def __init__(self) -> None:
        self._ends_at = time.monotonic() + _TIMEOUT_SECONDS

    def get_remaining_time_in_millis(self) -> int:
        return max(0, round((self._ends_at - time.monotonic()) * 1000))


@idempotency.idempotent(config=config, persistence_store=_layer())  # type: ignore[untyped-decorator]
def lambda_handler(event: dict[str, Any], context: Context) -> dict[str, Any]:
    asked = json.loads(event["body"])
    key = event["headers"]["Idempotency-Key"]
    try:
        charge = shop.pay(asked["reference"], asked["cents"], key if shop.HANDS_ON else None)
    except shop.Declined as error:
        # Returned, so that it is stored. After an exception the package deletes its record.
        return {"statusCode": 402, "body": json.dumps({"error": str(error)})}
    order = shop.add_order(asked["reference"], charge)
    return {"statusCode": 201, "body": json.dumps({"order": order, "charge": charge})}


def answer_to(event: dict[str, Any]) -> tuple[int, str]:
    try:
        result = lambda_handler(event, Context())
    except errors.IdempotencyAlreadyInProgressError as error:
        return 409, json.dumps({"error": str(error)})
    except errors.IdempotencyValidationError as error:
        return 422, json.dumps({"error": str(error)})
    except shop.Unavailable as error:
        return 503, json.dumps({"error": str(error)})
    return result["statusCode"], result["body"]


class _Invocation(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        headers = {"Idempotency-Key": self.headers["Idempotency-Key"]}
        status, said = answer_to({"headers": headers, "body": body})
        shop.reach("answered")
        self._send(status, said)

    def do_GET(self) -> None:
        query = dict(urllib.parse.parse_qsl(self.path.partition("?")[2]))
        self._send(200, json.dumps(shop.orders(query.get("reference", ""))))

    def _send(self, status: int, said: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said.encode())

    def log_message(self, *_: object) -> None:
        pass


class _Server(socketserver.ForkingMixIn, http.server.HTTPServer):
    request_queue_size = 256
    max_children = 100


if __name__ == "__main__":
    _Server(("127.0.0.1", int(sys.argv[1])), _Invocation).serve_forever()
