"""A process with one end of a Flight connection, for tests that kill or stop it.

``flight_peer.py replica`` listens and prints its address; ``flight_peer.py controller ADDRESS`` connects and prints a
line.  It answers each frame with the same frame.  When its input ends, it leaves without closing anything.
"""

from __future__ import annotations

import asyncio
import sys
from importlib.util import find_spec, module_from_spec

# The package's own face imports all that an environment needs, which takes most of a second; a carrier needs little.
if (found := find_spec("strandline")) is not None:
    sys.modules["strandline"] = module_from_spec(found)

from strandline.errors import Disconnected
from strandline.instance.carriers.access import ClientAccess, ServerAccess
from strandline.instance.carriers.exchange import Pace
from strandline.instance.carriers.flight import FlightListener, dialer
from strandline.instance.protocol.carrier import Carrier
from strandline.store.secret import Secret

TOKEN = Secret("canary-4711")
PACE = Pace(heartbeat_s=0.1, silence_s=1, connect_s=120, close_s=1)


async def echo(carrier: Carrier) -> None:
    """Answer each frame with itself."""
    try:
        while (frame := await carrier.receive(None)) is not None:
            await carrier.send(frame)
    except Disconnected:
        pass


async def replica() -> None:
    """Listen until the input ends."""
    listener = FlightListener("127.0.0.1:0", echo, ServerAccess(TOKEN), pace=PACE)
    await listener.start()
    print(listener.address, flush=True)  # noqa: T201 - the test reads it
    await asyncio.to_thread(sys.stdin.read)


async def controller(address: str) -> None:
    """Connect and stay until the input ends."""
    carrier = await dialer(ClientAccess(TOKEN), PACE)(address)
    await carrier.send(b"here")
    print("connected", flush=True)  # noqa: T201 - the test reads it
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(replica() if sys.argv[1] == "replica" else controller(sys.argv[2]))
