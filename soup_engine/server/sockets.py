"""Listening sockets, opened before anything slow, so that a used address fails at once."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from soup_engine.config import ServerConfig
from soup_engine.errors import AddressInUseError, CannotRunError, ConfigError

BACKLOG = 2048
_SOCKET_UMASK = 0o177
"""Leaves mode 0600."""


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket.

    Attributes:
        address: where clients find it: ``http://host:port`` or ``unix:path``.
        loopback: it is a TCP socket on a loopback address.
        path: of a Unix socket; removed by ``close`` while it is still ours.
    """

    socket: socket.socket
    address: str
    loopback: bool
    path: Path | None = None
    inode: int = 0

    def close(self) -> None:
        """Stop listening; may be called again."""
        self.socket.close()
        if self.path is not None:
            with contextlib.suppress(OSError):
                if self.path.lstat().st_ino == self.inode:
                    self.path.unlink()


def open_listener(config: ServerConfig) -> Listener:
    """Bind and listen. Connections that come before the server runs wait for it.

    Raises:
        ConfigError: the address is none, or is open to others and has no key.
        AddressInUseError: somebody else listens there.
        CannotRunError: the system refuses the address.
    """
    _check_keys(config)
    if config.uds is not None:
        return _open_unix(config.uds)
    return _open_tcp(config)


def _check_keys(config: ServerConfig) -> None:
    for name, key in (("api-key", config.api_key), ("admin-key", config.admin_key)):
        if key is not None and not key.strip():
            raise ConfigError(f"{name} must not be empty.", param=name.replace("-", "_"))


def _open_tcp(config: ServerConfig) -> Listener:
    if not 0 <= config.port <= 65_535:
        raise ConfigError(f"port must be from 0 to 65535, not {config.port}.", param="port")
    family, sockaddr = _resolve(config.host, config.port)
    loopback = ipaddress.ip_address(sockaddr[0].partition("%")[0]).is_loopback
    if not loopback and config.api_key is None:
        raise ConfigError(
            f"host {config.host!r} is open to other machines and needs --api-key; "
            "127.0.0.1 does not.",
            param="host",
        )
    where = f"{config.host} port {config.port}"
    try:
        # asyncio sends small answers at once (TCP_NODELAY) only where the protocol is named;
        # else each waits some 40 ms for the client's acknowledgement of what went before.
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as error:
        raise CannotRunError(f"{where} cannot be listened on: {error.strerror}.") from None
    try:
        if os.name == "posix":
            # Take a port again whose last connections are still in TIME_WAIT. Elsewhere the
            # option means something else: sharing the port with whoever has it.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(sockaddr)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressInUseError(
                f"{where} is in use; stop what listens there or choose another --port.",
                param="port",
            ) from None
        raise CannotRunError(f"{where} cannot be listened on: {error.strerror}.") from None
    host = f"[{config.host}]" if ":" in config.host else config.host
    return Listener(sock, f"http://{host}:{sock.getsockname()[1]}", loopback)


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """The first address of a name, IPv4 before IPv6."""
    if not host:
        raise ConfigError("host must not be empty; 0.0.0.0 means all addresses.", param="host")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ConfigError(f"host {host!r} is no address of this machine.", param="host") from None
    family, _, _, _, sockaddr = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, (str(sockaddr[0]), port)


def _open_unix(path: Path) -> Listener:
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    umask = os.umask(_SOCKET_UMASK)
    try:
        sock.bind(str(path))
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressInUseError(f"{path} is in use.", param="uds") from None
        if error.errno in (None, errno.ENAMETOOLONG):
            raise ConfigError(f"{path} is too long for a socket.", param="uds") from None
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise ConfigError(f"{path.parent} is not a folder.", param="uds") from None
        raise CannotRunError(
            f"{path} cannot be listened on: {error.strerror}.", param="uds"
        ) from None
    finally:
        os.umask(umask)
    sock.listen(BACKLOG)
    return Listener(sock, f"unix:{path}", False, path, path.lstat().st_ino)


def _remove_stale(path: Path) -> None:
    """Remove a socket that a dead server left behind, and nothing else.

    Raises:
        AddressInUseError: a server answers there, or it is no socket.
    """
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise ConfigError(f"{path} is too long for a socket.", param="uds") from None
        raise CannotRunError(f"{path} cannot be looked at: {error.strerror}.") from None
    if not stat.S_ISSOCK(mode):
        raise AddressInUseError(
            f"{path} exists and is no socket; choose another path.", param="uds"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise AddressInUseError(
                f"{path} belongs to somebody else: {error.strerror}.", param="uds"
            ) from None
    raise AddressInUseError(f"{path} is in use by another server.", param="uds")
