"""Long-running operations (google.longrunning): started, watched, cancelled."""

import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from google.longrunning import operations_pb2
from google.protobuf import empty_pb2

from userlock_emulator.datastore.admin_protos import CommonMetadata
from userlock_emulator.datastore.clock import wall_clock_microseconds
from userlock_emulator.datastore.errors import Code, DatastoreError
from userlock_emulator.datastore.protos import Message, timestamp
from userlock_emulator.port.pages import page
from userlock_emulator.port.rpcs import Rpcs

SERVICE = "google.longrunning.Operations"

#: An operation that ends within this time is done in the reply that starts it.
_PATIENCE_SECONDS = 0.5
#: Finished operations are kept so long as there are no more than these.
_MOST_KEPT = 1000
_PAGE = 100
_LONGEST_WAIT_SECONDS = 60.0

_log = logging.getLogger(__name__)


class Cancelled(Exception):
    """The operation was cancelled. Its work raises it, and leaves nothing behind."""


class Operation:
    """One operation. Its work calls `progress`.

    Args:
        name: the resource name.
        metadata: a message with `common` and `progress_entities`.
    """

    def __init__(self, name: str, metadata: Message) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._metadata = metadata
        self._cancelled = threading.Event()
        self._done = threading.Event()
        self._error: DatastoreError | None = None
        self._response: Message = None
        common = metadata.common
        common.start_time.CopyFrom(timestamp(wall_clock_microseconds()))
        common.state = CommonMetadata.PROCESSING

    @property
    def done(self) -> bool:
        """Return whether it has ended."""
        return self._done.is_set()

    def progress(self, entities: int, size: int = 0, *, of: int = 0) -> None:
        """Add to the work that is done, and perhaps to the work in all.

        Raises:
            Cancelled: it was cancelled.
        """
        if self._cancelled.is_set():
            raise Cancelled
        with self._lock:
            self._metadata.progress_entities.work_completed += entities
            self._metadata.progress_entities.work_estimated += of
            if size:
                self._metadata.progress_bytes.work_completed += size

    def cancel(self) -> None:
        """Ask the work to stop. Without effect if it has ended."""
        self._cancelled.set()
        with self._lock:
            if not self.done:
                self._metadata.common.state = CommonMetadata.CANCELLING

    def wait(self, seconds: float) -> None:
        """Wait for the end, for at most so long."""
        self._done.wait(seconds)

    def run(self, work: Callable[["Operation"], Message]) -> None:
        """Do the work, which returns the response."""
        state, error, response = CommonMetadata.SUCCESSFUL, None, None
        try:
            response = work(self)
        except Cancelled:
            state = CommonMetadata.CANCELLED
            error = DatastoreError(Code.CANCELLED, "The operation was cancelled.")
        except DatastoreError as refusal:
            state, error = CommonMetadata.FAILED, refusal
        except Exception as failure:
            _log.exception("%s failed", self.name)
            state = CommonMetadata.FAILED
            error = DatastoreError(Code.INTERNAL, f"The emulator failed: {failure!r}")
        with self._lock:
            self._error, self._response = error, response
            self._metadata.common.state = state
            self._metadata.common.end_time.CopyFrom(timestamp(wall_clock_microseconds()))
            self._done.set()

    def message(self) -> Message:
        """Return the operation as the API shows it."""
        shown = operations_pb2.Operation(name=self.name)
        with self._lock:
            shown.metadata.Pack(self._metadata)
            shown.done = self.done
            if self._error is not None:
                shown.error.code, shown.error.message = self._error.code, self._error.message
            elif shown.done:
                shown.response.Pack(self._response)
        return shown


class Operations:
    """All operations of an emulator, and the RPCs on them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: OrderedDict[str, Operation] = OrderedDict()

    def start(
        self, project: str, metadata: Message, work: Callable[[Operation], Message]
    ) -> Message:
        """Start an operation in a thread, and return it as a message."""
        operation = Operation(f"projects/{project}/operations/{secrets.token_hex(8)}", metadata)
        with self._lock:
            self._all[operation.name] = operation
            for name, each in list(self._all.items()):
                if len(self._all) <= _MOST_KEPT:
                    break
                if each.done:
                    del self._all[name]
        threading.Thread(
            target=operation.run, args=(work,), name="datastore-operation", daemon=True
        ).start()
        operation.wait(_PATIENCE_SECONDS)
        return operation.message()

    def close(self) -> None:
        """Cancel all that run, and wait for their end."""
        ends = time.monotonic() + _LONGEST_WAIT_SECONDS
        with self._lock:
            running = [each for each in self._all.values() if not each.done]
        for each in running:
            each.cancel()
        for each in running:
            each.wait(max(ends - time.monotonic(), 0))

    def rpcs(self) -> Rpcs:
        """Return the service's RPCs."""
        return {
            "GetOperation": (self._get, operations_pb2.GetOperationRequest),
            "ListOperations": (self._list, operations_pb2.ListOperationsRequest),
            "CancelOperation": (self._cancel, operations_pb2.CancelOperationRequest),
            "DeleteOperation": (self._delete, operations_pb2.DeleteOperationRequest),
            "WaitOperation": (self._wait, operations_pb2.WaitOperationRequest),
        }

    def _find(self, name: str) -> Operation:
        with self._lock:
            found = self._all.get(name)
        if found is None:
            raise DatastoreError(Code.NOT_FOUND, f'There is no operation "{name}".')
        return found

    def _get(self, request: Message) -> Message:
        return self._find(request.name).message()

    def _list(self, request: Message) -> Message:
        if request.filter:
            raise DatastoreError(
                Code.UNIMPLEMENTED, "The emulator does not support filters of operations."
            )
        prefix = f"{request.name.rstrip('/')}/"
        with self._lock:
            found = {name: each for name, each in self._all.items() if name.startswith(prefix)}
        names, token = page(found, request, _PAGE)
        return operations_pb2.ListOperationsResponse(
            operations=[found[name].message() for name in names], next_page_token=token
        )

    def _cancel(self, request: Message) -> Message:
        self._find(request.name).cancel()
        return empty_pb2.Empty()

    def _delete(self, request: Message) -> Message:
        """Forget an operation. It is not cancelled."""
        self._find(request.name)
        with self._lock:
            self._all.pop(request.name, None)
        return empty_pb2.Empty()

    def _wait(self, request: Message) -> Message:
        operation = self._find(request.name)
        seconds = request.timeout.ToTimedelta().total_seconds()
        asked = seconds if request.HasField("timeout") else _LONGEST_WAIT_SECONDS
        operation.wait(min(max(asked, 0), _LONGEST_WAIT_SECONDS))
        return operation.message()
