"""``PORT ARGUMENTS…``: ``soup ARGUMENTS…`` over vLLM and, on PORT, vLLM's own server in front of
the same engine. Runs with the packages of the environment ``soup-vllm``.

vLLM's application answers on the event loop that the engine lives on, as it does in its own
process; that loop is asyncio's instead of uvloop's.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import uvicorn

from soup_engine.backends.base import ProgressCallback
from soup_engine.backends.foreign.engine import EngineFacts, ReportStep
from soup_engine.backends.vllm.backend import VllmMaker
from soup_engine.backends.vllm.engine import VllmEngine


class SharedEngine(VllmEngine):
    """Brings vLLM's own server up beside ours."""

    port = 0

    async def start(self, report: ReportStep, on_progress: ProgressCallback) -> EngineFacts:
        facts = await super().start(report, on_progress)
        server = uvicorn.Server(await self._their_server())
        self._serving = asyncio.create_task(server.serve())
        return facts

    async def _their_server(self) -> uvicorn.Config:
        from vllm.entrypoints.launchers.api_server.app_state import init_app_state
        from vllm.entrypoints.launchers.app import build_app
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        model = str(self._description.location.base)
        arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(["--model", model])
        engine: Any = self._llm
        tasks = await engine.get_supported_tasks()
        app = build_app(arguments, tasks, engine.model_config)
        await init_app_state(engine, app.state, arguments, tasks)
        return uvicorn.Config(app, port=self.port, log_level="warning")


def main() -> None:
    """As ``soup``, with one argument more in front."""
    from soup_tui.cli.main import main as soup

    SharedEngine.port = int(sys.argv.pop(1))
    VllmMaker.engine = staticmethod(SharedEngine)  # type: ignore[method-assign,assignment]
    soup()


if __name__ == "__main__":
    main()
