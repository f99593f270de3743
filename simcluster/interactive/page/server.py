"""Web server of the studio: one page, a WebSocket for changes, and downloads; only this computer can connect.

The address is 127.0.0.1, and Host and Origin are checked, so that no other page can use it through a browser. Messages
are small, and ``studio_state`` and ``controls`` check everything in them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from simcluster.base.atomic_files import write_text_atomic
from simcluster.base.errors import InputError
from simcluster.documents.builtin_documents import builtin_names
from simcluster.documents.diagnostics import quote_value
from simcluster.interactive.page.page_parts import PageQuery, report_html, scenario_text
from simcluster.interactive.page.studio_state import MOST_LINK, StudioFolder, StudioState, parse_link, parse_state
from simcluster.interactive.page.worker_pool import SimulationStopped, StudioPool, WindowSession
from simcluster.interactive.report.html import json_block, read_asset
from simcluster.interactive.report.page import SCRIPTS, content_policy, style_sheet, wrap_in_function

HOST = "127.0.0.1"
_MOST_MESSAGE = 65_536  # bytes
_MOST_CONNECTIONS = 64
_OWN_FILES = "interactive/page/page"
_OWN_SCRIPTS = ("client.js", "panel.js", "ways.js", "studio.js")


def make_application(folder: Path, initial: StudioState | None, port: int, pool: StudioPool) -> ASGIApp:
    """Return the studio's ASGI application for a folder of scenario files, with an optional initial state."""
    own = StudioHandlers(StudioFolder(folder), initial, pool)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        pool.start_first_worker()
        try:
            yield
        finally:
            pool.close()

    routes = [
        Route("/", own.send_page, methods=["GET"]),
        Route("/report", own.send_report, methods=["GET"]),
        Route("/scenario", own.send_scenario, methods=["GET"]),
        WebSocketRoute("/live", own.handle_socket),
    ]
    return LocalRequestsOnly(Starlette(routes=routes, lifespan=lifespan), port)


class LocalRequestsOnly:
    """ASGI middleware that rejects requests from other computers and from other web pages."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app = app
        self._hosts = {f"{name}:{port}" for name in (HOST, "localhost")}
        self._origins = {f"http://{host}" for host in self._hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application if it is allowed, and reject it otherwise."""
        if scope["type"] == "lifespan" or self._is_allowed(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            refusal = PlainTextResponse("the studio answers only its own page on this computer\n", 403)
            await refusal(scope, receive, send)

    def _is_allowed(self, scope: Scope) -> bool:
        found: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        hosts, origins = found.get("host", []), found.get("origin", [])
        elsewhere = found.get("sec-fetch-site", ["none"])[0] not in ("none", "same-origin")
        if len(hosts) != 1 or hosts[0] not in self._hosts or elsewhere:
            return False
        if scope["type"] == "websocket" and not origins:
            return False
        return all(origin in self._origins for origin in origins)


class StudioHandlers:
    """Handlers of the studio's web requests."""

    def __init__(self, folder: StudioFolder, first: StudioState | None, pool: StudioPool) -> None:
        self._folder, self._first, self._pool = folder, first, pool

    async def send_page(self, request: Request) -> Response:
        """Return the HTML of the studio page, which loads its content over a WebSocket."""
        parts = [*(read_asset(name) for name in SCRIPTS), *(read_asset(name, _OWN_FILES) for name in _OWN_SCRIPTS)]
        script, sheet = wrap_in_function("\n".join(parts)), style_sheet() + read_asset("studio.css", _OWN_FILES)
        beginning = {
            "state": self._first and self._first.to_json(),
            "shipped": builtin_names("scenarios"),
            "files": self._folder.scenario_names(),
            "folder": self._folder.path.resolve().name,
        }
        text = (
            read_asset("studio.html", _OWN_FILES)
            .replace("$style", sheet)
            .replace("$data", json_block("first", beginning))
            .replace("$script", script)
        )
        more = f"; connect-src 'self' ws://{request.headers['host']}; base-uri 'none'; form-action 'none'; "
        policy = content_policy(script, sheet, f"{more}frame-ancestors 'none'")
        return Response(text, media_type="text/html", headers={"content-security-policy": policy, **_HEADERS})

    async def send_report(self, request: Request) -> Response:
        """Return the HTML report about a studio state (and about the pinned state, if there is one) as a download."""
        return await self._respond(request, self._report_page, "text/html", "")

    async def _report_page(self, window: WindowSession, request: Request) -> str:
        pinned = request.query_params.get("pinned")
        asked = PageQuery(_state_of_request(request), parse_link(pinned) if pinned else None, self._folder.path)
        return str(await window.call_once(report_html, asked))

    async def send_scenario(self, request: Request) -> Response:
        """Return a studio state as a scenario file to download."""
        return await self._respond(
            request, self._scenario_text, "application/yaml", 'attachment; filename="scenario.yaml"'
        )

    async def _scenario_text(self, window: WindowSession, request: Request) -> str:
        return str(await window.call_once(scenario_text, _state_of_request(request), self._folder.path))

    async def _respond(self, request: Request, make: Any, media_type: str, disposition: str) -> Response:
        window = self._pool.open_window()
        try:
            text = await make(window, request)
        except InputError as problem:
            return PlainTextResponse(f"{problem}\n", 400, headers=_HEADERS)
        except SimulationStopped:
            return PlainTextResponse("the simulation was stopped; try again\n", 503, headers=_HEADERS)
        finally:
            await window.close()
        more = {"content-disposition": disposition} if disposition else {}
        return Response(text, media_type=media_type, headers={**_HEADERS, **more})

    async def handle_socket(self, wire: WebSocket) -> None:
        """Serve a browser window's WebSocket: receive changes and send content until the window closes."""
        await wire.accept()
        window = self._pool.open_window()
        answers = asyncio.create_task(self._send_answers(wire, window))
        try:
            while True:
                await self._handle_message(wire, window, await wire.receive())
        except (WebSocketDisconnect, RuntimeError):
            pass
        finally:
            answers.cancel()
            with suppress(asyncio.CancelledError, WebSocketDisconnect, RuntimeError):
                await answers
            await window.close()

    async def _send_answers(self, wire: WebSocket, window: WindowSession) -> None:
        async for message in window.iterate_messages():
            await (wire.send_bytes(message) if isinstance(message, bytes) else wire.send_text(message))

    async def _handle_message(self, wire: WebSocket, window: WindowSession, event: Mapping[str, Any]) -> None:
        if event["type"] == "websocket.disconnect":
            raise WebSocketDisconnect
        number = 0
        try:
            told = _parse_message(event.get("text"))
            number = told["ask"]
            if told.get("leave"):
                await window.cancel_request()
            elif "save" in told:
                text = await self._save_scenario(window, told)
                await wire.send_json({"ask": number, "of": {"saved": text, "files": self._folder.scenario_names()}})
            else:
                self._request_content(window, number, told)
        except (InputError, SimulationStopped) as problem:
            lines = str(problem).splitlines() or ["the simulation was stopped; try again"]
            await wire.send_json({"ask": number, "of": {"problem": lines, "remedies": []}})
        except (WebSocketDisconnect, RuntimeError):
            raise
        except Exception as problem:  # ours, or of the machine; the page says so, and lives on
            told_so = [f"This is a bug in simcluster, not in your input: {type(problem).__name__}: {problem}"[:500]]
            await wire.send_json({"ask": number, "of": {"problem": told_so, "remedies": []}})

    def _request_content(self, window: WindowSession, number: int, message: Mapping[str, Any]) -> None:
        live = parse_state(message.get("live"))
        pinned = None if message.get("pinned") is None else parse_state(message["pinned"])
        changed = message.get("changed", "")
        asked = PageQuery(live, pinned, self._folder.path, changed if isinstance(changed, str) else "")
        states = [live] if pinned is None else [live, pinned]
        found = (self._folder.scenario_path(state.base).stat() for state in states)
        window.set_request(number, asked, tuple((each.st_mtime_ns, each.st_size) for each in found))

    async def _save_scenario(self, window: WindowSession, message: Mapping[str, Any]) -> str:
        if not isinstance(message["save"], str):
            raise InputError(f"the file name must be text, got {quote_value(message['save'])}")
        path = self._folder.path_to_write(message["save"])
        text = await window.call_once(scenario_text, parse_state(message.get("live")), self._folder.path)
        write_text_atomic(path, text, must_be_new=True)
        return path.name


_HEADERS = {
    "cache-control": "no-store", "x-content-type-options": "nosniff", "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}  # fmt: skip


def _parse_message(text: object) -> dict[str, Any]:
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        found = None
    number = found.get("ask") if isinstance(found, dict) else None
    if not isinstance(found, dict) or not isinstance(number, int) or not 0 <= number < 2**53:
        raise InputError(
            'a message of the studio must be JSON, as in {"ask": 1, "live": {"base": "tiny_3d", "settings": {}}}'
        )
    return found


def _state_of_request(request: Request) -> StudioState:
    link = request.query_params.get("state", "")
    if not link:
        raise InputError(f"the query parameter 'state' is missing; add a studio link (up to {MOST_LINK:,} characters)")
    return parse_link(link)


def serve_studio(
    folder: Path,
    initial: StudioState | None,
    announce: Callable[[str], None],
    *,
    port: int = 0,
    seconds: float | None = None,
) -> None:
    """Serve the studio for ``seconds`` or until Ctrl-C; call ``announce`` with the page's address when it is ready.

    InputError for a port in use.
    """
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
    except OSError as problem:
        raise InputError(f"--port {port}: {problem.strerror}; choose another port, or omit --port") from None
    listening.listen(128)  # from now on who comes waits, and is not refused
    port = listening.getsockname()[1]
    config = uvicorn.Config(
        make_application(folder, initial, port, StudioPool()), host=HOST, log_level="error", ws="websockets-sansio",
        port=port, ws_max_size=_MOST_MESSAGE, ws_per_message_deflate=False, limit_concurrency=_MOST_CONNECTIONS,
        timeout_keep_alive=5, timeout_graceful_shutdown=1, server_header=False, h11_max_incomplete_event_size=16_384,
    )  # fmt: skip
    logging.getLogger("uvicorn.error").addFilter(_is_internal_error)
    announce(f"http://{HOST}:{port}/")
    asyncio.run(_serve_for(uvicorn.Server(config), listening, seconds))


def _is_internal_error(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], UnicodeDecodeError))


async def _serve_for(server: uvicorn.Server, listening: socket.socket, seconds: float | None) -> None:
    task = asyncio.create_task(server.serve(sockets=[listening]))
    if seconds is not None:
        await asyncio.wait([task], timeout=seconds)
        server.should_exit = True
    await task
