"""The FastAPI application: routes, error shapes and what surrounds every request."""

from __future__ import annotations

from fastapi import FastAPI

from soup_engine.server.errors import install_error_handlers
from soup_engine.server.guard import RequestGuard
from soup_engine.server.middleware import AccessLog, ErrorBoundary
from soup_engine.server.routes import (
    adapters,
    admin,
    completions,
    exports,
    health,
    messages,
    metrics,
    models,
    sleep,
    speculation,
    tokenize,
)
from soup_engine.server.state import ServerState, attach_state


def create_app(state: ServerState) -> FastAPI:
    """The application over a started backend.

    The generated documentation pages are off: they would load scripts from elsewhere, and the
    bodies are described by the protocol package, not by FastAPI.
    """
    app = FastAPI(title="Soup", docs_url=None, redoc_url=None, openapi_url=None)
    app.router.redirect_slashes = False
    attach_state(app, state)
    install_error_handlers(app)
    public = (completions, messages, models, tokenize, health, metrics)
    for module in (*public, adapters, admin, sleep, exports, speculation):
        app.include_router(module.router)
    # The last one added is the outermost.
    app.add_middleware(ErrorBoundary)
    app.add_middleware(RequestGuard, check_host=state.loopback)
    app.add_middleware(AccessLog)
    return app
