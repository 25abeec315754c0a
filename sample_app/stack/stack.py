"""The site's processes as one object."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from pathlib import Path
from types import TracebackType

from sample_app.config import Protection
from sample_app.stack import ports, services
from sample_app.stack.children import Child, ChildDied

PROJECT = "learning-site"
_QUEUE = f"projects/{PROJECT}/locations/local/queues/jobs"
#: The jobs that run at a time. They take threads of the site.
MOST_JOBS = 4


class Stack:
    """The emulator of Datastore and Cloud Tasks, memcached, the fake payment provider and the site
    under gunicorn, all on the loopback interface.

    Every port may be 0 for any free one. A `memcached_binary` of None means the embedded server. By
    default the real one is used if it is on the PATH. `app` is the application for gunicorn. Logs
    go to `log_dir`, or to a new temporary directory. `concurrency_mode` is the emulator's. `lab`
    makes the site serve the contention lab's bench. `relay` adds the relay of the site's outbox.

    After `stop`, or after the end of the thread that called `start`, all processes have ended.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        datastore_port: int = 0,
        memcached_port: int = 0,
        tasks_port: int = 0,
        provider_port: int = 0,
        protection: Protection | str = Protection.LOCK,
        think_ms: int = 0,
        lease_seconds: int = 60,
        workers: int = 2,
        threads: int = 8,
        app: str = "sample_app.wsgi:app",
        log_dir: Path | None = None,
        concurrency_mode: str | None = None,
        lab: bool = False,
        relay: bool = False,
        memcached_binary: str | services.OnPath | None = services.ON_PATH,
    ) -> None:
        self.protection = Protection(protection)
        self.port = ports.claim(port, user="the site", variable="PORT")
        self.datastore_port = ports.claim(
            datastore_port, user="the Datastore emulator", variable="DATASTORE_PORT"
        )
        self.memcached_port = ports.claim(
            memcached_port, user="memcached", variable="MEMCACHED_PORT"
        )
        self.tasks_port = ports.claim(
            tasks_port, user="the Cloud Tasks emulator", variable="TASKS_PORT"
        )
        self.provider_port = ports.claim(
            provider_port, user="the payment provider", variable="PROVIDER_PORT"
        )
        self.log_dir = log_dir or Path(tempfile.mkdtemp(prefix="sample-app-"))
        self.log_dir.mkdir(parents=True, exist_ok=True)
        if isinstance(memcached_binary, services.OnPath):
            memcached_binary = services.memcached_binary()
        self.memcached_kind = memcached_binary or "embedded"
        self.emulator = services.emulator(
            self.datastore_port,
            tasks_port=self.tasks_port,
            queue=_QUEUE,
            concurrency_mode=concurrency_mode,
            log_file=self.log_dir / "emulator.log",
        )
        self.memcached = services.memcached(
            self.memcached_port,
            log_file=self.log_dir / "memcached.log",
            binary=memcached_binary,
        )
        self.provider = services.payment_provider(
            self.provider_port, log_file=self.log_dir / "provider.log"
        )
        target = f"target={self.app_url}&service_account=jobs@{PROJECT}.example"
        settings = {
            "DATASTORE_EMULATOR_HOST": self.datastore_host,
            "CLOUD_TASKS_EMULATOR_HOST": self.tasks_host,
            "GOOGLE_CLOUD_PROJECT": PROJECT,
            "MEMCACHED": self.memcached_address,
            "OUTBOX": f"cloudtasks://{PROJECT}/local/jobs?{target}",
            "PROTECTION": self.protection,
            "THINK_MS": str(think_ms),
            "LEASE_SECONDS": str(lease_seconds),
            "SECRET_KEY": secrets.token_hex(16),
            "INSPECTOR": "1",
            "PAYMENT_PROVIDER": self.provider_url,
            "DEATHS": "1",
            "STORAGE": str(self.log_dir.absolute() / "pictures"),
            "LAB_BENCH": "1" if lab else "",
            # A lab within the lab would measure itself.
            "LAB_DIR": "" if lab else str(self.log_dir.absolute() / "lab"),
        }
        self.site = services.site(
            self.port,
            app=app,
            workers=workers,
            threads=threads,
            settings=settings,
            log_file=self.log_dir / "site.log",
        )
        self.relay = (
            services.relay(
                outbox="sample_app.operate:outbox",
                settings=settings,
                log_file=self.log_dir / "relay.log",
            )
            if relay
            else None
        )

    @property
    def app_url(self) -> str:
        """Return the site's URL, without a slash at the end."""
        return f"http://{ports.LOOPBACK}:{self.port}"

    @property
    def site_address(self) -> str:
        """Return the site's host and port."""
        return f"{ports.LOOPBACK}:{self.port}"

    @property
    def datastore_host(self) -> str:
        """Return the emulator's address, as in DATASTORE_EMULATOR_HOST."""
        return f"{ports.LOOPBACK}:{self.datastore_port}"

    @property
    def tasks_host(self) -> str:
        """Return the address of Cloud Tasks, as in CLOUD_TASKS_EMULATOR_HOST."""
        return f"{ports.LOOPBACK}:{self.tasks_port}"

    @property
    def provider_url(self) -> str:
        """Return the payment provider's URL."""
        return f"http://{ports.LOOPBACK}:{self.provider_port}"

    @property
    def memcached_address(self) -> str:
        """Return memcached's host and port."""
        return f"{ports.LOOPBACK}:{self.memcached_port}"

    @property
    def worker_pids(self) -> list[int]:
        """Return the process ids of the site's workers. Linux only."""
        return self.site.child_pids()

    @property
    def children(self) -> tuple[Child, ...]:
        """Return all, in the order in which they are stopped."""
        all_ = (self.relay, self.site, self.provider, self.memcached, self.emulator)
        return tuple(child for child in all_ if child is not None)

    def start(self) -> None:
        """Start all and wait until each answers. If one does not, stop all and raise."""
        try:
            # All at once: none needs another one to start, only to answer.
            for child in reversed(self.children):
                child.log_file.unlink(missing_ok=True)
                child.start()
            for child in reversed(self.children):
                child.wait_until_it_answers()
            services.limit_queue(self.tasks_port, _QUEUE, most=MOST_JOBS)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop all running processes, the site first so that it can finish its requests."""
        with contextlib.ExitStack() as stopping:
            stopping.callback(self.emulator.stop)
            # Without grace: it stores nothing, and a graceful end may take a second.
            stopping.callback(self.memcached.stop, grace_seconds=0)
            stopping.callback(self.provider.stop, grace_seconds=0)
            stopping.callback(self.site.stop)
            if self.relay is not None:
                stopping.callback(self.relay.stop)

    def check(self) -> None:
        """Raise `ChildDied` if the site, the emulator or the payment provider has ended."""
        for child in (self.site, self.emulator, self.provider):
            if not child.running:
                raise ChildDied(child.report_of_death())

    def __enter__(self) -> Stack:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
