"""Our half of a FLARE job: the relay at its server, and the executor at each site. Nothing else imports FLARE's classes."""

import json
import os
import threading
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fedfacet.deploy.flare import SETTINGS, TASK
from fedfacet.deploy.loopback import Loopback
from fedfacet.deploy.startup_kit import check_filters
from fedfacet.deploy.transport import Fault
from fedfacet.errors import ConfigError

_MESSAGE, _FAULT = "letter", "fault"


class Relay(Controller):  # type: ignore[misc]
    """Passes messages on between the server's process and the sites, and reads none.

    Args:
        address: of the pipe to the server's process.
    """

    def __init__(self, address: str) -> None:
        super().__init__(task_check_period=0.2)
        self.address = address
        self._lock = threading.Lock()
        self._tasks: dict[int, Task] = {}
        self._line: Connection

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Nothing is to be done before the flow."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing is to be done after it."""

    def process_result_of_unknown_task(
        self, client: Any, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Leave out an answer that nobody waits for."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Pass messages on until the server's process says that it is over, or is gone."""
        with Client(self.address, family="AF_UNIX") as self._line:
            try:
                while not abort_signal.triggered:
                    if not self._line.poll(0.1):
                        continue
                    request = json.loads(self._line.recv_bytes())
                    if request["do"] == "end":
                        return
                    if request["do"] == "cancel":
                        for number in request["numbers"]:
                            self._cancel(number, fl_ctx)
                    else:
                        self._pass_on(request["number"], request["site"], self._line.recv_bytes(), fl_ctx)
            except (EOFError, OSError):
                return
            finally:
                self.cancel_all_tasks(fl_ctx=fl_ctx)

    def _pass_on(self, number: int, site: str, message: bytes, fl_ctx: FLContext) -> None:
        data = Shareable()
        data[_MESSAGE] = message
        task = Task(TASK, data, props={"number": number, "site": site}, result_received_cb=self._heard, task_done_cb=self._done)
        self._tasks[number] = task
        self.send(task=task, fl_ctx=fl_ctx, targets=[site])

    def _heard(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        result, number = client_task.result, client_task.task.props["number"]
        client_task.result = None  # or FLARE would hold it until the job ends
        if result.get_return_code() == ReturnCode.OK and isinstance(result.get(_MESSAGE), bytes):
            self._pass_back(number, {}, result[_MESSAGE])
        else:
            fault = result.get(_FAULT) or f"FLARE says {result.get_return_code()}"
            self._pass_back(number, {"fault": f"{client_task.client.name} has no answer: {fault}"})

    def _done(self, task: Task, fl_ctx: FLContext) -> None:
        """Say that a task has ended without an answer, as where its site is gone."""
        gone = task.completion_status == TaskCompletionStatus.CLIENT_DEAD
        what = "is gone" if gone else f"has no answer: FLARE's task ended with {task.completion_status}"
        self._pass_back(task.props["number"], {"fault": f"{task.props['site']} {what}"})

    def _pass_back(self, number: int, fields: dict[str, Any], message: bytes = b"") -> None:
        with self._lock:
            if self._tasks.pop(number, None) is not None:
                self._line.send_bytes(json.dumps({"number": number, **fields}).encode())
                self._line.send_bytes(message)

    def _cancel(self, number: int, fl_ctx: FLContext) -> None:
        with self._lock:
            task = self._tasks.pop(number, None)
        if task is not None:
            self.cancel_task(task, fl_ctx=fl_ctx)


class SiteExecutor(Executor):  # type: ignore[misc]
    """Answers messages in a process of its own, which is started again where it dies; one that hangs ends with the job."""

    def __init__(self) -> None:
        super().__init__()
        self._site: Loopback | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """End the process with the job."""
        if event_type == EventType.END_RUN and self._site is not None:
            self._site.close()

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Return the answer to a message, or why there is none."""
        if self._site is None:
            try:
                check_filters(Path(fl_ctx.get_workspace().get_site_config_dir()))
            except ConfigError:
                return _faulty("its FLARE has filters that would not act, as `client.py start` tells its operator")
            self._site = Loopback(clients=[os.environ[SETTINGS]])
        (name,) = self._site.sites()
        ticket = self._site.send(name, shareable[_MESSAGE])
        while not abort_signal.triggered:
            for came, content in self._site.poll(0.1):
                if came != ticket:
                    continue
                if isinstance(content, Fault):
                    return _faulty(content.sentence)
                reply = make_reply(ReturnCode.OK)
                reply[_MESSAGE] = content
                return reply
        self._site.close()
        return make_reply(ReturnCode.TASK_ABORTED)


def _faulty(sentence: str) -> Shareable:
    reply = make_reply(ReturnCode.EXECUTION_EXCEPTION)
    reply[_FAULT] = sentence
    return reply
