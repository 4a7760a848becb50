"""The server of the double."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from sglang.recorded import ADAPTER_FIELDS, REQUEST_FIELDS, SAMPLING_FIELDS
from sglang.srt.server_args import ServerArgs

STEP_S = 0.002
KV_GB = 0.5
TOKENS = 4096
CONTEXT = 256
BROKEN, GIVEN_UP, SLOW = 66, 67, 68
"""First tokens of prompts that get special treatment."""


class Double:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.adapters: dict[str, str] = {}
        self.aborted: set[str] = set()
        self.seen: set[tuple[int, ...]] = set()

    async def server_info(self, _request: Request) -> Response:
        context = self.settings.get("context_length", CONTEXT)
        return JSONResponse(
            {
                **{key: self.settings[key] for key in ("device", "dtype", "kv_cache_dtype")},
                "page_size": 1,
                "max_total_num_tokens": TOKENS,
                "max_req_input_len": min(context, TOKENS) - 6,
            }
        )

    async def loads(self, _request: Request) -> Response:
        memory = {"weight_gb": 0.1, "kv_cache_gb": KV_GB, "graph_gb": 0.0, "token_capacity": TOKENS}
        return JSONResponse(
            {"accelerator": None, "loads": [{"token_usage": 0.25, "memory": memory}]}
        )

    async def load_adapter(self, request: Request) -> Response:
        asked = await request.json()
        assert asked.keys() == ADAPTER_FIELDS
        name, path = asked["lora_name"], asked["lora_path"]
        config = json.loads(Path(path, "adapter_config.json").read_text())
        if config["r"] > self.settings["max_lora_rank"]:
            return refusal(f"LoRA adapter {name} with rank {config['r']} is incompatible")
        self.adapters[name] = path
        return JSONResponse({"success": True, "error_message": "", "loaded_adapters": {}})

    async def unload_adapter(self, request: Request) -> Response:
        name = (await request.json())["lora_name"]
        if self.adapters.pop(name, None) is None:
            return refusal(f"LoRA with name {name} does not exist in loaded LoRAs.")
        return JSONResponse({"success": True, "error_message": "", "loaded_adapters": {}})

    async def abort(self, request: Request) -> Response:
        self.aborted.add((await request.json())["rid"])
        return Response()

    async def generate(self, request: Request) -> Response:
        asked = await request.json()
        assert asked.keys() <= REQUEST_FIELDS, asked
        assert asked["sampling_params"].keys() <= SAMPLING_FIELDS, asked
        return StreamingResponse(self.stream(asked), media_type="text/event-stream")

    async def stream(self, asked: dict[str, Any]) -> AsyncIterator[str]:
        error = self.error(asked)
        if error is not None:
            yield line({"error": error})
        else:
            async for piece in self.pieces(asked):
                yield line(piece)
        yield "data: [DONE]\n\n"

    def error(self, asked: dict[str, Any]) -> dict[str, Any] | None:
        adapter = asked.get("lora_path")
        message, code = "", 400
        if adapter is not None and adapter not in self.adapters:
            message = f"Got LoRA adapter that has never been loaded: {adapter}"
        elif asked["input_ids"][0] == BROKEN:
            message, code = "The scheduler failed.", 500
        if not message:
            return None
        kind = "invalid_request_error"
        return {"message": message, "type": kind, "code": code, "retryable": False}

    async def pieces(self, asked: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        prompt, most = asked["input_ids"], asked["sampling_params"]["max_new_tokens"]
        started, name = time.time(), asked["rid"]
        cached = len(prompt) - 1 if tuple(prompt) in self.seen else 0
        if not self.settings["disable_radix_cache"]:
            self.seen.add(tuple(prompt))
        for place in range(most):
            await asyncio.sleep(STEP_S if prompt[0] != SLOW else 0.05)
            token = prompt[place % len(prompt)] + (0 if "lora_path" not in asked else 1)
            reason: dict[str, Any] | None = None
            if any(name.startswith(rid) for rid in self.aborted):
                reason = {"type": "abort", "message": "Aborted", "status_code": None}
            elif prompt[0] == GIVEN_UP:
                reason = {"type": "abort", "message": "No room", "status_code": 503}
            elif token in asked["sampling_params"]["stop_token_ids"]:
                reason = {"type": "stop", "matched": token}
            elif place == most - 1:
                reason = {"type": "length", "length": most}
            said = {
                "id": name,
                "finish_reason": reason,
                "prompt_tokens": len(prompt),
                "num_retractions": int(place > 0),
                "forward_entry_time": started,
                "queue_time": 0.001,
                "completion_tokens": place + 1,
                "cached_tokens": cached,
            }
            if asked.get("return_logprob"):
                best = asked["top_logprobs_num"]
                said["output_token_logprobs"] = [[-0.5, token, None]]
                said["output_top_logprobs"] = [[[-0.5 - n, token + n, None] for n in range(best)]]
            if reason is not None and self.settings.get("speculative_algorithm"):
                said["spec_correct_drafts_histogram"] = [1, 0, 2]
            yield {"output_ids": [token], "meta_info": said}
            if reason is not None:
                return


def line(piece: dict[str, Any]) -> str:
    return f"data: {json.dumps(piece)}\n\n"


def refusal(message: str) -> Response:
    return JSONResponse({"success": False, "error_message": message}, status_code=400)


async def ready(_request: Request) -> Response:
    return Response()


def run_server(server_args: ServerArgs) -> None:
    settings = server_args.settings
    if settings["max_running_requests"] == 1:
        raise RuntimeError("Not enough memory. Please try to increase --mem-fraction-static.")
    double = Double(settings)
    app = Starlette(
        routes=[
            Route("/ready", ready),
            Route("/server_info", double.server_info),
            Route("/v1/loads", double.loads),
            Route("/generate", double.generate, methods=["POST"]),
            Route("/abort_request", double.abort, methods=["POST"]),
            Route("/load_lora_adapter", double.load_adapter, methods=["POST"]),
            Route("/unload_lora_adapter", double.unload_adapter, methods=["POST"]),
        ]
    )

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        key = f"Bearer {settings['api_key']}".encode()
        if scope["type"] == "http" and (b"authorization", key) not in scope["headers"]:
            await Response(status_code=401)(scope, receive, send)
        else:
            await app(scope, receive, send)

    uvicorn.run(guarded, host=settings["host"], port=settings["port"], log_level="warning")
