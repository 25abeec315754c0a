"""The contestants that run here: their processes, stores and options."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.idempotency_peers.stand import Stand, answers
from benchmarks.server import redis_answers
from sample_app.stack import ports, services
from sample_app.stack.children import Child

_HERE = Path(__file__).parent
_APPS = _HERE / "apps"
_GUNICORN = ("--workers", "1", "--worker-class", "gthread", "--threads", "64")
#: DynamoDB of moto. One thread: its conditional writes are not atomic between threads.
_DYNAMODB = """
import sys, werkzeug.serving
from moto.server import DomainDispatcherApplication, create_backend_app
app = DomainDispatcherApplication(create_backend_app)
werkzeug.serving.run_simple("127.0.0.1", int(sys.argv[1]), app, threaded=False)
"""


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A package that runs here.

    Attributes:
        name: in the table.
        options: its options that differ from its defaults, and its store.
        command: returns the command of a worker for the interpreter and a port.
        stores: the names of its servers.
        volatile: which of them keeps the package's data in memory.
        is_ours: whether it is userlock, which gives the handler a key for other services, removes
            what is no longer kept itself, and runs in this environment.
    """

    name: str
    options: str
    command: Callable[[str, int], list[str]]
    stores: tuple[str, ...]
    volatile: str = ""
    is_ours: bool = False


def _gunicorn(app: str) -> Callable[[str, int], list[str]]:
    return lambda python, port: [
        *(python, "-m", "gunicorn", f"{app}:application", "--chdir", str(_APPS)),
        *("--bind", f"127.0.0.1:{port}", "--no-control-socket", *_GUNICORN),
    ]


def _powertools(python: str, port: int) -> list[str]:
    return [python, "-W", "ignore", str(_APPS / "powertools_app.py"), str(port)]


def _uvicorn(python: str, port: int) -> list[str]:
    command = [python, "-m", "uvicorn", "asgi_app:app", "--app-dir", str(_APPS)]
    return [*command, "--port", str(port), "--log-level", "warning"]


CONTESTANTS = (
    Contestant(
        "userlock",
        "memcached; rows in Datastore (the emulator); leases of 3 s",
        _gunicorn("userlock_app"),
        ("memcached", "datastore"),
        volatile="memcached",
        is_ours=True,
    ),
    Contestant(
        "Powertools, DynamoDB",
        "`@idempotent`, `DynamoDBPersistenceLayer`, payload validation; Lambda's default time-out "
        "of 3 s; a process per invocation",
        _powertools,
        ("dynamodb",),
    ),
    Contestant(
        "Powertools, Redis",
        "the same with `CachePersistenceLayer`, without payload validation",
        _powertools,
        ("redis",),
        volatile="redis",
    ),
    Contestant(
        "asgi-idempotency-header",
        "`RedisBackend`, under FastAPI and uvicorn",
        _uvicorn,
        ("redis",),
        volatile="redis",
    ),
    Contestant(
        "django-idempotency-key",
        "`CacheKeyStorage` in a database, `MultiProcessRedisLock`, `CONFLICT_STATUS_CODE=None`",
        _gunicorn("django_app"),
        ("redis",),
        volatile="redis",
    ),
)

#: The same handler alone: each situation must go wrong, or the program sees nothing.
CONTROL = Contestant("No protection", "", _gunicorn("bare_app"), ())


@contextlib.contextmanager
def running(
    contestant: Contestant, python: str, *, keep_seconds: int, hands_on: bool
) -> Iterator[Stand]:
    """Run the workers of a contestant, its stores and a new provider.

    Args:
        contestant: the package.
        python: the interpreter of the packages' environment.
        keep_seconds: how long answers are kept.
        hands_on: whether the handler hands the client's key on to the provider.
    """
    with (
        tempfile.TemporaryDirectory(prefix="userlock-idempotency-") as name,
        contextlib.ExitStack() as stack,
    ):
        folder = Path(name)
        folder.chmod(0o755)
        provider_port = ports.any_free()
        stores = {each: _STORES[each](folder, python) for each in contestant.stores}
        environment = {
            **os.environ,
            "PYTHONPATH": str(_HERE.parents[1]) if contestant.is_ours else "",
            "no_proxy": ports.LOOPBACK,
            "no_grpc_proxy": ports.LOOPBACK,
            "GOOGLE_CLOUD_PROJECT": "demo",
            # For moto alone, which checks none of them.
            "AWS_ACCESS_KEY_ID": "none",
            "AWS_SECRET_ACCESS_KEY": "none",
            "AWS_DEFAULT_REGION": "eu-west-1",
            "SHOP_PROVIDER": f"{ports.LOOPBACK}:{provider_port}",
            "SHOP_ORDERS": str(folder / "orders.sqlite"),
            "SHOP_KEEP_SECONDS": str(keep_seconds),
            "SHOP_HANDS_ON": "1" if hands_on else "0",
        }
        for store, (_, port) in stores.items():
            variable, form = _ADDRESSES[store]
            environment[variable] = form.format(f"{ports.LOOPBACK}:{port}")
        provider = Child(
            "the provider",
            [sys.executable, str(_HERE / "provider.py"), str(provider_port)],
            answers=lambda: services.accepts(provider_port),
            log_file=folder / "provider.log",
        )
        children = [*(child for child, _ in stores.values()), provider]
        for child in children:
            stack.callback(child.stop, 0)
            child.start()
            child.wait_until_it_answers()
        worker_ports = ports.any_free(), ports.any_free()
        for number, port in enumerate(worker_ports):
            worker = Child(
                f"worker {number} of {contestant.name}",
                contestant.command(sys.executable if contestant.is_ours else python, port),
                answers=functools.partial(answers, port),
                log_file=folder / f"worker{number}.log",
                env=environment,
                cwd=folder,
            )
            stack.callback(worker.stop, 1)
            worker.start()
            worker.wait_until_it_answers()
            children.append(worker)
        stand = Stand(
            provider_port,
            worker_ports,
            children,
            volatile=stores[contestant.volatile][0] if contestant.volatile else None,
            reaps=contestant.is_ours,
        )
        stack.callback(stand.close)
        yield stand


#: The variables in which the apps find their stores.
_ADDRESSES = {
    "memcached": ("SHOP_STORE", "memcache://{}?prefix=peers"),
    "datastore": ("DATASTORE_EMULATOR_HOST", "{}"),
    "redis": ("SHOP_REDIS", "{}"),
    "dynamodb": ("SHOP_DYNAMODB", "http://{}"),
}


def _memcached(folder: Path, _: str) -> tuple[Child, int]:
    port = ports.any_free()
    binary = services.memcached_binary()
    return services.memcached(port, log_file=folder / "memcached.log", binary=binary), port


def _datastore(folder: Path, _: str) -> tuple[Child, int]:
    port = ports.any_free()
    log = folder / "datastore.log"
    return services.emulator(port, concurrency_mode=None, log_file=log), port


def _redis(folder: Path, _: str) -> tuple[Child, int]:
    port = ports.any_free()
    command = ["redis-server", "--port", str(port), "--bind", ports.LOOPBACK, "--save", ""]
    log = folder / "redis.log"
    return Child(
        "redis", command, answers=lambda: redis_answers(port), log_file=log, cwd=folder
    ), port


def _dynamodb(folder: Path, python: str) -> tuple[Child, int]:
    port = ports.any_free()
    child = Child(
        "DynamoDB",
        [python, "-W", "ignore", "-c", _DYNAMODB, str(port)],
        answers=lambda: services.accepts(port),
        log_file=folder / "dynamodb.log",
    )
    return child, port


_STORES = {
    "memcached": _memcached,
    "datastore": _datastore,
    "redis": _redis,
    "dynamodb": _dynamodb,
}
