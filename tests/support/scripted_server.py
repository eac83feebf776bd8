"""An HTTP server on 127.0.0.1 with scripted answers: correct ones, or the faults that a download
can meet.
"""

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[["Handler"], None]


class Server(ThreadingHTTPServer):
    """Gives its answers in order and repeats the last one. received: (path, headers) of each
    request.
    """

    daemon_threads = True

    def __init__(self, *answers: Answer) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.received, self.stopped = list(answers), [], threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that close the connection."""

    @property
    def ranges(self) -> list[str | None]:
        return [headers.get("Range") for _, headers in self.received]

    def stop(self) -> None:
        self.stopped.set()
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.received.append((self.path, dict(self.headers)))
        answers = self.server.answers
        (answers.pop(0) if len(answers) > 1 else answers[0])(self)

    do_CONNECT = do_GET

    def log_message(self, *arguments: Any) -> None:
        pass

    def send(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)


def file_answer(
    data: bytes, *, only: int | None = None, then: str = "close", **headers: str
) -> Answer:
    """The file, or the requested range if the file is unchanged. only: send so many bytes. then:
    close or stall.
    """

    def answer(handler: Handler) -> None:
        wanted, validator = handler.headers.get("Range"), handler.headers.get("If-Range")
        first = (
            int(wanted[len("bytes=") : -1])
            if wanted and validator in (None, *headers.values())
            else 0
        )
        if first >= len(data) > 0:
            return handler.send(416)
        status, extra = 200, {}
        if first:
            status, extra = 206, {"Content_Range": f"bytes {first}-{len(data) - 1}/{len(data)}"}
        body = data[first:] if only is None else data[first : first + only]
        handler.send(status, body, Content_Length=str(len(data) - first), **headers, **extra)
        if then == "stall":
            handler.wfile.flush()
            handler.server.stopped.wait(5)
        return None

    return answer


def fixed_answer(status: int, body: bytes = b"", **headers: str) -> Answer:
    """The same answer for every request."""
    return lambda handler: handler.send(status, body, **headers)


def raw_answer(data: bytes) -> Answer:
    """Raw bytes, which need not be HTTP."""
    return lambda handler: handler.wfile.write(data) and None


def delayed_answer(data: bytes, seconds: float) -> Answer:
    """The file, sent after a delay of some seconds."""

    def answer(handler: Handler) -> None:
        time.sleep(seconds)
        file_answer(data)(handler)

    return answer
