"""A chat server that streams a made-up answer: ``python streaming_server.py PORT [OPTION…]``.

Options: ``stall=S`` holds up all its streams for S seconds while it reads a prompt of more than
300 words; ``delay=S`` is the time between two tokens; ``fail=1`` answers every request with 500;
``usage=0`` reports no usage.
"""

import asyncio
import json
import sys
from typing import Any

OPTIONS = {"stall": 0.0, "delay": 0.002, "fail": 0.0, "usage": 1.0}
OPTIONS |= {name: float(value) for name, value in (part.split("=") for part in sys.argv[2:])}
reading_prompt = asyncio.Lock()


def chunk(payload: object) -> bytes:
    data = payload if isinstance(payload, str) else json.dumps(payload)
    body = f"data: {data}\n\n".encode()
    return f"{len(body):x}\r\n".encode() + body + b"\r\n"


def delta(content: str | None, finish_reason: str | None = None) -> dict[str, object]:
    inner = {} if content is None else {"content": content}
    return {"choices": [{"index": 0, "delta": inner, "finish_reason": finish_reason}]}


async def stream(writer: asyncio.StreamWriter, request: dict[str, Any]) -> None:
    (message,) = request["messages"]
    words = len(message["content"].split())
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n")
    if words > 300:
        async with reading_prompt:
            await asyncio.sleep(OPTIONS["stall"])
    for _ in range(request["max_tokens"]):
        await asyncio.sleep(OPTIONS["delay"])
        async with reading_prompt:
            writer.write(chunk(delta("word ")))
        await writer.drain()
    writer.write(chunk(delta(None, "length")))
    if OPTIONS["usage"]:
        usage = {"prompt_tokens": words, "completion_tokens": request["max_tokens"]}
        writer.write(chunk({"choices": [], "usage": usage}))
    writer.write(chunk("[DONE]") + b"0\r\n\r\n")


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if head.startswith("GET"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        elif OPTIONS["fail"]:
            writer.write(b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\nConnection: close\r\n\r\nOops")
        else:
            length = int(head.lower().split("content-length:")[1].split()[0])
            await stream(writer, json.loads(await reader.readexactly(length)))
        await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()


asyncio.run(main())
