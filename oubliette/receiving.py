"""Bytes from a peer: the counterpart of `outbox`."""

from __future__ import annotations

import os

import trio


async def receive(stream: trio.abc.ReceiveStream, most: int) -> bytes:
    """Returns at most `most` bytes as soon as there are any, nothing where the peer has closed. Is a checkpoint.

    A socket is asked once it is readable: whoever waits for a peer's next message would ask in vain before that.
    Raises `trio.BrokenResourceError` or `ClosedResourceError` as `receive_some` does.
    """
    if not isinstance(stream, trio.SocketStream):
        return bytes(await stream.receive_some(most))
    socket = stream.socket
    if socket.fileno() < 0:
        raise trio.ClosedResourceError("this stream was closed")
    await trio.lowlevel.wait_readable(socket)
    try:
        return os.read(socket.fileno(), most)
    except BlockingIOError:  # somebody was quicker, or the kernel changed its mind: select(2), "BUGS"
        return bytes(await stream.receive_some(most))
    except OSError as error:
        raise trio.BrokenResourceError from error
