"""A wire with a delay: what goes in at one end comes out at the other so much later, in both directions."""

from __future__ import annotations

import asyncio

from benchmarks.processes import await_go


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    """Each piece waits by itself, so that the delay takes no bandwidth away."""
    loop = asyncio.get_running_loop()
    while data := await reader.read(65536):
        loop.call_later(seconds, writer.write, data)
    loop.call_later(seconds, writer.close)


async def _serve(seconds: float, port: int) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_carry(reader, far_writer, seconds), _carry(far_reader, writer, seconds))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def work(milliseconds: str, port: str) -> None:
    """Prints its port; `milliseconds` are those of a round trip. Runs until it is ended."""
    await_go()
    asyncio.run(_serve(float(milliseconds) / 2000, int(port)))
